"""What an outbox holds, as it is handed in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from reliamsg.message import Prev, Stream

__all__ = ["COLUMNS", "Cursors", "NewBatch", "Parked", "Row", "StreamRow"]

COLUMNS = "id, stream_id, epoch, incarnation, seq, count, size, wall_us"
"""Of a batch, all but its frame, in the order of a :class:`Row`'s fields."""


class Row(msgspec.Struct, frozen=True):
    """A batch as the outbox holds it."""

    id: int
    stream_id: int
    stream: Stream
    epoch: int
    incarnation: int
    seq: int
    count: int
    size: int
    wall_us: int
    frame: bytes
    """Empty where it was not asked for."""

    @property
    def last(self) -> int:
        return self.seq + self.count - 1


@dataclass(slots=True)
class StreamRow:
    """A stream of this outbox, and where it stands in the current epoch."""

    id: int
    stream: Stream
    prev: Prev | None
    """Its last non-empty epoch before the current one."""
    next_seq: int = 1


class NewBatch(msgspec.Struct, frozen=True):
    """A batch to store."""

    stream: StreamRow
    seq: int
    count: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Parked:
    """A stream that is parked at a site."""

    stream_id: int
    cursor: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cursors:
    """How far a site is, as it is stored."""

    cursor: int
    parked: Sequence[Parked] = ()
