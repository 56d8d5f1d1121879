"""The producer's logic around core and store, without threads: it is called, and is given its clocks.

Three kinds of callers: the application (through :class:`~reliamsg.producer.accumulator.Accumulator`, receipts, and what
the engine says it may call), transports' I/O threads (through :class:`~reliamsg.producer.site.SiteSender`), and one
writer, which alone uses the outbox and calls :meth:`ProducerEngine.step`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from reliamsg.config import JournalExport, Site
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    FatalError,
    JournalFull,
    OutboxFull,
    OutboxWriteError,
    ReliamsgError,
)
from reliamsg.logs import Log
from reliamsg.message import MessageId, Stream
from reliamsg.producer.accumulator import Accumulator, CommitBatch
from reliamsg.producer.admission import QUEUE_BYTES, Admission
from reliamsg.producer.announcements import Announcements
from reliamsg.producer.commands import WriterCommands
from reliamsg.producer.commit import Run
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.connectivity import Connectivity
from reliamsg.producer.control import ControlHandler
from reliamsg.producer.control_queue import ControlQueue
from reliamsg.producer.encoding import Encoder, cut
from reliamsg.producer.epoch_gate import EpochGate
from reliamsg.producer.groups import Groups
from reliamsg.producer.maintenance import Maintenance
from reliamsg.producer.packer import Packer
from reliamsg.producer.presence import PresenceTracker, needs_proof
from reliamsg.producer.repairs import RepairSender
from reliamsg.producer.retention import Retention
from reliamsg.producer.rows import PageCache, RowReader, TailCache
from reliamsg.producer.settings import Settings
from reliamsg.producer.site import SiteParts, SiteSender
from reliamsg.producer.state import Shared
from reliamsg.producer.status import ProducerStatus, Remaining
from reliamsg.producer.streams import StreamInfo
from reliamsg.producer.watchers import Watchers
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.sender.fencing import Verdict
from reliamsg.protocol.sender.sender import Sender
from reliamsg.protocol.sender.window import SendQueue, SiteLimits
from reliamsg.runtime.callbacks import CallbackThread
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.export_step import ExportStep, JournalSource
from reliamsg.runtime.wakeup import Waiters
from reliamsg.store.journal import Entry
from reliamsg.store.members import RemovedRange
from reliamsg.store.outbox import Cursors, Outbox, Row, StreamRow
from reliamsg.store.rewriting import Taken
from reliamsg.transport.base import Transports
from reliamsg.version import VERSION

__all__ = ["ProducerEngine"]

log: Log = Log("reliamsg.producer")


class ProducerEngine:
    """One producer. See the module's text for who calls what."""

    def __init__(
        self, outbox: Outbox, sites: Sequence[Site], groups: Mapping[str, Sequence[str]], settings: Settings,
        transports: Transports, environment: Environment, journal: JournalExport | None = None,
    ) -> None:  # fmt: skip
        self.producer_id: str = outbox.producer
        source = JournalSource("producer", outbox.producer, outbox.path, outbox.exported)
        self.export: ExportStep = ExportStep(journal, source, environment)
        self._export_by = float("-inf")
        self._reported = False
        self._outbox, self._pages = outbox, PageCache(outbox.page)
        self._requested: list[tuple[RowReader, SendQueue, int]] = []
        """Pages to read."""
        self._tail = TailCache()
        self._room = environment.room if environment.room is not None else Waiters()
        stored = outbox.site_cursors()
        shared = self._open_shared(sites, settings, environment, stored)
        self.shared: Shared = shared
        held = outbox.held()
        shared.core.opened(shared.top, held)
        self._forget_sites({name: c for name, c in stored.items() if name not in shared.core.sites})
        self.admission: Admission = Admission(settings.max_bytes, self._room)
        self.callbacks: CallbackThread = CallbackThread(
            "reliamsg-callbacks", environment.on_error, log, shared.wake
        )
        watchers = Watchers(self.callbacks)
        self.groups: Groups = Groups(shared, outbox, self.admission, watchers)
        self._name_groups(sites, groups, held)
        self.retention: Retention = Retention(
            settings.max_bytes, settings.retain_seconds, settings.retain_bytes
        )
        connectivity = {site.name: Connectivity(self.producer_id, site.name) for site in sites}
        self.tracker: ConfirmationTracker = ConfirmationTracker(
            shared, self.groups, self.admission, self.retention, connectivity, watchers
        )
        self.accumulator: Accumulator = Accumulator(shared, self.admission, self.tracker, self._explain_full)
        self.commands: WriterCommands = WriterCommands(shared.wake)
        self._packer = Packer(settings, outbox.incarnation)
        self.maintenance: Maintenance = Maintenance(
            shared, outbox, self.groups, self.tracker, self.retention, self.admission
        )
        self.gate: EpochGate = EpochGate(shared, outbox)
        self._restore_presence()
        self.queue: ControlQueue = ControlQueue(settings.keys)
        encoder = Encoder(settings.plain, settings.keys)
        parts = SiteParts(shared, self.tracker, self.queue, encoder, transports)
        self.sites: dict[str, SiteSender] = {}
        for site in sites:
            self._restore_parked(site.name, stored.get(site.name))
            reader = RowReader(self._tail, self._request_page)
            self.sites[site.name] = SiteSender(parts, site, reader, connectivity[site.name])
        self.announcements: Announcements = Announcements(shared, outbox, self.sites)
        self.repairs: RepairSender = RepairSender(shared, outbox, self.announcements, self.sites)
        self.control: ControlHandler = ControlHandler(
            shared, outbox, self.queue, self.gate, self.groups, self.announcements, self.repairs
        )
        self._begin()

    # -- opening --------------------------------------------------------------------------------------------

    def _open_shared(
        self,
        sites: Iterable[Site],
        settings: Settings,
        environment: Environment,
        stored: Mapping[str, Cursors],
    ) -> Shared:
        """The state before groups are named."""
        oldest, top = self._outbox.bounds()
        limits = {s.name: SiteLimits(s.window_batches, s.window_bytes, s.confirm_timeout) for s in sites}
        cursors = {name: stored[name].cursor if name in stored else oldest for name in limits}
        core = Sender(limits, cursors, settings.confirm, self._outbox.published())
        shared = Shared(self.producer_id, settings, environment, core, PresenceTracker(sites, settings.keys))
        shared.extend(top)
        return shared

    def _forget_sites(self, gone: Mapping[str, Cursors]) -> None:
        """Sites that are no longer named: report what they never confirmed."""
        for name, cursors in gone.items():
            messages = self._outbox.unconfirmed(cursors)
            log.warning(
                "producer.site_forgotten",
                "producer %(producer)s: site %(site)s is not named any more; it never confirmed %(messages)d messages"
                " that are still held",
                producer=self.producer_id, site=name, messages=messages,
            )  # fmt: skip
            self.shared.journal.add(Entry("site_forgotten", site=name, detail={"unconfirmed": messages}))
        if gone:
            self._outbox.forget_sites(gone)

    def _name_groups(
        self, sites: Sequence[Site], groups: Mapping[str, Sequence[str]], held: Iterable[Span]
    ) -> None:
        shared, settings, outbox = self.shared, self.shared.settings, self._outbox
        entries: list[Entry] = []
        named, members = self.groups.open(groups, held, entries)
        detail = {
            "groups": named,
            "sites": [site.name for site in sites],
            "confirm": str(settings.confirm),
            "release": settings.release,
            "version": VERSION,
        }
        opened = Entry("opened", epoch=outbox.epoch, incarnation=outbox.incarnation, detail=detail)
        proves_at = [site.name for site in sites if needs_proof(site)]
        outbox.name_groups(
            members, [opened, *shared.journal.take(), *entries], shared.clock.wall_us(), shared.clock.now_us(),
            {"release": settings.release, "proves_at": json.dumps(proves_at)},
        )  # fmt: skip

    def _restore_presence(self) -> None:
        """What the outbox says of groups that are still named."""
        named = {(b.topic, b.partition, b.group) for b in self.shared.bindings()}
        streams = {row.id: row.stream for row in self._outbox.streams.values()}
        stored = {
            (site, (streams[stream_id].topic, streams[stream_id].partition, group)): marked
            for (site, stream_id, group), marked in self._outbox.proofs().items()
        }
        self.shared.presence.restore({key: marked for key, marked in stored.items() if key[1] in named})

    def _restore_parked(self, site: str, stored: Cursors | None) -> None:
        """Park the streams that were parked at the site when the outbox was closed."""
        window = self.shared.core.sites[site]
        for parked in () if stored is None else stored.parked:
            for row in self._outbox.stream_ids(parked.stream_id, min(window.main.cursor, parked.cursor)):
                if row < parked.cursor:  # the stream may have been ahead of the others there
                    window.confirmed.add(row, row)
                else:
                    window.confirmed.remove(row, row)
            window.restore_queue(parked.stream_id, parked.cursor, parked.attempts, parked.reason)

    def _begin(self) -> None:
        core, now = self.shared.core, self.shared.clock.now()
        # With a changed policy, what was confirmed before may be enough now.
        for first, last in core.confirms.candidates():
            for row in core.confirms.decide(range(first, last + 1)):
                self.tracker.unjournalled.add(row, row)
        self.maintenance.begin()
        self.gate.begin(now)
        self._listen(self.control.addresses(now))

    # -- what the application calls ---------------------------------------------------------------------------

    @property
    def fatal(self) -> FatalError | None:
        """What has stopped this producer for good."""
        return self.shared.fatal

    def pending(self) -> int:
        """Messages whose confirm policy is not met."""
        with self.shared.lock:
            return self.tracker.pending_messages + self.accumulator.messages

    def status(self) -> ProducerStatus:
        """The producer now."""
        shared, tracker = self.shared, self.tracker
        with shared.lock:
            oldest = tracker.oldest_pending_us if tracker.pending_messages else None
            age = None if oldest is None else max(0.0, (shared.clock.wall_us() - oldest) / 1e6)
            return ProducerStatus(
                self.producer_id, self._outbox.epoch, self._outbox.incarnation, self.pending(),
                self.retention.stored_bytes, age, {name: site.status() for name, site in self.sites.items()},
                self.groups.status(shared.clock.now()), self.export.status(), self.repairs.messages,
                dict(self.queue.rejected), shared.gate is not None,
            )  # fmt: skip

    def remaining(self) -> Remaining:
        """The work that remains."""
        with self.shared.lock:
            return Remaining(
                self.pending(), {name: site.behind() for name, site in self.sites.items()},
                self.export.rows_left, self.groups.unacknowledged(),
            )  # fmt: skip

    def _explain_full(self) -> OutboxFull:
        """Why there is no room."""
        if why := self.export.why_full:
            return JournalFull(why)
        with self.shared.lock:
            lagging = self.groups.lagging()
        whom = "a group, a site" if lagging else "a site"
        text = (
            f"{self.admission.used} bytes wait for {whom} or for the disk;"
            f" the limits are {self.admission.max_bytes} in the outbox, {QUEUE_BYTES} before it"
        )
        return OutboxFull(f"{text}; {lagging}" if lagging else text)

    # -- commands, which the writer executes ------------------------------------------------------------------

    def add_group(self, topic: str, group: str) -> None:
        """See :meth:`reliamsg.producer.api.Producer.add_group`."""
        if self.groups.add(topic, group):
            self._bind()

    def remove_group(self, topic: str, group: str) -> None:
        """See :meth:`reliamsg.producer.api.Producer.remove_group`."""
        self.groups.remove(topic, group)
        self._bind()

    def _bind(self) -> None:
        """Have the queues of all named groups declared."""
        for site in self.sites.values():
            site.transport.bind(self.shared.bindings())

    def remove(self, first: MessageId, last: MessageId) -> int:
        """Remove the messages from `first` to `last` that are held; returns their number."""
        shared = self.shared
        info, epoch, incarnation = self._find(first, last)
        stream = info.row.stream
        gone = RangeSet(info.removed.get(epoch, RangeSet()))

        def describe(taken: Taken) -> tuple[list[tuple[int, int]], list[Entry]]:
            for span in taken.spans:
                gone.add(*span)
            entries = [Entry("removed", stream, epoch, incarnation, *span) for span in RangeSet(taken.spans)]
            return list(gone), entries

        taken = self._outbox.take_out(
            info.row.id,
            RemovedRange(epoch, first.seq, last.seq),
            cut,
            describe,
            shared.clock.wall_us(),
            shared.clock.now_us(),
        )
        if not taken.spans:
            return 0
        shared.probe("removed")
        with shared.lock:
            info.remove(epoch, gone)
            self._forget(stream.topic, epoch, taken)
        self.repairs.queue.unavailable(stream, epoch, first.seq, last.seq)
        self.announcements.timetable.connected([stream], shared.clock.now())
        return sum(b - a + 1 for a, b in taken.spans)

    def _find(self, first: MessageId, last: MessageId) -> tuple[StreamInfo, int, int]:
        """The stream of some messages, and their epoch with its incarnation."""
        if first._replace(seq=0) != last._replace(seq=0) or first.seq > last.seq:
            raise ConfigError(f"{first} and {last} are not two ends of a range of one stream and epoch")
        info = self.shared.streams.by_stream.get(Stream(first.producer, first.topic, first.partition))
        epoch = self.tracker.epoch(first.epoch)
        link = None if info is None else next((link for link in info.chain if link.epoch == epoch), None)
        if info is None or link is None or first.seq < 1 or last.seq > link.last:
            raise ConfigError(f"{first} to {last}: not messages of this producer, or forgotten long ago")
        return info, epoch, link.incarnation

    def _forget(self, topic: str, epoch: int, taken: Taken) -> None:
        """Tell sites, groups and receipts what was removed. With the lock held."""
        core, now = self.shared.core, self.shared.clock.now()
        self.tracker.removed(topic, epoch, taken)
        for row in taken.gone:
            core.removed(row.id, now)
            self.groups.left([row.id])
        for before, after in taken.cut:
            core.changed(after)
            for added in taken.added:
                if added.last == before.last:
                    core.split(before.id, added.id, now)
                    if before.id in self.tracker.unjournalled:
                        self.tracker.unjournalled.add(added.id, added.id)
        if taken.added:
            self.shared.extend(taken.added[-1].id)
            self.groups.stored(taken.added)
        self.groups.look_again(taken)
        self._forget_rows()
        self.shared.changed.notify_all()

    def _forget_rows(self) -> None:
        """Rows have changed: have them read again. With the lock held."""
        self._tail.clear()
        self._pages.clear()
        for site in self.sites.values():
            site.forget_rows()

    def renumber(self, above: int) -> None:
        """Give everything that was never offered to a site an epoch above `above`."""
        epochs = self.gate.renumber(above)
        with self.shared.lock:
            self.groups.renumbered(epochs)
            self.tracker.renumbered(epochs)
            self._forget_rows()
        self.groups.find_moved(epochs.values())
        self.shared.probe("renumbered")

    # -- what the writer calls ----------------------------------------------------------------------------------

    def step(self) -> float | None:
        """Handle everything that is due; returns when (by the clock) there will be more, None for only when woken."""
        shared = self.shared
        now = shared.clock.now()
        if not self.callbacks.has_started:
            self.callbacks.start()
        if shared.fatal is None and self.commands.waiting:
            failure = self.commands.execute()
            if failure is not None:
                self.fail(failure)
        if shared.fatal is None and not self.accumulator.idle:
            self._commit()
        if shared.fatal is None and self._requested:
            self._read_pages()
        if shared.fatal is not None:  # nothing more is written: the file may be the cause
            self.accumulator.fail(shared.fatal)
            self.commands.refuse(shared.fatal)
            self.tracker.stopped()
            self._report_fatal()
            return None
        if now >= shared.core.next_deadline():
            self._check_confirms(now)
        try:
            if self.groups.moved:
                self.groups.walk()
            self._control(now)
            if shared.fatal is None:
                self.maintenance.run(now)
        except ReliamsgError as error:
            self._fail_or_retry(error)
        return self._deadline(now, self._export(now) if self.export.has_target else inf)

    def _check_confirms(self, now: float) -> None:
        """Reconnect where a confirm is overdue, and have parked streams tried again."""
        core = self.shared.core
        with self.shared.lock:
            timed = core.on_deadline(now)
            for name, parked in timed.overdue.items():
                self.sites[name].overdue(parked)
            self.tracker.published(timed.published)
        for name in timed.overdue:
            self.sites[name].transport.reconnect("a confirm is overdue")
        for name in timed.retrying:
            self.sites[name].transport.wake()

    def _control(self, now: float) -> None:
        """Handle control frames, and send those that are due."""
        queue, control, gate = self.queue, self.control, self.gate
        if queue.count or queue.connected:
            for conflict in control.handle(now):
                self.callbacks.report(conflict)
        if not gate.is_settled:
            self._judge(now)
            if self.shared.fatal is not None:
                return
        if queue.disconnected:
            queue.disconnected.clear()
            self.announcements.site_lost(now)
        if self.announcements.confirms_at <= now:
            self.announcements.announce_confirms(now)
        if len(self.shared.streams.by_stream) != control.listened and now >= control.listen_at:
            self._listen(control.addresses(now))
        if not gate.is_settled and gate.hello_due(now):
            self.announcements.hello(now)
        if self.announcements.timetable.due_at <= now:
            self.announcements.run(now)
        if not self.repairs.is_idle and self.repairs.deadline(now) <= now:
            self.repairs.run(now)
        if now >= control.forget_at:
            control.forget(now)

    def _judge(self, now: float) -> None:
        """Open the gate, renumber the messages behind it, or stop."""
        try:
            verdict = self.gate.judge(now)
            if verdict is Verdict.FENCED:
                self._stop_fenced()
            elif verdict is Verdict.RENUMBER:
                self.renumber(self.gate.above)
                log.warning(
                    "producer.renumbered",
                    "producer %(producer)s: a group knows of a later epoch; what was not sent yet is in epoch"
                    " %(epoch)d now",
                    producer=self.producer_id, epoch=self._outbox.epoch,
                )  # fmt: skip
            elif verdict is Verdict.SEND:
                epoch, streams = self._outbox.epoch, self.shared.streams.by_stream
                fresh = [stream for stream, info in streams.items() if info.tail[0] == epoch]
                self.announcements.timetable.published(fresh, now)
                self._wake_sites()
        except OutboxWriteError:
            self.gate.pause(now)
            raise

    def _stop_fenced(self) -> None:
        entry, error = self.gate.fenced()
        with self.shared.lock:
            self.shared.stop()
        self.maintenance.store_progress([entry])
        self.shared.probe("fenced")
        self.fail(error)

    def _listen(self, addresses: Sequence[str]) -> None:
        for site in self.sites.values() if addresses else ():
            site.transport.listen(addresses)

    def _wake_sites(self) -> None:
        for site in self.sites.values():
            site.transport.wake()

    def _export(self, now: float) -> float:
        """Export the journal; returns when there will be more."""
        if self.shared.fatal is not None:
            return inf
        try:
            stepped = self.export.step(now)
        except FatalError as error:
            self.fail(error)
            return inf
        if stepped.full_changed:
            self.accumulator.hold(self.export.full)
        return inf if stepped.deadline is None else stepped.deadline

    def _deadline(self, now: float, exporting: float) -> float | None:
        shared, control, gate, repairs = self.shared, self.control, self.gate, self.repairs
        with shared.lock:
            if (
                self._requested
                or self.commands.waiting
                or self.groups.moved
                or self.queue.count
                or self.queue.connected
                or self.queue.disconnected
                or not self.accumulator.empty
            ):
                return now
            times = [
                shared.core.next_deadline(), self.maintenance.deadline(), self.announcements.timetable.due_at,
                self.announcements.confirms_at, exporting,
            ]  # fmt: skip
            if not gate.is_settled:
                times.append(gate.deadline(now))
            if not repairs.is_idle:
                times.append(repairs.deadline(now))
            if len(shared.streams.by_stream) != control.listened:
                times.append(control.listen_at)
        earliest = min(times)
        return None if earliest == inf else max(earliest, now)

    # -- commits and pages ------------------------------------------------------------------------------------

    def _commit(self) -> None:
        batch = self.accumulator.take()
        if batch is None:
            return
        error: ReliamsgError | None = None
        rows: list[Row] = []
        try:
            rows = self._store(batch)
        except OutboxWriteError as failure:
            error = failure
        except Exception as failure:  # whatever it is, no thread may be left waiting
            if not isinstance(failure, FatalError):
                log.error(
                    "producer.storing_failed", "producer %(producer)s: storing failed",
                    producer=self.producer_id, error=type(failure).__name__, exc_info=True,
                )  # fmt: skip
                failure = FatalError(f"internal error: {failure!r}")
            error = failure
            self.fail(failure)
        if rows:
            self.shared.probe("committed")
        messages = size = 0
        for row in rows:
            messages += row.count
            size += row.size
        try:
            self.admission.transfer(batch, size)
            with self.shared.lock:
                if rows:
                    self._tail.extend(rows, size)
                    self.shared.extend(rows[-1].id)
                    self.groups.stored(rows)
                    self.tracker.stored(rows, messages)
                    self.retention.stored(size)
                self.accumulator.stored()
            if rows:
                streams = [row.stream for row in rows] if len(rows) > 1 else (rows[0].stream,)
                self.announcements.timetable.published(dict.fromkeys(streams), self.shared.clock.now())
        finally:
            batch.finish(error)
        self._room.give_way()  # so that threads in publish() continue before sites are woken
        if rows:
            self._wake_sites()

    def _store(self, batch: CommitBatch) -> list[Row]:
        clock, outbox = self.shared.clock, self._outbox
        wall_us, mono_us = clock.wall_us(), clock.now_us()  # together: a new stream is committed first
        topics: dict[str, list[Run]] = {}
        for run in batch.runs:
            topics.setdefault(run.topic, []).append(run)
        streams: dict[str, StreamRow] = {}
        for topic in topics:
            row = streams[topic] = outbox.stream(topic, 0)
            if row.id not in self.shared.streams.by_id:
                with self.shared.lock:
                    self.shared.streams.open(row)
        # The newest message of a batch is not newer than now.
        times = (batch.wall_us, max(batch.wall_us, wall_us))
        packed = self._packer.pack(topics, streams, outbox.epoch, times)
        rows = outbox.append(packed.batches, packed.entries, wall_us, mono_us)
        packed.stored(rows)
        return rows

    def _request_page(self, reader: RowReader, queue: SendQueue, first: int) -> None:
        """A site is behind. Called with the lock held."""
        self._requested.append((reader, queue, first))
        self.shared.wake()

    def _read_pages(self) -> None:
        lock = self.shared.lock
        with lock:
            requested, self._requested = self._requested, []
            top = self.shared.top
        for reader, queue, first in requested:
            try:
                rows = self._pages.page(first, queue.stream_id)
            except ReliamsgError as error:
                self._fail_or_retry(error)
                with lock:
                    reader.forget(queue)
                continue
            with lock:
                reader.loaded(queue, first, rows, top)
        self._wake_sites()

    # -- failing and closing ----------------------------------------------------------------------------------

    def _fail_or_retry(self, error: ReliamsgError) -> None:
        """Background work failed: stop for good, or try again later."""
        if isinstance(error, FatalError):
            self.fail(error)
        else:
            log.warning(
                "producer.outbox_retried", "producer %(producer)s: %(reason)s; trying again",
                producer=self.producer_id, reason=str(error),
            )  # fmt: skip

    def fail(self, error: FatalError) -> None:
        """Stop for good: nothing more is stored or sent. The writer's."""
        shared = self.shared
        with shared.lock:
            first = shared.stop(error)
            shared.changed.notify_all()
        shared.close()
        self.accumulator.refuse(error)
        log.error(
            "producer.stopped", "producer %(producer)s has stopped: %(reason)s",
            producer=self.producer_id, error=type(error).__name__, reason=str(error),
        )  # fmt: skip
        if first:
            shared.wake()  # the next step wakes all threads that wait

    def _report_fatal(self) -> None:
        """Have ``on_error`` called, once, with what has stopped this producer."""
        if self.shared.fatal is not None and not self._reported:
            self._reported = True
            self.callbacks.report(self.shared.fatal)

    def begin_close(self, export_by: float | None = None) -> None:
        """Accept nothing more, and wake threads that wait for room. `export_by`: until when, by the clock, the last
        segment of the journal may take."""
        if export_by is not None:
            self._export_by = export_by
        self.shared.close()
        self.accumulator.refuse(ClosedError("this producer is closed"))

    def finish(self) -> None:
        """The writer's last act: store what is left, with a ``closed`` row, and close the file."""
        shared = self.shared
        self._report_fatal()
        with shared.lock:
            shared.stop()
            shared.changed.notify_all()
        try:
            while shared.fatal is None and not self.accumulator.empty:
                self._commit()
            if shared.fatal is None:
                self.maintenance.store_progress()  # first, since the journal ends with ``closed``
                with shared.lock:
                    shared.journal.add(Entry("closed", detail={"pending": self.pending()}))
                self.maintenance.store_progress()
                self.export.finish(self._export_by)
        except ReliamsgError as error:
            self._fail_or_retry(error)
        finally:
            ended = shared.fatal or ClosedError("this producer was closed")
            self.accumulator.fail(ended)
            self.commands.refuse(ended)
            self.tracker.stopped()
            self.callbacks.close(0.0)
            self.export.stop()
            self._outbox.close()
