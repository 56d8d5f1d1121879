"""Statuses that are made up, make no sense, or say too much."""

from __future__ import annotations

from dataclasses import replace

from reliamsg.message import Stream
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.receiver.epochs import MAX_EPOCHS_AHEAD
from reliamsg.protocol.receiver.group import MAX_CHAIN
from reliamsg.protocol.receiver.producer_view import MAX_KEPT, MAX_OWNERS
from tests.protocol.events_tools import seen

from .status_tools import STREAM, Group, Teller, all_of, pair


def test_a_made_up_status_with_a_high_number_ends_the_others_for_a_while_only() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    group.hear(replace(teller.status(), number=2**62, lsn=2**62, interval=1e9))
    teller.publish(10)
    for _ in range(30):
        group.hear(teller.status())
        group.wait(10.0, teller)
    assert group.got == all_of(teller)


def test_data_outweighs_a_status_that_names_another_incarnation() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    forged = Announced(STREAM, 20, 666, ((10, 70, 1, 10), (20, 666, 1, 5)), number=1)
    group.hear(forged)
    group.wait(0.5)
    assert group.state.epochs.current is not None
    teller.open(20)
    teller.publish(5)
    # It may have been entered by then, since nothing was missing before it: then it is a conflict, and reported.
    entered = group.state.epochs.current.epoch == 20
    arrival = group.receive(teller, 20, 1, 5)
    assert arrival.quarantine == entered
    assert seen(group.core).conflicts


def test_a_status_for_a_known_epoch_of_another_incarnation_is_a_conflict_and_nothing_else() -> None:
    teller, group = pair(10)
    group.receive(teller, 10, 1, 10)
    group.hear(Announced(STREAM, 10, 666, ((10, 666, 1, 1000),), number=1))
    group.wait(1.0)
    assert group.asked == []
    assert not group.state.view.any
    assert [reason for _, _, reason in seen(group.core).conflicts] == ["another incarnation of a known epoch"]


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
    heard = group.state.view
    assert heard is not None
    assert len(heard.owners) <= MAX_OWNERS
    assert len(heard.waiting) <= 2 * MAX_OWNERS
    assert all(
        len(owner.latest.chain) <= MAX_KEPT and not owner.latest.removed for owner in heard.owners.values()
    )
    assert len(group.state.epochs.live) <= 1 + MAX_EPOCHS_AHEAD
    assert group.told("declared")[0] == (1, 1, 2, "removed")
