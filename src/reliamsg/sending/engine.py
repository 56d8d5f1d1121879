"""The producer's logic around core and store, without threads: somebody calls, time is an argument or asked
for.

Three kinds of callers: the application (``accept``, ``wait_…``), transports' I/O threads (through
:class:`~reliamsg.sending.link.SiteLink`), and one writer, which alone uses the outbox and calls
:meth:`Engine.step`. `lock` guards everything but the outbox, and is never held while the outbox is used or a
callback runs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from reliamsg import forks
from reliamsg.config import JournalExport, Site
from reliamsg.core.producer import ProducerCore
from reliamsg.core.ranges import Span
from reliamsg.core.window import Lane, SiteLimits
from reliamsg.errors import ClosedError, FatalError, OutboxWriteError, ReliamsgError
from reliamsg.message import MessageId, Stream
from reliamsg.runtime.callbacks import CallbackThread
from reliamsg.runtime.clock import microseconds
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.export_step import ExportStep, JournalSource
from reliamsg.runtime.journal_buffer import JournalBuffer
from reliamsg.sending.admission import Admission
from reliamsg.sending.control import Control
from reliamsg.sending.feed import Feed, Shelf, Tail
from reliamsg.sending.forms import Forms
from reliamsg.sending.housekeeping import Housekeeping
from reliamsg.sending.intake import Group, Intake
from reliamsg.sending.journalling import MAX_WAITING_ROWS, RULES
from reliamsg.sending.link import SiteLink
from reliamsg.sending.membership import Membership
from reliamsg.sending.orders import Orders
from reliamsg.sending.outcomes import Outcomes
from reliamsg.sending.packing import Packer
from reliamsg.sending.proving import Proving, needs_proof
from reliamsg.sending.recoding import recode
from reliamsg.sending.removal import remove
from reliamsg.sending.retention import Retention
from reliamsg.sending.settings import Settings
from reliamsg.sending.status import ProducerStatus, Remaining
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Cursors, Outbox, Row, StreamRow
from reliamsg.transport.base import Binding, Transports

__all__ = ["Engine"]


class Engine:
    """One producer. See the module's text for who calls what."""

    def __init__(
        self,
        outbox: Outbox,
        sites: Sequence[Site],
        groups: Mapping[str, Sequence[str]],
        settings: Settings,
        transports: Transports,
        environment: Environment,
        journal: JournalExport | None = None,
    ) -> None:
        self.clock = environment.clock
        self.wall_us = environment.wall_us
        self.probe = environment.probe
        self.wake = environment.wake
        source = JournalSource("producer", outbox.producer, outbox.path, outbox.exported)
        self.export = ExportStep(journal, source, environment)
        self._export_by = float("-inf")
        self.lock = threading.RLock()  # reentrant for signal handlers: applications only read under it
        self.log = logging.getLogger("reliamsg.sending")
        self.generation = forks.generation
        self.producer_id = outbox.producer
        self.settings = settings
        self.forms = Forms(settings.plain, settings.keys)
        self._give_way = environment.give_way
        self.journal_buffer = JournalBuffer(RULES, MAX_WAITING_ROWS)
        self.confirmed_rows = 0
        """Rows confirmed since cursors were stored last."""
        self.stopped = False
        """Nothing is sent any more."""
        self.fatal: FatalError | None = None
        self._reported = False
        self.admission = Admission(settings.max_bytes, environment.room)
        self.intake = Intake(self, self.admission, settings, self.wall_us, self.wake)
        self.callbacks = CallbackThread("reliamsg-callbacks", environment.on_error, self.log, self.wake)
        self.outcomes = Outcomes(self)
        self.orders = Orders(self.wake)
        self.membership = Membership(self, outbox, settings.release == "consumed")
        self._outbox = outbox
        self._asked: list[tuple[Feed, Lane, int]] = []
        self._shelf = Shelf(outbox.page)
        self.housekeeping = Housekeeping(self, outbox)
        self._packer = Packer(
            self._stream_row, outbox.epoch, outbox.incarnation, settings.max_batch_messages,
            settings.max_batch_bytes, settings.compress, None if settings.plain else settings.keys,
        )  # fmt: skip
        self._tail = Tail()
        self.retention = Retention(settings.max_bytes, settings.retain_seconds, settings.retain_bytes)
        self.pending_messages = 0
        self.oldest_pending_us: int | None = None
        """When the oldest message that is not published was stored, as of the latest look."""
        self.links: dict[str, SiteLink] = {}
        self._open(sites, groups, transports)

    # -- opening --------------------------------------------------------------------------------------------

    def _open(
        self, sites: Sequence[Site], groups: Mapping[str, Sequence[str]], transports: Transports
    ) -> None:
        outbox = self._outbox
        stored = outbox.site_cursors()
        oldest, top = outbox.bounds()
        limits = {s.name: SiteLimits(s.window_batches, s.window_bytes, s.confirm_timeout) for s in sites}
        cursors = {s.name: stored[s.name].cursor if s.name in stored else oldest for s in sites}
        self.core = ProducerCore(limits, cursors, self.settings.confirm, outbox.published())
        held = outbox.held()
        self.core.opened(top, held)
        self._forget_sites({name: c.cursor for name, c in stored.items() if name not in limits}, top)
        self._name_groups(sites, groups, held)
        self.control = Control(
            self, outbox, self.settings.keys, self.settings.hello_timeout, self.settings.status_interval,
            self.settings.repair_bytes_per_second,
        )  # fmt: skip
        bindings = self.membership.bindings()
        self.proving = self._proving(sites, bindings)
        for site in sites:
            self._restore(site.name, stored.get(site.name))
            link = SiteLink(self, site, self.core.sites[site.name], Feed(self._tail, self._ask))
            link.transport = transports.open_sender(site, self.producer_id, bindings, link)
            self.links[site.name] = link
            link.review(self.membership.book.pages)
        # With a changed policy, what was confirmed before may be enough now.
        for span in self.core.confirms.candidates():
            for row in self.core.confirms.decide(range(span[0], span[1] + 1)):
                self.housekeeping.published.add(row, row)
        self.housekeeping.begin()
        self.control.open()

    def _restore(self, site: str, stored: Cursors | None) -> None:
        """Park the streams that were parked at the site when the outbox was closed."""
        window = self.core.sites[site]
        for parked in () if stored is None else stored.parked:
            for row in self._outbox.stream_ids(parked.stream_id, min(window.main.cursor, parked.cursor)):
                if row < parked.cursor:  # the stream may have been ahead of the others there
                    window.confirmed.add(row, row)
                else:
                    window.confirmed.remove(row, row)
            window.restore_lane(parked.stream_id, parked.cursor, parked.attempts, parked.reason)

    def _proving(self, sites: Sequence[Site], bindings: Sequence[Binding]) -> Proving:
        """What the outbox says of groups that are still named."""
        named = {(b.topic, b.partition, b.group) for b in bindings}
        streams = {row.id: row.stream for row in self._outbox.streams.values()}
        stored = {
            (site, (streams[stream_id].topic, streams[stream_id].partition, group)): marked
            for (site, stream_id, group), marked in self._outbox.proofs().items()
        }
        proven = {key: marked for key, marked in stored.items() if key[1] in named}
        return Proving(sites, proven, self.settings.keys)

    def _name_groups(
        self, sites: Sequence[Site], groups: Mapping[str, Sequence[str]], held: Iterable[Span]
    ) -> None:
        opened = Entry("opened", epoch=self._outbox.epoch, incarnation=self._outbox.incarnation)
        entries = [*self.journal_buffer.take(), opened]
        named, members = self.membership.open(groups, held, entries)
        opened.detail = {
            "groups": named,
            "sites": [site.name for site in sites],
            "confirm": str(self.settings.confirm),
            "release": self.settings.release,
        }
        proves_at = [site.name for site in sites if needs_proof(site)]
        settings = {"release": self.settings.release, "proves_at": json.dumps(proves_at)}
        self._outbox.name_groups(members, entries, self.wall_us(), self.mono_us(), settings)

    def _forget_sites(self, gone: Mapping[str, int], top: int) -> None:
        """Sites that are not named any more: say what they never confirmed."""
        for name, cursor in gone.items():
            messages, _ = self._outbox.totals(cursor, top)
            self.log.warning(
                "producer %s: site %s is not named any more; it never confirmed %d messages that are still held",
                self.producer_id, name, messages,
            )  # fmt: skip
            self.journal_buffer.add(Entry("site_forgotten", site=name, detail={"unconfirmed": messages}))
        if gone:
            self._outbox.forget_sites(gone)

    # -- what the application calls ---------------------------------------------------------------------------

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(self.links)

    def pending(self) -> int:
        with self.lock:
            return self._pending()

    def _pending(self) -> int:
        waiting = self.intake.messages
        return self.pending_messages + waiting

    def status(self) -> ProducerStatus:
        with self.lock:
            oldest = self.oldest_pending_us if self.pending_messages else None
            age = None if oldest is None else max(0.0, (self.wall_us() - oldest) / 1e6)
            return ProducerStatus(
                self.producer_id, self._outbox.epoch, self._outbox.incarnation, self._pending(),
                self.retention.stored_bytes, age,
                {name: link.status(self.core.top) for name, link in self.links.items()},
                self.membership.status(self.clock()),
                self.export.status(),
                self.control.repairing.messages, dict(self.control.rejected), self.control.gate is not None,
            )  # fmt: skip

    def remaining(self) -> Remaining:
        with self.lock:
            top = self.core.top
            return Remaining(
                self._pending(), {name: link.status(top).behind for name, link in self.links.items()},
                self.export.rows_left, self.membership.unacknowledged(),
            )  # fmt: skip

    # -- what site links call, with the lock held -------------------------------------------------------------

    def stream_of(self, stream_id: int) -> Stream:
        return self.membership.book.by_id[stream_id].row.stream

    def _ask(self, feed: Feed, lane: Lane, first: int) -> None:
        self._asked.append((feed, lane, first))
        self.wake()

    def wake_if_waited_for(self) -> None:
        """Cursors are stored by and by; at once when many rows wait for that."""
        if self.housekeeping.many_confirmed:
            self.wake()

    # -- what the writer calls ----------------------------------------------------------------------------------

    def step(self) -> float | None:
        """Do what is to be done; returns when (by `clock`) there will be more, None for only when woken."""
        now = self.clock()
        self.callbacks.start()
        if self.fatal is None:
            failure = self.orders.carry_out()
            if failure is not None:
                self.fail(failure)
        if self.fatal is None:
            self._commit()
        if self.fatal is None:
            self._read_pages()
        if self.fatal is not None:  # nothing is written any more: the file may be why
            self.intake.fail(self.fatal)
            self.orders.refuse(self.fatal)
            self._report_fatal()
            return None
        with self.lock:
            timed = self.core.on_deadline(now)
            for name, parked in timed.overdue.items():
                self.links[name].unanswered(parked)
            self.outcomes.published(timed.published)
        for name in timed.overdue:
            self.links[name].transport.reconnect("a confirm is overdue")
        for name in timed.retrying:
            self.links[name].transport.wake()
        try:
            if self.membership.moved:
                self.membership.walk()
            self.control.step(now)
            if self.fatal is None:
                self.housekeeping.run(now)
        except ReliamsgError as error:
            self._fail_or_retry(error)
        return self._deadline(now, self._export(now))

    def _export(self, now: float) -> float | None:
        """Have the journal go on its way; returns when there will be more."""
        if self.fatal is not None or not self.export.has_target:
            return None
        try:
            stepped = self.export.step(now)
        except FatalError as error:
            self.fail(error)
            return None
        if stepped.full_changed:
            self.intake.hold(self.export.full)
        return stepped.deadline

    def _deadline(self, now: float, exporting: float | None) -> float | None:
        with self.lock:
            if self._asked or not self.intake.empty or not self.orders.empty or self.membership.moved:
                return now
            times = (
                self.core.next_deadline(),
                self.housekeeping.deadline(now),
                self.control.deadline(now),
                exporting,
            )
        return min((time for time in times if time is not None), default=None)

    def _commit(self) -> None:
        group = self.intake.take()
        if group is None:
            return
        messages = group.count
        error: ReliamsgError | None = None
        rows: list[Row] = []
        try:
            rows = self._store(group)
        except OutboxWriteError as failure:
            error = failure
        except Exception as failure:  # whatever it is, nobody may be left waiting
            if not isinstance(failure, FatalError):
                self.log.exception("producer %s: storing failed", self.producer_id)
                failure = FatalError(f"internal error: {failure!r}")
            error = failure
            self.fail(failure)
        if rows:
            self.probe("committed")
        size = sum(row.size for row in rows)
        try:
            self.admission.transfer(group, size)
            with self.lock:
                if rows:
                    self._tail.extend(rows)
                    self.core.top = rows[-1].id
                    self.membership.stored(rows)
                    self.pending_messages += messages
                    self.retention.stored(size)
                    if self.oldest_pending_us is None:
                        self.oldest_pending_us = rows[0].wall_us
                self.intake.stored()
            if rows:
                self.control.announcing.timetable.published(
                    dict.fromkeys(row.stream for row in rows), self.clock()
                )
        finally:
            group.finish(error)
        self._give_way()  # so that who waits in publish() goes on before sites are woken
        for link in self.links.values() if rows else ():
            link.transport.wake()

    def _store(self, group: Group) -> list[Row]:
        wall_us = self.wall_us()
        packed = self._packer.pack(group, wall_us)
        rows = self._outbox.append(packed.batches, packed.entries, wall_us, self.mono_us())
        packed.settle(rows)
        return rows

    def next_epoch(self) -> None:
        """What is published from now on belongs to another epoch."""
        self._outbox.next_epoch()
        self.probe("next_epoch")
        self._packer.epoch = self._outbox.epoch

    def renumber(self, above: int) -> None:
        """Give everything that was never offered to a site an epoch above `above`."""
        epochs = self._outbox.renumber(above, recode, self.wall_us(), self.mono_us())
        self._packer.epoch = self._outbox.epoch
        with self.lock:
            self.membership.renumbered(epochs)
            self.outcomes.renumbered(epochs)
            self.housekeeping.recount = True
            self.forget_rows()
        self.probe("renumbered")

    def remove(self, first: MessageId, last: MessageId) -> int:
        """Take messages out of the outbox; returns how many."""
        return remove(self, self._outbox, first, last)

    def forget_rows(self) -> None:
        """Rows have changed: have them read again. With the lock held."""
        self._tail.clear()
        self._shelf.clear()
        for link in self.links.values():
            for lane in (link.window.main, *link.window.lanes.values()):
                link.feed.forget(lane)

    def _read_pages(self) -> None:
        with self.lock:
            asked, self._asked = self._asked, []
            top = self.core.top
        for feed, lane, first in asked:
            try:
                rows = self._shelf.page(first, lane.stream_id)
            except ReliamsgError as error:
                self._fail_or_retry(error)
                with self.lock:
                    feed.forget(lane)
                continue
            with self.lock:
                feed.loaded(lane, first, rows, top)
        for link in self.links.values() if asked else ():
            link.transport.wake()

    def _fail_or_retry(self, error: ReliamsgError) -> None:
        """Background work failed: stop for good, or try again later."""
        if isinstance(error, FatalError):
            self.fail(error)
        else:
            self.log.warning("producer %s: %s; trying again", self.producer_id, error)

    def fail(self, error: FatalError) -> None:
        """Stop for good: nothing is stored or sent any more. The writer's."""
        with self.lock:
            first = self.fatal is None
            if first:
                self.fatal = error
            self.stopped = True
            self.outcomes.changed()
        self.intake.refuse(error)
        self.log.error("producer %s has stopped: %s", self.producer_id, error)
        if first:
            self.wake()  # the next step tells whoever waits

    def stop_sending(self) -> None:
        """Send nothing more. Whoever waits is told the reason later, by :meth:`fail` or :meth:`finish`."""
        with self.lock:
            self.stopped = True

    def _report_fatal(self) -> None:
        """Have ``on_error`` told, once, what has stopped this producer."""
        if self.fatal is not None and not self._reported:
            self._reported = True
            self.callbacks.report(self.fatal)

    def begin_close(self, export_by: float | None = None) -> None:
        """Accept nothing more; whoever waits for room is told. `export_by`: until when, by `clock`, the journal's last
        segment may take."""
        if export_by is not None:
            self._export_by = export_by
        self.intake.refuse(ClosedError("this producer is closed"))

    def finish(self) -> None:
        """The writer's last act: store what is left, with a ``closed`` row, and close the file."""
        self._report_fatal()
        with self.lock:
            self.stopped = True
            self.outcomes.changed()
        try:
            while self.fatal is None and not self.intake.empty:
                self._commit()
            if self.fatal is None:
                self.housekeeping.store_progress()  # first, since the journal ends with ``closed``
                with self.lock:
                    self.journal_buffer.add(Entry("closed", detail={"pending": self._pending()}))
                self.housekeeping.store_progress()
                self.export.finish(self._export_by)
        except ReliamsgError as error:
            self._fail_or_retry(error)
        finally:
            ended = self.fatal or ClosedError("this producer was closed")
            self.intake.fail(ended)
            self.orders.refuse(ended)
            self.callbacks.close(0.0)
            self.export.stop()
            self._outbox.close()

    def _stream_row(self, topic: str) -> StreamRow:
        row = self._outbox.stream(topic, 0)
        with self.lock:
            self.membership.opened(row)
        return row

    def mono_us(self) -> int:
        """The monotonic clock, in µs."""
        return microseconds(self.clock())
