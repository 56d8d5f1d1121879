"""The gate before a newly opened epoch, and who is fenced, on a simulated clock."""

from __future__ import annotations

from itertools import permutations
from math import inf

import pytest

from reliamsg.message import Stream
from reliamsg.protocol.horizon import FAR_MS
from reliamsg.protocol.sender.fencing import HELLO_EVERY_S, MAX_CONFLICTS, ROOM, Fence, Verdict
from reliamsg.wire.limits import MAX_EPOCH

ORDERS = Stream("p", "orders")
CHAIN = [(90, 9), (95, 8)]


def fence(groups: list[str] | None = None, timeout: float = 1.0) -> Fence:
    return Fence(100, 7, ["billing", "audit"] if groups is None else groups, timeout)


def test_without_named_groups_or_with_a_timeout_of_0_the_gate_is_open() -> None:
    assert fence([]).verdict(0.0) is Verdict.SEND
    assert fence(timeout=0.0).verdict(0.0) is Verdict.SEND
    assert fence([]).next_deadline(0.0) == inf


def test_the_timeout_starts_with_the_first_connection() -> None:
    gate = fence()
    assert gate.verdict(1_000.0) is Verdict.WAIT
    gate.connected(1_000.0)
    assert gate.verdict(1_000.9) is Verdict.WAIT
    gate.connected(1_000.9)
    assert gate.verdict(1_001.0) is Verdict.SEND


def test_the_gate_opens_when_all_named_groups_have_answered() -> None:
    gate = fence()
    gate.connected(0.0)
    gate.reported("billing", ORDERS, (95, 8), CHAIN, 0.1, named=True)
    gate.answered("billing")
    assert gate.verdict(0.1) is Verdict.WAIT
    gate.answered("stranger")
    assert gate.verdict(0.1) is Verdict.WAIT
    gate.reported("audit", ORDERS, (0, 0), CHAIN, 0.2, named=True)
    gate.answered("audit")
    assert gate.verdict(0.2) is Verdict.SEND


def test_a_group_that_is_dropped_is_not_waited_for() -> None:
    gate = fence()
    gate.connected(0.0)
    gate.answered("billing")
    gate.dropped("audit")
    assert gate.verdict(0.0) is Verdict.SEND


def test_hellos_go_out_on_connecting_and_until_the_gate_opens() -> None:
    gate = fence()
    assert not gate.hello_due(0.0)
    gate.connected(0.0)
    sent = []
    now: float | None = 0.0
    while now is not None:
        if gate.hello_due(now):
            sent.append(now)
        if gate.verdict(now) is Verdict.SEND:
            break
        now = gate.next_deadline(now)
    assert sent == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert gate.next_deadline(1.0) == inf


def test_the_last_deadline_is_when_the_waiting_ends() -> None:
    gate = fence(timeout=0.1)
    gate.connected(0.0)
    assert gate.hello_due(0.0)
    assert gate.next_deadline(0.0) == 0.1
    assert gate.verdict(0.1) is Verdict.SEND


def test_a_hello_goes_out_at_every_connection_though_the_gate_is_open() -> None:
    gate = fence([])
    gate.connected(0.0)
    assert gate.hello_due(0.0)
    assert not gate.hello_due(100.0)
    gate.connected(200.0)
    assert gate.hello_due(200.0)


def test_a_higher_epoch_is_renumbered_above_once_a_twin_has_had_its_time() -> None:
    gate = fence()
    gate.connected(0.0)
    conflict = gate.reported("billing", ORDERS, (120, 5), CHAIN, 0.4, named=True)
    assert conflict is not None
    assert (conflict.group, conflict.epoch, conflict.incarnation) == ("billing", 120, 5)
    assert gate.hello_due(0.4)
    gate.reported("audit", ORDERS, (110, 4), CHAIN, 0.5, named=True)
    gate.answered("billing")
    gate.answered("audit")
    assert gate.verdict(1.39) is Verdict.WAIT
    assert gate.verdict(1.4) is Verdict.RENUMBER
    assert gate.above == 120
    gate.renumbered(121, 70)
    assert gate.verdict(1.4) is Verdict.SEND
    assert gate.next_deadline(1.4) == inf or gate.hello_due(1.4)


def test_what_an_earlier_opening_learned_counts_although_no_group_answers() -> None:
    """A twin has its time even where groups have none."""
    for timeout, decided in ((5.0, 15.0), (0.0, 11.0)):
        gate = Fence(100, 7, {"billing"}, timeout, surpassed_by=120)
        assert gate.verdict(0.0) is Verdict.WAIT
        gate.connected(10.0)
        assert gate.next_deadline(10.5) <= decided
        assert gate.verdict(decided - 0.01) is Verdict.WAIT
        assert gate.verdict(decided) is Verdict.RENUMBER
        assert gate.above == 120


