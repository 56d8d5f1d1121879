"""Encoding stored batches anew, on the rare occasions when they must change."""

from __future__ import annotations

from reliamsg.message import Prev
from reliamsg.store.rows import Row
from reliamsg.wire.data import FLAG_ZSTD, Origin, Records, encode, open_frame

__all__ = ["cut", "recode"]


def recode(row: Row, epoch: int, prev: Prev | None, moved: bool) -> bytes:
    """The frame of a row's messages under another epoch. `moved`: they may have been published under the one before."""
    frame = open_frame(row.frame)
    return _encode(row, epoch, row.seq, prev, frame.records(trusted=True), moved)


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
    return _encode(row, row.epoch, first, frame.envelope.previous, part)


def _encode(
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
