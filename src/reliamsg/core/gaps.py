"""Clocks of gaps, and the memory of the gaps that were closed.

The clock of a gap counts only while the gap holds its stream up; who calls says when that is. One step counts at
most a second, so that a stopped process does not expire gaps, and whatever changes the gap starts it anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.core.ranges import RangeSet, Span

__all__ = ["MAX_CLOSED", "MAX_STEP_S", "ClosedGaps", "GapClock", "GapKey"]

MAX_STEP_S = 1.0
MAX_CLOSED = 1_000
"""Closed ranges of a stream that are remembered exactly."""

GapKey = tuple[int, int, int | None]
"""Epoch, first and last number; last is None where the extent is unknown."""


class GapClock:
    """How long the gap at a stream's head has held it up."""

    __slots__ = ("_at", "decided", "elapsed", "opened", "saved", "target", "waited")

    def __init__(self) -> None:
        self.target: GapKey | None = None
        self.elapsed = 0.0
        self.saved = 0.0
        """What a commit holds of `elapsed` and `waited` together."""
        self.waited = 0.0
        """For how long it would have counted, but a producer said that it holds what is missing."""
        self.decided = False
        """The gap was put to the policy at once, since its messages were removed."""
        self.opened = False
        """Whether the gap has held the stream up for any time at all."""
        self._at: float | None = None

    def aim(self, target: GapKey | None) -> GapKey | None:
        """Watch `target`. Another one than before starts at 0; returns the one before, if it is gone."""
        if target == self.target:
            return None
        before, self.target = self.target, target
        self.elapsed = self.saved = self.waited = 0.0
        self.decided = False
        self._at = None
        return before

    def restore(self, target: GapKey, elapsed: float, waited: float) -> None:
        """Go on where an earlier process stopped."""
        self.target = target
        self.elapsed, self.waited = elapsed, waited
        self.saved = self.counted
        self.opened = True

    def tick(self, now: float, running: bool, waiting: bool = False) -> float:
        """Count the time since the last tick, if the clock ran throughout; return what has elapsed. With `waiting`
        it counts as waited instead."""
        if running and self._at is not None:
            step = min(max(0.0, now - self._at), MAX_STEP_S)
            if waiting:
                self.waited += step
            else:
                self.elapsed += step
        self._at = now if running else None
        return self.elapsed

    @property
    def counted(self) -> float:
        """All of the gap's time, whether it elapsed or was waited."""
        return self.elapsed + self.waited

    def rewind(self) -> None:
        """Start the same gap's time anew. What was waited is not waited again."""
        self.elapsed = 0.0
        self.saved = self.waited


class ClosedGaps:
    """The newest closed ranges of a stream, to tell what is late from what is a duplicate."""

    __slots__ = ("_ranges", "forgotten")

    def __init__(
        self, spans: Iterable[tuple[int, int, int]] = (), forgotten: tuple[int, int] = (0, 0)
    ) -> None:
        self._ranges = list(spans)  # mostly empty, for which a list takes a tenth of a deque
        self.forgotten = forgotten
        """(epoch, number): ranges at or below may have been closed and forgotten."""

    def add(self, epoch: int, first: int, last: int) -> None:
        """Remember that `first` to `last` was passed without having arrived."""
        self._ranges.append((epoch, first, last))
        self._forget()

    def _forget(self) -> None:
        for old, _, bound in self._ranges[:-MAX_CLOSED]:
            self.forgotten = max(self.forgotten, (old, bound))
        del self._ranges[:-MAX_CLOSED]

    def arrived(self, epoch: int, first: int, last: int) -> list[Span]:
        """What of an arrival was passed before; from now on it is not any more."""
        if not self.overlap(epoch, first, last):
            return []
        late = RangeSet()
        kept: list[tuple[int, int, int]] = []
        for closed in self._ranges:
            number, low, high = closed
            if number != epoch or high < first or low > last:
                kept.append(closed)
                continue
            late.add(max(low, first), min(high, last))
            if low < first:
                kept.append((epoch, low, first - 1))
            if high > last:
                kept.append((epoch, last + 1, high))
        self._ranges = kept
        self._forget()  # a hole in the middle of a range makes two of it
        return list(late)

    def overlap(self, epoch: int, first: int, last: int) -> bool:
        """Whether anything of these was passed, and has not arrived since."""
        return any(e == epoch and low <= last and high >= first for e, low, high in self._ranges)

    def may_have_forgotten(self, epoch: int, first: int) -> bool:
        return (epoch, first) <= self.forgotten

    def spans(self) -> list[tuple[int, int, int]]:
        """(epoch, first, last), oldest first."""
        return list(self._ranges)

    @property
    def empty(self) -> bool:
        return not self._ranges
