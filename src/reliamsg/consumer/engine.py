"""The consumer without threads: arrivals, deliveries and commits.

:class:`ConsumerEngine` composes the core, the inbox, and a :class:`~reliamsg.consumer.site.SiteReceiver` for
each site. One thread calls :meth:`~ConsumerEngine.step`, at the time that the last call
returned and whenever ``shared.wake`` is called; messages are taken with :meth:`~ConsumerEngine.take` on any
thread. Nothing here sleeps, and time comes from the two clocks that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reliamsg.config import JournalExport, Site
from reliamsg.consumer.commits import Committer, unreserved
from reliamsg.consumer.connector import Connector
from reliamsg.consumer.control import Control, control_addresses
from reliamsg.consumer.dead_letters import DeadLetters
from reliamsg.consumer.deliveries import Deliveries
from reliamsg.consumer.forgetting import Forgetting, entry_of, is_settled, tombstone_of
from reliamsg.consumer.fullness import Fullness
from reliamsg.consumer.intake import UNREADABLE, Forms, installed_forms
from reliamsg.consumer.latest_statuses import LatestStatuses
from reliamsg.consumer.lease import Lease
from reliamsg.consumer.loading import Loader
from reliamsg.consumer.quarantine import FAR_EPOCH, TOO_MANY_STREAMS, Samples
from reliamsg.consumer.replaying import Replayer
from reliamsg.consumer.restore import restored
from reliamsg.consumer.shared import Shared, share
from reliamsg.consumer.site import Accepted, SiteReceiver
from reliamsg.consumer.standby import StandbyLease
from reliamsg.errors import (
    FatalError,
    GroupBusy,
)
from reliamsg.keys import KeyRing
from reliamsg.message import Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.runtime.clock import microseconds
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.export_step import ExportStep, JournalSource
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.quarantine import LATER_VERSION, Selection
from reliamsg.transport.base import Binding, Transports
from reliamsg.version import VERSION
from reliamsg.wire.address import topic_address

__all__ = ["ConsumerEngine", "EngineSettings"]

MOST_IDLE_S = 1.0
"""Steps are at most this far apart, if the engine is called at least that often."""
LOOK_AT_CLOCK_S = 10.0
"""While anything waits whose epoch is far ahead, how often it is checked whether it still is."""
PAGE_BYTES = 1024 * 1024
"""Bytes to read from the inbox at once, for one stream."""


@dataclass(frozen=True)
class EngineSettings:
    """A consumer's settings beyond those of the protocol."""

    group: str
    topics: tuple[str, ...]
    keep_late: bool = False
    """The application wants to see late messages."""
    unsequenced: bool = False
    """Messages without identity are delivered."""
    max_inbox_bytes: int = 256 * 1024 * 1024
    takeover_timeout: float = 30.0
    on_gap: str = "hold"
    """What the application does at a gap: for the journal only."""
    standby: bool = False
    """Wait until no other inbox of the group reads, however long that takes."""
    successor: bool = False
    """The process that had the same inbox open has ended, so there is no need to wait for its lease."""
    keys: KeyRing | None = None
    max_quarantine_bytes: int = 64 * 1024 * 1024
    forms: Forms = field(default_factory=installed_forms)
    """What the installation can read."""


