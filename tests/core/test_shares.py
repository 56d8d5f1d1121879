"""One room for many: who floods leaves some for others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliamsg.core.shares import Shares


def fill(shares: Shares, source: str) -> int:
    count = 0
    while shares.take(source, 1):
        count += 1
    return count


def test_each_that_floods_gets_half_of_what_is_left() -> None:
    shares = Shares(1_000)
    assert [fill(shares, source) for source in "abcd"] == [500, 250, 125, 62]
    assert shares.has_room("genuine", 10)
    assert not shares.has_room("a", 1)


def test_what_is_given_back_is_free_for_all() -> None:
    shares = Shares(100)
    fill(shares, "a")
    shares.give_back("a", 50)
    assert fill(shares, "b") == 50


def test_what_was_held_before_counts() -> None:
    shares = Shares(100, {"a": 60})
    assert not shares.has_room("a", 1)
    assert fill(shares, "b") == 20  # half of what is left


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 60)), max_size=200))
def test_it_is_never_full_and_never_over_its_limit(takes: list[tuple[str, int]]) -> None:
    shares = Shares(100)
    held = dict.fromkeys("abcde", 0)
    for source, amount in takes:
        if shares.take(source, amount):
            held[source] += amount
        assert shares.total == sum(held.values()) <= shares.limit
        assert max(held.values()) <= 50
