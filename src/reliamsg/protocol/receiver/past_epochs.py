"""What is learned about epochs that are behind their stream.

Messages of an epoch that was left before its end, or never entered, can't be delivered any more, and are declared. An
opening of the producer's outbox that does not know what the group has received (the outbox was lost, or is an older
copy) is reported and journalled with what was known, so that an audit can tell messages that were lost with a disk from
messages that were never published.
"""

from __future__ import annotations

from typing import Any

from reliamsg.message import Prev, Stream
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.receiver.chain import Finished, LinkKind, follow_on
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.epochs import EpochChain
from reliamsg.protocol.receiver.events import Conflict, Note
from reliamsg.protocol.receiver.gaps import ClosedGaps
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["ANOTHER_INCARNATION", "PastEpochs"]

ANOTHER_INCARNATION = "another incarnation of a known epoch"
MAX_REPORTED = 100
"""Openings of a stream's producer that are reported, and pairs of an opening and an epoch that are journalled; others
are only counted."""


class PastEpochs:
    """Declares and reports what is learned about the epochs behind one stream."""

    __slots__ = ("_closed", "_context", "_epochs", "_journalled", "_reported", "_stream")

    def __init__(self, stream: Stream, context: GroupContext, epochs: EpochChain, closed: ClosedGaps) -> None:
        self._stream, self._context = stream, context
        self._epochs, self._closed = epochs, closed
        self._reported: set[tuple[int, int]] = set()
        self._journalled: dict[tuple[int, int, int, int], int] = {}
        """By opening and epoch, as epoch and incarnation each: up to where the opening did not know of the epoch."""

    # -- superseded -------------------------------------------------------------------------------------------

    def supersede(self, epoch: int, incarnation: int, first: int, last: int, site: str = "") -> None:
        """Declare the ranges that were not declared before, since they exist and are behind the stream. `site`: they
        have arrived from there, so ranges that were declared before are late."""
        context, history = self._context, self._epochs.history
        seen = RangeSet([(first, last)])
        for span in history.supersede(epoch, first, last):
            context.emit(Note("declared", self._stream, epoch, incarnation, *span, site, "superseded"))
            seen.remove(*span)
            history.note_change()
            context.mark(self._stream, urgent=True)
            self._find_fork_before(Finished(epoch, incarnation, span[1]))
        for span in seen if site else ():
            context.emit(Note("late", self._stream, epoch, incarnation, *span, site, "superseded"))

    def supersede_announced(self, announced: Announced) -> None:
        """A producer announces that these epochs exist, and where they end. None of them is renumbered any more: a
        status does not name epochs that still may be."""
        went_back = self._went_back(announced)
        for epoch, incarnation, _, last in announced.chain:
            own = went_back or incarnation == announced.incarnation
            first = self._gone_back_from(announced, epoch) if own else None
            if first is None:
                first = self._behind(epoch, incarnation)
            if first is not None and first <= last:
                self.supersede(epoch, incarnation, first, last)

    def supersede_before(self, prev: Prev | None) -> None:
        """The same for the epoch that a batch names as its predecessor."""
        if prev is not None:
            first = self._behind(prev.epoch, prev.incarnation)
            if first is not None and first <= prev.last:
                self.supersede(prev.epoch, prev.incarnation, first, prev.last)

    def _went_back(self, announced: Announced) -> bool:
        """Whether an outbox does not know the epoch with which the group joined, although it has earlier ones."""
        joined, chain = self._epochs.joined, announced.chain
        return (
            joined is not None and bool(chain) and chain[0][0] < joined[0] not in {link[0] for link in chain}
        )

    def _gone_back_from(self, announced: Announced, epoch: int) -> int | None:
        """The first number for which an opening counts this group, in an epoch of its own history before the one with
        which the group joined: its outbox was lost or went back, and so did its clock, though it may have moved above
        since. None if there is none. (A group that joined without knowing from where it is counted may learn of earlier
        messages; a group that begins with the latest is not owed them. What the group had settled according to this
        history is not lost.)"""
        since, epochs = announced.since, self._epochs
        gone_back = (
            self._context.rules.begin == "earliest"
            and not (epochs.unheard or announced.late)
            and epochs.current is not None
            and epochs.joined is not None
            and epochs.history.floor < epoch < epochs.joined[0]
            and epochs.history.find(epoch) is None
        )
        if not gone_back or since is None:
            return None
        if announced.reached is not None:
            position = announced.reached[0]
            if any(link[0] == position[0] for link in announced.chain):
                since = max(since, position)
        if since[0] > epoch:
            return None
        return since[1] if epoch == since[0] else 1

    def _behind(self, epoch: int, incarnation: int) -> int | None:
        """The first number of an epoch behind the stream that can't be delivered, because the epoch was left before its
        end or never entered; None if there is none."""
        epochs = self._epochs
        if epochs.current is None or epochs.is_ahead(epoch):
            return None
        known = epochs.live.get(epoch) or epochs.history.find(epoch)
        if known is not None:
            if known.incarnation != incarnation or known.last is None:
                return None
            # What another inbox has left has no end that is known here.
            first = known.last + 1
            return first if self._closed.overlap(epoch, first, MAX_SEQ) else None
        return None if epoch <= epochs.history.floor or epochs.came_before(epoch) else 1

    # -- forks ------------------------------------------------------------------------------------------------

    def find_fork(self, epoch: int, incarnation: int, prev: Prev | None) -> None:
        """Compare the predecessor that data names with what is known of earlier epochs. Entering an epoch does that
        otherwise; this one is behind the stream, or was continued where another inbox had stopped."""
        known = self._before(epoch)
        if known is None:
            return
        joint = follow_on(known, epoch, prev)
        if joint.kind is LinkKind.FORK:
            self._report_fork(epoch, incarnation, joint.reason, known)

    def report_entered_fork(self, epoch: int, incarnation: int, reason: str, known: Finished) -> None:
        """The stream enters an epoch that did not know of the one before it. This is journalled in any case."""
        self._record(epoch, incarnation, known)
        self._context.emit(self._conflict(epoch, incarnation, reason, known))
        self.report(epoch, incarnation, reason)

    def find_announced_fork(self, announced: Announced) -> None:
        """Report a producer that has gone back behind what arrived from it, even though it has sent nothing new yet."""
        for epoch, incarnation, _, last in announced.chain:
            known = self._epochs.reached(epoch)
            if epoch < announced.epoch and last < known:
                own = announced.epoch, announced.incarnation
                reason = f"epoch {announced.epoch} says that {epoch} ended at {last}, {known} is known"
                self._report_fork(*own, reason, Finished(epoch, incarnation, known))

    def names_another_history(self, announced: Announced, site: str) -> bool:
        """Whether a status names a known epoch with another incarnation; that is reported."""
        own = (announced.epoch, announced.incarnation, 1, 0)
        for epoch, incarnation, _, last in (*announced.chain, own):
            other = self._epochs.incarnation_of(epoch)
            if other is not None and other != incarnation:
                if self.report(epoch, incarnation, ANOTHER_INCARNATION):
                    context = self._context
                    context.emit(
                        Note("conflict", self._stream, epoch, incarnation, 1, last, site, ANOTHER_INCARNATION)
                    )
                    context.mark(self._stream)
                return True
        return False

    def report(self, epoch: int, incarnation: int, reason: str) -> bool:
        """Report a conflict, once for each epoch and incarnation; False if it was reported before."""
        key = (epoch, incarnation)
        if key in self._reported or len(self._reported) >= MAX_REPORTED:
            return False
        self._reported.add(key)
        self._context.emit(Conflict(self._stream, epoch, reason))
        return True

    def _find_fork_before(self, known: Finished) -> None:
        """More of an epoch behind the stream exists than was delivered, up to that number. The epoch that was entered
        next did not know of it, unless the gap before it was of unknown extent."""
        epochs = self._epochs
        left = epochs.history.find(known.epoch) or self._before(known.epoch + 1)
        if left is not None and left.epoch in epochs.history.unended:
            return
        following = [(one.epoch, one.incarnation) for one in epochs.history.after(known.epoch)]
        following += [
            (one.epoch, one.incarnation)
            for one in epochs.live.values()
            if one.epoch > known.epoch and not epochs.is_ahead(one.epoch)
        ]
        if following:
            epoch, incarnation = min(following)
            reason = f"epoch {epoch} does not know of {known.epoch} up to {known.last}"
            self._report_fork(epoch, incarnation, reason, known)

    def _report_fork(self, epoch: int, incarnation: int, reason: str, known: Finished) -> None:
        """Report the opening once, and journal everything that it did not know: its outbox may be a copy of a copy, and
        either may have lost a part."""
        self.report(epoch, incarnation, reason)
        if self._record(epoch, incarnation, known):
            self._context.emit(self._conflict(epoch, incarnation, reason, known))
            self._context.mark(self._stream, urgent=True)

    def _record(self, epoch: int, incarnation: int, known: Finished) -> bool:
        """Record up to where an opening did not know of an epoch; returns whether that is further than before."""
        key = (epoch, incarnation, known.epoch, known.incarnation)
        if key not in self._journalled and len(self._journalled) >= MAX_REPORTED:
            return False
        further = known.last > self._journalled.get(key, -1)
        if further:
            self._journalled[key] = known.last
        return further

    def _conflict(self, epoch: int, incarnation: int, reason: str, known: Finished) -> Note:
        """The journal row for an opening that did not know of an epoch, or not up to that number."""
        detail: dict[str, Any] = {"known": [known.epoch, f"{known.incarnation:016x}", known.last]}
        current = self._epochs.current
        if current is not None and current.epoch > epoch:
            detail["entered"] = current.epoch  # of what the other history had, nobody else need know
        return Note("conflict", self._stream, epoch, incarnation, 0, 0, "", reason, detail)

    def _before(self, epoch: int) -> Finished | None:
        """The highest of the epochs below that is known from its data."""
        found = [
            Finished(known.epoch, known.incarnation, known.proven)
            for known in self._epochs.live.values()
            if known.epoch < epoch and not known.only_announced
        ]
        finished = self._epochs.history.before(epoch)
        return max([*found, *([] if finished is None else [finished])], default=None)
