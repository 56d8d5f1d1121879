"""What ``remove()`` did to batches whose receipts the application may still hold.

A receipt names the rows in which its messages were stored. Removing a part of a batch cuts its row, and the messages
behind the hole get a row of their own; removing all of it deletes the row. This records which row holds a message now,
and which messages were removed before a site, the confirm policy or the groups had them. It covers one life of a
producer, as receipts do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.store.rewriting import Taken

__all__ = ["Messages", "Removals"]

PRUNE_AT = 64
"""Settled pieces of a stream are forgotten when there are more than this (and than twice what was left last time)."""


class Messages(NamedTuple):
    """Some consecutive messages of one stream and epoch, and the rows in which they were stored."""

    topic: str
    epoch: int
    first: int
    last: int
    first_row: int
    last_row: int


class _Piece(NamedTuple):
    """A run of messages that are in another row than they were stored in, or share it with fewer others."""

    first: int
    last: int
    row: int
    origin: int
    """The row in which they were stored."""


class _Stream:
    """One epoch of one stream."""

    __slots__ = ("pieces", "prune_at", "touched", "unconfirmed", "unconsumed", "unsent")

    def __init__(self) -> None:
        self.touched = RangeSet()
        """Rows that were cut or deleted."""
        self.pieces: list[_Piece] = []
        """The remaining ranges, by number."""
        self.unconfirmed = RangeSet()
        """Numbers that were removed before the confirm policy was met."""
        self.unconsumed = RangeSet()
        """Numbers that were removed before all named groups had settled them."""
        self.unsent: dict[str, RangeSet] = {}
        """By site, numbers that were removed before it had confirmed them."""
        self.prune_at = PRUNE_AT


class Removals:
    """One producer's. Not thread-safe."""

    def __init__(self) -> None:
        self.empty: bool = True
        """Whether nothing was ever removed."""
        self._streams: dict[tuple[str, int], _Stream] = {}

    def removed(
        self, topic: str, epoch: int, taken: Taken, lacking: Callable[[int], Iterable[str]],
        unconfirmed: Callable[[int], bool], unconsumed: Sequence[Span],
    ) -> None:  # fmt: skip
        """Messages were removed. Call this before the deleted rows count as confirmed.

        `lacking` returns the sites that have not confirmed a row, `unconfirmed` whether its policy is not met.
        `unconsumed`: those of the removed numbers that some named group has not settled."""
        self.empty = False
        stream = self._streams.setdefault((topic, epoch), _Stream())
        origins = {piece.row: piece.origin for piece in stream.pieces}
        before = [*taken.gone, *(row for row, _ in taken.cut)]
        numbers = RangeSet(taken.spans)
        for row in before:
            spans = numbers.overlap(row.seq, row.last)
            for span in spans:
                if unconfirmed(row.id):
                    stream.unconfirmed.add(*span)
                for site in lacking(row.id):
                    stream.unsent.setdefault(site, RangeSet()).add(*span)
        for span in unconsumed:
            stream.unconsumed.add(*span)
        gone = {row.id for row in before}
        stream.pieces = [piece for piece in stream.pieces if piece.row not in gone]
        for row in before:
            stream.touched.add(row.id, row.id)
        for row, after in taken.cut:
            origin = origins.get(row.id, row.id)
            stream.pieces.append(_Piece(after.seq, after.last, after.id, origin))
            stream.pieces += [
                _Piece(new.seq, new.last, new.id, origin) for new in taken.added if new.last == row.last
            ]
        stream.pieces.sort()

    def prune(self, settled: Callable[[int], bool]) -> None:
        """Forget pieces whose rows are settled: every site has them, so their state will not change."""
        for stream in self._streams.values():
            if len(stream.pieces) > stream.prune_at:
                stream.pieces = [piece for piece in stream.pieces if not settled(piece.row)]
                stream.prune_at = max(PRUNE_AT, 2 * len(stream.pieces))

    def renumbered(self, epochs: Mapping[int, int]) -> None:
        """Epochs have new numbers."""
        self._streams = {
            (topic, epochs.get(epoch, epoch)): stream for (topic, epoch), stream in self._streams.items()
        }

    # -- questions ------------------------------------------------------------------------------------------

    def rows(self, of: Messages) -> list[Span]:
        """The rows that hold the rest of some messages."""
        stream = self._streams.get((of.topic, of.epoch))
        if stream is None:
            return [(of.first_row, of.last_row)]
        found = stream.touched.missing(of.first_row, of.last_row)
        at = bisect_left(stream.pieces, of.first, key=lambda piece: piece.last)
        while at < len(stream.pieces) and stream.pieces[at].first <= of.last:
            found.append((stream.pieces[at].row, stream.pieces[at].row))
            at += 1
        return found

    def unconfirmed(self, of: Messages) -> list[Span]:
        """Those of some messages that were removed before the confirm policy was met."""
        stream = self._streams.get((of.topic, of.epoch))
        return [] if stream is None else stream.unconfirmed.overlap(of.first, of.last)

    def unconsumed(self, of: Messages) -> list[Span]:
        """Those of some messages that were removed before all named groups had settled them."""
        stream = self._streams.get((of.topic, of.epoch))
        return [] if stream is None else stream.unconsumed.overlap(of.first, of.last)

    def unsent(self, of: Messages, site: str) -> bool:
        """Whether any of some messages was removed before a site had confirmed it."""
        stream = self._streams.get((of.topic, of.epoch))
        ranges = None if stream is None else stream.unsent.get(site)
        return ranges is not None and bool(ranges.overlap(of.first, of.last, 1))

    def moved(self, top: int) -> list[int]:
        """Rows beyond `top` that hold messages which were stored in rows up to it."""
        return [
            piece.row
            for stream in self._streams.values()
            for piece in stream.pieces
            if piece.origin <= top < piece.row
        ]
