"""Encodes stored batches: for brokers, and anew on the rare occasions when a batch must change."""

from __future__ import annotations

from reliamsg.keys import KeyRing
from reliamsg.message import MessageId, Prev
from reliamsg.store.rows import Row
from reliamsg.transport.base import Outgoing
from reliamsg.wire.data import CONTENT_TYPE, FLAG_ZSTD, Origin, Records, encode, frames_of, open_frame
from reliamsg.wire.plain import encode_plain

__all__ = ["PLAIN_MESSAGES", "Encoder", "cut", "reencode"]

PLAIN_MESSAGES = 2_048
"""Messages that a site takes at a time in the plain form, unless one batch has more: sites that keep pace with each
other find each batch encoded already."""
KEPT_MESSAGES = 4 * PLAIN_MESSAGES


class Encoder:
    """Encodes rows as broker messages, for all sites of a producer. Any thread may use it."""

    def __init__(self, plain: bool, keys: KeyRing | None) -> None:
        self.plain = plain
        self._keys = keys
        self._latest: tuple[Row | None, int, list[Outgoing]] = (None, 0, [])
        """The batch that was encoded last as frames, for which limit, and the result."""
        self._made: dict[int, tuple[bytes, list[Outgoing]]] = {}
        """The latest batches in the plain form, with the frames that they were made of."""

    def encode(self, row: Row, max_frame_bytes: int) -> list[Outgoing]:
        """The broker messages of a batch: one, its parts if it is too large for the site, or (``wire="plain"``) one for
        each of its messages."""
        if self.plain:
            return self._plain(row)
        latest, limit, made = self._latest
        if latest is row and limit == max_frame_bytes:  # sites take the same batch one after the other
            return made
        stream = row.stream
        message_id = str(MessageId(stream.producer, row.epoch, stream.topic, stream.partition, row.seq))
        parts = frames_of(row.frame, max_frame_bytes, self._keys)
        if len(parts) == 1:
            made = [
                Outgoing(
                    row.id, stream.topic, stream.partition, parts[0], CONTENT_TYPE, None, message_id, row.wall_us
                )
            ]  # fmt: skip
        else:
            made = [
                Outgoing(
                    row.id, stream.topic, stream.partition, part, CONTENT_TYPE, None, f"{message_id}.{number}",
                    row.wall_us, len(parts) - number,
                )
                for number, part in enumerate(parts, 1)
            ]  # fmt: skip
        self._latest = row, max_frame_bytes, made
        return made

    def _plain(self, row: Row) -> list[Outgoing]:
        # A row may be cut, or get another epoch: then it has another frame.
        frame, found = self._made.get(row.id, (b"", []))
        if frame == row.frame:
            return found
        stream = row.stream
        messages = encode_plain(open_frame(row.frame), self._keys)
        made = [
            Outgoing(
                row.id, stream.topic, stream.partition, m.body, m.content_type, m.headers, m.message_id, m.timestamp_us,
                len(messages) - number,
            )
            for number, m in enumerate(messages, 1)
        ]  # fmt: skip
        # Another thread may do the same at the same time, which only takes time.
        kept = {row.id: (row.frame, made)}
        count = len(made)
        for number, other in reversed(list(self._made.items())):
            count += len(other[1])
            if count > KEPT_MESSAGES:
                break
            kept.setdefault(number, other)
        self._made = dict(reversed(kept.items()))
        return made


def reencode(row: Row, epoch: int, prev: Prev | None, moved: bool) -> bytes:
    """The frame of a row's messages under another epoch. `moved`: they may have been published under the one before."""
    frame = open_frame(row.frame)
    return _encode_again(row, epoch, row.seq, prev, frame.records(trusted=True), moved)


def cut(row: Row, first: int, last: int) -> bytes:
    """The frame of some of a row's messages, `first` to `last`."""
    frame = open_frame(row.frame)
    records = frame.records(trusted=True)
    some = slice(first - row.seq, last - row.seq + 1)
    part = Records(
        records.bodies[some],
        None if records.keys is None else records.keys[some],
        None if records.headers is None else records.headers[some],
    )
    return _encode_again(row, row.epoch, first, frame.envelope.previous, part)


def _encode_again(
    row: Row, epoch: int, seq: int, prev: Prev | None, records: Records, moved: bool = False
) -> bytes:
    envelope = open_frame(row.frame).envelope
    return encode(
        Origin(row.stream, epoch, row.incarnation, prev, moved=moved or envelope.moved),
        seq,
        (envelope.ts_first, envelope.ts_last),
        records,
        compress=bool(envelope.flags & FLAG_ZSTD),
    )