def test_what_an_earlier_opening_learned_is_over_once_everything_is_above() -> None:
    gate = Fence(121, 7, set(), 5.0, surpassed_by=120)
    assert gate.verdict(0.0) is Verdict.SEND
    gate = Fence(121, 7, set(), 5.0, lowest=90, surpassed_by=120)
    assert gate.verdict(0.0) is Verdict.WAIT


def test_another_incarnation_of_the_own_epoch_counts_as_a_higher_one() -> None:
    gate = fence()
    gate.connected(0.0)
    conflict = gate.reported("billing", ORDERS, (100, 6), CHAIN, 0.0, named=True)
    assert conflict is not None
    assert gate.verdict(1.0) is Verdict.RENUMBER
    assert gate.above == 100


@pytest.mark.parametrize(("entered", "moves"), [(49, False), (60, True), (99, True)])
def test_an_unknown_epoch_above_one_that_was_never_offered_counts_as_a_higher_one(
    entered: int, moves: bool
) -> None:
    """An earlier opening, whose clock was behind, stored messages that would be behind the group."""
    chain = [(40, 4), (50, 5)]
    gate = Fence(100, 7, ["billing"], 1.0, lowest=50)
    gate.connected(0.0)
    assert gate.reported("billing", ORDERS, (entered, 6), chain, 0.0, named=True) is not None
    gate.answered("billing")
    assert gate.verdict(1.0) is (Verdict.RENUMBER if moves else Verdict.SEND)
    assert gate.above == (entered if moves else 0)
    gate.renumbered(101, 7)
    assert gate.reported("billing", ORDERS, (entered, 6), [(40, 4), (101, 7)], 1.0, named=True) is None
    assert gate.verdict(1.0) is Verdict.SEND


def test_what_was_offered_stays_where_it_is() -> None:
    gate = Fence(100, 7, ["billing"], 1.0, lowest=50)
    gate.began(100)
    gate.connected(0.0)
    gate.reported("billing", ORDERS, (60, 6), [(40, 4), (50, 5)], 0.0, named=True)
    gate.answered("billing")
    assert gate.verdict(0.0) is Verdict.SEND


def test_a_group_that_entered_this_very_epoch_is_no_conflict() -> None:
    gate = fence()
    assert gate.reported("billing", ORDERS, (100, 7), CHAIN, 0.0, named=True) is None
    assert gate.above == 0


def test_a_higher_epoch_that_shows_up_later_closes_the_gate_again() -> None:
    gate = fence()
    gate.connected(0.0)
    assert gate.verdict(1.0) is Verdict.SEND
    gate.reported("billing", ORDERS, (120, 5), CHAIN, 50.0, named=True)
    assert gate.verdict(50.0) is Verdict.WAIT
    assert gate.hello_due(50.0)
    assert gate.verdict(51.0) is Verdict.RENUMBER
    gate.renumbered(121, 70)
    assert gate.verdict(51.0) is Verdict.SEND
    assert gate.reported("billing", ORDERS, (121, 70), [*CHAIN, (121, 70)], 52.0, named=True) is None


def test_a_group_that_is_not_named_is_believed_nothing_but_reported() -> None:
    gate = fence()
    gate.connected(0.0)
    assert gate.reported("stranger", ORDERS, (120, 5), CHAIN, 0.0, named=False) is not None
    assert gate.above == 0
    assert gate.verdict(1.0) is Verdict.SEND


def test_no_epoch_is_renumbered_beyond_the_largest() -> None:
    gate = fence()
    gate.connected(0.0)
    assert gate.reported("billing", ORDERS, (MAX_EPOCH, 5), CHAIN, 0.0, named=True) is not None
    assert gate.above == 0


@pytest.mark.parametrize(
    ("entered", "clashes"),
    [
        ((0, 0), False),
        ((95, 8), False),
        ((95, 3), True),  # the epoch is known, the incarnation another
        ((97, 3), True),  # unknown, in the middle of what is known
        ((50, 3), False),  # older than what the chain still tells
    ],
)
def test_older_epochs_are_held_against_the_chain(entered: tuple[int, int], clashes: bool) -> None:
    gate = fence()
    assert (gate.reported("billing", ORDERS, entered, CHAIN, 0.0, named=True) is not None) is clashes
    assert gate.above == 0


