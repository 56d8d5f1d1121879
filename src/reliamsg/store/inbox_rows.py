"""What an inbox keeps, as values: what one commit writes, and what is read when it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reliamsg.message import Prev, Stream
from reliamsg.store.journal import Entry
from reliamsg.store.quarantine import QuarantinedDelivery

__all__ = [
    "Batch", "DeadLetter", "EpochRow", "GapRow", "HeldFrame", "History", "Quarantined", "SavedStream", "Standing",
    "StreamRow", "Tombstone",
]  # fmt: skip

Span = tuple[int, int]

Standing = Literal["", "waiting", "took_over"]
"""How this inbox stands to the others of its group: it may be the only one that ever was; it waited last, so that
another may have read since; it has taken another's place."""


class History(msgspec.Struct):
    """What a stream remembers of what is behind it."""

    finished: list[tuple[int, int, int]] = []
    """(epoch, incarnation, last)"""
    floor: int = 0
    superseded: list[tuple[int, list[Span]]] = []
    closed: list[tuple[int, int, int]] = []
    """(epoch, first, last)"""
    forgotten: tuple[int, int] = (0, 0)
    unheard: bool = False
    """The stream was joined without a word from its producer."""
    doubt: tuple[int, tuple[int, int] | None] | None = None
    """(epoch, (epoch, number)) of a :class:`~reliamsg.core.takeover.Uncertainty`."""
    vouched: int = 0
    """The highest epoch that was vouched for though it was far ahead."""
    accepted: list[tuple[int, int, int]] = []
    """(epoch, first, last): accepted as lost, to be passed when it is their turn."""
    takeover: int = 0
    """The latest of the inbox's takeovers that `doubt` knows of."""
    joined_after: int | None = None
    """The epoch before the one in which the group joined, 0 where that was the first; None where that is not known."""
    unended: list[int] = []
    """Epochs that were left by a gap of unknown extent."""
    answered: tuple[int, int] | None = None
    """The `link` of the :class:`~reliamsg.core.takeover.Uncertainty`."""


@dataclass(slots=True)
class StreamRow:
    stream: Stream
    joined: tuple[int, int] | None
    history: History


@dataclass(slots=True)
class EpochRow:
    stream: Stream
    epoch: int
    incarnation: int
    prev: Prev | None
    position: int
    high_water: int
    settled: list[Span]
    last: int | None
    entered: bool
    journalled: int = 0
    """The journal says that numbers up to this one were handed out. Kept by the inbox itself."""
    used_us: int = 0
    """When its position changed last, in µs since 1970. Kept by the inbox itself."""
    let_go: int = 0
    """Numbers up to this one exist: they arrived, and were left to their producer."""


@dataclass(slots=True)
class GapRow:
    stream: Stream
    epoch: int
    first: int
    last: int | None
    elapsed_s: float
    waited_s: float = 0.0
    """While a producer said that it holds what is missing."""


@dataclass(slots=True)
class HeldFrame:
    """Numbers `first` to `last` of the batch in `frame`, which may hold more."""

    stream: Stream
    epoch: int
    first: int
    last: int
    site: str
    received_us: int
    frame: bytes
    id: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: rejected by the application, or out of deliveries."""

    id: int
    stream: Stream
    epoch: int
    incarnation: int
    seq: int
    key: str | None
    headers: dict[str, str]
    body: bytes
    reason: str
    attempts: int
    wall_us: int
    """When it was given up, in µs since 1970."""


@dataclass(slots=True)
class Quarantined:
    """A sample of an unusable delivery."""

    site: str
    address: str
    reason: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a stream that was forgotten: an epoch, of which everything below its position is settled, and the
    latest of what was before it."""

    epoch: EpochRow
    joined: tuple[int, int] | None
    history: History


@dataclass(slots=True)
class Batch:
    """All that one commit holds."""

    streams: list[StreamRow] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)
    finished: list[tuple[Stream, int]] = field(default_factory=list)
    """Epochs to drop."""
    gaps: list[GapRow] = field(default_factory=list)
    no_gap: list[Stream] = field(default_factory=list)
    attempts: list[tuple[Stream, int, int, int]] = field(default_factory=list)
    """(stream, epoch, number, attempts)"""
    held: list[HeldFrame] = field(default_factory=list)
    discarded: list[tuple[Stream, int, int, int]] = field(default_factory=list)
    """(stream, epoch, first, last) of held frames that turned out unreadable."""
    late: list[HeldFrame] = field(default_factory=list)
    seen_late: list[int] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    """Their ids are not used."""
    revived: list[int] = field(default_factory=list)
    """Ids of dead letters that were replayed with success."""
    quarantine: list[Quarantined] = field(default_factory=list)
    """Samples of unusable deliveries."""
    quarantined: list[QuarantinedDelivery] = field(default_factory=list)
    """Whole deliveries to keep in quarantine."""
    unquarantined: list[int] = field(default_factory=list)
    """Ids of those that leave it."""
    forgotten: list[tuple[Stream, Tombstone | None]] = field(default_factory=list)
    """Streams to drop with all that is stored of them, but for dead letters and what is late, which they must not have;
    none of them is in any other part of the batch."""
    entries: list[Entry] = field(default_factory=list)
    standing: Standing | None = None
    """None: as it is."""
    takeovers: int = 0
    """How often the inbox took the place of another; it only rises."""


@dataclass(slots=True)
class SavedStream:
    """A stream as the inbox holds it."""

    stream: Stream
    joined: tuple[int, int] | None
    history: History
    epochs: list[EpochRow]
    held: list[tuple[int, int, int]]
    """(epoch, first, last), in order."""
    gap: GapRow | None
    attempts: list[tuple[int, int, int]]
    """(epoch, number, attempts)"""
