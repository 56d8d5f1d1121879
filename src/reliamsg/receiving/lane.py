"""One stream's messages in memory, and the way from there to the application.

A :class:`Lane` keeps the frames of a stream that are not settled, those in the inbox only as far as they fit the
cache. A :class:`Chunk` is a run of messages of one frame on its way to the application, one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol

from reliamsg import forks
from reliamsg.core.redelivery import Offer
from reliamsg.core.stream import StreamReceiver
from reliamsg.errors import ForkedError
from reliamsg.message import Message, Settler, digest, digest_sum
from reliamsg.wire.data import FLAG_MOVED, Frame, FrameError, Records, piece

__all__ = ["Chunk", "Holding", "Lane", "LaneOwner", "fail"]

_NO_HEADERS: dict[str, str] = {}


class _Contents:
    """A frame, and its messages once they were decoded: for all holdings of the frame."""

    __slots__ = ("frame", "records")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.records: Records | None = None


class Holding:
    """Numbers `first` to `last` of a frame. Nothing else of the stream in memory has any of them.

    In the inbox there are all of them or none: whatever is true of a part of a frame only, another site's copy of the
    rest for one, is true of a holding of its own.
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
        """Its bytes turned out unreadable; it is held no longer."""
        self.size = size
        """Bytes in memory: its share, where the frame is that of several holdings."""

    @classmethod
    def of(
        cls, frame: Frame, spans: Sequence[tuple[int, int]], site: str, received_at: float, received_us: int
    ) -> list[Holding]:
        """Holdings of parts of one frame, which has to be in memory as long as any of them is not in the inbox."""
        contents, size = _Contents(frame), len(frame.data)
        total = sum(last - first + 1 for first, last in spans)
        return [
            cls(contents, span, site, received_at, received_us, size * (span[1] - span[0] + 1) // total)
            for span in spans
        ]

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
        """The frame that is to be kept in the inbox: of a part of a frame, only that part. Takes time to make."""
        frame = self._contents.frame
        if (self.first, self.last) == (frame.envelope.seq, frame.envelope.last):
            return frame.data
        try:
            return piece(frame.envelope, self.records(), self.first, self.last)
        except FrameError:  # it is found out, and dealt with, when its turn comes
            return frame.data

    def keep(self, stored: Frame) -> None:
        """It is in the inbox, as this frame; what else the other one held is of no use to it."""
        self.persisted = True
        self.size = len(stored.data)
        if stored.data is not self._contents.frame.data:
            self._contents = _Contents(stored)


class LaneOwner(Protocol):
    """What a lane tells its consumer, on the application's threads."""

    def acked(self, lane: Lane) -> None: ...
    def wait_durable(self) -> None: ...
    def message_rejected(self, lane: Lane, message: Message, reason: str) -> None: ...
    def message_failed(self, lane: Lane, message: Message, error: BaseException) -> None: ...


class Lane:
    """A stream's way from the inbox to the application. Its messages report to it."""

    __slots__ = (
        "_generation",
        "_holdings",
        "acks",
        "acks_queued",
        "busy",
        "owner",
        "page_wanted",
        "queued",
        "state",
    )

    def __init__(self, state: StreamReceiver, owner: LaneOwner) -> None:
        self.state = state
        self.owner = owner
        self._generation = forks.generation
        self._holdings: dict[int, list[Holding]] = {}
        self.acks: list[tuple[int, int, int]] = []
        """(epoch, first, last) that the application acknowledged and the core does not know of yet."""
        self.acks_queued = False
        self.busy = False
        """A chunk of it is with the application."""
        self.queued = False
        self.page_wanted: tuple[int, int] | None = None
        """(epoch, number) to be read from the inbox."""

    # -- Settler ------------------------------------------------------------------------------------------

    def acknowledge(self, message: Message, durable: bool) -> None:
        self.acknowledge_run(message, message)
        if durable:
            self.owner.wait_durable()

    def acknowledge_run(self, first: Message, last: Message) -> None:
        """The application dealt with `first` to `last`, consecutive messages of an epoch."""
        if self._generation != forks.generation:
            raise _forked(first)
        self.acks.append((first.epoch, first.seq, last.seq))
        if not self.acks_queued:
            self.owner.acked(self)

    def reject(self, message: Message, reason: str) -> None:
        if self._generation != forks.generation:
            raise _forked(message)
        self.owner.message_rejected(self, message, reason)

    def failed(self, message: Message, error: BaseException) -> None:
        if self._generation != forks.generation:
            raise _forked(message)
        self.owner.message_failed(self, message, error)

    # -- frames in memory -----------------------------------------------------------------------------------

    def take_in(self, holdings: Iterable[Holding]) -> None:
        """Keep what has arrived."""
        for holding in holdings:
            self.add(holding)

    def add(self, holding: Holding) -> None:
        holdings = self._holdings.setdefault(holding.epoch, [])
        if not holdings or holdings[-1].last < holding.first:
            holdings.append(holding)
            return
        holdings.insert(bisect_right(holdings, holding.first, key=_first), holding)

    @property
    def epochs(self) -> list[int]:
        """Epochs of which there are frames in memory."""
        return list(self._holdings)

    def find(self, epoch: int, seq: int) -> Holding | None:
        holdings = self._holdings.get(epoch)
        if not holdings:
            return None
        i = bisect_right(holdings, seq, key=_first) - 1
        return holdings[i] if i >= 0 and holdings[i].last >= seq else None

    def overlapping(self, epoch: int, first: int, last: int) -> Iterator[Holding]:
        holdings = self._holdings.get(epoch, [])
        i = max(0, bisect_right(holdings, first, key=_first) - 1)
        while i < len(holdings) and holdings[i].first <= last:
            if holdings[i].last >= first:
                yield holdings[i]
            i += 1

    def prune(self, epoch: int, position: int) -> int:
        """Forget frames that lie below `position`; returns their bytes as far as they counted as cached."""
        holdings = self._holdings.get(epoch)
        if not holdings:
            return 0
        done = 0
        freed = 0
        while done < len(holdings) and holdings[done].last < position:
            freed += holdings[done].size if holdings[done].persisted else 0
            done += 1
        del holdings[:done]
        if not holdings:
            del self._holdings[epoch]
        return freed

    def drop(self, holding: Holding) -> None:
        """Forget what can't be read."""
        holding.dropped = True
        holdings = self._holdings.get(holding.epoch, [])
        if holding in holdings:
            holdings.remove(holding)

    def shed(self) -> int:
        """Forget what is in the inbox as well and not next in turn; returns the bytes."""
        freed = 0
        current = self.state.epochs.current
        for epoch, holdings in self._holdings.items():
            near = current.cursor if current is not None and epoch == current.epoch else 0
            kept = [h for h in holdings if not h.persisted or h.first <= near <= h.last]
            freed += sum(h.size for h in holdings) - sum(h.size for h in kept)
            holdings[:] = kept
        return freed


def _forked(message: Message) -> ForkedError:
    return ForkedError(
        f"{message.id} was handed out before fork(): acknowledge or reject it in the parent process"
    )


def _first(holding: Holding) -> int:
    return holding.first


class Chunk:
    """A run of messages of one frame that is being given to the application."""

    __slots__ = (
        "_bodies", "_headers", "_keys", "_redelivered", "_reported", "_settler", "abandoned", "base", "done", "hop",
        "lane", "last", "offer", "progress",
    )  # fmt: skip

    def __init__(self, lane: Lane, offer: Offer, holding: Holding, last: int, hop: int | None) -> None:
        records, envelope = holding.records(), holding.frame.envelope
        self.lane = lane
        self.offer = offer
        self.last = last
        self.base = envelope.seq
        self.hop = hop
        """Histogram bucket of the latency received→delivered, where it is known."""
        self.abandoned = False
        """What was not given out yet must wait behind an earlier message that failed, or was settled elsewhere."""
        self.done = False
        """Whoever takes messages from it will take no more."""
        self.progress = (offer.first, 0)
        """(next number to give out, digest sum of those given out); replaced as one."""
        self._reported = (offer.first, 0)
        self._redelivered = offer.redelivered or envelope.flags & FLAG_MOVED != 0
        self._bodies = records.bodies
        self._keys = records.keys
        self._headers = records.headers
        self._settler: Settler = lane

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
            *self.lane.state.stream, self.offer.epoch, seq, body, key, headers if headers else {}, self._redelivered,
            False, self._settler,
        )  # fmt: skip
        # Counted before the application has it, so that no acknowledgement is journalled ahead of the delivery.
        self.progress = (seq + 1, total + digest(seq, body, key, headers))
        return message

    def take(self, most: int, given: list[Message] | None = None) -> list[Message]:
        """The next messages, at most `most`; an empty list when there are no more. `given` gets them as well: whatever
        interrupts this call, they were given out and are there, or neither."""
        first, total = self.progress
        start = first - self.base
        stop = min(self.last - self.base + 1, start + most)
        if start >= stop or self.abandoned:
            return []
        bodies = self._bodies[start:stop]
        keys = self._keys[start:stop] if self._keys is not None else None
        headers = self._headers[start:stop] if self._headers is not None else None
        producer, topic, partition = self.lane.state.stream
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
        """Nothing more will be taken from it."""
        self.done = True

    def report(self) -> tuple[int, int, int] | None:
        """(first, last, digest sum) of what was given out since the last call."""
        seq, total = self.progress
        first, before = self._reported
        if seq == first:
            return None
        self._reported = (seq, total)
        return first, seq - 1, total - before

    @property
    def unused(self) -> tuple[int, int] | None:
        """First and last number that were not given out."""
        seq = self.progress[0]
        return (seq, self.last) if seq <= self.last else None


def fail(message: Message, error: BaseException) -> None:
    """Record that handling `message` raised `error`."""
    message._settler.failed(message, error)
