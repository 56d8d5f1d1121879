"""One test for each race that docs/explanation/protocol.md has a rule for."""

from __future__ import annotations

import pytest

from reliamsg.message import Prev
from reliamsg.protocol.receiver.incoming import Incoming
from tests.protocol.events_tools import seen

from .status_tools import Group, Teller, gapped


def numbers(group: Group, epoch: int = 10) -> list[int]:
    return [n for e, n in group.got if e == epoch]


# X1: repair crossing expiry


def test_a_repair_that_comes_after_its_gap_was_declared_is_late() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=2.0)
    group.wait(4.0)
    assert group.told("declared") == [(10, 11, 20, "expired")]
    group.repair(teller, [(10, 11, 20)])
    group.repair(teller, [(10, 11, 20)])
    assert numbers(group) == [*range(1, 11), *range(21, 31)]
    assert [row[:3] for row in group.told("late")] == [(10, 11, 20)]
    assert [row[:3] for row in group.told("duplicate")] == [(10, 11, 20)]


def test_a_repair_that_comes_after_its_gap_was_raised_and_before_it_was_accepted_fills_it() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=2.0, skip_gaps=False)
    group.wait(4.0)
    (gap,) = group.gaps
    group.repair(teller, [(10, 11, 20)])
    assert not group.core.accept(gap, group.now)
    assert numbers(group) == list(range(1, 31))
    assert group.told("declared") == []


def test_a_repair_of_a_part_that_comes_before_the_gap_is_accepted_leaves_the_rest_to_be_declared() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=2.0, skip_gaps=False)
    group.wait(4.0)
    (gap,) = group.gaps
    group.repair(teller, [(10, 14, 16)])
    assert group.core.accept(gap, group.now)
    group.work()
    assert numbers(group) == [*range(1, 11), 14, 15, 16, *range(21, 31)]
    assert group.told("declared") == [(10, 11, 13, "expired"), (10, 17, 20, "expired")]


# X2: removal crossing repair


def test_a_repair_that_comes_before_the_removal_was_passed_is_handed_out() -> None:
    teller, group = gapped(30, 11, 20, skip_gaps=False)
    on_its_way = teller.held([(10, 11, 20)])
    assert on_its_way == [(10, 11, 20)]
    teller.remove(10, 11, 20)
    group.hear(teller.status())
    group.wait(1.0)
    assert [gap.reason for gap in group.gaps] == ["removed"]
    group.arrive("dc1", 10, 70, None, 11, 20, repair=True)
    assert numbers(group) == list(range(1, 31))
    assert group.told("declared") == []


def test_a_repair_that_comes_after_the_removal_was_passed_is_late() -> None:
    teller, group = gapped(30, 11, 20)
    teller.remove(10, 11, 20)
    group.hear(teller.status())
    group.wait(1.0)
    assert group.told("declared") == [(10, 11, 20, "removed")]
    group.arrive("dc1", 10, 70, None, 11, 20, repair=True)
    assert numbers(group) == [*range(1, 11), *range(21, 31)]
    assert [row[:3] for row in group.told("late")] == [(10, 11, 20)]


def test_a_status_from_before_a_removal_that_comes_after_it_takes_nothing_back() -> None:
    teller, group = gapped(30, 11, 20, skip_gaps=False)
    before = teller.status()
    teller.remove(10, 11, 20)
    group.hear(teller.status())
    group.hear(before)
    group.wait(1.0)
    assert [gap.reason for gap in group.gaps] == ["removed"]


# X3: consumer crash in the middle of a repair


@pytest.mark.parametrize("told", [False, True])
def test_a_group_that_crashes_in_the_middle_of_a_repair_asks_for_the_rest(told: bool) -> None:
    teller, group = gapped(100, 11, 90)
    group.wait(0.8)
    assert group.wanted == [(10, 11, 90)]
    group.repair(teller, [(10, 11, 30)])
    # Ahead of the rest: in the inbox, or in memory only.
    group.core.receive(Incoming("dc1", group.stream, 10, 70, None, 71, 80, repair=True), group.now)
    if told:
        group.commit()
    group.crash()
    assert group.state.epochs.position == (10, 31)
    group.asked.clear()
    if told:
        group.hear(teller.status())
    group.wait(3.0, teller)
    assert numbers(group) == list(range(1, 101))
    expected = {(10, 31, 70), (10, 81, 90)} if told else {(10, 31, 90)}
    assert set(group.asked[0][1].wanted) == expected
    assert group.told("declared") == []


def test_what_elapsed_before_a_crash_counts() -> None:
    _, group = gapped(30, 11, 20, gap_timeout=10.0)
    group.wait(7.0)
    group.crash()
    group.wait(5.0)
    assert group.told("declared") == [(10, 11, 20, "expired")]


