"""All sites of a producer together: what answers lead to, deadlines, and what may leave the outbox."""

from __future__ import annotations

from reliamsg.policy import Confirm
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.sender.sender import Sender
from tests.protocol.sending_tools import LIMITS, FakeRow


class World:
    def __init__(self, policy: Confirm = "all", rows: int = 4) -> None:
        self.core = Sender({"dc1": LIMITS, "dc2": LIMITS}, {"dc1": 1, "dc2": 1}, policy, 1)
        self.rows = [FakeRow(number) for number in range(1, rows + 1)]
        for name in ("dc1", "dc2"):
            self.core.connected(name, None)

    def send(self, site: str, now: float = 0.0) -> list[int]:
        window = self.core.sites[site]
        return [row.id for row in window.send(window.main, self.rows[window.main.next - 1 :], now)]


def test_published_when_both_sites_have_it() -> None:
    world = World()
    assert world.send("dc1") == world.send("dc2") == [1, 2, 3, 4]
    rows, published = world.core.confirmed("dc1", [1, 2], 0.0)
    assert (list(rows), published) == ([1, 2], [])
    assert world.core.confirmed("dc2", [2, 1], 0.0)[1] == [2, 1]


def test_a_confirm_counts_once() -> None:
    world = World("any")
    world.send("dc1")
    assert world.core.confirmed("dc1", [1, 1], 0.0)[1] == [1]
    assert world.core.confirmed("dc1", [1], 0.0) == ({}, [])


def test_a_late_confirm_has_its_connection_dropped_once() -> None:
    world = World()
    world.send("dc1", now=0.0)
    assert world.core.next_deadline() == LIMITS.confirm_timeout
    assert world.core.on_deadline(29.0) == ({}, [], [])
    assert world.core.on_deadline(30.0) == ({"dc1": []}, [], [])
    assert world.core.on_deadline(31.0) == ({}, [], [])
    assert not world.core.sites["dc1"].up
    world.core.disconnected("dc1", 31.0)
    world.core.connected("dc1", None)
    assert not world.core.sites["dc1"].up, "it has shown nothing yet"
    assert world.send("dc1", now=32.0) == [1, 2, 3, 4]
    world.core.confirmed("dc1", [1], 0.0)
    assert world.core.sites["dc1"].up


def test_all_active_goes_on_without_a_site_that_is_late() -> None:
    world = World("all-active")
    world.send("dc1", now=0.0)
    world.send("dc2", now=0.0)
    assert world.core.confirmed("dc1", [1, 2, 3, 4], 0.0)[1] == []
    assert world.core.on_deadline(30.0) == ({"dc2": []}, [1, 2, 3, 4], [])


def test_all_active_goes_on_without_a_site_that_left_or_is_blocked() -> None:
    world = World("all-active")
    world.send("dc1")
    world.send("dc2")
    world.core.confirmed("dc1", [1], 0.0)
    assert world.core.blocked("dc2", "low on memory", 0.0) == [1]
    assert world.core.blocked("dc2", None, 0.0) == []
    world.core.confirmed("dc1", [2], 0.0)
    assert world.core.disconnected("dc2", 0.0) == (None, [2])


def test_a_parked_stream_is_due_when_its_time_has_come() -> None:
    world = World()
    world.send("dc1")
    world.core.confirmed("dc1", [2, 3, 4], 0.0)
    assert world.core.refused("dc1", 1, "nacked: full", 10.0) is not None
    at = world.core.sites["dc1"].queues[1].retry_at
    assert world.core.next_deadline() == at
    assert world.core.on_deadline(at - 0.01).retrying == []
    assert world.core.on_deadline(at).retrying == ["dc1"]


def test_a_refusal_of_what_is_not_in_flight_means_nothing() -> None:
    world = World()
    assert world.core.refused("dc1", 1, "nacked", 0.0) is None
    assert world.core.sites["dc1"].queues == {}


def test_what_may_leave() -> None:
    world = World("any")
    world.send("dc1")
    world.send("dc2")
    world.core.confirmed("dc1", [1, 2, 3], 0.0)
    world.core.confirmed("dc2", [1, 3], 0.0)
    full, partly = world.core.releasable(0)
    assert full == [(1, 1), (3, 3)]
    assert partly == [(2, 2)]
    full, partly = world.core.releasable(2)
    assert (full, partly) == ([(3, 3)], [])


def test_under_all_nothing_leaves_that_a_site_lacks() -> None:
    world = World("all")
    world.send("dc1")
    world.core.confirmed("dc1", [1, 2, 3, 4], 0.0)
    assert world.core.releasable(0) == ([], [])


def test_where_groups_matter_only_what_they_are_done_with_may_leave() -> None:
    world = World("any")
    world.send("dc1")
    world.send("dc2")
    world.core.confirmed("dc1", [1, 2, 3], 0.0)
    world.core.confirmed("dc2", [1, 3], 0.0)
    assert world.core.releasable(0, RangeSet([(2, 3)])) == ([(3, 3)], [(2, 2)])
    assert world.core.releasable(2, RangeSet([(1, 2)])) == ([], []), "what is not above does not count"
    assert world.core.releasable(0, RangeSet()) == ([], [])


def test_nobody_waits_for_what_was_removed() -> None:
    world = World("all")
    sent = world.send("dc1")
    world.core.removed(1, 1.0)
    assert 1 in world.core.confirms.published
    assert list(world.core.sites["dc1"].in_flight) == [row for row in sent if row != 1]
    assert world.core.confirmed("dc1", [1], 2.0) == ({}, []), "its confirm comes late"
    assert 1 not in world.send("dc2")


def test_what_a_row_lost_does_not_count_in_flight() -> None:
    world = World("all")
    world.send("dc1")
    window = world.core.sites["dc1"]
    before = window.bytes
    world.core.changed(FakeRow(1, size=3))
    assert window.bytes == before - 7
    world.core.confirmed("dc1", list(window.in_flight), 1.0)
    assert window.bytes == 0
    world.core.changed(FakeRow(1, size=2))
    assert window.bytes == 0