def test_each_conflict_is_reported_once_and_so_many_at_most() -> None:
    gate = fence([])
    assert gate.reported("billing", ORDERS, (95, 3), CHAIN, 0.0, named=True) is not None
    assert gate.reported("billing", ORDERS, (95, 3), CHAIN, 0.0, named=True) is None
    reported = sum(
        gate.reported(f"g{i}", ORDERS, (95, 3), CHAIN, 0.0, named=True) is not None for i in range(500)
    )
    assert reported == MAX_CONFLICTS - 1


# -- twins ----------------------------------------------------------------------------------------------------


def test_the_own_status_is_no_twin() -> None:
    gate = fence([])
    gate.twin_reported(100, 7, 0.0)
    assert gate.verdict(0.0) is Verdict.SEND
    assert not gate.hello_due(0.0)


def test_a_timeout_of_0_lets_nothing_be_sent_below_what_a_group_has_entered() -> None:
    gate = fence(timeout=0.0)
    gate.connected(0.0)
    assert gate.verdict(5.0) is Verdict.SEND
    assert gate.reported("billing", ORDERS, (120, 5), CHAIN, 5.0, named=True) is not None
    assert gate.hello_due(5.0)
    assert gate.verdict(5.9) is Verdict.WAIT, "a twin has a moment to answer"
    assert gate.verdict(6.0) is Verdict.RENUMBER
    gate.renumbered(121, 70)
    assert gate.verdict(6.0) is Verdict.SEND


@pytest.mark.parametrize("twin", [(101, 1), (100, 8)])
def test_a_higher_twin_fences(twin: tuple[int, int]) -> None:
    gate = fence()
    gate.connected(0.0)
    gate.twin_reported(*twin, 0.1)
    assert gate.verdict(0.1) is Verdict.FENCED
    assert gate.fenced_by == twin
    assert gate.verdict(1e9) is Verdict.FENCED


def test_a_lower_twin_is_told_so_often_and_not_more() -> None:
    gate = fence([])
    gate.connected(0.0)
    assert gate.hello_due(0.0)
    hellos = 0
    for tick in range(100):
        now = tick / 100
        gate.twin_reported(99, 99, now)
        hellos += gate.hello_due(now)
    assert hellos == 1.0 / HELLO_EVERY_S - 1
    assert gate.verdict(1.0) is Verdict.SEND


def test_of_two_twins_exactly_one_is_fenced_in_whatever_order_they_hear_each_other() -> None:
    for order in permutations(["a", "b", "a", "b"]):
        gates = {"a": Fence(100, 7, [], 1.0), "b": Fence(103, 2, [], 1.0)}
        for hearing in order:
            other = gates["b" if hearing == "a" else "a"]
            gates[hearing].twin_reported(other.epoch, other.incarnation, 0.0)
        assert gates["a"].verdict(0.0) is Verdict.FENCED
        assert gates["b"].verdict(0.0) is Verdict.SEND


def test_a_restored_outbox_is_fenced_where_the_owner_of_what_groups_entered_is_alive() -> None:
    """The whole dialogue: restored below a living twin, which hears the hello and answers."""
    living, restored = Fence(120, 5, [], 1.0), fence()
    living.connected(0.0)
    assert living.hello_due(0.0)
    restored.connected(10.0)
    assert restored.hello_due(10.0)
    restored.reported("billing", ORDERS, (120, 5), CHAIN, 10.1, named=True)
    living.twin_reported(restored.epoch, restored.incarnation, 10.1)
    assert living.hello_due(10.1)
    restored.twin_reported(living.epoch, living.incarnation, 10.2)
    assert restored.verdict(10.2) is Verdict.FENCED
    assert living.verdict(10.2) is Verdict.SEND


# -- epochs far ahead -----------------------------------------------------------------------------------------

WALL_MS = 1_000
FAR = WALL_MS + FAR_MS + 1


def test_one_made_up_state_with_a_far_epoch_costs_a_moment() -> None:
    """The group that is named is asked, and tells what it has really entered."""
    gate = fence(["billing"])
    gate.connected(0.0)
    gate.answered("billing")
    assert gate.verdict(0.0) is Verdict.SEND
    assert gate.reported("billing", ORDERS, (FAR, 5), CHAIN, 5.0, WALL_MS, named=True) is not None
    assert gate.verdict(5.0) is Verdict.WAIT
    assert gate.hello_due(5.0)
    gate.reported("billing", ORDERS, (95, 8), CHAIN, 5.1, WALL_MS, named=True)
    assert gate.verdict(5.1) is Verdict.SEND
    assert (gate.above, gate.fenced_by) == (0, None)


