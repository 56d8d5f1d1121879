"""What is known of each stream without reading the outbox: its epochs, where it ends, what was removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from reliamsg.core.ranges import RangeSet
from reliamsg.message import Stream
from reliamsg.store.members import ChainRow, Position, RemovedRange
from reliamsg.store.outbox import StreamRow

__all__ = ["Book", "Page"]


class Page:
    """One stream."""

    __slots__ = ("chain", "removed", "row")

    def __init__(self, row: StreamRow, chain: Iterable[ChainRow], removed: Iterable[RemovedRange]) -> None:
        self.row = row
        self.chain: list[ChainRow] = list(chain)
        """Its non-empty epochs that are remembered, oldest first."""
        self.removed: dict[int, RangeSet] = {}
        for each in removed:
            self.removed.setdefault(each.epoch, RangeSet()).add(each.first, each.last)

    @property
    def tail(self) -> Position:
        """The position behind the last message; (0, 1) where there was none ever."""
        return (self.chain[-1].epoch, self.chain[-1].last + 1) if self.chain else (0, 1)

    def extend(self, epoch: int, incarnation: int, last: int) -> None:
        """The current epoch ends at `last` now."""
        if self.chain and self.chain[-1].epoch == epoch:
            self.chain.pop()
        self.chain.append(ChainRow(epoch, incarnation, last))

    def renumber(self, epochs: Mapping[int, int]) -> None:
        """Epochs have other numbers."""
        self.chain = [
            msgspec.structs.replace(link, epoch=epochs.get(link.epoch, link.epoch)) for link in self.chain
        ]
        self.removed = {epochs.get(epoch, epoch): ranges for epoch, ranges in self.removed.items()}

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


class Book:
    """All streams of one producer, by stream and by row."""

    def __init__(self) -> None:
        self.pages: dict[Stream, Page] = {}
        self.by_id: dict[int, Page] = {}

    def open(
        self, row: StreamRow, chain: Iterable[ChainRow] = (), removed: Iterable[RemovedRange] = ()
    ) -> Page:
        """The page of a stream, made if there is none."""
        page = self.by_id.get(row.id)
        if page is None:
            page = self.by_id[row.id] = self.pages[row.stream] = Page(row, chain, removed)
        return page
