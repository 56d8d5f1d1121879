"""The gaps of a stream: the clock of the gap at its head, decisions, and closed gaps.

The clock counts only while the gap holds up its stream; the caller says when it does. A step counts at most one second,
so that a paused process does not expire gaps. A change of the gap restarts the clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.message import Gap
from reliamsg.protocol.announced import Span3
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["MAX_CLOSED", "MAX_STEP_S", "ClosedGaps", "GapClock", "GapKey", "GapTracker", "is_part"]

MAX_STEP_S = 1.0
MAX_CLOSED = 1_000
"""Closed ranges of a stream that are remembered exactly."""
MAX_DECLARED = 100
"""The latest passed ranges of a stream that are reported to its producer."""

GapKey = tuple[int, int, int | None]
"""Epoch, first and last number; last is None if the extent is unknown."""


class GapClock:
    """How long the gap at the head has held up its stream, in seconds."""

    __slots__ = ("_at", "decided", "elapsed", "opened", "saved", "target", "waited")

    def __init__(self) -> None:
        self.target: GapKey | None = None
        self.elapsed: float = 0.0
        self.saved: float = 0.0
        """The sum of `elapsed` and `waited` as the last commit holds it."""
        self.waited: float = 0.0
        """Time that did not count because a producer announced that it holds the missing messages."""
        self.decided: bool = False
        """The policy was applied at once, because the messages were removed."""
        self.opened: bool = False
        """Whether the gap has held up the stream for any time."""
        self._at: float | None = None

    def aim(self, target: GapKey | None) -> GapKey | None:
        """Watch `target`. A different gap starts at 0; returns the previous one if it is gone."""
        if target == self.target:
            return None
        before, self.target = self.target, target
        self.elapsed = self.saved = self.waited = 0.0
        self.decided = False
        self._at = None
        return before

    def restore(self, target: GapKey, elapsed: float, waited: float) -> None:
        """Continue where an earlier process stopped."""
        self.target = target
        self.elapsed, self.waited = elapsed, waited
        self.saved = self.counted
        self.opened = True

    def tick(self, now: float, running: bool, waiting: bool = False) -> float:
        """Count the time since the last tick if the clock ran throughout; return the elapsed time. With `waiting`, add
        it to `waited` instead."""
        if running and self._at is not None:
            step = min(max(0.0, now - self._at), MAX_STEP_S)
            if waiting:
                self.waited += step
            else:
                self.elapsed += step
        self._at = now if running else None
        return self.elapsed

    def committed(self, target: GapKey, elapsed: float, waited: float) -> None:
        """A commit holds these times for this gap."""
        if target == self.target:
            self.saved = elapsed + waited

    @property
    def counted(self) -> float:
        """Elapsed and waited time together."""
        return self.elapsed + self.waited

    def decide(self) -> None:
        """Apply the policy at once."""
        self.decided = True

    def open(self) -> None:
        """The gap begins to hold up the stream."""
        self.opened = True

    def close(self) -> None:
        """The gap has not held up the stream yet."""
        self.opened = False

    def rewind(self) -> None:
        """Restart the elapsed time of the same gap. Waited time is kept."""
        self.elapsed = 0.0
        self.saved = self.waited


class ClosedGaps:
    """The latest closed ranges of a stream, which tell late messages from duplicates."""

    __slots__ = ("_ranges", "empty", "forgotten")

    def __init__(
        self, spans: Iterable[tuple[int, int, int]] = (), forgotten: tuple[int, int] = (0, 0)
    ) -> None:
        self._ranges = list(spans)  # mostly empty, for which a list takes a tenth of a deque
        self.empty: bool = not self._ranges
        self.forgotten: tuple[int, int] = forgotten
        """(epoch, number): ranges at or below may have been closed and forgotten."""

    def add(self, epoch: int, first: int, last: int) -> None:
        """`first` to `last` were passed without having arrived."""
        self._ranges.append((epoch, first, last))
        self._forget()
        self.empty = False

    def _forget(self) -> None:
        for old, _, bound in self._ranges[:-MAX_CLOSED]:
            self.forgotten = max(self.forgotten, (old, bound))
        del self._ranges[:-MAX_CLOSED]

    def arrived(self, epoch: int, first: int, last: int) -> list[Span]:
        """Return the passed ranges among these; as they have arrived now, forget that they were passed."""
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
        self.empty = not kept
        return list(late)

    def overlap(self, epoch: int, first: int, last: int) -> bool:
        """Whether any of these was passed and has not arrived since."""
        return any(e == epoch and low <= last and high >= first for e, low, high in self._ranges)

    def may_have_forgotten(self, epoch: int, first: int) -> bool:
        return (epoch, first) <= self.forgotten

    def spans(self) -> list[tuple[int, int, int]]:
        """(epoch, first, last), oldest first."""
        return list(self._ranges)


class GapTracker:
    """The gap at the head of one stream, decisions about it, and the gaps that the stream has passed."""

    __slots__ = (
        "_accepted_as", "_expired_after", "_passed", "accepted", "accepted_committed", "clock", "closed", "held_by",
        "held_since", "passing", "undecided",
    )  # fmt: skip

    def __init__(self, closed: ClosedGaps | None = None) -> None:
        """`closed`: as the inbox holds them."""
        self.clock: GapClock = GapClock()
        self.closed: ClosedGaps = ClosedGaps() if closed is None else closed
        self.undecided: Gap | None = None
        """Expired, and waiting for a decision by the application."""
        self.held_by: Gap | None = None
        """The gap that holds the stream until it is filled or accepted; None for none."""
        self.held_since: GapKey | None = None
        """The gap that was reported when this hold began. What remains after a part arrives belongs to the same hold.
        None if there is none."""
        self.accepted: RangeSet = RangeSet()
        """Numbers of the current epoch that may be passed as soon as they are the gap at the head."""
        self.accepted_committed: tuple[Span3, ...] = ()
        """Accepted ranges, as the last commit holds them."""
        self._accepted_as: tuple[str, float | None] = ("expired", None)
        """The reason, and the gap's clock in seconds, if known."""
        self._expired_after: float | None = None
        """The clock when the latest gap expired."""
        self._passed: list[Span3] = []
        """The latest ranges that were passed without having arrived, as the last commit holds them."""
        self.passing: list[Span3] = []
        """The same since the last commit."""

    # -- the gap at the head ------------------------------------------------------------------------------

    def aim(self, target: GapKey | None) -> tuple[GapKey | None, bool]:
        """Watch another gap, or none; return the previous one, and whether it had held up the stream."""
        opened = self.clock.opened
        before = self.clock.aim(target)
        self.clock.close()
        self.undecided = None
        return before, opened

    def expire(self) -> None:
        """`gap_timeout` has passed for the gap at the head."""
        self._expired_after = self.clock.elapsed

    def ask(self, gap: Gap) -> None:
        """Leave the decision to the application, and restart the clock meanwhile."""
        self.clock.rewind()
        self.undecided = gap

    def take_undecided(self) -> Gap:
        """The gap that the application has to decide about. Returned once."""
        gap, self.undecided = self.undecided, None
        assert gap is not None  # the caller has looked
        return gap

    def drop(self) -> None:
        """The stream continues elsewhere: drop the pending decision and everything accepted."""
        self.undecided = None
        self.accepted.discard_below(MAX_SEQ + 1)

    # -- holding ------------------------------------------------------------------------------------------

    def hold(self, gap: Gap) -> bool:
        """Hold the stream until the gap is filled or accepted. Returns whether a new hold begins."""
        self.held_by = gap
        key = gap.epoch, gap.first, gap.last
        if self.held_since is not None and is_part(key, self.held_since):
            return False
        self.held_since = key
        return True

    def resume(self) -> None:
        """Nothing holds the stream at the moment; the hold lasts until :meth:`end_episode`."""
        self.held_by = None

    def end_episode(self) -> None:
        """The gap that held the stream is filled, accepted, or gone."""
        self.held_since = None

    # -- acceptance and passing ---------------------------------------------------------------------------

    def accept(self, first: int, last: int, reason: str, elapsed: float | None) -> None:
        """These numbers of the current epoch may be passed. `elapsed`: the gap's clock, in seconds."""
        self.accepted.add(first, last)
        self._accepted_as = reason, elapsed

    def how_accepted(self, gap: Gap) -> tuple[str, float | None]:
        """The reason for which a gap is accepted now, and its clock in seconds."""
        if gap.reason == "open":
            return "accepted", self.clock.elapsed
        return gap.reason, self._expired_after

    def enter_epoch(self) -> None:
        """Acceptance in one epoch does not apply to the next."""
        self.accepted.discard_below(MAX_SEQ + 1)

    def close(self, epoch: int, first: int, last: int) -> tuple[str, float | None]:
        """Accepted numbers are passed; returns the reason and the gap's clock."""
        self.closed.add(epoch, first, last)
        self.accepted.remove(first, last)
        self.passing.append((epoch, first, last))
        return self._accepted_as

    def close_before(self, epoch: int, last: int) -> None:
        """An epoch of which nothing arrived is passed as a whole, with the gap of unknown extent before it."""
        self.closed.add(epoch, 1, last)
        self.passing.append((epoch, 1, last))

    # -- commits ------------------------------------------------------------------------------------------

    @property
    def passed(self) -> tuple[Span3, ...]:
        """The latest ranges that were passed without having arrived, as the last commit holds them."""
        return tuple(self._passed)

    def take_passing(self) -> list[Span3]:
        """The ranges that were passed since the last commit."""
        passing, self.passing = self.passing, []
        return passing

    def put_back(self, passing: list[Span3]) -> None:
        """The commit failed: these belong to the next one."""
        self.passing[:0] = passing

    def committed(self, passing: Iterable[Span3], accepted: tuple[Span3, ...]) -> bool:
        """A commit holds these passed and accepted ranges. Returns whether the accepted ones changed."""
        self._passed += passing
        del self._passed[:-MAX_DECLARED]
        before, self.accepted_committed = self.accepted_committed, accepted
        return before != accepted


def is_part(target: GapKey, whole: GapKey) -> bool:
    """Whether a gap is the remainder of another."""
    if target[0] != whole[0] or target[1] < whole[1]:
        return False
    return whole[2] is None or (target[2] is not None and target[2] <= whole[2])
