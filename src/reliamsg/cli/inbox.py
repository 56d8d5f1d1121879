"""``reliamsg inbox``: look into an inbox, also while its consumer runs, and decide on what only people can decide."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reliamsg.cli.options import json_option, timeout_option
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status, one_line
from reliamsg.terminal import printable, say, say_json

if TYPE_CHECKING:
    from reliamsg.store.requests import Answer, Request

__all__ = ["inbox"]

_file = click.argument("file", metavar="INBOX", type=click.Path(dir_okay=False))
_wait = timeout_option(5.0, "Wait so long for a running consumer to carry it out.")
_limit = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most lines listed."
)


@click.group()
def inbox() -> None:
    """Inboxes: what they hold, gaps that hold streams, and the quarantine.

    What changes anything is carried out by the consumer that has the inbox open, within a second; where none runs, by
    the next one that opens it. The consumer need not be stopped.
    """


@inbox.command(epilog=EXIT_CODES_HELP)
@_file
@json_option
def stats(file: str, as_json: bool) -> int:
    """Say what INBOX holds. Only reads, also while its consumer runs; then as of its latest commit."""
    from dataclasses import asdict

    from reliamsg.store.inbox_view import summarize_inbox

    found = summarize_inbox(file)
    if as_json:
        say_json(asdict(found))
        return Status.OK
    lines = [
        f"group {one_line(found.group)}, inbox {found.inbox_id}",
        f"knows {found.streams:,} streams; {found.gaps:,} of them lack something",
        f"remembers the positions of {found.forgotten:,} streams that were forgotten",
        f"holds {found.held_messages:,} messages, {found.held_bytes:,} bytes",
        f"dead letters: {found.dead_letters:,}; samples of unusable deliveries: {found.samples:,}",
    ]
    lines += [
        f"in quarantine ({one_line(reason)}): {count:,} deliveries, {size:,} bytes"
        for reason, (count, size) in found.quarantined.items()
    ]
    say(*lines)
    return Status.OK


@inbox.command("ls", epilog=EXIT_CODES_HELP)
@_file
@_limit
@json_option
def list_(file: str, limit: int, as_json: bool) -> int:
    """List streams that INBOX knows, by producer: epoch, position, how many messages are held, and how many behind a
    gap were left to their producer.

    Only reads, also while its consumer runs. With --json a line is an object.
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