def test_no_repair_makes_a_broker_wait() -> None:
    teller, group = gapped(30, 11, 20)
    group.repair(teller, [(10, 13, 20)])
    group.repair(teller, [(10, 11, 20)])
    assert numbers(group) == list(range(1, 31))
    assert sorted(str(token) for token in group.released) == [
        str(("dc1", 10, 1, 10)),
        str(("dc1", 10, 21, 30)),
    ]
    assert not group.core.waiting.of(group.stream)


# X4: producer restart in the middle


def test_a_producer_that_starts_again_in_the_middle_is_asked_again_at_once() -> None:
    teller, group = gapped(100, 11, 90, gap_timeout=60.0)
    group.hear(teller.status())
    group.wait(0.8)
    group.repair(teller, [(10, 11, 40)])
    group.wait(40.0)  # it is away, and the requests have backed off
    teller.open(20)
    teller.publish(10)
    asked = len(group.asked)
    group.hear(teller.status())
    group.wait(1.2, teller)
    assert len(group.asked) > asked
    group.wait(2.0, teller)
    assert group.got == [*((10, n) for n in range(1, 101)), *((20, n) for n in range(1, 11))]


def test_a_producer_that_starts_again_and_is_silent_still_tells_of_the_tail_of_its_last_epoch() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(100)
    group.receive(teller, 10, 1, 90)
    teller.open(20)
    group.hear(teller.status())
    group.wait(2.0, teller)
    assert numbers(group) == list(range(1, 101))


def test_a_status_of_the_epoch_before_a_restart_that_comes_after_it_changes_nothing() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(50)
    before = teller.status()
    group.receive(teller, 10, 1, 50)
    teller.publish(50)
    teller.open(20)
    teller.publish(10)
    group.hear(teller.status())
    group.hear(before)
    group.wait(3.0, teller)
    assert group.got == [*((10, n) for n in range(1, 101)), *((20, n) for n in range(1, 11))]
    assert seen(group.core).conflicts == []


# X5: an older epoch that arrives at another site after a newer one was seen


@pytest.mark.parametrize("told", [False, True])
def test_an_older_epoch_that_arrives_after_a_newer_one_was_seen_comes_first(told: bool) -> None:
    teller, group = Teller(), Group(gap_timeout=30.0)
    for epoch in (10, 20, 30):
        teller.open(epoch)
        teller.publish(10)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 30, 1, 10)
    if told:
        group.hear(teller.status())
    group.wait(5.0)
    group.receive(teller, 20, 1, 4, "dc2")
    group.receive(teller, 20, 5, 10, "dc2")
    assert group.got == [(epoch, n) for epoch in (10, 20, 30) for n in range(1, 11)]
    assert group.told("declared") == []


def test_an_older_epoch_that_arrives_after_a_newer_one_was_entered_is_declared() -> None:
    group = Group()
    group.arrive("dc1", 10, 70, None, 1, 10)
    group.arrive("dc1", 30, 210, Prev(10, 70, 10), 1, 10)  # a copy of the outbox, which knows nothing of 20
    group.arrive("dc2", 20, 140, Prev(10, 70, 10), 1, 10)
    assert group.told("declared") == [(20, 1, 10, "superseded")]
    assert numbers(group, 20) == []


# X6: wiped site with live traffic ahead of a long backlog


@pytest.mark.parametrize("repairing", [False, True])
def test_a_wiped_site_with_live_traffic_ahead_of_a_long_backlog(repairing: bool) -> None:
    teller, group = Teller(), Group(gap_timeout=3.0, repair_timeout=5.0)
    teller.open(10)
    teller.publish(20_000)
    live, backlog = 20_000, 0
    group.hear(teller.status(), "dc2")
    while backlog < 20_000:
        teller.publish(50)
        group.receive(teller, 10, live + 1, live + 50, "dc1")  # dc1 has lost what it held, and goes on
        live += 50
        group.receive(teller, 10, backlog + 1, backlog + 100, "dc2")  # dc2 has it all, and is slow
        backlog += 100
        if backlog % 2_000 == 0:
            group.hear(teller.status(), "dc1")
        group.wait(0.4, teller if repairing else None)
    # However long it took, no part of it stood still: nothing expired.
    assert group.told("declared") == []
    assert numbers(group) == list(range(1, live + 1))
    widest = max(last - first + 1 for _, first, last in group.wanted)
    assert widest <= 20_000
    # What was held back is in the inbox, so that no broker waits for it.
    assert not group.core.waiting.of(group.stream)
