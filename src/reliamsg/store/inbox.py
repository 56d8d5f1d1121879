"""The inbox: the messages that a group has received, and its progress.

A commit writes one :class:`Batch` in one transaction, together with its journal entries. One thread at a time uses an
:class:`Inbox`.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from reliamsg.errors import StoreCorrupt
from reliamsg.message import Gap, Prev, Stream
from reliamsg.store.database import PAGE_BYTES, Connect, Database, get_meta, put_meta
from reliamsg.store.exported import Exported
from reliamsg.store.inbox_rows import (
    Batch,
    EpochRow,
    GapRow,
    HeldFrame,
    History,
    SavedStream,
    Span,
    Standing,
    Tombstone,
)
from reliamsg.store.quarantine import QuarantinedDelivery, QuarantineRows

__all__ = ["MAX_QUARANTINED_FRAME", "Inbox", "QuarantineChange"]

MAX_QUARANTINED_FRAME = 256 * 1024
"""Samples of unusable messages are truncated to this size."""
STATES_RESERVED = 2**18
"""State numbers reserved at a time. They begin with the wall clock in µs, so this is a quarter of a second of it: an
opening may begin that far ahead of the clock, if another one began just before."""


_UNSETTLED = (
    "SELECT id FROM stream WHERE producer = ''"
    " UNION SELECT stream_id FROM epoch"
    " WHERE settled != '[]' OR high_water > position OR last IS NOT NULL OR NOT entered OR let_go >= position"
    " UNION SELECT stream_id FROM held UNION SELECT stream_id FROM gap UNION SELECT stream_id FROM attempt"
)


class QuarantineChange(NamedTuple):
    """Deliveries that a commit did not store in the quarantine, or deleted from it."""

    known: list[QuarantinedDelivery]
    """Already stored, from another site or an earlier connection."""
    removed: list[QuarantinedDelivery]


class _StreamIds(dict[Stream, int]):
    """The row ids of streams in memory. Within a commit, an unknown id is read, or its row is created."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: sqlite3.Connection | None = None
        self._added: list[Stream] = []
        self._tombstones = False
        self.tombstones_dropped = 0
        """Tombstones that this commit deletes because their streams are known again."""

    def begin(self, connection: sqlite3.Connection, tombstones: bool) -> None:
        """Begin a commit. `tombstones`: whether any stream has one."""
        self._connection, self._tombstones, self.tombstones_dropped = connection, tombstones, 0
        self._added.clear()

    def undo(self) -> None:
        """Forget the ids that the failed commit added."""
        for stream in self._added:
            self.pop(stream, None)

    def __missing__(self, stream: Stream) -> int:
        connection = self._connection
        if connection is None:
            raise KeyError(stream)
        row = connection.execute(
            "SELECT id FROM stream WHERE producer = ? AND topic = ? AND part = ?", stream
        ).fetchone()
        if row is None:
            row = connection.execute(
                "INSERT INTO stream (producer, topic, part, history) VALUES (?, ?, ?, '{}') RETURNING id",
                stream,
            ).fetchone()
            if self._tombstones:
                self.tombstones_dropped += connection.execute(
                    "DELETE FROM tombstone WHERE producer = ? AND topic = ? AND part = ?", stream
                ).rowcount
        found = self[stream] = int(row[0])
        self._added.append(stream)
        return found


