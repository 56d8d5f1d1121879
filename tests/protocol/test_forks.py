"""A group that finds that an opening of its producer did not know what it was given says so, with what it knows:
whatever it learns that from, and also where the opening is behind its stream, or was never entered here.
"""

from __future__ import annotations

from typing import Any

import pytest

from reliamsg.message import Prev
from tests.protocol.events_tools import seen
from tests.protocol.status_tools import Group, Teller

Told = list[tuple[int, int, Any]]


def group_of(last: int = 10) -> Group:
    """One that was given so many messages of epoch 10."""
    group = Group()
    group.arrive("dc1", 10, 70, None, 1, last)
    return group


def conflicts(group: Group) -> Told:
    return [(note.epoch, note.incarnation, note.detail) for note in group.notes if note.kind == "conflict"]


def known(epoch: int, incarnation: int, last: int, **more: int) -> dict[str, object]:
    return {"known": [epoch, f"{incarnation:016x}", last], **more}


def test_what_an_opening_says_of_the_epoch_before_is_contradicted_by_what_was_given_of_it() -> None:
    group = group_of()
    group.arrive("dc1", 20, 140, Prev(10, 70, 8), 1, 5)
    assert conflicts(group) == [(20, 140, known(10, 70, 10))]


@pytest.mark.parametrize("crash", [False, True])
def test_what_arrives_from_beyond_the_end_of_an_epoch_was_not_known_to_the_opening_that_named_it(
    crash: bool,
) -> None:
    """The copy was made just where the group was: what it says of that agrees."""
    group = group_of()
    group.arrive("dc1", 20, 140, Prev(10, 70, 10), 1, 5)
    group.arrive("dc1", 30, 210, Prev(20, 140, 5), 1, 5)
    assert conflicts(group) == []
    if crash:
        group.crash()
    group.arrive("dc2", 10, 70, None, 11, 14)
    assert conflicts(group) == [(20, 140, known(10, 70, 14, entered=30))]
    assert len(seen(group.core).conflicts) == 1
    group.arrive("dc2", 10, 70, None, 11, 16)
    assert conflicts(group)[1:] == [(20, 140, known(10, 70, 16, entered=30))], (
        "what more is known is journalled"
    )
    group.arrive("dc1", 10, 70, None, 11, 16)
    assert len(conflicts(group)) == 2
    assert len(seen(group.core).conflicts) == 1, "the opening is reported once"


def test_what_was_journalled_when_an_epoch_was_entered_is_not_journalled_again() -> None:
    group, teller = group_of(), Teller()
    for epoch, count in ((10, 8), (20, 7)):
        teller.open(epoch)
        teller.publish(count)
    group.arrive("dc1", 20, 140, Prev(10, 70, 8), 1, 5)
    for _ in range(2):
        group.hear(teller.status())
        group.wait(1.0)
    assert conflicts(group) == [(20, 140, known(10, 70, 10))]


@pytest.mark.parametrize("announced", [False, True])
def test_each_part_that_an_opening_did_not_know_of_is_journalled(announced: bool) -> None:
    """The outbox was restored twice: the second copy has what the first one lost, and what was published since."""
    group, teller = group_of(), Teller()
    for epoch, count in ((10, 8), (20, 5)):
        teller.open(epoch)
        teller.publish(count)
    teller.open(30)
    group.arrive("dc1", 20, 140, Prev(10, 70, 8), 1, 7 if announced else 5)
    group.hear(teller.status())
    group.wait(1.0)
    if not announced:
        group.arrive("dc1", 30, 210, Prev(20, 140, 5), 1, 2)
        group.arrive("dc2", 20, 140, None, 6, 7)
    of_the_last = [told for told in conflicts(group) if told[0] == 30]
    assert of_the_last == [(30, 210, known(10, 70, 10)), (30, 210, known(20, 140, 7))]
    assert len(seen(group.core).conflicts) == 2, "each opening is reported once"


def test_an_epoch_between_two_that_follow_each_other_was_not_known_to_the_later_one() -> None:
    group = group_of()
    group.arrive("dc1", 30, 210, Prev(10, 70, 10), 1, 5)
    group.arrive("dc1", 20, 140, Prev(10, 70, 10), 1, 3)
    assert conflicts(group) == [(30, 210, known(20, 140, 3))]


@pytest.mark.parametrize("prev", [None, Prev(10, 70, 8), Prev(5, 35, 3)])
def test_an_opening_behind_the_stream_says_what_it_did_not_know(prev: Prev | None) -> None:
    """Its outbox was lost, or went back, and so did its clock."""
    group = group_of()
    group.arrive("dc1", 30, 210, Prev(10, 70, 10), 1, 5)
    group.arrive("dc1", 20, 140, prev, 1, 3)
    assert (20, 140, known(10, 70, 10, entered=30)) in conflicts(group)


