"""An inbox that takes the place of one that was lost: what may have been handed out before comes flagged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.message import Prev
from reliamsg.protocol.announced import Position
from tests.protocol.events_tools import seen
from tests.protocol.status_tools import STREAM, Group, Teller


def told(published: int, position: int, mark: int) -> Teller:
    """A producer that heard from the group how far it was."""
    teller = Teller()
    teller.open(10)
    teller.publish(published)
    teller.since, teller.reached = (10, 1), ((10, position), (10, mark))
    return teller


def test_what_the_one_before_may_have_handed_out_is_flagged() -> None:
    teller, group = told(30, 11, 21), Group()
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(1, 31)]
    assert group.flagged == {(10, n) for n in range(1, 21)}


@pytest.mark.parametrize(("published", "known"), [(30, [10, 31]), (10, None)])
def test_the_journal_says_from_where_to_where_the_inbox_is_behind(
    published: int, known: list[int] | None
) -> None:
    """And what else there was by then: of that, too, the one before may have settled what it never told."""
    teller, group = told(published, 11, 11), Group()
    group.hear(teller.status())
    group.wait(2.0)
    (note,) = [note for note in group.notes if note.kind == "behind"]
    detail = {"from": [0, 1]} if known is None else {"from": [0, 1], "existed": known}
    assert (note.epoch, note.last, note.detail) == (10, 11, detail)


def test_what_an_inbox_had_settled_beyond_what_an_older_copy_of_the_outbox_knows_is_told_as_well() -> None:
    """Both were put back; the epoch went on, and the producer was told so by the inbox that is gone."""
    teller, group = told(10, 16, 16), Group()
    teller.open(20)
    teller.publish(5)
    group.arrive("dc1", 10, 70, None, 14, 18)
    group.hear(teller.status())
    group.wait(4.0, teller)
    (note,) = [note for note in group.notes if note.kind == "behind"]
    assert (note.epoch, note.last, (note.detail or {})["from"]) == (10, 16, [0, 1])
    assert group.got[0] == (10, 14) or (10, 1) in group.got


def test_what_the_group_left_includes_what_this_inbox_had_of_it_and_an_older_copy_of_the_outbox_has_lost() -> (
    None
):
    """The group is in the next epoch. Of the one before, the outbox has 10 messages, and this inbox delivered 12, which
    count as acknowledged (S9)."""
    teller, group = told(10, 1, 1), Group()
    group.slow = 100
    group.hear(teller.status())
    group.arrive("dc1", 10, 70, None, 1, 12)
    group.wait(4.0)
    teller.open(20)
    teller.publish(5)
    teller.reached = (20, 1), (20, 1)
    assert group.got == [(10, n) for n in range(1, 13)]
    group.hear(teller.status())
    group.wait(4.0, teller)
    behind = [(note.epoch, note.last) for note in group.notes if note.kind == "behind"]
    assert behind[-1] == (10, 13)
    assert group.got[12:] == [(20, n) for n in range(1, 6)]


@pytest.mark.parametrize("settled", [0, 2])
def test_where_other_epochs_begin_later_the_journal_says_where_the_inbox_was(settled: int) -> None:
    """An older copy of the outbox continues in another epoch, and the group with it: what this inbox owes in its own
    epoch is not redelivered."""
    first, teller, group = Teller(), Teller(), Group()
    first.open(10)
    first.publish(4)
    group.hear(first.status())
    group.arrive("dc1", 10, 70, None, 1, 4)
    group.wait(4.0)
    for epoch in (5, 20):
        teller.open(epoch)
        teller.publish(5)
    teller.reached = (20, settled + 1), (20, settled + 1)
    group.hear(teller.status())
    group.wait(8.0, teller)
    (note,) = [note for note in group.notes if note.kind == "behind"]
    detail = {"from": [20, 1], "own": [10, 5], "existed": [20, 6]}
    assert (note.epoch, note.last, note.detail) == (20, settled + 1, detail)


def test_what_is_left_to_the_group_reaches_from_the_inbox_to_each_range() -> None:
    """The inbox has acknowledged nothing of two epochs, the second of which an older copy of the outbox does not
    know."""
    first, teller, group = Teller(), Teller(), Group()
    group.slow = 100
    for epoch in (5, 10):
        first.open(epoch)
        first.publish(4)
    group.hear(first.status())
    group.arrive("dc1", 5, first.epochs[0][1], None, 1, 4)
    group.wait(4.0)
    for epoch in (5, 20):
        teller.open(epoch)
        teller.publish(4)
    teller.reached = (20, 3), (20, 3)
    group.hear(teller.status())
    group.wait(8.0, teller)
    behind = [(note.epoch, note.last, note.detail) for note in group.notes if note.kind == "behind"]
    assert behind == [
        (5, 5, {"from": [5, 1], "existed": [20, 5]}), (20, 3, {"from": [20, 1], "own": [5, 1], "existed": [20, 5]}),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [5, 11, 16])
def test_what_was_settled_and_is_no_longer_held_is_no_gap(first: int) -> None:
    teller, group = told(30, 11, 12), Group()
    teller.release(10, first - 1)
    at_the_topic = replace(teller.status(), reached=None)
    group.hear(at_the_topic)
    group.hear(teller.status())
    group.wait(12.0, teller)
    assert group.got == [(10, n) for n in range(first, 31)]
    assert group.flagged == {(10, n) for n in range(first, 12)}
    assert [row[:3] for row in group.told("declared")] == [(10, 11, first - 1)][: first > 11]


@pytest.mark.parametrize("held", [False, True])
def test_so_it_is_where_the_group_was_in_an_epoch_that_the_outbox_has_lost(held: bool) -> None:
    """Both were put back; what the outbox still holds of before comes again."""
    teller, group = told(3, 1, 1), Group(skip_gaps=False)
    group.receive(teller, 10, 1, 1)
    if not held:
        teller.release(10, 3)
    teller.open(30)
    teller.publish(4)
    teller.reached = (20, 1), (20, 1)
    group.hear(teller.status())
    group.wait(12.0, teller)
    again = [(10, 2), (10, 3)] if held else []
    assert group.got == [(10, 1), *again, *((30, n) for n in range(1, 5))]
    assert group.flagged == set(group.got) - {(10, 1)}
    assert (group.told("declared"), group.gaps) == ([], [])


def test_of_a_stream_of_which_all_is_settled_what_comes_next_is_handed_out() -> None:
    teller, group = told(30, 31, 31), Group()
    teller.release(10, 30)
    group.hear(teller.status())
    group.wait(2.0)
    teller.open(20)
    teller.publish(5)
    group.receive(teller, 20, 1, 5)
    assert group.got == [(20, n) for n in range(1, 6)]
    assert (group.told("declared"), group.flagged) == ([], set())


def test_so_is_what_arrives_after_the_stream_was_joined_without_a_status() -> None:
    teller, group = told(30, 11, 21), Group()
    group.receive(teller, 10, 1, 5)
    group.hear(teller.status())
    group.receive(teller, 10, 6, 30)
    assert group.got == [(10, n) for n in range(1, 31)]
    assert group.flagged == {(10, n) for n in range(6, 21)}


def test_epochs_before_are_flagged_as_a_whole_and_later_ones_are_not() -> None:
    teller = told(10, 0, 0)
    teller.open(20)
    teller.publish(10)
    teller.open(30)
    teller.publish(10)
    teller.reached = (10, 4), (20, 6)
    group = Group()
    group.hear(teller.status())
    group.wait(6.0, teller)
    assert group.got == [(epoch, n) for epoch in (10, 20, 30) for n in range(1, 11)]
    assert group.flagged == {(10, n) for n in range(1, 11)} | {(20, n) for n in range(1, 6)}


def test_an_inbox_is_not_taken_for_another_by_what_it_told_itself() -> None:
    teller, group = told(30, 1, 1), Group()
    group.receive(teller, 10, 1, 20)
    committed, _, mark = group.state.committed
    teller.reached = committed, (10, mark)
    group.crash()
    group.hear(teller.status())
    group.receive(teller, 10, 21, 30)
    assert group.state.takeover.remembered is None


def test_an_old_copy_of_an_inbox_flags_what_came_after_it() -> None:
    teller, group = told(30, 1, 1), Group()
    group.receive(teller, 10, 1, 10)
    teller.reached = (10, 21), (10, 26)
    group.hear(teller.status())
    group.receive(teller, 10, 11, 30)
    assert group.got == [(10, n) for n in range(1, 31)]
    assert group.flagged == {(10, n) for n in range(11, 26)}


def test_a_group_that_was_never_there_flags_nothing() -> None:
    teller, group = told(30, 1, 1), Group()
    teller.reached = None
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert (len(group.got), group.flagged) == (30, set())


def test_marks_are_kept_over_a_crash() -> None:
    teller, group = told(30, 21, 26), Group(max_unacknowledged=5)
    group.slow = 5
    group.hear(teller.status())
    group.wait(1.5, teller)
    group.crash()
    group.wait(4.0, teller)
    assert {n for _, n in group.flagged} >= set(range(1, 26))


# -- nobody knows what the one before handed out ------------------------------------------------------------


def test_where_only_the_position_is_known_all_that_exists_is_flagged() -> None:
    """The producer was opened again, and has forgotten what the group told of its marks."""
    teller, group = told(30, 11, 11), Group()
    group.hear(teller.status())
    teller.publish(10)
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(1, 41)]
    assert group.flagged == {(10, n) for n in range(1, 31)}


# -- an inbox that reads again after another one has read ---------------------------------------------------


@pytest.mark.parametrize("held_from", [16, 21, 31])
def test_what_the_other_settled_and_the_producer_let_go_is_no_gap(held_from: int) -> None:
    teller, group = told(30, 1, 1), Group(skip_gaps=False)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 13, 14)  # held back, and settled by the other
    teller.reached = (10, 21), (10, 31)
    teller.release(10, held_from - 1)
    group.hear(teller.status())
    group.wait(30.0, teller)
    if held_from > 21:  # it was let go though the group had not settled it
        assert {(gap.first, gap.last) for gap in group.gaps} == {(21, 30)}
        held_from = 31
    assert group.got == [(10, n) for n in (*range(1, 11), *range(held_from, 31))]
    assert group.told("declared") == []
    group.crash()
    group.receive(teller, 10, 13, 14)
    assert group.got[-1] != (10, 14)


def test_so_are_epochs_that_the_other_went_through() -> None:
    teller, group = told(10, 1, 1), Group(skip_gaps=False)
    group.receive(teller, 10, 1, 5)
    for epoch in (20, 30):
        teller.open(epoch)
        teller.publish(10)
    teller.reached = (30, 4), (30, 8)
    teller.release(20, 10)
    group.hear(teller.status())
    group.wait(30.0, teller)
    assert group.got == [*((10, n) for n in range(1, 6)), *((30, n) for n in range(1, 11))]
    assert group.flagged == {(30, n) for n in range(1, 8)}
    assert (group.gaps, group.told("declared")) == ([], [])


def test_so_is_the_beginning_of_an_epoch_though_an_earlier_one_is_held() -> None:
    teller, group = told(10, 1, 1), Group(skip_gaps=False)
    group.receive(teller, 10, 1, 5)
    teller.open(20)
    teller.publish(10)
    teller.reached = (20, 8), (20, 9)
    teller.release(20, 5)  # of epoch 10 all is held
    for _ in range(10):
        group.hear(teller.status())
        group.wait(2.0, teller)
    assert group.got == [*((10, n) for n in range(1, 11)), *((20, n) for n in range(6, 11))]
    assert group.flagged == {*((10, n) for n in range(6, 11)), *((20, n) for n in (6, 7, 8))}
    assert (group.gaps, group.told("declared")) == ([], [])


def test_what_is_handed_out_meanwhile_may_still_be_acknowledged() -> None:
    teller, group = told(30, 1, 1), Group()
    group.slow = 10
    group.receive(teller, 10, 1, 5)
    assert group.state.epochs.unacknowledged == 5
    teller.reached = (10, 21), (10, 31)
    teller.release(10, 20)
    group.hear(teller.status())
    group.core.streams[group.stream].acknowledge(10, 1, 5, group.now)
    group.slow = 0
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in (*range(1, 6), *range(21, 31))]
    assert group.state.epochs.position == (10, 31)


def test_what_is_handed_out_and_was_settled_by_the_other_holds_up_no_gaps_clock() -> None:
    teller, group = told(30, 1, 1), Group(skip_gaps=False)
    group.slow = 5
    group.receive(teller, 10, 1, 5)
    group.receive(teller, 10, 26, 30)
    teller.reached = (10, 21), (10, 31)
    teller.release(10, 25)
    group.hear(teller.status())
    assert (group.state.epochs.unacknowledged, group.state.gaps.clock.target) == (0, (10, 21, 25))
    group.wait(30.0, teller)
    assert {(gap.first, gap.last) for gap in group.gaps} == {(21, 25)}


def test_what_is_handed_out_and_not_acknowledged_yet_does_not_come_again() -> None:
    teller, group = told(30, 1, 1), Group()
    group.slow = 100
    group.receive(teller, 10, 1, 15)
    assert group.state.epochs.unacknowledged == 15
    teller.reached = (10, 11), (10, 31)
    teller.release(10, 10)
    group.hear(teller.status())
    group.slow = 0
    group.wait(4.0, teller)
    group.core.streams[group.stream].acknowledge(10, 1, 15, group.now)
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(1, 31)]
    assert group.state.epochs.position == (10, 31)


def test_what_the_producer_lets_go_after_it_answered_is_no_gap_either() -> None:
    """The answer comes once; what is held then may be let go before it is asked for, since the group has settled it."""
    teller, group = told(30, 21, 21), Group(skip_gaps=False)
    teller.release(10, 10)
    group.hear(teller.status())
    group.wait(2.0)
    assert group.state.epochs.position == (10, 11)
    teller.release(10, 20)
    group.hear(replace(teller.status(), reached=None))
    group.wait(30.0, teller)
    assert group.got == [(10, n) for n in range(21, 31)]
    assert (group.gaps, group.told("declared")) == ([], [])


def test_what_was_handed_out_before_a_restart_and_was_settled_by_the_other_is_not_declared() -> None:
    """The last message of its epoch is not in the older copy, which knows that there was one."""
    teller, group = told(10, 1, 1), Group()
    group.slow = 100
    group.receive(teller, 10, 1, 10)
    group.core.streams[group.stream].acknowledge(10, 1, 9, group.now)
    teller.open(20)
    teller.publish(10)
    group.receive(teller, 20, 1, 5)
    group.commit()
    group.disk.held = [span for span in group.disk.held if span[0] != 10]
    group.crash()
    assert group.state.epochs.position == (10, 10)
    teller.reached = (20, 4), (20, 6)
    teller.release(10, 10)
    for _ in range(2):
        group.hear(teller.status())
    group.slow = 0
    group.wait(4.0, teller)
    assert group.got[-7:] == [(20, n) for n in range(4, 11)]
    assert (group.told("declared"), group.told("conflict"), seen(group.core).conflicts) == ([], [], [])


# -- a group that begins with the latest ---------------------------------------------------------------------


@pytest.mark.parametrize("arrives_first", [False, True])
def test_a_group_that_begins_with_the_latest_goes_on_where_another_inbox_of_it_was(
    arrives_first: bool,
) -> None:
    """Though something arrives, from far ahead, between the producer's answer and the moment when it takes effect."""
    teller, group = told(30, 11, 21), Group(begin="latest")
    group.hear(teller.status())
    if arrives_first:
        group.receive(teller, 10, 26, 30)
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(11, 31)]
    assert group.flagged == {(10, n) for n in range(11, 21)}
    assert group.told("declared") == []


