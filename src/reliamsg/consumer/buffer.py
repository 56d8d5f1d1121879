"""Messages in memory, and their way to the application.

A :class:`StreamBuffer` keeps the frames of a stream that are not settled; of those that the inbox has as well, only as
many as fit the cache. A :class:`DeliverySlice` is a run of messages of one frame that is being delivered, by one thread
at a time. :class:`StreamBuffers` knows all buffers: which streams have something to deliver, and which messages the
application has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol

import msgspec

from reliamsg import forks
from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.errors import ForkedError
from reliamsg.message import Message, Settler, Stream, digest, digest_sum, digest_sum_of_part
from reliamsg.protocol.histogram import bucket
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.redelivery import Offer
from reliamsg.protocol.receiver.stream import StreamReceiver
from reliamsg.runtime.wakeup import Waiters
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import HeldFrame
from reliamsg.store.journal import Entry, summed_parts
from reliamsg.wire.data import FLAG_MOVED, Frame, FrameError, Records, open_frame, piece

__all__ = ["BufferedBatch", "DeliverySlice", "SettlementListener", "StreamBuffer", "StreamBuffers", "fail"]


class _Contents(msgspec.Struct, eq=False):
    """A frame, and its messages once they are decoded; the batches that are parts of the frame share it."""

    frame: Frame
    records: Records | None = None


class BufferedBatch(msgspec.Struct, eq=False):
    """Numbers `first` to `last` of a frame. No other batch in memory holds any of them.

    The inbox has all of them or none. Where something is true of a part of a frame only, for example because another
    site delivered the rest, that part is a batch of its own.
    """

    contents: _Contents
    epoch: int
    first: int
    last: int
    site: str
    received_at: float
    received_us: int
    size: int
    """Bytes in memory; where several batches share a frame, this one's part of them."""
    persisted: bool = False
    dropped: bool = False
    """Its bytes turned out unreadable, and it left the buffer."""

    @classmethod
    def of(
        cls, frame: Frame, spans: Sequence[tuple[int, int]], site: str, received_at: float, received_us: int
    ) -> list[BufferedBatch]:
        """Batches of parts of one frame, which stays in memory until the inbox has all of them."""
        contents, size = _Contents(frame), len(frame.data)
        epoch = frame.envelope.epoch
        if len(spans) == 1:
            return [cls(contents, epoch, *spans[0], site, received_at, received_us, size)]
        total = sum(last - first + 1 for first, last in spans)
        return [
            cls(
                contents, epoch, first, last, site, received_at, received_us,
                size * (last - first + 1) // total,
            )
            for first, last in spans
        ]  # fmt: skip

    @classmethod
    def read(cls, row: HeldFrame) -> BufferedBatch:
        """A batch that was read from the inbox."""
        (batch,) = cls.of(open_frame(row.frame), [(row.first, row.last)], row.site, -1.0, row.received_us)
        batch.persisted = True
        return batch

    @property
    def frame(self) -> Frame:
        return self.contents.frame

    def records(self, *, trusted: bool = False) -> Records:
        """The frame's messages, decoded once. Raises FrameError. `trusted`: see :meth:`Frame.records`."""
        contents = self.contents
        if contents.records is None:
            contents.records = contents.frame.records(trusted=trusted)
        return contents.records

    @property
    def stored_size(self) -> int:
        """About how many bytes :meth:`stored` will be."""
        frame = self.contents.frame
        return len(frame.data) * (self.last - self.first + 1) // frame.envelope.count

    def stored(self) -> bytes:
        """The frame for the inbox to keep: where this is a part of a frame, only that part. Takes time to make."""
        frame = self.contents.frame
        if (self.first, self.last) == (frame.envelope.seq, frame.envelope.last):
            return frame.data
        try:
            return piece(frame.envelope, self.records(), self.first, self.last)
        except FrameError:  # handled when it is to be delivered
            return frame.data

    def keep(self, stored: Frame) -> None:
        """The inbox has it, as this frame."""
        self.persisted = True
        self.size = len(stored.data)
        if stored.data is not self.contents.frame.data:
            self.contents = _Contents(stored)


