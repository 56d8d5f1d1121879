"""Ranges with marks, cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reliamsg.audit import spans
from reliamsg.audit.spans import LAST, cut_at, pieces, stretches

Ranges = list[tuple[int, int, str]]
ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from("abcd")), max_size=12)


def by_number(found: Iterable[tuple[int, int, Iterable[str]]]) -> dict[int, set[str]]:
    return {number: set(marks) for first, last, marks in found for number in range(first, last + 1)}


@given(ranges)
def test_stretches_are_pieces_as_long_as_possible(own: Ranges) -> None:
    found = list(stretches(own))
    expected: dict[int, set[str]] = {}
    for first, last, mark in own:
        for number in range(first, last + 1):
            expected.setdefault(number, set()).add(mark)
    assert by_number(found) == by_number(pieces(own)) == expected
    for (_, last, marks), (first, _, after) in pairwise(found):
        assert last < first
        assert last + 1 < first or marks != after
    of_marks = {marks: marks for _, _, marks in found}
    assert all(of_marks[marks] is marks for _, _, marks in found)


@given(ranges, st.lists(st.integers(0, 32)))
def test_cut_further(own: Ranges, places: list[int]) -> None:
    found = list(cut_at(stretches(own), places))
    assert by_number(found) == by_number(stretches(own))
    assert all(one[1] < other[0] for one, other in pairwise(found))
    begun = {first for first, _, _ in found}
    assert begun - set(places) <= {first for first, _, _ in stretches(own)}
    assert begun.issuperset(place for place in places if place in by_number(found))


def test_ranges_without_an_end_reach_to_the_last_number() -> None:
    assert list(stretches([(5, 2**63 - 1, "a"), (LAST, LAST, "b")])) == [
        (5, LAST - 1, frozenset("a")),
        (LAST, LAST, frozenset("ab")),
    ]


def test_more_sets_than_are_remembered() -> None:
    """Each number has another set of marks, as in a journal that somebody made up."""
    count = 20 * spans._MAX_SETS
    own = [(number, number + 1, number) for number in range(count)]
    found = list(stretches(own))
    assert found[0] == (0, 0, frozenset({0}))
    assert found[1:-1] == [(number, number, frozenset({number - 1, number})) for number in range(1, count)]
    assert found[-1] == (count, count, frozenset({count - 1}))