def test_so_it_does_across_epochs() -> None:
    teller = told(10, 4, 4)
    teller.open(20)
    teller.publish(10)
    group = Group(begin="latest")
    group.hear(teller.status())
    group.receive(teller, 20, 6, 10)
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(4, 11)] + [(20, n) for n in range(1, 11)]


@pytest.mark.parametrize("crash", [False, True])
def test_what_it_began_behind_before_it_was_told_is_declared(crash: bool) -> None:
    teller, group = told(30, 11, 21), Group(begin="latest")
    group.receive(teller, 10, 26, 30)
    group.hear(replace(teller.status(), reached=None, late=True))
    if crash:
        group.crash()
    group.hear(teller.status())
    group.hear(teller.status())
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(26, 31)]
    assert group.told("declared") == [(10, 11, 25, "joined late")]


@pytest.mark.parametrize("reached", [None, ((0, 1), (10, 21))])
def test_a_group_that_is_new_begins_with_what_arrives(reached: tuple[Position, Position] | None) -> None:
    """Also where all that the producer knows of it is beyond an older copy of its outbox."""
    teller, group = told(30, 1, 1), Group(begin="latest")
    teller.reached = reached
    group.hear(teller.status())
    group.receive(teller, 10, 21, 30)
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(21, 31)]
    assert group.told("declared") == []


