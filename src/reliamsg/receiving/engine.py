"""The consumer without threads: what arrives, what is handed out, and when the inbox is written.

:class:`ReceivingEngine` composes the core, the inbox, and a :class:`~reliamsg.receiving.sites.SiteReceiver` for
each site. Whoever runs it calls :meth:`~ReceivingEngine.step` from one thread, at the time that the last call
returned and whenever ``shared.wake`` is called; messages are taken with :meth:`~ReceivingEngine.take` on any
thread. Nothing here sleeps, and time comes from the two clocks that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliamsg.arguments import NotRun
from reliamsg.config import JournalExport, Site
from reliamsg.core.consumer import ConsumerCore
from reliamsg.core.histogram import bucket
from reliamsg.core.redelivery import Offer
from reliamsg.core.rules import Rules
from reliamsg.errors import (
    DeadLetterHalt,
    FatalError,
    GapError,
    GapHeld,
    GroupBusy,
    ProducerConflict,
    StoreCorrupt,
)
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Message, Stream
from reliamsg.receiving.aside import Aside, LateItem, ReplayItem
from reliamsg.receiving.commits import Committer, unreserved
from reliamsg.receiving.connector import Connector
from reliamsg.receiving.control import Control
from reliamsg.receiving.forgetting import Forgetting, entry_of, is_settled, tombstone_of
from reliamsg.receiving.fullness import Fullness
from reliamsg.receiving.hold_room import HoldRoom
from reliamsg.receiving.lane import Chunk, Holding, Lane
from reliamsg.receiving.latest_statuses import LatestStatuses
from reliamsg.receiving.lease import Lease
from reliamsg.receiving.loading import Loader
from reliamsg.receiving.quarantine import FAR_EPOCH, TOO_MANY_STREAMS
from reliamsg.receiving.replaying import Replayer
from reliamsg.receiving.restore import restored
from reliamsg.receiving.samples import Samples
from reliamsg.receiving.sites import SiteReceiver
from reliamsg.receiving.state import Shared, log
from reliamsg.receiving.succession import Succession
from reliamsg.runtime.clock import microseconds
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.export_step import ExportStep, JournalSource
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.quarantine import Selection
from reliamsg.transport.base import Binding, Transports
from reliamsg.wire.address import topic_address
from reliamsg.wire.data import FrameError

__all__ = [
    "EngineSettings",
    "GapItem",
    "Item",
    "LateItem",
    "ReceivingEngine",
    "ReplayItem",
]

LOOK_AT_CLOCK_S = 10.0
"""While anything waits whose epoch is far ahead, it is looked so often whether it still is."""
PAGE_BYTES = 1024 * 1024
"""Read from the inbox at once, for one stream."""


@dataclass(frozen=True)
class EngineSettings:
    """A consumer's settings beyond those of the protocol."""

    group: str
    topics: tuple[str, ...]
    keep_late: bool = False
    """Somebody wants to see what arrives late."""
    unsequenced: bool = False
    """Messages without identity are delivered."""
    max_inbox_bytes: int = 256 * 1024 * 1024
    takeover_timeout: float = 30.0
    on_gap: str = "hold"
    """What the application wants to happen at a gap: for the journal only."""
    standby: bool = False
    """Wait for another inbox of the group to end, however long it reads."""
    successor: bool = False
    """The one that had the same inbox open is gone: there is no need to wait for its silence."""
    keys: KeyRing | None = None
    max_quarantine_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class GapItem:
    """An expired gap, to be decided."""

    gap: Gap
    done: bool = False
    """The application has decided, or was asked to."""

    def asked(self) -> GapError:
        """What asks it to."""
        error = GapError(self.gap)
        self.done = True
        return error

    def decided(self) -> None:
        """It has."""
        self.done = True


Item = Chunk | GapItem | LateItem | ReplayItem


