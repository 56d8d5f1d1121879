"""Sets of integers as sorted, disjoint intervals.

Intervals are inclusive at both ends, as sequence numbers are written everywhere else in this project.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NoReturn

__all__ = ["RangeSet", "Span"]

Span = tuple[int, int]
"""First and last number of an interval, both inclusive."""


class RangeSet:
    """A set of integers. Its cost follows the number of intervals, not of numbers."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Put `first` to `last` into the set."""
        if first > last:
            raise _reversed(first, last)
        lasts = self._lasts
        if not lasts or first > lasts[-1] + 1:  # the usual case: beyond all that is there
            self._firsts.append(first)
            lasts.append(last)
            return
        # Every interval that overlaps or touches [first, last] becomes one with it.
        low = bisect_left(lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, lasts[high - 1])
        self._firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> None:
        """Take `first` to `last` out of the set; what is not in it does not matter."""
        if first > last:
            raise _reversed(first, last)
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return
        keep: list[Span] = []
        if self._firsts[low] < first:
            keep.append((self._firsts[low], first - 1))
        if self._lasts[high - 1] > last:
            keep.append((last + 1, self._lasts[high - 1]))
        self._firsts[low:high] = [span[0] for span in keep]
        self._lasts[low:high] = [span[1] for span in keep]

    def discard_below(self, bound: int) -> None:
        """Take every number below `bound` out of the set."""
        if self._firsts and self._firsts[0] < bound:
            self.remove(self._firsts[0], bound - 1)

    def missing(self, first: int, last: int, most: int | None = None) -> list[Span]:
        """What of `first` to `last` is not in the set, in order; only the lowest `most` intervals, where that is
        given."""
        if first > last:
            raise _reversed(first, last)
        firsts, lasts = self._firsts, self._lasts
        found: list[Span] = []
        for i in range(bisect_left(lasts, first), len(firsts)):
            if firsts[i] > last:
                break
            if most is not None and len(found) >= most:
                return found
            if firsts[i] > first:
                found.append((first, firsts[i] - 1))
            first = lasts[i] + 1
        if first <= last and (most is None or len(found) < most):
            found.append((first, last))
        return found

    def overlap(self, first: int, last: int, limit: int | None = None) -> list[Span]:
        """What of `first` to `last` is in the set, in order; of that the first `limit` intervals."""
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
        """Whether all of `first` to `last` is in the set."""
        if first > last:
            raise _reversed(first, last)
        lasts = self._lasts
        i = bisect_left(lasts, first)
        return i < len(lasts) and self._firsts[i] <= first and lasts[i] >= last

    def run_from(self, number: int) -> int | None:
        """The last number of the unbroken run that holds `number`; None if it is not in the set."""
        lasts = self._lasts
        i = bisect_left(lasts, number)
        return lasts[i] if i < len(lasts) and self._firsts[i] <= number else None

    def next_at(self, number: int) -> int | None:
        """The lowest member at or above `number`."""
        i = bisect_left(self._lasts, number)
        return max(number, self._firsts[i]) if i < len(self._firsts) else None

    @property
    def empty(self) -> bool:
        return not self._firsts

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._lasts[-1] if self._lasts else None

    @property
    def total(self) -> int:
        """How many numbers are in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def intervals(self) -> int:
        """How many intervals it takes."""
        return len(self._firsts)

    def pop_lowest(self) -> Span:
        """Take the lowest interval out of the set and return it."""
        return self._firsts.pop(0), self._lasts.pop(0)

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __contains__(self, number: int) -> bool:
        return self.run_from(number) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise TypeError("ask .empty: whether a set of ranges is 'true' is ambiguous")

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"


def _reversed(first: int, last: int) -> ValueError:
    return ValueError(f"an interval ends at {last}, before it starts at {first}")
