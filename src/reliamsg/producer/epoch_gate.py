"""Holds back what is published in a newly opened epoch until the named groups have answered a hello, or the wait is
over; see :mod:`reliamsg.protocol.sender.fencing`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from reliamsg.errors import ProducerFenced
from reliamsg.message import Stream
from reliamsg.producer.encoding import reencode
from reliamsg.producer.state import Shared
from reliamsg.protocol.sender.fencing import Conflict, Fence, Verdict
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox
from reliamsg.wire.control import Status

__all__ = ["EpochGate"]

RETRY_S = 1.0
"""How long after the disk refused a write it is tried again."""


class EpochGate:
    """One producer's. Only the writer uses it."""

    def __init__(self, shared: Shared, outbox: Outbox) -> None:
        self._shared, self._outbox = shared, outbox
        self._fence = Fence(
            outbox.epoch, outbox.incarnation, {b.group for b in shared.bindings()},
            shared.settings.hello_timeout, shared.settings.keys is not None, outbox.never_offered(),
            outbox.surpassed_by,
        )  # fmt: skip
        self._unanswered: dict[str, set[Stream]] = {}
        """By named group, the streams for which the hello is not answered."""
        self._retry_at = float("-inf")
        self.is_settled: bool = False
        """The gate is open, no answer is awaited and no hello is due: nothing happens before something is heard."""

    def begin(self, now: float) -> None:
        """Call this first, before anything is sent."""
        if self._fence.verdict(now) is Verdict.SEND:
            self._offer()
            return
        shared, gated = self._shared, self._outbox.gated()
        with shared.lock:
            shared.set_gate(shared.top + 1 if gated is None else gated)
            for binding in shared.bindings():
                stream = Stream(shared.producer_id, binding.topic, binding.partition)
                self._unanswered.setdefault(binding.group, set()).add(stream)

    # -- reports ---------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """A site was connected."""
        self.is_settled = False
        self._fence.connected(now)

    def on_report(
        self, group: str, stream: Stream, entered: tuple[int, int], chain: Iterable[tuple[int, int]],
        now: float,
    ) -> Conflict | None:  # fmt: skip
        """A group has entered an epoch, with this incarnation: that may be of another history. `chain`: the known
        epochs of the stream. Returns a conflict to report."""
        self.is_settled = False
        named = self._is_named(group)
        return self._fence.reported(group, stream, entered, chain, now, self._wall_ms(), named=named)

    def on_twin(self, status: Status, now: float) -> Conflict | None:
        """A status of this producer's name arrived. Returns a conflict to report."""
        self.is_settled = False
        return self._fence.twin_reported(status.epoch, status.incarnation, now, self._wall_ms())

    def answered(self, group: str, streams: Iterable[Stream]) -> None:
        """A group reported its state of these streams."""
        self.is_settled = False
        waiting = self._unanswered.get(group)
        if waiting is not None:
            waiting.difference_update(streams)
            if not waiting:
                del self._unanswered[group]
                self._fence.answered(group)

    def _wall_ms(self) -> int:
        return self._shared.clock.wall_us() // 1000

    def _is_named(self, group: str) -> bool:
        with self._shared.lock:
            return self._shared.table.is_named(group)

    # -- what follows ---------------------------------------------------------------------------------------

    @property
    def above(self) -> int:
        """The epoch above which the own one has to be renumbered."""
        return self._fence.above

    def judge(self, now: float) -> Verdict | None:
        """Shut or open the gate. Returns SEND if that has just opened it, RENUMBER or FENCED where the caller has to
        act, otherwise None."""
        if now < self._retry_at:
            return None
        for group in self._fence.awaited:
            if not self._is_named(group):  # it is no longer waited for
                self._unanswered.pop(group, None)
                self._fence.dropped(group)
        verdict = self._fence.verdict(now)
        if verdict is Verdict.SEND:
            if self._shared.gate is None:
                return None
            self._open()
        elif verdict is not Verdict.FENCED:
            self._shut()
        return None if verdict is Verdict.WAIT else verdict

    def pause(self, now: float) -> None:
        """The disk refused what follows from a verdict: judge again later."""
        self._retry_at = now + RETRY_S

    def hello_due(self, now: float) -> bool:
        """Whether a hello has to be sent now."""
        return self._fence.hello_due(now)

    def deadline(self, now: float) -> float:
        """When :meth:`judge` or :meth:`hello_due` will have something to do."""
        at = self._fence.next_deadline(now, self._retry_at)
        if self._retry_at > now:
            return min(at, self._retry_at)
        self.is_settled = at == inf and self._shared.gate is None and not self._fence.awaited
        return at

    def _offer(self) -> None:
        """All that is stored may be sent from here on, and keeps its numbers."""
        self._outbox.offer()
        self._fence.began(self._outbox.epoch)

    def _open(self) -> None:
        self._offer()
        self._shared.probe("offered")
        with self._shared.lock:
            self._shared.set_gate(None)
        self._unanswered.clear()

    def _shut(self) -> None:
        """Hold back what is published from now on: it begins another epoch, which can still be renumbered. Whatever
        happens before that, the next opening renumbers it."""
        shared = self._shared
        if self._fence.above > self._outbox.surpassed_by:
            self._outbox.note_surpassed(self._fence.above)
        if shared.gate is None:
            self._outbox.next_epoch()
            shared.probe("next_epoch")
            with shared.lock:
                shared.set_gate(shared.top + 1)
            self._fence.began(self._outbox.epoch)

    def renumber(self, above: int) -> dict[int, int]:
        """Give everything that was never offered to a site an epoch above `above`. Returns which epoch became which."""
        clock = self._shared.clock
        epochs = self._outbox.renumber(above, reencode, clock.wall_us(), clock.now_us())
        self._fence.renumbered(self._outbox.epoch, self._outbox.incarnation)
        return epochs

    def fenced(self) -> tuple[Entry, ProducerFenced]:
        """Why this producer has to stop: for the journal and for the application."""
        outbox, fence, name = self._outbox, self._fence, self._shared.producer_id
        epoch, incarnation = fence.fenced_by or (0, 0)
        detail = {"epoch": epoch, "incarnation": f"{incarnation:016x}"}
        entry = Entry("fenced", epoch=outbox.epoch, incarnation=outbox.incarnation, detail=detail)
        if fence.fencing_group:
            why = (
                f"group {fence.fencing_group!r} has entered epoch {epoch} of producer {name!r}, above which no"
                " producer can move: have the group forget the stream (`reliamsg inbox forget`), then open this"
                " producer again"
            )
        else:
            why = (
                f"another owner of producer id {name!r} is alive, in epoch {epoch}, which is later than this one's"
                f" ({outbox.epoch}): was its outbox copied, or restored while it ran? Stop one of them"
            )
        return entry, ProducerFenced(f"{why}; what this one has not sent stays in its outbox")
