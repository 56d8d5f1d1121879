"""Cuts published messages into batches: what arrived together is stored, sent and confirmed together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from reliamsg.message import digest_sum, digest_sum_of_part
from reliamsg.producer.commit import Run
from reliamsg.producer.settings import Settings
from reliamsg.protocol.histogram import bucket
from reliamsg.store.journal import Entry, summed_parts
from reliamsg.store.outbox import NewBatch, Row, StreamRow
from reliamsg.wire.data import Origin, Records, encode

__all__ = ["Packed", "Packer"]

ITEM_OVERHEAD = 8
"""Bytes that a message takes in a batch beside its content, about."""
FEW = 64


class _Builder:
    """A batch in the making."""

    __slots__ = ("bodies", "headers", "keys", "size")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str | None] | None = None
        self.headers: list[dict[str, str] | None] | None = None
        self.size = 0

    def digest(self, seq: int, first: int, last: int) -> int:
        """The digest sum of some of the batch's messages; `seq` is the number of its first."""
        if first == seq and last - seq + 1 == len(self.bodies):
            return digest_sum(first, self.bodies, self.keys, self.headers)
        return digest_sum_of_part(seq, self.bodies, self.keys, self.headers, first, last)

    def take(self, run: Run, at: int, settings: Settings) -> int:
        """Append as many of the run's messages, from the one `at` on, as there is room for, to an empty batch at least
        one; returns how many."""
        key, headers = run.key, run.headers
        before = len(self.bodies)
        # There is a column for keys, or headers, once any message has one.
        keyed = key is not None or self.keys is not None
        headed = bool(headers) or self.headers is not None
        each = ITEM_OVERHEAD
        if keyed:
            each += len(key) if key is not None else 1
        if headed:
            each += sum(len(name) + len(value) + 4 for name, value in headers.items()) if headers else 1
        part, size = _fitting(
            run.bodies, at, settings.max_batch_messages - before, settings.max_batch_bytes - self.size, each,
            not before,
        )  # fmt: skip
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
    """Batches that are ready to be stored, and the runs that they were made of."""

    def __init__(self) -> None:
        self.batches: list[NewBatch] = []
        self.entries: list[Entry] = []
        self.topics: list[tuple[Sequence[Run], int, int]] = []
        """The runs of each topic, their first sequence number, and how many batches they fill."""

    def stored(self, rows: Sequence[Row]) -> None:
        """The batches were stored as `rows`: record where each run is."""
        at = 0
        for runs, first, batches in self.topics:
            starts: list[int] = []
            numbers: list[int] = []
            for row in rows[at : at + batches]:
                starts.append(row.seq)
                numbers.append(row.id)
            epoch, seq = rows[at].epoch, first
            at += batches
            for run in runs:
                run.stored(epoch, seq, starts, numbers)
                seq += len(run.bodies)


class Packer:
    """Cuts the messages of a commit into batches, and encodes them."""

    def __init__(self, settings: Settings, incarnation: int) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._ring = None if settings.plain else settings.keys

    def pack(
        self, topics: Mapping[str, Sequence[Run]], streams: Mapping[str, StreamRow], epoch: int,
        times: tuple[int, int],
    ) -> Packed:  # fmt: skip
        """Allocate sequence numbers and encode. Nothing is final before the batches are stored.

        `topics`: the messages of each. One topic is packed after the other: the batches of a receipt must not have
        those of another topic between them, which may be refused where they are not. `times`: when the first message
        was published, and now.
        """
        packed = Packed()
        for topic, runs in topics.items():
            before = len(packed.batches)
            self._pack(streams[topic], runs, packed, epoch, times)
            packed.topics.append((runs, streams[topic].next_seq, len(packed.batches) - before))
        return packed

    def _pack(
        self, stream: StreamRow, runs: Sequence[Run], packed: Packed, epoch: int, times: tuple[int, int]
    ) -> None:
        seq = stream.next_seq
        builder = _Builder()
        for run in runs:
            at = builder.take(run, 0, self._settings)
            while at < len(run.bodies):
                seq = self._close(builder, stream, seq, packed, epoch, times)
                builder = _Builder()
                at += builder.take(run, at, self._settings)
        self._close(builder, stream, seq, packed, epoch, times)

    def _close(
        self, builder: _Builder, stream: StreamRow, seq: int, packed: Packed, epoch: int,
        times: tuple[int, int],
    ) -> int:  # fmt: skip
        """Encode a batch; return the sequence number after it."""
        count = len(builder.bodies)
        frame = encode(
            Origin(stream.stream, epoch, self._incarnation, stream.prev),
            seq,
            times,
            Records(builder.bodies, builder.keys, builder.headers),
            compress=self._settings.compression is not None,
            ring=self._ring,
        )
        if seq == 1:
            prev = None if stream.prev is None else list(stream.prev)
            packed.entries.append(
                Entry("epoch", stream.stream, epoch, self._incarnation, detail={"prev": prev})
            )
        packed.batches.append(NewBatch(stream, seq, count, frame))
        hop, end = bucket(times[1] - times[0]), seq + count - 1
        for first, last in summed_parts(seq, end):
            packed.entries.append(
                Entry(
                    "enqueued", stream.stream, epoch, self._incarnation, first, last,
                    digest=builder.digest(seq, first, last), latency={hop: last - first + 1},
                )
            )  # fmt: skip
        return seq + count
