"""All streams' messages in memory: which streams have something to deliver, and what the application has."""

from __future__ import annotations

from collections import OrderedDict, deque

from reliamsg.consumer.buffer import BufferedBatch, DeliverySlice, SettlementListener, StreamBuffer
from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.message import Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.stream import StreamReceiver
from reliamsg.runtime.wakeup import Waiters
from reliamsg.store.inbox import Inbox
from reliamsg.store.journal import Entry
from reliamsg.wire.data import Frame

__all__ = ["StreamBuffers"]


class StreamBuffers:
    """The buffers of a consumer. Everything under the consumer's lock."""

    def __init__(self, core: GroupReceiver, inbox: Inbox, journal: ConsumerJournal, changed: Waiters) -> None:
        self._core = core
        self._inbox = inbox
        self._journal = journal
        self._changed = changed
        self._listener: SettlementListener | None = None
        self.by_stream: dict[Stream, StreamBuffer] = {}
        self.ready: OrderedDict[StreamBuffer, None] = OrderedDict()
        """Those that may have something to deliver, in this order."""
        self.slices: dict[StreamBuffer, DeliverySlice] = {}
        """What is with the application."""
        self.acknowledged: deque[StreamBuffer] = deque()
        """Those with acknowledgements that the core does not know of; appended to without the lock."""
        self.pages: dict[StreamBuffer, tuple[int, int]] = {}
        """Those of which a message, (epoch, number), is to be read from the inbox."""
        self.cached_bytes = 0
        """Frames in memory that the inbox has as well."""

    def start(self, listener: SettlementListener) -> None:
        """Say who receives what the application says about messages. Before anything arrives."""
        self._listener = listener

    def of(self, stream: Stream) -> StreamBuffer:
        """The buffer of a stream that the core knows."""
        found = self.by_stream.get(stream)
        if found is None:
            assert self._listener is not None  # see start()
            found = StreamBuffer(self._core.streams[stream], self.acknowledged, self._listener)
            self.by_stream[stream] = found
        return found

    # -- which streams have something to deliver ----------------------------------------------------------

    def queue(self, buffer: StreamBuffer) -> None:
        """The stream may have something to deliver."""
        if buffer not in self.slices:
            self.ready.setdefault(buffer)

    def queue_all(self) -> None:
        """Any stream may have something to deliver."""
        for stream in self._core.streams:
            self.queue(self.of(stream))
        self._changed.notify_all()

    def unqueue_idle(self) -> None:
        """Take streams that are about to leave memory out of the queue: they have nothing to deliver."""
        for stream, state in self._core.retiring.items():
            buffer = self.by_stream.get(stream)
            if buffer is not None and self._core.is_idle(state):
                self.ready.pop(buffer, None)

    def forget(self, state: StreamReceiver) -> bool:
        """Take a retired stream out of memory, unless the application has something of it."""
        stream = state.stream
        buffer = self.by_stream.get(stream)
        if buffer is not None and (buffer in self.slices or buffer in self.ready or buffer.acks_queued):
            return False
        if not self._core.forget(state, self._inbox.knows(stream)):
            return False
        if buffer is not None:
            del self.by_stream[stream]
            self.pages.pop(buffer, None)
        self._journal.forget(stream)
        return True

    # -- what is with the application ---------------------------------------------------------------------

    def give(self, portion: DeliverySlice) -> None:
        """The application gets this."""
        self.slices[portion.buffer] = portion

    def take_back(self, portion: DeliverySlice) -> None:
        """The application is done with this."""
        if self.slices.get(portion.buffer) is portion:
            del self.slices[portion.buffer]

    def settle(self, now: float) -> None:
        """Tell the core what the application acknowledged, in ranges."""
        queue = self.acknowledged
        while queue:
            buffer = queue.popleft()
            for epoch, first, last in buffer.take_acks():
                buffer.state.acknowledge(epoch, first, last, now)
                self.prune(buffer, epoch)

    def settled_elsewhere(self, stream: Stream) -> None:
        """Another inbox has settled what this one held: drop it, and abandon what is about to be delivered of it."""
        buffer = self.by_stream.get(stream)
        if buffer is None:
            return
        for epoch in buffer.epochs:
            self.prune(buffer, epoch)
        portion = self.slices.get(buffer)
        if portion is not None:
            known = buffer.state.epochs.live.get(portion.offer.epoch)
            if known is None or portion.progress[0] < known.position:
                portion.abandon()

    def report(self, portion: DeliverySlice) -> None:
        """Journal what was delivered of a slice so far."""
        done = portion.report()
        if done is None:
            return
        first, last, total = done
        offer = portion.offer
        self._journal.add(
            Entry(
                "redelivered" if offer.redelivered else "delivered", portion.buffer.state.stream, offer.epoch,
                offer.incarnation, first, last, "", self._journal.group,
                "unjournalled" if offer.unjournalled else "", total,
                latency=None if portion.hop is None else {portion.hop: last - first + 1},
            )
        )  # fmt: skip

    def report_all(self) -> None:
        """Journal what was delivered of all slices so far."""
        for portion in self.slices.values():
            self.report(portion)

    # -- what the inbox has as well -----------------------------------------------------------------------

    def prune(self, buffer: StreamBuffer, epoch: int) -> None:
        """Drop frames of an epoch that are settled."""
        known = buffer.state.epochs.live.get(epoch)
        self.cached_bytes -= buffer.prune(epoch, known.position if known is not None else 2**63)

    def persisted(self, buffer: StreamBuffer, batch: BufferedBatch, frame: Frame) -> None:
        """The inbox has a batch, as this frame."""
        if buffer.find(batch.epoch, batch.first) is batch:  # else it was settled meanwhile
            batch.keep(frame)
            self.cached_bytes += batch.size
            self.prune(buffer, batch.epoch)

    def drop(self, buffer: StreamBuffer, batch: BufferedBatch) -> None:
        """A batch can't be read."""
        buffer.drop(batch)
        if batch.persisted:
            self.cached_bytes -= batch.size

    def shed(self, most: int) -> None:
        """Drop frames that the inbox has as well until `most` bytes are cached."""
        for buffer in self.by_stream.values():
            self.cached_bytes -= buffer.shed()
            if self.cached_bytes <= most:
                return

    def want_page(self, buffer: StreamBuffer, epoch: int, seq: int) -> None:
        """Have a message, and some that follow it, read from the inbox."""
        self.pages[buffer] = epoch, seq

    def take_pages(self) -> dict[StreamBuffer, tuple[int, int]]:
        """What is to be read from the inbox now."""
        wanted, self.pages = self.pages, {}
        return wanted

    def add_read(self, buffer: StreamBuffer, batch: BufferedBatch) -> None:
        """A batch was read from the inbox."""
        buffer.add(batch)
        self.cached_bytes += batch.size
