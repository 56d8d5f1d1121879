"""What another inbox of the group may have delivered, where this one goes on in its place.

Three things bound it: the last report of the inbox that this one succeeds, what the producer remembers of an inbox
that was lost, and, where neither says enough, that whatever existed at the takeover may have been delivered. Messages
within these bounds are delivered with the flag ``redelivered``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reliamsg.core.announced import ChainEntry, Position, Span3
from reliamsg.core.reorder import Reorder
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["LastReport", "Remembered", "TakeoverBounds", "Uncertainty"]


@dataclass(frozen=True, slots=True)
class LastReport:
    """Where another inbox of the group stopped, by the last report that it sent."""

    position: Position
    entered: tuple[int, int]
    high_water: int
    accepted: tuple[Span3, ...] = ()
    """Gaps that had been accepted there, and not passed."""

    def flag(self, known: Reorder) -> None:
        """Numbers of an epoch that the other inbox may have delivered count as delivered before."""
        if self.position[0] <= known.epoch < self.entered[0]:
            known.flag_redelivered(MAX_SEQ)  # it had gone through all of it
        if (known.epoch, known.incarnation) == self.entered:
            known.flag_redelivered(self.high_water)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an inbox that is no more had settled, and may have delivered, as the producer remembers it."""

    position: Position
    """Everything before it was settled."""
    epoch: int
    """Everything of earlier epochs may have been delivered, and of this one what is below a number."""
    incarnation: int | None
    """None: not known."""
    below: int
    knows: tuple[tuple[int, int], ...] = ()
    """Epochs up to the position, and their incarnations, as the producer knows them: of what another history has in
    between nothing was settled."""

    def settled_in(self, chain: Iterable[ChainEntry]) -> Position:
        """Before which position of a chain everything was settled."""
        for epoch, incarnation, _, _ in chain:
            if epoch > self.position[0]:
                break
            if self.knows and epoch >= self.knows[0][0] and (epoch, incarnation) not in self.knows:
                return epoch, 1
        return self.position

    def flag(self, known: Reorder) -> None:
        """Numbers of an epoch that were delivered there count as delivered before."""
        if known.epoch < self.epoch:
            known.flag_redelivered(MAX_SEQ)
        elif known.epoch == self.epoch and self.incarnation in (None, known.incarnation):
            known.flag_redelivered(self.below)


@dataclass(slots=True)
class Uncertainty:
    """What another inbox, whose place this one took, may have delivered in its last moments without having been able to
    report it. Whatever existed then counts as delivered."""

    after: int
    """Of epochs up to this one it had reported what it may have delivered."""
    end: Position | None = None
    """Behind all that existed, as the producer says; None until it does: then whatever arrives existed. Announcements
    that predate the takeover do not count."""
    link: tuple[int, int] | None = None
    """The latest epoch of the history that the producer spoke of then, and its incarnation; None where not known."""

    def flag(self, known: Reorder) -> None:
        """Numbers of an epoch that may have been delivered count as delivered before."""
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
        """The producer says what existed: everything before `end`, whose latest epoch is `link`."""
        self.end, self.link = end, link

    def extend(self, end: Position) -> None:
        """More existed than was known, if the end is known at all."""
        if self.end is not None:
            self.end = max(self.end, end)

    def _is_lost(self, known: Reorder) -> bool:
        """Whether an epoch belongs to a history that the producer knew nothing of: it went with an outbox that was
        lost, so all of it existed."""
        if self.link is None or known.epoch < self.link[0]:
            return False
        own = known.epoch, known.incarnation
        if not (known.told or own == self.link or (known.prev is not None and known.prev[:2] == self.link)):
            return True
        self.link = own
        return False


class TakeoverBounds:
    """All of that for one stream."""

    __slots__ = ("number", "remembered", "report", "uncertainty")

    def __init__(self, uncertainty: Uncertainty | None = None, number: int = 0) -> None:
        """Both as the inbox holds them."""
        self.report: LastReport | None = None
        """Of the inbox that this one succeeds."""
        self.remembered: Remembered | None = None
        """What the producer remembers of another inbox of the group, of which nothing else is known."""
        self.uncertainty = uncertainty
        """Also where the stream was joined though its producer did not vouch for all that arrived."""
        self.number = number
        """The latest of the inbox's takeovers that the stream knows of."""

    def succeed(self, report: LastReport) -> None:
        """This inbox goes on where another one stopped."""
        self.report = report

    def remember(self, remembered: Remembered) -> None:
        """The producer told of another inbox."""
        self.remembered = remembered

    def begin(self, after: int, number: int) -> None:
        """Takeover `number` of the inbox: another one may have gone on with the stream, and reported what it delivered
        of epochs up to `after` only."""
        self.uncertainty, self.number = Uncertainty(after), number

    def note_unproven(self) -> None:
        """Anybody may have replayed what arrived: nobody vouches for any of it."""
        if self.uncertainty is None:
            self.uncertainty = Uncertainty(0)

    def note_proven(self, new: Position) -> None:
        """The producer vouches for what arrived from `new` on; what lies before it may have been delivered."""
        if self.uncertainty is None:
            self.uncertainty = Uncertainty(0, new)
        else:
            self.uncertainty.extend(new)

    @property
    def unresolved(self) -> Uncertainty | None:
        """The uncertainty of which the producer has not said yet what existed."""
        uncertainty = self.uncertainty
        return None if uncertainty is None or uncertainty.end is not None else uncertainty

    def flag(self, known: Reorder) -> None:
        """The epoch is entered: what another inbox may have delivered of it counts as delivered before."""
        for bound in (self.report, self.remembered, self.uncertainty):
            if bound is not None:
                bound.flag(known)
