"""The outbox: what a producer published and may have to send, in one SQLite file.

One thread at a time uses an :class:`Outbox`. Every method is one transaction, fsynced when it returns, unless
it only reads. After an error nothing of it was stored (``OutboxWriteError``), or it is unknown and the outbox
must not be used again (``OutboxIndeterminate``).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reliamsg.errors import StoreCorrupt, StoreMismatch
from reliamsg.message import Prev, Stream
from reliamsg.store.database import PAGE_BYTES, Database, open_readonly
from reliamsg.store.exported import Exported
from reliamsg.store.journal import Entry, Journal
from reliamsg.wire.data import FrameError, open_frame

__all__ = [
    "Cursors",
    "NewBatch",
    "Outbox",
    "OutboxInfo",
    "Parked",
    "Row",
    "StreamRow",
    "inspect_outbox",
    "list_batches",
]

_COLUMNS = "id, stream_id, epoch, incarnation, seq, count, size, wall_us"


@dataclass(slots=True)
class StreamRow:
    """A stream of this outbox, and where it stands in the current epoch."""

    id: int
    stream: Stream
    prev: Prev | None
    """Its last non-empty epoch before the current one."""
    next_seq: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """A batch as the outbox holds it."""

    id: int
    stream_id: int
    stream: Stream
    epoch: int
    incarnation: int
    seq: int
    count: int
    size: int
    wall_us: int
    frame: bytes
    """Empty where it was not asked for."""

    @property
    def last(self) -> int:
        return self.seq + self.count - 1


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to store."""

    stream: StreamRow
    seq: int
    count: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Parked:
    """A stream that is parked at a site."""

    stream_id: int
    cursor: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cursors:
    """How far a site is, as it is stored."""

    cursor: int
    parked: Sequence[Parked] = ()


