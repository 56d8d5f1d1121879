"""The cached state of each stream, without reading the outbox: its epochs, its end, and what was removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from reliamsg.message import Stream
from reliamsg.protocol.ranges import RangeSet
from reliamsg.store.members import ChainRow, Position, RemovedRange
from reliamsg.store.outbox import StreamRow

__all__ = ["StreamIndex", "StreamInfo"]


class StreamInfo:
    """One stream."""

    __slots__ = ("chain", "removed", "row", "tail")

    def __init__(self, row: StreamRow, chain: Iterable[ChainRow], removed: Iterable[RemovedRange]) -> None:
        self.row: StreamRow = row
        self.chain: list[ChainRow] = list(chain)
        """The non-empty epochs that are remembered, oldest first."""
        self.tail: Position = (0, 1)
        """The position behind the last message; (0, 1) if there never was one."""
        self.removed: dict[int, RangeSet] = {}
        """By epoch, the numbers that were removed."""
        for each in removed:
            self.removed.setdefault(each.epoch, RangeSet()).add(each.first, each.last)
        self._find_tail()

    def _find_tail(self) -> None:
        self.tail = (self.chain[-1].epoch, self.chain[-1].last + 1) if self.chain else (0, 1)

    def extend(self, epoch: int, incarnation: int, last: int) -> None:
        """The current epoch now ends at `last`."""
        if self.chain and self.chain[-1].epoch == epoch:
            self.chain.pop()
        self.chain.append(ChainRow(epoch, incarnation, last))
        self.tail = (epoch, last + 1)

    def renumber(self, epochs: Mapping[int, int]) -> None:
        """Epochs have new numbers."""
        self.chain = [
            msgspec.structs.replace(link, epoch=epochs.get(link.epoch, link.epoch)) for link in self.chain
        ]
        self.removed = {epochs.get(epoch, epoch): ranges for epoch, ranges in self.removed.items()}
        self._find_tail()

    def remove(self, epoch: int, numbers: RangeSet) -> None:
        """All that was ever removed of an epoch."""
        self.removed[epoch] = numbers

    def trim(self, start: int) -> None:
        """Forget the epochs before the one at index `start` of the chain."""
        below = self.chain[start].epoch
        del self.chain[:start]
        for epoch in [epoch for epoch in self.removed if epoch < below]:
            del self.removed[epoch]

    def between(self, start: Position, end: Position) -> list[tuple[ChainRow, int, int]]:
        """The numbers from `start` on and before `end`: (epoch, first, last), oldest first."""
        found = []
        for link in self.chain:
            first = start[1] if link.epoch == start[0] else 1
            last = min(link.last, end[1] - 1) if link.epoch == end[0] else link.last
            if start[0] <= link.epoch <= end[0] and first <= last:
                found.append((link, first, last))
        return found

    def count_from(self, position: Position) -> int:
        """How many messages there are from `position` on."""
        return sum(last - first + 1 for _, first, last in self.between(position, self.tail))


class StreamIndex:
    """All streams of one producer."""

    def __init__(self) -> None:
        self.by_stream: dict[Stream, StreamInfo] = {}
        self.by_id: dict[int, StreamInfo] = {}

    def open(
        self, row: StreamRow, chain: Iterable[ChainRow] = (), removed: Iterable[RemovedRange] = ()
    ) -> StreamInfo:
        """The entry of a stream, made if there is none."""
        info = self.by_id.get(row.id)
        if info is None:
            info = self.by_id[row.id] = self.by_stream[row.stream] = StreamInfo(row, chain, removed)
        return info
