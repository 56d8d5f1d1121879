"""Deduplication and reordering within one epoch of one stream.

Numbers go through these states, and every number at or above `position` is in exactly one of them::

    unknown ── place() ──▶ held ── advance() ──▶ delivered ── settle() ──▶ settled
       └───────────────────── settle(): a gap was passed ────────────────────▲

`held` keeps a number until it is settled, so the delivered numbers are those held below `cursor`. Settled numbers
beyond `position` are kept as ranges; a stream that is handled in order has none. Next to the state in memory there is
the durable one: ``safe_position`` and ``safe`` follow ``position`` and ``settled`` at each commit, and `persisted` is
the part of `held` whose bytes are in the inbox. Only durable state allows a delivery to be acknowledged to its broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from reliamsg.message import Prev
from reliamsg.protocol.ranges import RangeSet, Span

__all__ = ["ReorderBuffer"]


class ReorderBuffer:
    """One epoch: which of its numbers have arrived, were delivered, and are settled."""

    __slots__ = (
        "announced", "cursor", "elsewhere", "epoch", "held", "high_water", "incarnation", "journalled", "last",
        "let_go", "only_announced", "persisted", "position", "prev", "redelivered_below", "removed",
        "requested", "retry", "safe", "safe_position", "settled", "undecodable", "unlinked",
    )  # fmt: skip

    def __init__(self, epoch: int, incarnation: int, prev: Prev | None, position: int = 1) -> None:
        self.epoch: int = epoch
        self.incarnation: int = incarnation
        self.prev = prev
        self.position: int = position
        """Everything below is settled."""
        self.cursor: int = position
        """The next number to deliver for the first time."""
        self.settled: RangeSet = RangeSet()
        self.held: RangeSet = RangeSet()
        self.persisted: RangeSet = RangeSet()
        self.retry: RangeSet = RangeSet()
        """Delivered, failed, and to be delivered again before anything else."""
        self.safe_position: int = position
        self.safe: RangeSet = RangeSet()
        self.high_water: int = 0
        """Committed: numbers below may have been delivered."""
        self.redelivered_below: int = 0
        """Numbers below may have been delivered before this process began."""
        self.journalled: int = 0
        """Numbers up to this one were delivered before this process began, according to the journal."""
        self.last: int | None = None
        """The last number of the epoch, once a later epoch was entered."""
        self.undecodable: RangeSet = RangeSet()
        """Missing numbers of which an unreadable copy arrived."""
        self.announced: int = 0
        """The highest number that its producer has announced."""
        self.let_go: int = 0
        """The highest number that arrived and was left to its producer, to be requested later."""
        self.only_announced: bool = False
        """Nothing of the epoch has arrived."""
        self.unlinked: bool = False
        """The announcement did not say which epoch came before, since the producer holds nothing of that one."""
        self.elsewhere: int = 0
        """The caller keeps this number and those beyond it, and passes them in once the stream has come to it; 0:
        nothing. A gap before it ends there."""
        self.removed: RangeSet = RangeSet()
        """Numbers that the producer removed. Those that arrived nevertheless are delivered."""
        self.requested: RangeSet = RangeSet()
        """Missing numbers whose request was journalled."""

    @classmethod
    def from_announcement(cls, epoch: int, incarnation: int, prev: Prev | None = None) -> Self:
        """An epoch that is only announced."""
        known = cls(epoch, incarnation, prev)
        known.only_announced = True
        return known

    def restore(
        self, settled: Sequence[Span], high_water: int, journalled: int, last: int | None, let_go: int
    ) -> None:
        """Restore what the inbox holds; see the attributes."""
        self.settled, self.safe = RangeSet(settled), RangeSet(settled)
        self.high_water = self.redelivered_below = high_water
        self.journalled, self.last, self.let_go = journalled, last, let_go
        if last is None:
            self.announced = let_go

    # -- what is said of it -----------------------------------------------------------------------------------

    def announce(self, last: int) -> None:
        """Numbers up to `last` exist."""
        self.announced = max(self.announced, last)

    def confirm(self, prev: Prev | None) -> None:
        """Data of an epoch arrives that was only announced: data outweighs announcements."""
        self.only_announced, self.unlinked, self.prev = False, False, prev

    def unlink(self) -> None:
        """The announcement did not say which epoch came before."""
        self.unlinked = True

    def link_to(self, prev: Prev | None) -> None:
        """The producer announces which epoch came before. Data outweighs that."""
        if self.only_announced and self.prev is None:
            self.prev = prev
            self.unlinked &= prev is None

    @property
    def epoch_before(self) -> int | None:
        """The epoch before, 0 for none; None if nobody said so."""
        if self.prev is not None:
            return self.prev.epoch
        return None if self.only_announced else 0

    def leave_to_producer(self, last: int) -> None:
        """Numbers up to `last` arrived and are left to their producer, to be requested later."""
        self.let_go = max(self.let_go, last)
        self.announce(last)

    def keep_elsewhere(self, first: int) -> bool:
        """The caller keeps `first` and what follows; returns whether that is new."""
        if first <= self.cursor or self.cursor < self.elsewhere <= first:
            return False
        self.elsewhere = first
        self.announce(first - 1)
        return True

    def end(self) -> None:
        """The stream enters another epoch: nothing of this one is expected beyond the cursor."""
        self.last = self.cursor - 1

    def abandon(self) -> None:
        """Stop waiting for anything of this epoch."""
        self.last = self.proven
        self.place_at(self.last + 1)

    @property
    def is_drained(self) -> bool:
        """Whether a later epoch was entered, and everything of this one is settled."""
        return self.last is not None and self.position > self.last

    # -- what arrived -----------------------------------------------------------------------------------------

    def flag_redelivered(self, below: int) -> None:
        """Numbers below may have been delivered before."""
        self.redelivered_below = max(self.redelivered_below, below)

    def place_at(self, first: int) -> None:
        """Begin, or continue, with `first`, and ignore everything before it. Numbers from there on that were delivered
        may be delivered again."""
        if self.cursor > first:
            self.flag_redelivered(self.cursor)
        self.held.discard_below(first)
        self.retry.discard_below(first)
        self.settled.discard_below(first)
        run = self.settled.run_from(first)
        self.position = self.cursor = first if run is None else run + 1
        self.settled.discard_below(self.position)

    def place(self, first: int, last: int) -> list[Span]:
        """Record that `first` to `last` arrived; return the ranges that are new, in order."""
        if last < self.position:
            return []
        first = max(first, self.position)
        if self.settled.empty:
            new = self.held.insert(first, last)
        else:
            new = self.missing(first, last)
            for span in new:
                self.held.add(*span)
        if not self.undecodable.empty:
            for span in new:
                self.undecodable.remove(*span)
        return new

    def missing(self, first: int, last: int) -> list[Span]:
        """The ranges among `first` to `last` that are neither held nor settled, in order."""
        return [part for span in self.held.missing(first, last) for part in self.settled.missing(*span)]

    def head(self) -> int:
        """The next number to deliver for the first time, past those already settled."""
        if not self.settled.empty:
            run = self.settled.run_from(self.cursor)
            if run is not None:
                self.cursor = run + 1
        return self.cursor

    def deliverable(self) -> Span | None:
        """The unbroken run of held numbers that starts at the head."""
        head = self.cursor if self.settled.empty else self.head()
        if (self.held.last or 0) < head:
            return None
        run = self.held.run_from(head)
        return None if run is None else (head, run)

    def advance(self, last: int) -> None:
        """Numbers up to `last` are delivered now."""
        self.cursor = max(self.cursor, last + 1)

    def untake(self, first: int) -> None:
        """Numbers from `first` on did not reach the application after all."""
        self.cursor = max(self.position, min(self.cursor, first))

    def acknowledge(self, first: int, last: int) -> list[Span]:
        """The application acknowledged `first` to `last`; return the ranges that were not settled before."""
        last = min(last, self.cursor - 1)
        if first > last:
            return []
        done = self.held.take(first, last)
        for span in done:
            self._finish(*span)
        return done

    def settle(self, first: int, last: int) -> None:
        """Finish `first` to `last`, all of which lie at or above `position`."""
        self.held.remove(first, last)
        self._finish(first, last)

    def _finish(self, first: int, last: int) -> None:
        """These are not held any more: they are settled."""
        if not self.retry.empty:
            self.retry.remove(first, last)
        if first == self.position and self.settled.empty:  # the usual case: in order
            self.position = last + 1
        else:
            self.settled.add(first, last)
            run = self.settled.run_from(self.position)
            if run is not None:
                self.position = run + 1
                self.settled.discard_below(self.position)
        self.cursor = max(self.cursor, self.position)

    def reopen(self, first: int, last: int) -> None:
        """The bytes of `first` to `last`, which were not delivered yet, are unreadable: wait for another copy."""
        for span in self.held.overlap(max(first, self.cursor), last) if last >= self.cursor else ():
            self.held.remove(*span)
            self.persisted.remove(*span)
            self.undecodable.add(*span)

    @property
    def unacknowledged(self) -> int:
        """The count of numbers that were delivered, or wait for redelivery, and are not settled."""
        count = self.cursor - self.position
        if count and not self.settled.empty:
            for first, last in self.settled.overlap(self.position, self.cursor - 1):
                count -= last - first + 1
        return count

    @property
    def highest(self) -> int:
        """The highest number known to exist."""
        return max(self.arrived, self.announced)

    @property
    def proven(self) -> int:
        """The same, including what is known from before this process: delivered but unsettled numbers arrive again."""
        return max(self.highest, self.journalled, self.last or 0)

    @property
    def arrived(self) -> int:
        """The highest number known to exist from the epoch's own data."""
        return max(self.held.last or 0, self.settled.last or 0, self.cursor - 1)

    def is_in_order(self) -> bool:
        """Whether everything known to exist from the cursor on has arrived, as one run."""
        held, cursor = self.held, self.cursor
        top = held.last or 0
        if (self.announced > top and self.announced >= cursor) or not self.settled.empty:
            return False
        return top < cursor or held.run_from(cursor) == top

    def is_safe(self, first: int, last: int) -> bool:
        """Whether `first` to `last` would survive a crash without any broker's help."""
        if last < self.safe_position:
            return True
        first = max(first, self.safe_position)
        if self.last is not None:
            last = min(last, self.last)  # what is beyond is not this epoch's any more
        if first > last:
            return True
        if self.persisted.empty and self.safe.empty:
            return False
        return all(self.safe.covers(*span) for span in self.persisted.missing(first, last))

    def unsafe_held(self, first: int, last: int) -> list[Span]:
        """The held numbers among `first` to `last` that are neither settled nor persisted."""
        return [part for span in self.held.overlap(first, last) for part in self.persisted.missing(*span)]

    def holes(self, end: int, most: int) -> list[Span]:
        """The lowest `most` missing ranges up to `end`, excluding removed numbers."""
        head = self.head()
        if end < head or self.held.run_from(head) == end:
            return []
        found: list[Span] = []
        spans = self.held.missing(head, end, most)
        while spans:
            for span in spans:
                for part in self.settled.missing(*span):
                    found += self.removed.missing(*part)
                    if len(found) >= most:
                        return found[:most]
            last = spans[-1][1]
            spans = self.held.missing(last + 1, end, most) if last < end and len(spans) == most else []
        return found

    def committed(self, position: int, settled: Sequence[Span], high_water: int) -> None:
        """A commit holds this position, these settled ranges, and this high-water mark."""
        self.high_water = high_water
        self.safe_position = max(self.safe_position, position)
        if settled or not self.safe.empty:
            self.safe = RangeSet(settled)
        if not self.persisted.empty:
            self.persisted.discard_below(self.safe_position)
        if not self.requested.empty:
            self.requested.discard_below(self.safe_position)
        if not self.removed.empty:
            self.removed.discard_below(self.safe_position)
