"""``reliamsg outbox``: inspects an outbox, even while its owner runs, and sends its messages."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reliamsg.cli.bodies import body_fields, preview
from reliamsg.cli.configured import Chosen, ConfiguredCommand, chosen_settings, config_option, only_sites
from reliamsg.cli.export import export_command
from reliamsg.cli.options import (
    ConfirmType,
    SiteGiven,
    Tls,
    build_sites,
    json_option,
    keys_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.progress import Progress
from reliamsg.cli.sending import describe, drain, incomplete, left
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted
from reliamsg.message import MessageId
from reliamsg.policy import Confirm
from reliamsg.terminal import say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reliamsg.config import Site
    from reliamsg.configfile import ConfigFile
    from reliamsg.inspection.frames import Content
    from reliamsg.inspection.outbox import OutboxBatch, OutboxState
    from reliamsg.keys import KeyRing
    from reliamsg.store.outbox_view import MemberInfo, OutboxInfo

__all__ = ["outbox"]

_CLOSE_SECONDS = 5.0

_file = click.argument("file", metavar="OUTBOX", type=click.Path(dir_okay=False))


@click.group()
def outbox() -> None:
    """Inspect outboxes, and send their messages."""


@outbox.command(epilog=SEE_EXIT_CODES)
@_file
@json_option
def stats(file: str, as_json: bool) -> int:
    """Show the content of OUTBOX in numbers.

    Read-only; a producer may be running (then as of its latest commit).
    """
    from reliamsg.store.outbox_view import inspect_outbox

    info = inspect_outbox(file)
    age = None if info.oldest_us is None else max(0.0, time.time() - info.oldest_us / 1e6)
    if as_json:
        found = asdict(info)
        found["parked"] = [
            {"site": site, "stream": stream, "reason": reason} for site, stream, reason in info.parked
        ]
        say_json({**found, "oldest_age_s": age})
        return Status.OK
    oldest = "" if age is None else f", the oldest {age:,.1f} s old"
    lines = [
        f"producer {info.producer}, epoch {info.epoch}",
        f"holds {counted(info.messages, 'message')} in {counted(info.batches, 'batch')}, {info.bytes:,} bytes{oldest}",
        f"not yet published (confirm policy not met): {counted(info.unpublished, 'message')}",
    ]
    lines += [f"not confirmed by {site}: {counted(count, 'message')}" for site, count in info.sites.items()]
    lines += [_of_group(member) for member in info.members]
    lines += [f"parked at {site}: {stream} ({reason})" for site, stream, reason in info.parked]
    say(*lines)
    return Status.OK


def _of_group(member: MemberInfo) -> str:
    epoch, number = member.position
    place = member.topic + (f"~{member.partition}" if member.partition else "")
    text = (
        f"group {member.group} on {place}: all before {number:,} of epoch {epoch} acknowledged,"
        f" {counted(member.behind, 'message')} behind"
    )
    if member.lacks is not None:
        epoch, first, last = member.lacks
        text += f", held up by a gap: it lacks {first:,} to {last:,} of epoch {epoch}"
    if member.unseen_at:
        text += (
            f", unseen at {', '.join(member.unseen_at)} (start its consumer, or run `reliamsg group create`)"
        )
    return text


@outbox.command("ls", epilog=SEE_EXIT_CODES)
@_file
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="The maximum number of batches.",
)
@json_option
def list_(file: str, limit: int, as_json: bool) -> int:
    """List the oldest batches of OUTBOX.

    Shows topic, epoch, sequence numbers, bytes, and the time of storing. Read-only; a producer may be running. With
    --json each line is an object.
    """
    from reliamsg.store.outbox_view import list_batches

    for row in list_batches(file, limit):
        last = row.seq + row.count - 1
        if as_json:
            say_json(
                {
                    "topic": row.stream.topic,
                    "partition": row.stream.partition,
                    "epoch": row.epoch,
                    "first": row.seq,
                    "last": last,
                    "bytes": row.size,
                    "stored_us": row.wall_us,
                }
            )
        else:
            stored = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.wall_us / 1e6))
            say(f"{stored}  {row.stream.topic}  epoch {row.epoch}  {row.seq} to {last}  {row.size:,} bytes")
    return Status.OK


_number = click.IntRange(min=0, max=2**63 - 1)


@outbox.command(epilog=SEE_EXIT_CODES)
@_file
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--epoch", type=_number, help="Only messages of this epoch.")
@click.option("--first", type=_number, help="Only messages from this sequence number on.")
@click.option("--last", type=_number, help="Only messages up to this sequence number.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="The maximum number of messages.",
)
@json_option
def show(
    file: str,
    streams: tuple[str, ...],
    epoch: int | None,
    first: int | None,
    last: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Show the messages of OUTBOX, oldest first.

    A STREAM is TOPIC or PRODUCER/TOPIC, with ~PARTITION if that is not 0. Shows the time of storing, the sequence
    number, key, headers, the beginning of the body, and which sites and groups still lack the message. Read-only; a
    producer may be running. Batches that can't be decoded are named on standard error; the exit code is then 65.

    With --json each line is an object with the whole body, or body_base64 if the body is not UTF-8 text.
    """
    from reliamsg.inspection.outbox import Numbers, OutboxState, read_batches
    from reliamsg.inspection.snapshot import looking

    status = Status.OK
    with looking(file, "outbox") as connection:
        state = OutboxState(connection)
        ids = None
        if streams:
            named = state.named(streams)
            missing = sorted(set(streams) - set(named))
            if missing:
                raise Failure(Status.INCOMPLETE, f"{missing[0]} is not a known stream")
            ids = tuple(sorted({number for found in named.values() for number in found}))
        for batch in read_batches(connection, state, Numbers(ids, epoch, first, last)):
            if batch.decoded.problem is not None:
                say(f"damaged: {batch.damage}", err=True)
                status = Status.DATA
                limit -= 1  # a damaged outbox does not fill the terminal either
            for message in batch.decoded.messages:
                if limit and (first or 0) <= message.seq and (last is None or message.seq <= last):
                    _show(state, batch, message, as_json)
                    limit -= 1
            if not limit:
                break
    return status


