"""Messages whose producer moved them to another epoch before it offered them to any site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reliamsg.checker.spans import ENDLESS, Key, Position
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["Renumbering"]

_AS_WRITTEN = frozenset({"epoch", "renumbered"})
"""Kinds of rows about an epoch itself."""


class Renumbering:
    """The moves in a producer's chain. A ``renumbered`` row moves all that its stream had in the old epoch. Sequence
    numbers stay the same."""

    def __init__(self, rows: Iterable[JournalRow]) -> None:
        self._moves: dict[Stream, list[tuple[int, int, int]]] = {}
        """By stream: lsn, old epoch and new epoch, in order."""
        for row in sorted((row for row in rows if row.kind == "renumbered"), key=lambda row: row.lsn):
            new = (row.detail or {}).get("epoch")
            if isinstance(new, int):
                stream = Stream(row.producer, row.topic, row.partition)
                self._moves.setdefault(stream, []).append((row.lsn, row.epoch, new))
        self.entered: set[Key] = {
            (stream, new) for stream, moves in self._moves.items() for _, _, new in moves
        }
        """Streams and epochs that messages were moved to."""

    def __call__(self, row: JournalRow) -> JournalRow:
        """The row, with the epoch that its messages are in finally."""
        if not self._moves or row.kind in _AS_WRITTEN:
            return row
        now = self.epoch(Stream(row.producer, row.topic, row.partition), row.epoch, row.lsn)
        return row if now == row.epoch else replace(row, epoch=now)

    def epoch(self, stream: Stream, epoch: int, lsn: int) -> int:
        """The final epoch of messages that were in `epoch` when row `lsn` was written."""
        for at, old, new in self._moves.get(stream, ()):
            if at > lsn and old == epoch:
                epoch = new
        return epoch

    def position(self, stream: Stream, at: Position, lsn: int) -> Position:
        """Where a position is finally that was `at` when row `lsn` was written. Epochs keep their order, but no row
        says that the producer's own epoch moved as well if it had no messages."""
        epoch = self.epoch(stream, at[0], lsn)
        if epoch != at[0]:
            return epoch, at[1]
        before = [
            self.epoch(stream, old, lsn)
            for row, old, _ in self._moves.get(stream, ())
            if row > lsn and old < at[0]
        ]
        return max([at, *((each, ENDLESS) for each in before if each > at[0])])
