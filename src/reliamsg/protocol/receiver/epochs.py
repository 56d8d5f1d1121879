"""The epochs of one stream that are not behind it: which one is being delivered, and what is missing from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from reliamsg.message import Prev
from reliamsg.protocol.announced import Announced, Position
from reliamsg.protocol.receiver.chain import History, Link, LinkKind, link
from reliamsg.protocol.receiver.gaps import GapKey
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["MAX_EPOCHS_AHEAD", "MAX_MISSING", "MAX_REMOVED", "EpochChain", "Joined", "gap_at_head"]

MAX_EPOCHS_AHEAD = 32
"""The lowest epochs of a stream that are accepted before they are entered. Brokers keep messages of later ones."""
_MAX_EPOCHS_AT_ALL = 4 * MAX_EPOCHS_AHEAD
"""There may temporarily be more than those lowest ones: lower epochs can arrive after higher ones."""
MAX_MISSING = 100
"""Missing ranges that are reported to a producer: the lowest."""
MAX_REMOVED = 1_000
"""Removed ranges of a status, and of an epoch, that are taken into account."""


class EpochChain:
    """The epochs that are draining, current, or not entered yet, and the history of those behind them."""

    __slots__ = (
        "current",
        "draining",
        "entered_to",
        "finishing",
        "history",
        "joined",
        "joined_after",
        "live",
        "unheard",
    )

    def __init__(self, history: History | None = None, joined: Joined | None = None) -> None:
        """Both as the inbox holds them."""
        self.live: dict[int, ReorderBuffer] = {}
        """By number."""
        self.current: ReorderBuffer | None = None
        """The epoch that is being delivered; None while the stream is not joined."""
        self.draining: list[ReorderBuffer] = []
        """Entered before the current one, delivered, but not settled yet; in order."""
        self.finishing: list[ReorderBuffer] = []
        """Completely settled since the last commit."""
        self.history: History = History() if history is None else history
        self.entered_to: int = 0
        """The highest epoch that was entered before this process began. Lower epochs that were not entered are behind
        the stream."""
        self.joined: Position | None = None
        """Where the group joined the stream."""
        self.joined_after: int | None = None
        """The epoch before that; 0 for none, None if unknown."""
        self.unheard: bool = False
        """The group joined without an announcement by the producer, which may count the group from an earlier
        position."""
        if joined is not None:
            self.joined, self.joined_after, self.unheard = joined

    def restore(self, epochs: Iterable[tuple[ReorderBuffer, bool]]) -> None:
        """Continue with these epochs, in order, as an earlier process left them; each with whether it was entered."""
        for known, entered in epochs:
            self.live[known.epoch] = known
            self.entered_to = max(self.entered_to, known.epoch if entered else 0)
            # Otherwise an earlier epoch was left while messages of it were being handled. They come again, and have
            # to come first: the later epoch is entered anew after them, and none between the two.
            if entered and (self.current is None or self.current.is_drained):
                if self.current is not None:
                    self.draining.append(self.current)
                self.current = known

    # -- where an epoch is ----------------------------------------------------------------------------------

    def is_ahead(self, epoch: int) -> bool:
        """Whether the epoch lies beyond the one that is being delivered."""
        return self.current is None or (epoch > self.current.epoch and epoch > self.entered_to)

    def came_before(self, epoch: int) -> bool:
        """Whether the epoch came before the group joined, as far as is known. Epochs between the one in which it joined
        and the one before that belong to another history: the outbox went back, and so did its clock."""
        if self.joined is None or epoch >= self.joined[0]:
            return False
        return self.joined_after is None or epoch <= self.joined_after

    def was_passed_over(self, epoch: int) -> bool:
        """Whether an epoch behind the stream was neither entered, nor came before the group joined, as far as is
        known."""
        known = epoch <= self.history.floor or self.history.find(epoch) is not None
        return not (known or self.came_before(epoch))

    def has_room(self, epoch: int) -> bool:
        """Whether one more epoch may wait to be entered."""
        ahead = len(self.live) - len(self.draining) - (self.current is not None)
        if ahead < MAX_EPOCHS_AHEAD:
            return True
        below = sum(self.is_ahead(other) and other < epoch for other in self.live)
        return below < MAX_EPOCHS_AHEAD and ahead < _MAX_EPOCHS_AT_ALL

    @property
    def has_one(self) -> bool:
        """Whether the current epoch is the only one that is not draining."""
        return self.current is not None and len(self.live) == len(self.draining) + 1

    def next_epoch(self) -> ReorderBuffer | None:
        """The lowest known epoch beyond the current one."""
        current = self.current
        if len(self.live) <= len(self.draining) + (current is not None):
            return None
        later = (epoch for epoch in self.live if current is None or epoch > current.epoch)
        return self.live[min(later)]

    def lowest_arrived(self) -> ReorderBuffer | None:
        """The lowest epoch of which anything is held, for a stream that is not joined. After a crash, nothing may be
        left of an epoch but its number."""
        found = [epoch for epoch, known in self.live.items() if known.held.first is not None]
        return self.live[min(found)] if found else None

    def is_held_up(self, known: ReorderBuffer, first: int) -> bool:
        """Whether `first` can only be delivered once missing messages have arrived."""
        if known is not self.current:
            return self.current is None or known.epoch > self.current.epoch
        if first <= known.cursor:
            return False
        run = known.deliverable()
        return run is None or first > run[1] + 1

    def incarnation_of(self, epoch: int) -> int | None:
        """The incarnation of an epoch, if it is known."""
        known = self.live.get(epoch)
        if known is not None:
            return known.incarnation
        done = self.history.find(epoch)
        return None if done is None else done.incarnation

    def reached(self, epoch: int) -> int:
        """The last number of an epoch that arrived or was passed; 0 if nothing is known of it."""
        if self.current is not None and epoch == self.current.epoch:
            return self.current.arrived
        done = self.history.find(epoch)
        return 0 if done is None else done.last

    # -- what is delivered ------------------------------------------------------------------------------------

    @property
    def entered(self) -> list[ReorderBuffer]:
        """The epochs of which anything may be delivered or unacknowledged, in order."""
        return self.draining if self.current is None else [*self.draining, self.current]

    @property
    def unacknowledged(self) -> int:
        """The number of messages that were delivered, or wait for redelivery, and are not settled."""
        if not self.draining:
            return 0 if self.current is None else self.current.unacknowledged
        return sum(known.unacknowledged for known in self.entered)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was delivered is settled."""
        return not self.draining and (self.current is None or self.current.unacknowledged == 0)

    @property
    def is_failing(self) -> bool:
        """Whether a message waits for redelivery."""
        return any(not known.retry.empty for known in self.entered)

    @property
    def position(self) -> Position:
        """(epoch, next unsettled number)."""
        if self.draining:
            return self.draining[0].epoch, self.draining[0].position
        return (0, 1) if self.current is None else (self.current.epoch, self.current.position)

    @property
    def has_let_go(self) -> bool:
        """Whether anything that arrived was left to its producer and is not settled."""
        return any(known.let_go >= known.position for known in self.live.values())

    def flag_moved(self, known: ReorderBuffer) -> None:
        """Flag messages of an opening of the outbox that may arrive in two epochs, because they were renumbered and the
        outbox was then restored to an earlier state. Numbers delivered in one epoch count as delivered before in the
        other."""
        prev = known.prev
        above = prev.epoch if prev is not None and prev.incarnation == known.incarnation else 0
        left = [(old.epoch, old.incarnation, old.last) for old in self.history.finished]
        left += [(old.epoch, old.incarnation, old.last or 0) for old in self.draining]
        for epoch, incarnation, last in left:
            if incarnation == known.incarnation and above < epoch < known.epoch:
                known.flag_redelivered(last + 1)

    # -- going on -----------------------------------------------------------------------------------------------

    def add(self, known: ReorderBuffer) -> ReorderBuffer:
        """Add an epoch."""
        self.live[known.epoch] = known
        return known

    def discard(self, epoch: int) -> None:
        """Drop an epoch whose announcement proved wrong."""
        del self.live[epoch]

    def enter(self, later: ReorderBuffer, is_ended: bool) -> ReorderBuffer:
        """Go on with the next epoch, since all of the current one is delivered or passed. `is_ended`: the end of the
        current one is known. Returns it."""
        known = self.current
        assert known is not None  # only a joined stream has an epoch to leave
        known.end()
        self.draining.append(known)
        self.current = later
        self.history.note_change()
        if not is_ended:
            self.history.unended.add(known.epoch)
        return known

    def finish_drained(self) -> bool:
        """Move epochs that are completely settled into history, in order. Returns whether there were any."""
        found = False
        while self.draining and self.draining[0].is_drained:
            known = self.draining.pop(0)
            del self.live[known.epoch]
            self.finishing.append(known)
            self.history.add(known.epoch, known.incarnation, known.last or 0)
            found = True
        return found

    def begin(self, known: ReorderBuffer, first: int, unheard: bool, took_over: bool) -> None:
        """The stream is joined with number `first` of an epoch. `took_over`: another inbox of the group had joined it
        before."""
        for number in [number for number in self.live if number < known.epoch]:
            self._leave(number)  # what comes of it came before
        self.current = known
        if not took_over:
            self.joined_after = known.epoch_before
        elif self.joined is None or self.joined[0] != known.epoch:
            self.joined_after = None  # in the same epoch what came before it is as well known as it was
        self.joined, self.unheard = (known.epoch, first), unheard
        self.history.note_change()

    def leave_behind(self, epoch: int) -> None:
        """Another inbox has dealt with everything before an epoch."""
        for number in sorted(number for number in self.live if number < epoch):
            known = self._leave(number)
            self.history.add(number, known.incarnation, known.highest)
        self.draining.clear()
        if self.current is not None and self.current.epoch < epoch:
            self.current = None

    def joined_behind(self, epochs: Iterable[int]) -> None:
        """The latest of these came directly before the epoch with which the stream continues."""
        self.joined_after = max(epochs, default=self.joined_after)

    def note_announced(self) -> None:
        """The producer of a stream that was joined without its announcement has announced it."""
        self.unheard = False
        self.history.note_change()

    def take_finishing(self) -> list[ReorderBuffer]:
        """The epochs that the next commit drops."""
        found, self.finishing = self.finishing, []
        return found

    def put_back(self, finishing: list[ReorderBuffer]) -> None:
        """The commit failed: these belong to the next one."""
        self.finishing[:0] = finishing

    def _leave(self, epoch: int) -> ReorderBuffer:
        """Stop waiting for anything of an epoch."""
        known = self.live.pop(epoch)
        known.abandon()
        self.finishing.append(known)
        return known

    # -- what is said to exist --------------------------------------------------------------------------------

    def extend(self, announced: Announced) -> None:
        """Take into account what a chain announces about the current epoch and later ones: their existence, order, and
        ends. Data outweighs it."""
        before: Prev | None = None
        for number, (epoch, incarnation, first, last) in enumerate(announced.chain):
            prev, before = before, Prev(epoch, incarnation, last)
            known = self.live.get(epoch)
            if known is None:
                # What the chain's first entry followed is not known, unless something of it is held. But where the
                # group is counted from within it, it has missed something of it.
                counted = announced.since is not None and announced.since <= (epoch, last)
                if not self.is_ahead(epoch) or (number == 0 and first > last and not counted):
                    continue
                if not self.has_room(epoch):
                    break  # the rest when the stream has gone on
                known = self.add(ReorderBuffer.from_announcement(epoch, incarnation, prev))
                if number == 0 and first > last:
                    known.unlink()
            elif known.incarnation != incarnation:
                break
            known.link_to(prev)
            if known.last is None:
                known.announce(last)
        for epoch, first, last in announced.removed[:MAX_REMOVED]:
            known = self.live.get(epoch)
            if known is not None and known.last is None and known.removed.intervals < MAX_REMOVED:
                known.removed.add(first, last)

    def lacking(self, most: int = MAX_MISSING) -> list[tuple[ReorderBuffer, int, int]]:
        """The lowest `most` ranges that are known to exist and have not arrived: epoch, first and last number."""
        found: list[tuple[ReorderBuffer, int, int]] = []
        if self.current is None:
            return found
        epochs = self._epochs()
        for i, known in enumerate(epochs):
            later = epochs[i + 1] if i + 1 < len(epochs) else None
            for first, last in known.holes(_end(known, later), most - len(found)):
                found.append((known, first, last))
            if len(found) >= most:
                break
        return found

    @property
    def is_in_order(self) -> bool:
        """Whether nothing is missing, in the usual case: one epoch, in one piece."""
        return self.has_one and self.current is not None and self.current.is_in_order()

    def is_puzzled(self, cuts: Iterator[int]) -> bool:
        """Whether only a status can tell what is missing. `cuts`: the ends of chains that are only partly known."""
        if self.current is None:
            return bool(self.live)
        epochs = self._epochs()
        if any(top <= epochs[-1].epoch for top in cuts):
            return True  # there are more epochs than were remembered
        return any(link(a, b).kind is LinkKind.UNKNOWN for a, b in pairwise(epochs))

    @property
    def top(self) -> Position:
        """The latest position known to exist."""
        if len(self.live) == 1 or self.has_one:
            known = self.current or next(iter(self.live.values()))
        else:
            known = self.live[max(self.live)]
        return known.epoch, max(known.highest, 1)

    def _epochs(self) -> list[ReorderBuffer]:
        """The epochs of which anything may be missing, in order."""
        current = self.current
        if current is not None and len(self.live) == len(self.draining) + 1:
            return [current]
        return [self.live[epoch] for epoch in sorted(self.live) if current is None or epoch >= current.epoch]


