"""Gap clocks, and the memory of closed gaps, against the plainest models, on simulated time."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reliamsg.protocol.receiver import gaps
from reliamsg.protocol.receiver.gaps import MAX_STEP_S, ClosedGaps, GapClock, GapKey

TARGETS: tuple[GapKey | None, ...] = (None, (1, 5, 9), (1, 7, 9), (2, 1, None))
FEW = 4
seconds = st.sampled_from([-5.0, 0.0, 0.25, 1.0, 1.5, 3600.0])


class ClockModel(RuleBasedStateMachine):
    """A clock is the sum of the steps at whose beginning and end it ran, none longer than a second."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = GapClock()
        self.now = 100.0
        self.ran_at: float | None = None
        self.elapsed = self.waited = 0.0
        self.target: GapKey | None = None

    @rule(after=seconds, running=st.booleans(), waiting=st.booleans())
    def tick(self, after: float, running: bool, waiting: bool) -> None:
        self.now += after
        if running and self.ran_at is not None:
            step = min(MAX_STEP_S, max(0.0, self.now - self.ran_at))
            if waiting:
                self.waited += step
            else:
                self.elapsed += step
        self.ran_at = self.now if running else None
        assert self.clock.tick(self.now, running, waiting) == pytest.approx(self.elapsed)

    @rule(at=st.sampled_from(TARGETS))
    def aim(self, at: GapKey | None) -> None:
        gone = self.clock.aim(at)
        assert gone == (self.target if at != self.target else None)
        if at != self.target:
            self.target, self.ran_at = at, None
            self.elapsed = self.waited = 0.0

    @rule()
    def start_anew(self) -> None:
        self.clock.rewind()
        self.elapsed = 0.0

    @rule()
    def crash(self) -> None:
        """Both times of a gap are stored (G1, G5)."""
        self.clock = GapClock()
        if self.target is not None:
            self.clock.restore(self.target, self.elapsed, self.waited)
        else:
            self.elapsed = self.waited = 0.0
        self.ran_at = None

    @invariant()
    def the_same_time(self) -> None:
        assert self.clock.target == self.target
        assert self.clock.elapsed == pytest.approx(self.elapsed)
        assert self.clock.waited == pytest.approx(self.waited)
        assert self.clock.counted == pytest.approx(self.elapsed + self.waited)


class ClosedModel(RuleBasedStateMachine):
    """What was closed and comes is late, once; what is not known any more may have been forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = patch.object(gaps, "MAX_CLOSED", FEW)
        self.limit.start()
        self.closed = ClosedGaps()
        self.open: set[tuple[int, int]] = set()
        """Closed, and not arrived since: (epoch, number)."""
        self.next = (1, 1)

    @rule(epoch=st.integers(0, 1), skipped=st.integers(0, 3), count=st.integers(1, 6))
    def close(self, epoch: int, skipped: int, count: int) -> None:
        """Gaps of a stream are closed in order."""
        first = skipped + (self.next[1] if not epoch else 1)
        number = self.next[0] + epoch
        self.closed.add(number, first, first + count - 1)
        self.open |= {(number, n) for n in range(first, first + count)}
        self.next = number, first + count

    @rule(back=st.integers(0, 2), first=st.integers(1, 30), count=st.integers(1, 12))
    def arrive(self, back: int, first: int, count: int) -> None:
        epoch = self.next[0] - back
        numbers = range(first, first + count)
        late = {
            (epoch, n)
            for low, high in self.closed.arrived(epoch, first, first + count - 1)
            for n in range(low, high + 1)
        }
        expected = {(epoch, n) for n in numbers} & self.open
        assert late <= expected
        assert all(self.closed.may_have_forgotten(*each) for each in expected - late)
        self.open -= expected

    @rule()
    def restart(self) -> None:
        self.closed = ClosedGaps(self.closed.spans(), self.closed.forgotten)

    @invariant()
    def bounded_and_true(self) -> None:
        spans = self.closed.spans()
        assert len(spans) <= FEW
        remembered = {(epoch, n) for epoch, low, high in spans for n in range(low, high + 1)}
        assert remembered <= self.open
        assert all(self.closed.may_have_forgotten(*each) for each in self.open - remembered)

    def teardown(self) -> None:
        self.limit.stop()


TestClockModel = ClockModel.TestCase
TestClosedModel = ClosedModel.TestCase