class SettlementListener(Protocol):
    """Receives the outcomes of messages, on the application's threads."""

    def acknowledged(self) -> None:
        """A buffer has queued acknowledgements."""

    def wait_durable(self) -> None:
        """Wait until everything that the application has said so far is durable."""

    def rejected(self, buffer: StreamBuffer, message: Message, reason: str) -> None:
        """The application gives a message up."""

    def failed(self, buffer: StreamBuffer, message: Message, error: BaseException) -> None:
        """Handling a message raised an error."""


class StreamBuffer:
    """The messages of a stream between the inbox and the application. Delivered messages report to it."""

    __slots__ = ("_batches", "_generation", "_listener", "_queue", "acks", "acks_queued", "state")

    def __init__(
        self, state: StreamReceiver, queue: deque[StreamBuffer], listener: SettlementListener
    ) -> None:
        """`queue`: where buffers with new acknowledgements wait."""
        self.state: StreamReceiver = state
        self._queue = queue
        self._listener = listener
        self._generation = forks.generation
        self._batches: dict[int, list[BufferedBatch]] = {}
        """By epoch."""
        self.acks: list[tuple[int, int, int]] = []
        """(epoch, first, last) that the application acknowledged and the core does not know of yet."""
        self.acks_queued: bool = False

    # -- Settler ------------------------------------------------------------------------------------------

    def acknowledge(self, message: Message, durable: bool) -> None:
        self.acknowledge_run(message, message, not durable)
        if durable:
            self._listener.wait_durable()

    def acknowledge_run(self, first: Message, last: Message, soon: bool = True) -> None:
        """The application has handled `first` to `last`, consecutive messages of an epoch. `soon`: they are not
        followed by a request to commit."""
        if self._generation != forks.generation:
            raise _forked(first)
        self.acks.append((first.epoch, first.seq, last.seq))
        if not self.acks_queued:
            queue = self._queue
            # Nothing can interrupt these two statements, as it could a call of append(): otherwise the buffer would
            # never be queued again.
            self.acks_queued = True
            queue += (self,)
            if soon:
                self._listener.acknowledged()

    def take_acks(self) -> list[tuple[int, int, int]]:
        """What the application acknowledged since the last call: (epoch, first, last), adjacent ranges merged."""
        self.acks_queued = False
        acks, ranges = self.acks, []
        epoch = first = last = -1
        count = len(acks)  # the application may append more meanwhile: then the buffer is queued again
        for at, low, high in acks[:count]:
            if at == epoch and low == last + 1:
                last = high
                continue
            if last >= first and epoch >= 0:
                ranges.append((epoch, first, last))
            epoch, first, last = at, low, high
        del acks[:count]
        if epoch >= 0:
            ranges.append((epoch, first, last))
        return ranges

    def reject(self, message: Message, reason: str) -> None:
        if self._generation != forks.generation:
            raise _forked(message)
        self._listener.rejected(self, message, reason)

    def failed(self, message: Message, error: BaseException) -> None:
        if self._generation != forks.generation:
            raise _forked(message)
        self._listener.failed(self, message, error)

    # -- frames in memory -----------------------------------------------------------------------------------

    def add(self, added: Iterable[BufferedBatch]) -> None:
        """Keep batches that have arrived, or were read from the inbox."""
        for batch in added:
            batches = self._batches.setdefault(batch.epoch, [])
            if not batches or batches[-1].last < batch.first:
                batches.append(batch)
            else:
                batches.insert(bisect_right(batches, batch.first, key=_first), batch)

    @property
    def epochs(self) -> list[int]:
        """Epochs with frames in memory."""
        return list(self._batches)

    def find(self, epoch: int, seq: int) -> BufferedBatch | None:
        batches = self._batches.get(epoch)
        if not batches:
            return None
        i = 0 if batches[0].last >= seq else bisect_right(batches, seq, key=_first) - 1
        return batches[i] if i >= 0 and batches[i].first <= seq <= batches[i].last else None

    def overlapping(self, epoch: int, first: int, last: int) -> Iterator[BufferedBatch]:
        batches = self._batches.get(epoch, [])
        i = max(0, bisect_right(batches, first, key=_first) - 1)
        while i < len(batches) and batches[i].first <= last:
            if batches[i].last >= first:
                yield batches[i]
            i += 1

    def latency(self, epoch: int, first: int, last: int, wall_us: int) -> dict[int, int]:
        """The histogram of the times from publishing messages to `wall_us`, of those whose frames are in memory and say
        when they were published."""
        found: dict[int, int] = {}
        for batch in self.overlapping(epoch, first, last):
            published_us = batch.contents.frame.envelope.ts_first
            if published_us:
                number = bucket(wall_us - published_us)
                count = min(last, batch.last) - max(first, batch.first) + 1
                found[number] = found.get(number, 0) + count
        return found

    def prune(self, epoch: int, position: int) -> int:
        """Drop frames below `position`; returns how many of their bytes counted as cached."""
        batches = self._batches.get(epoch)
        if not batches:
            return 0
        done = 0
        freed = 0
        while done < len(batches) and batches[done].last < position:
            freed += batches[done].size if batches[done].persisted else 0
            done += 1
        del batches[:done]
        if not batches:
            del self._batches[epoch]
        return freed

    def drop(self, batch: BufferedBatch) -> None:
        """Drop a batch that can't be read."""
        batch.dropped = True
        batches = self._batches.get(batch.epoch, [])
        if batch in batches:
            batches.remove(batch)

    def shed(self) -> int:
        """Drop what the inbox has as well and is not next in turn; returns the bytes."""
        freed = 0
        current = self.state.epochs.current
        for epoch, batches in self._batches.items():
            near = current.cursor if current is not None and epoch == current.epoch else 0
            kept = [b for b in batches if not b.persisted or b.first <= near <= b.last]
            freed += sum(b.size for b in batches) - sum(b.size for b in kept)
            batches[:] = kept
        return freed