Joined = tuple[Position | None, int | None, bool]
"""Where the group joined a stream, the epoch before that, and whether the producer had announced nothing by then."""


def _end(known: ReorderBuffer, later: ReorderBuffer | None) -> int:
    """The last number of an epoch that is known to exist."""
    prev = None if later is None else later.prev
    if prev is None or (prev.epoch, prev.incarnation) != (known.epoch, known.incarnation):
        return known.highest
    return max(known.highest, prev.last)


def gap_at_head(known: ReorderBuffer, joint: Link) -> GapKey | None:
    """The gap at the head of an epoch of which nothing can be delivered; None if the epoch is complete. `joint`: how
    the next epoch continues it."""
    target = _whole_gap(known, joint)
    if target is not None and known.elsewhere > target[1]:
        epoch, head, last = target
        last = known.elsewhere - 1 if last is None else min(last, known.elsewhere - 1)
        target = epoch, head, last
    if target is None or known.removed.empty:
        return target
    # What was removed closes at once; the rest may still come.
    epoch, head, last = target
    run = known.removed.run_from(head)
    end = run if run is not None else (known.removed.next_at(head) or MAX_SEQ + 1) - 1
    return target if last is None else (epoch, head, min(last, end))


def _whole_gap(known: ReorderBuffer, joint: Link) -> GapKey | None:
    head = known.cursor
    beyond = known.held.next_at(head)
    settled = known.settled.next_at(head)  # acknowledged before an unclean stop: not missing
    if beyond is not None:
        last = beyond - 1
    elif joint.kind is LinkKind.UNKNOWN and known.announced < head:
        return known.epoch, head, None if settled is None else settled - 1
    else:
        last = joint.last if joint.kind in (LinkKind.ENDS, LinkKind.FORK) else known.highest
    if beyond is None and last < head:
        return None
    return known.epoch, head, last if settled is None else min(last, settled - 1)
