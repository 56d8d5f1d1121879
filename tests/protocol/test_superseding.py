"""What exists in epochs behind a stream is declared, whoever tells of it: data, what data follows, or a status.

An outbox that was replaced by an older copy of itself, or lost, goes on in an epoch that is over where clocks went back
as well.
"""

from __future__ import annotations

import pytest

from reliamsg.message import Prev
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.receiver.joining import JOINED_LATE
from tests.protocol.events_tools import seen
from tests.protocol.status_tools import Group, Teller


def gone_back() -> tuple[Teller, Group]:
    """A group that was given an epoch of which its producer's outbox, which is an older copy, knows nothing."""
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(10)
    group.receive(teller, 10, 1, 10)
    group.arrive("dc1", 30, 210, Prev(10, 70, 10), 1, 5)
    teller.open(20)
    teller.publish(8)
    return teller, group


def hear(group: Group, announced: Announced) -> None:
    """A status comes, and what follows from it is committed."""
    group.hear(announced)
    group.work()


SUPERSEDED = [(20, 1, 8, "superseded")]


def test_a_status_of_an_epoch_that_is_over_declares_it() -> None:
    teller, group = gone_back()
    hear(group, teller.status())
    group.wait(1.0, teller)
    assert group.told("declared") == SUPERSEDED
    teller.publish(2)
    hear(group, teller.status())
    group.crash()
    hear(group, teller.status())
    group.wait(1.0, teller)
    assert group.told("declared")[1:] == [(20, 9, 10, "superseded")]


def test_what_arrives_after_it_was_declared_is_late_and_not_handed_out() -> None:
    teller, group = gone_back()
    hear(group, teller.status())
    for site in ("dc1", "dc2"):
        group.receive(teller, 20, 1, 8, site)
    assert group.told("declared") == SUPERSEDED
    assert group.told("late") == [(20, 1, 8, "superseded")] * 2
    assert group.got == [*((10, n) for n in range(1, 11)), *((30, n) for n in range(1, 6))]
    assert len(group.released) == 4, "brokers may forget all of it"


def test_what_comes_before_a_number_that_arrived_exists_as_well() -> None:
    teller, group = gone_back()
    group.receive(teller, 20, 4, 8)
    assert group.told("declared") == [(20, 1, 3, "superseded"), (20, 4, 8, "superseded")], "in order"


@pytest.mark.parametrize("epoch", [25, 40])
def test_what_a_later_batch_follows_is_declared_with_it(epoch: int) -> None:
    """Whether that is behind the stream, too, or is entered."""
    teller, group = gone_back()
    teller.open(epoch)
    teller.publish(3)
    group.receive(teller, epoch, 1, 3)
    group.wait(6.0)
    assert (20, 1, 8, "superseded") in group.told("declared")
    assert ((epoch, 1) in group.got) is (epoch > 30)


def test_a_status_of_what_was_published_to_an_epoch_after_it_was_left_declares_that() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(10)
    group.receive(teller, 10, 1, 10)
    group.arrive("dc1", 30, 210, Prev(10, 70, 8), 1, 5)  # a copy, which knows nothing of the last two
    teller.publish(4)
    hear(group, teller.status())
    assert group.told("declared") == [(10, 11, 14, "superseded")]


def test_a_status_from_before_tells_nothing_new() -> None:
    teller, group = Teller(), Group()
    for epoch in (10, 20):
        teller.open(epoch)
        teller.publish(5)
    early = teller.status()
    teller.open(30)
    teller.publish(5)
    for epoch in (10, 20, 30):
        group.receive(teller, epoch, 1, 5)
    hear(group, early)
    hear(group, teller.status())
    assert group.told("declared") == []
    assert seen(group.core).conflicts == []


def test_what_another_inbox_has_dealt_with_is_not_declared() -> None:
    teller, group = Teller(), Group()
    for epoch in (10, 20, 30):
        teller.open(epoch)
        teller.publish(10)
    group.receive(teller, 10, 1, 5)
    group.core.adopt(group.stream, (30, 210), (30, 4), 3, group.now)
    hear(group, teller.status())
    group.wait(2.0, teller)
    assert group.told("declared") == []
    assert group.got[-1] == (30, 10)


