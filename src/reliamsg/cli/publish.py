"""``reliamsg pub``: a message a line, durable here at once, until the sites have confirmed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from reliamsg.cli.lines import LineReader, open_input
from reliamsg.cli.options import (
    ConfirmType,
    NameType,
    Tls,
    build_sites,
    journal_option,
    json_option,
    keys_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.progress import Progress
from reliamsg.cli.sending import describe, drain, incomplete
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status, status_of
from reliamsg.config import Confirm
from reliamsg.errors import FatalError, OutboxFull, TransientError
from reliamsg.terminal import say_json

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing
    from reliamsg.sending.api import Producer

__all__ = ["pub"]

_LAST_WORDS_SECONDS = 5.0
"""After a signal: how long to wait for what was sent already, and to close."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("topic", type=NameType("topic"))
@click.option(
    "--producer", "name", type=NameType("producer id"), required=True, help="Whose messages these are."
)
@click.option(
    "--outbox",
    type=click.Path(dir_okay=False),
    required=True,
    help="The producer's outbox file; made if absent.",
)
@click.option(
    "--group", "groups", type=NameType("group"), multiple=True,
    help="A group that must get these messages; AMQP sites keep them for it from the start. Repeat it.",
)  # fmt: skip
@site_options
@click.option("--file", "file", metavar="FILE", help="Read this file; standard input unless given.")
@click.option(
    "--confirm", type=ConfirmType(), default="all", show_default=True, help="Which sites must have confirmed."
)
@click.option(
    "--wire", type=click.Choice(["batch", "plain"]), default="batch", show_default=True,
    help="plain: one broker message for each message, readable for other clients.",
)  # fmt: skip
@click.option(
    "--release", type=click.Choice(["confirmed", "consumed"]), default="confirmed", show_default=True,
    help="consumed: messages stay here until every --group has acknowledged them.",
)  # fmt: skip
@timeout_option(60.0, "After the input ended: give up when nothing was confirmed for so long.")
@journal_option
@keys_option
@json_option
def pub(
    topic: str,
    name: str,
    outbox: str,
    groups: tuple[str, ...],
    site: tuple[tuple[str, str], ...],
    tls: Tls,
    file: str | None,
    confirm: Confirm,
    wire: Literal["batch", "plain"],
    release: Literal["confirmed", "consumed"],
    timeout: float,
    journal: str | None,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Publish lines to TOPIC: each is a message, without its newline, byte for byte.

    A line is durable in the outbox before the next read. The command ends when the sites have confirmed all
    lines, and what the outbox still held from before. Otherwise it says what remains: that stays in the outbox
    and is sent by the next pub with the same outbox, or by 'reliamsg outbox drain'. Never publish it again.

    With --release consumed it ends when the groups have acknowledged all lines as well: until then what a broker
    loses is sent again from here.

    Ctrl-C and SIGTERM end the reading; the number of lines taken tells where to go on.
    """
    from reliamsg.sending.api import Producer

    sites = build_sites(site, tls)
    with open_input(file) as descriptor, StopRequest() as stop, Progress() as progress:
        lines = LineReader(descriptor, stop)
        producer = Producer(
            name,
            sites,
            outbox=outbox,
            groups={topic: list(groups)} if groups else None,
            confirm=confirm,
            release=release,
            wire=wire,
            block_timeout=0.5,
            journal=journal,
            keys=keys,
        )
        pending = 0
        try:
            trouble = _publish(producer, topic, lines, stop, progress)
            patience = _LAST_WORDS_SECONDS if stop or trouble else timeout
            consumed = release == "consumed"
            pending = drain(producer, patience, stop, progress, f"{lines.count:,} lines", consumed)
            waiting = describe(producer, consumed) if pending else ""
            status = incomplete(producer)
        finally:
            # What was waited for already is not waited for again.
            producer.close(0.0 if pending else _LAST_WORDS_SECONDS)
    done = "acknowledged" if consumed else "confirmed"
    remaining = _remaining(lines.count, pending, waiting, done)
    if as_json:
        say_json({"lines": lines.count, "pending": pending, "interrupted": bool(stop)})
    if trouble is not None:
        raise Failure(trouble.status, f"{trouble}; {remaining}")
    if stop:
        raise Failure(stop.status, f"interrupted; {remaining}")
    if pending:
        raise Failure(status, remaining)
    return Status.OK


def _publish(
    producer: Producer, topic: str, lines: LineReader, stop: StopRequest, progress: Progress
) -> Failure | None:
    """Take lines until there are no more; returns what ended it early while the producer lives on."""
    before = 0
    try:
        for some in lines:
            before = lines.count - len(some)
            if not _store(producer, topic, some, stop):
                lines.count = before
                break
            before = lines.count
            progress.show(lambda: f"{lines.count:,} lines, {producer.pending():,} not yet confirmed")
    except Failure as failure:
        return failure
    except TransientError as error:  # these lines were not stored, those before them were
        lines.count = before
        return Failure(status_of(error), str(error))
    except FatalError as error:
        taken = f"at least {before:,} lines taken and durable here"
        raise Failure(status_of(error), f"{error}; {taken}") from None
    return None


def _store(producer: Producer, topic: str, lines: list[bytes], stop: StopRequest) -> bool:
    """Make lines durable, waiting for room as long as it takes; False when stopped before."""
    while not stop:
        try:
            producer.publish_many(topic, lines)
        except OutboxFull:
            continue  # it waited already
        return True
    return False


def _remaining(taken: int, pending: int, waiting: str, done: str) -> str:
    text = f"{taken:,} lines taken and durable here, "
    if not pending:
        return f"{text}all {done}"
    return f"{text}{pending:,} messages in the outbox not yet {done} ({waiting})"
