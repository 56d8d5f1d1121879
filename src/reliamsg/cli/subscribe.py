"""``reliamsg sub``: writes messages as lines, and acknowledges them when they are written."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

import click

from reliamsg.cli.appending import AppendedFile
from reliamsg.cli.bodies import body_fields
from reliamsg.cli.configured import Chosen, ConfiguredCommand, chosen_settings, config_option, of_consumer
from reliamsg.cli.options import (
    NameType,
    SiteGiven,
    Tls,
    build_sites,
    journal_option,
    json_option,
    keys_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.progress import Progress
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted, one_line
from reliamsg.errors import GapError
from reliamsg.message import Gap, Message
from reliamsg.terminal import ascii_json, printable, say

if TYPE_CHECKING:
    from reliamsg.config import JournalExport
    from reliamsg.configfile import ConfigFile
    from reliamsg.consumer.api import Consumer
    from reliamsg.consumer.status import ConsumerStatus
    from reliamsg.keys import KeyRing

__all__ = ["sub"]

_AT_ONCE = 500
"""The maximum number of messages between two flushes."""
_LOOK_SECONDS = 0.25
_CLOSE_SECONDS = 10.0
_REACHED = ("connected", "listening", "busy")
"""States of a site that was reached."""
_NO_READER = "the reader of the output is gone"


def _defaults(file: ConfigFile, chosen: Chosen) -> dict[str, Any]:
    found = of_consumer(file, chosen.get("name"), bool(chosen.get("inbox")))
    its = {"name": "group", "site": "sites", "file_topics": "topics"}
    renamed = {name: found.pop(old) for name, old in its.items() if old in found}
    if found.get("on_gap") == "raise":
        found["on_gap"] = "stop"
    return {**renamed, **found}


@click.command(epilog=SEE_EXIT_CODES, cls=ConfiguredCommand, defaults=_defaults)
@click.argument("topics", metavar="TOPIC...", type=NameType("topic"), nargs=-1)
@config_option
@click.option("--group", "name", type=NameType("group"), required=True, help="The consuming group.")
@click.option(
    "--inbox",
    type=click.Path(dir_okay=False),
    required=True,
    help="The group's inbox file; created if it does not exist.",
)
@site_options
@click.option(
    "--resume", metavar="FILE", type=click.Path(dir_okay=False),
    help="Append to FILE instead of standard output, without the messages that earlier runs have written to it.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Exit after this number of messages.")
@timeout_option(None, "Exit if no message arrives for this long.")
@click.option(
    "--begin", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True,
    help="Where a new group starts in a stream.",
)  # fmt: skip
@click.option(
    "--gap-timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True,
    metavar="SECONDS", help="How long to wait for missing messages.",
)  # fmt: skip
@click.option(
    "--on-gap", type=click.Choice(["hold", "stop", "skip"]), default="hold", show_default=True,
    help="If they do not arrive: hold only this stream (see `reliamsg inbox gaps`), stop, or report the gap and"
    " continue after it.",
)  # fmt: skip
@click.option(
    "--standby",
    is_flag=True,
    help="Wait while another consumer is active for the group; take over when it terminates.",
)
@journal_option
@keys_option
@json_option
def sub(
    topics: tuple[str, ...],
    name: str,
    inbox: str,
    site: tuple[SiteGiven, ...],
    tls: Tls,
    resume: str | None,
    count: int | None,
    timeout: float | None,
    begin: Literal["earliest", "latest"],
    gap_timeout: float,
    on_gap: Literal["hold", "stop", "skip"],
    standby: bool,
    journal: JournalExport | None,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Write the messages of one or more topics to standard output.

    Messages are written in order: a body and a newline each. A message is acknowledged after its line was written. So
    a message is written once, unless the command is killed between the two: the next run then writes it again, and
    says on standard error which lines were redelivered. With --resume FILE, it knows which messages are in FILE, and
    does not write them again.

    Exits with 0 on Ctrl-C and SIGTERM, when the reader of the output exits, and after --timeout, but with 1 if --count
    was not reached.

    With --json each line is an object with id, producer, topic, epoch, seq, key, headers, redelivered and body, or
    body_base64 if the body is not UTF-8 text. On a terminal, control characters and invisible characters are shown as
    escapes; otherwise a body is written byte for byte.
    """
    from reliamsg.consumer.api import Consumer

    more = chosen_settings()
    from_file = more.pop("file_topics", ())
    if not topics and not from_file:
        raise click.MissingParameter(param_hint="'TOPIC...'", param_type="argument")
    sites = build_sites(site, tls)
    consumer: Consumer | None = None
    with (
        _writer(resume, name, as_json) as writer,
        StopRequest(lambda: consumer.stop() if consumer is not None else None) as stop,
        Progress() as progress,
    ):
        consumer = Consumer(
            name,
            sites,
            topics=topics or from_file,
            inbox=inbox,
            begin=begin,
            gap_timeout=gap_timeout,
            on_gap="hold" if on_gap == "hold" else "raise" if on_gap == "stop" else _report_gap,
            standby=standby,
            journal=journal,
            keys=keys,
            **more,
        )
        try:
            reason = _read(consumer, writer, count, timeout, stop, progress)
            last = consumer.status()
            held = [stream.gap for stream in last.streams.values() if stream.gap_held]
        finally:
            consumer.close(_CLOSE_SECONDS)
    of = "" if count is None else f"{writer.count:,} of "
    ended = f"{reason} after {of}{counted(writer.count if count is None else count, 'message')}"
    away = "" if stop or writer.count == count or reason == _NO_READER else _away(last)
    if away:
        raise Failure(Status.UNAVAILABLE, f"{ended}; no site is connected: {away}")
    if count is not None and writer.count < count:
        raise Failure(stop.status if stop else Status.INCOMPLETE, ended)
    if held and not stop and writer.count != count:
        hint = f"see `reliamsg inbox gaps {inbox}`"
        raise Failure(
            Status.INCOMPLETE, f"{reason}, and {counted(len(held), 'stream')} held: {held[0]} ({hint})"
        )
    return Status.OK


