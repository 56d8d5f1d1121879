"""One stream at a group: what arrives is stored, delivered in order, settled, and only then released.

A stream is joined once, where its producer announces the beginning or with the first arrival
(:mod:`~reliamsg.protocol.receiver.joining`). From then on one of its epochs is current: it is delivered in order up to
its end, or up to a gap, whose clock runs while it holds up the stream. :meth:`StreamReceiver.advance` is called after
every change. It finds what holds up the stream, and watches that gap; it passes on its own what does not hold it up.
:mod:`~reliamsg.protocol.receiver.phase` has a table of the phases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from reliamsg.message import Gap, Prev, Stream
from reliamsg.protocol.announced import Announced, Position, Span3
from reliamsg.protocol.ranges import Span
from reliamsg.protocol.receiver.chain import Finished, Link, LinkKind, link
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.epochs import EpochChain, gap_at_head
from reliamsg.protocol.receiver.events import GapHeld, Moved, Note
from reliamsg.protocol.receiver.gaps import GapKey, GapTracker, is_part
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.joining import Joining
from reliamsg.protocol.receiver.past_epochs import ANOTHER_INCARNATION, PastEpochs
from reliamsg.protocol.receiver.phase import Phase
from reliamsg.protocol.receiver.producer_view import (
    GRACE_S,
    JOIN_GRACE_S,
    ProducerView,
    end_of,
    latest_of,
    trimmed,
)
from reliamsg.protocol.receiver.redelivery import Offer, Redelivery
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.repair_requests import RepairRequest, RepairScheduler
from reliamsg.protocol.receiver.report import Report
from reliamsg.protocol.receiver.stored_state import StoredState
from reliamsg.protocol.receiver.takeover import LastReport, TakeoverBounds
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["RESERVE", "Arrival", "EpochChange", "Kept", "Snapshot", "StreamChange", "StreamReceiver"]

RESERVE = 2_000
"""Numbers that are committed in advance as possibly delivered; more for a stream that uses them up quickly."""
POLL_S = 0.5
"""Interval for looking at clocks that stand still: they may start again without notice."""
MAX_UNDECODABLE = 1_000
"""Ranges of an epoch that are remembered as unreadable."""

Kept = Callable[[Stream, tuple[int, int]], bool]
"""Whether the caller keeps anything of a stream, up to this epoch and number, that it has not passed in yet."""


class Arrival(msgspec.Struct, frozen=True):
    """The result of passing in a delivery."""

    new: Sequence[Span] = ()
    """Keep the bytes of these ranges."""
    late: Sequence[Span] = ()
    """These were passed before, and can't be delivered in order any more."""
    quarantine: bool = False
    """It belongs to another history: keep the bytes aside."""
    release: bool = False
    """The broker may release it at once."""
    deferred: bool = False
    """Too far ahead: pass it in again later; its broker has to keep it until then."""
    far: bool = False
    """Its epoch is too far ahead to be believed: keep it until its producer has answered."""
    refused: str = ""
    """Why there is no room for its stream; empty if there is."""


class EpochChange(msgspec.Struct, frozen=True):
    """An epoch as a commit holds it."""

    known: ReorderBuffer
    position: int
    high_water: int
    settled: list[Span]
    last: int | None
    entered: bool
    let_go: int


class StreamChange(msgspec.Struct, frozen=True):
    """A stream as a commit holds it."""

    stream: Stream
    stored: StoredState
    """More of what the commit holds; to be read before the next call."""
    vouched: int
    epochs: list[EpochChange]
    finished: list[ReorderBuffer]
    """Those of `epochs` that the commit drops."""
    gap: tuple[GapKey, float, float] | None
    """The gap at the head, its elapsed time, and its waited time."""
    attempts: dict[Position, int]
    """Attempts that the commit counts in advance."""
    history: bool
    """Whether history, closed gaps, or joining changed."""
    declared: list[Span3]
    """Ranges that were passed since the last commit."""
    accepted: tuple[Span3, ...]
    """Ranges that are accepted as lost and not passed."""


class Snapshot(msgspec.Struct, frozen=True):
    """The contents of one commit."""

    number: int
    changes: list[StreamChange]
    also: set[Stream] = msgspec.field(default_factory=set)
    """Streams whose bytes the caller persists in the same commit."""


