"""One stream's messages in memory, and their way to the application.

A :class:`StreamBuffer` keeps the frames of a stream that are not settled; of those that the inbox has as well, only as
many as fit the cache. A :class:`DeliverySlice` is a run of messages of one frame that is being delivered, by one thread
at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol

from reliamsg import forks
from reliamsg.errors import ForkedError
from reliamsg.message import Message, Settler, digest, digest_sum
from reliamsg.protocol.receiver.redelivery import Offer
from reliamsg.protocol.receiver.stream import StreamReceiver
from reliamsg.store.inbox_rows import HeldFrame
from reliamsg.wire.data import FLAG_MOVED, Frame, FrameError, Records, open_frame, piece

__all__ = ["BufferedBatch", "DeliverySlice", "SettlementListener", "StreamBuffer", "fail"]

_NO_HEADERS: dict[str, str] = {}


class _Contents:
    """A frame, and its messages once they are decoded; the batches that are parts of the frame share it."""

    __slots__ = ("frame", "records")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.records: Records | None = None


class BufferedBatch:
    """Numbers `first` to `last` of a frame. No other batch in memory holds any of them.

    The inbox has all of them or none. Where something is true of a part of a frame only, for example because another
    site delivered the rest, that part is a batch of its own.
    """

    __slots__ = (
        "_contents", "dropped", "epoch", "first", "incarnation", "last", "persisted", "received_at", "received_us",
        "site", "size",
    )  # fmt: skip

    def __init__(
        self,
        contents: _Contents,
        span: tuple[int, int],
        site: str,
        received_at: float,
        received_us: int,
        size: int,
    ) -> None:
        self._contents = contents
        self.epoch = contents.frame.envelope.epoch
        self.incarnation = contents.frame.envelope.incarnation
        self.first, self.last = span
        self.site = site
        self.received_at = received_at
        self.received_us = received_us
        self.persisted = False
        self.dropped = False
        """Its bytes turned out unreadable, and it left the buffer."""
        self.size = size
        """Bytes in memory; where several batches share a frame, this one's part of them."""

    @classmethod
    def of(
        cls, frame: Frame, spans: Sequence[tuple[int, int]], site: str, received_at: float, received_us: int
    ) -> list[BufferedBatch]:
        """Batches of parts of one frame, which stays in memory until the inbox has all of them."""
        contents, size = _Contents(frame), len(frame.data)
        total = sum(last - first + 1 for first, last in spans)
        return [
            cls(contents, span, site, received_at, received_us, size * (span[1] - span[0] + 1) // total)
            for span in spans
        ]

    @classmethod
    def read(cls, row: HeldFrame) -> BufferedBatch:
        """A batch that was read from the inbox."""
        (batch,) = cls.of(open_frame(row.frame), [(row.first, row.last)], row.site, -1.0, row.received_us)
        batch.persisted = True
        return batch

    @property
    def frame(self) -> Frame:
        return self._contents.frame

    def records(self, *, trusted: bool = False) -> Records:
        """The frame's messages, decoded once. Raises FrameError. `trusted`: see :meth:`Frame.records`."""
        contents = self._contents
        if contents.records is None:
            contents.records = contents.frame.records(trusted=trusted)
        return contents.records

    @property
    def stored_size(self) -> int:
        """About how many bytes :meth:`stored` will be."""
        frame = self._contents.frame
        return len(frame.data) * (self.last - self.first + 1) // frame.envelope.count

    def stored(self) -> bytes:
        """The frame for the inbox to keep: where this is a part of a frame, only that part. Takes time to make."""
        frame = self._contents.frame
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
        if stored.data is not self._contents.frame.data:
            self._contents = _Contents(stored)


class SettlementListener(Protocol):
    """Receives what the application says about messages, on the application's threads."""

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
        self.state = state
        self._queue = queue
        self._listener = listener
        self._generation = forks.generation
        self._batches: dict[int, list[BufferedBatch]] = {}
        """By epoch."""
        self.acks: list[tuple[int, int, int]] = []
        """(epoch, first, last) that the application acknowledged and the core does not know of yet."""
        self.acks_queued = False

    # -- Settler ------------------------------------------------------------------------------------------

    def acknowledge(self, message: Message, durable: bool) -> None:
        self.acknowledge_run(message, message)
        if durable:
            self._listener.wait_durable()

    def acknowledge_run(self, first: Message, last: Message) -> None:
        """The application has handled `first` to `last`, consecutive messages of an epoch."""
        if self._generation != forks.generation:
            raise _forked(first)
        self.acks.append((first.epoch, first.seq, last.seq))
        if not self.acks_queued:
            queue = self._queue
            # Nothing can interrupt these two statements, as it could a call of append(): otherwise the buffer would
            # never be queued again.
            self.acks_queued = True
            queue += (self,)
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

    def take_in(self, batches: Iterable[BufferedBatch]) -> None:
        """Keep what has arrived."""
        for batch in batches:
            self.add(batch)

    def add(self, batch: BufferedBatch) -> None:
        batches = self._batches.setdefault(batch.epoch, [])
        if not batches or batches[-1].last < batch.first:
            batches.append(batch)
            return
        batches.insert(bisect_right(batches, batch.first, key=_first), batch)

    @property
    def epochs(self) -> list[int]:
        """Epochs with frames in memory."""
        return list(self._batches)

    def find(self, epoch: int, seq: int) -> BufferedBatch | None:
        batches = self._batches.get(epoch)
        if not batches:
            return None
        i = bisect_right(batches, seq, key=_first) - 1
        return batches[i] if i >= 0 and batches[i].last >= seq else None

    def overlapping(self, epoch: int, first: int, last: int) -> Iterator[BufferedBatch]:
        batches = self._batches.get(epoch, [])
        i = max(0, bisect_right(batches, first, key=_first) - 1)
        while i < len(batches) and batches[i].first <= last:
            if batches[i].last >= first:
                yield batches[i]
            i += 1

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
        "_bodies", "_headers", "_keys", "_redelivered", "_reported", "_settler", "abandoned", "base", "buffer", "done",
        "hop", "last", "offer", "progress",
    )  # fmt: skip

    def __init__(
        self, buffer: StreamBuffer, offer: Offer, batch: BufferedBatch, last: int, hop: int | None
    ) -> None:
        records, envelope = batch.records(), batch.frame.envelope
        self.buffer = buffer
        self.offer = offer
        self.last = last
        self.base = envelope.seq
        self.hop = hop
        """Histogram bucket of the latency received→delivered, where it is known."""
        self.abandoned = False
        """The rest must wait behind an earlier message that failed, or was settled elsewhere."""
        self.done = False
        """Nobody will take any more from it."""
        self.progress = (offer.first, 0)
        """(next number to deliver, digest sum of those delivered); replaced as one."""
        self._reported = (offer.first, 0)
        self._redelivered = offer.redelivered or envelope.flags & FLAG_MOVED != 0
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
            *self.buffer.state.stream, self.offer.epoch, seq, body, key, headers if headers else {}, self._redelivered,
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
        epoch, redelivered, settler = self.offer.epoch, self._redelivered, self._settler
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
        """Nobody takes any more from it."""
        self.done = True

    def report(self) -> tuple[int, int, int] | None:
        """(first, last, digest sum) of what was delivered since the last call."""
        seq, total = self.progress
        first, before = self._reported
        if seq == first:
            return None
        self._reported = (seq, total)
        return first, seq - 1, total - before

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


def fail(message: Message, error: BaseException) -> None:
    """Record that handling `message` raised `error`."""
    message._settler.failed(message, error)
