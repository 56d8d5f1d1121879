"""The two operations that change stored batches: renumbering, which moves messages that were never offered to a site to
another epoch, and the removal of messages on demand. Functions of a connection, within the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping

import msgspec

from reliamsg.message import Prev, Stream
from reliamsg.store.journal import Entry
from reliamsg.store.members import RemovedRange, load_chain
from reliamsg.store.rows import COLUMNS, Row

__all__ = ["EncodePart", "Reencode", "Taken"]

PAGE_ROWS = 100


Reencode = Callable[[Row, int, Prev | None, bool], bytes]
"""Returns the frame of a row's messages for another epoch and predecessor; the flag tells that a copy of the file may
have published them."""

EncodePart = Callable[[Row, int, int], bytes]
"""Returns the frame of a row's messages with the numbers first to last."""


class Taken(msgspec.Struct, frozen=True):
    """The effect of a removal on the stored batches."""

    gone: tuple[Row, ...]
    """Batches that were deleted."""
    cut: tuple[tuple[Row, Row], ...]
    """Batches that were shortened: before and after."""
    added: tuple[Row, ...]
    """New batches, for messages behind a removed range in the middle of a batch."""
    spans: tuple[tuple[int, int], ...]
    """The removed numbers that were stored, lowest first."""


def rows_of(
    db: sqlite3.Connection, stream: Stream, stream_id: int, epoch: int, first: int, last: int
) -> Iterator[Row]:
    """The batches of an epoch that contain any of the numbers `first` to `last`, by number, read in pages."""
    found = db.execute(
        "SELECT max(seq) FROM batch WHERE stream_id = ? AND epoch = ? AND seq <= ?", (stream_id, epoch, first)
    ).fetchone()[0]
    start = first if found is None else int(found)
    while start <= last:
        page = db.execute(
            f"SELECT {COLUMNS}, frame FROM batch WHERE stream_id = ? AND epoch = ? AND seq BETWEEN ? AND ?"
            f" ORDER BY seq LIMIT {PAGE_ROWS}",
            (stream_id, epoch, start, last),
        ).fetchall()
        for number, _, _, incarnation, seq, count, size, wall_us, frame in page:
            start = seq + count
            if start > first:
                yield Row(
                    number, stream_id, stream, epoch, int(incarnation, 16), seq, count, size, wall_us, frame
                )
        if len(page) < PAGE_ROWS:
            return


def renumber(
    db: sqlite3.Connection,
    streams: Mapping[int, Stream],
    epochs: Mapping[int, int],
    own_from: int,
    reencode: Reencode,
) -> list[Entry]:
    """Renumber whole epochs: `epochs` maps old to new numbers, in the same order. Sequence numbers and incarnations
    stay. A copy of the file may have offered the epochs below `own_from`.

    Returns the journal entries, epoch by epoch: an entry in one epoch ends all earlier epochs.
    """
    entries: dict[int, list[Entry]] = {new: [] for new in epochs.values()}
    for stream_id, stream in streams.items():
        prev: Prev | None = None
        for link in load_chain(db, stream_id):
            new = epochs.get(link.epoch)
            if new is not None:
                for row in rows_of(db, stream, stream_id, link.epoch, 1, link.last):
                    frame = reencode(row, new, prev, link.epoch < own_from)
                    db.execute(
                        "UPDATE batch SET epoch = ?, size = ?, frame = ? WHERE id = ?",
                        (new, len(frame), frame, row.id),
                    )
                entries[new] += [
                    Entry(
                        "epoch", stream, new, link.incarnation,
                        detail={"prev": None if prev is None else list(prev)},
                    ),
                    Entry(
                        "renumbered", stream, link.epoch, link.incarnation, 1, link.last,
                        detail={"epoch": new, "first": 1},
                    ),
                ]  # fmt: skip
            prev = Prev(new or link.epoch, link.incarnation, link.last)
    for old, new in epochs.items():
        db.execute("UPDATE chain SET epoch = ? WHERE epoch = ?", (new, old))
        db.execute("UPDATE removed SET epoch = ? WHERE epoch = ?", (new, old))
        db.execute("UPDATE member SET since_epoch = ? WHERE since_epoch = ?", (new, old))
        # A group that knows a later copy of this file may have settled messages under their old numbers.
        db.execute("UPDATE member SET epoch = ?, next = 1 WHERE epoch = ?", (min(epochs.values()), old))
    db.execute(
        "UPDATE member SET epoch = since_epoch, next = since_next WHERE (epoch, next) < (since_epoch, since_next)"
    )
    return [entry for of_epoch in entries.values() for entry in of_epoch]


def take_out(
    db: sqlite3.Connection, stream: Stream, stream_id: int, removed: RemovedRange, encode: EncodePart
) -> Taken:
    """Remove messages from their batches.

    The messages before them keep their row. The messages behind them keep it if there are none before, and get a new
    row otherwise.
    """
    first, last = removed.first, removed.last
    spans: list[tuple[int, int]] = []
    gone: list[Row] = []
    changed: list[tuple[Row, Row]] = []
    added: list[Row] = []
    for row in list(rows_of(db, stream, stream_id, removed.epoch, first, last)):
        spans.append((max(first, row.seq), min(last, row.last)))
        parts = [
            (low, high) for low, high in ((row.seq, min(row.last, first - 1)), (max(row.seq, last + 1), row.last))
            if low <= high
        ]  # fmt: skip
        if not parts:
            db.execute("DELETE FROM batch WHERE id = ?", (row.id,))
            gone.append(row)
            continue
        for number, (low, high) in enumerate(parts):
            frame = encode(row, low, high)
            after = msgspec.structs.replace(row, seq=low, count=high - low + 1, size=len(frame), frame=frame)
            if number == 0:
                db.execute(
                    "UPDATE batch SET seq = ?, count = ?, size = ?, frame = ? WHERE id = ?",
                    (after.seq, after.count, after.size, frame, row.id),
                )
                changed.append((row, after))
            else:
                added.append(msgspec.structs.replace(after, id=_insert(db, after)))
    return Taken(tuple(gone), tuple(changed), tuple(added), tuple(spans))


def _insert(db: sqlite3.Connection, row: Row) -> int:
    number = db.execute(
        "INSERT INTO batch (stream_id, epoch, incarnation, seq, count, size, wall_us, frame)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.stream_id, row.epoch, f"{row.incarnation:016x}", row.seq, row.count, row.size, row.wall_us, row.frame,
        ),
    ).lastrowid  # fmt: skip
    assert number is not None  # an INSERT that did not raise has a row id
    return number
