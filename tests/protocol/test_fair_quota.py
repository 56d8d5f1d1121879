"""One room for many: who floods leaves some for others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliamsg.protocol.fair_quota import FairQuota


def fill(quota: FairQuota, source: str) -> int:
    count = 0
    while quota.take(source, 1):
        count += 1
    return count


def test_each_that_floods_gets_half_of_what_is_left() -> None:
    quota = FairQuota(1_000)
    assert [fill(quota, source) for source in "abcd"] == [500, 250, 125, 62]
    assert quota.has_room("genuine", 10)
    assert not quota.has_room("a", 1)


def test_what_is_given_back_is_free_for_all() -> None:
    quota = FairQuota(100)
    fill(quota, "a")
    quota.give_back("a", 50)
    assert fill(quota, "b") == 50


def test_what_was_held_before_counts() -> None:
    quota = FairQuota(100, {"a": 60})
    assert not quota.has_room("a", 1)
    assert fill(quota, "b") == 20  # half of what is left


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 60)), max_size=200))
def test_it_is_never_full_and_never_over_its_limit(takes: list[tuple[str, int]]) -> None:
    quota = FairQuota(100)
    held = dict.fromkeys("abcde", 0)
    for source, amount in takes:
        if quota.take(source, amount):
            held[source] += amount
        assert quota.total == sum(held.values()) <= quota.limit
        assert max(held.values()) <= 50