def test_it_does_not_begin_behind_what_is_kept_for_it_if_it_is_told_at_the_last_moment() -> None:
    teller, group = told(30, 11, 21), Group(begin="latest", gap_timeout=5.0)
    group.hear(replace(teller.status(), reached=None, consumed=True, interval=60.0))
    group.wait(5.9)
    assert group.state.epochs.current is None
    group.hear(replace(teller.status(), consumed=True))
    group.wait(4.0, teller)
    assert group.got == [(10, n) for n in range(11, 31)]


@pytest.mark.parametrize("told_by", ["producer", "inbox"])
def test_it_makes_room_where_the_outbox_has_lost_what_led_on_and_flags_what_comes_after_all(
    told_by: str,
) -> None:
    """The group was in the second epoch. The producer, an older copy, knows nothing of the first one, and no longer
    holds anything of the second one, nor counts the group."""
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(10)
    group.receive(teller, 10, 1, 6)
    copy = Teller()
    copy.open(20)
    copy.publish(15)
    copy.release(20, 15)
    if told_by == "producer":
        copy.reached = ((10, 11), (20, 9))
    else:
        group.core.adopt(STREAM, (20, 140), (10, 7), 9, group.now)
    group.hear(copy.status())
    copy.reached = None
    group.wait(10.0, copy)
    group.hear(copy.status())
    group.leave_memory()
    group.come_back()
    group.arrive("dc1", 20, 140, Prev(10, 70, 6), 1, 12)
    group.wait(1.0)
    assert group.got[6:] == [(20, n) for n in range(1, 13)]
    assert group.flagged == {(20, n) for n in range(1, 9)}
