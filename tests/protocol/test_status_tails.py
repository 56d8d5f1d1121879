"""What only a status knows of: lost tails, lost streams, epochs that nothing arrived of, late joiners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reliamsg.message import Gap, Prev
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.receiver.epochs import MAX_EPOCHS_AHEAD
from reliamsg.protocol.receiver.gaps import GapKey
from tests.protocol.events_tools import seen

from .status_tools import STREAM, Group, all_of, pair


def target(group: Group) -> GapKey | None:
    """The gap that is watched. As a call, since type checkers believe that an attribute stays as it was asserted."""
    return group.state.gaps.clock.target


def test_a_lost_tail_is_asked_for_and_repaired() -> None:
    teller, group = pair()
    group.receive(teller, 10, 1, 7)
    group.hear(teller.status())
    group.wait(2.0, teller)
    assert group.got == all_of(teller)
    assert group.wanted == [(10, 8, 10)]
    assert group.told("asked") == [(10, 8, 10, "")]
    assert (10, 8, 10, "repair") in group.told("received")
    assert group.told("declared") == []


def test_what_is_on_its_way_is_not_missing() -> None:
    teller, group = pair()
    group.receive(teller, 10, 1, 7)
    for _ in range(50):
        teller.publish(3)
        group.hear(teller.status())
        group.wait(0.2)
        assert target(group) is None
        group.receive(teller, 10, 8, teller.epochs[-1][3])
        group.wait(0.1)
    assert group.asked == []
    assert group.told("gap_opened") == []


def test_a_lost_tail_of_a_producer_that_is_gone_is_declared() -> None:
    teller, group = pair()
    group.receive(teller, 10, 1, 7)
    group.hear(teller.status())
    group.wait(20.0)
    assert group.told("declared") == [(10, 8, 10, "expired")]


def test_a_lost_tail_is_remembered_over_a_crash() -> None:
    teller, group = pair()
    group.receive(teller, 10, 1, 7)
    group.hear(teller.status())
    group.wait(8.0)
    assert group.state.gaps.clock.elapsed > 1.0
    group.crash()
    assert target(group) == (10, 8, 10)
    assert group.state.gaps.clock.elapsed > 0.5
    group.wait(6.0)
    assert group.told("declared") == [(10, 8, 10, "expired")]


def test_a_stream_of_which_nothing_arrived_is_joined_and_repaired() -> None:
    teller, group = pair(25)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == all_of(teller)
    assert group.told("joined") == [(10, 1, 1, "")]
    assert group.told("before_join") == []


def test_a_lost_head_is_repaired_before_what_came_after() -> None:
    teller, group = pair(25)
    group.receive(teller, 10, 20, 25)
    assert group.got == []
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == all_of(teller)


def test_a_status_just_before_the_waiting_ends_is_in_time() -> None:
    teller, group = pair(25)
    group.receive(teller, 10, 20, 25)
    group.wait(group.core.rules.gap_timeout - 0.1)
    assert group.told("joined") == []
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == all_of(teller)
    assert group.told("before_join") == []


def test_a_head_that_was_lost_after_the_group_was_named_is_a_gap() -> None:
    teller, group = pair(0)
    teller.since = (10, 1)
    group.hear(teller.status())
    teller.publish(5)
    group.receive(teller, 10, 3, 5)
    group.wait(2 * group.core.rules.gap_timeout + 1.0)
    assert group.told("before_join") == []
    assert group.told("declared") == [(10, 1, 2, "expired")]
    assert group.got == all_of(teller)[2:]


def test_an_epoch_that_was_lost_after_the_group_was_named_is_a_gap() -> None:
    teller, group = pair(0)
    teller.since = (10, 1)
    group.hear(teller.status())
    teller.publish(5)
    teller.open(20)
    teller.publish(5)
    group.receive(teller, 20, 3, 5)
    group.wait(4 * group.core.rules.gap_timeout)
    assert group.told("before_join") == []
    assert group.told("declared") == [(10, 1, 5, "expired"), (20, 1, 2, "expired")]
    assert group.got == all_of(teller)[7:]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("since", [None, (10, 5), (10, 20)])
def test_what_was_joined_behind_is_declared_when_its_producer_is_heard(
    since: tuple[int, int] | None, crash: bool
) -> None:
    teller, group = pair(25)
    teller.since = since
    group.receive(teller, 10, 20, 25)
    group.wait(group.core.rules.gap_timeout + 1.0)
    assert group.told("joined") == [(10, 20, 20, "")]
    if crash:
        group.crash()
    expected = [(10, 5, 19, "joined late")] if since == (10, 5) else []
    for _ in range(2):
        group.hear(teller.status())
        group.wait(3.0)
        assert group.told("declared") == expected
    assert seen(group.core).missed == [Gap(STREAM, *each) for each in expected]
    assert group.got == [(10, n) for n in range(20, 26)]


def test_a_late_joiner_starts_with_the_oldest_that_is_offered() -> None:
    teller, group = pair(100)
    teller.open(20)
    teller.publish(10)
    teller.release(10, 60)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [*((10, n) for n in range(61, 101)), *((20, n) for n in range(1, 11))]
    assert group.told("before_join") == [(10, 1, 60, "begin")]
    assert group.told("declared") == []


def test_what_arrives_from_before_the_oldest_that_is_offered_is_not_thrown_away() -> None:
    teller, group = pair(100)
    teller.release(10, 60)
    group.hear(teller.status())
    group.wait(0.3)
    group.receive(teller, 10, 31, 70)
    group.wait(3.0, teller)
    assert group.got == [(10, n) for n in range(31, 101)]


@pytest.mark.parametrize("crash", [False, True])
def test_a_group_that_is_counted_starts_no_later_than_since_then(crash: bool) -> None:
    teller, group = pair(100)
    teller.release(10, 60)
    teller.since = (10, 41)
    group.hear(teller.status())
    group.wait(2.0)
    if crash:
        group.crash()
    group.wait(15.0, teller)
    assert group.told("joined") == [(10, 41, 41, "")]
    assert group.told("declared") == [(10, 41, 60, "expired")]
    assert group.got == [(10, n) for n in range(61, 101)]


def test_a_group_that_is_counted_from_an_epoch_without_messages_starts_with_the_next() -> None:
    teller, group = pair(5)
    teller.open(30)
    teller.publish(5)
    teller.release(10, 5)
    teller.since = (20, 1)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(30, n) for n in range(1, 6)]
    assert group.told("declared") == []


def test_a_group_that_is_counted_though_nothing_was_published_since_knows_where_to_begin() -> None:
    teller, group = pair(5)
    teller.release(10, 5)
    teller.open(20)
    teller.since = (20, 1)
    group.hear(teller.status())
    group.wait(2.0)
    teller.publish(8)
    group.receive(teller, 20, 4, 8)  # its first messages were lost
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(20, n) for n in range(1, 9)]


def test_an_epoch_in_which_nothing_was_published_is_never_entered() -> None:
    teller, group = pair(5)
    teller.release(10, 5)
    teller.open(20)
    teller.since = (20, 1)
    group.hear(teller.status())
    group.wait(2.0)
    teller.open(30)
    teller.publish(8)
    group.receive(teller, 30, 1, 3)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(30, n) for n in range(1, 9)]
    assert seen(group.core).conflicts == []
    assert group.told("declared") == []


def test_latest_starts_with_what_arrives() -> None:
    teller, group = pair(50, begin="latest")
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == []
    teller.publish(10)
    group.receive(teller, 10, 51, 55)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(10, n) for n in range(51, 61)]


def test_latest_settles_what_its_producer_keeps_for_it_and_nothing_brings() -> None:
    teller, group = pair(50, begin="latest", gap_timeout=5.0)
    teller.open(20)
    teller.publish(8)
    teller.since = (10, 1)
    group.hear(replace(teller.status(), consumed=True))
    group.wait(4.0, teller)
    assert group.state.epochs.current is None, "something may arrive yet"
    group.core.retire_these([STREAM])
    assert not group.core.retiring, "it is about to join"
    group.wait(3.0, teller)
    group.commit()
    assert group.state.committed[0] == (20, 9), "so that the producer lets go of it"
    assert group.got == []
    assert [span[:3] for span in group.told("before_join")] == [(10, 1, 50), (20, 1, 8)]
    teller.publish(4)
    group.hear(replace(teller.status(), consumed=True))
    group.wait(3.0, teller)
    assert group.got == [(20, n) for n in range(9, 13)], "from there on it is owed everything"


@pytest.mark.parametrize("of", [{}, {"consumed": True, "since": None}, {"consumed": True, "since": (20, 9)}])
def test_latest_waits_for_what_arrives_where_nobody_waits_for_the_group(of: dict[str, Any]) -> None:
    teller, group = pair(50, begin="latest", gap_timeout=5.0)
    teller.open(20)
    teller.publish(8)
    teller.since = (10, 1)
    group.hear(replace(teller.status(), **of))
    group.wait(10.0, teller)
    assert group.state.epochs.current is None


def test_latest_begins_with_what_arrives_although_its_producer_keeps_messages() -> None:
    teller, group = pair(50, begin="latest", gap_timeout=5.0)
    teller.since = (10, 1)
    group.hear(replace(teller.status(), consumed=True))
    group.wait(4.0, teller)
    group.receive(teller, 10, 41, 45)
    group.wait(8.0, teller)
    assert group.got == [(10, n) for n in range(41, 51)]


def test_epochs_of_which_nothing_arrived_are_repaired_in_order() -> None:
    teller, group = pair(10)
    for epoch in (20, 30, 40):
        teller.open(epoch)
        teller.publish(5)
    group.receive(teller, 10, 1, 8)
    group.receive(teller, 40, 4, 5)
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert group.got == all_of(teller)
    assert group.told("conflict") == []


def test_a_chain_makes_unknown_history_exact() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(5)
    teller.open(30)
    teller.publish(5)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 30, 1, 5)
    assert target(group) == (10, 11, None)
    # It is not known what is missing: a status is asked for.
    group.wait(1.5)
    assert group.asked
    assert group.wanted == []
    group.hear(teller.status())
    group.wait(1.0)
    assert target(group) == (20, 1, 5)
    group.wait(2.0, teller)
    assert group.got == all_of(teller)
    assert group.told("declared") == []


def test_unknown_history_that_no_chain_reaches_is_declared_as_before() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(5)
    teller.open(30)
    teller.publish(5)
    teller.epochs.pop(0)  # released and forgotten
    teller.release(20, 5)
    group.arrive("dc1", 10, 70, None, 1, 10)
    group.hear(teller.status())
    group.wait(20.0, teller)
    assert group.got == [*((10, n) for n in range(1, 11)), *((30, n) for n in range(1, 6))]
    reasons = {reason for *_, reason in group.told("declared")}
    assert reasons == {"extent unknown"}


def test_what_is_known_of_an_epoch_is_exact_though_what_follows_is_not() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 7)
    group.hear(teller.status())
    group.wait(0.4)
    group.arrive("dc1", 30, 210, Prev(20, 140, 5), 1, 5)
    assert target(group) == (10, 8, 10)
    group.repair(teller, [(10, 8, 10)])
    assert target(group) == (10, 11, None)


def test_what_was_only_said_of_epochs_to_come_is_not_stored() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(5)
    group.receive(teller, 10, 1, 8)
    group.hear(teller.status())
    group.wait(1.0)
    assert sorted(group.state.epochs.live) == [10, 20]
    group.core.mark(group.state.stream)
    group.commit()
    assert sorted(group.disk.epochs) == [10]
    group.crash()
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == all_of(teller)


def test_the_word_of_data_counts_for_what_an_epoch_follows() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 8)
    made_up = ((10, 70, 1, 10), (15, 15, 1, 3), (20, 140, 1, 5))
    group.hear(Announced(STREAM, 20, 140, made_up, number=1))
    group.wait(0.5)
    teller.open(20)
    teller.publish(5)
    assert group.state.epochs.live[20].prev == Prev(15, 15, 3)
    group.receive(teller, 20, 1, 5)
    assert group.state.epochs.live[20].prev == Prev(10, 70, 10)
    assert not group.state.epochs.live[20].only_announced


def test_more_epochs_than_are_taken_in_at_once_come_by_and_by() -> None:
    teller, group = pair(2)
    for epoch in range(11, 11 + 3 * MAX_EPOCHS_AHEAD):
        teller.open(epoch)
        teller.publish(2)
    group.receive(teller, 10, 1, 1)
    group.hear(teller.status())
    group.step(0.3)
    assert len(group.state.epochs.live) == 1 + MAX_EPOCHS_AHEAD
    group.wait(20.0, teller)
    assert group.got == all_of(teller)


def test_an_older_status_changes_nothing() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    old = teller.status()
    teller.publish(10)
    teller.release(10, 5)
    group.hear(teller.status())
    group.hear(old)
    group.hear(replace(old, number=0))
    group.wait(2.0, teller)
    assert group.got == all_of(teller)
    assert [owner.latest.chain for owner in group.state.view.owners.values()] == [((10, 70, 6, 20),)]


def test_statuses_that_come_in_quick_succession_all_count() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    for _ in range(30):
        teller.publish(1)
        group.hear(teller.status())
        group.step(0.05)
    group.wait(2.0, teller)
    assert group.got == all_of(teller)


def test_what_one_owner_says_does_not_take_the_place_of_what_another_said() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    before = [teller.status(), teller.status(), teller.status()]
    teller.publish(10)
    teller.open(20)
    group.hear(replace(before[0], chain=((10, 70, 1, 12),)))
    group.hear(teller.status())
    group.hear(replace(before[1], chain=((10, 70, 1, 13),)))
    group.hear(replace(before[2], chain=((10, 70, 1, 14),)))
    group.wait(2.0, teller)
    assert group.got == all_of(teller)


def test_a_restored_outbox_is_told_by_its_chain_before_it_sends_anything() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 20)
    teller.epochs[-1][3] = 15
    teller.open(12)
    group.hear(teller.status())
    group.wait(1.0)
    assert [(epoch, reason) for _, epoch, reason in seen(group.core).conflicts] == [
        (12, "epoch 12 says that 10 ended at 15, 20 is known")
    ]
    teller.publish(5)
    group.receive(teller, 12, 1, 5)
    assert group.got[-5:] == [(12, n) for n in range(1, 6)]
    assert len(seen(group.core).conflicts) == 1


def test_a_fork_of_which_only_a_status_is_heard_is_entered_and_repaired() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 20)
    group.arrive("dc1", 15, 105, Prev(10, 70, 20), 1, 5)
    teller.open(18)  # a copy of the outbox as it was before 15
    teller.publish(5)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got[-10:] == [*((15, n) for n in range(1, 6)), *((18, n) for n in range(1, 6))]
    assert seen(group.core).conflicts


def test_an_unreadable_tail_is_asked_for() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 10)
    group.core.undecodable(STREAM, 10, 70, 11, 20, group.now)
    group.wait(1.0, teller)
    assert group.got == all_of(teller)
    assert group.wanted == [(10, 11, 20)]


def test_a_long_chain_is_followed_from_where_the_stream_is() -> None:
    teller, group = pair(1)
    for epoch in range(11, 311):
        teller.open(epoch)
        teller.publish(1)
    group.receive(teller, 10, 1, 1)
    group.receive(teller, 11, 1, 1)
    for epoch in (210, 211):
        group.receive(teller, epoch, 1, 1)
    group.hear(teller.status())
    group.wait(60.0, teller)
    assert group.got == all_of(teller)


def test_an_epoch_that_is_gone_is_a_gap_where_the_group_is_counted_from_within_it() -> None:
    """The outbox was lost: it begins anew, knows nothing of what it had said, and has let go of all since."""
    teller, group = pair(0)
    teller.publish(5)
    group.receive(teller, 10, 1, 5)
    assert group.got == all_of(teller)
    teller.epochs.clear()
    teller.open(20)
    teller.publish(4)
    teller.release(20, 4)
    group.hear(teller.status())
    group.wait(30.0)
    assert group.told("declared") == []  # nobody says that it is the group's
    teller.since = (20, 1)
    group.hear(teller.status())
    group.wait(30.0)
    assert group.told("declared") == [(10, 6, 0, "extent unknown"), (20, 1, 4, "expired")]
