"""Confirm policies: when a row counts as published, and which sites were counted."""

from __future__ import annotations

import random

import pytest

from reliamsg.policy import Confirm, Quorum
from reliamsg.protocol.sender.confirms import MAX_COUNTED, Confirms
from reliamsg.protocol.sender.window import SiteWindow
from tests.protocol.sending_tools import LIMITS


class Sites:
    """Three sites under one policy."""

    def __init__(self, policy: Confirm, published: int = 1) -> None:
        self.windows = [SiteWindow(f"dc{number}", LIMITS, 1) for number in (1, 2, 3)]
        for window in self.windows:
            window.connect(None)
        self.confirms = Confirms(policy, self.windows, published)

    def confirm(self, row: int, *sites: int) -> list[int]:
        for number in sites:
            self.windows[number - 1].confirmed.add(row, row)
        return self.confirms.decide([row])


@pytest.mark.parametrize(
    ("policy", "needed"), [("all", 3), ("any", 1), (Quorum(1), 1), (Quorum(2), 2), (Quorum(3), 3)]
)
def test_published_with_the_last_confirm_that_is_needed(policy: Confirm, needed: int) -> None:
    sites = Sites(policy)
    for number in range(1, needed):
        assert sites.confirm(1, number) == []
    assert sites.confirm(1, needed) == [1]
    assert sites.confirms.counted(1) == tuple(f"dc{n}" for n in range(1, needed + 1))
    assert sites.confirms.cursor == 2


def test_a_decision_is_told_once_and_names_who_was_counted_then() -> None:
    sites = Sites("any")
    assert sites.confirm(1, 2) == [1]
    assert sites.confirm(1, 1, 3) == []
    assert sites.confirms.counted(1) == ("dc2",)


def test_decisions_of_earlier_owners_stand() -> None:
    sites = Sites("all", published=5)
    assert sites.confirms.cursor == 5
    assert sites.confirm(4, 1, 2, 3) == []


def test_out_of_order() -> None:
    sites = Sites("any")
    sites.confirm(3, 1)
    assert sites.confirms.cursor == 1
    sites.confirm(1, 1)
    assert sites.confirms.cursor == 2
    sites.confirm(2, 1)
    assert sites.confirms.cursor == 4


def test_everywhere_is_what_every_site_has() -> None:
    sites = Sites("any")
    sites.confirm(1, 1, 2, 3)
    sites.confirm(2, 1)
    sites.confirm(3, 3, 2, 1)
    assert list(sites.confirms.everywhere()) == [(1, 1), (3, 3)]


class TestAllActive:
    def test_a_site_that_is_up_is_waited_for(self) -> None:
        sites = Sites("all-active")
        assert sites.confirm(1, 1, 2) == []
        assert sites.confirm(1, 3) == [1]

    @pytest.mark.parametrize("how", ["down", "blocked", "overdue"])
    def test_one_that_is_not_is_not(self, how: str) -> None:
        sites = Sites("all-active")
        sites.confirm(1, 1, 2)
        third = sites.windows[2]
        if how == "down":
            third.disconnect(0.0, asked=False)
        elif how == "blocked":
            third.blocked = "low on memory"
        else:
            third.overdue_since = 1.0
        assert sites.confirms.reconsider() == [1]
        assert sites.confirms.counted(1) == ("dc1", "dc2")
        assert sites.confirm(2, 1) == []
        assert sites.confirm(2, 2) == [2]

    def test_nothing_is_published_without_any_confirm(self) -> None:
        sites = Sites("all-active")
        for window in sites.windows:
            window.disconnect(0.0, asked=False)
        assert sites.confirms.decide([1]) == []
        assert sites.confirms.reconsider() == []

    def test_a_long_outage_takes_one_range(self) -> None:
        sites = Sites("all-active")
        sites.windows[2].disconnect(0.0, asked=False)
        for row in range(1, 5_001):
            sites.confirm(row, 1, 2)
        assert sites.confirms.published.intervals == 1

    @pytest.mark.parametrize("policy", ["all", "any", Quorum(2)])
    def test_other_policies_do_not_look_at_who_is_up(self, policy: Confirm) -> None:
        sites = Sites(policy)
        sites.windows[0].confirmed.add(1, 1)
        for window in sites.windows:
            window.disconnect(0.0, asked=False)
        assert sites.confirms.reconsider() == []


def test_who_was_counted_is_remembered_within_a_bound() -> None:
    sites = Sites("any")
    for row in range(1, 2 * MAX_COUNTED + 200):
        sites.confirm(row, 1 + row % 2)
    assert sites.confirms.counted(2 * MAX_COUNTED + 199) == ("dc2",)
    assert len(sites.confirms._counted) <= MAX_COUNTED


@pytest.mark.parametrize("attempt", range(10))
@pytest.mark.parametrize("policy", ["all", "any", Quorum(2)])
def test_random_confirms(policy: Confirm, attempt: int, seeded: random.Random) -> None:
    """A row is told exactly once, with the confirm that meets the policy, in whatever order they come."""
    needed = {"all": 3, "any": 1}.get(str(policy), 2)
    sites = Sites(policy)
    confirms = [(row, number) for row in range(1, 40) for number in (1, 2, 3)]
    seeded.shuffle(confirms)
    count = dict.fromkeys(range(1, 40), 0)
    for row, number in confirms:
        count[row] += 1
        assert sites.confirm(row, number) == ([row] if count[row] == needed else [])
    assert sites.confirms.cursor == 40
