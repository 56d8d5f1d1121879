"""The records of an inbox: those that a commit writes, and those that are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reliamsg.message import Gap, Prev, Stream
from reliamsg.store.journal import Entry
from reliamsg.store.quarantine import QuarantinedDelivery

__all__ = [
    "Batch", "DeadLetter", "EpochRow", "GapRow", "HeldFrame", "History", "HistoryRow", "Quarantined", "SavedStream",
    "Standing", "Tombstone",
]  # fmt: skip

Span = tuple[int, int]

Standing = Literal["", "waiting", "took_over"]
"""This inbox in relation to the group's other inboxes. Empty: there may never have been another one; ``waiting``: it
was a standby last, so another one may have consumed since; ``took_over``: it has taken over from another one."""


class History(msgspec.Struct, frozen=True):
    """The settled past of a stream. Stored as JSON."""

    finished: list[tuple[int, int, int]] = []
    """(epoch, incarnation, last)"""
    floor: int = 0
    superseded: list[tuple[int, list[Span]]] = []
    closed: list[tuple[int, int, int]] = []
    """(epoch, first, last)"""
    forgotten: tuple[int, int] = (0, 0)
    unheard: bool = False
    """The group joined the stream without an announcement from its producer."""
    doubt: tuple[int, tuple[int, int] | None] | None = None
    """(epoch, (epoch, number)) of an :class:`~reliamsg.protocol.receiver.takeover.Uncertainty`."""
    vouched: int = 0
    """The highest epoch that was accepted as genuine although it was far ahead."""
    accepted: list[tuple[int, int, int]] = []
    """(epoch, first, last): ranges accepted as lost, to be passed when the stream reaches them."""
    takeover: int = 0
    """The latest of the inbox's takeovers that `doubt` includes."""
    joined_after: int | None = None
    """The epoch before the one in which the group joined; 0 if that was the first, None if unknown."""
    unended: list[int] = []
    """Epochs that ended with a gap of unknown extent."""
    answered: tuple[int, int] | None = None
    """The `link` of the :class:`~reliamsg.protocol.receiver.takeover.Uncertainty`."""


class HistoryRow(msgspec.Struct, frozen=True):
    stream: Stream
    joined: tuple[int, int] | None
    history: History


class EpochRow(msgspec.Struct, frozen=True):
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
    """The journal records deliveries up to this number. Maintained by the inbox itself."""
    used_us: int = 0
    """When its position changed last, in µs since 1970. Maintained by the inbox itself."""
    let_go: int = 0
    """Numbers up to this one exist: they arrived, and were left to their producer."""


class GapRow(msgspec.Struct, frozen=True):
    stream: Stream
    epoch: int
    first: int
    last: int | None
    elapsed_s: float
    waited_s: float = 0.0
    """The part of this time in which a producer announced that it holds the missing messages."""


class HeldFrame(msgspec.Struct, frozen=True):
    """The numbers `first` to `last` of the batch in `frame`, which may contain more."""

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
    """A message that was rejected by the application, or that reached the limit of delivery attempts."""

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
    """When it became a dead letter, in µs since 1970."""


class Quarantined(msgspec.Struct, frozen=True):
    """A sample of an unusable delivery."""

    site: str
    address: str
    reason: str
    frame: bytes


class Tombstone(msgspec.Struct, frozen=True):
    """The remains of a forgotten stream: an epoch, settled up to its position, and the latest part of its history."""

    epoch: EpochRow
    joined: tuple[int, int] | None
    history: History


@dataclass(slots=True)
class Batch:
    """The content of one commit."""

    streams: list[HistoryRow] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)
    finished: list[tuple[Stream, int]] = field(default_factory=list)
    """Epochs to delete."""
    gaps: list[GapRow] = field(default_factory=list)
    no_gap: list[Stream] = field(default_factory=list)
    attempts: list[tuple[Stream, int, int, int]] = field(default_factory=list)
    """(stream, epoch, number, attempts)"""
    held: list[HeldFrame] = field(default_factory=list)
    discarded: list[tuple[Stream, int, int, int]] = field(default_factory=list)
    """(stream, epoch, first, last) of held frames that turned out to be unreadable."""
    late: list[HeldFrame] = field(default_factory=list)
    seen_late: list[int] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    """Their ids are ignored."""
    revived: list[int] = field(default_factory=list)
    """Ids of dead letters that were replayed successfully."""
    quarantine: list[Quarantined] = field(default_factory=list)
    """Samples of unusable deliveries."""
    quarantined: list[QuarantinedDelivery] = field(default_factory=list)
    """Whole deliveries to store in quarantine."""
    unquarantined: list[int] = field(default_factory=list)
    """Ids of deliveries that leave the quarantine."""
    forgotten: list[tuple[Stream, Tombstone | None]] = field(default_factory=list)
    """Streams to delete. They must not have dead letters or late messages, nor be in any other part of the batch."""
    entries: list[Entry] = field(default_factory=list)
    untold: list[Gap] = field(default_factory=list)
    """Gaps that this commit declares, and of which the application is told afterwards. Those of the commit before have
    been told."""
    standing: Standing | None = None
    """None: unchanged."""
    takeovers: int = 0
    """The number of takeovers from other inboxes; it only increases."""
    states_until: int = 0
    """Numbers of states are reserved up to this one; 0: unchanged."""


class SavedStream(msgspec.Struct, frozen=True):
    """A stream as stored in the inbox."""

    stream: Stream
    joined: tuple[int, int] | None
    history: History
    epochs: list[EpochRow]
    held: list[tuple[int, int, int]]
    """(epoch, first, last), in order."""
    gap: GapRow | None
    attempts: list[tuple[int, int, int]]
    """(epoch, number, attempts)"""
