"""Sets of sequence numbers, as sorted disjoint intervals.

The checker deliberately does not use the protocol's range arithmetic: a bug there must not hide itself here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from reliamsg.message import Stream

__all__ = ["ENDLESS", "Key", "Position", "SpanMap", "Spans", "as_position", "in_epoch", "total"]

ENDLESS = 2**63
"""Above every sequence number: the end of a range of unknown length."""

Position = tuple[int, int]
"""Epoch and sequence number."""

Key = tuple[Stream, int]
"""A stream and one of its epochs, in which sequence numbers count from 1."""


class Spans:
    """A mutable set of integers. Intervals include both ends."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, last in pairs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add `first` to `last`; nothing if `last` is below `first`."""
        if last < first:
            return
        starts, ends = self._starts, self._ends
        i = bisect_left(ends, first - 1)
        if i == len(ends):
            starts.append(first)
            ends.append(last)
            return
        j = bisect_right(starts, last + 1)
        if i < j:
            first, last = min(first, starts[i]), max(last, ends[j - 1])
        starts[i:j] = [first]
        ends[i:j] = [last]

    def discard(self, first: int, last: int) -> None:
        """Remove `first` to `last` from the set."""
        i, j = bisect_left(self._ends, first), bisect_right(self._starts, last)
        if i >= j or last < first:
            return
        kept = [(self._starts[i], first - 1), (last + 1, self._ends[j - 1])]
        kept = [(start, end) for start, end in kept if start <= end]
        self._starts[i:j] = [start for start, _ in kept]
        self._ends[i:j] = [end for _, end in kept]

    def update(self, other: Spans) -> None:
        """Add all of `other`."""
        for first, last in other:
            self.add(first, last)

    def within(self, first: int, last: int) -> Spans:
        """The part of `first` to `last` that belongs to the set."""
        found = Spans()
        for i in range(bisect_left(self._ends, first), len(self._starts)):
            if self._starts[i] > last:
                break
            found._put(max(first, self._starts[i]), min(last, self._ends[i]))
        return found

    def lacking(self, first: int, last: int) -> Spans:
        """The part of `first` to `last` that does not belong to the set."""
        return Spans([(first, last)]) - self if first <= last else Spans()

    def __and__(self, other: Spans) -> Spans:
        few, many = (self, other) if len(self._starts) <= len(other._starts) else (other, self)
        found = Spans()
        for first, last in few:
            for piece in many.within(first, last):
                found._put(*piece)
        return found

    def __or__(self, other: Spans) -> Spans:
        return Spans(sorted([*self, *other]))

    def __sub__(self, other: Spans) -> Spans:
        found = Spans()
        starts, ends = other._starts, other._ends
        for start, last in self:
            first = start
            for i in range(bisect_left(ends, first), len(starts)):
                if starts[i] > last:
                    break
                if starts[i] > first:
                    found._put(first, starts[i] - 1)
                first = ends[i] + 1
            if first <= last:
                found._put(first, last)
        return found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __contains__(self, number: int) -> bool:
        i = bisect_left(self._ends, number)
        return i < len(self._starts) and self._starts[i] <= number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self._starts == other._starts and self._ends == other._ends

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __repr__(self) -> str:
        return f"Spans({list(self)})"

    @property
    def count(self) -> int:
        """The size of the set."""
        return sum(self._ends) - sum(self._starts) + len(self._starts)

    @property
    def lowest(self) -> int:
        return self._starts[0]

    @property
    def highest(self) -> int:
        return self._ends[-1]

    def _put(self, first: int, last: int) -> None:
        """Append an interval that lies above all others."""
        if self._ends and self._ends[-1] + 1 == first:
            self._ends[-1] = last
        else:
            self._starts.append(first)
            self._ends.append(last)


class SpanMap(dict[Key, Spans]):
    """Spans by stream and epoch. A key that was never added has an empty set."""

    def __missing__(self, key: Key) -> Spans:
        return Spans()

    def put(self, key: Key, first: int, last: int) -> None:
        """Add a range to a key's set."""
        spans = self.get(key)
        if spans is None:
            spans = self[key] = Spans()
        spans.add(first, last)

    def merge(self, other: Mapping[Key, Spans]) -> None:
        """Add all sets of `other`; they are copied."""
        for key, spans in other.items():
            for first, last in spans:
                self.put(key, first, last)


def total(spans: Iterable[Spans]) -> int:
    """The sum of the sizes of `spans`."""
    return sum(each.count for each in spans)


def as_position(value: Any) -> Position | None:
    """The position that a row's detail holds as a list; None if it is no position."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return value[0], value[1]
    return None


def in_epoch(ranges: Iterable[tuple[Position, Position]], epoch: int) -> Spans:
    """The part of an epoch that lies in half-open ranges of positions of its stream."""
    found = Spans()
    for low, high in ranges:
        if low[0] <= epoch <= high[0]:
            first = max(low[1], 1) if epoch == low[0] else 1
            found.add(first, high[1] - 1 if epoch == high[0] else ENDLESS)
    return found
