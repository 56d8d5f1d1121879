"""Ranges of sequence numbers, both ends inclusive, cut where any of them begins or ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["LAST", "joined", "pieces", "size"]

_Mark = TypeVar("_Mark")
_Key = TypeVar("_Key")

LAST = 2**63 - 2
"""Beyond every sequence number: the end of a range of unknown extent."""


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