@pytest.mark.parametrize("told", [False, True])
def test_an_outbox_that_was_lost_and_goes_on_before_the_place_of_joining_is_declared(told: bool) -> None:
    """None of that came before the group joined: the epoch in which it did says that it is the first."""
    group, teller = Group(), Teller()
    group.arrive("dc1", 30, 210, None, 1, 5)
    teller.open(20)
    teller.publish(8)
    if told:
        hear(group, teller.status())
    else:
        group.receive(teller, 20, 1, 8)
    assert group.told("declared") == SUPERSEDED
    assert group.told("before_join") == []


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("later", [25, 40])
@pytest.mark.parametrize("settled", [0, 3])
def test_what_an_opening_left_that_no_longer_answers_is_declared(
    told: bool, later: int, settled: int
) -> None:
    """The outbox was lost, went on before the place of joining, and has been opened again since. What the group had
    settled there, as far as that outbox knows, is not declared."""
    group, before, teller = Group(), Teller(), Teller()
    before.open(30)
    before.publish(5)
    before.since = (30, 1)
    hear(group, before.status())
    group.wait(2.0, before)
    group.receive(before, 30, 1, 5)
    assert group.got == [(30, n) for n in range(1, 6)]
    teller.open(20)
    teller.publish(8)
    teller.since = (20, 1)
    if settled:
        teller.reached = ((20, settled + 1), (20, settled + 1))
    if not told:
        group.receive(teller, 20, 1, 8)
        assert group.told("before_join") == [(20, 1, 8, "begin")]
        assert group.told("declared") == []
    teller.open(later)
    hear(group, teller.status())
    assert group.told("declared") == [(20, settled + 1, 8, "superseded")]


def test_what_came_before_the_group_in_an_outbox_that_knows_where_it_joined_is_not_declared() -> None:
    group, teller = Group(), Teller()
    for epoch in (20, 30):
        teller.open(epoch)
        teller.publish(5)
    teller.since = (30, 1)
    hear(group, teller.status())
    group.wait(2.0, teller)
    group.receive(teller, 30, 1, 5)
    teller.since = (20, 1)  # however far back it counts the group
    teller.open(40)
    hear(group, teller.status())
    assert group.told("declared") == []


@pytest.mark.parametrize("by", ["producer", "another inbox"])
@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_what_came_before_the_epoch_of_joining_is_known_also_where_the_group_was_further(
    by: str, begin: str
) -> None:
    """The inbox is an older copy, and was told that the group had settled more of that epoch."""
    group, lost, teller = Group(begin=begin), Teller(), Teller()
    lost.open(30)
    lost.publish(10)
    group.receive(lost, 30, 1, 5)
    group.crash()
    if by == "producer":
        lost.release(30, 8)
        lost.since, lost.reached = (30, 1), ((30, 9), (30, 9))
        hear(group, lost.status())
    else:
        group.core.adopt(group.stream, (30, 210), (30, 9), 9, group.now)
    group.wait(1.0)
    assert group.state.epochs.position == (30, 9)
    teller.open(20)
    teller.publish(8)
    group.receive(teller, 20, 1, 8)
    assert group.told("declared") == SUPERSEDED
    assert group.told("before_join") == []


@pytest.mark.parametrize("moved", [False, True])
def test_an_opening_that_answers_from_before_the_place_of_joining_is_declared(moved: bool) -> None:
    """Which epochs came before the group joined, nobody had told, but this one did not: it counts the group, now. That
    goes as well if it has `moved` above the group before it answers."""
    group, teller, lost = Group(), Teller(), Teller()
    for epoch in (25, 30):
        lost.open(epoch)
        lost.publish(5)
    lost.release(25, 5)
    group.receive(lost, 30, 1, 5)
    group.wait(6.0, lost)
    assert group.state.epochs.joined == (30, 1)
    teller.open(20)
    teller.since = (20, 3)
    teller.publish(8)
    if moved:
        teller.open(40, teller.incarnation(20))
        teller.publish(2)
    hear(group, teller.status())
    assert (20, 3, 8) in [(epoch, first, last) for epoch, first, last, _ in group.told("declared")]


def test_an_older_epoch_than_the_one_before_the_place_of_joining_came_before() -> None:
    teller, group = Teller(), Group()
    for epoch in (10, 20, 30):
        teller.open(epoch)
        teller.publish(5)
    group.receive(teller, 30, 1, 5)
    group.wait(6.0)
    group.receive(teller, 10, 1, 5)
    assert group.told("declared") == []
    assert (10, 1, 5, "begin") in group.told("before_join")


