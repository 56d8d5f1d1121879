"""The outbox: a producer's published messages that may still have to be sent, in one SQLite file.

One thread at a time uses an :class:`Outbox`. Every method that writes is one transaction, fsynced when it returns.
After ``OutboxWriteError`` nothing was stored; after ``OutboxIndeterminate`` this is unknown, and the outbox must not be
used again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reliamsg.errors import StoreCorrupt
from reliamsg.message import Prev, Stream
from reliamsg.store.database import PAGE_BYTES, Connect, Database, get_meta, put_meta
from reliamsg.store.exported import Exported
from reliamsg.store.journal import Entry, Journal
from reliamsg.store.members import (
    ChainRow,
    Member,
    Position,
    Proofs,
    RemovedRange,
    load_chain,
    load_members,
    load_proofs,
    load_removed,
    replace_removed,
    trim_chain,
    write_members,
    write_positions,
    write_proofs,
)
from reliamsg.store.rewriting import EncodePart, Reencode, Taken, renumber, rows_of, take_out
from reliamsg.store.rows import COLUMNS, Cursors, NewBatch, Parked, Row, StreamRow
from reliamsg.wire.data import FrameError, open_frame

__all__ = [
    "Cursors",
    "NewBatch",
    "Outbox",
    "Parked",
    "Row",
    "StreamRow",
]


EPOCH_STEP = 2**16
"""Where the clock gives no higher epoch, the next one is up to this many milliseconds (a minute) above the current one,
at random, so that copies of one file that run side by side do not choose the same epoch."""


IN_ORDER_ROWS = 64
"""Page size of :meth:`Outbox.in_order`."""


class Outbox:
    """An outbox file, owned and open for writing. Its constructor chooses and commits the `epoch` and `incarnation` of
    this opening."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        producer: str,
        wall_us: int,
        mono_us: int,
        boot: str,
        connect: Connect = sqlite3.connect,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._db = Database(path, "outbox", producer, connect)
        try:
            self.path: Path = self._db.path
            self.producer = producer
            self.exported: Exported = Exported(self._db, boot)
            self.journal: Journal = self.exported.journal
            self._random_bytes = random_bytes
            self.incarnation: int = int.from_bytes(random_bytes(8), "big")
            with self._db.reading(), self._db.transaction() as connection:
                stored = int(get_meta(connection, "epoch", "0"))
                self.fresh: bool = stored == 0
                """Whether the file is opened for the first time."""
                wall_ms = wall_us // 1000
                self.epoch: int = wall_ms if wall_ms > stored else self._epoch_above(stored)
                put_meta(connection, "epoch", str(self.epoch))
                put_meta(connection, "incarnation", f"{self.incarnation:016x}")
            with self._db.reading() as connection:
                self.streams: dict[tuple[str, int], StreamRow] = self._load_streams(connection)
                self.offered: int = int(get_meta(connection, "offered", "0"))
                self.surpassed_by: int = int(get_meta(connection, "surpassed_by", "0"))
                """The highest epoch that a named group had entered, and that was not part of this history; 0 for none.
                Messages that were offered since are above it."""
                self._own_from = self.epoch
                """Epochs below this one were stored by earlier openings: a copy of this file may have offered them."""
        except BaseException:
            self._db.close()
            raise
        self._by_id = {row.id: row for row in self.streams.values()}
        self._sites: dict[str, Cursors] = {}
        """The progress of the sites as stored last: most calls of :meth:`progress` change only a few of them."""

    def close(self) -> None:
        """Close the file and release its lock."""
        self._db.close()

    def _epoch_above(self, epoch: int) -> int:
        return epoch + 1 + int.from_bytes(self._random_bytes(4), "big") % EPOCH_STEP

    # -- storing ------------------------------------------------------------------------------------------

    def stream(self, topic: str, partition: int) -> StreamRow:
        """The row of a stream, created if there is none."""
        found = self.streams.get((topic, partition))
        return self.make_streams([(topic, partition)])[0] if found is None else found

    def make_streams(self, names: Iterable[tuple[str, int]]) -> list[StreamRow]:
        """The rows of streams, by topic and partition. Missing rows are created in one transaction."""
        names = list(names)
        missing = [name for name in dict.fromkeys(names) if name not in self.streams]
        if missing:
            with self._db.transaction() as connection:
                made = [
                    connection.execute("INSERT INTO stream (topic, part) VALUES (?, ?)", name).lastrowid
                    for name in missing
                ]
            for name, number in zip(missing, made, strict=True):
                assert number is not None  # an INSERT that did not raise has a row id
                row = StreamRow(number, Stream(self.producer, *name), None)
                self.streams[name] = self._by_id[number] = row
        return [self.streams[name] for name in names]

    def append(
        self, batches: Sequence[NewBatch], entries: Iterable[Entry], wall_us: int, mono_us: int
    ) -> list[Row]:
        """Store batches and their journal entries. They are durable on return."""
        rows: list[Row] = []
        epoch, incarnation = self.epoch, f"{self.incarnation:016x}"
        ends: dict[int, int] = {}
        adding = 0
        for batch in batches:
            adding += len(batch.frame) + PAGE_BYTES
        with self.journal.transaction(self._db, entries, wall_us, mono_us, adding) as connection:
            for batch in batches:
                stream = batch.stream
                size = len(batch.frame)
                number = connection.execute(
                    "INSERT INTO batch (stream_id, epoch, incarnation, seq, count, size, wall_us, frame)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (stream.id, epoch, incarnation, batch.seq, batch.count, size, wall_us, batch.frame),
                ).lastrowid
                assert number is not None  # an INSERT that did not raise has a row id
                rows.append(
                    Row(
                        number, stream.id, stream.stream, epoch, self.incarnation,
                        batch.seq, batch.count, size, wall_us, batch.frame,
                    )
                )  # fmt: skip
                ends[stream.id] = batch.seq + batch.count - 1
            for stream_id, last in ends.items():
                connection.execute(
                    "INSERT INTO chain (stream_id, epoch, incarnation, last) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (stream_id, epoch) DO UPDATE SET last = excluded.last",
                    (stream_id, epoch, incarnation, last),
                )
        for stream_id, last in ends.items():
            self._by_id[stream_id].set_last(last)
        return rows

    def progress(
        self,
        sites: Mapping[str, Cursors],
        published: int,
        entries: Iterable[Entry],
        wall_us: int,
        mono_us: int,
        positions: Mapping[tuple[int, str], Position] | None = None,
        proofs: Proofs | None = None,
    ) -> None:
        """Store the progress of sites, the row below which everything is published, and, by stream id and group, the
        positions of groups and the sites where they are proven."""
        with self.journal.transaction(self._db, entries, wall_us, mono_us) as connection:
            for name, cursors in sites.items():
                known = self._sites.get(name)
                if cursors != known:
                    _write_cursors(connection, name, cursors, known is None or bool(known.parked))
            put_meta(connection, "published", str(published))
            if positions:
                write_positions(connection, positions)
            if proofs:
                write_proofs(connection, proofs)
        self._sites.update(sites)

    def name_groups(
        self,
        members: Mapping[tuple[int, str], Member | None],
        entries: Iterable[Entry],
        wall_us: int,
        mono_us: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Add groups to streams, by stream id and group, or (None) remove them. `settings` is for other processes that
        inspect or drain the outbox: when batches are released (``release``), and at which sites groups have to be
        proven (``proves_at``)."""
        with self.journal.transaction(self._db, entries, wall_us, mono_us) as connection:
            write_members(connection, members)
            for name, value in (settings or {}).items():
                put_meta(connection, name, value)

    def note_lacking(self, gaps: Iterable[tuple[Stream, str, tuple[int, int, int]]]) -> None:
        """Store the gaps that hold groups up (epoch, first and last number), for processes that inspect the file."""
        text = json.dumps([[group, stream.topic, stream.partition, *gap] for stream, group, gap in gaps])
        with self._db.transaction() as connection:
            put_meta(connection, "lacking", text)

    def offer(self) -> None:
        """Record that any batch may be sent from now on, so that none can be moved to another epoch."""
        with self._db.transaction() as connection:
            put_meta(connection, "offered", str(self.epoch))
        self.offered = self.epoch

    def note_surpassed(self, epoch: int) -> None:
        """Store that a named group has entered an epoch that is not part of this history."""
        with self._db.transaction() as connection:
            put_meta(connection, "surpassed_by", str(epoch))
        self.surpassed_by = epoch

    def next_epoch(self) -> None:
        """Begin another epoch, for messages published from now on."""
        with self._db.transaction() as connection:
            put_meta(connection, "epoch", str(self.epoch + 1))
        self.epoch += 1
        with self._db.reading() as connection:
            for row in self.streams.values():
                row.set_prev(self._previous(connection, row.id))
                row.set_last(0)

    def renumber(self, above: int, reencode: Reencode, wall_us: int, mono_us: int) -> dict[int, int]:
        """Give numbers above `above` to the current epoch and to all earlier epochs whose batches this file never
        offered. Batches of earlier openings are marked as moved (:data:`~reliamsg.wire.data.FLAG_MOVED`).

        Returns the new numbers by old number, in order, the current epoch last. Row ids, sequence numbers and
        incarnations stay. The caller must not have used the old epochs elsewhere.
        """
        with self._db.reading() as connection:
            found = connection.execute(
                "SELECT DISTINCT epoch FROM chain WHERE epoch > ? UNION SELECT ? ORDER BY 1",
                (self.offered, self.epoch),
            ).fetchall()
        base = self._epoch_above(max(above, self.epoch))
        epochs = {old: base + number for number, (old,) in enumerate(found)}
        entries: list[Entry] = []
        with self.journal.transaction(self._db, entries, wall_us, mono_us) as connection:
            streams = {row.id: row.stream for row in self.streams.values()}
            entries += renumber(connection, streams, epochs, self._own_from, reencode)
            put_meta(connection, "epoch", str(epochs[self.epoch]))
        self.epoch = epochs[self.epoch]
        self._own_from = epochs.get(self._own_from, self._own_from)
        with self._db.reading() as connection:
            for row in self.streams.values():
                row.set_prev(self._previous(connection, row.id))
        return epochs

    def take_out(
        self, stream_id: int, removed: RemovedRange, encode: EncodePart,
        describe: Callable[[Taken], tuple[Iterable[tuple[int, int]], Iterable[Entry]]], wall_us: int, mono_us: int,
    ) -> Taken:  # fmt: skip
        """Remove messages. `describe` returns, given the effect on their batches, all ranges of the epoch that are now
        removed, and the journal entries."""
        entries: list[Entry] = []
        with self.journal.transaction(self._db, entries, wall_us, mono_us) as connection:
            taken = take_out(connection, self._by_id[stream_id].stream, stream_id, removed, encode)
            ranges, described = describe(taken)
            replace_removed(connection, stream_id, removed.epoch, ranges)
            entries += described
        return taken

    def trim_chain(self, stream_id: int, below: int) -> None:
        """Forget the epochs of a stream before `below`."""
        with self._db.transaction() as connection:
            trim_chain(connection, stream_id, below)

    def forget_sites(self, names: Iterable[str]) -> None:
        """Delete the progress of sites that are no longer configured."""
        with self._db.transaction() as connection:
            gone = [(name,) for name in names]
            connection.executemany("DELETE FROM site WHERE name = ?", gone)
            connection.executemany("DELETE FROM proven WHERE site = ?", gone)
        self._sites.clear()

    def remove(self, ids: Sequence[int], entries: Iterable[Entry], wall_us: int, mono_us: int) -> None:
        """Delete rows."""
        with self.journal.transaction(self._db, entries, wall_us, mono_us) as connection:
            connection.executemany("DELETE FROM batch WHERE id = ?", [(number,) for number in ids])

    def note(self, entries: Iterable[Entry], wall_us: int, mono_us: int) -> None:
        """Write journal rows alone."""
        with self.journal.transaction(self._db, entries, wall_us, mono_us):
            pass

    # -- reading ------------------------------------------------------------------------------------------

    def site_cursors(self) -> dict[str, Cursors]:
        """The stored progress, by site."""
        with self._db.reading() as db:
            parked: dict[str, list[Parked]] = {}
            for name, *rest in db.execute("SELECT site, stream_id, cursor, attempts, reason FROM parked"):
                parked.setdefault(name, []).append(Parked(*rest))
            return {
                name: Cursors(cursor, parked.get(name, ()))
                for name, cursor in db.execute("SELECT name, cursor FROM site")
            }

    def published(self) -> int:
        """The row below which everything was published, as of the latest :meth:`progress`."""
        with self._db.reading() as connection:
            return int(get_meta(connection, "published", "1"))

    def bounds(self) -> tuple[int, int]:
        """The oldest stored row and the newest that was ever stored; (top + 1, top) where none is stored."""
        with self._db.reading() as db:
            first = db.execute("SELECT min(id) FROM batch").fetchone()[0]
            found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'batch'").fetchone()
            top = int(found[0]) if found is not None else 0
            return (int(first) if first is not None else top + 1), top

    def held(self) -> list[tuple[int, int]]:
        """All stored rows, as ranges of ids, first and last."""
        runs: list[tuple[int, int]] = []
        with self._db.reading() as connection:
            for (number,) in connection.execute("SELECT id FROM batch ORDER BY id"):
                if runs and number == runs[-1][1] + 1:
                    runs[-1] = (runs[-1][0], number)
                else:
                    runs.append((number, number))
        return runs

    def page(self, first: int, stream_id: int | None, max_bytes: int) -> list[Row]:
        """Rows from `first` on, in order, of one stream or (None) all, up to `max_bytes` (at least one if there is
        any).

        Raises :class:`StoreCorrupt` when one of them is damaged.
        """
        where, values = ("", ()) if stream_id is None else (" AND stream_id = ?", (stream_id,))
        rows: list[Row] = []
        size = 0
        with self._db.reading() as connection:
            found = connection.execute(
                f"SELECT {COLUMNS}, frame FROM batch WHERE id >= ?{where} ORDER BY id", (first, *values)
            )
            for columns in found:
                (row,) = self._rows([columns])
                rows.append(self._checked(row))
                size += row.size
                if size >= max_bytes:
                    break
            found.close()
        return rows

    def rows(self, first: int, last: int, limit: int) -> list[Row]:
        """At most `limit` of the rows `first` to `last`, without their frames."""
        with self._db.reading() as connection:
            found = connection.execute(
                f"SELECT {COLUMNS}, x'' FROM batch WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
                (first, last, limit),
            )
            return self._rows(found)

    def members(self) -> dict[int, dict[str, Member]]:
        """The named groups, by stream id and group."""
        with self._db.reading() as connection:
            return load_members(connection)

    def proofs(self) -> dict[tuple[str, int, str], bool]:
        """The groups that are proven at sites, by site, stream id and group, and whether their marks were seen."""
        with self._db.reading() as connection:
            return load_proofs(connection)

    def chain(self, stream_id: int) -> list[ChainRow]:
        """A stream's non-empty epochs, oldest first."""
        with self._db.reading() as connection:
            return load_chain(connection, stream_id)

    def removed(self) -> dict[int, list[RemovedRange]]:
        """The removed ranges, by stream id."""
        with self._db.reading() as connection:
            return load_removed(connection)

    def oldest(self, stream_id: int) -> Position | None:
        """Epoch and first number of the oldest batch of a stream; None where none is stored."""
        with self._db.reading() as connection:
            found = connection.execute(
                "SELECT epoch, seq FROM batch WHERE stream_id = ? ORDER BY epoch, seq LIMIT 1", (stream_id,)
            ).fetchone()
            return None if found is None else (int(found[0]), int(found[1]))

    def in_order(self, stream_id: int) -> Iterator[int]:
        """The ids of a stream's batches in the order of their epochs and numbers, read in pages."""
        at = (0, 0)
        while True:
            with self._db.reading() as connection:
                found = connection.execute(
                    "SELECT id, epoch, seq FROM batch WHERE stream_id = ? AND (epoch, seq) > (?, ?)"
                    " ORDER BY epoch, seq LIMIT ?",
                    (stream_id, *at, IN_ORDER_ROWS),
                ).fetchall()
            yield from (number for number, _, _ in found)
            if len(found) < IN_ORDER_ROWS:
                return
            at = found[-1][1:]

    def numbered(self, stream_id: int, epoch: int, first: int, last: int, max_bytes: int) -> list[Row]:
        """The batches that contain any of the numbers `first` to `last` of an epoch, by number, up to `max_bytes` (at
        least one if there is any).

        Raises :class:`StoreCorrupt` when one of them is damaged.
        """
        rows: list[Row] = []
        size = 0
        with self._db.reading() as connection:
            stream = self._by_id[stream_id].stream
            for row in rows_of(connection, stream, stream_id, epoch, first, last):
                rows.append(self._checked(row))
                size += row.size
                if size >= max_bytes:
                    break
        return rows

    def unsettled(self, stream_id: int, position: Position) -> int | None:
        """The lowest row of a stream that is not entirely before `position`; None where all stored rows are."""
        with self._db.reading() as db:
            found = db.execute(
                "SELECT max(seq) FROM batch WHERE stream_id = ? AND epoch = ? AND seq < ?",
                (stream_id, *position),
            ).fetchone()[0]
            # Answered from the index alone; in full, because messages behind a removed range have a later row.
            found = db.execute(
                "SELECT min(id) FROM batch WHERE stream_id = ? AND (epoch, seq) >= (?, ?)"
                " AND NOT (epoch = ? AND seq + count <= ?)",
                (stream_id, position[0], position[1] if found is None else found, *position),
            ).fetchone()[0]
            return None if found is None else int(found)

    def rows_of_stream(self, stream_id: int, first: int, limit: int) -> list[Row]:
        """At most `limit` of a stream's rows from `first` on, without their frames."""
        with self._db.reading() as connection:
            found = connection.execute(
                f"SELECT {COLUMNS}, x'' FROM batch WHERE stream_id = ? AND id >= ? ORDER BY id LIMIT ?",
                (stream_id, first, limit),
            )
            return self._rows(found)

    def gated(self) -> int | None:
        """The lowest row that was never offered; None where all were offered."""
        with self._db.reading() as connection:
            found = [
                connection.execute(
                    "SELECT min(id) FROM batch WHERE stream_id = ? AND epoch > ?", (row.id, self.offered)
                ).fetchone()[0]
                for row in self.streams.values()
            ]
        return min((int(number) for number in found if number is not None), default=None)

    def never_offered(self) -> int:
        """The lowest epoch of which nothing was offered: that of this opening or of an earlier one."""
        with self._db.reading() as connection:
            (found,) = connection.execute(
                "SELECT min(epoch) FROM chain WHERE epoch > ?", (self.offered,)
            ).fetchone()
        return self.epoch if found is None else int(found)

    def stream_ids(self, stream_id: int, first: int) -> list[int]:
        """The ids of a stream's rows from `first` on."""
        with self._db.reading() as connection:
            return [
                number
                for (number,) in connection.execute(
                    "SELECT id FROM batch WHERE stream_id = ? AND id >= ? ORDER BY id", (stream_id, first)
                )
            ]

    def totals(self, first: int = 0, last: int = 2**63 - 1) -> tuple[int, int]:
        """The numbers of messages and bytes in the rows `first` to `last`."""
        with self._db.reading() as connection:
            count, size = connection.execute(
                "SELECT coalesce(sum(count), 0), coalesce(sum(size), 0) FROM batch WHERE id BETWEEN ? AND ?",
                (first, last),
            ).fetchone()
            return int(count), int(size)

    def unconfirmed(self, cursors: Cursors) -> int:
        """The number of messages that a site has not confirmed."""
        count, _ = self.totals(cursors.cursor)
        with self._db.reading() as connection:
            for parked in cursors.parked:
                (more,) = connection.execute(
                    "SELECT coalesce(sum(count), 0) FROM batch WHERE stream_id = ? AND id >= ? AND id < ?",
                    (parked.stream_id, parked.cursor, cursors.cursor),
                ).fetchone()
                count += int(more)
        return count

    def _rows(self, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Rows with :data:`COLUMNS` and a frame."""
        return [
            Row(number, stream_id, self._by_id[stream_id].stream, epoch, int(incarnation, 16), *rest)
            for number, stream_id, epoch, incarnation, *rest in found
        ]

    def _checked(self, row: Row) -> Row:
        """Returns `row` if it agrees with its intact frame: a damaged one must not be sent."""
        try:
            frame = open_frame(row.frame)
            envelope = frame.envelope
            claimed = (envelope.stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.count)
            sound = frame.intact() and claimed == (row.stream, row.epoch, row.incarnation, row.seq, row.count)
        except FrameError:
            sound = False
        if not sound:
            raise StoreCorrupt(
                f"{self.path}: batch {row.id} ({row.stream}, {row.seq} to {row.last}) is damaged"
            )
        return row

    def _load_streams(self, db: sqlite3.Connection) -> dict[tuple[str, int], StreamRow]:
        return {
            (topic, partition): StreamRow(
                number, Stream(self.producer, topic, partition), self._previous(db, number)
            )
            for number, topic, partition in db.execute("SELECT id, topic, part FROM stream")
        }

    def _previous(self, db: sqlite3.Connection, stream_id: int) -> Prev | None:
        """A stream's newest non-empty epoch before the current one."""
        found = db.execute(
            "SELECT epoch, incarnation, last FROM chain WHERE stream_id = ? AND epoch < ? ORDER BY epoch DESC LIMIT 1",
            (stream_id, self.epoch),
        ).fetchone()
        return None if found is None else Prev(found[0], int(found[1], 16), found[2])


def _write_cursors(connection: sqlite3.Connection, name: str, cursors: Cursors, had_parked: bool) -> None:
    """Store the progress of a site. `had_parked`: rows of streams that were parked may have to be deleted."""
    connection.execute(
        "INSERT INTO site (name, cursor) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET cursor = excluded.cursor",
        (name, cursors.cursor),
    )
    if had_parked:
        connection.execute("DELETE FROM parked WHERE site = ?", (name,))
    if cursors.parked:
        connection.executemany(
            "INSERT INTO parked (site, stream_id, cursor, attempts, reason) VALUES (?, ?, ?, ?, ?)",
            [(name, p.stream_id, p.cursor, p.attempts, p.reason) for p in cursors.parked],
        )
