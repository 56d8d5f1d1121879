"""The progress of a group in one stream, in the order in which one journal has it.

The cursor of a stream is the highest position (epoch, number) of all rows about messages that were delivered or
skipped; if an operator had forged epochs forgotten, it returns to the position before them. A row that begins at or
before the cursor is out of order; a row that does not begin directly after it leaves a hole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from reliamsg.audit.context import Journal, position
from reliamsg.audit.fold import Fact
from reliamsg.audit.spans import LAST

__all__ = ["DEAD", "HANDED", "SKIPPED", "Bounds", "Course", "Position", "Step", "end_of", "follow"]

Position = tuple[int, int]
"""Epoch and sequence number."""

HANDED = ("delivered", "redelivered")
"""Delivered to the application."""
SKIPPED = ("declared", "before_join")
"""Declared to the application as not delivered. An end below the start means the rest of the epoch."""
DEAD = "dead_lettered"
_DEALT_WITH = (*HANDED, "declared", DEAD)
_ADVANCING = frozenset({*HANDED, *SKIPPED, DEAD})
_ORDERED = frozenset({*_ADVANCING, "late", "replayed"})
_PLACED = frozenset({*_ORDERED, "acknowledged"})
_FORGED, _UNREMEMBERED = "forged", "unremembered"


def end_of(fact: Fact) -> int:
    """The last number of a row."""
    if fact.kind in SKIPPED and fact.last < fact.first:
        return LAST
    return min(fact.last, LAST)


@dataclass(slots=True)
class Step:
    """A row about deliveries, with the state before it."""

    fact: Fact
    boot_lsn: int
    first: int
    last: int
    start: int
    """The first number beyond the cursor; `last` + 1 if there is none."""
    hole: tuple[int, int] | None
    """The numbers that it skips."""
    begin: int | None
    """The number with which the journal had begun to deliver messages by then: 1 in later epochs, None in earlier ones,
    and if it had not begun."""
    next_boot: int = 0
    next_pass: int = 0
    """The next boot that delivered new messages of the stream, and its first such row; 0 if there is none."""


@dataclass(slots=True)
class Bounds:
    """A stream as a whole, for one journal or one group. Positions are None if unknown."""

    said: Position | None = None
    """The lowest in ``joined`` rows."""
    itself: Position | None = None
    """The same without the rows of inboxes that continued from another one."""
    unheard: Position | None = None
    """The same of rows from before its producer had announced anything."""
    begun: Position | None = None
    """The lowest with which a journal began."""
    reached: Position | None = None
    lowest: Position | None = None
    """The lowest that was delivered."""
    leaps: set[tuple[int, int]] = field(default_factory=set)
    """Pairs of epochs between which everything was declared lost."""
    holds: set[Position] = field(default_factory=set)
    """Where gaps began that held the stream."""

    def add(self, other: Bounds) -> None:
        """Add another journal of the same group."""
        for name in ("said", "itself", "unheard", "begun", "lowest"):
            setattr(self, name, _least(getattr(self, name), getattr(other, name)))
        if other.reached is not None and (self.reached is None or other.reached > self.reached):
            self.reached = other.reached
        self.leaps |= other.leaps
        self.holds |= other.holds

    @property
    def joined(self) -> Position | None:
        """Where the stream began for the group."""
        return self.begun if self.said is None else self.said

    @property
    def joined_itself(self) -> Position | None:
        """The same without the rows of inboxes that continued from another one."""
        if self.itself is not None or self.said is not None:
            return self.itself
        return self.begun

    @property
    def joined_unheard(self) -> bool:
        """Whether its producer had announced nothing when the group joined."""
        return self.unheard is not None and self.unheard == self.said

    @property
    def held_at(self) -> Position | None:
        """The start of the gap that still holds it."""
        return min((at for at in self.holds if self.reached is None or at > self.reached), default=None)


def _least(one: Position | None, other: Position | None) -> Position | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(slots=True)
class Course:
    """One journal's part in a stream."""

    journal: Journal
    steps: list[Step]
    bounds: Bounds
    parted: list[int]
    """The rows by which it left its place, because another inbox had got further, or passed a gap of unknown extent:
    what follows meets nothing that is before."""
    left: list[tuple[Position, Position]]
    """From its own place to the one of its group, where other epochs are between them. Its group had dealt with what it
    owed there."""

    def dealt_with(self) -> Iterable[dict[int, int]]:
        """For each part of it between two of these rows, the last number of each epoch that it delivered, declared or
        dead-lettered."""
        parts: dict[int, dict[int, int]] = defaultdict(dict)
        for step in self.steps:
            if step.fact.kind in _DEALT_WITH:
                own = parts[bisect_left(self.parted, step.fact.lsn)]
                own[step.fact.epoch] = max(step.last, own.get(step.fact.epoch, 0))
        return parts.values()


