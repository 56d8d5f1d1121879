"""Where a group joins a stream: where its producer announces the beginning, or with the first arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reliamsg.message import Gap, Prev, Stream
from reliamsg.protocol.announced import Announced, ChainEntry, Position
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.events import GapMissed, Moved, Note
from reliamsg.protocol.receiver.gaps import GapKey
from reliamsg.protocol.receiver.past_epochs import PastEpochs
from reliamsg.protocol.receiver.producer_view import ProducerView, keeps_any, new_from, start_after, start_of
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.stored_state import StoredState
from reliamsg.protocol.receiver.takeover import LastReport, Remembered

__all__ = ["JOINED_LATE", "Joining"]

JOINED_LATE = "joined late"
"""The reason of a gap that was passed by joining, and detected afterwards."""


class Joining:
    """Joins one stream, or continues it in place of another inbox."""

    __slots__ = (
        "_context",
        "_epochs",
        "_gaps",
        "_past",
        "_redelivery",
        "_rules",
        "_stored",
        "_stream",
        "_takeover",
        "_view",
    )

    def __init__(
        self, stream: Stream, context: GroupContext, stored: StoredState, view: ProducerView, past: PastEpochs
    ) -> None:
        self._stream, self._rules, self._context = stream, context.rules, context
        self._stored, self._view, self._past = stored, view, past
        self._epochs, self._gaps = stored.epochs, stored.gaps
        self._redelivery, self._takeover = stored.redelivery, stored.takeover

    def before_joining(self) -> GapKey | None:
        """Join the stream if it is clear where; otherwise return what to wait for."""
        lowest = self._epochs.lowest_arrived()
        if lowest is None:
            return None
        assert lowest.held.first is not None  # it arrived
        first = lowest.held.first
        report = self._takeover.report
        if report is not None and lowest.epoch == report.position[0]:
            self._take_over(lowest)
            return None
        if report is not None and lowest.prev is not None and lowest.prev.epoch == report.position[0]:
            epoch, incarnation, last = lowest.prev
            known = self._epochs.add(ReorderBuffer.from_announcement(epoch, incarnation))
            known.announce(last)
            self._take_over(known)
            return None
        at_the_start = first == 1 and lowest.prev is None
        proven = self._view.proof is not None or not self._rules.signed
        at_once = at_the_start or (self._rules.begin == "latest" and self._left_by_another() is None)
        if report is None and proven and at_once:
            self.join(lowest, first, late=not at_the_start)
            return None
        # The number 0 stands for "anything before": a lower arrival is another target, and starts the clock anew.
        return lowest.epoch, 0, first - 1

    def believed(self, announced: Announced) -> Announced | None:
        """The announcement by which the group may join when this one takes effect. With keys, only announcements in
        answer to this group count."""
        if self._rules.signed and announced.late and self._takeover.report is None:
            return self._view.proof
        return announced

    @property
    def proof_is_empty(self) -> bool:
        """Whether the producer answered that it held nothing for this group, which begins with the earliest message:
        everything that is published later is new to it."""
        proof = self._view.proof
        return self._rules.begin == "earliest" and proof is not None and self._start(proof) is None

    def joins_soon(self) -> bool:
        """Whether an announcement by which the group will join is about to take effect."""
        if self._epochs.current is not None:
            return False
        believed = [self.believed(announced) for _, announced in self._view.waiting]
        if self._rules.begin == "latest" and self._view.kept is not None:
            return True
        return any(each is not None and self._names_start(each) for each in believed)

    def _names_start(self, announced: Announced) -> bool:
        """Whether the group will join by this announcement if nothing arrives."""
        kept = self._rules.begin == "latest" and keeps_any(announced)
        return kept or self._start(announced) is not None

    def _start(self, announced: Announced) -> tuple[Position, int, Prev | None] | None:
        """Where the group begins according to this announcement; see :func:`start_of`. A group that begins with the
        latest message learns it only if another inbox of it was there before."""
        if self._rules.begin == "earliest":
            return start_of(announced, self._takeover.remembered)
        left = self._left_by_another()
        return None if left is None else start_after(announced, left)

    def _left_by_another(self) -> Remembered | None:
        """Where another inbox of the group was, according to the producer."""
        remembered = self._takeover.remembered
        return None if remembered is None or remembered.position[0] < 1 else remembered

    def join_as_announced(self, announced: Announced) -> None:
        """Join where the producer announces the beginning, or with earlier messages that have arrived."""
        if self._takeover.report is not None:
            self._adopt_as_announced(self._takeover.report, announced)
            return
        found = self._start(announced)
        if found is None:
            if self._rules.begin == "latest" and keeps_any(announced):
                self._view.note_kept(announced)
            return
        (epoch, first), incarnation, prev = found
        lowest = self._epochs.lowest_arrived()
        if lowest is not None:
            assert lowest.held.first is not None  # it arrived
            arrived = lowest.epoch, lowest.held.first
            if arrived <= (epoch, first):
                heard = self._counts(announced) and _knows_epoch(announced, lowest.epoch)
                self.join(lowest, arrived[1], late=not heard)
                return
        known = self._epochs.live.get(epoch)
        if known is None:
            known = self._epochs.add(ReorderBuffer.from_announcement(epoch, incarnation, prev))
        self.join(known, first, late=not self._counts(announced))

    def _counts(self, announced: Announced) -> bool:
        """Whether a producer counts the group. If it does not, it may still do so for earlier messages: its outbox may
        be replaced by an older copy, from before it removed the group."""
        return self._rules.begin == "latest" or announced.since is not None

    def join_behind(self, announced: Announced) -> None:
        """Nothing arrived of a stream whose producer keeps messages until the group has settled them: begin behind
        everything announced, unless the producer has announced since where the group was."""
        self.join_as_announced(announced)
        if self._epochs.current is not None:
            return
        prev: Prev | None = None
        for epoch, incarnation, _, last in announced.chain[-2:-1]:
            prev = Prev(epoch, incarnation, last)
        epoch, incarnation, _, last = announced.chain[-1]
        known = self._epochs.add(ReorderBuffer.from_announcement(epoch, incarnation, prev))
        self.join(known, last + 1)

    def join(self, lowest: ReorderBuffer, first: int, late: bool = False) -> None:
        """Begin with number `first` of the lowest epoch. Earlier messages are not lost, unless the producer counts the
        group for them, or knows another inbox of the group that was there. If that is unknown (`late`: the producer was
        not heard, does not count the group, or its outbox does not know the epoch), it may still announce it."""
        earliest = self._rules.begin == "earliest"
        lowest.place_at(first)
        prev = lowest.prev
        if prev is not None:
            self._context.emit(
                Note("before_join", self._stream, prev.epoch, prev.incarnation, 1, prev.last, reason="begin")
            )
            if earliest:
                self._gaps.closed.add(prev.epoch, 1, prev.last)
        if first > 1:
            self._context.emit(
                Note(
                    "before_join",
                    self._stream,
                    lowest.epoch,
                    lowest.incarnation,
                    1,
                    first - 1,
                    reason="begin",
                )
            )
            if earliest:
                self._gaps.closed.add(lowest.epoch, 1, first - 1)
        self._begin(lowest, first, "", late)

    def join_after_all(self) -> None:
        """Join with the lowest arrival, since what may come before it has had its time. Announcements by now count,
        even if they predate the arrival."""
        lowest = self._epochs.lowest_arrived()
        assert lowest is not None  # it is what waited
        assert lowest.held.first is not None
        waiting = [announced for _, announced in self._view.waiting]
        counted = [_with(owner.latest, lowest) for owner in self._view.owners.values()]
        for announced in (*waiting, *counted):
            self.join_as_announced(announced)
            if self._epochs.current is not None:
                return
        report = self._takeover.report
        if report is not None:
            # The other inbox was still in an earlier epoch, of which it is not even known which one it was.
            epoch, first = report.position
            detail = {"until_epoch": lowest.epoch, "extent": "unknown"}
            self._context.emit(
                Note("declared", self._stream, epoch, 0, first, 0, "", "extent unknown", detail)
            )
        self.join(lowest, lowest.held.first, late=report is None)

    def declare_missed(self, announced: Announced) -> None:
        """The producer of a stream that was joined without its announcement has announced it: messages for which it
        counts the group, and which lie before the position of joining, are a gap after all. For a group that begins
        with the latest message, this applies to messages after the position of another inbox."""
        joined, since = self._epochs.joined, announced.since
        if joined is None or not announced.chain:
            return
        if self._rules.begin == "latest":
            reached = announced.reached
            if announced.late and reached is None:
                return
            since = None if reached is None or reached[0][0] < 1 else reached[0]
        if self._counts(announced) and _knows_epoch(announced, joined[0]):
            self._epochs.note_announced()
            self._context.mark(self._stream)
        # Otherwise it has not announced yet what arrived, or has lost it, or has gone back behind that.
        if since is None:
            return
        if self._takeover.remembered is not None:
            since = max(since, self._takeover.remembered.settled_in(announced.chain))
        for epoch, incarnation, _, last in announced.chain:
            first = since[1] if epoch == since[0] else 1
            end = joined[1] - 1 if epoch == joined[0] else last
            if since[0] <= epoch <= joined[0] and first <= end:
                for span in self._epochs.history.supersede(epoch, first, end):
                    self._context.emit(
                        Note("declared", self._stream, epoch, incarnation, *span, reason=JOINED_LATE)
                    )
                    self._context.emit(GapMissed(Gap(self._stream, epoch, *span, JOINED_LATE)))
                    self._epochs.history.note_change()
                    self._context.mark(self._stream, urgent=True)

    def adopt(self, report: LastReport) -> bool:
        """Start where another inbox of the group stopped; see
        :meth:`~reliamsg.protocol.receiver.group.GroupReceiver.adopt`."""
        own = self._epochs.position
        if not self._go_on_at(report):
            return False
        self._note_behind(report.position, own)
        return True

    def _go_on_at(self, report: LastReport) -> bool:
        """Start there, unless this inbox has come as far itself."""
        position, entered = report.position, report.entered
        if position[0] < 1:
            return False
        if self._epochs.current is not None and position <= self._epochs.position:
            self._flag_entered(report)
            return False
        known = self._epochs.live.get(position[0])
        if known is not None and position[0] == entered[0] and known.incarnation != entered[1]:
            return False
        self._leave_behind(position)
        self._takeover.succeed(report)
        if known is None and position[0] == entered[0]:
            known = self._epochs.add(ReorderBuffer.from_announcement(*entered))
        if known is not None:
            self._take_over(known)
        return True

    def _flag_entered(self, report: LastReport) -> None:
        """The other inbox had settled no more than this one, but may have delivered more."""
        self._takeover.succeed(report)
        self._stored.take_accepted()
        self._stored.flag_entered()
        self._context.mark(self._stream, urgent=True)

    def flag_deliveries_elsewhere(self, announced: Announced, end: Position, settled: Position) -> bool:
        """The producer announces how far the group was.

        If this inbox never was there, it replaces one that was lost, is an old copy of it, or another one has read
        meanwhile: messages that the other one may have delivered are flagged when they come again, up to `end` if
        nothing more precise is known. `settled`: the position of this inbox as its last commit holds it. Returns
        whether this inbox is behind.
        """
        if announced.reached is None:
            return False
        position, mark = announced.reached
        if self._epochs.current is not None and position <= settled:
            return False
        before = self._takeover.remembered
        if before is not None and before.position == position:
            mark = max(mark, (before.epoch, before.below))
        elif mark <= position:
            mark = max(mark, end)
        epoch, below = mark
        incarnation = next((link[1] for link in announced.chain if link[0] == epoch), None)
        knows = tuple(link[:2] for link in announced.chain if link[0] <= position[0])
        remembered = Remembered(position, epoch, incarnation, below, knows)
        if remembered != before:
            if before is None or before.position < position or before.knows != knows:
                self._note_behind(position, settled, announced.chain, end)
            self._takeover.remember(remembered)
            self._stored.flag_entered()
            if self._epochs.current is not None:
                self._context.mark(self._stream, urgent=True)
        return True

    def skip_settled(self, announced: Announced) -> bool:
        """Go on with the first message that the producer still holds among those that another inbox has settled and
        this one has not: messages that it released meanwhile are no gap. Returns whether there was anything to skip."""
        remembered = self._takeover.remembered
        if self._epochs.current is None or self._epochs.draining or remembered is None:
            return False  # with epochs that are left and not settled, a later status finds it done
        position = remembered.settled_in(announced.chain)
        delivered_to = self._epochs.current.epoch, self._epochs.current.cursor
        held = (
            max((epoch, first), delivered_to)
            for epoch, _, first, last in announced.chain
            if first <= last and delivered_to <= (epoch, last)
        )
        position = min(position, next(held, position))
        if not any(link[0] == position[0] for link in announced.chain):
            # The group was in an epoch that the outbox has lost: of what that has, it was done with all before.
            ends = ((epoch, last + 1) for epoch, _, _, last in announced.chain if epoch < position[0])
            position = max(ends, default=position)
        incarnation = next((link[1] for link in announced.chain if link[0] == position[0]), None)
        if position <= delivered_to or incarnation is None:
            return False  # this inbox settles what it has delivered itself
        if not self._go_on_at(LastReport(position, (position[0], incarnation), 0)):
            return False
        before = (epoch for epoch, _ in remembered.knows if epoch < position[0])
        self._epochs.joined_behind(before)
        return True

    def _note_behind(
        self, position: Position, own: Position, chain: Sequence[ChainEntry] = (), existed: Position = (0, 0)
    ) -> None:
        """Note that the group had settled everything before `position`, and this inbox nothing from `own` on.

        If no journal accounts for what lies between, it was lost with the disk of an inbox. `chain`: the epochs in
        question, as far as it knows them: nobody settled what another history has between them (notes that begin later
        name `own` too; one is empty if this inbox leaves such a history and nothing else was settled), and an outbox
        that is an older copy knows too little of the last one. `existed`: the end of everything that existed then, of
        which the other inbox may have settled more than it reported.
        """
        found = [
            (
                max(own, (epoch, 1) if number else (0, 1)),
                position
                if epoch == position[0]
                else min(position, (epoch, self._end(epoch, incarnation, last))),
            )
            for number, (epoch, incarnation, _, last) in enumerate(chain)
        ]
        if not any(epoch == position[0] for epoch, *_ in chain):
            found.append((max(own, (position[0], 1) if chain else (0, 1)), position))
        found = [(first, end) for first, end in found if first < end]
        elsewhere = bool(chain) and own[0] > 0 and not any(epoch == own[0] for epoch, *_ in chain)
        if elsewhere and not found and own < position:
            found = [(position, position)]
        for first, end in found:
            detail = {"from": list(first)}
            if own[0] > 0 and own < first:
                detail["own"] = list(own)
            if existed > end:
                detail["existed"] = list(existed)
            self._context.emit(Note("behind", self._stream, end[0], 0, end[1], end[1], detail=detail))

    def _end(self, epoch: int, incarnation: int, last: int) -> int:
        """The number after all of an epoch that its producer (`last`) or this inbox knows of: an outbox that is an
        older copy may know less."""
        same = self._epochs.incarnation_of(epoch) == incarnation
        return max(last, self._epochs.reached(epoch) if same else 0) + 1

    def _leave_behind(self, position: Position) -> None:
        """Another inbox has dealt with everything before `position`."""
        self._epochs.leave_behind(position[0])
        self._gaps.drop()
        self._redelivery.drop_before(position)
        self._context.mark(self._stream)

    def _adopt_as_announced(self, report: LastReport, announced: Announced) -> None:
        """The other inbox had left messages of an earlier epoch unsettled: the chain says which incarnation that
        was."""
        prev: Prev | None = None
        for epoch, incarnation, _, last in announced.chain:
            if epoch >= report.position[0]:
                known = self._epochs.live.get(epoch)
                if known is None:
                    known = self._epochs.add(ReorderBuffer.from_announcement(epoch, incarnation, prev))
                self._take_over(known)
                return
            prev = Prev(epoch, incarnation, last)

    def _take_over(self, known: ReorderBuffer) -> None:
        report = self._takeover.report
        assert report is not None  # it is what is taken over
        first = report.position[1] if known.epoch == report.position[0] else 1
        first = max(first, known.position)  # what this inbox settled itself does not come again
        known.place_at(first)
        if known is not self._epochs.current and not known.only_announced:
            self._past.find_fork(known.epoch, known.incarnation, known.prev)
        self._begin(known, first, "took_over")

    def _begin(self, known: ReorderBuffer, first: int, reason: str, unheard: bool = False) -> None:
        self._context.emit(Moved(self._stream))
        if self._rules.signed and not reason:
            reason = self._note_proof(self._rules.begin == "latest")
        self._epochs.begin(known, first, unheard, took_over=reason == "took_over")
        self._view.drop_proof()
        self._stored.take_accepted()
        self._stored.flag(known)
        at = known.epoch, known.incarnation, first, first
        owed = unheard and self._rules.begin == "earliest"
        detail = {"unheard": True} if owed and not self._view.any else None
        self._context.emit(Note("joined", self._stream, *at, reason=reason, detail=detail))
        for owner in self._view.owners.values():
            self._epochs.extend(owner.latest)
        self._context.mark(self._stream, urgent=True)
        self._context.touch(self._stream)

    def _note_proof(self, latest: bool) -> str:
        """Without keys of the producer in the answer, anyone may have replayed what arrived: messages that the producer
        does not vouch for may have been delivered before. Returns the reason for the journal."""
        if self._view.proof is None:
            self._takeover.note_unproven()
            return "unproven"
        self._takeover.note_proven(new_from(self._view.proof, self._takeover.remembered, latest))
        return ""


def _knows_epoch(announced: Announced, epoch: int) -> bool:
    """Whether a producer knows an epoch. An outbox that was lost, or is an older copy, does not."""
    return any(entry[0] == epoch for entry in announced.chain)


def _with(announced: Announced, arrived: ReorderBuffer) -> Announced:
    """What a producer would have announced, had it known an epoch of which something has arrived since."""
    chain = {entry[0]: entry for entry in announced.chain}
    if arrived.prev is not None:
        epoch, incarnation, last = arrived.prev
        chain.setdefault(epoch, (epoch, incarnation, last + 1, last))
    first = arrived.held.first or arrived.position
    chain.setdefault(arrived.epoch, (arrived.epoch, arrived.incarnation, first, max(first, arrived.highest)))
    return replace(announced, chain=tuple(chain[epoch] for epoch in sorted(chain)))