def _forked(message: Message) -> ForkedError:
    return ForkedError(
        f"{message.id} was delivered before fork(): acknowledge or reject it in the parent process"
    )


def _first(batch: BufferedBatch) -> int:
    return batch.first


class DeliverySlice:
    """A run of messages of one frame that is being delivered to the application."""

    __slots__ = (
        "_bodies", "_headers", "_keys", "_reported", "_settler", "abandoned", "base", "buffer", "done", "hop", "last",
        "offer", "progress", "redelivered",
    )  # fmt: skip

    def __init__(
        self,
        buffer: StreamBuffer,
        offer: Offer,
        batch: BufferedBatch,
        records: Records,
        last: int,
        hop: int | None,
    ) -> None:
        envelope = batch.contents.frame.envelope
        self.buffer: StreamBuffer = buffer
        self.offer: Offer = offer
        self.last: int = last
        self.base: int = envelope.seq
        self.hop: int | None = hop
        """Histogram bucket of the latency received→delivered, where it is known."""
        self.abandoned: bool = False
        """The rest must wait behind an earlier message that failed, or was settled elsewhere."""
        self.done: bool = False
        """No more messages are taken from it."""
        self.progress: tuple[int, int] = (offer.first, 0)
        """(next number to deliver, digest sum of those delivered); replaced as one."""
        self._reported = (offer.first, 0)
        self.redelivered: bool = offer.redelivered or envelope.flags & FLAG_MOVED != 0
        """Whether the messages are flagged, and are journalled as such."""
        self._bodies = records.bodies
        self._keys = records.keys
        self._headers = records.headers
        self._settler: Settler = buffer

    def next(self) -> Message | None:
        """The next message; None when there is no more."""
        seq, total = self.progress
        if seq > self.last or self.abandoned:
            return None
        i = seq - self.base
        body = self._bodies[i]
        key = self._keys[i] if self._keys is not None else None
        headers = self._headers[i] if self._headers is not None else None
        message = Message(
            *self.buffer.state.stream, self.offer.epoch, seq, body, key, headers if headers else {}, self.redelivered,
            False, self._settler,
        )  # fmt: skip
        # Counted before the application has it, so that no acknowledgement is journalled ahead of the delivery.
        self.progress = (seq + 1, total + digest(seq, body, key, headers))
        return message

    def take(self, most: int, given: list[Message] | None = None) -> list[Message]:
        """The next messages, at most `most`; an empty list when there are no more. They are appended to `given` too:
        whatever interrupts this call, they count as delivered and are there, or neither."""
        first, total = self.progress
        start = first - self.base
        stop = min(self.last - self.base + 1, start + most)
        if start >= stop or self.abandoned:
            return []
        bodies = self._bodies[start:stop]
        keys = self._keys[start:stop] if self._keys is not None else None
        headers = self._headers[start:stop] if self._headers is not None else None
        producer, topic, partition = self.buffer.state.stream
        epoch, redelivered, settler = self.offer.epoch, self.redelivered, self._settler
        columns = zip(bodies, keys or repeat(None), headers or repeat(None), strict=False)
        messages = [
            Message(producer, topic, partition, epoch, seq, body, key, own or {}, redelivered, False, settler)
            for seq, (body, key, own) in enumerate(columns, first)
        ]
        # Counted before the application has them: see above.
        progress = (first + len(messages), total + digest_sum(first, bodies, keys, headers))
        if given is not None:
            given += messages
        self.progress = progress
        return messages

    def end(self) -> None:
        """No more messages are taken from it."""
        self.done = True

    def report(self) -> Sequence[tuple[int, int, int]]:
        """(first, last, digest sum) of what was delivered since the last call, divided where a journal row ends."""
        seq, total = self.progress
        first, before = self._reported
        if seq == first:
            return ()
        self._reported = (seq, total)
        last, left = seq - 1, total - before
        found = []
        for start, end in summed_parts(first, last):
            some = left
            if end != last:
                some = digest_sum_of_part(self.base, self._bodies, self._keys, self._headers, start, end)
            left -= some
            found.append((start, end, some))
        return found

    def abandon(self) -> None:
        """Deliver nothing more of it."""
        self.abandoned = True

    def cut(self) -> tuple[int, int] | None:
        """End it where it has got to; returns the first and last number that were not delivered, if any."""
        seq, last = self.progress[0], self.last
        if seq > last:
            return None
        self.last = seq - 1
        return seq, last


