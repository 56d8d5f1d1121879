"""Where groups that begin with the latest message start, as far as their inboxes know."""

from __future__ import annotations

from reliamsg.message import Stream
from reliamsg.simulation.starts import Start, Starts

ORDERS, BILLS = Stream("p", "orders"), Stream("p", "bills")


def test_a_group_starts_once() -> None:
    starts = Starts()
    starts.note("g", ORDERS, Start(3, 10, at=1.0))
    starts.note("g", ORDERS, Start(5, 10, at=2.0))
    assert starts.get("g", ORDERS) == Start(3, 10, at=1.0)
    assert starts.get("h", ORDERS) is starts.get("g", BILLS) is None


def test_a_start_goes_with_the_inbox_and_comes_back_with_its_copy() -> None:
    starts = Starts()
    starts.note("g", ORDERS, Start(3, 10, at=1.0))
    starts.note("g", BILLS, Start(4, 10, at=2.0))
    starts.went_back("g", 0.0, 3.0, lambda stream: stream == BILLS)
    assert starts.get("g", ORDERS) is None
    assert starts.get("g", BILLS) == Start(4, 10, at=2.0), "another inbox knows it"
    starts.note("g", ORDERS, Start(9, 20, at=4.0))
    starts.went_back("g", 4.5, 5.0, lambda stream: False)
    assert starts.get("g", ORDERS) == Start(9, 20, at=4.0), "the copy is of the second life"
    starts.went_back("g", 1.5, 6.0, lambda stream: False)
    assert starts.get("g", ORDERS) == Start(9, 20, at=4.0), "the copy may be told of that life"
    assert starts.get("g", BILLS) is None
    starts.went_back("g", 0.0, 7.0, lambda stream: False)
    starts.went_back("g", 1.5, 8.0, lambda stream: False)
    assert starts.get("g", ORDERS) == Start(3, 10, at=1.0), "the copy is from before"


def test_what_only_one_inbox_has_in_quarantine_starts_nothing_for_the_others() -> None:
    starts = Starts()
    for consumer, kept in (("g-1", True), ("g-2", False)):
        starts.note(consumer, ORDERS, Start(3, 10, at=1.0, quarantined_by="g-1"))
        starts.joined(consumer, ORDERS, consumer, 2.0)
        assert starts.get(consumer, ORDERS) == (Start(3, 10, at=1.0) if kept else None)