def follow(journal: Journal, facts: Iterable[Fact]) -> Course:
    """Follow a stream through the rows of one journal of a group."""
    return _Follower(journal).follow(facts)


class _Follower:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._bounds = Bounds()
        self._steps: list[Step] = []
        self._cursor: Position | None = None
        self._begin: Position | None = None
        """The lowest position that was delivered so far."""
        self._parted: list[int] = []
        self._left: list[tuple[Position, Position]] = []
        self._fresh = True
        """Whether nothing of the stream has counted as its beginning, in this life of it."""

    def follow(self, facts: Iterable[Fact]) -> Course:
        for fact in facts:
            kind = fact.kind
            if kind in _PLACED:
                self._placed(fact)
            elif kind == "joined":
                self._joined(fact)
            elif kind == "forgotten":
                self._forgotten(fact)
            elif kind == "behind" and (begin := position(fact.detail, "from")) is not None:
                self._parted.append(fact.lsn)
                if (own := position(fact.detail, "own")) is not None:
                    self._left.append((own, begin))
            elif kind == "gap_held":
                self._bounds.holds.add((fact.epoch, max(fact.first, 1)))
        self._bounds.reached = self._cursor
        self._look_ahead()
        return Course(self._journal, self._steps, self._bounds, self._parted, self._left)

    def _placed(self, fact: Fact) -> None:
        kind, first, last = fact.kind, fact.first, end_of(fact)
        bounds, cursor = self._bounds, self._cursor
        advancing = kind in _ADVANCING and first <= last
        if kind == "declared":
            until = (fact.detail or {}).get("until_epoch")
            if isinstance(until, int):
                bounds.leaps.add((fact.epoch, until))
            if fact.last < fact.first:
                self._parted.append(fact.lsn)
        if first <= last:
            self._steps.append(self._step(fact, first, last, advancing))
        if advancing:
            place = (fact.epoch, first)
            if kind in HANDED:
                bounds.lowest = _least(bounds.lowest, place)
                self._begin = _least(self._begin, place)
            if cursor is None:
                bounds.begun = _least(bounds.begun, place)
            self._cursor = max(cursor, (fact.epoch, last)) if cursor is not None else (fact.epoch, last)
        if kind in _ORDERED:
            self._fresh = False

    def _step(self, fact: Fact, first: int, last: int, advancing: bool) -> Step:
        cursor, begin, epoch = self._cursor, self._begin, fact.epoch
        follows = cursor is not None and cursor[0] == epoch
        if cursor is None or epoch > cursor[0]:
            start = first
        elif follows:
            start = min(max(first, cursor[1] + 1), last + 1)
        else:
            start = last + 1
        expected = cursor[1] + 1 if follows and cursor is not None else 1
        # Messages from before the position of joining may arrive in any order, and incompletely.
        leaves = advancing and start <= last and start > expected and fact.kind != "before_join"
        begun = None
        if begin is not None and begin[0] <= epoch:
            begun = begin[1] if begin[0] == epoch else 1
        boot_lsn = self._journal.boot_lsn(fact.boot, fact.lsn)
        return Step(fact, boot_lsn, first, last, start, (expected, start - 1) if leaves else None, begun)

    def _joined(self, fact: Fact) -> None:
        bounds, place = self._bounds, (fact.epoch, max(fact.first, 1))
        bounds.said = _least(bounds.said, place)
        if fact.reason != "took_over":
            bounds.itself = _least(bounds.itself, place)
        if (fact.detail or {}).get("unheard") is True:
            bounds.unheard = _least(bounds.unheard, place)
        if self._journal.opened.get(self._journal.boot_lsn(fact.boot, fact.lsn), {}).get("begin") == "latest":
            if self._fresh:  # the application asked not to be given what precedes the first message to arrive
                seed = (place[0], place[1] - 1)
                self._cursor = seed if self._cursor is None else max(self._cursor, seed)
            self._fresh = False

    def _forgotten(self, fact: Fact) -> None:
        """An operator sent the group back: to the start, or to the named position if the group is beyond it."""
        if fact.reason == _UNREMEMBERED:
            self._cursor, self._fresh = None, True
        elif fact.reason == _FORGED:
            self._fresh = False
            if self._cursor is not None:
                self._cursor = min(self._cursor, (fact.epoch, max(fact.first, 1) - 1))

    def _look_ahead(self) -> None:
        """For each step, the next boot that delivers new messages."""
        boot = row = later_boot = later_row = 0
        current = 0
        for step in reversed(self._steps):
            if step.boot_lsn != current:
                if boot and boot == current:
                    later_boot, later_row = boot, row
                current, boot, row = step.boot_lsn, 0, 0
            step.next_boot, step.next_pass = later_boot, later_row
            if step.fact.kind in HANDED and step.start <= step.last:
                boot, row = step.boot_lsn, step.fact.lsn
