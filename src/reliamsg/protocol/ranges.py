"""Sets of integers as sorted, disjoint intervals.

Intervals are inclusive at both ends, as sequence numbers are written everywhere else in this project.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import ClassVar, NoReturn

__all__ = ["RangeSet", "Span"]

Span = tuple[int, int]
"""First and last number of an interval, both inclusive."""


class RangeSet:
    """A set of integers. Its cost depends on the number of intervals, not on their lengths."""

    __slots__ = ("_firsts", "_lasts", "empty", "last")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.empty: bool = True
        """This and `last` are read far more often than they change, so they are not properties."""
        self.last: int | None = None
        """The highest member."""
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add the numbers `first` to `last`."""
        if first > last:
            raise _reversed(first, last)
        self.empty = False
        lasts, top = self._lasts, self.last
        if top is None or first > top:  # the common case: above all that is in the set
            if first - 1 == top:
                lasts[-1] = last
            else:
                self._firsts.append(first)
                lasts.append(last)
            self.last = last
            return
        # Every interval that overlaps or touches [first, last] is merged with it.
        low = bisect_left(lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, lasts[high - 1])
        self._firsts[low:high] = [first]
        lasts[low:high] = [last]
        self.last = lasts[-1]

    def insert(self, first: int, last: int) -> list[Span]:
        """Add the numbers `first` to `last`; return the intervals of them that were not in the set, in order."""
        if first <= last and (self.last is None or first > self.last):
            self.add(first, last)
            return [(first, last)]
        new = self.missing(first, last)
        if new:
            self.add(first, last)
        return new

    def remove(self, first: int, last: int) -> None:
        """Remove the numbers `first` to `last`, those of them that are in the set."""
        if first > last:
            raise _reversed(first, last)
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        kept_firsts: list[int] = []
        kept_lasts: list[int] = []
        if firsts[low] < first:
            kept_firsts.append(firsts[low])
            kept_lasts.append(first - 1)
        if lasts[high - 1] > last:
            kept_firsts.append(last + 1)
            kept_lasts.append(lasts[high - 1])
        firsts[low:high] = kept_firsts
        lasts[low:high] = kept_lasts
        self.empty = not firsts
        self.last = lasts[-1] if lasts else None

    def take(self, first: int, last: int) -> list[Span]:
        """Remove the numbers `first` to `last`; return the intervals of them that were in the set, in order."""
        firsts, lasts = self._firsts, self._lasts
        if lasts and firsts[0] == first <= last <= lasts[0]:  # the common case: from the bottom of the set
            if last == lasts[0]:
                return [self.pop_lowest()]
            firsts[0] = last + 1
            return [(first, last)]
        found = self.overlap(first, last)
        if found:
            self.remove(first, last)
        return found

    def discard_below(self, bound: int) -> None:
        """Remove every number below `bound`."""
        if self._firsts and self._firsts[0] < bound:
            self.remove(self._firsts[0], bound - 1)

    def missing(self, first: int, last: int, limit: int | None = None) -> list[Span]:
        """The intervals of `first` to `last` that are not in the set, in order, at most `limit` of them."""
        if first > last:
            raise _reversed(first, last)
        firsts, lasts = self._firsts, self._lasts
        found: list[Span] = []
        for i in range(bisect_left(lasts, first), len(firsts)):
            if firsts[i] > last:
                break
            if len(found) == limit:
                return found
            if firsts[i] > first:
                found.append((first, firsts[i] - 1))
            first = lasts[i] + 1
        if first <= last and len(found) != limit:
            found.append((first, last))
        return found

    def overlap(self, first: int, last: int, limit: int | None = None) -> list[Span]:
        """The intervals of `first` to `last` that are in the set, in order, at most `limit` of them."""
        if first > last:
            raise _reversed(first, last)
        firsts, lasts = self._firsts, self._lasts
        found: list[Span] = []
        for i in range(bisect_left(lasts, first), len(firsts)):
            if firsts[i] > last or len(found) == limit:
                break
            found.append((max(first, firsts[i]), min(last, lasts[i])))
        return found

    def covers(self, first: int, last: int) -> bool:
        """Whether all numbers from `first` to `last` are in the set."""
        if first > last:
            raise _reversed(first, last)
        lasts = self._lasts
        i = bisect_left(lasts, first)
        return i < len(lasts) and self._firsts[i] <= first and lasts[i] >= last

    def run_from(self, number: int) -> int | None:
        """The last number of the interval that contains `number`; None if none does."""
        lasts = self._lasts
        i = bisect_left(lasts, number)
        return lasts[i] if i < len(lasts) and self._firsts[i] <= number else None

    def next_at(self, number: int) -> int | None:
        """The lowest member at or above `number`."""
        i = bisect_left(self._lasts, number)
        return max(number, self._firsts[i]) if i < len(self._firsts) else None

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def total(self) -> int:
        """The number of integers in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def intervals(self) -> int:
        """The number of intervals."""
        return len(self._firsts)

    def pop_lowest(self) -> Span:
        """Remove the lowest interval and return it."""
        span = self._firsts.pop(0), self._lasts.pop(0)
        self.empty = not self._firsts
        if self.empty:
            self.last = None
        return span

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __contains__(self, number: int) -> bool:
        lasts = self._lasts
        i = bisect_left(lasts, number)
        return i < len(lasts) and self._firsts[i] <= number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise TypeError("use .empty: the truth value of a RangeSet is ambiguous")

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"


def _reversed(first: int, last: int) -> ValueError:
    return ValueError(f"an interval ends at {last}, before it starts at {first}")