def _show(state: OutboxState, batch: OutboxBatch, message: Content, as_json: bool) -> None:
    from reliamsg.inspection.times import iso

    assert batch.stream is not None  # its frame was decoded, so it is of the stream in the row
    identity = MessageId(state.producer, batch.epoch, batch.stream.topic, batch.stream.partition, message.seq)
    confirmed, unsettled = state.confirmed(batch), state.unsettled_by(batch, message.seq)
    if as_json:
        say_json(
            {
                "id": str(identity), **identity._asdict(), "key": message.key, "headers": message.headers,
                "bytes": len(message.body), "stored_us": batch.stored_us, "published": state.published(batch),
                "confirmed": confirmed, "unsettled_by": unsettled, **body_fields(message.body),
            }
        )  # fmt: skip
        return
    stored = iso(batch.stored_us, "seconds") or "at an unreadable time"
    lines = [
        f"{stored}  {batch.stream}  epoch {batch.epoch}  {message.seq}  {counted(len(message.body), 'byte')}",
        f"  {preview(message.body)}",
    ]
    if message.key is not None:
        lines.append(f"  key: {message.key}")
    lines += [f"  header {name}: {value}" for name, value in message.headers.items()]
    missing = [site for site, done in confirmed.items() if not done]
    if missing:
        lines.append(f"  not confirmed by: {', '.join(missing)}")
    if unsettled:
        lines.append(f"  not acknowledged by: {', '.join(unsettled)}")
    say(*lines)


outbox.add_command(export_command("outbox"))


def _defaults(file: ConfigFile, chosen: Chosen) -> dict[str, Any]:
    """The settings of the producer that has this outbox, or only sites."""
    path = os.path.realpath(str(chosen.get("file") or ""))
    name = next((name for name in file.producer_names if os.path.realpath(file.outbox(name)) == path), None)
    found = only_sites(file) if name is None else file.producer(name)
    for own in ("producer_id", "outbox", "groups", "release", "journal"):  # as the outbox has them
        found.pop(own, None)
    return {"site": found.pop("sites"), **found}


@outbox.command("drain", epilog=SEE_EXIT_CODES, cls=ConfiguredCommand, defaults=_defaults)
@_file
@config_option
@site_options
@click.option(
    "--confirm", type=ConfirmType(), default="all", show_default=True, help="The sites that must confirm."
)
@click.option(
    "--forget-site", "forgotten", multiple=True, metavar="NAME",
    help="No longer send to this known site. It will not get messages that it has not confirmed.",
)  # fmt: skip
@timeout_option(60.0, "Give up if nothing is confirmed for this long.")
@keys_option
@json_option
def drain_(
    file: str,
    site: tuple[SiteGiven, ...],
    tls: Tls,
    confirm: Confirm,
    forgotten: tuple[str, ...],
    timeout: float,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Send the messages in OUTBOX until the sites have confirmed them.

    Replaces a producer that is not running, with its groups from the last run. If it retained messages until the groups
    had acknowledged them, also waits for the acknowledgements. All known sites of the outbox must be given with --site
    or --forget-site.
    """
    from reliamsg.producer.api import Producer
    from reliamsg.store.outbox_view import inspect_outbox

    more = chosen_settings()
    sites = build_sites(site, tls)
    info = inspect_outbox(file)
    _check_sites(info, sites, forgotten)
    with StopRequest() as stop, Progress() as progress:
        consumed = info.release == "consumed"
        producer = Producer(
            info.producer, sites, outbox=file, groups=info.groups, confirm=confirm,
            release="consumed" if consumed else "confirmed", keys=keys, **more,
        )  # fmt: skip
        pending = 0
        try:
            before = left(producer, consumed)
            pending = drain(producer, timeout, stop, progress, info.producer, consumed)
            waiting, status = describe(producer, consumed), incomplete(producer)
        finally:
            producer.close(0.0 if pending else _CLOSE_SECONDS)
    if as_json:
        say_json({"producer": info.producer, "sent": before - pending, "pending": pending})
    done = "acknowledged" if consumed else "confirmed"
    if pending:
        raise Failure(
            stop.status if stop else status, f"{counted(pending, 'message')} not yet {done} ({waiting})"
        )
    if not as_json:
        say(f"{counted(before - pending, 'message')} of {info.producer} {done}; nothing remains")
    return Status.OK


def _check_sites(info: OutboxInfo, sites: Sequence[Site], forgotten: Sequence[str]) -> None:
    """Require all known sites: an owner without a site forgets it, and with it the messages that it lacks."""
    missing = sorted(set(info.sites) - {site.name for site in sites} - set(forgotten))
    if missing:
        names = ", ".join(missing)
        raise Failure(
            Status.USAGE, f"the outbox also sends to {names}: give --site {missing[0]}=URL, or --forget-site"
        )