def _away(status: ConsumerStatus) -> str:
    """The errors of the sites if none is connected; empty if one is, or if there is no error yet."""
    if any(site.state in _REACHED for site in status.sites.values()):
        return ""
    return "; ".join(
        f"{name}: {site.state}: {site.error}" for name, site in status.sites.items() if site.error
    )


@contextlib.contextmanager
def _writer(resumed: str | None, group: str, as_json: bool) -> Iterator[_Writer]:
    if resumed is None:
        yield _Writer(_Stdout(sys.stdout.buffer, as_json))
    else:
        with AppendedFile(resumed, group, _json_line if as_json else _body_line) as file:
            yield _Writer(file)


class _Output(Protocol):
    def append(self, messages: Sequence[Message]) -> int: ...


class _Writer:
    """Writes messages, and acknowledges them."""

    def __init__(self, output: _Output) -> None:
        self.count = 0
        self._output = output

    def write(self, messages: Sequence[Message]) -> None:
        written = self._output.append(messages)
        for message in messages:
            message.ack()
        self.count += written


class _Stdout:
    """Writes and flushes all messages."""

    def __init__(self, output: BinaryIO, as_json: bool) -> None:
        self._count = 0
        self._output = output
        self._line = _json_line if as_json else _shown_line if output.isatty() else _body_line
        self._says_repeated = not as_json  # the objects have the flag

    def append(self, messages: Sequence[Message]) -> int:
        if self._says_repeated:
            self._say_repeated(messages)
        self._output.write(b"".join([self._line(message) for message in messages]))
        self._output.flush()
        self._count += len(messages)
        return len(messages)

    def _say_repeated(self, messages: Sequence[Message]) -> None:
        """Say which lines an earlier run may have written: before it was killed, or its machine failed, and could
        acknowledge them."""
        lines = [number for number, message in enumerate(messages, self._count + 1) if message.redelivered]
        if lines:
            span = (
                f"line {lines[0]:,}"
                if len(lines) == 1
                else f"{len(lines):,} of lines {lines[0]:,} to {lines[-1]:,}"
            )
            first = one_line(messages[lines[0] - self._count - 1].id)
            say(f"reliamsg: redelivered, and perhaps in earlier output: {span}, from {first} on", err=True)


def _read(
    consumer: Consumer,
    writer: _Writer,
    count: int | None,
    timeout: float | None,
    stop: StopRequest,
    progress: Progress,
) -> str:
    """Write messages until there is a reason to stop, and return the reason."""
    latest = time.monotonic()
    while not stop:
        most = _AT_ONCE if count is None else min(_AT_ONCE, count - writer.count)
        if not most:
            return "done"
        try:
            messages, gap = _some(consumer, most)
            if messages:
                writer.write(messages)
            if gap is not None:
                raise gap
        except GapError as error:
            hint = "--on-gap skip continues after it"
            raise Failure(
                Status.INCOMPLETE, f"{error} ({hint}); {counted(writer.count, 'message')} written"
            ) from None
        except BrokenPipeError:
            _silence_stdout()
            return _NO_READER
        if messages:
            latest = time.monotonic()
            progress.show(lambda: counted(writer.count, "message"))
        elif timeout is not None and time.monotonic() - latest >= timeout:
            return f"no message arrived for {timeout:g} s"
    return "interrupted"


def _some(consumer: Consumer, most: int) -> tuple[list[Message], GapError | None]:
    """Wait briefly for a message, and take all others that are available, up to a gap."""
    messages: list[Message] = []
    try:
        message = consumer.get(_LOOK_SECONDS)
        while message is not None:
            messages.append(message)
            message = consumer.get(0) if len(messages) < most else None
    except GapError as error:
        return messages, error
    return messages, None


def _report_gap(gap: Gap) -> Literal["skip"]:
    say(f"reliamsg: {one_line(gap)}; skipped", err=True)
    return "skip"


def _body_line(message: Message) -> bytes:
    return message.body + b"\n"


def _shown_line(message: Message) -> bytes:
    """For a terminal: escapes control sequences in bodies."""
    return f"{printable(message.body.decode(errors='backslashreplace'))}\n".encode()


def _json_line(message: Message) -> bytes:
    found: dict[str, Any] = {
        "id": str(message.id),
        "producer": message.producer,
        "topic": message.topic,
        "epoch": message.epoch,
        "seq": message.seq,
        "key": message.key,
        "headers": dict(message.headers),
        "redelivered": message.redelivered,
        **body_fields(message.body),
    }
    return ascii_json(json.dumps(found)).encode() + b"\n"


def _silence_stdout() -> None:
    """Redirect standard output, so that the interpreter does not write the buffer to a closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