class Outbox:
    """An outbox file, owned. `epoch` and `incarnation` are this opening's, committed when it is
    constructed."""

    def __init__(
        self, path: str | os.PathLike[str], producer: str, wall_us: int, mono_us: int, boot: str
    ) -> None:
        self._db = Database(path, "outbox", producer)
        try:
            self.path = self._db.path
            self.producer = producer
            self.journal = Journal(boot)
            self.exported = Exported(self._db, self.journal)
            self.incarnation = int.from_bytes(os.urandom(8), "big")
            with self._db.transaction() as connection:
                stored = int(self._meta(connection, "epoch", "0"))
                self.epoch = max(stored + 1, wall_us // 1000)
                self._put_meta(connection, "epoch", str(self.epoch))
                self._put_meta(connection, "incarnation", f"{self.incarnation:016x}")
            with self._db.translated():
                self.streams = self._load_streams()
        except BaseException:
            self._db.close()
            raise
        self._by_id = {row.id: row for row in self.streams.values()}

    def close(self) -> None:
        """Close the file and give it up."""
        self._db.close()

    # -- storing ------------------------------------------------------------------------------------------

    def stream(self, topic: str, partition: int) -> StreamRow:
        """The row of a stream, made if there is none. (A transaction of its own: streams are few.)"""
        found = self.streams.get((topic, partition))
        if found is None:
            with self._db.transaction() as connection:
                cursor = connection.execute(
                    "INSERT INTO stream (topic, part) VALUES (?, ?)", (topic, partition)
                )
                number = cursor.lastrowid
            assert number is not None  # an INSERT that did not raise has a row id
            found = StreamRow(number, Stream(self.producer, topic, partition), None)
            self.streams[topic, partition] = self._by_id[number] = found
        return found

    def append(
        self, batches: Sequence[NewBatch], entries: Iterable[Entry], wall_us: int, mono_us: int
    ) -> list[Row]:
        """Store batches and what the journal says of them. On return they are on the disk."""
        rows: list[Row] = []
        epoch, incarnation = self.epoch, f"{self.incarnation:016x}"
        ends: dict[int, int] = {}
        adding = sum(len(batch.frame) + PAGE_BYTES for batch in batches)
        with self._written(entries, wall_us, mono_us, adding) as connection:
            for batch in batches:
                stream = batch.stream
                cursor = connection.execute(
                    "INSERT INTO batch (stream_id, epoch, incarnation, seq, count, size, wall_us, frame)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        stream.id,
                        epoch,
                        incarnation,
                        batch.seq,
                        batch.count,
                        len(batch.frame),
                        wall_us,
                        batch.frame,
                    ),
                )
                number = cursor.lastrowid
                assert number is not None  # an INSERT that did not raise has a row id
                rows.append(
                    Row(
                        number, stream.id, stream.stream, epoch, self.incarnation,
                        batch.seq, batch.count, len(batch.frame), wall_us, batch.frame,
                    )
                )  # fmt: skip
                ends[stream.id] = batch.seq + batch.count - 1
            connection.executemany(
                "INSERT INTO chain (stream_id, epoch, incarnation, last) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (stream_id, epoch) DO UPDATE SET last = excluded.last",
                [(stream_id, epoch, incarnation, last) for stream_id, last in ends.items()],
            )
        for stream_id, last in ends.items():
            self._by_id[stream_id].next_seq = last + 1
        return rows

    def progress(
        self,
        sites: Mapping[str, Cursors],
        published: int,
        entries: Iterable[Entry],
        wall_us: int,
        mono_us: int,
    ) -> None:
        """Store how far each site is, and below which row everything is published."""
        with self._written(entries, wall_us, mono_us) as connection:
            for name, cursors in sites.items():
                connection.execute(
                    "INSERT INTO site (name, cursor) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET cursor = excluded.cursor",
                    (name, cursors.cursor),
                )
                connection.execute("DELETE FROM parked WHERE site = ?", (name,))
                connection.executemany(
                    "INSERT INTO parked (site, stream_id, cursor, attempts, reason) VALUES (?, ?, ?, ?, ?)",
                    [(name, p.stream_id, p.cursor, p.attempts, p.reason) for p in cursors.parked],
                )
            self._put_meta(connection, "published", str(published))

    def remember_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Keep, by topic, which groups the producer names: for whoever drains the outbox in its place, and since
        the row that tells of its opening may leave with the journal."""
        with self._db.transaction() as connection:
            text = json.dumps({topic: list(names) for topic, names in groups.items()})
            self._put_meta(connection, "groups", text)

    def forget_sites(self, names: Iterable[str]) -> None:
        """Drop the cursors of sites that are not named any more."""
        with self._db.transaction() as connection:
            connection.executemany("DELETE FROM site WHERE name = ?", [(name,) for name in names])

    def remove(self, ids: Sequence[int], entries: Iterable[Entry], wall_us: int, mono_us: int) -> None:
        """Delete rows."""
        with self._written(entries, wall_us, mono_us) as connection:
            connection.executemany("DELETE FROM batch WHERE id = ?", [(number,) for number in ids])

    def note(self, entries: Iterable[Entry], wall_us: int, mono_us: int) -> None:
        """Write journal rows alone."""
        with self._written(entries, wall_us, mono_us):
            pass

    @contextlib.contextmanager
    def _written(  # type: ignore[no-untyped-def]
        self, entries: Iterable[Entry], wall_us: int, mono_us: int, adding: int = 0
    ):
        """A transaction with journal rows in it."""
        committed = False
        try:
            with self._db.transaction(adding) as connection:
                yield connection
                self.journal.write(connection, entries, wall_us, mono_us)
            committed = True
        finally:
            self.journal.settle(committed)

    # -- reading ------------------------------------------------------------------------------------------

    def site_cursors(self) -> dict[str, Cursors]:
        """Every site that this outbox knows."""
        with self._db.translated():
            db = self._db.connection
            parked: dict[str, list[Parked]] = {}
            for name, *rest in db.execute("SELECT site, stream_id, cursor, attempts, reason FROM parked"):
                parked.setdefault(name, []).append(Parked(*rest))
            return {
                name: Cursors(cursor, parked.get(name, ()))
                for name, cursor in db.execute("SELECT name, cursor FROM site")
            }

    def published(self) -> int:
        """Below this row everything was published, as of the latest :meth:`progress`."""
        with self._db.translated():
            return int(self._meta(self._db.connection, "published", "1"))

    def bounds(self) -> tuple[int, int]:
        """The oldest row that is held and the newest that ever was; (top + 1, top) where none is held."""
        with self._db.translated():
            db = self._db.connection
            first = db.execute("SELECT min(id) FROM batch").fetchone()[0]
            found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'batch'").fetchone()
            top = int(found[0]) if found is not None else 0
            return (int(first) if first is not None else top + 1), top

    def page(self, first: int, stream_id: int | None, max_bytes: int) -> list[Row]:
        """Rows from `first` on, in order, of one stream or (None) all: at least one if there is any.

        Raises :class:`StoreCorrupt` when one of them is not what was stored.
        """
        where, values = ("", ()) if stream_id is None else (" AND stream_id = ?", (stream_id,))
        rows: list[Row] = []
        size = 0
        with self._db.translated():
            found = self._db.connection.execute(
                f"SELECT {_COLUMNS}, frame FROM batch WHERE id >= ?{where} ORDER BY id", (first, *values)
            )
            for values_found in found:
                rows.append(self._checked(self._row(*values_found)))
                size += rows[-1].size
                if size >= max_bytes:
                    break
            found.close()
        return rows

    def rows(self, first: int, last: int, limit: int) -> list[Row]:
        """The rows `first` to `last` without their frames, at most `limit` of them."""
        with self._db.translated():
            found = self._db.connection.execute(
                f"SELECT {_COLUMNS}, x'' FROM batch WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
                (first, last, limit),
            )
            return [self._row(*values) for values in found]

    def stream_ids(self, stream_id: int, first: int) -> list[int]:
        """The ids of a stream's rows from `first` on."""
        with self._db.translated():
            return [
                number
                for (number,) in self._db.connection.execute(
                    "SELECT id FROM batch WHERE stream_id = ? AND id >= ? ORDER BY id", (stream_id, first)
                )
            ]

    def totals(self, first: int = 0, last: int = 2**63 - 1) -> tuple[int, int]:
        """Messages and bytes of the rows `first` to `last`."""
        with self._db.translated():
            count, size = self._db.connection.execute(
                "SELECT coalesce(sum(count), 0), coalesce(sum(size), 0) FROM batch WHERE id BETWEEN ? AND ?",
                (first, last),
            ).fetchone()
            return int(count), int(size)

    def _row(
        self, number: int, stream_id: int, epoch: int, incarnation: str, seq: int, count: int, size: int,
        wall_us: int, frame: bytes,
    ) -> Row:  # fmt: skip
        stream = self._by_id[stream_id].stream
        return Row(number, stream_id, stream, epoch, int(incarnation, 16), seq, count, size, wall_us, frame)

    def _checked(self, row: Row) -> Row:
        """`row`, if its frame is what was stored: a damaged one must not be sent."""
        try:
            sound = open_frame(row.frame).intact()
        except FrameError:
            sound = False
        if not sound:
            raise StoreCorrupt(
                f"{self.path}: batch {row.id} ({row.stream}, {row.seq} to {row.last}) is damaged"
            )
        return row

    def _load_streams(self) -> dict[tuple[str, int], StreamRow]:
        db = self._db.connection
        found: dict[tuple[str, int], StreamRow] = {}
        for number, topic, partition in db.execute("SELECT id, topic, part FROM stream"):
            prev = db.execute(
                "SELECT epoch, incarnation, last FROM chain WHERE stream_id = ? ORDER BY epoch DESC LIMIT 1",
                (number,),
            ).fetchone()
            known = None if prev is None else Prev(prev[0], int(prev[1], 16), prev[2])
            found[topic, partition] = StreamRow(number, Stream(self.producer, topic, partition), known)
        return found

    @staticmethod
    def _meta(connection: sqlite3.Connection, name: str, default: str) -> str:
        found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if found is None else str(found[0])

    @staticmethod
    def _put_meta(connection: sqlite3.Connection, name: str, value: str) -> None:
        connection.execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )


@dataclass(frozen=True)
class OutboxInfo:
    """What an outbox holds, as seen from outside."""

    producer: str
    epoch: int
    batches: int
    messages: int
    bytes: int
    oldest_us: int | None
    """When the oldest batch was stored, in µs since 1970."""
    unpublished: int
    """Messages above the published cursor: at least those whose confirm policy is not met."""
    sites: dict[str, int]
    """Messages that each site has not confirmed, as of the latest stored cursor."""
    parked: list[tuple[str, str, str]]
    """(site, stream, reason)"""
    groups: dict[str, list[str]]
    """By topic, the groups that the producer named when it was opened last."""


def inspect_outbox(path: str | os.PathLike[str]) -> OutboxInfo:
    """Look at an outbox without touching it, also while its owner runs."""
    with contextlib.closing(_readonly(path)) as db:
        meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
        batches, messages, size, oldest = db.execute(
            "SELECT count(*), coalesce(sum(count), 0), coalesce(sum(size), 0), min(wall_us) FROM batch"
        ).fetchone()
        published = int(meta.get("published", "1"))
        above = "SELECT coalesce(sum(count), 0) FROM batch WHERE id >= ?"
        sites = {}
        for name, cursor in db.execute("SELECT name, cursor FROM site ORDER BY name").fetchall():
            behind = db.execute(above, (cursor,)).fetchone()[0]
            behind += db.execute(
                "SELECT coalesce(sum(b.count), 0) FROM batch b JOIN parked p ON b.stream_id = p.stream_id"
                " WHERE p.site = ? AND b.id >= p.cursor AND b.id < ?",
                (name, cursor),
            ).fetchone()[0]
            sites[name] = int(behind)
        parked = db.execute(
            "SELECT p.site, s.topic, p.reason FROM parked p JOIN stream s ON s.id = p.stream_id ORDER BY 1, 2"
        ).fetchall()
        unpublished = db.execute(above, (published,)).fetchone()[0]
    return OutboxInfo(
        meta["owner"],
        int(meta.get("epoch", "0")),
        batches,
        messages,
        size,
        oldest,
        unpublished,
        sites,
        parked,
        json.loads(meta.get("groups", "{}")),
    )


def list_batches(path: str | os.PathLike[str], limit: int) -> list[Row]:
    """The oldest batches of an outbox, without their frames, also while its owner runs."""
    with contextlib.closing(_readonly(path)) as db:
        owner = db.execute("SELECT value FROM meta WHERE name = 'owner'").fetchone()[0]
        found = db.execute(
            "SELECT b.id, b.stream_id, s.topic, s.part, b.epoch, b.incarnation, b.seq, b.count, b.size, b.wall_us"
            " FROM batch b JOIN stream s ON s.id = b.stream_id ORDER BY b.id LIMIT ?",
            (limit,),
        ).fetchall()
    return [
        Row(
            number,
            stream_id,
            Stream(owner, topic, part),
            epoch,
            int(incarnation, 16),
            seq,
            count,
            size,
            wall,
            b"",
        )
        for number, stream_id, topic, part, epoch, incarnation, seq, count, size, wall in found
    ]


def _readonly(path: str | os.PathLike[str]) -> sqlite3.Connection:
    connection = open_readonly(path)
    if connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'batch'").fetchone()[0] != 1:
        connection.close()
        raise StoreMismatch(f"{path}: this is an inbox, not an outbox")
    return connection
