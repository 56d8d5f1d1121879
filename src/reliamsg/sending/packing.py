"""From published messages to batches: what arrived together is stored, sent and confirmed together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from reliamsg.core.histogram import Histogram, bucket
from reliamsg.message import digest_sum
from reliamsg.sending.intake import Column, Group, Item
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import NewBatch, Row, StreamRow
from reliamsg.wire.data import Origin, Records, encode

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing
    from reliamsg.sending.receipt import Receipt

__all__ = ["Packed", "Packer"]

ITEM_OVERHEAD = 8
"""Bytes that a message costs in a batch beside its content, about."""
FEW = 64


class _Builder:
    """A batch in the making."""

    __slots__ = (
        "bodies",
        "ends",
        "headers",
        "keys",
        "size",
        "starts",
        "stream",
        "whole",
    )

    def __init__(self, stream: StreamRow) -> None:
        self.stream = stream
        self.bodies: list[bytes] = []
        self.keys: list[str | None] | None = None
        self.headers: list[dict[str, str] | None] | None = None
        self.size = 0
        self.whole: list[Receipt] | None = None
        """Receipts of one message each, which are all that is in this batch."""
        self.starts: list[tuple[int, Receipt]] = []
        """Otherwise: which message of this batch is a receipt's first ..."""
        self.ends: list[Receipt] = []
        """... and which receipts' last messages are in this batch."""

    def singles(self, seq: int) -> Iterable[tuple[int, Receipt]]:
        return enumerate(self.whole, seq) if self.whole is not None else ()

    def take(
        self,
        bodies: Sequence[bytes],
        at: int,
        key: str | None,
        headers: Mapping[str, str] | None,
        max_messages: int,
        max_bytes: int,
    ) -> int:
        """Append as many of `bodies`, from the one `at` on, as there is room for, to an empty batch at least one;
        returns how many. All have one key and the same headers."""
        before = len(self.bodies)
        # There is a column for keys, or headers, once any message has one.
        keyed = key is not None or self.keys is not None
        headed = bool(headers) or self.headers is not None
        each = ITEM_OVERHEAD
        if keyed:
            each += len(key) if key is not None else 1
        if headed:
            each += sum(len(name) + len(value) + 4 for name, value in headers.items()) if headers else 1
        part, size = _fitting(bodies, at, max_messages - before, max_bytes - self.size, each, not before)
        if part:
            self.bodies += part
            self.size += size
            if keyed:
                self.keys = self.keys if self.keys is not None else [None] * before
                self.keys += [key] * len(part)
            if headed:
                self.headers = self.headers if self.headers is not None else [None] * before
                self.headers += [dict(headers) if headers else None] * len(part)
        return len(part)

    def digest(self, seq: int) -> int:
        """The sum that the journal keeps."""
        return digest_sum(seq, self.bodies, self.keys, self.headers)


def _fitting(
    bodies: Sequence[bytes], at: int, most: int, room: int, each: int, at_least_one: bool
) -> tuple[Sequence[bytes], int]:
    """As many of `bodies` from the one `at` on, at most `most`, as go into `room` bytes with `each` beside every one,
    and how much that is."""
    part = bodies[at : at + min(most, FEW)]  # where they are large, no need to look at thousands
    size = sum(map(len, part)) + each * len(part)
    if size <= room and len(part) == FEW < most:
        part = bodies[at : at + most]
        size = sum(map(len, part)) + each * len(part)
    if size > room:
        ends = list(accumulate(len(body) + each for body in part))
        count = bisect_right(ends, room)
        if not count and at_least_one and part:
            count = 1
        part, size = part[:count], ends[count - 1] if count else 0
    return part, size


class Packed:
    """Batches of one group, ready to be stored, and the receipts to be told."""

    def __init__(self) -> None:
        self.batches: list[NewBatch] = []
        self.entries: list[Entry] = []
        self._builders: list[_Builder] = []

    def add(self, builder: _Builder, batch: NewBatch, entry: Entry) -> None:
        self.batches.append(batch)
        self.entries.append(entry)
        self._builders.append(builder)

    def settle(self, rows: Sequence[Row]) -> None:
        """The batches were stored as `rows`: tell the receipts where they are."""
        for builder, row in zip(self._builders, rows, strict=True):
            number, epoch = row.id, row.epoch
            for seq, receipt in builder.singles(row.seq):
                receipt._first_row = receipt._last_row = number
                receipt._epoch = epoch
                receipt._seq = seq
            for index, receipt in builder.starts:
                receipt._first_row = number
                receipt._epoch = epoch
                receipt._seq = row.seq + index
            for receipt in builder.ends:
                receipt._last_row = number