class Inbox:
    """A group's inbox, owned and open for writing.

    Raises the same errors as :class:`~reliamsg.store.database.Database`. `id` identifies this file permanently, `boot`
    this opening of it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str,
        connect: Connect = sqlite3.connect,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._database = Database(path, "inbox", group, connect)
        self.random_bytes = random_bytes
        self.path: Path = self._database.path
        self.boot: str = random_bytes(8).hex()
        self._ids = _StreamIds()
        self._held_change: Counter[int] = Counter()
        """By stream id, the change in bytes of held frames by the commit that is being written."""
        try:
            self.exported: Exported = Exported(self._database, self.boot)
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO meta (name, value) VALUES ('inbox_id', ?)",
                    (random_bytes(8).hex(),),
                )
            with self._database.reading() as connection:
                self.id: str = get_meta(connection, "inbox_id", "")
                self.standing = self._load_standing(connection)
                self.takeovers: int = int(get_meta(connection, "takeovers", "0"))
                self.untold: list[Gap] = self._load_untold(connection)
                self._held_by_id = Counter(
                    dict(connection.execute("SELECT stream_id, sum(size) FROM held GROUP BY stream_id"))
                )
            self.quarantine: QuarantineRows = QuarantineRows(self._database)
            self.held_bytes: int = self._held_by_id.total()
            self.dead_letter_count: int = self._number("SELECT count(*) FROM dead_letter")
            self._has_attempts = bool(self._number("SELECT EXISTS (SELECT 1 FROM attempt)"))
            self.tombstone_count: int = self._number("SELECT count(*) FROM tombstone")
            self.late_count: int = self._number("SELECT count(*) FROM late")
            self.late_bytes: int = self._number("SELECT coalesce(sum(size), 0) FROM late")
        except BaseException:
            self._database.close()
            raise

    def _number(self, sql: str) -> int:
        with self._database.reading() as connection:
            return int(connection.execute(sql).fetchone()[0])

    def _load_standing(self, connection: sqlite3.Connection) -> Standing:
        found = get_meta(connection, "standing", "")
        if found not in get_args(Standing):
            raise StoreCorrupt(f"{self.path}: unknown standing {found!r}")
        return cast(Standing, found)

    def _load_untold(self, connection: sqlite3.Connection) -> list[Gap]:
        try:
            return msgspec.json.decode(get_meta(connection, "untold", "[]"), type=list[Gap])
        except msgspec.DecodeError as error:
            raise StoreCorrupt(f"{self.path}: gaps to report: {error}") from None

    def close(self) -> None:
        self._database.close()

    # -- writing ------------------------------------------------------------------------------------------

    def reserve_states(self, wall_us: int) -> int:
        """Durably reserves the :data:`STATES_RESERVED` numbers after the returned one for the states of this opening;
        commits reserve more (:attr:`Batch.states_until`). They are above the numbers of every earlier opening even if
        the wall clock (µs since 1970) was set back; the clock decides where the file is new or an older copy, which
        does not record the latest numbers.

        Raises the same errors as :meth:`commit`.
        """
        with self._database.transaction() as connection:
            begin = max(wall_us, int(get_meta(connection, "states_reserved", "0")))
            put_meta(connection, "states_reserved", str(begin + STATES_RESERVED))
        return begin

    def note_clock(self, wall_us: int) -> int:
        """Stores and returns the latest wall clock reading (µs since 1970) of all openings of this inbox.

        Raises the same errors as :meth:`commit`.
        """
        with self._database.transaction() as connection:
            latest = max(wall_us, int(get_meta(connection, "clock_us", "0")))
            put_meta(connection, "clock_us", str(latest))
        return latest

    def commit(
        self, batch: Batch, wall_us: int, mono_us: int, before_commit: Callable[[], None] | None = None
    ) -> QuarantineChange:
        """Write `batch` durably, in full or not at all. Returns the deliveries that use no room in the quarantine.

        Raises :class:`InboxWriteError` (nothing was written; a retry may succeed), :class:`InboxIndeterminate` or
        :class:`StoreCorrupt`.
        """
        self._held_change.clear()
        known: list[QuarantinedDelivery] = []
        gone: list[QuarantinedDelivery] = []
        late = revived = adding = 0
        for frames in (batch.held, batch.quarantined):
            for one in frames:
                adding += len(one.frame) + PAGE_BYTES
        try:
            with self.exported.journal.transaction(
                self._database, batch.entries, wall_us, mono_us, adding
            ) as connection:
                self._ids.begin(connection, bool(self.tombstone_count))
                if batch.standing not in (None, self.standing):
                    put_meta(connection, "standing", batch.standing)
                if batch.untold or self.untold:
                    put_meta(connection, "untold", msgspec.json.encode(batch.untold).decode())
                if batch.states_until:
                    put_meta(connection, "states_reserved", str(batch.states_until))
                if batch.takeovers > self.takeovers:
                    put_meta(connection, "takeovers", str(batch.takeovers))
                self._write_streams(connection, batch)
                self._write_epochs(connection, batch, wall_us)
                if batch.held or batch.discarded or batch.late or batch.seen_late:
                    late = self._write_frames(connection, batch)
                if batch.dead or batch.quarantine or batch.revived:
                    revived = self._write_dead_letters(connection, batch, wall_us)
                if batch.quarantined or batch.unquarantined:
                    known, gone = self.quarantine.write(connection, batch.quarantined, batch.unquarantined)
                if batch.forgotten:
                    self._forget(connection, batch.forgotten)
                self._mark_journalled(connection, batch)
                if before_commit is not None:
                    before_commit()
        except BaseException:
            self._ids.undo()
            raise
        self.tombstone_count -= self._ids.tombstones_dropped
        if batch.forgotten:
            self.tombstone_count += sum(left is not None for _, left in batch.forgotten)
            self.drop_ids([stream for stream, _ in batch.forgotten])
        self.untold = batch.untold
        self.standing = self.standing if batch.standing is None else batch.standing
        self.takeovers = max(self.takeovers, batch.takeovers)
        for stream_id, change in self._held_change.items():
            self.held_bytes += change
            self._held_by_id[stream_id] += change
            if not self._held_by_id[stream_id]:
                del self._held_by_id[stream_id]
        self.late_bytes += late
        self.dead_letter_count += len(batch.dead) - revived
        self.late_count += len(batch.late) - len(batch.seen_late)
        if batch.quarantined or gone:
            self.quarantine.committed(batch.quarantined, known, gone)
        return QuarantineChange(known, gone)

    def _forget(
        self, connection: sqlite3.Connection, forgotten: Sequence[tuple[Stream, Tombstone | None]]
    ) -> None:
        for stream, left in forgotten:
            number = self._ids[stream]
            for table in ("epoch", "gap", "attempt"):
                connection.execute(f"DELETE FROM {table} WHERE stream_id = ?", (number,))
            connection.execute("DELETE FROM stream WHERE id = ?", (number,))
            if left is None:
                continue
            row = left.epoch
            connection.execute(
                "INSERT INTO tombstone (producer, topic, part, epoch, incarnation, position, high_water, journalled,"
                " joined_epoch, joined_first, history) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *stream, row.epoch, f"{row.incarnation:016x}", row.position, row.high_water, row.journalled,
                    *(left.joined or (None, None)), msgspec.json.encode(left.history).decode(),
                ),
            )  # fmt: skip

    def _write_streams(self, connection: sqlite3.Connection, batch: Batch) -> None:
        ids = self._ids
        for row in batch.streams:
            connection.execute(
                "UPDATE stream SET joined_epoch = ?, joined_first = ?, history = ? WHERE id = ?",
                (*(row.joined or (None, None)), msgspec.json.encode(row.history).decode(), ids[row.stream]),
            )
        for gap in batch.gaps:
            connection.execute(
                "INSERT INTO gap (stream_id, epoch, first, last, elapsed_s, waited_s) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (stream_id) DO UPDATE SET epoch = excluded.epoch, first = excluded.first,"
                " last = excluded.last, elapsed_s = excluded.elapsed_s, waited_s = excluded.waited_s",
                (ids[gap.stream], gap.epoch, gap.first, gap.last, gap.elapsed_s, gap.waited_s),
            )
        for stream in batch.no_gap:
            connection.execute("DELETE FROM gap WHERE stream_id = ?", (ids[stream],))

    def _mark_journalled(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Store the end of the journal's rows about deliveries. After a crash the rows about redeliveries end there
        too, so that the digest sums of both can be compared."""
        ends: dict[tuple[Stream, int], int] = {}
        for entry in batch.entries:
            if entry.kind in ("delivered", "redelivered") and entry.stream is not None:
                key = (entry.stream, entry.epoch)
                ends[key] = max(entry.last, ends.get(key, 0))
        for (stream, epoch), last in ends.items():
            connection.execute(
                "UPDATE epoch SET journalled = max(journalled, ?) WHERE stream_id = ? AND epoch = ?",
                (last, self._ids[stream], epoch),
            )

    def _write_epochs(self, connection: sqlite3.Connection, batch: Batch, wall_us: int) -> None:
        ids = self._ids
        for row in batch.epochs:
            stream_id = ids[row.stream]
            prev = row.prev
            connection.execute(
                "INSERT INTO epoch (stream_id, epoch, incarnation, prev_epoch, prev_incarnation, prev_last, position,"
                " high_water, settled, last, entered, let_go, used_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (stream_id, epoch) DO UPDATE SET position = excluded.position,"
                " high_water = excluded.high_water, settled = excluded.settled, last = excluded.last,"
                " entered = excluded.entered, let_go = excluded.let_go,"
                " used_us = CASE WHEN excluded.position = position THEN used_us ELSE excluded.used_us END",
                (
                    stream_id, row.epoch, f"{row.incarnation:016x}",
                    prev.epoch if prev else None, f"{prev.incarnation:016x}" if prev else None,
                    prev.last if prev else None,
                    row.position, row.high_water, msgspec.json.encode(row.settled).decode(), row.last, row.entered,
                    row.let_go, wall_us,
                ),
            )  # fmt: skip
            if self.held_bytes:
                self._drop_held(connection, stream_id, row.epoch, 0, row.position - 1)
            if self._has_attempts:
                connection.execute(
                    "DELETE FROM attempt WHERE stream_id = ? AND epoch = ? AND seq < ?",
                    (stream_id, row.epoch, row.position),
                )
        for stream, epoch in batch.finished:
            key = (ids[stream], epoch)
            if self.held_bytes:
                self._drop_held(connection, *key, 0, 2**63 - 1)
            connection.execute("DELETE FROM attempt WHERE stream_id = ? AND epoch = ?", key)
            connection.execute("DELETE FROM epoch WHERE stream_id = ? AND epoch = ?", key)
        self._has_attempts |= bool(batch.attempts)
        for stream, *rest in batch.attempts:
            connection.execute(
                "INSERT INTO attempt (stream_id, epoch, seq, attempts) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET attempts = excluded.attempts",
                (ids[stream], *rest),
            )

    def _drop_held(
        self, connection: sqlite3.Connection, stream_id: int, epoch: int, low: int, high: int
    ) -> None:
        for (size,) in connection.execute(
            "DELETE FROM held WHERE stream_id = ? AND epoch = ? AND last BETWEEN ? AND ? RETURNING size",
            (stream_id, epoch, low, high),
        ).fetchall():
            self._held_change[stream_id] -= size

    def _write_frames(self, connection: sqlite3.Connection, batch: Batch) -> int:
        """Held and late frames. Returns the number of bytes by which the late frames grew."""
        ids, grown = self._ids, 0
        for frame in batch.held:
            self._held_change[ids[frame.stream]] += len(frame.frame)
        for stream, epoch, first, last in batch.discarded:
            if self.held_bytes:
                self._drop_held(connection, ids[stream], epoch, first, last)
        for table, frames in (("held", batch.held), ("late", batch.late)):
            connection.executemany(
                f"INSERT INTO {table} (stream_id, epoch, first, last, size, site, received_us, frame)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (ids[f.stream], f.epoch, f.first, f.last, len(f.frame), f.site, f.received_us, f.frame)
                    for f in frames
                ],
            )
        grown += sum(len(frame.frame) for frame in batch.late)
        for number in batch.seen_late:
            for (size,) in connection.execute(
                "DELETE FROM late WHERE id = ? RETURNING size", (number,)
            ).fetchall():
                grown -= size
        return grown

    def _write_dead_letters(self, connection: sqlite3.Connection, batch: Batch, wall_us: int) -> int:
        """Dead letters, and samples of unusable deliveries. Returns the number of dead letters that were deleted."""
        connection.executemany(
            "INSERT INTO dead_letter (stream_id, epoch, incarnation, seq, key, headers, body, reason, attempts,"
            " wall_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    self._ids[d.stream], d.epoch, f"{d.incarnation:016x}", d.seq, d.key,
                    msgspec.json.encode(d.headers).decode(), d.body, d.reason, d.attempts, d.wall_us,
                )
                for d in batch.dead
            ],
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO quarantine (wall_us, site, address, reason, size, frame) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (wall_us, q.site, q.address, q.reason, len(q.frame), q.frame[:MAX_QUARANTINED_FRAME])
                for q in batch.quarantine
            ],
        )
        deleted = [(number,) for number in batch.revived]
        return connection.executemany("DELETE FROM dead_letter WHERE id = ?", deleted).rowcount

    # -- reading ------------------------------------------------------------------------------------------

    def quarantined(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Samples of unusable messages: by site and address, their number and bytes."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT site, address, count(*), sum(length(frame)) FROM quarantine GROUP BY site, address"
            ).fetchall()
        return {(site, address): (count, size) for site, address, count, size in rows}

    def load(self) -> list[SavedStream]:
        """All streams, as of the last commit."""
        return self._load("1")

    def load_unsettled(self) -> list[SavedStream]:
        """The streams that are not entirely settled, or not in the state of a clean shutdown."""
        return self._load(f"id IN ({_UNSETTLED})")

    def load_tombstones(self, streams: Sequence[Stream]) -> list[SavedStream]:
        """Those of these streams that have a tombstone."""
        if not self.tombstone_count:
            return []
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT producer, topic, part, epoch, incarnation, position, high_water, journalled, joined_epoch,"
                f" joined_first, history FROM {_wanted('tombstone')}",
                (_names(streams),),
            ).fetchall()
        found: list[SavedStream] = []
        for *name, epoch, incarnation, position, high_water, journalled, joined, first, history in rows:
            stream = Stream(*name)
            row = EpochRow(
                stream, epoch, int(incarnation, 16), None, position, high_water, [], None, True, journalled
            )
            known = msgspec.json.decode(history, type=History)
            found.append(
                SavedStream(stream, None if joined is None else (joined, first), known, [row], [], None, [])
            )
        return found

    def streams_with_leftovers(self, streams: Sequence[Stream]) -> set[Stream]:
        """Those of these streams that have dead letters, or late messages that the application has not seen."""
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT producer, topic, part FROM {_wanted('stream')}"
                " WHERE stream.id IN (SELECT stream_id FROM dead_letter UNION SELECT stream_id FROM late)",
                (_names(streams),),
            ).fetchall()
        return {Stream(*row) for row in rows}

    def load_some(self, streams: Sequence[Stream]) -> list[SavedStream]:
        """Those of these streams that are known."""
        return self._load(f"id IN (SELECT stream.id FROM {_wanted('stream')})", _names(streams))

    def held_bytes_of(self, stream: Stream) -> int:
        """The part of `held_bytes` that belongs to a stream in memory."""
        stream_id = self._ids.get(stream)
        return 0 if stream_id is None else self._held_by_id.get(stream_id, 0)

    def knows(self, stream: Stream) -> bool:
        """Whether a stream in memory has a row."""
        return stream in self._ids

    def drop_ids(self, streams: Sequence[Stream]) -> None:
        """Forget the row ids of streams that are no longer in memory."""
        for stream in streams:
            self._ids.pop(stream, None)

    @property
    def stream_count(self) -> int:
        """The number of known streams."""
        return self._number("SELECT count(*) FROM stream")

    @property
    def highest_epoch(self) -> int:
        """The highest epoch of all streams."""
        return self._number("SELECT coalesce(max(epoch), 0) FROM epoch")

    def _load(self, where: str, *values: object) -> list[SavedStream]:
        found: list[SavedStream] = []
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT id, producer, topic, part, joined_epoch, joined_first, history FROM stream"
                f" WHERE {where} ORDER BY id",
                values,
            ).fetchall()
            for stream_id, producer, topic, part, joined_epoch, joined_first, history in rows:
                stream = Stream(producer, topic, part)
                self._ids[stream] = stream_id
                gap = connection.execute(
                    "SELECT epoch, first, last, elapsed_s, waited_s FROM gap WHERE stream_id = ?",
                    (stream_id,),
                ).fetchone()
                held = connection.execute(
                    "SELECT epoch, first, last FROM held WHERE stream_id = ? ORDER BY epoch, last",
                    (stream_id,),
                ).fetchall()
                attempts = connection.execute(
                    "SELECT epoch, seq, attempts FROM attempt WHERE stream_id = ?", (stream_id,)
                ).fetchall()
                found.append(
                    SavedStream(
                        stream,
                        None if joined_epoch is None else (joined_epoch, joined_first),
                        msgspec.json.decode(history, type=History),
                        _epochs(connection, stream, stream_id),
                        held,
                        None if gap is None else GapRow(stream, *gap),
                        attempts,
                    )
                )
        return found

    def page(self, stream: Stream, epoch: int, first: int, max_bytes: int) -> list[HeldFrame]:
        """Held frames from the one that contains `first` on, in order, up to `max_bytes` (at least one if there is
        any)."""
        stream_id = self._ids.get(stream)
        found: list[HeldFrame] = []
        with self._database.reading() as connection:
            cursor = connection.execute(
                "SELECT id, first, last, site, received_us, frame FROM held"
                " WHERE stream_id = ? AND epoch = ? AND last >= ? ORDER BY last",
                (stream_id, epoch, first),
            )
            size = 0
            for number, low, high, site, received_us, frame in cursor:
                found.append(HeldFrame(stream, epoch, low, high, site, received_us, frame, number))
                size += len(frame)
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def late(self, above: int, limit: int) -> list[HeldFrame]:
        """Late frames that the application has not seen, with an id above `above`, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT late.id, producer, topic, part, epoch, first, last, site, received_us, frame"
                " FROM late JOIN stream ON stream.id = stream_id WHERE late.id > ? ORDER BY late.id LIMIT ?",
                (above, limit),
            ).fetchall()
        return [
            HeldFrame(Stream(p, t, n), epoch, first, last, site, received_us, frame, number)
            for number, p, t, n, epoch, first, last, site, received_us, frame in rows
        ]


def _epochs(connection: sqlite3.Connection, stream: Stream, stream_id: int) -> list[EpochRow]:
    rows = connection.execute(
        "SELECT epoch, incarnation, prev_epoch, prev_incarnation, prev_last, position, high_water, settled, last,"
        " entered, journalled, used_us, let_go FROM epoch WHERE stream_id = ? ORDER BY epoch",
        (stream_id,),
    )
    return [
        EpochRow(
            stream, epoch, int(incarnation, 16),
            None if prev_epoch is None else Prev(prev_epoch, int(prev_incarnation, 16), prev_last),
            position, high_water, msgspec.json.decode(settled, type=list[Span]), last, bool(entered), journalled,
            used_us, let_go,
        )
        for (
            epoch, incarnation, prev_epoch, prev_incarnation, prev_last, position, high_water, settled, last, entered,
            journalled, used_us, let_go,
        ) in rows
    ]  # fmt: skip


def _wanted(table: Literal["stream", "tombstone"]) -> str:
    """SQL for the rows of a table that belong to the streams in one parameter, a value of :func:`_names`."""
    return (
        f"json_each(?) AS wanted JOIN {table} ON producer = wanted.value ->> 0"
        " AND topic = wanted.value ->> 1 AND part = wanted.value ->> 2"
    )


def _names(streams: Sequence[Stream]) -> str:
    return msgspec.json.encode(streams).decode()