@pytest.mark.parametrize("epoch", [FAR, MAX_EPOCH, 2**63 - 2**32])
def test_one_that_nobody_contradicts_nor_repeats_is_forgotten(epoch: int) -> None:
    gate = fence(["billing"])
    gate.connected(0.0)
    gate.answered("billing")
    gate.reported("billing", ORDERS, (epoch, 5), CHAIN, 5.0, WALL_MS, named=True)
    assert gate.next_deadline(5.0) < inf
    assert gate.verdict(5.9) is Verdict.WAIT
    assert gate.verdict(6.0) is Verdict.SEND
    assert (gate.above, gate.fenced_by) == (0, None)


def test_a_claim_that_outlasts_the_timeout_is_waited_for_without_being_looked_at_all_the_time() -> None:
    gate = fence()
    gate.connected(0.0)
    assert gate.hello_due(0.0)
    gate.reported("billing", ORDERS, (100 + FAR_MS + 1, 5), CHAIN, 0.9, named=True)
    now, looked = 0.9, 0
    while gate.verdict(now) is Verdict.WAIT:
        gate.hello_due(now)
        at = gate.next_deadline(now)
        assert at < inf
        assert at > now
        now, looked = at, looked + 1
    assert 1.9 <= now < 2.0
    assert looked < 10


def test_a_claim_whose_time_is_over_waits_for_the_verdict_that_could_not_be_carried_out() -> None:
    """The disk was full: nobody looks before it is tried again, and then at once."""
    gate = fence()
    gate.connected(0.0)
    assert gate.hello_due(0.0)
    gate.reported("billing", ORDERS, (100 + FAR_MS + 1, 5), CHAIN, 0.9, named=True)
    assert gate.hello_due(0.9)
    tried_again = 2.5
    now = 0.9
    while (at := gate.next_deadline(now, tried_again)) != tried_again:
        assert at < inf
        assert at > now
        now = at
        gate.hello_due(now)
    assert gate.verdict(tried_again) is Verdict.SEND


def test_a_far_epoch_that_a_group_says_again_is_moved_above() -> None:
    gate = fence(["billing"])
    gate.connected(0.0)
    for at in (0.0, 0.3, 0.6):
        gate.reported("billing", ORDERS, (FAR, 5), CHAIN, at, WALL_MS, named=True)
    gate.answered("billing")
    assert gate.verdict(0.9) is Verdict.WAIT
    assert gate.verdict(1.0) is Verdict.WAIT  # the twin that has that epoch may answer
    assert gate.verdict(2.0) is Verdict.RENUMBER
    assert gate.above == FAR


@pytest.mark.parametrize(
    ("epoch", "verdict"),
    [
        (MAX_EPOCH - ROOM - 1, Verdict.RENUMBER),
        (MAX_EPOCH - ROOM, Verdict.FENCED),
        (MAX_EPOCH - 1, Verdict.FENCED),
        (MAX_EPOCH, Verdict.FENCED),
    ],
)
def test_a_group_that_entered_what_no_producer_can_exceed_fences(epoch: int, verdict: Verdict) -> None:
    gate = fence(["billing"])
    gate.connected(0.0)
    for at in (0.0, 0.3):
        gate.reported("billing", ORDERS, (epoch, 5), CHAIN, at, WALL_MS, named=True)
    gate.answered("billing")
    assert gate.verdict(1.0) in (Verdict.FENCED, Verdict.WAIT)
    assert gate.verdict(2.0) is verdict
    assert gate.fencing_group == ("billing" if verdict is Verdict.FENCED else "")


def test_what_is_signed_is_believed_at_once() -> None:
    gate = Fence(100, 7, ["billing"], 1.0, signed=True)
    gate.connected(0.0)
    gate.reported("billing", ORDERS, (FAR, 5), CHAIN, 0.0, WALL_MS, named=True)
    assert gate.above == FAR
    gate.reported("billing", ORDERS, (MAX_EPOCH, 5), CHAIN, 0.0, WALL_MS, named=True)
    assert gate.verdict(0.0) is Verdict.FENCED


def test_a_far_hello_in_its_own_name_fences_nobody_and_is_reported_once() -> None:
    gate = fence()
    found = gate.twin_reported(FAR, 5, 0.0, WALL_MS)
    assert found is not None
    assert found.group == ""
    assert gate.twin_reported(FAR, 5, 0.0, WALL_MS) is None
    assert gate.fenced_by is None
    assert gate.twin_reported(FAR - 1, 5, 0.0, WALL_MS) is None
    assert gate.fenced_by == (FAR - 1, 5)


def test_claims_of_a_group_that_is_dropped_are_forgotten() -> None:
    gate = fence(["billing"])
    gate.connected(0.0)
    gate.reported("billing", ORDERS, (FAR, 5), CHAIN, 0.0, WALL_MS, named=True)
    gate.dropped("billing")
    assert gate.verdict(0.0) is Verdict.SEND
