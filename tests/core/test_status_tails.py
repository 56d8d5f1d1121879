"""What only a status knows of: lost tails, lost streams, epochs that nothing arrived of, late joiners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.core.announced import Announced
from reliamsg.core.heard import MAX_KEPT, MAX_OWNERS
from reliamsg.core.hearing import MAX_CHAIN
from reliamsg.core.stream import MAX_EPOCHS_AHEAD
from reliamsg.message import Prev, Stream

from .status_tools import STREAM, Group, Teller


def pair(count: int = 10, **rules: object) -> tuple[Teller, Group]:
    """A producer in epoch 10 that has published `count` messages, and a group."""
    teller = Teller()
    teller.open(10)
    if count:
        teller.publish(count)
    return teller, Group(**rules)


def all_of(teller: Teller) -> list[tuple[int, int]]:
    return [(epoch, n) for epoch, _, _, last in teller.epochs for n in range(1, last + 1)]


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
        assert group.state.clock.target is None
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
    assert group.state.clock.elapsed > 1.0
    group.crash()
    assert group.state.clock.target == (10, 8, 10)
    assert group.state.clock.elapsed > 0.5
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
    assert group.core.conflicts == []
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
    assert group.state.clock.target == (10, 11, None)
    # It is not known what is missing: a status is asked for.
    group.wait(1.5)
    assert group.asked
    assert group.wanted == []
    group.hear(teller.status())
    group.wait(1.0)
    assert group.state.clock.target == (20, 1, 5)
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
    assert group.state.clock.target == (10, 8, 10)
    group.repair(teller, [(10, 8, 10)])
    assert group.state.clock.target == (10, 11, None)


def test_what_was_only_said_of_epochs_to_come_is_not_stored() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(5)
    group.receive(teller, 10, 1, 8)
    group.hear(teller.status())
    group.wait(1.0)
    assert sorted(group.state.live) == [10, 20]
    group.core.mark(group.state)
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
    assert group.state.live[20].prev == Prev(15, 15, 3)
    group.receive(teller, 20, 1, 5)
    assert group.state.live[20].prev == Prev(10, 70, 10)
    assert not group.state.live[20].told


def test_more_epochs_than_are_taken_in_at_once_come_by_and_by() -> None:
    teller, group = pair(2)
    for epoch in range(11, 11 + 3 * MAX_EPOCHS_AHEAD):
        teller.open(epoch)
        teller.publish(2)
    group.receive(teller, 10, 1, 1)
    group.hear(teller.status())
    group.step(0.3)
    assert len(group.state.live) == 1 + MAX_EPOCHS_AHEAD
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
    assert [owner.latest.chain for owner in group.state.heard.owners.values()] == [((10, 70, 6, 20),)]  # type: ignore[union-attr]


def test_a_made_up_status_with_a_high_number_ends_the_others_for_a_while_only() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    group.hear(replace(teller.status(), number=2**62, lsn=2**62, interval=1e9))
    teller.publish(10)
    for _ in range(30):
        group.hear(teller.status())
        group.wait(10.0, teller)
    assert group.got == all_of(teller)


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


def test_data_outweighs_a_status_that_names_another_incarnation() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    forged = Announced(STREAM, 20, 666, ((10, 70, 1, 10), (20, 666, 1, 5)), number=1)
    group.hear(forged)
    group.wait(0.5)
    assert group.state.current is not None
    teller.open(20)
    teller.publish(5)
    # It may have been entered by then, since nothing was missing before it: then it is a conflict, and reported.
    entered = group.state.current.epoch == 20
    arrival = group.receive(teller, 20, 1, 5)
    assert arrival.quarantine == entered
    assert group.core.conflicts


def test_a_status_for_a_known_epoch_of_another_incarnation_is_a_conflict_and_nothing_else() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    group.hear(Announced(STREAM, 10, 666, ((10, 666, 1, 1000),), number=1))
    group.wait(1.0)
    assert group.asked == []
    assert group.state.heard is None
    assert [reason for _, _, reason in group.core.conflicts] == ["another incarnation of a known epoch"]


def test_statuses_that_make_no_sense_leave_no_trace() -> None:
    group = Group()
    for announced in (
        Announced(STREAM, 10, 70, ((10, 70, 1, 5), (10, 70, 1, 5))),
        Announced(STREAM, 10, 70, ((11, 70, 1, 5),)),
        Announced(STREAM, 10, 70, ((10, 70, 9, 5),)),
        Announced(STREAM, 10, 70, ((10, 70, 1, 2**63 - 1),)),
        Announced(STREAM, 10, 70, ((10, 70, 1, 5),), ((10, 5, 1),)),
        Announced(STREAM, 2**63, 70, ()),
        Announced(STREAM, MAX_CHAIN + 5, 70, tuple((n, 1, 1, 1) for n in range(1, MAX_CHAIN + 3))),
        Announced(STREAM, 10, 70, ((10, 70, 1, 5),), (), (0, 0)),
    ):
        assert group.hear(announced) == "malformed"
    assert group.core.streams == {}


def test_streams_that_are_only_said_to_exist_are_bounded() -> None:
    group = Group(max_streams=3)
    for n in range(5):
        teller = Teller(Stream(f"p{n}", "orders"))
        teller.open(10)
        assert group.hear(teller.status()) == ""  # nothing was published: nothing to remember
        teller.publish(5)
        assert group.hear(teller.status()) == ("" if n < 3 else "too-many-streams")
    assert len(group.core.streams) == 3


def test_a_made_up_end_costs_nothing_in_proportion() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    group.hear(Announced(STREAM, 10, 70, ((10, 70, 1, 2**62),), number=1))
    group.wait(1.5)
    assert set(group.wanted) == {(10, 11, 20_010)}
    teller.publish(10)
    group.receive(teller, 10, 11, 20)
    assert group.got == all_of(teller)


def test_a_restored_outbox_is_told_by_its_chain_before_it_sends_anything() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 20)
    teller.epochs[-1][3] = 15
    teller.open(12)
    group.hear(teller.status())
    group.wait(1.0)
    assert [(epoch, reason) for _, epoch, reason in group.core.conflicts] == [
        (12, "epoch 12 says that 10 ended at 15, 20 is known")
    ]
    teller.publish(5)
    group.receive(teller, 12, 1, 5)
    assert group.got[-5:] == [(12, n) for n in range(1, 6)]
    assert len(group.core.conflicts) == 1


def test_a_fork_of_which_only_a_status_is_heard_is_entered_and_repaired() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 20)
    group.arrive("dc1", 15, 105, Prev(10, 70, 20), 1, 5)
    teller.open(18)  # a copy of the outbox as it was before 15
    teller.publish(5)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got[-10:] == [*((15, n) for n in range(1, 6)), *((18, n) for n in range(1, 6))]
    assert group.core.conflicts


def test_a_standby_goes_on_where_the_other_stopped() -> None:
    teller, group = pair(50)
    assert group.core.adopt(STREAM, (10, 70), (10, 21), 31, group.now)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(10, n) for n in range(21, 51)]
    assert group.told("joined") == [(10, 21, 21, "took_over")]
    assert group.told("before_join") == group.told("declared") == []


def test_a_standby_flags_what_the_other_may_have_handed_out() -> None:
    teller, group = pair(50)
    group.reading = False
    group.core.adopt(STREAM, (10, 70), (10, 21), 31, group.now)
    group.receive(teller, 10, 1, 50)
    flags: list[tuple[int, int, bool]] = []
    state = group.state
    while state.current is not None and state.current.cursor <= 50:
        found = group.core.offer(state, group.now, 1)
        if found is None:
            group.commit()
            continue
        flags.append((found.first, found.last, found.redelivered))
        group.core.take(state, found, found.last, group.now)
        group.core.acknowledge(STREAM, found.epoch, found.first, found.last, group.now)
    assert next((flag, first) for first, _, flag in flags) == (True, 21)
    assert max(last for _, last, flag in flags if flag) == 30
    assert min(first for first, _, flag in flags if not flag) == 31


def test_a_standby_finishes_what_the_other_had_left_of_an_earlier_epoch() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(10)
    group.core.adopt(STREAM, (20, 140), (10, 8), 6, group.now)
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert group.got == [*((10, n) for n in range(8, 11)), *((20, n) for n in range(1, 11))]
    assert group.core.conflicts == []
    assert group.told("joined") == [(10, 8, 8, "took_over")]


def test_a_standby_flags_all_of_an_epoch_that_the_other_had_handed_out() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(10)
    group.core.adopt(STREAM, (20, 140), (10, 8), 6, group.now)
    for epoch in (10, 20):
        prev = teller.prev(epoch)
        group.core.receive("dc1", STREAM, epoch, epoch * 7, prev, 1, 10, epoch, group.now)
    flags: list[tuple[int, int, int, bool]] = []
    for _ in range(50):
        found = group.core.offer(group.state, group.now, 1)
        if found is None:
            group.commit()
            continue
        flags.append((found.epoch, found.first, found.last, found.redelivered))
        group.core.take(group.state, found, found.last, group.now)
        group.core.acknowledge(STREAM, found.epoch, found.first, found.last, group.now)
    flagged = {(e, n) for e, first, last, flag in flags if flag for n in range(first, last + 1)}
    assert flagged == {*((10, n) for n in range(8, 11)), *((20, n) for n in range(1, 6))}
    assert sum(last - first + 1 for _, first, last, _ in flags) == 13


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_standby_learns_from_data_which_epoch_the_other_was_in(begin: str) -> None:
    teller, group = pair(10, begin=begin)
    teller.open(20)
    teller.publish(10)
    teller.open(30)
    teller.publish(10)
    group.core.adopt(STREAM, (30, 210), (20, 8), 6, group.now)
    assert group.receive(teller, 10, 1, 10).release  # dealt with by the other
    group.receive(teller, 30, 1, 10)
    group.wait(3.0, teller)
    assert group.got == [*((20, n) for n in range(8, 11)), *((30, n) for n in range(1, 11))]
    assert group.state.waiting == []
    assert group.told("before_join") == group.told("declared") == []


def test_a_standby_that_learns_nothing_of_the_epoch_the_other_was_in_declares_it() -> None:
    teller, group = pair(10)
    for epoch in (20, 30, 40):
        teller.open(epoch)
        teller.publish(10)
    group.core.adopt(STREAM, (40, 280), (20, 8), 6, group.now)
    group.receive(teller, 40, 1, 10)
    group.wait(7.0)
    assert group.told("declared") == [(20, 8, 0, "extent unknown")]
    assert group.got == [(40, n) for n in range(1, 11)]


def test_a_stream_that_is_known_is_not_adopted() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    assert not group.core.adopt(STREAM, (10, 70), (10, 5), 8, group.now)


@pytest.mark.parametrize("epoch", [10, 20])
def test_a_standby_that_knows_the_stream_and_is_behind_skips_to_where_the_other_stopped(epoch: int) -> None:
    teller, group = pair(50)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 15, 20)
    if epoch == 20:
        teller.open(20)
        teller.publish(50)
        group.receive(teller, 20, 31, 40)
    assert group.core.adopt(STREAM, (epoch, epoch * 7), (epoch, 36), 46, group.now)
    group.got.clear()
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert group.got == [(epoch, n) for n in range(36, 51)]
    assert group.told("declared") == []
    assert group.state.waiting == []
    group.crash()
    assert group.core.report(STREAM).position == (epoch, 51)
    # What the other one dealt with is a duplicate, whenever it comes.
    group.receive(teller, 10, 1, 50, "dc2")
    assert group.told("late") == group.told("declared") == []


def test_an_unreadable_tail_is_asked_for() -> None:
    teller, group = pair(20)
    group.receive(teller, 10, 1, 10)
    group.core.undecodable(STREAM, 10, 70, 11, 20, group.now)
    group.wait(1.0, teller)
    assert group.got == all_of(teller)
    assert group.wanted == [(10, 11, 20)]


def test_what_is_remembered_of_long_chains_is_bounded() -> None:
    chain = tuple((n, 1, 1, 5) for n in range(1, 5_001))
    group = Group()
    for owner in range(20):
        group.hear(
            Announced(
                STREAM, 6_000 + owner, owner, chain, tuple((n, 1, 2) for n in range(1, 5_001)), number=1
            )
        )
    group.wait(2.0)
    heard = group.state.heard
    assert heard is not None
    assert len(heard.owners) <= MAX_OWNERS
    assert len(heard.waiting) <= 2 * MAX_OWNERS
    assert all(
        len(owner.latest.chain) <= MAX_KEPT and not owner.latest.removed for owner in heard.owners.values()
    )
    assert len(group.state.live) <= 1 + MAX_EPOCHS_AHEAD
    assert group.told("declared")[0] == (1, 1, 2, "removed")


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