class StreamBuffers:
    """The buffers of a consumer. Everything under the consumer's lock."""

    def __init__(
        self,
        core: GroupReceiver,
        inbox: Inbox,
        journal: ConsumerJournal,
        changed: Waiters,
        wall_us: Callable[[], int],
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._journal = journal
        self._changed = changed
        self._wall_us = wall_us
        self._listener: SettlementListener | None = None
        self.by_stream: dict[Stream, StreamBuffer] = {}
        self.ready: OrderedDict[StreamBuffer, None] = OrderedDict()
        """Those that may have something to deliver, in this order."""
        self.slices: dict[StreamBuffer, DeliverySlice] = {}
        """Slices that the application has."""
        self.acknowledged: deque[StreamBuffer] = deque()
        """Those with acknowledgements that the core does not know of; appended to without the lock."""
        self.pages: dict[StreamBuffer, tuple[int, int]] = {}
        """Those of which a message, (epoch, number), is to be read from the inbox."""
        self.cached_bytes: int = 0
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

    # -- slices that the application has ------------------------------------------------------------------

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
        wall_us = self._wall_us() if queue else 0
        while queue:
            buffer = queue.popleft()
            for epoch, first, last in buffer.take_acks():
                latency = buffer.latency(epoch, first, last, wall_us)
                buffer.state.acknowledge(epoch, first, last, now, latency)
                self.prune(buffer, epoch)

    def settled_elsewhere(self, stream: Stream) -> None:
        """Another inbox has settled messages that this one held: drop them, and abandon their delivery."""
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
        offer = portion.offer
        for first, last, total in portion.report():
            self._journal.add(
            Entry(
                "redelivered" if portion.redelivered else "delivered", portion.buffer.state.stream, offer.epoch,
                offer.incarnation, first, last, "", self._journal.group,
                "unjournalled" if offer.unjournalled else "", total,
                latency=None if portion.hop is None else {portion.hop: last - first + 1},
            )
        )  # fmt: skip

    def report_all(self) -> None:
        """Journal what was delivered of all slices so far."""
        for portion in self.slices.values():
            self.report(portion)

    # -- frames that the inbox has as well ----------------------------------------------------------------

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
        """The ranges to read from the inbox now."""
        wanted, self.pages = self.pages, {}
        return wanted

    def add_read(self, buffer: StreamBuffer, batch: BufferedBatch) -> None:
        """A batch was read from the inbox."""
        buffer.add((batch,))
        self.cached_bytes += batch.size


def fail(message: Message, error: BaseException) -> None:
    """Record that handling `message` raised `error`."""
    message._settler.failed(message, error)
