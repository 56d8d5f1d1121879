"""Ranges of sequence numbers, both ends inclusive, cut where any of them begins or ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

__all__ = ["LAST", "cut_at", "joined", "pieces", "size", "stretches"]

_Mark = TypeVar("_Mark")
_Key = TypeVar("_Key")
_Hashable = TypeVar("_Hashable", bound=Hashable)

LAST = 2**63 - 2
"""Beyond every sequence number: the end of a range of unknown extent."""
_MAX_SETS = 1_000
"""More different sets of marks are not remembered."""


def pieces(ranges: Iterable[tuple[int, int, _Mark]]) -> Iterator[tuple[int, int, list[_Mark]]]:
    """Cut the numbers at the ends of all ranges: disjoint pieces in ascending order, each with the marks of all ranges
    that cover it, in the order of their first numbers. Numbers that no range covers are omitted, as are ranges whose
    last number is below the first."""
    events: list[tuple[int, int, int]] = []
    marks: list[_Mark] = []
    for first, last, mark in ranges:
        if first <= last:
            events.append((first, 1, len(marks)))
            events.append((min(last, LAST) + 1, 0, len(marks)))
            marks.append(mark)
    events.sort()
    active: dict[int, None] = {}
    at = 0
    for i, (place, begins, number) in enumerate(events):
        if i and place > at and active:
            yield at, place - 1, [marks[each] for each in active]
        at = place
        if begins:
            active[number] = None
        else:
            del active[number]


def stretches(
    ranges: Iterable[tuple[int, int, _Hashable]],
) -> Iterator[tuple[int, int, frozenset[_Hashable]]]:
    """Like :func:`pieces`, where it does not matter how many ranges with the same mark cover a number, nor where one
    ends that another continues: the longest pieces throughout which the same marks apply. Made for many ranges with few
    different marks."""
    known: dict[_Hashable, tuple[list[int], list[int]]] = {}
    for first, last, mark in ranges:
        if first > last:
            continue
        own = known.get(mark)
        if own is None:
            known[mark] = [first], [last]
        elif own[0][-1] <= first <= own[1][-1] + 1:
            own[1][-1] = max(own[1][-1], last)
        else:
            own[0].append(first)
            own[1].append(last)
    # Events are numbers, since these take less memory than tuples and are sorted faster: place, mark, and whether a
    # range begins.
    shift = (2 * len(known)).bit_length()
    mask = (1 << shift) - 1
    events: list[int] = []
    for number, (firsts, lasts) in enumerate(known.values()):
        events += [(first << shift) + 2 * number + 1 for first in firsts]
        events += [((min(last, LAST) + 1) << shift) + 2 * number for last in lasts]
    events.sort()
    marks = list(known)
    known.clear()
    depths = [0] * len(marks)
    sets: dict[int, frozenset[_Hashable]] = {}
    # Marks as bits: those of the stretch from `start` on, and those from `at` on.
    start = at = before = now = 0

    def marks_of(bits: int) -> frozenset[_Hashable]:
        if len(sets) >= _MAX_SETS:
            sets.clear()
        found = sets[bits] = frozenset(marks[number] for number in _ones(bits))
        return found

    for event in events:
        place = event >> shift
        if place != at:
            if now != before:
                if before:
                    yield start, at - 1, sets.get(before) or marks_of(before)
                start, before = at, now
            at = place
        number = (event & mask) >> 1
        if event & 1:
            depths[number] += 1
            if depths[number] == 1:
                now |= 1 << number
        else:
            depths[number] -= 1
            if not depths[number]:
                now ^= 1 << number
    if before:
        yield start, at - 1, sets.get(before) or marks_of(before)


def cut_at(
    found: Iterable[tuple[int, int, _Mark]], places: Iterable[int]
) -> Iterator[tuple[int, int, _Mark]]:
    """Disjoint pieces in ascending order, cut further before each of these numbers."""
    left = deque(sorted(places))
    for begin, last, mark in found:
        first = begin
        while left and left[0] <= last:
            place = left.popleft()
            if place > first:
                yield first, place - 1, mark
                first = place
        yield first, last, mark


def _ones(bits: int) -> Iterator[int]:
    """The places of all ones in a number, in time for each of them and not for each zero."""
    while bits:
        place = (bits & -bits).bit_length() - 1
        yield place
        bits ^= 1 << place


def joined(
    ranges: Iterable[tuple[_Key, int, int]],
) -> Iterator[tuple[_Key, int, int]]:
    """Join adjacent and overlapping ranges of equal keys, which must be sortable."""
    known: tuple[_Key, int, int] | None = None
    for key, first, last in sorted(ranges):
        if known is not None and known[0] == key and first <= known[2] + 1:
            known = (key, known[1], max(known[2], last))
            continue
        if known is not None:
            yield known
        known = (key, first, last)
    if known is not None:
        yield known


def size(first: int, last: int) -> int:
    """The number of sequence numbers in a range."""
    return last - first + 1
