"""Which deliveries are persisted ahead of their turn while a site hands out all that it has in store."""

from __future__ import annotations

from reliamsg.message import Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.rules import Rules
from tests.protocol.events_tools import seen, snapshot

STREAM = Stream("p", "orders")
PREFETCH = 64
STEP_S = 0.01


class Backlog:
    """A broker with more in its queue than anybody handles, batches of one size; and a handler of so many messages a
    second, 0 at first."""

    def __init__(self, batch: int) -> None:
        self.core = GroupReceiver(Rules(), {"dc1": PREFETCH})
        self.core.waiting.connected("dc1")
        self.now = 100.0
        self.batch = batch
        self.rate = 0.0
        self.allowed = 0.0
        self.sent = self.handled = 0
        self.ages: list[float] = []
        """Of the deliveries that were persisted, at that moment."""

    def run(self, seconds: float) -> list[float]:
        """Let time pass; returns the ages of what was persisted meanwhile."""
        before = len(self.ages)
        for _ in range(round(seconds / STEP_S)):
            self._deliver()
            self.now += STEP_S
            self._handle()
            self._commit()
        return self.ages[before:]

    def _deliver(self) -> None:
        while self.core.waiting.pending("dc1") < PREFETCH:
            first = self.sent + 1
            self.sent += self.batch
            self.core.receive(Incoming("dc1", STREAM, 1, 7, None, first, self.sent, first), self.now)

    def _handle(self) -> None:
        state = self.core.streams[STREAM]
        self.allowed += self.rate * STEP_S
        while int(self.allowed) > self.handled:
            found = state.offer(self.now, 1)
            if found is None:
                if not seen(self.core).urgent:
                    return
                self._commit()
                continue
            last = min(found.last, int(self.allowed))
            state.take(found, last, self.now)
            self.core.streams[STREAM].acknowledge(1, found.first, last, self.now)
            self.handled = last

    def _commit(self) -> None:
        due, _ = self.core.waiting.overdue(self.now)
        planned = snapshot(self.core)
        planned.also.add(STREAM)
        for waiting in due:
            assert waiting.known is not None
            self.ages.append(round(self.now - waiting.at, 6))
            self.core.waiting.spilling(waiting, True)
            for span in waiting.known.unsafe_held(waiting.first, waiting.last):
                self.core.streams[STREAM].persisted(1, *span)
        self.core.committed(planned)


def test_what_a_fast_handler_works_off_is_not_persisted() -> None:
    for batch, rate in ((1_000, 200_000), (1_000, 500_000), (20_000, 500_000), (1, 1_000), (10, 5_000)):
        backlog = Backlog(batch)
        backlog.rate = rate
        assert backlog.run(4.0) == []
        assert backlog.handled == 4 * rate


def test_what_waits_for_a_slow_handler_is_persisted_soon_and_then_sooner() -> None:
    for batch, rate in ((1, 0), (1, 100), (100, 2_000), (1_000, 50_000)):
        backlog = Backlog(batch)
        backlog.rate = rate
        first = backlog.run(0.2)
        assert max(first) <= 0.11
        assert len(first) >= PREFETCH
        later = backlog.run(1.0)
        assert max(later) <= 0.03
        assert len(later) >= 20 * PREFETCH  # a window lasts for three steps


def test_a_handler_that_stops_holds_up_a_window_for_a_moment_only() -> None:
    backlog = Backlog(1_000)
    backlog.rate = 500_000
    assert backlog.run(2.0) == []
    backlog.rate = 0
    assert max(backlog.run(0.2)) <= 0.25
    assert max(backlog.run(1.0)) <= 0.03


def test_a_handler_that_becomes_fast_again_needs_the_disk_no_more() -> None:
    backlog = Backlog(1_000)
    assert backlog.run(0.3)
    backlog.rate = 10_000_000
    backlog.run(1.0)  # through all that is persisted
    backlog.rate = 500_000
    backlog.allowed = backlog.handled
    assert backlog.run(2.0) == []


def test_no_window_turns_over_for_more_than_some_seconds() -> None:
    backlog = Backlog(50_000)
    backlog.rate = 600_000
    assert backlog.run(4.9) == []
    assert max(backlog.run(0.2)) <= 5.01