class StreamReceiver:
    """One stream at one group."""

    __slots__ = (
        "_context", "_giving", "_past", "_repairs", "_reserve", "_reserved_at", "_rules", "committed",
        "epochs", "gaps", "joining", "redelivery", "stored", "stream", "takeover", "used_at", "view", "vouched",
    )  # fmt: skip

    def __init__(
        self, stream: Stream, context: GroupContext, stored: StoredState | None = None, vouched: int = 0
    ) -> None:
        """`stored` and `vouched` as the inbox holds them."""
        self.stream: Stream = stream
        stored = StoredState() if stored is None else stored
        self.stored: StoredState = stored
        self.epochs: EpochChain = stored.epochs
        self.gaps: GapTracker = stored.gaps
        self.redelivery: Redelivery = stored.redelivery
        self.takeover: TakeoverBounds = stored.takeover
        self.view: ProducerView = ProducerView()
        """What its producers have announced."""
        self._rules, self._context = context.rules, context
        self._repairs = RepairScheduler(stream, context, self.epochs, self.view)
        self._past = PastEpochs(stream, context, self.epochs, self.gaps.closed)
        self.joining: Joining = Joining(stream, context, stored, self.view, self._past)
        self.used_at: float = 0.0
        self.vouched: int = vouched
        """The highest epoch that the producer or an operator vouched for although it was far ahead."""
        self.committed: tuple[Position, tuple[int, int], int] = ((0, 1), (0, 0), 0)
        """Position, highest entered epoch with its incarnation, and high-water mark, as the last commit holds them."""
        self._giving = False
        """The application has not received all of what was taken yet."""
        self._reserve, self._reserved_at = RESERVE, 0

    @property
    def phase(self) -> Phase:
        """The phase that the stream is in."""
        if self.redelivery.halted:
            return Phase.HALTED
        if self.epochs.current is None:
            return Phase.NEW if self.epochs.lowest_arrived() is None else Phase.JOINING
        if self.gaps.clock.target is None:
            return Phase.FLOWING
        if self.gaps.held_by is not None:
            return Phase.HELD
        return Phase.GAP if self.gaps.undecided is None else Phase.EXPIRED

    @property
    def is_held(self) -> bool:
        """Whether a gap holds the stream, or did and a part of it is still missing."""
        return self.gaps.held_since is not None

    def is_behind_hold(self, epoch: int, first: int) -> bool:
        """Whether a number lies behind the gap that holds the stream."""
        if self.gaps.held_since is None:
            return False
        at, _, last = self.gaps.held_since
        if last is not None:
            return (epoch, first) > (at, last)
        later = self.epochs.next_epoch()  # the gap's extent is not known: it ends where this begins
        return later is not None and epoch >= later.epoch

    def is_first_of_gap(self, known: ReorderBuffer, head: int, seq: int, now: float) -> bool:
        """Whether a number lies in the gap that begins at `head`, and no producer that was heard recently may hold any
        earlier number of it. What earlier openings announced may not be held any more."""
        beyond = known.held.next_at(head)
        if not self.view.any or (beyond is not None and seq > beyond):
            return False
        return not self.view.may_hold(known, head, seq - 1, now)

    def is_done_with(self, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether all of these arrived and are settled, as far as is remembered."""
        known = self.epochs.live.get(epoch)
        if known is not None:
            done = known.incarnation == incarnation and last < known.position
        else:
            finished = self.epochs.history.find(epoch)
            done = finished is not None and finished.incarnation == incarnation and last <= finished.last
        return done and not self.gaps.closed.overlap(epoch, first, last)

    # -- arrivals ---------------------------------------------------------------------------------------------

    def receive(self, incoming: Incoming, now: float) -> tuple[ReorderBuffer | None, Arrival]:
        """A delivery of the stream arrived; returns also its epoch, unless that is behind the stream."""
        self.used_at = now
        known = self.epochs.live.get(incoming.epoch)
        if known is not None and known.incarnation == incoming.incarnation and not known.only_announced:
            arrival = self._place(known, incoming, now)
        else:
            known, arrival = self._receive_other(known, incoming, now)
        if arrival.new and self.takeover.uncertainty is not None and self.takeover.unresolved is not None:
            self.stored.flag_entered()
            if self._rules.signed:
                self._context.challenges.want(self.stream, now)
        return known, arrival

    def note_of_duplicate(self, incoming: Incoming) -> Note:
        """The journal row for a delivery of a stream that was forgotten, everything of which is settled."""
        forgotten = self.gaps.closed.may_have_forgotten(incoming.epoch, incoming.first)
        return _note("duplicate", incoming, "late_or_duplicate" if forgotten else "forgotten")

    def _receive_other(
        self, known: ReorderBuffer | None, incoming: Incoming, now: float
    ) -> tuple[ReorderBuffer | None, Arrival]:
        """A delivery of an epoch, `known` or not, of which nothing has arrived, or which differs from what is known."""
        epoch, incarnation, prev = incoming.epoch, incoming.incarnation, incoming.prev
        if known is not None and known.only_announced:
            known = self._confirm(known, incarnation, prev)
        if known is None and self._is_behind_other(epoch):
            self._context.emit(_note("duplicate", incoming))
            return None, Arrival(release=True)
        if known is None and self.epochs.is_ahead(epoch):
            if not self.epochs.has_room(epoch):
                return None, Arrival(deferred=True)
            known = self.epochs.add(ReorderBuffer(epoch, incarnation, prev))
            self._context.mark(self.stream)
        if known is None:
            self._past.supersede_before(prev)
            if self.epochs.was_passed_over(epoch):
                self._past.find_fork(epoch, incarnation, prev)
            return None, self._receive_past(incoming)
        if known.incarnation != incarnation:
            return known, self._receive_conflict(incoming)
        return known, self._place(known, incoming, now)

    def _confirm(self, known: ReorderBuffer, incarnation: int, prev: Prev | None) -> ReorderBuffer | None:
        """Data of an epoch arrives that was only announced: data outweighs announcements."""
        if known.incarnation == incarnation:
            known.confirm(prev)
            if not self.epochs.is_ahead(known.epoch):
                self._past.find_fork(known.epoch, incarnation, prev)
            self._context.mark(self.stream)
        elif self.epochs.is_ahead(known.epoch):
            self._past.report(known.epoch, known.incarnation, ANOTHER_INCARNATION)
            self.epochs.discard(known.epoch)
            return None
        return known

    def _place(self, known: ReorderBuffer, incoming: Incoming, now: float) -> Arrival:
        """The delivery belongs to an epoch that is being delivered, or will be."""
        first, last = incoming.first, incoming.last
        top = last if known.last is None else min(last, known.last)
        late = () if self.gaps.closed.empty else self.gaps.closed.arrived(known.epoch, first, last)
        new = known.place(first, top) if first <= top else []
        for low, high in new:
            self._context.emit(
                Note(
                    "received", self.stream, known.epoch, known.incarnation, low, high, incoming.site,
                    "repair" if incoming.repair else "",
                )
            )  # fmt: skip
        if late:
            self._receive_late(incoming, known.last, late)
        if not (new or late):
            self._note_duplicate(incoming, first, last)
        elif late or new != [(first, last)]:
            at = first
            for low, high in [*sorted((*new, *late)), (last + 1, last + 1)]:
                if at < low:
                    self._note_duplicate(incoming, at, low - 1)
                at = high + 1
        if new:
            if not self._flows(known):
                self._repairs.arrived(known.epoch, new[0][0])
                self.advance(now)
            elif known.cursor <= (known.held.last or 0):
                self._context.touch(self.stream)
        release = not new and not late and (last < known.safe_position or known.is_safe(first, last))
        ended = known.last is not None and known.last < last  # the epoch was left, and ended before this
        if ended and not (release and self.epochs.history.is_safe):
            self._context.mark(
                self.stream
            )  # a crash before the next commit would make it unknown what became of it
            release = False
        return Arrival(new, late, release=release)

    def _flows(self, known: ReorderBuffer) -> bool:
        """Whether the stream is in its usual state, in which :meth:`advance` would find nothing to do: a single epoch,
        of which nothing is missing, and no gap that is watched or waited for."""
        return (
            known is self.epochs.current
            and len(self.epochs.live) == 1
            and self.gaps.clock.target is None
            and self.gaps.held_since is None
            and not self._repairs.any_missing
            and known.is_in_order()
        )

    def _note_duplicate(self, incoming: Incoming, first: int, last: int) -> None:
        reason = "repair" if incoming.repair else ""
        if (incoming.epoch, incoming.first) <= self.gaps.closed.forgotten:
            reason = "late_or_duplicate"  # it may have been passed, and that is forgotten
        self._context.emit(
            Note(
                "duplicate",
                self.stream,
                incoming.epoch,
                incoming.incarnation,
                first,
                last,
                incoming.site,
                reason,
            )
        )

    def _receive_past(self, incoming: Incoming) -> Arrival:
        """The delivery belongs to an epoch that is behind the stream."""
        epoch, first, last = incoming.epoch, incoming.first, incoming.last
        history, closed = self.epochs.history, self.gaps.closed
        done = history.find(epoch)
        if done is not None and done.incarnation != incoming.incarnation:
            return self._receive_conflict(incoming)
        late = closed.arrived(epoch, first, last)
        if late:
            self._receive_late(incoming, None if done is None else done.last, late)
        elif done is not None or epoch <= history.floor:
            forgotten = done is None or closed.may_have_forgotten(epoch, first)
            reason = "late_or_duplicate" if forgotten else _reason(incoming)
            self._context.emit(_note("duplicate", incoming, reason))
            if history.is_safe:
                return Arrival(release=True)
            # A crash before the next commit would bring the epoch back, without what its broker had let go.
            self._context.mark(self.stream)
            return Arrival()
        elif self.epochs.came_before(epoch):
            # Where this inbox had begun earlier, another one has dealt with it, and this one took over behind it.
            if history.has_before(epoch):
                self._context.emit(_note("duplicate", incoming))
            else:
                self._context.emit(_note("before_join", incoming, "begin"))
        else:
            if first > 1:  # all that comes before it exists as well, and is declared in order
                self._past.supersede(epoch, incoming.incarnation, 1, first - 1)
            self._past.supersede(epoch, incoming.incarnation, first, last, incoming.site)
        history.note_change()
        self._context.mark(self.stream, urgent=True)
        return Arrival(late=late)

    def _receive_late(self, incoming: Incoming, end: int | None, spans: Sequence[Span]) -> None:
        """Account for ranges that can't be delivered in order any more.

        Numbers beyond the end of an epoch that was left were not known to exist, and so were not declared; the same
        applies to the numbers between.
        """
        for span in spans:
            if end is not None and span[1] > end:
                self._past.supersede(incoming.epoch, incoming.incarnation, end + 1, span[1])
            self._context.emit(_note("late", incoming, "expired", span))
        self.epochs.history.note_change()
        self._context.mark(self.stream, urgent=True)

    def _receive_conflict(self, incoming: Incoming) -> Arrival:
        if self._past.report(incoming.epoch, incoming.incarnation, ANOTHER_INCARNATION):
            self._context.emit(_note("conflict", incoming, ANOTHER_INCARNATION))
        self._context.mark(self.stream, urgent=True)
        return Arrival(quarantine=True)

    def _is_behind_other(self, epoch: int) -> bool:
        """Whether another inbox, from which this one takes over, has dealt with the epoch."""
        report = self.takeover.report
        return self.epochs.current is None and report is not None and epoch < report.position[0]

    def undecodable(self, epoch: int, incarnation: int, first: int, last: int, now: float | None) -> None:
        """An unreadable copy of these numbers arrived. If nothing better arrives, that is the reason of the gap. With
        `now`, they are known to exist from now on, and are requested."""
        known = self.epochs.live.get(epoch)
        if known is None or known.incarnation != incarnation:
            return
        first = max(first, known.position)
        if first <= last and known.undecodable.intervals < MAX_UNDECODABLE:
            for span in known.missing(first, last):
                known.undecodable.add(*span)
            if now is not None and known.last is None:
                known.announce(last)
                self.advance(now)

    def reopen(self, epoch: int, first: int, last: int, now: float) -> None:
        """Bytes of these held numbers turned out to be unreadable: wait for another copy."""
        known = self.epochs.live[epoch]
        known.reopen(first, last)
        if known.last is None:
            known.announce(last)
        self._context.mark(self.stream, urgent=True)
        self.advance(now)

    def brings_only_behind_hold(self, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether these contain anything new, and all of it is behind the gap that holds the stream."""
        if not self.is_behind_hold(epoch, first):
            return False
        known = self.epochs.live.get(epoch)
        if known is None:
            return self.epochs.is_ahead(epoch)
        return known.incarnation == incarnation and bool(known.missing(first, last))

    def keep_elsewhere(self, epoch: int, first: int, now: float) -> None:
        """The caller keeps `first` and what follows, and passes it in once the stream has come to it. So missing
        numbers before that are a gap of their own, which may expire."""
        known = self.epochs.current
        if known is None or known.epoch != epoch or known.last is not None:
            return
        if known.keep_elsewhere(first):
            self.advance(now)

    def vouch(self, epoch: int) -> None:
        """The producer, or an operator, vouches for an epoch."""
        if epoch > self.vouched:
            self.vouched = epoch
            self.epochs.history.note_change()
            self._context.mark(self.stream)
            self._context.emit(Moved(self.stream))

    def let_go(self, of: tuple[int, int, Prev | None], first: int, last: int, now: float) -> bool:
        """Leave `first` to `last` to their producer; False, without any effect, if it is not known to keep them. `of`:
        their epoch, its incarnation, and the one before."""
        epoch, incarnation, prev = of
        if not self.view.keeps(epoch, incarnation, first, last, max(self.epochs.live, default=0), now):
            return False
        known = self.epochs.live.get(epoch)
        if known is self.epochs.current and known is not None:
            end = known.held.next_at(known.cursor)
            if end is None or end != known.persisted.next_at(known.cursor):
                return False  # after a crash it would be unknown where the gap ends
        if known is not None and known.only_announced:
            known = self._confirm(known, incarnation, prev)
        if known is None and self.epochs.is_ahead(epoch) and self.epochs.has_room(epoch):
            known = self.epochs.add(ReorderBuffer(epoch, incarnation, prev))
        if known is None or known.incarnation != incarnation or known.last is not None:
            return False
        known.leave_to_producer(last)
        self._context.mark(self.stream, urgent=True)
        self.advance(now)
        return True

    # -- announcements ----------------------------------------------------------------------------------------

    def announce(self, announced: Announced, site: str, now: float) -> None:
        """The producer announces the state of the stream. Announcements never take anything back: a status that is
        older than the latest one is ignored, and an announced end of an epoch stays known. Data outweighs
        announcements."""
        if self._past.names_another_history(announced, site):
            return
        self.used_at = now
        view = self.view
        was_known = view.is_fresh(now) and view.knows(announced.epoch, announced.incarnation)
        end, whole = end_of(announced), announced
        announced, cut = trimmed(announced, self._floor(), self.takeover.remembered)
        if not announced.late:
            self._context.challenges.answered(self.stream)  # it is no recording
            if self.epochs.current is None and (view.proof is None or self.joining.proof_is_empty):
                view.prove(announced)
        elif self._rules.signed and self._wants_answer(announced):
            self._context.challenges.want(self.stream, now)
        if not view.take(announced, now, cut, self._rules.signed):
            return
        self._past.supersede_announced(whole)
        uncertainty = self.takeover.unresolved
        if uncertainty is not None and not announced.late:
            for known in self.epochs.live.values():
                # Whatever has arrived existed, also of a history that the producer has lost.
                uncertainty.flag(known)
            # Nothing more is published in earlier epochs.
            uncertainty.resolve(max(end, (announced.epoch, 1)), latest_of(whole))
            self.epochs.history.note_change()
            self.stored.flag_entered()
            self._context.mark(self.stream)
        flagged = self.joining.flag_deliveries_elsewhere(announced, end, self.committed[0])
        if self.epochs.current is None and view.proof is announced:
            self.advance(now)
        if self.joining.skip_settled(announced) or flagged:
            self.advance(now)
        if self.epochs.unheard:
            self.joining.declare_missed(announced)
        if not was_known:
            self._repairs.hurry(now)
        if not self._is_settled(announced):
            view.put_off(announced, now + (GRACE_S if self.epochs.current is not None else JOIN_GRACE_S))
            self._context.wake(self.stream)

    def _floor(self) -> int | None:
        """The lowest epoch of a chain that still matters; None if nothing of the stream is known."""
        if self.epochs.current is not None:
            return self.epochs.current.epoch
        report = self.takeover.report
        return None if report is None else report.position[0]

    def _wants_answer(self, announced: Announced) -> bool:
        """Whether it is unknown what of the stream is new to the group."""
        if self.epochs.current is None:
            if self.takeover.report is not None:
                return False
            # More was published since the answer; if none of it arrives, only another answer shows where to begin.
            proof = self.view.proof
            return proof is None or (self.joining.proof_is_empty and end_of(announced) > end_of(proof))
        return self.takeover.unresolved is not None

    def _take_effect(self, now: float) -> float | None:
        """Have announcements take effect whose time has come; returns when there will be more."""
        view = self.view
        while (announced := view.due(now)) is not None:
            if self.epochs.current is None:
                believed = self.joining.believed(announced)
                if believed is not None:
                    self.joining.join_as_announced(believed)
            if self.epochs.current is not None:
                self.epochs.extend(announced)
                self._past.find_announced_fork(announced)
                self.advance(now)
            else:
                self._repairs.watch(now)
        return view.waiting[0][0] if view.waiting else None

    def _is_settled(self, announced: Announced) -> bool:
        """Whether everything announced is known and has arrived: the usual case."""
        current = self.epochs.current
        if current is None or announced.removed or not announced.chain:
            return current is not None and not announced.removed
        epoch, _, _, last = announced.chain[-1]
        if self._repairs.any_missing:
            return False
        return epoch == current.epoch == announced.epoch and last <= current.highest

    # -- delivering -------------------------------------------------------------------------------------------

    def offer(self, now: float, unit: int) -> Offer | None:
        """The next messages to deliver, if any. `unit`: how many messages the application takes at once."""
        epochs = self.epochs
        if epochs.current is None:
            return None
        entered = epochs.entered if epochs.draining else (epochs.current,)
        found, wants_commit = self.redelivery.offer(self._rules, entered, now, unit)
        if wants_commit:
            self._context.mark(self.stream, urgent=True)
        return found

    def take(self, offered: Offer, last: int, now: float, *, giving: bool = False) -> None:
        """Deliver the offer up to `last`. `giving`: the application receives it bit by bit, until :meth:`given`."""
        known = self.epochs.live[offered.epoch]
        if offered.counted or offered.retry:
            self.redelivery.take(known, offered, last)
        else:
            known.advance(last)
        self._giving = giving
        if known.cursor + self._reserve // 2 > known.high_water:
            self._context.mark(self.stream)
        if not self._flows(known) and known.deliverable() is None:  # find out what the stream waits for
            self.advance(now)

    def given(self, now: float) -> None:
        """The application has received everything that was taken, or the rest came back."""
        self._giving = False
        if len(self.epochs.live) > 1 and self.epochs.next_epoch() is not None:
            self.advance(now)

    def untake(self, offered: Offer, first: int, last: int, now: float) -> None:
        """`first` to `last`, the end of what was taken, did not reach the application after all."""
        known = self.epochs.live.get(offered.epoch)
        if known is None:
            return
        first = max(first, known.position)  # another inbox may have settled some of it meanwhile
        self.redelivery.untake(known, offered, first, last)
        if not offered.retry:
            self.advance(now)
        self._context.touch(self.stream)

    def acknowledge(
        self, epoch: int, first: int, last: int, now: float, latency: Mapping[int, int] | None = None
    ) -> None:
        """The application acknowledged `first` to `last`. Durable with the next commit. `latency`: the histogram of all
        of them, which is only journalled if none was settled before."""
        known = self.epochs.live.get(epoch)
        if known is not None and (done := known.acknowledge(first, last)):
            self._settled(known, "acknowledged", done, "", now, latency if done == [(first, last)] else None)

    def bury(self, epoch: int, seq: int, reason: str, now: float) -> bool:
        """A message becomes a dead letter, which counts as acknowledged. False if it was settled before."""
        known = self.epochs.live.get(epoch)
        if known is None or known.held.run_from(seq) is None:
            return False
        known.settle(seq, seq)
        self._settled(known, "dead_lettered", [(seq, seq)], reason, now)
        self._context.mark(self.stream, urgent=True)
        return True

    def _settled(
        self, known: ReorderBuffer, kind: str, done: list[Span], reason: str, now: float,
        latency: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        for span in done:
            self._context.emit(
                Note(kind, self.stream, known.epoch, known.incarnation, *span, reason=reason, latency=latency)
            )
            if self.redelivery.counts:
                self.redelivery.settled(known.epoch, span)
        self._context.mark(self.stream)
        if known.last is not None or self.gaps.clock.target is not None:
            self.advance(now)
        self._context.touch(self.stream)

    def fail(self, epoch: int, first: int, last: int, now: float, counts: bool = True) -> list[int]:
        """The handler raised. Returns the numbers that have used up their deliveries; the others come again. Unless it
        `counts`, this delivery uses up none: the messages were not at fault."""
        known = self.epochs.live.get(epoch)
        if known is None:
            return []
        spent = self.redelivery.fail(self._rules, known, (first, last), now, counts)
        if not known.retry.empty:
            self._context.wake(self.stream)
        return spent

    def persisted(self, epoch: int, first: int, last: int) -> None:
        """The bytes of these held numbers are committed to the inbox."""
        known = self.epochs.live.get(epoch)
        if known is not None:
            for span in known.held.overlap(first, last):
                known.persisted.add(*span)

    # -- going on ---------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Find out what the stream waits for. To be called after any change."""
        self._finish_drained()
        while True:
            if self.epochs.current is None:
                target = self.joining.before_joining()
                if self.epochs.current is not None:
                    continue
                unproven = self.view.proof is None and self.takeover.report is None
                if target is not None and self._rules.signed and unproven:
                    self._context.challenges.want(self.stream, now)
                break
            known = self.epochs.current
            if known.deliverable() is not None:
                target = None
                self._context.touch(self.stream)
                break
            later = self.epochs.next_epoch()
            joint = link(known, later)
            target = gap_at_head(known, joint)
            if target is not None and self._may_pass(target):
                self._pass(known, known.cursor, target[2] or 0)
                continue
            if target is None and later is not None and not self._giving:
                self._enter(later, joint)
                continue
            break
        self._aim(target, now)
        self._repairs.watch(now)

    def _aim(self, target: GapKey | None, now: float) -> None:
        gaps, clock = self.gaps, self.gaps.clock
        if gaps.held_since is not None and (target is None or target != clock.target):
            self._resume(target)
        if target == clock.target:
            if target is not None:
                self._context.wake(self.stream)
            return
        before, opened = gaps.aim(target)
        if before is not None:
            self._context.mark(self.stream)
            if opened and self.epochs.current is not None:
                known = self.epochs.live.get(before[0])
                incarnation = known.incarnation if known is not None else 0
                self._context.emit(
                    Note(
                        "gap_closed",
                        self.stream,
                        before[0],
                        incarnation,
                        before[1],
                        before[2] or 0,
                        reason="changed",
                    )
                )
        if target is not None:
            clock.tick(now, False)
            self._context.wake(self.stream)

    def _resume(self, target: GapKey | None) -> None:
        """The stream waits for something else than before, or for nothing, so nothing holds it. The remainder of a gap
        after a part arrived belongs to the same hold."""
        gaps = self.gaps
        gaps.resume()
        if gaps.held_since is None:
            return
        epoch, first, last = gaps.held_since
        known = self.epochs.current
        if target is not None:
            rest = is_part(target, gaps.held_since)
        elif known is None or known.epoch != epoch or last is None:
            rest = False
        else:
            first = max(first, known.cursor)
            rest = first <= last and bool(known.missing(first, last))
        if not rest:
            gaps.end_episode()
            self._context.held.pop(self.stream, None)

    def _enter(self, later: ReorderBuffer, joint: Link) -> None:
        """Enter the next epoch, since everything of the current one is delivered or passed."""
        known = self.epochs.enter(later, joint.kind is not LinkKind.UNKNOWN)
        self.gaps.closed.add(known.epoch, known.cursor, MAX_SEQ)
        self._context.emit(Moved(self.stream))
        self.gaps.enter_epoch()
        self._reserved_at = later.cursor
        self.stored.flag(later)
        for owner in self.view.owners.values():
            self.epochs.extend(owner.latest)
        if joint.kind is LinkKind.FORK:
            left = Finished(known.epoch, known.incarnation, joint.last)
            self._past.report_entered_fork(later.epoch, later.incarnation, joint.reason, left)
            self._past.supersede_before(later.prev)
        self._context.mark(self.stream, urgent=True)
        self._context.touch(self.stream)
        self._finish_drained()

    def _finish_drained(self) -> None:
        """Move epochs that are completely settled into history."""
        if self.epochs.draining and self.epochs.finish_drained():
            self._context.mark(self.stream)

    def _expire(self, now: float) -> None:
        """`gap_timeout` has passed for the gap at the head."""
        clock = self.gaps.clock
        assert clock.target is not None  # its clock has run
        if self.epochs.current is None:
            self.joining.join_after_all()
            self.advance(now)
            return
        epoch, first, last = clock.target
        known = self.epochs.current
        if last is None:
            reason = "extent unknown"
        elif known.removed.covers(first, last):
            reason = "removed"
        else:
            reason = "undecodable" if known.undecodable.overlap(first, last) else "expired"
        gap = Gap(self.stream, epoch, first, last, reason)
        self.gaps.expire()
        if self._rules.skip_gaps:
            self.declare(gap, now)
            return
        if self._rules.hold_gaps:
            if reason == "removed":
                self.declare(gap, now)
            elif self.gaps.held_by is None:
                self._hold(gap)
            return
        self.gaps.ask(gap)
        self._context.mark(self.stream)
        self._context.touch(self.stream)

    def _hold(self, gap: Gap) -> None:
        """Hold the stream until the gap is filled or accepted."""
        if self.gaps.hold(gap):
            self._context.held[self.stream] = None
            self._context.emit(GapHeld(gap))
            known = self.epochs.current
            incarnation = 0 if known is None else known.incarnation
            self._context.emit(
                Note(
                    "gap_held",
                    self.stream,
                    gap.epoch,
                    incarnation,
                    gap.first,
                    gap.last or 0,
                    reason=gap.reason,
                )
            )
        self._context.mark(self.stream, urgent=True)
        self._context.touch(self.stream)

    def declare(self, gap: Gap, now: float) -> bool:
        """Pass a gap, as far as it still is one. Its part behind data that has arrived is passed in its turn, and
        nothing of it before everything ahead of it is settled."""
        known = self.epochs.current
        if known is None or known.epoch != gap.epoch:
            return False
        later = self.epochs.next_epoch()
        joint = link(known, later)
        target = gap_at_head(known, joint) if known.deliverable() is None else None
        how = self.gaps.how_accepted(gap)
        if gap.last is None:
            if target is None or target[2] is not None or later is None:
                return False
            if joint.kind is not LinkKind.UNKNOWN or not self.epochs.is_idle:
                return False
            self._pass_unknown(known, later, *how)
            self.advance(now)
            return True
        top = min(gap.last, max(known.highest, joint.last))
        first = max(gap.first, known.cursor)
        if first > top or not known.missing(first, top):
            return False
        self.gaps.accept(first, top, *how)
        # It counts also if the process ends before what comes before it is dealt with.
        self.epochs.history.note_change()
        self._context.mark(self.stream, urgent=True)
        if target is not None and target[2] is not None and self._may_pass(target):
            self._pass(known, target[1], target[2])
        self.advance(now)
        return True

    def _may_pass(self, target: GapKey) -> bool:
        return (
            target[2] is not None and self.epochs.is_idle and self.gaps.accepted.covers(target[1], target[2])
        )

    def _pass(self, known: ReorderBuffer, first: int, last: int) -> None:
        known.settle(first, last)
        known.head()
        reason, elapsed = self.gaps.close(known.epoch, first, last)
        self.epochs.history.note_change()
        if known.removed.covers(first, last):
            reason = "removed"
        detail = None if elapsed is None else {"elapsed": round(elapsed, 3)}
        self._context.emit(
            Note(
                "declared",
                self.stream,
                known.epoch,
                known.incarnation,
                first,
                last,
                reason=reason,
                detail=detail,
            )
        )
        self._context.mark(self.stream, urgent=True)

    def _pass_unknown(
        self, known: ReorderBuffer, later: ReorderBuffer, reason: str, elapsed: float | None
    ) -> None:
        """Pass the open end of an epoch, and everything that `later` names as its direct predecessor, if it names
        one."""
        prev = later.prev
        detail: dict[str, object] = {"until_epoch": later.epoch, "extent": "unknown"}
        if elapsed is not None:
            detail["elapsed"] = round(elapsed, 3)
        self._context.emit(
            Note("declared", self.stream, known.epoch, known.incarnation, known.cursor, 0, "", reason, detail)
        )
        if prev is not None:
            self._context.emit(
                Note("declared", self.stream, prev.epoch, prev.incarnation, 1, prev.last, "", reason)
            )
            self.gaps.close_before(prev.epoch, prev.last)
        self._enter(later, Link(LinkKind.UNKNOWN))

    # -- taking over ------------------------------------------------------------------------------------------

    def adopt(self, report: LastReport, now: float) -> bool:
        """Continue where another inbox of the group stopped; see
        :meth:`~reliamsg.protocol.receiver.group.GroupReceiver.adopt`."""
        done = self.joining.adopt(report)
        self.advance(now)
        return done

    def note_takeover(self, after: int, takeover: int) -> None:
        """Another inbox may have continued the stream. `after`: it reported its deliveries of epochs up to this one.
        `takeover`: the number of this takeover."""
        if self.stream.producer:
            self.takeover.begin(after, takeover)
            self.epochs.history.note_change()
            self.stored.flag_entered()
            self._context.mark(self.stream)

    def begin_after_takeover(self, takeover: int) -> None:
        """The stream is new to the inbox, and another inbox may have read it before."""
        if self.stream.producer:
            # Until the stream is known to the inbox, this is so after each start.
            self.takeover.begin(0, takeover)

    def request(self, now: float, only_head: bool) -> RepairRequest | None:
        """The request for what is missing, if one is due. `only_head`: request nothing that could not be delivered at
        once."""
        return self._repairs.request(now, only_head or (self.is_held and self.epochs.has_let_go))

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self, now: float, connected: bool, paused: bool, kept: Kept | None) -> float | None:
        """Advance the clocks to `now`; returns when to call again, None if nothing is timed."""
        times = [
            self._take_effect(now),
            self._retry(now),
            self._tick_silence(now, connected and not paused),
            self._tick_clock(now, connected and not paused, kept),
            self._repairs.look(now, connected),
        ]
        return min((at for at in times if at is not None), default=None)

    def _retry(self, now: float) -> float | None:
        if not self.epochs.is_failing or self.redelivery.halted:
            return None
        if now < self.redelivery.retry_at:
            return self.redelivery.retry_at
        self._context.touch(self.stream)
        return None

    def _tick_silence(self, now: float, counts: bool) -> float | None:
        """Count how long a group that begins with the latest message has received nothing of what is kept for it."""
        view = self.view
        if view.kept is None:
            return None
        if self.epochs.current is None and not self.epochs.live and self.takeover.report is None:
            left = self._rules.gap_timeout - view.tick_silence(now, counts)
            if left > 0:
                return now + min(left, POLL_S)
            self.joining.join_behind(view.kept)
            self.advance(now)
        view.drop_kept()
        return None

    def _tick_clock(self, now: float, counts: bool, kept: Kept | None) -> float | None:
        gaps, clock = self.gaps, self.gaps.clock
        idle = self.epochs.is_idle
        while idle and self._is_removed() and not clock.decided and not self._is_kept(kept):
            clock.decide()
            self._expire(now)
            idle = self.epochs.is_idle
        if clock.target is None or gaps.held_by is not None:
            return None  # a stream that is held is looked at again when anything changes
        running = idle and counts
        waiting = running and clock.waited < self._rules.repair_timeout and self._is_promised(now)
        elapsed = clock.tick(now, running, waiting)
        if running and not clock.opened and self.epochs.current is not None and clock.counted > 0:
            clock.open()
            epoch, first, last = clock.target
            known = self.epochs.live.get(epoch)
            incarnation = known.incarnation if known else 0
            self._context.emit(Note("gap_opened", self.stream, epoch, incarnation, first, last or 0))
        if elapsed >= self._rules.gap_timeout:
            if self._is_kept(kept):
                clock.rewind()
                return now + POLL_S
            self._expire(now)
            if clock.target is None or gaps.held_by is not None:
                return None
        elif clock.counted - clock.saved >= 1.0:
            self._context.mark(self.stream)
        left = self._rules.gap_timeout - clock.elapsed
        return now + min(max(left, 0.001), POLL_S)

    def _is_kept(self, kept: Kept | None) -> bool:
        """Whether the caller keeps anything of the gap at the head, so that it need not be waited for."""
        target = self.gaps.clock.target
        if kept is None or target is None:
            return False
        epoch, _, last = target
        if last is not None:
            return kept(self.stream, (epoch, last))
        later = self.epochs.next_epoch()
        return later is not None and kept(self.stream, (later.epoch, 0))

    def _is_removed(self) -> bool:
        """Whether the producer has removed the messages of the gap at the head."""
        target, known = self.gaps.clock.target, self.epochs.current
        if target is None or known is None or target[2] is None or known.epoch != target[0]:
            return False
        return known.removed.covers(target[1], target[2])

    def _is_promised(self, now: float) -> bool:
        """Whether a producer that was heard recently announces that it holds messages of the gap at the head."""
        target, known = self.gaps.clock.target, self.epochs.current
        if target is None or known is None or known.epoch != target[0]:
            return False
        return self.view.holds(known, target[1], target[2], now)

    # -- commits ----------------------------------------------------------------------------------------------

    def take_change(self, closing: bool) -> StreamChange:
        """The stream as the next commit holds it. With `closing`, high-water marks become exact."""
        current, entered_to, reserve = self.epochs.current, self.epochs.entered_to, self._reserve
        if closing and current is not None and self.takeover.keep(current.epoch):
            self.epochs.history.note_change()
        changes = []
        for known in (*self.epochs.live.values(), *self.epochs.finishing):
            entered = current is not None and known.epoch <= current.epoch
            if known.only_announced and not entered:
                continue  # the producer will say so again
            high = known.high_water
            if closing:
                high = known.cursor if entered else 0
            elif (
                entered
                and known.cursor + reserve // 2 > high
                and (known.last is None or known.cursor <= known.last)
            ):
                high = known.cursor + reserve
            # Also of an epoch that was entered before this start, and not since: earlier messages came first again.
            # No number beyond the highest can be delivered, nor could a mark beyond it be reported.
            high = min(max(high, known.redelivered_below), MAX_SEQ + 1)
            entered |= known.epoch <= entered_to
            settled = [] if known.settled.empty else list(known.settled)
            changes.append(
                EpochChange(known, known.position, high, settled, known.last, entered, known.let_go)
            )
        gap = None
        clock = self.gaps.clock
        if current is not None:
            # As many again as went in the time of one commit, several times over.
            self._reserve = max(RESERVE, min(8 * (current.cursor - self._reserved_at), 100_000))
            self._reserved_at = current.cursor
            if clock.target is not None:
                gap = (clock.target, clock.elapsed, clock.waited)
        return StreamChange(
            self.stream,
            self.stored,
            self.vouched,
            changes,
            self.epochs.take_finishing() if self.epochs.finishing else [],
            gap,
            self.redelivery.take_pending() if self.redelivery.pending else {},
            self.epochs.history.changed and self.epochs.history.take_change(),
            self.gaps.take_passing() if self.gaps.passing else [],
            () if self.gaps.accepted.empty else self._accepted(),
        )

    def change_committed(self, change: StreamChange) -> bool:
        """The change is durable. Returns whether the report to producers differs from before."""
        if change.history:
            self.epochs.history.saved()
        for epoch in change.epochs:
            epoch.known.committed(epoch.position, epoch.settled, epoch.high_water)
        if change.attempts:
            self.redelivery.grant(change.attempts, self.epochs.live)
        if change.gap is not None:
            self.gaps.clock.committed(*change.gap)
        before = self.committed
        self._note_position(change)
        gaps, accepts = self.gaps, False
        if change.declared or change.accepted or gaps.accepted_committed:
            accepts = gaps.committed(change.declared, change.accepted)
        return bool(change.declared) or self.committed != before or accepts

    def _note_position(self, change: StreamChange) -> None:
        """Record the stream's position as the commit holds it."""
        top = lowest = None
        for one in change.epochs:
            if one.entered:
                if top is None or one.known.epoch > top.known.epoch:
                    top = one
                unsettled = one.last is None or one.position <= one.last
                if unsettled and (lowest is None or one.known.epoch < lowest.known.epoch):
                    lowest = one
        if top is None:
            return
        lowest = lowest or top
        self.committed = (
            (lowest.known.epoch, lowest.position),
            (top.known.epoch, top.known.incarnation),
            top.high_water,
        )

    def change_failed(self, change: StreamChange) -> None:
        """The commit failed: all of the change belongs to the next one."""
        self.epochs.put_back(change.finished)
        self.gaps.put_back(change.declared)
        self.redelivery.put_back(change.attempts)
        self.epochs.history.not_saved(change.history)

    def report(self) -> Report:
        """The committed state of the stream, and what it lacks now."""
        missing = tuple((known.epoch, first, last) for known, first, last in self.epochs.lacking())
        return Report(*self.committed, missing, self.gaps.passed, self.gaps.accepted_committed)

    def _accepted(self) -> tuple[Span3, ...]:
        """Ranges that are accepted as lost and not passed yet: epoch, first and last number."""
        epoch = 0 if self.epochs.current is None else self.epochs.current.epoch
        return tuple((epoch, *span) for span in self.gaps.accepted)

    def restore(self, now: float) -> None:
        """Continue with what the inbox holds of the stream."""
        self.used_at = now
        self._restore_report()
        self.advance(now)
        self._context.touch(self.stream)

    def revive(self) -> None:
        """The stream was forgotten, and is used again: all of it has to be stored."""
        self._restore_report()
        self.epochs.history.note_change()
        self._context.mark(self.stream)

    def _restore_report(self) -> None:
        """Everything that the inbox holds of the stream is committed."""
        known = self.epochs.current
        if known is None:
            return
        self.committed = (self.epochs.position, (known.epoch, known.incarnation), known.high_water)
        passed: list[Span3] = []
        if self.epochs.joined is not None:
            passed = [
                span
                for span in self.gaps.closed.spans()
                if span[:2] >= self.epochs.joined and span[2] < MAX_SEQ
            ]
        self.gaps.committed(passed, self._accepted())
        target = self.gaps.clock.target
        if target is not None and target[0] == known.epoch and target[2] is not None:
            known.announce(target[2])  # that much is known to exist

    @property
    def is_stored_exactly(self) -> bool:
        """Whether the inbox holds the stream as after a clean stop. Possible deliveries before an unclean stop stay in
        the mark."""
        known = self.epochs.current
        return known is None or (
            known.high_water == max(known.position, known.redelivered_below)
            and known.safe_position == known.position
        )

    @property
    def is_idle(self) -> bool:
        """Whether everything of the stream is settled, and nothing but releases of deliveries is awaited. Whether the
        group is about to join it is a separate question:
        :meth:`~reliamsg.protocol.receiver.joining.Joining.joins_soon`."""
        known = self.epochs.current
        if not self.stream.producer or self.epochs.draining or self.epochs.finishing:
            return False
        if known is None:  # only its producer's word is known, which will be said again
            return not self.epochs.live and self.takeover.report is None and self.epochs.history.is_safe
        if len(self.epochs.live) != 1 or self.gaps.clock.target is not None or self._repairs.any_missing:
            return False
        if self.redelivery.halted or self.redelivery.pending:
            return False
        if not self.epochs.history.is_safe or self.gaps.passing:
            return False
        if not (known.held.empty and known.settled.empty and known.retry.empty and known.requested.empty):
            return False
        if known.highest >= known.position or known.cursor != known.position:
            return False
        return not self.view.waiting


def _reason(incoming: Incoming) -> str:
    return "repair" if incoming.repair else ""


def _note(kind: str, incoming: Incoming, reason: str | None = None, span: Span | None = None) -> Note:
    """The journal row for a delivery, or for a part of it."""
    first, last = (incoming.first, incoming.last) if span is None else span
    said = _reason(incoming) if reason is None else reason
    return Note(kind, incoming.stream, incoming.epoch, incoming.incarnation, first, last, incoming.site, said)
