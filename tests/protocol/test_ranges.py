"""Interval arithmetic against a plain set of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reliamsg.protocol.ranges import RangeSet, Span

LOW, HIGH = 0, 40
numbers = st.integers(LOW, HIGH)
spans = st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))


def runs(members: set[int]) -> list[Span]:
    """The naive way."""
    found: list[Span] = []
    for number in sorted(members):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


class Model(RuleBasedStateMachine):
    """Every operation, on the set of ranges and on the set, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(span=spans)
    def add(self, span: Span) -> None:
        self.ranges.add(*span)
        self.model |= set(range(span[0], span[1] + 1))

    @rule(span=spans)
    def remove(self, span: Span) -> None:
        self.ranges.remove(*span)
        self.model -= set(range(span[0], span[1] + 1))

    @rule(bound=numbers)
    def discard_below(self, bound: int) -> None:
        self.ranges.discard_below(bound)
        self.model = {n for n in self.model if n >= bound}

    @rule()
    def pop_lowest(self) -> None:
        if self.model:
            lowest = runs(self.model)[0]
            assert self.ranges.pop_lowest() == lowest
            self.model -= set(range(lowest[0], lowest[1] + 1))
        else:
            with pytest.raises(IndexError):
                self.ranges.pop_lowest()

    @rule(span=spans)
    def ask_about_a_span(self, span: Span) -> None:
        inside = set(range(span[0], span[1] + 1))
        assert self.ranges.missing(*span) == runs(inside - self.model)
        assert self.ranges.overlap(*span) == runs(inside & self.model)
        assert self.ranges.covers(*span) == (inside <= self.model)

    @rule(number=numbers)
    def ask_about_a_number(self, number: int) -> None:
        assert (number in self.ranges) == (number in self.model)
        above = [n for n in self.model if n >= number]
        assert self.ranges.next_at(number) == (min(above) if above else None)
        run = [last for first, last in runs(self.model) if first <= number <= last]
        assert self.ranges.run_from(number) == (run[0] if run else None)

    @invariant()
    def the_same_set(self) -> None:
        expected = runs(self.model)
        assert list(self.ranges) == expected
        assert self.ranges == RangeSet(reversed(expected))
        assert self.ranges.empty == (not self.model)
        assert self.ranges.first == min(self.model, default=None)
        assert self.ranges.last == max(self.model, default=None)
        assert self.ranges.total == len(self.model)
        assert self.ranges.intervals == len(expected)


TestModel = Model.TestCase


@given(st.lists(spans))
def test_built_in_any_order(given_spans: list[Span]) -> None:
    assert RangeSet(given_spans) == RangeSet(reversed(given_spans)) == RangeSet(sorted(given_spans))


def test_cost_follows_intervals_not_numbers() -> None:
    ranges = RangeSet([(1, 2**63 - 1)])
    ranges.remove(2**62, 2**62)
    assert ranges.intervals == 2
    assert ranges.total == 2**63 - 2
    assert ranges.missing(1, 2**63 - 1) == [(2**62, 2**62)]


def test_a_change_while_iterating_is_harmless() -> None:
    ranges = RangeSet([(1, 2), (5, 6), (9, 9)])
    for first, last in ranges:
        ranges.remove(first, last)
    assert ranges.empty


def test_ambiguous_questions_are_refused() -> None:
    with pytest.raises(TypeError, match="empty"):
        bool(RangeSet())
    with pytest.raises(TypeError):
        hash(RangeSet())
    assert RangeSet() != "RangeSet([])"
    assert repr(RangeSet([(1, 2)])) == "RangeSet([(1, 2)])"


@pytest.mark.parametrize("call", ["add", "remove", "missing", "overlap", "covers"])
def test_an_interval_that_ends_before_it_starts(call: str) -> None:
    with pytest.raises(ValueError, match="before it starts"):
        getattr(RangeSet(), call)(2, 1)