class ReceivingEngine:
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
        self.probe = environment.probe
        core = ConsumerCore(
            rules, {site.name: site.prefetch for site in sites}, inbox.look_at_clock(environment.wall_us())
        )
        lease = Lease(inbox.id, inbox.random_bytes(8), settings.takeover_timeout)
        self.shared = Shared(
            core, inbox, settings.group, self, environment, lease, settings.max_quarantine_bytes
        )
        self.shared.hold_room = HoldRoom(
            core, inbox, self.shared.quarantine, unreserved(settings.max_inbox_bytes)
        )
        self._open_sites(sites, transports)
        self._committer = Committer(self.shared, self.sites, settings.max_inbox_bytes, self.probe)
        self.fullness = Fullness(self.shared, settings.max_inbox_bytes)
        self.aside = Aside(self.shared)
        self._replayer = Replayer(self.shared, self.sites)
        self._loader = Loader(self.shared, self.control)
        source = JournalSource("group", settings.group, inbox.path, inbox.exported)
        self.export = ExportStep(journal, source, environment)
        self._restore()

    def _open_sites(self, sites: Sequence[Site], transports: Transports) -> None:
        shared, settings = self.shared, self.settings
        bindings = [Binding(topic, 0, settings.group) for topic in settings.topics]
        topics = {(binding.topic, binding.partition) for binding in bindings}
        self.statuses = LatestStatuses(shared.journal_buffer, (site.name for site in sites))
        self.sites = {
            site.name: SiteReceiver(
                shared, site, self.statuses, topics, keep_late=settings.keep_late, unsequenced=settings.unsequenced,
                keys=settings.keys,
            )
            for site in sites
        }  # fmt: skip
        self.control = Control(shared, self.sites, self.statuses, topics, settings.keys)
        read = frozenset((*(topic_address(*topic) for topic in topics), *self.control.addresses))
        shared.samples = Samples(read, shared.inbox.quarantined())
        listener = f"{settings.group}.{shared.inbox.id}"
        connectors = {
            name: Connector(receiver, self.control, transports, bindings, listener)
            for name, receiver in self.sites.items()
        }
        self.succession = Succession(shared, self.sites, connectors, self.control, settings.standby)

    def _restore(self) -> None:
        shared = self.shared
        detail = {
            "topics": list(self.settings.topics),
            "sites": list(self.sites),
            "begin": shared.core.rules.begin,
            "gap_timeout": shared.core.rules.gap_timeout,
            "on_gap": self.settings.on_gap,
            "inbox": shared.inbox.id,
        }
        shared.note("opened", detail=detail)
        with shared.lock:
            now = shared.clock()
            shared.core.succeeds = shared.inbox.standing == "took_over"
            shared.core.takeover = shared.inbox.takeovers
            unsettled = shared.inbox.load_unsettled()
            shared.core.known_elsewhere = shared.inbox.stream_count - len(unsettled)
            shared.core.horizon.learn(shared.inbox.highest_epoch)
            for saved in unsettled:
                shared.core.restore(restored(saved, shared.core.group), now)
            for one in shared.inbox.quarantine.select(Selection(reason=FAR_EPOCH)):
                shared.core.doubt(one.stream, one.epoch, now)
            shared.after_core()

    def start(self) -> None:
        """Have it in the inbox that it is open, so that a process that is killed right away leaves that; then let the
        sites connect. Before the first :meth:`step`."""
        self.flush(self.shared.clock())
        with self.shared.lock:
            self.succession.begin(self.shared.clock(), self.settings.standby and not self.settings.successor)

    # -- the store's thread -------------------------------------------------------------------------------

    def step(self, now: float) -> float | None:
        """Do what is due: clocks, commits, acknowledgements to brokers, reading back. Returns when to call
        again; None when nothing is timed."""
        shared = self.shared
        with shared.lock:
            shared.agenda.step_begins()
            if shared.health.fatal is not None:
                return None
            self.succession.step(now)
            shared.drain_acks(now)
            self._tick(now)
            shared.hold_room.look()
            sites = self.sites.values()
            for site in sites:
                site.retry_deferred(now)
            self._check_busy(now)
            self._report_errors()
            shared.admit_believed()
            self.control.step(now, shared.durability.inbox_full)
            shared.after_core()
            self._loader.retire(now)
            plan = self._committer.plan(now)
            self.fullness.look(now, self._committer.short_of_room)
        self.succession.close_given_up()
        if plan is not None:
            self._committer.commit(plan, now)
        self._committer.page_in(PAGE_BYTES, now)
        more = self._replayer.step(now)
        self._loader.load(now)
        if self.settings.keep_late:
            self.aside.load_late()
        exporting = self._export(now)
        with shared.lock:
            now = shared.clock()
            # From here on acknowledgements wake us: those before are seen below.
            shared.agenda.step_ends(None)
            timers = [
                self._tick(now), self._committer.deadline(now), self._busy_deadline(), exporting,
                self.succession.deadline(now), self.control.deadline(), self.fullness.deadline(now),
                now + LOOK_AT_CLOCK_S if shared.core.far else None,
                self._loader.deadline(now),
            ]  # fmt: skip
            for site in sites:
                if site.deferred.waiting:
                    timers.append(site.deferred.retry_at)
            if (
                more
                or (shared.pages and shared.durability.write_error is None)
                or (shared.durability.is_awaited and shared.durability.write_error is None)
            ):
                timers.append(now)
            shared.after_core()
            known = [at for at in timers if at is not None]
            deadline = min(known) if known else None
            shared.agenda.step_ends(deadline)
        return deadline

    def _export(self, now: float) -> float | None:
        """Have the journal go on its way; returns when there will be more."""
        shared = self.shared
        if shared.health.fatal is not None or not self.export.has_target:
            return None
        try:
            stepped = self.export.step(now)
        except FatalError as error:
            shared.health.fail(error)
            return None
        if stepped.full_changed:
            with shared.lock:
                shared.durability.hold_for_journal(self.export.full)
                shared.look_again()
        return stepped.deadline

    def _tick(self, now: float) -> float | None:
        """Let the core's clocks run, unless somebody else may be the one who reads, and know what they wait for."""
        shared = self.shared
        if not shared.role.in_charge:
            return None
        return shared.core.tick(now, self.fullness.waits_for_application(now), self._loader.keeps)

    def _check_busy(self, now: float) -> None:
        for since, site in self._busy_sites():
            if now - since >= self.settings.takeover_timeout:
                self.shared.health.fail(
                    GroupBusy(
                        f"another consumer reads for group {self.settings.group!r} at site {site.name}"
                        f" ({site.error}): stop it, or give this one its own group"
                    )
                )

    def _busy_deadline(self) -> float | None:
        busy = [since for since, _ in self._busy_sites()]
        return min(busy) + self.settings.takeover_timeout if busy else None

    def _busy_sites(self) -> list[tuple[float, SiteReceiver]]:
        """The sites at which another consumer reads, and since when, as far as this one must yield to it."""
        may_stay = self.shared.role.membership.may_stay
        return [
            (since, site)
            for site in self.sites.values()
            if (since := site.busy_since) is not None and not may_stay(site)
        ]

    def _report_errors(self) -> None:
        core = self.shared.core
        if not (core.effects.conflicts or core.effects.missed or core.effects.held_up):
            return
        for stream, epoch, reason in core.effects.conflicts:
            error = ProducerConflict(
                f"{stream}, epoch {epoch}: {reason}. Producer {stream.producer!r} has two histories: was its outbox"
                " restored from a backup, or copied?"
            )
            log.error("%s", error)
            self.shared.health.report(error)
        core.effects.conflicts.clear()
        for gap in core.effects.missed:
            log.error("%s: it was not known when the stream was joined", gap)
            self.shared.health.report(GapError(gap))
        core.effects.missed.clear()
        for gap in core.effects.held_up:
            held = GapHeld(gap)
            log.error("%s: the stream waits; other streams go on", held)
            self.shared.health.report(held)
        core.effects.held_up.clear()

    # -- handing out --------------------------------------------------------------------------------------

    def take(self, unit: int, limit: int) -> Item | None:
        """Something for the application, if there is anything now.

        `unit` is how many messages of a stream the application handles as one; a :class:`Chunk` holds at most
        `limit`, and is to be given back with :meth:`release`. Raises the fatal error, if there is one.
        """
        shared = self.shared
        with shared.lock:
            if shared.health.fatal is not None:
                raise shared.health.fatal
            if shared.durability.blocked or not shared.role.in_charge:
                return None
            now = shared.clock()
            shared.drain_acks(now)
            shared.after_core()
            beside = self.aside.take()
            if beside is not None:
                return beside
            while shared.ready:
                lane = shared.ready.popleft()
                lane.queued = False
                if lane.busy:
                    continue
                gap = lane.state.gaps.take_undecided()
                if gap is not None:
                    return GapItem(gap)
                chunk = self._chunk(lane, unit, limit, now)
                if chunk is not None:
                    lane.busy = True
                    shared.chunks[id(lane)] = chunk
                    return chunk
            return None

    @property
    def may_take(self) -> bool:
        """Whether :meth:`take` is worth while: there may be something, or it raises."""
        shared = self.shared
        if shared.health.fatal is not None or shared.may_hand_out:
            return True
        return not shared.durability.blocked and shared.role.in_charge and self.aside.waiting

    def give_back(self, item: Item) -> None:
        """The application is done with what it took, or will not go on with it."""
        if isinstance(item, Chunk):
            self.release(item)
        elif isinstance(item, LateItem) and item.done:
            self.aside.late_seen(item.number)
        elif not isinstance(item, GapItem) and not item.done:
            self.aside.put_back(item)
        # A gap that was not decided expires once more.

    def take_more(self, chunk: Chunk, unit: int, limit: int) -> Chunk | None:
        """What follows a chunk that was given out completely, without giving up its stream in between."""
        shared = self.shared
        with shared.lock:
            if shared.health.fatal is not None or chunk.abandoned:
                return None
            if shared.durability.blocked or not shared.role.in_charge:
                return None
            shared.report_chunk(chunk)
            now = shared.clock()
            chunk.lane.state.given(now)
            more = self._chunk(chunk.lane, unit, limit, now)
            if more is not None:
                shared.chunks[id(chunk.lane)] = more
            return more

    def _chunk(self, lane: Lane, unit: int, limit: int, now: float) -> Chunk | None:
        shared = self.shared
        state = lane.state
        while True:
            offer = state.offer(now, unit)
            if shared.core.effects.urgent:
                shared.agenda.due(now)
            if offer is None:
                return None
            holding = lane.find(offer.epoch, offer.first)
            if holding is None:
                lane.page_wanted = (offer.epoch, offer.first)
                shared.pages[state.stream] = lane
                shared.agenda.due(now)
                return None
            if not self._decodes(lane, holding, offer, now):
                return None
            if offer.spent:
                self.aside.bury_spent(lane, holding, offer, now)
                continue
            last = min(offer.last, holding.last, offer.first + limit - 1)
            state.take(offer, last, now, giving=True)
            shared.agenda.due(now + 0.01)
            # What this has led to comes after what was handed out until now, and before what is handed out next.
            shared.report_chunks()
            waited = now - holding.received_at
            if holding.received_at < 0:  # it was read from the inbox
                waited = (shared.wall_us() - holding.received_us) / 1e6
            return Chunk(lane, offer, holding, last, bucket(waited * 1e6))

    def release(self, chunk: Chunk) -> None:
        """A chunk's messages were given out, or will not be: its stream may go on."""
        shared = self.shared
        lane = chunk.lane
        with shared.lock:
            shared.report_chunk(chunk)
            unused = chunk.unused
            if unused is not None:
                lane.state.untake(chunk.offer, *unused, shared.clock())
                chunk.last = unused[0] - 1
            lane.state.given(shared.clock())
            if shared.chunks.get(id(lane)) is chunk:
                del shared.chunks[id(lane)]
            lane.busy = False
            shared.core.effects.touch(lane.state.stream)
            shared.after_core()

    def _decodes(self, lane: Lane, holding: Holding, offer: Offer, now: float) -> bool:
        shared = self.shared
        state = lane.state
        try:
            # What has no producer came from an ordinary client, whose messages are not bound by our limits.
            holding.records(trusted=bool(offer.retry) or not state.stream.producer)
        except FrameError as error:
            if offer.retry:
                shared.health.fail(
                    StoreCorrupt(f"{shared.inbox.path}: message {offer.first} of {state.stream}: {error}")
                )
                return False
            site = self.sites.get(holding.site)
            if site is not None:
                site.set_aside(state.stream.topic, holding.frame.data, error.reason)
            lane.drop(holding)
            if holding.persisted:
                shared.cached_bytes -= holding.size
                shared.durability.pending.discarded.append(
                    (state.stream, holding.epoch, holding.first, holding.last)
                )
            again = shared.core.reopen(
                state.stream, holding.epoch, holding.first, holding.last, holding.site, now
            )
            for name in again:
                transport = self.sites[name].connections.transport
                if transport is not None:
                    transport.reconnect("a message is needed again")
            shared.agenda.due(now)
            return False
        return True

    # -- what the application says ------------------------------------------------------------------------

    def acked(self, lane: Lane) -> None:
        """See :class:`~reliamsg.receiving.lane.LaneOwner`."""
        shared = self.shared
        lanes = shared.acked
        # Nothing can interrupt these two, as it could a call of append(): else the lane would never be queued again.
        lane.acks_queued = True
        lanes += (lane,)
        if shared.agenda.wakes_at > 0:
            shared.agenda.due_soon(shared.clock() + 0.01)

    def wait_durable(self) -> None:
        """Wait until everything the application said so far is on disk."""
        self.shared.durability.wait(self.shared.calls)

    def message_failed(self, lane: Lane, message: Message, error: BaseException) -> None:
        """Handling a message raised: it comes again, until its deliveries are used up."""
        self.shared.uninterrupted(lambda: self._message_failed(lane, message, error))

    def _message_failed(self, lane: Lane, message: Message, error: BaseException) -> None:
        shared = self.shared
        with shared.lock:
            now = shared.clock()
            shared.drain_acks(now)
            chunk = shared.chunks.get(id(lane))
            if chunk is not None:
                shared.report_chunk(chunk)
                chunk.abandoned = True
            # What an application's mistake keeps from being handled at all must not end in the dead letters.
            counts = not isinstance(error, NotRun)
            spent = shared.core.fail(message.stream, message.epoch, message.seq, message.seq, now, counts)
            if spent:
                reason = f"{type(error).__name__}: {error}"
                if shared.core.rules.halt:
                    lane.state.redelivery.halt()
                    shared.health.fail(
                        DeadLetterHalt(
                            f"{message.id} failed {shared.core.rules.max_deliveries} times: {reason}"
                        )
                    )
                else:
                    self.aside.bury(lane, message, reason[:1000], now)
            shared.agenda.due(now)

    def message_rejected(self, lane: Lane, message: Message, reason: str) -> None:
        """The application gives a message up."""
        self.shared.uninterrupted(lambda: self._message_rejected(lane, message, reason))

    def _message_rejected(self, lane: Lane, message: Message, reason: str) -> None:
        shared = self.shared
        with shared.lock:
            now = shared.clock()
            shared.drain_acks(now)
            self.aside.bury(lane, message, reason[:1000], now)
            shared.agenda.due(now)

    def accept(self, gap: Gap) -> bool:
        """Move past a gap and declare it lost; False when it is none any more. Wait for durability if needed."""
        shared = self.shared
        with shared.lock:
            now = shared.clock()
            shared.drain_acks(now)
            shared.report_chunks()
            done = shared.core.accept(gap, now)
            shared.after_core()
            shared.agenda.due(now)
            return done

    def tell_accepted(self, stream: Stream) -> None:
        """Tell other inboxes of the group what was accepted of a stream, so that one that takes over goes by it. When
        that is durable."""
        with self.shared.lock:
            self.control.tell_at_once(stream)

    def forget(self, what: Forgetting, now: float) -> int:
        """Forget streams, durably, but for what is needed to know again what comes of them once more. On the thread of
        :meth:`step`. Returns how many were forgotten. Others are in use, not settled to their end, or not known, or
        there is no room for more of what is remembered.

        Raises :class:`InboxWriteError`, and then all is as it was, or what is fatal.
        """
        shared = self.shared
        with shared.lock:
            shared.core.retire_these(what.streams)
        self.flush(now)
        with shared.lock:
            shared.unqueue_idle()
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
                shared.inbox.commit(batch, shared.wall_us(), microseconds(now))
        except FatalError as error:
            shared.health.fail(error)
            raise
        with shared.lock:
            shared.core.known_elsewhere -= len(batch.forgotten)
        return len(batch.forgotten)

    def _forgetting(self, streams: Sequence[Stream], what: Forgetting) -> Batch:
        """Nothing of these is in memory."""
        inbox = self.shared.inbox
        some = inbox.load_some(streams)
        inbox.drop_ids([saved.stream for saved in some])
        kept = inbox.leave_something([saved.stream for saved in some])
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
        """Commit everything that there is. With `closing` the inbox is left as after a clean stop."""
        shared = self.shared
        with shared.lock:
            if not shared.health.may_write:
                return
            shared.drain_acks(now)
            if closing:
                for chunk in shared.chunks.values():
                    # Its handler still runs, and may take another message at this instant: all of it counts as
                    # handed out, and comes again with the flag.
                    chunk.abandoned = True
                for state in shared.core.streams.values():
                    shared.core.effects.mark(state.stream)
                shared.report_chunks()
            else:
                shared.durability.want()
            plan = self._committer.plan(now, closing)
        if plan is not None:
            self._committer.commit(plan, now)

    def say_goodbye(self, now: float) -> None:
        """Tell producers and other inboxes how far this one got, and that it ends. After a :meth:`flush`."""
        with self.shared.lock:
            if self.shared.health.may_write:
                self.control.farewell(now)

    def finish_export(self, deadline: float) -> None:
        """Export what is left, until `deadline` by the engine's clock: the last before the inbox is closed."""
        if self.shared.health.may_write:
            self.export.finish(deadline)
        self.export.stop()