class ConsumerEngine:
    """See the module."""

    def __init__(
        self,
        settings: EngineSettings,
        rules: Rules,
        sites: Sequence[Site],
        inbox: Inbox,
        transports: Transports,
        environment: Environment,
        journal: JournalExport | None = None,
    ) -> None:
        self.settings = settings
        self._stepped_at = float("-inf")
        core = GroupReceiver(
            rules,
            {site.name: site.prefetch for site in sites},
            inbox.note_clock(environment.clock.wall_us()),
        )
        lease = Lease(inbox.id, inbox.random_bytes(8), settings.takeover_timeout)
        bindings = [Binding(topic, 0, settings.group) for topic in settings.topics]
        topics = {(binding.topic, binding.partition) for binding in bindings}
        read = (*(topic_address(*topic) for topic in topics), *control_addresses(settings.group, topics))
        self.shared: Shared = share(
            core, inbox, settings.group, environment, lease, Samples(frozenset(read), inbox.quarantined()),
            (unreserved(settings.max_inbox_bytes), settings.max_quarantine_bytes),
        )  # fmt: skip
        self._open_sites(sites, bindings, transports)
        self._committer = Committer(self.shared, self.sites, settings.max_inbox_bytes, environment.probe)
        self.fullness: Fullness = Fullness(self.shared, settings.max_inbox_bytes)
        self.dead_letters: DeadLetters = DeadLetters(self.shared)
        self.deliveries: Deliveries = Deliveries(
            self.shared, self.sites, self.dead_letters, environment.probe
        )
        self.shared.buffers.start(self.deliveries)
        self._replayer = Replayer(self.shared, self.sites)
        self._loader = Loader(self.shared, self.control)
        source = JournalSource("group", settings.group, inbox.path, inbox.exported)
        self.export: ExportStep = ExportStep(journal, source, replace(environment, waker=self.shared.agenda))
        self._restore()

    def _open_sites(self, sites: Sequence[Site], bindings: Sequence[Binding], transports: Transports) -> None:
        shared, settings = self.shared, self.settings
        topics = {topic_address(b.topic, b.partition): (b.topic, b.partition) for b in bindings}
        self.statuses: LatestStatuses = LatestStatuses(shared.journal, [site.name for site in sites])
        self.sites: dict[str, SiteReceiver] = {
            site.name: SiteReceiver(
                shared, site, self.statuses, topics,
                Accepted(settings.keep_late, settings.unsequenced, settings.keys, settings.forms),
            )
            for site in sites
        }  # fmt: skip
        self.control: Control = Control(shared, self.sites, self.statuses, topics.values(), settings.keys)
        listener = f"{settings.group}.{shared.inbox.id}"
        connectors = {
            name: Connector(receiver, self.control, transports, bindings, listener)
            for name, receiver in self.sites.items()
        }
        self.standby: StandbyLease = StandbyLease(
            shared, self.sites, connectors, self.control, settings.standby
        )

    def _restore(self) -> None:
        shared = self.shared
        detail = {
            "topics": list(self.settings.topics),
            "sites": list(self.sites),
            "begin": shared.core.rules.begin,
            "gap_timeout": shared.core.rules.gap_timeout,
            "on_gap": self.settings.on_gap,
            "inbox": shared.inbox.id,
            "version": VERSION,
        }
        shared.journal.note("opened", detail=detail)
        with shared.lock:
            now = shared.clock()
            unsettled = shared.inbox.load_unsettled()
            elsewhere = shared.inbox.stream_count - len(unsettled)
            shared.core.resume(elsewhere, shared.inbox.takeovers, shared.inbox.standing == "took_over")
            shared.core.horizon.learn(shared.inbox.highest_epoch)
            for saved in unsettled:
                shared.core.restore(restored(saved, shared.core.context), now)
            shared.events.tell_again(shared.inbox.untold)
            for one in shared.inbox.quarantine.select(Selection(reason=FAR_EPOCH)):
                shared.core.note_far(one.stream, one.epoch, now)
            for reason in (UNREADABLE, LATER_VERSION):  # this installation may be able to read more
                if shared.inbox.quarantine.has(reason):
                    shared.quarantine.replay(Selection(reason=reason))
            shared.events.handle()

    def start(self) -> None:
        """Record in the inbox that it is open, in case the process is killed right away; then let the sites connect.
        Before the first :meth:`step`."""
        self.flush(self.shared.clock())
        with self.shared.lock:
            self.standby.begin(self.shared.clock(), self.settings.standby and not self.settings.successor)

    # -- the store's thread -------------------------------------------------------------------------------

    def step_when_due(self, now: float) -> float | None:
        """Step if anything is due: being woken may only mean that the next step is due earlier than planned. Returns
        when to call again; None if nothing is timed."""
        agenda = self.shared.agenda
        if agenda.called or now >= min(agenda.wakes_at, self._stepped_at + MOST_IDLE_S):
            return self.step(now)
        return agenda.wakes_at

    def step(self, now: float) -> float | None:
        """Handle everything that is due: clocks, commits, acknowledgements to brokers, reading back. Returns when to
        call again; None if nothing is timed."""
        shared, core = self.shared, self.shared.core
        self._stepped_at = now
        with shared.lock:
            shared.agenda.step_begins()
            if shared.health.fatal is not None:
                return None
            decides = shared.role.changed or now >= self.standby.due_at
            if decides:
                self.standby.step(now)
            if shared.buffers.acknowledged:
                shared.buffers.settle(now)
            self._tick(now)
            shared.events.handle()
            if shared.admission.counts_held or core.context.held or shared.quarantine.held:
                shared.admission.look()
            for site in self.sites.values():
                if site.deferred.waiting:
                    site.retry_deferred(now)
                if site.busy_since is not None:
                    self._check_busy(site, now)
            if core.far:
                shared.admission.admit_believed(shared.wall_us())
            self.control.step(now, shared.durability.inbox_full)
            if core.retiring or len(core.streams) >= self._loader.most_resident:
                self._loader.retire(now)
            shared.events.handle()
            plan = self._committer.plan(now)
            if self._committer.short_of_room or self.fullness.since is not None:
                self.fullness.look(now, self._committer.short_of_room)
        if plan is not None:
            self._committer.commit(plan, now)
        if shared.buffers.pages:
            self._committer.page_in(PAGE_BYTES, now)
        quarantine = shared.quarantine
        more = bool(
            self._replayer.more or quarantine.marks or quarantine.requalifying
        ) and self._replayer.step(now)
        if self._loader.is_needed(now):
            self._loader.load(now)
        if self.settings.keep_late:
            self.dead_letters.load_late()
        exporting = self._export(now) if self.export.has_target else None
        with shared.lock:
            return self._end_step(shared.clock(), exporting, more)

    def _end_step(self, now: float, exporting: float | None, more: bool) -> float | None:
        """Plan the next step, and return when it is due. `exporting`: when there is more to export; `more`: there is
        work left."""
        shared = self.shared
        ticked = self._tick(now)
        shared.events.handle()
        timers = [
            exporting,
            ticked,
            self._committer.deadline(now),
            self.standby.due_at,
            self.control.deadline(),
        ]
        if self.fullness.since is not None:
            timers.append(self.fullness.deadline(now))
        timers.append(self._loader.deadline(now))
        if shared.core.far:
            timers.append(now + LOOK_AT_CLOCK_S)
        for site in self.sites.values():
            if site.deferred.waiting:
                timers.append(site.deferred.retry_at)
            if site.busy_since is not None:
                timers.append(self._check_busy(site, now))
        durability = shared.durability
        waits = durability.write_error is None and (shared.buffers.pages or durability.awaited)
        if more or waits or shared.role.changed:
            timers.append(now)
        deadline: float | None = None
        for at in timers:
            if at is not None and (deadline is None or at < deadline):
                deadline = at
        shared.agenda.step_ends(deadline)
        if shared.buffers.acknowledged:  # earlier acknowledgements did not wake the worker
            shared.agenda.due(durability.commits_at)
            return shared.agenda.wakes_at
        return deadline

    def _export(self, now: float) -> float | None:
        """Export some of the journal; returns when to continue."""
        shared = self.shared
        if shared.health.fatal is not None:
            return None
        try:
            stepped = self.export.step(now)
        except FatalError as error:
            shared.health.fail(error)
            return None
        if stepped.full_changed:
            with shared.lock:
                shared.durability.hold_for_journal(self.export.full)
                shared.events.handle()
                shared.buffers.queue_all()
        return stepped.deadline

    def _tick(self, now: float) -> float | None:
        """Let the core's clocks run, unless another inbox may be reading; returns the next deadline."""
        shared, role = self.shared, self.shared.role
        if role.barred or now >= role.lease.until:
            return None
        paused = self.fullness.since is not None and self.fullness.waits_for_application(now)
        return shared.core.tick(now, paused, self._loader.keeps)

    def _check_busy(self, site: SiteReceiver, now: float) -> float | None:
        """End this consumer if another one has read at a site for long, and this one must yield to it; returns when
        that will be so."""
        if site.busy_since is None or self.shared.role.may_stay(site):
            return None
        until = site.busy_since + self.settings.takeover_timeout
        if now >= until:
            self.shared.health.fail(
                GroupBusy(
                    f"another consumer reads for group {self.settings.group!r} at site {site.name} ({site.error}):"
                    " stop it, or give this one its own group"
                )
            )
        return until

    def announce_accepted(self, stream: Stream) -> None:
        """Announce the accepted ranges of a stream to other inboxes of the group, so that one that takes over knows.
        Call this when the acceptance is durable."""
        with self.shared.lock:
            self.control.announce(stream)

    def forget(self, what: Forgetting, now: float) -> int:
        """Forget streams, durably, except for tombstones with which their messages are recognized. On the thread of
        :meth:`step`. Returns how many were forgotten. Others are in use, not settled to their end, or not known, or
        there is no room for more tombstones.

        Raises :class:`InboxWriteError`, and then nothing has changed, or a fatal error.
        """
        shared = self.shared
        with shared.lock:
            shared.core.retire_these(what.streams)
        self.flush(now)
        with shared.lock:
            shared.buffers.unqueue_idle()
            self._loader.retire(now)
            free = [
                stream
                for stream in dict.fromkeys(what.streams)
                if stream not in shared.core.streams
                and stream not in shared.absent
                and not shared.quarantine.holds(stream, TOO_MANY_STREAMS)
            ]
        try:
            batch = self._forgetting(free, what)
            if batch.forgotten:
                shared.inbox.commit(batch, shared.wall_us(), microseconds(shared.clock()))
        except FatalError as error:
            shared.health.fail(error)
            raise
        with shared.lock:
            shared.core.forgot(len(batch.forgotten))
        return len(batch.forgotten)

    def _forgetting(self, streams: Sequence[Stream], what: Forgetting) -> Batch:
        """The commit that forgets these streams, none of which is in memory."""
        inbox = self.shared.inbox
        some = inbox.load_some(streams)
        inbox.drop_ids([saved.stream for saved in some])
        kept = inbox.streams_with_leftovers([saved.stream for saved in some])
        room = self.shared.core.rules.max_known_streams - inbox.tombstone_count
        batch = Batch()
        for saved in some:
            if len(batch.forgotten) >= room or saved.stream in kept or not is_settled(saved):
                continue
            if what.unused_since_us is not None and saved.epochs[0].used_us >= what.unused_since_us:
                continue
            left = tombstone_of(saved, what.below)
            batch.forgotten.append((saved.stream, left))
            batch.entries.append(entry_of(saved, left, self.shared.group))
        return batch

    # -- the end ------------------------------------------------------------------------------------------

    def flush(self, now: float, closing: bool = False) -> None:
        """Commit everything. With `closing`, the inbox is left as after a clean stop."""
        shared = self.shared
        with shared.lock:
            if not shared.health.may_write:
                return
            if shared.buffers.acknowledged:
                shared.buffers.settle(now)
            if closing:
                self.deliveries.end()
                shared.events.journal_all()
            else:
                shared.durability.want()
            plan = self._committer.plan(now, closing)
        if plan is not None:
            self._committer.commit(plan, now)

    def say_goodbye(self, now: float) -> None:
        """Announce the committed positions to producers and other inboxes, and that this one ends. After
        :meth:`flush`."""
        with self.shared.lock:
            if self.shared.health.may_write:
                self.control.farewell(now)

    def finish_export(self, deadline: float) -> None:
        """Export the rest, until `deadline` by the engine's clock: the last thing before the inbox is closed."""
        if self.shared.health.may_write:
            self.export.finish(deadline)
        self.export.stop()
