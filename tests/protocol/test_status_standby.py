"""A group's other inbox goes on where the first one stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.message import Stream
from reliamsg.protocol.receiver.incoming import Incoming
from tests.protocol.events_tools import seen

from .status_tools import STREAM, Group, Teller, all_of, pair


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
    while state.epochs.current is not None and state.epochs.current.cursor <= 50:
        found = state.offer(group.now, 1)
        if found is None:
            group.commit()
            continue
        flags.append((found.first, found.last, found.redelivered))
        state.take(found, found.last, group.now)
        group.core.streams[STREAM].acknowledge(found.epoch, found.first, found.last, group.now)
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
    assert seen(group.core).conflicts == []
    assert group.told("joined") == [(10, 8, 8, "took_over")]


def test_a_standby_flags_all_of_an_epoch_that_the_other_had_handed_out() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(10)
    group.core.adopt(STREAM, (20, 140), (10, 8), 6, group.now)
    for epoch in (10, 20):
        prev = teller.prev(epoch)
        group.core.receive(Incoming("dc1", STREAM, epoch, epoch * 7, prev, 1, 10, epoch), group.now)
    flags: list[tuple[int, int, int, bool]] = []
    for _ in range(50):
        found = group.state.offer(group.now, 1)
        if found is None:
            group.commit()
            continue
        flags.append((found.epoch, found.first, found.last, found.redelivered))
        group.state.take(found, found.last, group.now)
        group.core.streams[STREAM].acknowledge(found.epoch, found.first, found.last, group.now)
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
    assert not group.core.waiting.of(group.stream)
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
    assert not group.core.waiting.of(group.stream)
    group.crash()
    assert group.core.report(STREAM).position == (epoch, 51)
    # What the other one dealt with is a duplicate, whenever it comes.
    group.receive(teller, 10, 1, 50, "dc2")
    assert group.told("late") == group.told("declared") == []


# -- what the other could not tell any more -----------------------------------------------------------------


def test_of_an_epoch_of_which_the_other_told_nothing_all_that_existed_is_flagged() -> None:
    teller, group = pair(10)
    teller.open(20)
    teller.publish(10)
    group.core.adopt(STREAM, (10, 70), (10, 8), 9, group.now)
    group.core.succeed({STREAM: 10})
    group.receive(teller, 10, 8, 10)
    group.receive(teller, 20, 1, 3)
    group.hear(teller.status())
    teller.publish(5)
    group.receive(teller, 20, 4, 15)
    assert group.got == [*((10, n) for n in range(8, 11)), *((20, n) for n in range(1, 16))]
    assert group.flagged == {(10, 8), *((20, n) for n in range(1, 11))}
    teller.open(30)
    teller.publish(3)
    group.receive(teller, 30, 1, 3)
    assert group.got[-3:] == [(30, 1), (30, 2), (30, 3)]
    assert not group.flagged & {(30, 1), (30, 2), (30, 3)}


def test_a_status_that_was_late_does_not_say_what_existed() -> None:
    teller, group = pair(10)
    late = replace(teller.status(), late=True)
    teller.publish(5)
    group.core.succeed({})
    group.hear(late)
    group.receive(teller, 10, 1, 12)
    assert group.flagged == {(10, n) for n in range(1, 13)}
    group.hear(teller.status())
    teller.publish(5)
    group.receive(teller, 10, 13, 20)
    assert group.got == all_of(teller)
    assert group.flagged == {(10, n) for n in range(1, 16)}


@pytest.mark.parametrize("known", [False, True])
def test_so_is_a_stream_of_which_it_told_nothing(known: bool) -> None:
    teller, group = pair(10)
    if known:
        group.receive(teller, 10, 1, 4)
        group.reading = False
        group.receive(teller, 10, 5, 6)
        group.reading = True
    group.core.succeed({})
    group.work()
    group.receive(teller, 10, 1, 8)
    assert group.got == [(10, n) for n in range(1, 9)]
    assert group.flagged == {(10, n) for n in range(5 if known else 1, 9)}
    group.hear(teller.status())
    teller.publish(5)
    group.receive(teller, 10, 9, 15)
    assert group.flagged == {(10, n) for n in range(5 if known else 1, 11)}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("arrived", [0, 2])
def test_so_is_all_of_a_history_that_its_producer_has_lost(arrived: int, crash: bool) -> None:
    """Its outbox was put back from a backup, and went on in a lower epoch: what it answers does not name the other one,
    of which messages wait, here or at a site. What it publishes later is new."""
    lost, group = pair(5)
    for epoch in (30, 40):
        lost.open(epoch)
        lost.publish(3)
    teller, _ = pair(5)
    teller.open(20)
    teller.publish(2)
    group.core.succeed({})
    group.receive(teller, 10, 1, 4)
    if arrived:
        group.receive(lost, 30, 1, arrived)
    group.hear(teller.status())
    if crash:
        group.commit()
        group.crash()
    teller.publish(1)
    group.receive(teller, 20, 1, 3)
    group.receive(teller, 10, 5, 5)
    group.wait(1.0, teller)
    for epoch, first in ((30, arrived + 1), (40, 1)):
        group.receive(lost, epoch, first, 3)
    teller.open(50)
    teller.publish(2)
    group.receive(teller, 50, 1, 2)
    group.wait(1.0, teller)
    assert group.got[-9:] == [
        (20, 3),
        *((epoch, n) for epoch in (30, 40) for n in (1, 2, 3)),
        (50, 1),
        (50, 2),
    ]
    assert group.flagged == set(group.got) - {(20, 3), (50, 1), (50, 2)}


@pytest.mark.parametrize("lost", [False, True])
def test_so_is_what_its_producer_knows_nothing_of_that_has_published_nothing_yet(lost: bool) -> None:
    """It told so when it had just been opened: all earlier epochs existed."""
    teller, group, gone = Teller(), Group(), Teller()
    gone.open(10)
    gone.publish(3)
    teller.open(20)
    teller.since = (20, 1)
    group.core.succeed({})
    group.hear(teller.status())
    if lost:
        group.receive(gone, 10, 1, 3)
    teller.publish(2)
    group.receive(teller, 20, 1, 2)
    teller.open(30)
    teller.publish(2)
    group.receive(teller, 30, 1, 2)
    group.wait(1.0, teller)
    assert group.got[-4:] == [(20, 1), (20, 2), (30, 1), (30, 2)]
    assert group.flagged == ({(10, 1), (10, 2), (10, 3)} if lost else set())


def test_each_takeover_doubts_anew_what_was_not_in_memory_then() -> None:
    teller, group = pair(5)
    group.core.succeed({})
    group.receive(teller, 10, 1, 3)
    group.hear(teller.status())  # 1 to 5 existed when this inbox began to read
    teller.publish(3)
    group.receive(teller, 10, 4, 8)
    assert group.flagged == {(10, n) for n in range(1, 6)}
    group.leave_memory()
    group.core.succeed({})
    group.core.succeed({})
    group.come_back()
    teller.publish(2)
    group.receive(teller, 10, 9, 10)
    group.hear(teller.status())
    for restarts in (False, True):
        group.leave_memory()
        if restarts:
            takeovers, group.core = group.core.takeover, group._new()
            group.core.succeeds, group.core.takeover, group.core.known_elsewhere = True, takeovers, 1
        group.come_back()
        teller.publish(5)
        group.receive(teller, 10, group.got[-1][1] + 1, group.got[-1][1] + 5)
    assert group.got == all_of(teller)
    assert group.flagged == {(10, n) for n in (*range(1, 6), 9, 10)}


def test_where_there_is_no_room_for_the_stream_that_happens_once_there_is() -> None:
    teller, group = pair(12, max_streams=1)
    other = Stream("other", "orders")
    assert group.core.open(other) is not None
    assert not group.core.adopt(group.stream, (10, 70), (10, 5), 9, group.now)
    group.core.succeed({})
    assert group.core.receive(Incoming("dc1", group.stream, 10, 70, None, 5, 5, 1), group.now).refused
    del group.core.streams[other], group.core.context.dirty[other]
    group.receive(teller, 10, 1, 12)
    group.wait(1.0, teller)
    assert group.got == [(10, n) for n in range(5, 13)]
    assert {(10, n) for n in range(5, 9)} <= group.flagged
