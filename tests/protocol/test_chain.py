"""How epochs hang together."""

from __future__ import annotations

import pytest

from reliamsg.message import Prev
from reliamsg.protocol.receiver.chain import MAX_FINISHED, MAX_SUPERSEDED, History, LinkKind, link
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from tests.protocol.status_tools import Group


def known_up_to(last: int) -> ReorderBuffer:
    known = ReorderBuffer(10, 77, None)
    known.place(1, last)
    return known


@pytest.mark.parametrize(
    ("prev", "kind", "last"),
    [
        (Prev(10, 77, 20), LinkKind.ENDS, 20),
        (Prev(10, 77, 25), LinkKind.ENDS, 25),
        (Prev(10, 77, 19), LinkKind.FORK, 20),
        (Prev(10, 78, 20), LinkKind.FORK, 20),
        (Prev(9, 77, 20), LinkKind.FORK, 20),
        (None, LinkKind.FORK, 20),
        (Prev(11, 1, 1), LinkKind.UNKNOWN, 0),
    ],
)
def test_links(prev: Prev | None, kind: LinkKind, last: int) -> None:
    found = link(known_up_to(20), ReorderBuffer(12, 5, prev))
    assert (found.kind, found.last) == (kind, last)
    assert bool(found.reason) == (kind is LinkKind.FORK)


def test_without_a_later_epoch_the_end_is_open() -> None:
    assert link(known_up_to(20), None).kind is LinkKind.OPEN


def test_history_is_bounded() -> None:
    history = History()
    for epoch in range(1, MAX_FINISHED + 11):
        history.add(epoch, epoch * 3, 5)
    assert len(history.finished) == MAX_FINISHED
    assert history.floor == 10
    assert history.find(10) is None
    found = history.find(11)
    assert found is not None
    assert (found.incarnation, found.last) == (33, 5)
    assert history.find(MAX_FINISHED + 11) is None


def test_superseded_data_is_new_once() -> None:
    history = History()
    assert history.supersede(3, 1, 10) == [(1, 10)]
    assert history.supersede(3, 5, 12) == [(11, 12)]
    for epoch in range(4, MAX_SUPERSEDED + 10):
        history.supersede(epoch, 1, 1)
    assert len(history.superseded) == MAX_SUPERSEDED
    assert history.floor >= 3


def test_what_was_settled_before_a_crash_is_in_no_gap_of_unknown_extent() -> None:
    """Number 4 went with memory, and with the broker; 5 and 6 had been acknowledged."""
    group = Group()
    group.arrive("dc1", 10, 70, None, 1, 3)
    known = group.state.epochs.current
    assert known is not None
    known.settle(5, 6)
    group.arrive("dc1", 30, 210, Prev(20, 140, 2), 1, 2)
    group.wait(6.0)
    group.wait(6.0)
    assert group.got == [(10, 1), (10, 2), (10, 3), (30, 1), (30, 2)]
    assert [row[:3] for row in group.told("declared")] == [(10, 4, 4), (10, 7, 0), (20, 1, 2)]