class Packer:
    """Cuts groups into batches. `stream` finds or makes the row of a topic. With a `ring` they are signed."""

    def __init__(
        self,
        stream: Callable[[str], StreamRow],
        epoch: int,
        incarnation: int,
        max_messages: int,
        max_bytes: int,
        compress: bool,
        ring: KeyRing | None = None,
    ) -> None:
        self._stream = stream
        self.epoch = epoch
        """Of what is packed from now on."""
        self._incarnation = incarnation
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._compress = compress
        self._ring = ring

    def pack(self, group: Group, wall_us: int) -> Packed:
        """Allocate sequence numbers and encode. Nothing is final before the batches are stored."""
        # The newest message of a batch is not newer than now.
        times = (group.wall_us, max(group.wall_us, wall_us))
        packed = Packed()
        for topic, parts in _by_topic(group.parts).items():
            stream = self._stream(topic)
            if len(parts) == 1 and isinstance(parts[0], Column):
                self._pack_column(stream, parts[0], packed, times)
            else:
                self._pack(stream, _items(parts), packed, times)
        return packed

    def _pack_column(self, stream: StreamRow, column: Column, packed: Packed, times: tuple[int, int]) -> None:
        seq, at, count = stream.next_seq, 0, len(column.bodies)
        while at < count:
            builder = _Builder(stream)
            taken = builder.take(column.bodies, at, None, None, self._max_messages, self._max_bytes)
            builder.whole = column.receipts[at : at + taken]
            seq = self._close(builder, seq, packed, times)
            at += taken

    def _pack(self, stream: StreamRow, items: Iterable[Item], packed: Packed, times: tuple[int, int]) -> None:
        seq = stream.next_seq
        builder = _Builder(stream)
        for _, bodies, key, headers, receipt in items:
            at = 0
            while at < len(bodies):
                start = len(builder.bodies)
                taken = builder.take(bodies, at, key, headers, self._max_messages, self._max_bytes)
                if at == 0 and taken:
                    builder.starts.append((start, receipt))
                at += taken
                if at < len(bodies):
                    seq = self._close(builder, seq, packed, times)
                    builder = _Builder(stream)
            builder.ends.append(receipt)
        self._close(builder, seq, packed, times)

    def _close(self, builder: _Builder, seq: int, packed: Packed, times: tuple[int, int]) -> int:
        """Encode a batch; return the sequence number after it."""
        stream, count = builder.stream, len(builder.bodies)
        frame = encode(
            Origin(stream.stream, self.epoch, self._incarnation, stream.prev),
            seq,
            times,
            Records(builder.bodies, builder.keys, builder.headers),
            compress=self._compress,
            ring=self._ring,
        )
        if seq == 1:
            prev = None if stream.prev is None else list(stream.prev)
            packed.entries.append(
                Entry("epoch", stream.stream, self.epoch, self._incarnation, detail={"prev": prev})
            )
        latency: Histogram = {bucket(times[1] - times[0]): count}
        packed.add(
            builder,
            NewBatch(stream, seq, count, frame),
            Entry(
                "enqueued", stream.stream, self.epoch, self._incarnation, seq, seq + count - 1,
                digest=builder.digest(seq), latency=latency,
            ),
        )  # fmt: skip
        return seq + count


def _by_topic(parts: Sequence[Column | Item]) -> dict[str, list[Column | Item]]:
    """The parts of each topic, in order. One topic is packed after the other: the batches of a receipt must not have
    those of another topic between them, which may be refused where they are not."""
    topics: dict[str, list[Column | Item]] = {}
    for part in parts:
        topics.setdefault(part.topic if isinstance(part, Column) else part[0], []).append(part)
    return topics


def _items(parts: Sequence[Column | Item]) -> Iterator[Item]:
    """All of one topic's parts as items."""
    for part in parts:
        if isinstance(part, Column):
            for body, receipt in zip(part.bodies, part.receipts, strict=True):
                yield part.topic, (body,), None, None, receipt
        else:
            yield part
