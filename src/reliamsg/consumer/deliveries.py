"""Delivers messages to the application, and records their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reliamsg.arguments import NotRun
from reliamsg.consumer.buffer import BufferedBatch, DeliverySlice, StreamBuffer
from reliamsg.consumer.dead_letters import DeadLetters, LateItem, ReplayItem
from reliamsg.consumer.intake import UNREADABLE
from reliamsg.consumer.shared import Shared
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import DeadLetterHalt, GapError, StoreCorrupt
from reliamsg.message import Gap, Message
from reliamsg.protocol.histogram import bucket
from reliamsg.protocol.receiver.redelivery import Offer
from reliamsg.runtime.environment import Probe
from reliamsg.wire.data import FrameError

__all__ = ["Deliveries", "GapItem", "Item"]

DELIVERIES_S = 0.01
"""The engine is stepped within this time of a delivery."""
MAX_REASON = 1_000
"""Characters of the reason that is kept with a dead letter."""


@dataclass(slots=True)
class GapItem:
    """An expired gap, for the application to decide about."""

    gap: Gap
    done: bool = False
    """The application has decided, or was asked to."""

    def asked(self) -> GapError:
        """The error that asks it to."""
        error = GapError(self.gap)
        self.done = True
        return error

    def decided(self) -> None:
        """It has decided."""
        self.done = True


Item = DeliverySlice | GapItem | LateItem | ReplayItem


class Deliveries:
    """Delivers messages, and records their outcomes. Its methods may be called on any thread; implements
    :class:`~reliamsg.consumer.buffer.SettlementListener`."""

    def __init__(
        self, shared: Shared, sites: Mapping[str, SiteReceiver], dead_letters: DeadLetters, probe: Probe
    ) -> None:
        self._shared = shared
        self._core = shared.core
        self._buffers = shared.buffers
        self._sites = sites
        self._dead_letters = dead_letters
        self.probe = probe
        """Told of the points that are passed, for tests of crashes."""
        self._ended = False

    # -- delivering ---------------------------------------------------------------------------------------

    def take(self, unit: int, limit: int) -> Item | None:
        """Something for the application, if there is anything now.

        `unit` is how many messages of a stream the application handles as one; a :class:`DeliverySlice` holds at most
        `limit`, and is to be given back with :meth:`release`. Raises the fatal error, if there is one.
        """
        shared, buffers = self._shared, self._buffers
        with shared.lock:
            if shared.health.fatal is not None:
                raise shared.health.fatal
            now, role = shared.clock(), shared.role
            if self._ended or shared.durability.blocked or role.barred or now >= role.lease.until:
                return None
            if buffers.acknowledged:
                buffers.settle(now)
            shared.events.handle()
            if self._dead_letters.waiting:
                return self._dead_letters.take()
            while buffers.ready:
                buffer, _ = buffers.ready.popitem(last=False)
                if buffer in buffers.slices:
                    continue
                if buffer.state.gaps.undecided is not None:
                    return GapItem(buffer.state.gaps.take_undecided())
                portion = self._next(buffer, unit, limit, now)
                if portion is not None:
                    return portion
            return None

    def end(self) -> None:
        """Deliver nothing from now on: the inbox is about to be left as after a clean stop, so what would be delivered
        later would come again without the flag. Messages of slices that were taken before count as delivered, even if
        the application takes them at this instant: they come again with it. Under the lock."""
        self._ended = True
        for portion in self._buffers.slices.values():
            portion.abandon()

    @property
    def may_take(self) -> bool:
        """Whether :meth:`take` may return something, or raises an error."""
        shared = self._shared
        if shared.health.fatal is not None:
            return True
        if (
            self._ended
            or shared.durability.blocked
            or not (self._buffers.ready or self._dead_letters.waiting)
        ):
            return False
        return shared.role.in_charge

    def give_back(self, item: Item) -> None:
        """The application is done with an item, or will not continue with it."""
        if isinstance(item, DeliverySlice):
            self.release(item)
        elif isinstance(item, LateItem) and item.done:
            self._dead_letters.late_seen(item.number)
        elif not isinstance(item, GapItem) and not item.done:
            self._dead_letters.put_back(item)
        # A gap that was not decided expires once more.

    def take_more(self, portion: DeliverySlice, unit: int, limit: int) -> DeliverySlice | None:
        """What follows a slice that was delivered completely, without releasing its stream in between."""
        shared = self._shared
        with shared.lock:
            if shared.health.fatal is not None or portion.abandoned or self._ended:
                return None
            if shared.durability.blocked or not shared.role.in_charge:
                return None
            self._buffers.report(portion)
            now = shared.clock()
            portion.buffer.state.given(now)
            return self._next(portion.buffer, unit, limit, now)

    def _next(self, buffer: StreamBuffer, unit: int, limit: int, now: float) -> DeliverySlice | None:
        shared = self._shared
        state = buffer.state
        while True:
            offer = state.offer(now, unit)
            if offer is None:
                shared.events.handle()
                if shared.events.commit_urgent:
                    shared.agenda.due(now)
                return None
            batch = buffer.find(offer.epoch, offer.first)
            if batch is None:
                self._buffers.want_page(buffer, offer.epoch, offer.first)
                shared.agenda.due(now)
                return None
            try:
                # Without a producer it came from an ordinary client, whose messages are not bound by our limits.
                records = batch.records(trusted=bool(offer.retry) or not state.stream.producer)
            except FrameError as error:
                self._discard_unreadable(buffer, batch, offer, error, now)
                return None
            if offer.spent:
                self._dead_letters.bury_spent(buffer, batch, offer, now)
                continue
            last = min(offer.last, batch.last, offer.first + limit - 1)
            state.take(offer, last, now, giving=True)
            # The journal keeps what this has led to behind earlier deliveries, and ahead of those that follow.
            shared.events.journal_all()
            shared.agenda.due(now if shared.events.commit_urgent else now + DELIVERIES_S)
            waited = now - batch.received_at
            if batch.received_at < 0:  # it was read from the inbox
                waited = (shared.wall_us() - batch.received_us) / 1e6
            portion = DeliverySlice(buffer, offer, batch, records, last, bucket(waited * 1e6))
            self._buffers.give(portion)
            return portion

    def release(self, portion: DeliverySlice) -> None:
        """A slice's messages were delivered, or will not be: its stream may go on."""
        shared, state = self._shared, portion.buffer.state
        with shared.lock:
            now = shared.clock()
            self._buffers.report(portion)
            unused = portion.cut()
            if unused is not None:
                state.untake(portion.offer, *unused, now)
            state.given(now)
            self._buffers.take_back(portion)
            shared.events.handle()
            self._buffers.queue(portion.buffer)
            shared.changed.notify_all()

    def _discard_unreadable(
        self, buffer: StreamBuffer, batch: BufferedBatch, offer: Offer, error: FrameError, now: float
    ) -> None:
        """A batch is unreadable: get another copy of it. If another installation could read it, it is kept for that."""
        shared, stream = self._shared, buffer.state.stream
        if offer.retry:
            shared.health.fail(
                StoreCorrupt(f"{shared.inbox.path}: message {offer.first} of {stream}: {error}")
            )
            return
        site, frame = self._sites.get(batch.site), batch.frame
        if frame.intact() and not next(iter(self._sites.values())).can_read(frame):
            wall = shared.wall_us()
            if not shared.admission.put_in_quarantine(UNREADABLE, batch.site, stream, frame, None, wall):
                shared.admission.fail_for_want_of_room(UNREADABLE, stream)
                return
        elif site is not None:
            site.set_aside(stream.topic, frame.data, error.reason)
        self._buffers.drop(buffer, batch)
        if batch.persisted:
            shared.durability.pending.discarded.append((stream, batch.epoch, batch.first, batch.last))
        again = self._core.reopen(stream, batch.epoch, batch.first, batch.last, batch.site, now)
        for name in again:
            transport = self._sites[name].connections.transport
            if transport is not None:
                transport.reconnect("a message is needed again")
        shared.agenda.due(now)

    # -- outcomes -----------------------------------------------------------------------------------------

    def acknowledged(self) -> None:
        """See :class:`~reliamsg.consumer.buffer.SettlementListener`. Needs no lock."""
        shared = self._shared
        at = shared.durability.commits_at  # where that has passed: at once
        if at < shared.agenda.wakes_at:
            shared.agenda.due_soon(at)

    def wait_durable(self) -> None:
        """See :class:`~reliamsg.consumer.buffer.SettlementListener`."""
        self._shared.durability.wait(self._shared.calls)

    def failed(self, buffer: StreamBuffer, message: Message, error: BaseException) -> None:
        """See :class:`~reliamsg.consumer.buffer.SettlementListener`. The message comes again, until its deliveries are
        used up."""
        self._shared.uninterrupted(lambda: self._failed(buffer, message, error))

    def _failed(self, buffer: StreamBuffer, message: Message, error: BaseException) -> None:
        shared, core = self._shared, self._core
        with shared.lock:
            now = shared.clock()
            self._buffers.settle(now)
            portion = self._buffers.slices.get(buffer)
            if portion is not None:
                self._buffers.report(portion)
                portion.abandon()
            # Messages that were not handled at all, by an application's mistake, must not become dead letters.
            counts = not isinstance(error, NotRun)
            spent = buffer.state.fail(message.epoch, message.seq, message.seq, now, counts)
            if spent:
                reason = f"{type(error).__name__}: {error}"
                if core.rules.halt:
                    buffer.state.redelivery.halt()
                    shared.health.fail(
                        DeadLetterHalt(f"{message.id} failed {core.rules.max_deliveries} times: {reason}")
                    )
                else:
                    self._dead_letters.bury(buffer, message, reason[:MAX_REASON], now)
            shared.agenda.due(now)

    def rejected(self, buffer: StreamBuffer, message: Message, reason: str) -> None:
        """See :class:`~reliamsg.consumer.buffer.SettlementListener`."""
        self._shared.uninterrupted(lambda: self._rejected(buffer, message, reason))

    def _rejected(self, buffer: StreamBuffer, message: Message, reason: str) -> None:
        shared = self._shared
        with shared.lock:
            now = shared.clock()
            self._buffers.settle(now)
            self._dead_letters.bury(buffer, message, reason[:MAX_REASON], now)
            shared.agenda.due(now)

    def accept(self, gap: Gap) -> bool:
        """Move past a gap and declare it lost; False when it is none any more. Wait for durability if needed."""
        shared = self._shared
        with shared.lock:
            now = shared.clock()
            self._buffers.settle(now)
            shared.events.journal_all()
            done = self._core.accept(gap, now)
            shared.events.handle()
            shared.agenda.due(now)
            return done
