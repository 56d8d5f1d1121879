"""What a consumer says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.core.stream import StreamState
from reliamsg.export.exporter import JournalStatus
from reliamsg.message import Gap, Stream
from reliamsg.receiving.engine import ReceivingEngine
from reliamsg.receiving.sites import SiteReceiver, SiteState

__all__ = ["ConsumerStatus", "Remaining", "SiteStatus", "StreamStatus", "status_of"]


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
    """Messages that came from here first, since the consumer was opened."""
    duplicates: int
    """Messages that came from here and were known already."""
    rejected: dict[str, int]
    """Unusable deliveries, by reason."""


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
    """What holds the stream up, if anything is missing."""
    gap_elapsed_s: float
    failing: bool
    """A message whose handling failed waits to be handed out again."""
    halted: bool


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer at one moment."""

    group: str
    inbox_id: str
    sites: dict[str, SiteStatus]
    streams: dict[Stream, StreamStatus]
    inbox_bytes: int
    """Messages in the inbox, in bytes."""
    dead_letters: int
    error: str
    """Why the consumer has stopped, can't write its inbox, or hands nothing out since its journal is full; empty while
    all is well."""
    journal: JournalStatus | None = None
    """The journal's export; None where it stays in the inbox."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a consumer leaves behind when it is closed. All of it comes again."""

    unacknowledged: int
    """Messages that the application was given and did not acknowledge."""
    held: int
    """Messages that arrived, were not acknowledged, and are in the inbox or with the brokers."""
    clean: bool
    """The inbox was left as after a clean stop."""


def status_of(engine: ReceivingEngine) -> ConsumerStatus:
    """Look at all parts at one moment."""
    shared = engine.shared
    with shared.lock:
        shared.drain_acks(shared.clock())
        error = shared.fatal or shared.write_error or shared.spill_error
        exporter = engine.exporter
        text = "" if error is None else str(error)
        if not text and exporter is not None and exporter.full:
            text = exporter.why_full
        return ConsumerStatus(
            engine.settings.group,
            shared.inbox.id,
            {name: _site(engine, site) for name, site in engine.sites.items()},
            {stream: _stream(state) for stream, state in shared.core.streams.items()},
            shared.inbox.held_bytes,
            shared.inbox.dead_letter_count + len(shared.pending.dead),
            text,
            None if exporter is None else exporter.status(),
        )


def remaining(engine: ReceivingEngine, clean: bool) -> Remaining:
    """What is left, at the end."""
    with engine.shared.lock:
        streams = engine.shared.core.streams.values()
        return Remaining(
            sum(state.unacknowledged for state in streams),
            sum(known.held.total for state in streams for known in state.live.values()),
            clean,
        )


def _site(engine: ReceivingEngine, site: SiteReceiver) -> SiteStatus:
    return SiteStatus(
        site.state,
        site.endpoint,
        site.error,
        site.pending,
        site.received_messages,
        site.duplicate_messages,
        dict(site.rejected),
    )


def _stream(state: StreamState) -> StreamStatus:
    epoch, position = state.position
    gap = None
    if state.clock.target is not None:
        number, first, last = state.clock.target
        gap = Gap(state.stream, number, max(first, 1), last, "open")
    return StreamStatus(
        epoch,
        position,
        sum(known.held.total for known in state.live.values()),
        state.unacknowledged,
        gap,
        state.clock.elapsed,
        state.failing,
        state.halted,
    )
