"""Intervals against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliamsg.checker.spans import Spans

pairs = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def as_set(spans: Spans) -> set[int]:
    return {number for first, last in spans for number in range(first, last + 1)}


def model(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def is_normal(spans: Spans) -> bool:
    flat = list(spans)
    return all(a <= b for a, b in flat) and all(flat[i][1] + 1 < flat[i + 1][0] for i in range(len(flat) - 1))


@given(pairs, pairs)
def test_algebra(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = Spans(one), Spans(other)
    for result, expected in (
        (a, model(one)),
        (a | b, model(one) | model(other)),
        (a & b, model(one) & model(other)),
        (a - b, model(one) - model(other)),
    ):
        assert as_set(result) == expected
        assert is_normal(result)
        assert result.count == len(expected)


@given(pairs, st.integers(1, 60), st.integers(-1, 20))
def test_windows(ranges: list[tuple[int, int]], first: int, size: int) -> None:
    spans, window = Spans(ranges), set(range(first, first + size))
    last = first + size - 1
    assert as_set(spans.within(first, last)) == model(ranges) & window
    assert as_set(spans.lacking(first, last)) == window - model(ranges)
    assert (first in spans) == (first in model(ranges))
    spans.discard(first, last)
    assert as_set(spans) == model(ranges) - window
    assert is_normal(spans)
