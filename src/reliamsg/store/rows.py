"""The records of an outbox."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reliamsg.message import Prev, Stream

__all__ = ["COLUMNS", "Cursors", "NewBatch", "Parked", "Row", "StreamRow"]

COLUMNS = "id, stream_id, epoch, incarnation, seq, count, size, wall_us"
"""The columns of a batch without its frame, in the order of the fields of :class:`Row`."""


class Row(msgspec.Struct, frozen=True):
    """A stored batch."""

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
    """Empty where it was not requested."""

    @property
    def last(self) -> int:
        return self.seq + self.count - 1


class StreamRow(msgspec.Struct):
    """A stream of an outbox, and its position in the current epoch."""

    id: int
    stream: Stream
    prev: Prev | None
    """The last non-empty epoch before the current one."""
    next_seq: int = 1

    def set_prev(self, prev: Prev | None) -> None:
        self.prev = prev

    def set_last(self, last: int) -> None:
        """The last number that is stored in the current epoch; 0 if there is none."""
        self.next_seq = last + 1


class NewBatch(msgspec.Struct, frozen=True):
    """A batch to store."""

    stream: StreamRow
    seq: int
    count: int
    frame: bytes


class Parked(msgspec.Struct, frozen=True):
    """A stream that is parked at a site."""

    stream_id: int
    cursor: int
    attempts: int
    reason: str


class Cursors(msgspec.Struct, frozen=True):
    """The stored progress of a site."""

    cursor: int
    parked: Sequence[Parked] = ()
