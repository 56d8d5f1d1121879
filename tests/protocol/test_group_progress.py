"""What groups have acknowledged: values that only rise, and tables that don't grow without bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.message import Stream
from reliamsg.protocol.sender import group_progress
from reliamsg.protocol.sender.group_progress import (
    FORGET_UNNAMED_S,
    MAX_UNNAMED_PER_STREAM,
    START,
    GroupTable,
)

ORDERS = Stream("p", "orders")
AUDIT = Stream("p", "audit")
NONE = (0, 0)


def table(tail: tuple[int, int] = (7, 101)) -> GroupTable:
    made = GroupTable()
    made.extend(ORDERS, tail)
    return made


def test_a_stream_without_groups_is_never_settled() -> None:
    made = GroupTable()
    assert not made.settled(ORDERS)
    made.extend(ORDERS, START)
    assert not made.settled(ORDERS)
    assert made.slowest(ORDERS) is None


def test_a_named_group_that_was_never_heard_holds_everything_from_since_on() -> None:
    made = table()
    made.name(ORDERS, "billing", (7, 50))
    slowest = made.slowest(ORDERS)
    assert slowest is not None
    assert (slowest.group, slowest.position, slowest.reported_at) == ("billing", (7, 50), None)
    assert not made.settled(ORDERS)
    assert [(stream, member.group) for stream, member in made.lagging()] == [(ORDERS, "billing")]


def test_the_slowest_named_group_counts_and_heard_ones_do_not() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    made.name(ORDERS, "audit", START, position=(6, 12))
    assert made.on_report(ORDERS, "billing", (7, 90), (7, 1), 1.0)
    assert made.on_report(ORDERS, "stranger", (5, 2), (5, 1), 1.0)
    slowest = made.slowest(ORDERS)
    assert slowest is not None
    assert (slowest.group, slowest.position) == ("audit", (6, 12))
    assert made.named(ORDERS) == {"audit": START, "billing": START}
    assert [member.group for member in made.members(ORDERS)] == ["audit", "billing", "stranger"]


def test_settled_needs_all_groups_named_or_heard() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    made.on_report(ORDERS, "billing", (7, 101), (7, 1), 1.0)
    assert made.settled(ORDERS)
    made.on_report(ORDERS, "stranger", (7, 3), (7, 1), 1.0)
    assert not made.settled(ORDERS)
    assert list(made.lagging()) == []
    made.on_report(ORDERS, "stranger", (7, 101), (7, 1), 1.0)
    assert made.settled(ORDERS)
    made.extend(ORDERS, (8, 2))
    assert not made.settled(ORDERS)


def test_an_older_state_changes_nothing() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    assert made.on_report(ORDERS, "billing", (7, 60), (7, 1), 1.0)
    assert not made.on_report(ORDERS, "billing", (7, 60), (7, 1), 2.0)
    assert not made.on_report(ORDERS, "billing", (6, 900), (6, 4), 3.0)
    member = made.find(ORDERS, "billing")
    assert member is not None
    assert (member.position, member.entered, member.reported_at) == ((7, 60), (7, 1), 3.0)


def test_a_position_beyond_the_tail_is_not_believed() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    assert not made.on_report(ORDERS, "billing", (7, 102), (7, 1), 1.0)
    assert not made.on_report(ORDERS, "billing", (2**40, 1), (2**40, 1), 1.0)
    assert made.find(ORDERS, "billing").position == START  # type: ignore[union-attr]
    assert made.take_moved() == {}


def test_states_of_streams_that_do_not_exist_are_ignored() -> None:
    made = table()
    assert not made.on_report(AUDIT, "billing", (7, 1), NONE, 1.0)
    assert made.members(AUDIT) == []


def test_what_moved_is_to_be_stored_once_and_can_be_put_back() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    made.on_report(ORDERS, "billing", (7, 5), NONE, 1.0)
    made.on_report(ORDERS, "stranger", (7, 5), NONE, 1.0)
    moved = made.take_moved()
    assert moved == {(ORDERS, "billing"): (7, 5)}
    made.on_report(ORDERS, "billing", (7, 9), NONE, 1.0)
    made.put_back(moved)
    assert made.take_moved() == {(ORDERS, "billing"): (7, 9)}
    assert made.take_moved() == {}
    made.drop(ORDERS, "billing")
    made.put_back(moved)
    assert made.take_moved() == {}


def test_a_group_has_settled_nothing_of_what_was_renumbered() -> None:
    """It knows a history in which that was sent under the old numbers. Where it counts from moves with the numbers."""
    made = table((7, 3))
    made.name(ORDERS, "far", (5, 4))
    made.name(ORDERS, "near", (5, 4))
    made.name(ORDERS, "elsewhere", (4, 99))
    made.name(ORDERS, "early", (4, 99))
    made.on_report(ORDERS, "early", (7, 2), (7, 1), 1.0)
    made.on_report(ORDERS, "far", (5, 31), (5, 1), 1.0)
    made.on_report(ORDERS, "near", (5, 6), (5, 1), 1.0)
    made.extend(ORDERS, (101, 3))
    made.renumber(ORDERS, {5: (100, 10), 7: (101, 2)})
    found = {m.group: (m.since, m.position) for m in made.members(ORDERS)}
    assert found == {
        "far": ((100, 4), (100, 4)), "near": ((100, 4), (100, 4)), "elsewhere": ((4, 99), (4, 99)),
        "early": ((4, 99), (100, 1)),
    }  # fmt: skip
    assert made.take_moved() == {
        (ORDERS, "far"): (100, 4), (ORDERS, "near"): (100, 4), (ORDERS, "early"): (100, 1),
    }  # fmt: skip


def test_a_heard_group_that_is_named_keeps_what_it_acknowledged() -> None:
    made = table()
    made.on_report(ORDERS, "billing", (7, 80), (7, 1), 1.0)
    made.name(ORDERS, "billing", (7, 101))
    member = made.find(ORDERS, "billing")
    assert member is not None
    assert (member.named, member.since, member.position) == (True, (7, 101), (7, 101))


def test_naming_again_changes_neither_since_nor_position() -> None:
    made = table()
    made.name(ORDERS, "billing", (7, 10), position=(7, 40))
    made.name(ORDERS, "billing", (7, 30))
    member = made.find(ORDERS, "billing")
    assert member is not None
    assert (member.since, member.position) == ((7, 10), (7, 40))


def test_dropping_is_for_named_groups() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    made.on_report(ORDERS, "stranger", (7, 1), NONE, 0.0)
    assert made.drop(ORDERS, "billing")
    assert not made.drop(ORDERS, "billing")
    assert not made.drop(ORDERS, "stranger")


def test_a_heard_group_that_is_not_named_any_more_is_told_of_the_tail_until_it_is_silent() -> None:
    made = table()
    made.name(ORDERS, "billing", (7, 90))
    made.name(ORDERS, "audit", START)
    made.on_report(ORDERS, "billing", (7, 41), (7, 1), 1.0)
    assert made.drop(ORDERS, "audit")
    assert made.find(ORDERS, "audit") is None, "nothing was ever heard of it"
    assert made.drop(ORDERS, "billing")
    assert (made.named(ORDERS), made.slowest(ORDERS), made.take_moved()) == ({}, None, {})
    assert not made.settled(ORDERS)
    made.on_report(ORDERS, "billing", (7, 101), (7, 1), 2.0)
    assert made.settled(ORDERS)
    assert made.forget(2.0 + FORGET_UNNAMED_S) == 1
    assert made.members(ORDERS) == []
    assert not made.drop(AUDIT, "billing")
    assert made.slowest(ORDERS) is None


def test_made_up_groups_are_bounded_and_silent_ones_make_room() -> None:
    made = table()
    made.name(ORDERS, "billing", START)
    for i in range(3 * MAX_UNNAMED_PER_STREAM):
        made.on_report(ORDERS, f"made-up-{i}", (7, 1), NONE, 10.0)
    assert len(made.members(ORDERS)) == MAX_UNNAMED_PER_STREAM + 1
    assert made.on_report(ORDERS, "billing", (7, 2), NONE, 11.0)
    assert not made.on_report(ORDERS, "real", (7, 2), NONE, 10.0 + FORGET_UNNAMED_S - 1)
    assert made.on_report(ORDERS, "real", (7, 2), NONE, 10.0 + FORGET_UNNAMED_S)
    assert [member.group for member in made.members(ORDERS)] == ["billing", "real"]


def test_heard_groups_of_all_streams_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_progress, "MAX_UNNAMED", 5)
    made = table()
    made.extend(AUDIT, (7, 2))
    for i in range(4):
        made.on_report(ORDERS, f"g{i}", (7, 1), NONE, 0.0)
        made.on_report(AUDIT, f"g{i}", (7, 1), NONE, 0.0)
    assert len(made.members(ORDERS)) + len(made.members(AUDIT)) == 5
    assert made.forget(FORGET_UNNAMED_S) == 5
    assert made.on_report(AUDIT, "g9", (7, 1), NONE, FORGET_UNNAMED_S) is True


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_lost_repeated_and_reordered_states_come_to_the_same(states: list[tuple[str, int, int]], rnd) -> None:  # type: ignore[no-untyped-def]
    """What a table says in the end depends on the highest state of each group that came through, on nothing else."""
    tail = (3, 10)

    def run(order: list[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
        made = table(tail)
        made.name(ORDERS, "a", START)
        for at, (group, epoch, number) in enumerate(order):
            before = made.find(ORDERS, group)
            low = before.position if before is not None else START
            made.on_report(ORDERS, group, (epoch, number), NONE, float(at))
            assert made.find(ORDERS, group).position >= low  # type: ignore[union-attr]
        return {member.group: member.position for member in made.members(ORDERS)}

    again = states + states[: len(states) // 2]
    rnd.shuffle(again)
    assert run(states) == run(again)


# -- what a new inbox of a group has to know ----------------------------------------------------------------


def reached(made: GroupTable) -> tuple[tuple[int, int], tuple[int, int]] | None:
    member = made.find(ORDERS, "billing")
    return None if member is None else member.reached


def test_a_group_that_told_nothing_has_reached_nothing() -> None:
    made = table()
    made.name(ORDERS, "billing", (7, 50))
    assert reached(made) is None
    made.on_report(ORDERS, "billing", START, NONE, 1.0, 0)
    assert reached(made) is None


def test_what_was_stored_of_a_group_is_what_it_has_reached() -> None:
    made = table()
    made.name(ORDERS, "billing", (7, 50), position=(7, 60))
    assert reached(made) == ((7, 60), (7, 60))


def test_marks_reach_no_further_than_what_was_published_by_then() -> None:
    made = table(tail=(7, 101))
    made.name(ORDERS, "billing", START)
    made.on_report(ORDERS, "billing", (7, 20), (7, 1), 1.0, 90)
    assert reached(made) == ((7, 20), (7, 90))
    made.on_report(ORDERS, "billing", (7, 30), (7, 1), 2.0, 2_001)
    made.extend(ORDERS, (7, 501))
    assert reached(made) == ((7, 30), (7, 101))
    made.on_report(ORDERS, "billing", (7, 10), (7, 1), 3.0, 20)
    assert reached(made) == ((7, 30), (7, 101))


def test_what_a_group_told_before_it_was_named_counts() -> None:
    made = table()
    made.on_report(ORDERS, "billing", (7, 20), (7, 1), 1.0, 40)
    made.name(ORDERS, "billing", (7, 101))
    assert reached(made) == ((7, 20), (7, 40))
