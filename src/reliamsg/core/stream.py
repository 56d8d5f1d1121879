"""The state of one stream at a group, and what a commit takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reliamsg.core.announced import Announced, Position, Span3
from reliamsg.core.asking import Asking
from reliamsg.core.chain import History
from reliamsg.core.gaps import GapKey, GapTracker
from reliamsg.core.heard import Heard
from reliamsg.core.ranges import Span
from reliamsg.core.redelivery import Redelivery
from reliamsg.core.reorder import Reorder
from reliamsg.core.takeover import TakeoverBounds
from reliamsg.message import Stream

__all__ = [
    "MAX_EPOCHS_AHEAD",
    "EpochChange",
    "Note",
    "Snapshot",
    "StreamChange",
    "StreamState",
    "Waiting",
]

MAX_EPOCHS_AHEAD = 32
"""The lowest epochs of a stream that are taken in before they are entered. Brokers keep what is further ahead."""
_MAX_EPOCHS_AT_ALL = 4 * MAX_EPOCHS_AHEAD
"""More than those lowest there may be for a time: lower ones can arrive after higher ones."""


@dataclass(slots=True)
class Note:
    """Something to be journalled; see :mod:`reliamsg.store.journal` for the kinds."""

    kind: str
    stream: Stream
    epoch: int
    incarnation: int
    first: int
    last: int
    site: str = ""
    reason: str = ""
    detail: Mapping[str, Any] | None = None


@dataclass(slots=True, eq=False)
class Waiting:
    """A delivery that its broker must keep until it is safe here."""

    number: int
    site: str
    token: object
    state: StreamState
    known: Reorder | None
    """None: it only waits for the commit `after`."""
    first: int
    last: int
    at: float
    ahead: bool
    """It came out of order: persist it at once."""
    size: int = 0
    """In bytes, where they count."""
    after: int = 0
    spilling: bool = False
    released: bool = False


@dataclass(slots=True)
class Pace:
    """How a stream lets go of deliveries that wait."""

    since: float = 0.0
    moved: int = 0
    """Messages of those that it let go of since then."""
    stalled_at: float | None = None
    """When some were overdue, of which a part may still be persisted."""

    def start(self, now: float) -> None:
        """Begin to count."""
        self.since, self.moved, self.stalled_at = now, 0, None


class StreamState:
    """One stream at one group."""

    __slots__ = (
        "asking", "committed", "current", "draining", "entered_to", "finishing", "gaps", "giving", "heard",
        "history", "history_changed", "joined", "joined_after", "live", "look_at", "pace", "proof",
        "redelivery", "reported", "reserve", "reserved_at", "saving_history", "stream", "takeover", "unheard",
        "used_at", "vouched", "waiting",
    )  # fmt: skip

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.live: dict[int, Reorder] = {}
        """Epochs that are draining, current, or not entered yet."""
        self.current: Reorder | None = None
        """The epoch that is being handed out; None while the stream is not joined."""
        self.draining: list[Reorder] = []
        """Entered before the current one, handed out, and not settled yet; in order."""
        self.finishing: list[Reorder] = []
        """Settled completely since the last commit."""
        self.history = History()
        # (epoch, number) at which the group joined; and the epoch before, 0 for none, None where that is not known.
        self.joined: tuple[int, int] | None = None
        self.joined_after: int | None = None
        self.gaps, self.pace = GapTracker(), Pace()
        self.redelivery = Redelivery()
        self.look_at = self.used_at = 0.0  # nothing of the stream is timed before the former
        # Unheard: it was joined without a word from its producer, which may count the group from before that.
        # Vouched: the highest epoch that the producer or an operator vouched for though it was far ahead.
        # Saving history: a commit that is being written holds a change of it.
        # Giving: what was taken is on its way to the application, which may not have been given all of it yet.
        self.unheard = self.history_changed = self.saving_history = self.giving = False
        # Entered to: the highest epoch that had been entered before this process began; what lies below and was not is
        # behind the stream.
        self.reserve, self.reserved_at, self.vouched, self.entered_to = 2_000, 0, 0, 0
        self.reported: set[tuple[int, int]] = set()
        self.waiting: list[Waiting] = []
        self.heard: Heard | None = None
        """What its producers have said; None while they said nothing."""
        self.asking: Asking | None = None
        """Requests for what is missing; None while nothing is."""
        self.committed: tuple[Position, tuple[int, int], int] = ((0, 1), (0, 0), 0)
        """Position, highest epoch entered with incarnation, high-water mark, as the last commit holds them."""
        self.takeover = TakeoverBounds()
        # What its producer said in answer to this group, since it began to read; kept while the stream is not joined.
        self.proof: Announced | None = None

    def is_ahead(self, epoch: int) -> bool:
        """Whether the epoch lies beyond the one that is being handed out."""
        return self.current is None or not (self.has_entered(epoch) or self.had_entered(epoch))

    def came_before(self, epoch: int) -> bool:
        """Whether the epoch came before the group joined, as far as is known. What lies between the epoch in which it
        did and the one before that is another history's: its outbox went back, and so did its clock."""
        if self.joined is None or epoch >= self.joined[0]:
            return False
        return self.joined_after is None or epoch <= self.joined_after

    def was_passed_over(self, epoch: int) -> bool:
        """Whether the epoch, which is behind the stream, is not known to have been entered, or to have come before the
        group joined."""
        known = epoch <= self.history.floor or self.history.find(epoch) is not None
        return not (known or self.came_before(epoch))

    def is_behind_other(self, epoch: int) -> bool:
        """Whether another inbox, from which this one takes over, has dealt with the epoch."""
        report = self.takeover.report
        return self.current is None and report is not None and epoch < report.position[0]

    def flag(self, known: Reorder) -> None:
        """The epoch is entered: what another inbox may have handed out of it counts as handed out before."""
        self.takeover.flag(known)
        self.flag_moved(known)

    def flag_moved(self, known: Reorder) -> None:
        """What one opening of an outbox published may come in two epochs: it was moved, and the outbox put back to when
        it was not. Numbers that were handed out in the other one count as handed out before."""
        prev = known.prev
        above = prev.epoch if prev is not None and prev.incarnation == known.incarnation else 0
        left = [(old.epoch, old.incarnation, old.last) for old in self.history.finished]
        left += [(old.epoch, old.incarnation, old.last or 0) for old in self.draining]
        for epoch, incarnation, last in left:
            if incarnation == known.incarnation and above < epoch < known.epoch:
                known.flag_redelivered(last + 1)

    def is_done_with(self, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether all of these arrived and are settled, as far as it is remembered."""
        known = self.live.get(epoch)
        if known is not None:
            done = known.incarnation == incarnation and last < known.position
        else:
            finished = self.history.find(epoch)
            done = finished is not None and finished.incarnation == incarnation and last <= finished.last
        return done and not self.gaps.closed.overlap(epoch, first, last)

    @property
    def history_is_safe(self) -> bool:
        """Whether all that is known of epochs behind the stream is on disk."""
        return not (self.history_changed or self.saving_history)

    def flag_entered(self) -> None:
        """The same for all epochs that are entered."""
        for known in self.entered:
            self.flag(known)

    @property
    def is_held(self) -> bool:
        """Whether a gap holds the stream, or did and a part of it is still missing."""
        return self.gaps.held_since is not None

    @property
    def has_let_go(self) -> bool:
        """Whether anything that arrived was left to its producer, and is not settled."""
        return any(known.let_go >= known.position for known in self.live.values())

    def is_behind_hold(self, epoch: int, first: int) -> bool:
        """Whether a number lies behind the gap that holds the stream."""
        if self.gaps.held_since is None:
            return False
        at, _, last = self.gaps.held_since
        if last is not None:
            return (epoch, first) > (at, last)
        later = self.next_epoch()  # the gap's extent is not known: it ends where this begins
        return later is not None and epoch >= later.epoch

    def is_first_of_gap(self, known: Reorder, head: int, seq: int, now: float) -> bool:
        """Whether a number is in the gap that begins at `head`, and no producer that was heard lately may hold any
        before it. What an opening before the latest last said it held may be gone since."""
        beyond = known.held.next_at(head)
        if self.heard is None or (beyond is not None and seq > beyond):
            return False
        return not self.heard.may_hold(known, head, seq - 1, now)

    def take_accepted(self) -> None:
        """What was accepted where this inbox takes over from counts here as well, as far as it is of the current epoch
        and not dealt with."""
        report = self.takeover.report
        if report is None or self.current is None:
            return
        for epoch, low, last in report.accepted:
            first = max(low, self.current.position)
            if epoch == self.current.epoch and first <= last:
                self.gaps.accept(first, last, "accepted", None)
                self.history_changed = True

    def has_entered(self, epoch: int) -> bool:
        return self.current is not None and epoch <= self.current.epoch

    def had_entered(self, epoch: int) -> bool:
        """Whether that was so before this process began, also if it has come to be so again not yet."""
        return epoch <= self.entered_to

    def has_room(self, epoch: int) -> bool:
        """Whether one more epoch may wait to be entered."""
        ahead = len(self.live) - len(self.draining) - (self.current is not None)
        if ahead < MAX_EPOCHS_AHEAD:
            return True
        below = sum(self.is_ahead(other) and other < epoch for other in self.live)
        return below < MAX_EPOCHS_AHEAD and ahead < _MAX_EPOCHS_AT_ALL

    def next_epoch(self) -> Reorder | None:
        """The lowest epoch beyond the current one of which anything is known."""
        current = self.current
        if len(self.live) <= len(self.draining) + (current is not None):
            return None
        later = (epoch for epoch in self.live if current is None or epoch > current.epoch)
        return self.live[min(later)]

    def lowest_arrived(self) -> Reorder | None:
        """The lowest epoch of which anything is here, of a stream that is not joined. Of what arrived before a crash
        and was not stored, only the epoch may be known."""
        found = [epoch for epoch, known in self.live.items() if known.held.first is not None]
        return self.live[min(found)] if found else None

    def is_held_up(self, known: Reorder, first: int) -> bool:
        """Whether `first` can't be handed out before something that is missing arrives."""
        if known is not self.current:
            return self.current is None or known.epoch > self.current.epoch
        if first <= known.cursor:
            return False
        run = known.deliverable()
        return run is None or first > run[1] + 1

    @property
    def entered(self) -> list[Reorder]:
        """The epochs of which anything may be handed out and unacknowledged, in order."""
        return self.draining if self.current is None else [*self.draining, self.current]

    @property
    def unacknowledged(self) -> int:
        """Messages that were handed out, or are to be handed out again, and are not settled."""
        if not self.draining:
            return 0 if self.current is None else self.current.unacknowledged
        return sum(known.unacknowledged for known in self.entered)

    @property
    def failing(self) -> bool:
        """Whether a message waits to be handed out again."""
        return any(not known.retry.empty for known in self.entered)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, next number that is not settled)."""
        if self.draining:
            return self.draining[0].epoch, self.draining[0].position
        return (0, 1) if self.current is None else (self.current.epoch, self.current.position)


@dataclass(slots=True)
class EpochChange:
    """An epoch as a commit must hold it."""

    known: Reorder
    position: int
    high_water: int
    settled: list[Span]
    last: int | None
    entered: bool
    let_go: int


@dataclass(slots=True)
class StreamChange:
    """A stream as a commit must hold it."""

    state: StreamState
    epochs: list[EpochChange]
    finished: list[Reorder]
    """Of `epochs`, those that the commit must drop."""
    gap: tuple[GapKey, float, float] | None
    """The one at the head; what elapsed of its time, and what was waited."""
    attempts: dict[Position, int]
    """Those that the commit counts before they are made."""
    history: bool
    """Whether history, closed gaps or joining changed."""
    declared: list[Span3] = field(default_factory=list)
    """What was passed since the last commit."""
    accepted: tuple[Span3, ...] = ()
    """What is accepted as lost and not passed."""


@dataclass(slots=True)
class Snapshot:
    """What one commit must hold."""

    number: int
    changes: list[StreamChange]
    also: set[Stream] = field(default_factory=set)
    """Streams that the caller persisted bytes of in the same commit."""