def test_a_group_that_joined_unheard_says_so_and_declares_what_it_missed_piece_by_piece() -> None:
    """Also where its producer went back behind the place of joining, so that it never tells of all before that."""
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(6)
    teller.since = (10, 3)
    group.arrive("dc1", 30, 210, Prev(10, 70, 6), 1, 5)
    group.wait(6.0)
    (joined,) = [note for note in group.notes if note.kind == "joined"]
    assert joined.detail == {"unheard": True}
    hear(group, teller.status())
    assert group.told("declared") == [(10, 3, 6, JOINED_LATE)]
    teller.open(20)
    teller.publish(8)
    group.crash()
    hear(group, teller.status())
    assert [(gap.epoch, gap.first, gap.last) for gap in seen(group.core).missed] == []
    assert group.told("declared")[1:] == SUPERSEDED


def test_an_outbox_that_has_lost_the_epoch_says_nothing_of_what_came_before_in_it() -> None:
    """The group joins by its word, and hears later, from a copy of the outbox that was lost, that it was counted."""
    teller, copy, group = Teller(), Teller(), Group()
    teller.open(20)
    teller.publish(3)
    teller.since = (20, 1)
    group.arrive("dc1", 10, 70, None, 6, 9)
    hear(group, teller.status())
    group.wait(2.0)
    assert (group.state.epochs.joined, group.state.view.any) == ((10, 6), True)
    hear(group, teller.status())
    assert group.told("declared") == []
    group.crash()
    copy.open(10)
    copy.publish(7)
    copy.open(30)
    copy.publish(1)
    copy.since = (10, 1)
    hear(group, copy.status())
    assert group.told("declared") == [(10, 1, 5, JOINED_LATE)]
    assert [(gap.epoch, gap.first, gap.last) for gap in seen(group.core).missed] == [(10, 1, 5)]
    hear(group, copy.status())
    assert len(group.told("declared")) == 1


def test_a_group_that_was_told_where_it_is_counted_from_does_not_join_unheard() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(6)
    teller.release(10, 3)
    hear(group, teller.status())
    group.receive(teller, 10, 5, 6)
    group.wait(6.0, teller)
    (joined,) = [note for note in group.notes if note.kind == "joined"]
    assert joined.detail is None


def test_what_a_group_had_settled_in_another_history_is_not_settled_in_this_one() -> None:
    """The inbox was lost, and so was the outbox, whose clock went back: what it publishes lies between epochs that the
    group had dealt with."""
    lost, teller, group = Teller(), Teller(), Group()
    for epoch in (10, 30):
        lost.open(epoch)
        lost.publish(10)
    lost.reached = (30, 6), (30, 6)
    group.receive(lost, 10, 8, 8)
    hear(group, lost.status())
    group.wait(2.0)
    teller.open(20)
    teller.publish(10)
    teller.release(20, 2)
    teller.since = (20, 1)
    hear(group, teller.status())
    group.wait(8.0, teller)
    behind = [(note.detail, note.epoch, note.last) for note in group.notes if note.kind == "behind"]
    assert all(epoch != 20 for _, epoch, _ in behind), behind
    told = [(20, first, last) for epoch, first, last, _ in group.told("declared") if epoch == 20]
    given = {seq for epoch, seq in group.got if epoch == 20}
    assert given | {n for _, first, last in told for n in range(first, last + 1)} == set(range(1, 11))


def test_a_status_that_contradicts_what_was_finished_is_a_conflict_that_says_how_far_the_group_is() -> None:
    teller, group = gone_back()
    teller.epochs[0][3] = 7
    hear(group, teller.status())
    group.wait(1.0)
    (conflict,) = [note for note in group.notes if note.kind == "conflict" and note.epoch == 20]
    assert (conflict.incarnation, conflict.detail) == (140, {"known": [10, f"{70:016x}", 10], "entered": 30})
    assert len([epoch for _, epoch, _ in seen(group.core).conflicts if epoch == 20]) == 1


@pytest.mark.parametrize("arrives", [True, False])
def test_a_copy_from_before_the_group_was_removed_says_what_it_missed(arrives: bool) -> None:
    """The group joins by the word of an outbox that counts it no longer, and hears later from an older copy of it."""
    teller, copy, group = Teller(), Teller(), Group()
    teller.open(10)
    teller.publish(6)
    teller.release(10, 6)
    teller.open(20)
    teller.publish(3)
    if arrives:
        group.receive(teller, 20, 1, 3)
    hear(group, teller.status())
    group.wait(6.0)
    assert group.state.epochs.joined == (20, 1)
    hear(group, teller.status())
    assert group.told("declared") == []
    group.crash()
    copy.open(10)
    copy.publish(6)
    copy.open(30)
    copy.publish(1)
    copy.since = (10, 4)
    hear(group, copy.status())
    assert group.told("declared") == [(10, 4, 6, JOINED_LATE)]
