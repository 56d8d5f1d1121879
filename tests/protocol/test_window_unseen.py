"""Streams of which a named group is not proven at a site: rule P17."""

from __future__ import annotations

import random

import pytest

from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.sender.window import UNSEEN, QueueState, SiteLimits, SiteWindow
from tests.chance import examples


class Row:
    def __init__(self, number: int, stream_id: int) -> None:
        self.id, self.stream_id, self.size = number, stream_id, 10


class Site:
    """A window, what feeds it, and a broker that answers in order, in one step or later."""

    def __init__(self, streams: list[int], batches: int = 4) -> None:
        self.rows = {number: Row(number, stream) for number, stream in enumerate(streams, 1)}
        self.window = SiteWindow("dc1", SiteLimits(batches, 10**6, 30.0), 1)
        self.window.connect(None)
        self.sent: list[int] = []
        """On this connection, unanswered."""
        self.arrived: list[tuple[int, int]] = []
        """Which rows came, in order, and how often groups had come before that."""
        self.created = 0
        self.now = 0.0

    def pull(self) -> None:
        window = self.window
        for queue in window.ready(self.now):
            rows = [row for number, row in self.rows.items() if number >= queue.next]
            for row in window.send(queue, rows, self.now):
                self.sent.append(row.id)
                self.arrived.append((row.id, self.created))
        window.rejoin(len(self.rows))

    def answer(self, count: int) -> None:
        for _ in range(min(count, len(self.sent))):
            self.window.confirm([self.sent.pop(0)], self.now)

    def drain(self) -> None:
        for _ in range(10 * len(self.rows)):
            self.now += 100.0
            self.pull()
            self.answer(100)


def test_it_is_sent_once_and_does_not_count() -> None:
    site = Site([1, 2, 1, 2])
    site.window.mark_unproven(1)
    site.drain()
    assert list(site.window.confirmed) == [(2, 2), (4, 4)]
    assert sorted(number for number, _ in site.arrived) == [1, 2, 3, 4]
    queue = site.window.queues[1]
    assert (queue.cursor, queue.reason) == (1, UNSEEN)
    assert [site.window.is_uncounted(number) for number in (1, 2, 3)] == [True, False, True]


def test_once_proven_all_of_it_goes_again_in_order() -> None:
    site = Site([1] * 6, batches=3)
    site.window.mark_unproven(1)
    site.pull()
    site.answer(2)
    site.window.mark_proven(1)
    site.created = 1
    site.pull()
    assert len(site.arrived) == 3, "what is in flight is waited for"
    site.answer(1)
    assert site.window.queues[1].next == 1
    site.drain()
    assert [number for number, created in site.arrived if created] == [1, 2, 3, 4, 5, 6]
    assert list(site.window.confirmed) == [(1, 6)]
    assert not site.window.queues


def test_what_was_in_flight_is_not_waited_for_on_a_connection_that_is_gone() -> None:
    site = Site([1, 1])
    site.window.mark_unproven(1)
    site.pull()
    site.window.mark_proven(1)
    site.window.disconnect(site.now, asked=True)
    site.sent.clear()
    site.window.connect(None)
    site.drain()
    assert list(site.window.confirmed) == [(1, 2)]


def test_what_is_confirmed_before_a_doubt_stays_so() -> None:
    site = Site([1, 1, 1], batches=2)
    site.pull()
    site.answer(1)
    site.window.mark_unproven(1)
    site.drain()
    assert list(site.window.confirmed) == [(1, 1)]
    assert site.window.queues[1].cursor == 2


def test_it_survives_a_restart() -> None:
    site = Site([1, 1, 1])
    site.window.restore_queue(1, 2, 0, UNSEEN)
    site.window.mark_unproven(1)
    assert site.window.queues[1].state is QueueState.FLOWING
    site.drain()
    assert site.window.confirmed.empty
    site.window.mark_proven(1)
    site.drain()
    assert list(site.window.confirmed) == [(2, 3)]


def test_a_removed_row_is_not_waited_for() -> None:
    site = Site([1, 1])
    site.window.mark_unproven(1)
    site.drain()
    site.window.discard(1, site.now)
    assert site.window.queues[1].cursor == 2
    assert list(site.window.confirmed) == [(1, 1)]


def test_a_row_that_breaks_connections_is_found_there_too() -> None:
    site = Site([1, 1, 1])
    site.window.mark_unproven(1)
    for _ in range(12):
        site.pull()
        if 2 in site.sent:  # it ends the connection each time
            while site.sent[0] != 2:
                site.answer(1)
            site.sent.clear()
            parked = site.window.disconnect(site.now, asked=False)
            site.window.connect(None)
            if parked is not None:
                break
        else:
            site.answer(10)
    assert parked is site.window.queues[1]
    assert parked.state is QueueState.PARKED
    assert parked.next == 2


@pytest.mark.parametrize("number", range(examples(60)))
def test_only_what_came_after_the_proof_counts(number: int, seed: int) -> None:
    """Whatever happens in which order: what counts as confirmed was sent last while all groups were there."""
    chance = random.Random(f"{seed}/{number}")
    site = Site([chance.choice([1, 2, 3]) for _ in range(30)], batches=chance.choice([1, 3, 8]))
    missing: set[int] = set()
    safe: dict[int, bool] = {}
    """Of each row, whether its latest copy came while its stream's groups were there."""
    counted = RangeSet()
    for _ in range(120):
        site.now += chance.choice([0.0, 0.1, 40.0])
        stream = chance.choice([1, 2, 3])
        match chance.randrange(7):
            case 0:
                site.window.mark_unproven(stream)
                missing.add(stream)
            case 1:
                missing.discard(stream)
                site.window.mark_proven(stream)
            case 2:
                site.window.disconnect(site.now, asked=chance.random() < 0.5)
                site.sent.clear()
                site.window.connect(None)
            case 3 if site.sent:
                site.window.refuse(site.sent.pop(0), "refused: as the test says", site.now)
            case _:
                before = len(site.arrived)
                site.pull()
                for row, _ in site.arrived[before:]:
                    safe[row] = site.rows[row].stream_id not in missing
                site.answer(chance.randrange(4))
        for first, last in site.window.confirmed:
            for row in range(first, last + 1):
                if row not in counted:
                    counted.add(row, row)
                    assert safe[row], f"row {row} counts, and came when a group was missing"
        assert all(row in site.window.confirmed for span in counted for row in range(span[0], span[1] + 1))
    for stream in list(missing):
        site.window.mark_proven(stream)
    site.drain()
    assert list(site.window.confirmed) == [(1, 30)]
    assert not site.window.queues
