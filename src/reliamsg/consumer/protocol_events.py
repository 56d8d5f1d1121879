"""Handles the events of the protocol, in one place."""

from __future__ import annotations

from reliamsg.consumer.buffer import StreamBuffers
from reliamsg.consumer.health import Health
from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.errors import GapError, GapHeld, ProducerConflict
from reliamsg.logs import Log
from reliamsg.message import Gap, Stream
from reliamsg.protocol.receiver import events
from reliamsg.protocol.receiver.events import Event, Note
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.runtime.wakeup import Waiters

__all__ = ["ProtocolEvents"]

log: Log = Log("reliamsg.consumer")


class ProtocolEvents:
    """Passes events on to whoever they concern. Under the consumer's lock: whoever calls the core calls
    :meth:`handle` before the lock is released."""

    def __init__(
        self,
        core: GroupReceiver,
        buffers: StreamBuffers,
        journal: ConsumerJournal,
        health: Health,
        changed: Waiters,
    ) -> None:
        self._core = core
        self._buffers, self._journal, self._health = buffers, journal, health
        self._changed = changed
        self.notes: list[Note] = []
        """To be journalled behind the deliveries that were made by now."""
        self.commit_wanted: bool = False
        """Streams have changes to commit."""
        self.commit_urgent: bool = False
        """The next commit is wanted now."""
        self.moves: int = 0
        """How often a stream was joined, entered another epoch, or may accept what was deferred."""
        self._missed: list[Gap] = []
        """Gaps that are declared, of which the application is told once that is durable."""
        self.changed_reports: set[Stream] = set()
        """Streams whose reports to their producers changed."""

    def handle(self) -> None:
        """Handle the events since the last call."""
        if not self._core.context.events:
            return
        deliverable = False
        for event in self._core.take_events():
            if isinstance(event, Note):
                self.notes.append(event)
            elif isinstance(event, events.Deliverable):
                self._buffers.queue(self._buffers.of(event.stream))
                deliverable = True
            elif isinstance(event, events.CommitWanted):
                self.commit_wanted = True
                self.commit_urgent |= event.urgent
            else:
                self._handle_rare(event)
        if deliverable and self._buffers.ready:
            self._changed.notify_all()

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, events.ReportChanged):
            self.changed_reports.add(event.stream)
        elif isinstance(event, events.Moved):
            self.moves += 1
            self._buffers.settled_elsewhere(event.stream)
        elif isinstance(event, events.Conflict):
            stream = event.stream
            conflict = ProducerConflict(
                f"{stream}, epoch {event.epoch}: {event.problem}. Producer {stream.producer!r} has two histories: was"
                " its outbox restored from a backup, or copied?"
            )
            log.error(
                "consumer.producer_conflict", "%(reason)s",
                group=self._journal.group, stream=str(stream), epoch=event.epoch, reason=str(conflict),
            )  # fmt: skip
            self._health.report(conflict)
        elif isinstance(event, events.GapMissed):
            self._missed.append(event.gap)
        elif isinstance(event, events.GapHeld):
            held = GapHeld(event.gap)
            gap = event.gap
            log.error(
                "consumer.gap_held",
                "%(gap)s: the stream waits; other streams go on",
                group=self._journal.group, stream=str(gap.stream), epoch=gap.epoch, first=gap.first, last=gap.last,
                reason=gap.reason, gap=str(gap),
            )  # fmt: skip
            self._health.report(held)

    def journal_all(self) -> None:
        """Journal the deliveries of all slices so far, and then the rows that calls of the core led to."""
        self.handle()
        self._buffers.report_all()
        for note in self.notes:
            self._journal.add_note(note)
        self.notes.clear()

    def commit_planned(self) -> list[Gap]:
        """The next commit holds everything that the core wanted to commit by now. Returns gaps that it declares, of
        which the application is to be told afterwards."""
        self.commit_wanted = self.commit_urgent = False
        missed, self._missed = self._missed, []
        return missed

    def commit_failed(self, missed: list[Gap]) -> None:
        """The commit that was to declare these gaps failed: the next one does."""
        self._missed[:0] = missed

    def tell_again(self, missed: list[Gap]) -> None:
        """The process ended when these gaps had been declared, perhaps before the application was told. It is told
        after the next commit."""
        self._missed += missed

    def committed(self, missed: list[Gap]) -> None:
        """The commit that declares these gaps is durable."""
        for gap in missed:
            log.error(
                "consumer.gap_found_after_joining",
                "%(gap)s: it was not known when the stream was joined",
                group=self._journal.group, stream=str(gap.stream), epoch=gap.epoch, first=gap.first, last=gap.last,
                reason=gap.reason, gap=str(gap),
            )  # fmt: skip
            self._health.report(GapError(gap))