@inbox.command(epilog=EXIT_CODES_HELP)
@_file
@_limit
@json_option
def gaps(file: str, limit: int, as_json: bool) -> int:
    """List the gaps that hold streams of INBOX up, and for how long they have done so.

    Only reads, also while its consumer runs. With --json a line is an object.
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


@inbox.command(epilog=EXIT_CODES_HELP)
@_file
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Accept all gaps that `reliamsg inbox gaps` lists.")
@_wait
def accept(file: str, streams: tuple[str, ...], everything: bool, timeout: float) -> int:
    """Go on without the messages that each STREAM lacks now, and declare them lost.

    A STREAM is named as `reliamsg inbox gaps` lists it: PRODUCER/TOPIC. Messages that arrive later are reported as
    late.
    """
    from reliamsg.store.inbox_view import list_gaps
    from reliamsg.store.requests import Request

    if not streams and not everything:
        raise click.UsageError("name streams, or give --all")
    found = {printable(gap.stream): gap for gap in list_gaps(file, -1)}
    named = [printable(name) for name in streams]
    missing = sorted(set(named) - set(found))
    if missing:
        raise Failure(Status.INCOMPLETE, f"{missing[0]} lacks nothing")
    for name in found if everything else named:
        gap = found[name]
        _ask(file, Request("accept", gap.stream, gap.epoch, gap.first, gap.last), timeout)
    return Status.OK


@inbox.command(epilog=EXIT_CODES_HELP)
@_file
@click.argument("patterns", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="Only streams of which no message was settled for so long; without STREAM all of these.",
)
@click.option(
    "--forged",
    type=click.IntRange(min=1),
    metavar="EPOCH",
    help="Epochs from EPOCH on are made up: go back to what came before them.",
)
@_wait
def forget(
    file: str, patterns: tuple[str, ...], idle: float | None, forged: int | None, timeout: float
) -> int:
    """Forget streams of which everything is settled: to make room, or to be rid of a forged epoch.

    A STREAM is named as `reliamsg inbox ls` lists it, PRODUCER/TOPIC, and may have the wildcards *, ? and [...].
    Nothing is lost by it, and nothing is delivered again: INBOX remembers each stream's epoch and position, in a
    fraction of the room. A stream of which something new arrives, or whose producer tells of it, is known again, and
    goes on where it was. Streams that are in use, hold messages, lack any, or have dead letters are kept.
    """
    if not patterns and idle is None:
        raise click.UsageError("name streams, or give --idle")
    from reliamsg.store.inbox_view import page_streams
    from reliamsg.store.requests import Request

    since = None if idle is None else time.time_ns() // 1000 - int(idle * 1e6)
    found, done, later = 0, True, False
    after: int | None = 0
    while after is not None:
        streams, after = page_streams(file, after, since)
        wanted = tuple(stream for stream in streams if not patterns or _matches(stream, patterns))
        if not wanted:
            continue
        found += len(wanted)
        request = Request("forget", epoch=forged or 0, streams=wanted, unused_since_us=since)
        answer = _answered(file, request, 0.0 if later else timeout)
        if answer is None:
            later = True
        else:
            say(one_line(answer.text))
            done &= answer.done
    if patterns and not found:
        raise Failure(Status.INCOMPLETE, "no stream that is named so is known, or idle for so long")
    if later:
        say(_LATER)
    return Status.OK if done else Status.INCOMPLETE


def _matches(stream: tuple[str, str, int], patterns: tuple[str, ...]) -> bool:
    name = printable(stream)
    return any(fnmatchcase(name, printable(pattern)) for pattern in patterns)


@inbox.group()
def quarantine() -> None:
    """Sound deliveries that could not be taken in, and are kept whole in the inbox."""


@quarantine.command("list", epilog=EXIT_CODES_HELP)
@_file
@_limit
@json_option
def list_quarantine(file: str, limit: int, as_json: bool) -> int:
    """List what is in quarantine in INBOX, oldest first. Only reads. With --json a line is an object."""
    from reliamsg.store.inbox_view import list_quarantined

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
            say(
                f"{one.id}  {came}  {one_line(one.reason)}  {one_line(one.stream)}  epoch {one.epoch}"
                f"  {one.first} to {one.last}  {one.size:,} bytes"
            )
    return Status.OK


def _selected(action: str, help_: str) -> None:
    @quarantine.command(action, epilog=EXIT_CODES_HELP, help=help_)
    @_file
    @click.option("--id", "ids", type=int, multiple=True, help="A delivery, by its number. Repeat it.")
    @click.option("--reason", help="Those that are there for this reason.")
    @click.option("--stream", metavar="STREAM", help="Those of this stream (PRODUCER/TOPIC).")
    @click.option("--all", "everything", is_flag=True, help="All of them.")
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

        if not (ids or reason or stream or everything):
            raise click.UsageError("choose deliveries with --id, --reason or --stream, or give --all")
        of = None if stream is None else find_stream(file, stream)
        if stream is not None and of is None:
            raise Failure(Status.INCOMPLETE, f"{stream} is not known here")
        request = Request(
            "replay" if action == "replay" else "discard",
            of,
            ids=ids or None,
            reason=reason,
        )
        _ask(file, request, timeout)
        return Status.OK


_selected("replay", "Take deliveries in again, as if they arrived now. Duplicates are dropped.")
_selected("discard", "Delete deliveries for good. Their messages are lost, unless they come again.")


_LATER = "no consumer has the inbox open: the next one that opens it carries this out"


def _answered(file: str, request: Request, timeout: float) -> Answer | None:
    from reliamsg.store.inbox_view import check_inbox
    from reliamsg.store.requests import ask

    check_inbox(file)
    return ask(Path(file), request, timeout)


def _ask(file: str, request: Request, timeout: float) -> None:
    answer = _answered(file, request, timeout)
    if answer is None:
        say(_LATER)
    elif answer.done:
        say(one_line(answer.text))
    else:
        raise Failure(Status.INCOMPLETE, answer.text)


def _named(stream: tuple[str, str, int]) -> dict[str, object]:
    return {"producer": stream[0], "topic": stream[1], "partition": stream[2]}
