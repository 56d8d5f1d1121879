"""A consumer's status."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reliamsg.consumer.engine import ConsumerEngine
from reliamsg.consumer.fullness import Stalled
from reliamsg.consumer.site import SiteReceiver, SiteState
from reliamsg.export.exporter import JournalStatus
from reliamsg.message import Gap, Stream
from reliamsg.protocol.receiver.stream import StreamReceiver

__all__ = [
    "ConsumerRole", "ConsumerStatus", "KnownProducer", "Remaining", "SiteStatus", "Stalled", "StreamStatus",
    "status_of",
    "waiting_status",
]  # fmt: skip

ConsumerRole = Literal["starting", "active", "standby"]


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """One site, as the consumer sees it."""

    state: SiteState
    endpoint: str
    """Where it is connected, or was tried last."""
    error: str
    """Why it is not connected; empty while it is."""
    pending: int
    """Deliveries that the broker keeps until they are safe here."""
    received: int
    """Messages that arrived from here first, since the consumer was opened."""
    duplicates: int
    """Messages that arrived from here and were known already."""
    rejected: dict[str, int]
    """Unusable deliveries, by reason."""
    repaired: int = 0
    """Messages that a producer sent again here, since they were missing."""
    refused_addresses: tuple[str, ...] = ()
    """Control addresses that the site does not let us send to or listen at, as far as it lets us know."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream, as the consumer sees it."""

    epoch: int
    position: int
    """The next message of `epoch` that is not dealt with."""
    held: int
    """Messages that arrived and are not dealt with."""
    unacknowledged: int
    """Of those, messages that the application was given."""
    gap: Gap | None
    """The gap that holds the stream up, if messages are missing."""
    gap_elapsed_s: float
    """For how long it has held the stream up, as far as that counts."""
    failing: bool
    """A message whose handling failed waits to be delivered again."""
    halted: bool
    gap_held: bool = False
    """With ``on_gap="hold"``: the gap's time is over, and it holds the stream until it is filled or accepted."""
    left_to_producer: bool = False
    """Messages behind the gap are not here: its producer keeps them for the group, and they are asked for when the
    stream has reached them. ``reliamsg inbox ls`` shows their number."""


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """A producer, by its latest status."""

    epoch: int
    heard_s: float
    """How long ago that was, in seconds."""
    interval_s: float
    """Within how many seconds it promised its next status, while any of its messages is not acknowledged."""
    lsn: int
    """How far its journal was written."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer at one moment."""

    group: str
    inbox_id: str
    sites: dict[str, SiteStatus]
    streams: dict[Stream, StreamStatus]
    inbox_bytes: int
    """Messages in the inbox, in bytes as they are stored."""
    dead_letters: int
    error: str
    """Why the consumer has stopped, can't write its inbox, or delivers nothing since its journal is full; empty while
    all is well."""
    journal: JournalStatus | None = None
    """The journal's export; None where it stays in the inbox."""
    role: ConsumerRole = "active"
    """``active``: it reads for the group; ``standby``: another inbox does, or did until lately; ``starting``: that is
    not known yet, or not any more. Only an active consumer delivers messages."""
    asked: int = 0
    """Messages that producers were asked to send again; those asked for twice count twice."""
    repaired: int = 0
    """Messages that arrived in answer."""
    producers: dict[str, KnownProducer] = field(default_factory=dict)
    """Producers that sent a status since the consumer was opened."""
    stalled: tuple[Stalled, ...] = ()
    """While the inbox is full (``max_inbox_bytes``): which streams fill it and why, the fullest first; 10 at most."""
    quarantined: dict[str, int] = field(default_factory=dict)
    """Deliveries in the quarantine, by reason: ``unreadable``, ``later-version``, ``held``, ``too-many-streams`` or
    ``far-epoch``."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The messages that a consumer leaves when it is closed. All of them are delivered again."""

    unacknowledged: int
    """Messages that the application was given and did not acknowledge."""
    held: int
    """Messages that arrived, were not acknowledged, and are in the inbox or with the brokers."""
    clean: bool
    """The inbox was left as after a clean stop."""


def status_of(engine: ConsumerEngine) -> ConsumerStatus:
    """Look at all parts at one moment."""
    shared = engine.shared
    with shared.lock:
        shared.buffers.settle(shared.clock())
        error = shared.health.fatal or shared.durability.write_error or shared.durability.spill_error
        text = engine.export.why_full if error is None else str(error)
        return ConsumerStatus(
            engine.settings.group,
            shared.inbox.id,
            {name: _site(engine, site) for name, site in engine.sites.items()},
            {stream: _stream(state) for stream, state in shared.core.streams.items()},
            shared.inbox.held_bytes,
            shared.inbox.dead_letter_count + len(shared.durability.pending.dead),
            text,
            engine.export.status(),
            _role(engine),
            engine.control.asked_messages,
            sum(site.repaired_messages for site in engine.sites.values()),
            _producers(engine),
            engine.fullness.stalled(shared.clock()),
            shared.quarantine.by_reason,
        )


def waiting_status(group: str) -> ConsumerStatus:
    """The status of a standby whose inbox another consumer has open."""
    return ConsumerStatus(group, "", {}, {}, 0, 0, "", role="standby")


def _role(engine: ConsumerEngine) -> ConsumerRole:
    shared = engine.shared
    if engine.standby.phase == "waiting":
        return "standby"
    return "active" if shared.role.in_charge else "starting"


def _producers(engine: ConsumerEngine) -> dict[str, KnownProducer]:
    now = engine.shared.clock()
    return {
        name: KnownProducer(heard.epoch, max(0.0, now - heard.at), heard.interval, heard.lsn)
        for name, heard in engine.statuses.by_producer.items()
    }


def remaining(engine: ConsumerEngine, clean: bool) -> Remaining:
    """The messages that are left, at the end."""
    with engine.shared.lock:
        streams = engine.shared.core.streams.values()
        return Remaining(
            sum(state.epochs.unacknowledged for state in streams),
            sum(known.held.total for state in streams for known in state.epochs.live.values()),
            clean,
        )


def _site(engine: ConsumerEngine, site: SiteReceiver) -> SiteStatus:
    refused = {address for each in site.connections.all for address in each.refused_addresses()}
    return SiteStatus(
        site.state, site.endpoint, site.error, site.pending, site.received_messages, site.duplicate_messages,
        dict(site.rejected), site.repaired_messages, tuple(sorted(refused)),
    )  # fmt: skip


def _stream(state: StreamReceiver) -> StreamStatus:
    epoch, position = state.epochs.position
    gap = None
    if state.gaps.clock.target is not None:
        number, first, last = state.gaps.clock.target
        gap = Gap(state.stream, number, max(first, 1), last, "open")
    held = sum(known.held.total for known in state.epochs.live.values())
    return StreamStatus(
        epoch, position, held, state.epochs.unacknowledged, gap, state.gaps.clock.elapsed, state.epochs.is_failing,
        state.redelivery.halted, state.gaps.held_by is not None, state.epochs.has_let_go,
    )  # fmt: skip
