"""What another inbox of the group may have delivered before this one took its place.

Three bounds apply: the last report of the inbox that this one succeeds, what the producer remembers of an inbox that
was lost, and, if neither suffices, everything that existed at the takeover. Messages within these bounds are delivered
with the flag ``redelivered``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reliamsg.protocol.announced import ChainEntry, Position, Span3
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["LastReport", "Remembered", "TakeoverBounds", "Uncertainty"]


@dataclass(frozen=True, slots=True)
class LastReport:
    """Where another inbox of the group stopped, according to its last report."""

    position: Position
    entered: tuple[int, int]
    high_water: int
    accepted: tuple[Span3, ...] = ()
    """Gaps that were accepted there and not passed."""

    def flag(self, known: ReorderBuffer) -> None:
        """Flag the numbers of an epoch that the other inbox may have delivered."""
        if self.position[0] <= known.epoch < self.entered[0]:
            known.flag_redelivered(MAX_SEQ)  # it had gone through all of it
        if (known.epoch, known.incarnation) == self.entered:
            known.flag_redelivered(self.high_water)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the producer remembers of an inbox that is gone: what it had settled and may have delivered."""

    position: Position
    """Everything before it was settled."""
    epoch: int
    """Earlier epochs may have been delivered completely, and this one below a number."""
    incarnation: int | None
    """None: not known."""
    below: int
    knows: tuple[tuple[int, int], ...] = ()
    """Epochs up to the position and their incarnations, as the producer knows them. Nothing of another history in
    between was settled."""

    def settled_in(self, chain: Iterable[ChainEntry]) -> Position:
        """The position in a chain before which everything was settled."""
        for epoch, incarnation, _, _ in chain:
            if epoch > self.position[0]:
                break
            if self.knows and epoch >= self.knows[0][0] and (epoch, incarnation) not in self.knows:
                return epoch, 1
        return self.position

    def flag(self, known: ReorderBuffer) -> None:
        """Flag the numbers of an epoch that may have been delivered there."""
        if known.epoch < self.epoch:
            known.flag_redelivered(MAX_SEQ)
        elif known.epoch == self.epoch and self.incarnation in (None, known.incarnation):
            known.flag_redelivered(self.below)


@dataclass(slots=True)
class Uncertainty:
    """What another inbox may have delivered in its last moments without being able to report it, before this one took
    its place. Everything that existed then counts as delivered."""

    after: int
    """It had reported its deliveries of epochs up to this one."""
    end: Position | None = None
    """The end of all that existed, as announced by the producer. None until then, so everything that arrives existed.
    Announcements that predate the takeover do not count."""
    link: tuple[int, int] | None = None
    """The latest epoch of the history that the producer announced then, and its incarnation; None if unknown."""

    def flag(self, known: ReorderBuffer) -> None:
        """Flag the numbers of an epoch that may have been delivered."""
        if known.epoch <= self.after:
            return
        if self.end is None:
            below = known.arrived + 1
        elif known.epoch < self.end[0] or self._is_lost(known):
            below = MAX_SEQ
        else:
            below = self.end[1] if known.epoch == self.end[0] else 0
        known.flag_redelivered(below)

    def resolve(self, end: Position, link: tuple[int, int]) -> None:
        """The producer announces that everything before `end` existed; `link` is the latest epoch."""
        self.end, self.link = end, link

    def extend(self, end: Position) -> None:
        """More existed than was known, if the end is known."""
        if self.end is not None:
            self.end = max(self.end, end)

    def _is_lost(self, known: ReorderBuffer) -> bool:
        """Whether an epoch belongs to a history that the producer does not know, because its outbox was lost: then all
        of it existed."""
        if self.link is None or known.epoch < self.link[0]:
            return False
        own = known.epoch, known.incarnation
        if not (
            known.only_announced
            or own == self.link
            or (known.prev is not None and known.prev[:2] == self.link)
        ):
            return True
        self.link = own
        return False


class TakeoverBounds:
    """All three bounds for one stream."""

    __slots__ = ("number", "remembered", "report", "uncertainty")

    def __init__(self, uncertainty: Uncertainty | None = None, number: int = 0) -> None:
        """Both as the inbox holds them."""
        self.report: LastReport | None = None
        """Of the inbox that this one succeeds."""
        self.remembered: Remembered | None = None
        """What the producer remembers of another inbox of the group, of which nothing else is known."""
        self.uncertainty = uncertainty
        """Also set if the stream was joined although its producer did not vouch for everything that arrived."""
        self.number: int = number
        """The latest takeover of the inbox that the stream has taken part in."""

    def succeed(self, report: LastReport) -> None:
        """This inbox continues where another one stopped."""
        self.report = report

    def remember(self, remembered: Remembered) -> None:
        """The producer announced another inbox of the group."""
        self.remembered = remembered

    def begin(self, after: int, number: int) -> None:
        """Takeover `number` of the inbox: another one may have continued the stream, and reported its deliveries of
        epochs up to `after` only."""
        self.uncertainty, self.number = Uncertainty(after), number

    def note_unproven(self) -> None:
        """Anyone may have replayed what arrived: nobody vouches for it."""
        if self.uncertainty is None:
            self.uncertainty = Uncertainty(0)

    def note_proven(self, new: Position) -> None:
        """The producer vouches for what arrived from `new` on; earlier messages may have been delivered."""
        if self.uncertainty is None:
            self.uncertainty = Uncertainty(0, new)
        else:
            self.uncertainty.extend(new)

    def keep(self, epoch: int) -> bool:
        """The stream leaves memory, or the inbox is closed, within this epoch: what another inbox may have delivered of
        later epochs goes with what the inbox stores. Returns whether that changes."""
        ends = [] if self.report is None else [(self.report.entered[0], self.report.high_water)]
        ends += [] if self.remembered is None else [(self.remembered.epoch, self.remembered.below)]
        end, before = max(ends, default=(0, 0)), self.uncertainty
        if end[0] <= epoch:
            return False
        if before is None:
            self.uncertainty = Uncertainty(0, end)
        else:
            known = None if before.end is None else max(before.end, end)
            self.uncertainty = Uncertainty(min(before.after, epoch), known, before.link)
        return self.uncertainty != before

    @property
    def unresolved(self) -> Uncertainty | None:
        """The uncertainty for which the producer has not announced yet what existed."""
        uncertainty = self.uncertainty
        return None if uncertainty is None or uncertainty.end is not None else uncertainty

    def flag(self, known: ReorderBuffer) -> None:
        """The epoch is entered: flag what another inbox may have delivered of it."""
        for bound in (self.report, self.remembered, self.uncertainty):
            if bound is not None:
                bound.flag(known)