@pytest.mark.parametrize("crash", [False, True])
def test_behind_a_gap_of_unknown_extent_nothing_contradicts(crash: bool) -> None:
    group = group_of()
    group.arrive("dc1", 30, 210, Prev(20, 140, 5), 1, 5)
    group.wait(7.0)
    assert (30, 1) in group.got
    if crash:
        group.crash()
    group.arrive("dc2", 10, 70, None, 11, 14)
    group.arrive("dc2", 15, 105, Prev(10, 70, 14), 1, 4)
    group.arrive("dc2", 20, 140, Prev(15, 105, 4), 1, 5)
    assert conflicts(group) == []
    assert seen(group.core).conflicts == []


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("prev", [None, Prev(10, 70, 10)])
def test_an_epoch_that_another_inbox_went_on_to_is_held_against_what_this_one_was_given(
    arrived: bool, prev: Prev | None
) -> None:
    """Whether something of it had arrived by then, or not. Only the other one entered it."""
    group = group_of()
    group.slow = 10
    group.arrive("dc1", 10, 70, None, 12, 12)
    if arrived:
        group.arrive("dc1", 20, 140, prev, 5, 6)
    group.core.adopt(group.stream, (20, 140), (20, 4), 5, group.now)
    group.work()
    group.arrive("dc1", 20, 140, prev, 4, 6)
    assert (20, 6) in group.got
    assert conflicts(group) == [(20, 140, known(10, 70, 12))]
    assert len(seen(group.core).conflicts) == 1


def test_what_another_inbox_dealt_with_is_no_conflict() -> None:
    group = group_of()
    group.core.adopt(group.stream, (30, 210), (30, 4), 5, group.now)
    group.work()
    group.arrive("dc1", 30, 210, Prev(20, 140, 7), 4, 6)
    group.arrive("dc1", 10, 70, None, 11, 15)
    group.arrive("dc1", 20, 140, Prev(10, 70, 15), 1, 7)
    assert conflicts(group) == []
    assert (30, 6) in group.got


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("older", [None, Prev(10, 70, 10)], ids=["the first", "a later one"])
def test_what_was_moved_and_sent_under_both_numbers_comes_again_flagged(
    older: Prev | None, crash: bool
) -> None:
    """The outbox was put back to when it had not moved yet what it moved then, and offered."""
    group = group_of() if older else Group()
    group.arrive("dc1", 20, 140, older, 1, 6)
    group.arrive("dc1", 21, 150, Prev(20, 140, 6), 1, 3)
    assert not group.flagged
    group.arrive("dc1", 90, 140, older, 1, 2)
    if crash:
        group.crash()
    group.arrive("dc1", 90, 140, older, 3, 8)
    group.arrive("dc1", 91, 150, Prev(90, 140, 8), 1, 5)
    again = {(90, seq) for seq in range(1, 7)} | {(91, seq) for seq in range(1, 4)}
    # After a crash more may count as handed out: what a commit had let the application have.
    assert again <= group.flagged if crash else again == group.flagged


def test_epochs_of_one_opening_that_follow_each_other_are_no_repeats() -> None:
    group = group_of()
    group.arrive("dc1", 11, 70, Prev(10, 70, 10), 1, 5)
    group.arrive("dc1", 12, 70, Prev(11, 70, 5), 1, 5)
    group.arrive("dc1", 20, 140, Prev(12, 70, 5), 1, 5)
    assert not group.flagged


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_epoch_of_which_nothing_is_held_may_follow_on_any(crash: bool, goes_on: bool) -> None:
    """The first that a status names: it leaves out those before, which the group has settled. An inbox that was lost
    since meets the one before all the same, at a site."""
    group, teller = Group(), Teller()
    teller.open(10)
    teller.publish(9)
    group.receive(teller, 10, 1, 3)
    for epoch in (20, 30):
        teller.open(epoch)
        teller.publish(5)
    teller.since, teller.epochs = (10, 1), teller.epochs[1:]
    teller.release(20, 5)
    group.hear(teller.status())
    group.wait(1.0)
    if crash:
        group.crash()
        group.hear(teller.status())
    if goes_on:
        group.core.adopt(group.stream, (30, 210), (30, 3), 3, group.now)
    group.wait(14.0, teller)
    group.arrive("dc1", 10, 70, None, 4, 9)
    group.wait(1.0)
    assert conflicts(group) == []
    assert seen(group.core).conflicts == []
    assert group.got[-1] == (30, 5)
    declared = [] if goes_on else [(10, 4, 0), (20, 1, 5), (10, 4, 9)]
    assert [row[:3] for row in group.told("declared")] == declared
    group.arrive("dc1", 15, 105, Prev(10, 70, 9), 1, 2)
    assert conflicts(group) == [], "nor is what came between"
    superseded = [] if goes_on else [(15, 1, 2, "superseded")]
    assert group.told("declared")[len(declared) :] == superseded
