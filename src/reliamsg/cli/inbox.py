"""``reliamsg inbox``: inspects an inbox, even while its consumer runs, and executes decisions of an operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reliamsg.cli.bodies import body_fields, preview
from reliamsg.cli.export import export_command
from reliamsg.cli.options import json_option, timeout_option
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted, one_line
from reliamsg.terminal import printable, say, say_json

if TYPE_CHECKING:
    from reliamsg.inspection.inbox import DeadLetterRow
    from reliamsg.store.requests import Request

__all__ = ["inbox"]

F = TypeVar("F", bound=Callable[..., Any])

_REPLAYED_AT_ONCE = 1_000
"""How many ids are in one request."""

_file = click.argument("file", metavar="INBOX", type=click.Path(dir_okay=False))
_wait = timeout_option(5.0, "Wait this long for a running consumer to execute the request.")
_limit = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The maximum number of lines."
)


def _selecting(what: str, reason_help: str) -> Callable[[F], F]:
    """Options that select dead letters or deliveries."""

    def decorate(command: F) -> F:
        for option in (
            click.option("--all", "everything", is_flag=True, help=f"All {what}."),
            click.option("--stream", metavar="STREAM", help="Those of this stream (PRODUCER/TOPIC)."),
            click.option("--reason", help=reason_help),
            click.option(
                "--id", "ids", type=int, multiple=True, help="The one with this id. Can be repeated."
            ),
        ):
            command = option(command)
        return command

    return decorate


def _check_selected(
    what: str, ids: tuple[int, ...], reason: str | None, stream: str | None, everything: bool
) -> None:
    if not (ids or reason or stream or everything):
        raise click.UsageError(f"select {what} with --id, --reason or --stream, or use --all")


@click.group()
def inbox() -> None:
    """Inspect inboxes, accept gaps, and manage the quarantine.

    Changes are executed by the consumer that has the inbox open, within a second, or by the next consumer that opens
    it. The consumer need not be stopped.
    """


@inbox.command(epilog=SEE_EXIT_CODES)
@_file
@json_option
def stats(file: str, as_json: bool) -> int:
    """Show the content of INBOX in numbers.

    Read-only; a consumer may be running (then as of its latest commit).
    """
    from dataclasses import asdict

    from reliamsg.store.inbox_view import summarize_inbox

    found = summarize_inbox(file)
    if as_json:
        say_json(asdict(found))
        return Status.OK
    lines = [
        f"group {one_line(found.group)}, inbox {found.inbox_id}",
        f"streams: {found.streams:,}; with gaps: {found.gaps:,}; forgotten: {found.forgotten:,}",
        f"holds {counted(found.held_messages, 'message')}, {found.held_bytes:,} bytes",
        f"dead letters: {found.dead_letters:,}; samples of unusable deliveries: {found.samples:,}",
    ]
    lines += [
        f"in quarantine ({one_line(reason)}): {counted(count, 'delivery')}, {size:,} bytes"
        for reason, (count, size) in found.quarantined.items()
    ]
    say(*lines)
    return Status.OK


@inbox.command("ls", epilog=SEE_EXIT_CODES)
@_file
@_limit
@json_option
def list_(file: str, limit: int, as_json: bool) -> int:
    """List the streams of INBOX, by producer.

    Shows the epoch, the position, the number of messages held, and of messages behind a gap that were left to their
    producer. Read-only; a consumer may be running. With --json each line is an object.
    """
    from reliamsg.store.inbox_view import list_streams

    for info in list_streams(file, limit):
        if as_json:
            say_json(
                {
                    **_named(info.stream), "epoch": info.epoch, "position": info.position, "held": info.held,
                    "left": info.left,
                }
            )  # fmt: skip
        else:
            left = f"  {info.left:,} left to the producer" if info.left else ""
            say(
                f"{one_line(info.stream)}  epoch {info.epoch}  position {info.position}  {info.held:,} held{left}"
            )
    return Status.OK


@inbox.command(epilog=SEE_EXIT_CODES)
@_file
@_limit
@json_option
def gaps(file: str, limit: int, as_json: bool) -> int:
    """List the gaps that hold streams of INBOX, and for how long.

    Read-only; a consumer may be running. With --json each line is an object.
    """
    from reliamsg.store.inbox_view import list_gaps

    for gap in list_gaps(file, limit):
        if as_json:
            say_json(
                {
                    **_named(gap.stream), "epoch": gap.epoch, "first": gap.first, "last": gap.last,
                    "elapsed_s": gap.elapsed_s, "waited_s": gap.waited_s,
                }
            )  # fmt: skip
        else:
            last = "an unknown end" if gap.last is None else gap.last
            say(
                f"{one_line(gap.stream)}  lacks {gap.first} to {last} of epoch {gap.epoch}"
                f"  for {gap.elapsed_s:,.1f} s"
            )
    return Status.OK


@inbox.command("dead-letters", epilog=SEE_EXIT_CODES)
@_file
@_limit
@json_option
def list_dead_letters(file: str, limit: int, as_json: bool) -> int:
    """List the dead letters of INBOX, oldest first.

    Shows when a message was given up and why, the delivery attempts, and the beginning of its body. Read-only; a
    consumer may be running. `reliamsg inbox replay` delivers them again. Damaged ones are named on standard error; the
    exit code is then 65.

    With --json each line is an object with the whole body, or body_base64 if the body is not UTF-8 text.
    """
    from reliamsg.inspection.inbox import read_dead_letters
    from reliamsg.inspection.snapshot import looking

    status = Status.OK
    with looking(file, "inbox") as connection:
        for one in read_dead_letters(connection, limit):
            if one.problem is not None:
                say(f"damaged: {one_line(one.damage)}", err=True)
                status = Status.DATA
            if as_json:
                say_json(
                    {
                        "id": one.id, **_named(one.stream or (None, None, None)), "epoch": one.epoch, "seq": one.seq,
                        "key": one.key, "headers": one.headers, "reason": one.reason, "attempts": one.attempts,
                        "dead_us": one.dead_us, "bytes": len(one.body), **body_fields(one.body),
                    }
                )  # fmt: skip
            else:
                _say_dead_letter(one)
    return status


def _say_dead_letter(one: DeadLetterRow) -> None:
    from reliamsg.inspection.times import iso

    since = iso(one.dead_us, "seconds") or "at an unreadable time"
    say(
        f"{one.id}  {since}  {one_line(one.stream)}  epoch {one.epoch}  {one.seq}"
        f"  {counted(one.attempts, 'attempt')}  {one_line(one.reason)}",
        f"  {preview(one.body)}",
    )


@inbox.command(epilog=SEE_EXIT_CODES)
@_file
@_selecting("dead letters", "Those whose reason contains this text.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@_wait
def replay(
    file: str,
    ids: tuple[int, ...],
    reason: str | None,
    stream: str | None,
    everything: bool,
    dry_run: bool,
    timeout: float,
) -> int:
    """Deliver dead letters of INBOX to the application again, oldest first.

    They are flagged `replayed`, and precede what is waiting in their streams. Those that the application acknowledges
    are no dead letters any more. The others stay: those that it fails to handle again, and those that it has not
    handled when its consumer is closed.
    """
    from reliamsg.inspection.inbox import read_dead_letters
    from reliamsg.inspection.snapshot import looking
    from reliamsg.store.requests import Request

    _check_selected("dead letters", ids, reason, stream, everything)

    def selected(one: DeadLetterRow) -> bool:
        return (
            one.problem is None
            and (not ids or one.id in ids)
            and (reason is None or reason in one.reason)
            and (stream is None or printable(one.stream) == printable(stream))
        )

    found: list[int] = []
    with looking(file, "inbox") as connection:
        for one in filter(selected, read_dead_letters(connection)):
            found.append(one.id)
            if dry_run:
                _say_dead_letter(one)
    if missing := set(ids) - set(found):
        raise Failure(Status.INCOMPLETE, f"there is no dead letter {min(missing)} that matches")
    if not found:
        say("no dead letter matches")
    if dry_run:
        return Status.OK
    pages = (tuple(found[at : at + _REPLAYED_AT_ONCE]) for at in range(0, len(found), _REPLAYED_AT_ONCE))
    return _ask(file, (Request("replay_dead", ids=page) for page in pages), timeout)


inbox.add_command(export_command("inbox"))


@inbox.command(epilog=SEE_EXIT_CODES)
@_file
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Accept all gaps that `reliamsg inbox gaps` lists.")
@_wait
def accept(file: str, streams: tuple[str, ...], everything: bool, timeout: float) -> int:
    """Declare the missing messages of each STREAM lost, and continue.

    Name a STREAM as `reliamsg inbox gaps` lists it: PRODUCER/TOPIC. Messages that arrive later are reported as late.
    """
    from reliamsg.store.inbox_view import list_gaps
    from reliamsg.store.requests import Request

    if not streams and not everything:
        raise click.UsageError("name streams, or use --all")
    found = {printable(gap.stream): gap for gap in list_gaps(file, -1)}
    named = [printable(name) for name in streams]
    missing = sorted(set(named) - set(found))
    if missing:
        raise Failure(Status.INCOMPLETE, f"{missing[0]} lacks nothing")
    gaps = [found[name] for name in (found if everything else named)]
    return _ask(
        file, (Request("accept", gap.stream, gap.epoch, gap.first, gap.last) for gap in gaps), timeout
    )


@inbox.command(epilog=SEE_EXIT_CODES)
@_file
@click.argument("patterns", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="Only streams without a settled message for this long; without STREAM, all of them.",
)
@click.option(
    "--forged",
    type=click.IntRange(min=1),
    metavar="EPOCH",
    help="Epochs from EPOCH on are forged: return to the epoch before them.",
)
@_wait
def forget(
    file: str, patterns: tuple[str, ...], idle: float | None, forged: int | None, timeout: float
) -> int:
    """Forget settled streams, to make room or undo a forged epoch.

    Name a STREAM as `reliamsg inbox ls` lists it, PRODUCER/TOPIC, with the wildcards *, ? and [...]. No message is lost
    or redelivered: INBOX keeps each stream's epoch and position, in a fraction of the room. When new messages of a
    stream, or an announcement of its producer, arrive, the stream continues from its position. Streams that are in use,
    hold messages, have a gap, or have dead letters are kept.
    """
    if not patterns and idle is None:
        raise click.UsageError("name streams, or use --idle")
    from reliamsg.store.inbox_view import page_streams
    from reliamsg.store.requests import Request

    since = None if idle is None else time.time_ns() // 1000 - int(idle * 1e6)
    found = 0

    def requests() -> Iterator[Request]:
        nonlocal found
        after: int | None = 0
        while after is not None:
            streams, after = page_streams(file, after, since)
            wanted = tuple(stream for stream in streams if not patterns or _matches(stream, patterns))
            if wanted:
                found += len(wanted)
                yield Request("forget", epoch=forged or 0, streams=wanted, unused_since_us=since)

    status = _ask(file, requests(), timeout)
    if patterns and not found:
        raise Failure(Status.INCOMPLETE, "no known stream matches")
    return status


def _matches(stream: tuple[str, str, int], patterns: tuple[str, ...]) -> bool:
    name = printable(stream)
    return any(fnmatchcase(name, printable(pattern)) for pattern in patterns)


@inbox.group()
def quarantine() -> None:
    """Manage valid deliveries that could not be accepted.

    They are stored unchanged in the inbox.
    """


@quarantine.command("list", epilog=SEE_EXIT_CODES)
@_file
@_limit
@json_option
def list_quarantine(file: str, limit: int, as_json: bool) -> int:
    """List the deliveries in the quarantine of INBOX, oldest first.

    Read-only. With --json each line is an object.
    """
    from reliamsg.store.inbox_view import list_quarantined
    from reliamsg.store.quarantine import LATER_VERSION

    for one in list_quarantined(file, limit):
        if as_json:
            say_json(
                {
                    "id": one.id, "reason": one.reason, "site": one.site, **_named(one.stream), "epoch": one.epoch,
                    "first": one.first, "last": one.last, "bytes": one.size, "received_us": one.received_us,
                    "replaying": one.replay,
                }
            )  # fmt: skip
        else:
            came = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.received_us / 1e6))
            messages = f"{one_line(one.stream)}  epoch {one.epoch}  {one.first} to {one.last}"
            if one.reason == LATER_VERSION:
                messages = f"unknown messages of {one_line(one.stream.topic)}"
            say(f"{one.id}  {came}  {one_line(one.reason)}  {messages}  {one.size:,} bytes")
    return Status.OK


def _selected(action: str, help_: str) -> None:
    @quarantine.command(action, epilog=SEE_EXIT_CODES, help=help_)
    @_file
    @_selecting("deliveries", "Those with exactly this reason.")
    @_wait
    def command(
        file: str,
        ids: tuple[int, ...],
        reason: str | None,
        stream: str | None,
        everything: bool,
        timeout: float,
    ) -> int:
        from reliamsg.store.inbox_view import find_stream
        from reliamsg.store.requests import Request

        _check_selected("deliveries", ids, reason, stream, everything)
        of = None if stream is None else find_stream(file, stream)
        if stream is not None and of is None:
            raise Failure(Status.INCOMPLETE, f"{stream} is not a known stream")
        request = Request(
            "replay" if action == "replay" else "discard",
            of,
            ids=ids or None,
            reason=reason,
        )
        return _ask(file, [request], timeout)


_selected("replay", "Process deliveries as if they arrived now. Duplicates are dropped.")
_selected("discard", "Delete deliveries permanently. Their messages are lost unless they arrive again.")


def _ask(file: str, requests: Iterable[Request], timeout: float) -> Status:
    """Leave requests one after the other, and show the answers. Once there was none, only leave them."""
    from reliamsg.store.inbox_view import check_inbox
    from reliamsg.store.requests import ask

    check_inbox(file)
    status, later = Status.OK, False
    for request in requests:
        answer = ask(Path(file), request, 0.0 if later else timeout)
        if answer is None:
            later = True
        else:
            say(one_line(answer.text), err=not answer.done)
            status = status if answer.done else Status.INCOMPLETE
    if later:
        say("no consumer has the inbox open: the next one that opens it will execute this")
    return status


def _named(stream: tuple[str, str, int] | tuple[None, None, None]) -> dict[str, object]:
    return {"producer": stream[0], "topic": stream[1], "partition": stream[2]}
