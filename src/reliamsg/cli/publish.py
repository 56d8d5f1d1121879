"""``reliamsg pub``: publishes the lines of its input, each durable at once, and waits for the sites' confirms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click

from reliamsg.cli.configured import Chosen, ConfiguredCommand, chosen_settings, config_option, of_producer
from reliamsg.cli.lines import LineReader, open_input
from reliamsg.cli.options import (
    ConfirmType,
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
from reliamsg.cli.resuming import Resumable
from reliamsg.cli.sending import describe, drain, incomplete
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted, status_of
from reliamsg.errors import FatalError, OutboxFull, TransientError
from reliamsg.policy import Confirm
from reliamsg.terminal import say_json

if TYPE_CHECKING:
    from reliamsg.config import JournalExport
    from reliamsg.configfile import ConfigFile
    from reliamsg.keys import KeyRing
    from reliamsg.producer.api import Producer

__all__ = ["pub"]

_CLOSE_SECONDS = 5.0
"""After a signal: time limit for confirms of sent messages, and for closing."""


def _defaults(file: ConfigFile, chosen: Chosen) -> dict[str, Any]:
    found = of_producer(file, chosen.get("name"), bool(chosen.get("outbox")))
    groups = {topic: list(names) for topic, names in found.pop("groups", {}).items()}
    for own in ("when_full", "block_timeout"):  # this command waits in its own way
        found.pop(own, None)
    its = {"name": "producer_id", "site": "sites"}
    renamed = {name: found.pop(old) for name, old in its.items() if old in found}
    return {**renamed, **found, "groups": groups.pop(str(chosen.get("topic")), []), "other_groups": groups}


@click.command(epilog=SEE_EXIT_CODES, cls=ConfiguredCommand, defaults=_defaults)
@click.argument("topic", type=NameType("topic"))
@config_option
@click.option(
    "--producer", "name", type=NameType("producer id"), required=True, help="The id of the producer."
)
@click.option(
    "--outbox",
    type=click.Path(dir_okay=False),
    required=True,
    help="The producer's outbox file; created if it does not exist.",
)
@click.option(
    "--group", "groups", type=NameType("group"), multiple=True,
    help="A group that must get these messages; AMQP sites keep them for it from the start. Can be repeated.",
)  # fmt: skip
@site_options
@click.option("--file", "file", metavar="FILE", help="The file to read; the default is standard input.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue FILE where the latest run with --resume, the same outbox and topic stopped.",
)
@click.option(
    "--confirm", type=ConfirmType(), default="all", show_default=True, help="The sites that must confirm."
)
@click.option(
    "--wire", type=click.Choice(["batch", "plain"]), default="batch", show_default=True,
    help="plain: one broker message for each message, readable by other clients.",
)  # fmt: skip
@click.option(
    "--release", type=click.Choice(["confirmed", "consumed"]), default="confirmed", show_default=True,
    help="consumed: messages stay in the outbox until every --group has acknowledged them.",
)  # fmt: skip
@timeout_option(60.0, "After the end of the input, give up if nothing is confirmed for this long.")
@journal_option
@keys_option
@json_option
def pub(
    topic: str,
    name: str,
    outbox: str,
    groups: tuple[str, ...],
    site: tuple[SiteGiven, ...],
    tls: Tls,
    file: str | None,
    resume: bool,
    confirm: Confirm,
    wire: Literal["batch", "plain"],
    release: Literal["confirmed", "consumed"],
    timeout: float,
    journal: JournalExport | None,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Publish lines to TOPIC. Each line is a message, without its newline, byte for byte.

    A line is durable in the outbox before the next is read. The command exits when the sites have confirmed all lines
    and earlier messages in the outbox. Otherwise it reports how many remain: these stay in the outbox, and are sent by
    the next pub with the same outbox or by 'reliamsg outbox drain'. Do not publish them again.

    With --release consumed it also waits until the groups have acknowledged all lines: until then, messages that a
    broker loses are resent.

    Ctrl-C and SIGTERM stop reading; the number of accepted lines tells where to resume.

    With --resume, a run continues FILE after the last line that is durable in the outbox, however the run before ended:
    no line is published twice or left out. Publishes what is in FILE when it starts. FILE may only grow.
    """
    from reliamsg.producer.api import Producer

    if resume and file in (None, "-"):
        raise click.UsageError("--resume needs --file: standard input can't be read again")
    more = chosen_settings()
    named = {**more.pop("other_groups", {}), **({topic: list(groups)} if groups else {})}
    sites = build_sites(site, tls)
    with open_input(file) as descriptor, StopRequest() as stop, Progress() as progress:
        source = Resumable(descriptor, str(file), outbox, topic) if resume else _Input(descriptor)
        producer = Producer(
            name,
            sites,
            outbox=outbox,
            groups=named,
            confirm=confirm,
            release=release,
            wire=wire,
            block_timeout=0.5,
            journal=journal,
            keys=keys,
            **more,
        )
        pending = 0
        try:
            accepted, failure = _publish(producer, topic, source.begin(stop), stop, progress)
            if failure is None:
                source.finish(accepted, not stop)
            patience = _CLOSE_SECONDS if stop or failure else timeout
            consumed = release == "consumed"
            pending = drain(producer, patience, stop, progress, counted(accepted, "line"), consumed)
            waiting = describe(producer, consumed) if pending else ""
            status = incomplete(producer)
        finally:
            producer.close(
                0.0 if pending else _CLOSE_SECONDS
            )  # drain() has already waited for pending messages
    done = "acknowledged" if consumed else "confirmed"
    remaining = _remaining(accepted, pending, waiting, done)
    if as_json:
        say_json({"lines": accepted, "pending": pending, "interrupted": bool(stop), **source.result})
    if failure is not None:
        raise Failure(failure.status, f"{failure}; {remaining}")
    if stop:
        raise Failure(stop.status, f"interrupted; {remaining}")
    if pending:
        raise Failure(status, remaining)
    return Status.OK


class _Input:
    """Everything that comes from where the input is. Like :class:`Resumable`, without knowing of other runs."""

    result: ClassVar[dict[str, int]] = {}

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def begin(self, stop: StopRequest) -> LineReader:
        return LineReader(self._descriptor, stop)

    def finish(self, accepted: int, everything: bool) -> None:
        """Nothing is noted."""


def _publish(
    producer: Producer, topic: str, lines: LineReader, stop: StopRequest, progress: Progress
) -> tuple[int, Failure | None]:
    """Publish all lines. Returns the number of stored lines, and an error after which the producer stays usable."""
    stored = 0
    try:
        for some in lines:
            if not _store(producer, topic, some, stop):
                break
            stored += len(some)
            progress.show(lambda: f"{counted(lines.count, 'line')}, {producer.pending():,} not yet confirmed")
    except Failure as failure:
        return stored, failure
    except TransientError as error:
        return stored, Failure(status_of(error), str(error))
    except FatalError as error:
        raise Failure(status_of(error), f"{error}; at least {counted(stored, 'line')} stored") from None
    return stored, None


def _store(producer: Producer, topic: str, lines: list[bytes], stop: StopRequest) -> bool:
    """Store lines durably, waiting for room without limit; False if stopped before."""
    while not stop:
        try:
            producer.publish_many(topic, lines)
        except OutboxFull:
            continue  # the call has already waited
        return True
    return False


def _remaining(accepted: int, pending: int, waiting: str, done: str) -> str:
    text = f"{counted(accepted, 'line')} stored, "
    if not pending:
        return f"{text}all {done}"
    return f"{text}{counted(pending, 'message')} in the outbox not yet {done} ({waiting})"
