"""The inbox: what a group has received, and how far it has dealt with it.

Everything that one commit must hold comes as one :class:`Batch`, and goes into one transaction together with the
journal's rows about it. One thread uses an :class:`Inbox` at a time.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from reliamsg.errors import StoreCorrupt
from reliamsg.message import Prev, Stream
from reliamsg.store.database import PAGE_BYTES, Connect, Database, put_meta
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
from reliamsg.store.journal import Journal
from reliamsg.store.quarantine import QuarantinedDelivery, QuarantineRows

__all__ = ["MAX_QUARANTINED_FRAME", "Inbox", "Left"]

MAX_QUARANTINED_FRAME = 256 * 1024
"""Longest part of an unusable message that is kept."""
STATES_RESERVED = 2**36
"""States that an opening may number: thousands a second for months, and 2^27 openings before numbers run out."""


_UNSETTLED = (
    "SELECT id FROM stream WHERE producer = ''"
    " UNION SELECT stream_id FROM epoch"
    " WHERE settled != '[]' OR high_water > position OR last IS NOT NULL OR NOT entered OR let_go >= position"
    " UNION SELECT stream_id FROM held UNION SELECT stream_id FROM gap UNION SELECT stream_id FROM attempt"
)


class Left(NamedTuple):
    """What a commit did not store in the quarantine, or deleted from it."""

    known: list[QuarantinedDelivery]
    """It is there already, from another site or an earlier connection."""
    removed: list[QuarantinedDelivery]


class Inbox:
    """A group's inbox, owned and open for writing.

    Raises what :class:`~reliamsg.store.database.Database` raises. `id` names this file for ever, `boot` this
    opening of it.
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
        self.path = self._database.path
        self.boot = random_bytes(8).hex()
        self._journal = Journal(self.boot)
        self._ids: dict[Stream, int] = {}
        self._new_ids: dict[Stream, int] = {}
        self._held_change: Counter[int] = Counter()
        """By stream's id, by how many bytes its held frames grow with the commit that is being written."""
        self._dug_up = 0
        """Tombstones that this commit drops, since their streams are known again."""
        try:
            self.exported = Exported(self._database, self._journal)
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO meta (name, value) VALUES ('inbox_id', ?)",
                    (random_bytes(8).hex(),),
                )
                self.id = str(self._scalar("SELECT value FROM meta WHERE name = 'inbox_id'"))
            self.standing: Standing = self._saved_standing()
            self.takeovers = int(
                self._scalar("SELECT coalesce(max(value), '0') FROM meta WHERE name = 'takeovers'")
            )
            self.quarantine = QuarantineRows(self._database)
            self._held_by_id = Counter(self._sizes_held())
            self.held_bytes = self._held_by_id.total()
            self.dead_letter_count = int(self._scalar("SELECT count(*) FROM dead_letter"))
            self._has_attempts = bool(self._scalar("SELECT EXISTS (SELECT 1 FROM attempt)"))
            self.tombstone_count = int(self._scalar("SELECT count(*) FROM tombstone"))
            self.late_count = int(self._scalar("SELECT count(*) FROM late"))
            self.late_bytes = int(self._scalar("SELECT coalesce(sum(size), 0) FROM late"))
        except BaseException:
            self._database.close()
            raise

    def _sizes_held(self) -> dict[int, int]:
        with self._database.translated():
            return dict(
                self._database.connection.execute("SELECT stream_id, sum(size) FROM held GROUP BY stream_id")
            )

    def _scalar(self, sql: str, *values: object) -> int | str:
        with self._database.translated():
            found: int | str = self._database.connection.execute(sql, values).fetchone()[0]
        return found

    def _saved_standing(self) -> Standing:
        found = self._scalar("SELECT coalesce(max(value), '') FROM meta WHERE name = 'standing'")
        for known in get_args(Standing):
            if found == known:
                return cast(Standing, known)
        raise StoreCorrupt(f"{self.path}: {found!r} is no standing of an inbox")

    def close(self) -> None:
        self._database.close()

    # -- writing ------------------------------------------------------------------------------------------

    def reserve_states(self, wall_us: int) -> int:
        """Returns a number n: the :data:`STATES_RESERVED` after n are for this opening's states, durably. They are
        above those of every earlier opening, wherever the wall clock (µs since 1970) jumped. What that says counts
        where the file is new, or an older copy, which does not know how far the numbers were.

        Raises what :meth:`commit` raises.
        """
        with self._database.transaction() as connection:
            found = connection.execute("SELECT value FROM meta WHERE name = 'states_reserved'").fetchone()
            begin = max(wall_us, 0 if found is None else int(found[0]))
            put_meta(connection, "states_reserved", str(begin + STATES_RESERVED))
        return begin

    def look_at_clock(self, wall_us: int) -> int:
        """Returns the latest that the clock said at any opening of this inbox (µs since 1970), and keeps it.

        Raises what :meth:`commit` raises.
        """
        with self._database.transaction() as connection:
            found = connection.execute("SELECT value FROM meta WHERE name = 'clock_us'").fetchone()
            latest = max(wall_us, 0 if found is None else int(found[0]))
            put_meta(connection, "clock_us", str(latest))
        return latest

    def commit(
        self, batch: Batch, wall_us: int, mono_us: int, before_commit: Callable[[], None] | None = None
    ) -> Left:
        """Write all of `batch`, durably, or nothing of it. Returns what takes up no room in the quarantine (any more).

        Raises :class:`InboxWriteError` (nothing was written; may work later), :class:`InboxIndeterminate` or
        :class:`StoreCorrupt`.
        """
        self._new_ids, self._dug_up = {}, 0
        self._held_change.clear()
        freed = added = revived = late = 0
        done = False
        known: list[QuarantinedDelivery] = []
        gone: list[QuarantinedDelivery] = []
        adding = sum(len(held.frame) + PAGE_BYTES for held in batch.held)
        adding += sum(len(one.frame) + PAGE_BYTES for one in batch.quarantined)
        try:
            with self._database.transaction(adding) as connection:
                if batch.standing not in (None, self.standing):
                    put_meta(connection, "standing", batch.standing)
                if batch.takeovers > self.takeovers:
                    put_meta(connection, "takeovers", str(batch.takeovers))
                self._write_streams(connection, batch)
                freed = self._write_epochs(connection, batch, wall_us)
                added = self._write_frames(connection, batch)
                late = self._write_late(connection, batch)
                revived = self._write_aside(connection, batch, wall_us)
                if batch.quarantined or batch.unquarantined:
                    known, gone = self.quarantine.write(connection, batch.quarantined, batch.unquarantined)
                if batch.forgotten:
                    self._forget(connection, batch.forgotten)
                self._journal.write(connection, batch.entries, wall_us, mono_us)
                self._mark_journalled(connection, batch)
                if before_commit is not None:
                    before_commit()
            done = True
        finally:
            self._journal.settle(done)
        self._ids.update(self._new_ids)
        self.tombstone_count -= self._dug_up
        if batch.forgotten:
            self.tombstone_count += sum(left is not None for _, left in batch.forgotten)
            self.drop_ids([stream for stream, _ in batch.forgotten])
        self.standing = self.standing if batch.standing is None else batch.standing
        self.takeovers = max(self.takeovers, batch.takeovers)
        self.held_bytes += added - freed
        for stream_id, change in self._held_change.items():
            self._held_by_id[stream_id] += change
            if not self._held_by_id[stream_id]:
                del self._held_by_id[stream_id]
        self.late_bytes += late
        self.dead_letter_count += len(batch.dead) - revived
        self.late_count += len(batch.late) - len(batch.seen_late)
        self.quarantine.written(batch.quarantined, known, gone)
        return Left(known, gone)

    def _id(self, connection: sqlite3.Connection, stream: Stream) -> int:
        found = self._ids.get(stream) or self._new_ids.get(stream)
        if found is None:
            row = connection.execute(
                "SELECT id FROM stream WHERE producer = ? AND topic = ? AND part = ?", stream
            ).fetchone()
            if row is None:
                row = connection.execute(
                    "INSERT INTO stream (producer, topic, part, history) VALUES (?, ?, ?, '{}') RETURNING id",
                    stream,
                ).fetchone()
                if self.tombstone_count:
                    self._dug_up += connection.execute(
                        "DELETE FROM tombstone WHERE producer = ? AND topic = ? AND part = ?", stream
                    ).rowcount
            found = self._new_ids[stream] = int(row[0])
        return found

    def _forget(
        self, connection: sqlite3.Connection, forgotten: Sequence[tuple[Stream, Tombstone | None]]
    ) -> None:
        for stream, left in forgotten:
            number = self._id(connection, stream)
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
        for row in batch.streams:
            joined = row.joined or (None, None)
            connection.execute(
                "UPDATE stream SET joined_epoch = ?, joined_first = ?, history = ? WHERE id = ?",
                (*joined, msgspec.json.encode(row.history).decode(), self._id(connection, row.stream)),
            )
        _each(
            connection,
            "INSERT INTO gap (stream_id, epoch, first, last, elapsed_s, waited_s) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (stream_id) DO UPDATE SET epoch = excluded.epoch, first = excluded.first,"
            " last = excluded.last, elapsed_s = excluded.elapsed_s, waited_s = excluded.waited_s",
            [
                (self._id(connection, g.stream), g.epoch, g.first, g.last, g.elapsed_s, g.waited_s)
                for g in batch.gaps
            ],
        )
        _each(
            connection,
            "DELETE FROM gap WHERE stream_id = ?",
            [(self._id(connection, s),) for s in batch.no_gap],
        )

    def _mark_journalled(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Remember how far the rows about handing out go: after an unclean stop the next ones end there, so that
        digest sums of both can be compared."""
        ends: dict[tuple[Stream, int], int] = {}
        for entry in batch.entries:
            if entry.kind in ("delivered", "redelivered") and entry.stream is not None:
                key = (entry.stream, entry.epoch)
                ends[key] = max(entry.last, ends.get(key, 0))
        _each(
            connection,
            "UPDATE epoch SET journalled = max(journalled, ?) WHERE stream_id = ? AND epoch = ?",
            [(last, self._id(connection, stream), epoch) for (stream, epoch), last in ends.items()],
        )

    def _write_epochs(self, connection: sqlite3.Connection, batch: Batch, wall_us: int) -> int:
        """Returns how many bytes of held frames are not needed any more."""
        freed = 0
        for row in batch.epochs:
            stream_id = self._id(connection, row.stream)
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
            freed += self._drop_held(connection, stream_id, row.epoch, 0, row.position - 1)
            if self._has_attempts:
                connection.execute(
                    "DELETE FROM attempt WHERE stream_id = ? AND epoch = ? AND seq < ?",
                    (stream_id, row.epoch, row.position),
                )
        for stream, epoch in batch.finished:
            key = (self._id(connection, stream), epoch)
            freed += self._drop_held(connection, *key, 0, 2**63 - 1)
            connection.execute("DELETE FROM attempt WHERE stream_id = ? AND epoch = ?", key)
            connection.execute("DELETE FROM epoch WHERE stream_id = ? AND epoch = ?", key)
        self._has_attempts |= bool(batch.attempts)
        _each(
            connection,
            "INSERT INTO attempt (stream_id, epoch, seq, attempts) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET attempts = excluded.attempts",
            [(self._id(connection, stream), *rest) for stream, *rest in batch.attempts],
        )
        return freed

    def _drop_held(
        self, connection: sqlite3.Connection, stream_id: int, epoch: int, low: int, high: int
    ) -> int:
        if not self.held_bytes:
            return 0
        rows = connection.execute(
            "DELETE FROM held WHERE stream_id = ? AND epoch = ? AND last BETWEEN ? AND ? RETURNING size",
            (stream_id, epoch, low, high),
        ).fetchall()
        freed: int = sum(size for (size,) in rows)
        if freed:
            self._held_change[stream_id] -= freed
        return freed

    def _write_frames(self, connection: sqlite3.Connection, batch: Batch) -> int:
        """Returns by how many bytes the held frames grew."""
        added = sum(len(f.frame) for f in batch.held)
        for f in batch.held:
            self._held_change[self._id(connection, f.stream)] += len(f.frame)
        for stream, epoch, first, last in batch.discarded:
            added -= self._drop_held(connection, self._id(connection, stream), epoch, first, last)
        for table, frames in (("held", batch.held), ("late", batch.late)):
            _each(
                connection,
                f"INSERT INTO {table} (stream_id, epoch, first, last, size, site, received_us, frame)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        self._id(connection, f.stream), f.epoch, f.first, f.last, len(f.frame), f.site,
                        f.received_us, f.frame,
                    )
                    for f in frames
                ],
            )  # fmt: skip
        return added

    def _write_late(self, connection: sqlite3.Connection, batch: Batch) -> int:
        """Returns by how many bytes late frames grew."""
        size = sum(len(f.frame) for f in batch.late)
        for number in batch.seen_late:
            for (freed,) in connection.execute(
                "DELETE FROM late WHERE id = ? RETURNING size", (number,)
            ).fetchall():
                size -= freed
        return size

    def _write_aside(self, connection: sqlite3.Connection, batch: Batch, wall_us: int) -> int:
        """Returns how many dead letters are none any more."""
        _each(
            connection,
            "INSERT INTO dead_letter (stream_id, epoch, incarnation, seq, key, headers, body, reason, attempts,"
            " wall_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    self._id(connection, d.stream), d.epoch, f"{d.incarnation:016x}", d.seq, d.key,
                    msgspec.json.encode(d.headers).decode(), d.body, d.reason, d.attempts, d.wall_us,
                )
                for d in batch.dead
            ],
        )  # fmt: skip
        _each(
            connection,
            "INSERT INTO quarantine (wall_us, site, address, reason, size, frame) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (wall_us, q.site, q.address, q.reason, len(q.frame), q.frame[:MAX_QUARANTINED_FRAME])
                for q in batch.quarantine
            ],
        )
        return _each(
            connection, "DELETE FROM dead_letter WHERE id = ?", [(number,) for number in batch.revived]
        )

    # -- reading ------------------------------------------------------------------------------------------

    def quarantined(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Samples of unusable messages: by site and address, how many, and their bytes."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT site, address, count(*), sum(length(frame)) FROM quarantine GROUP BY site, address"
            ).fetchall()
        return {(site, address): (count, size) for site, address, count, size in rows}

    def load(self) -> list[SavedStream]:
        """Every stream, as the last commit left it."""
        with self._database.translated():
            return list(self._load(self._database.connection, "1", ()))

    def load_unsettled(self) -> list[SavedStream]:
        """Every stream of which something is not settled, or that was not left as after a clean stop."""
        with self._database.translated():
            return list(self._load(self._database.connection, f"id IN ({_UNSETTLED})", ()))

    def load_tombstones(self, streams: Sequence[Stream]) -> list[SavedStream]:
        """Those of these streams that were forgotten, as far as they are remembered."""
        if not self.tombstone_count:
            return []
        with self._database.translated():
            rows = self._database.connection.execute(
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

    def leave_something(self, streams: Sequence[Stream]) -> set[Stream]:
        """Those of these streams of which there are dead letters, or messages that were late and not seen yet."""
        with self._database.translated():
            rows = self._database.connection.execute(
                f"SELECT producer, topic, part FROM {_wanted('stream')}"
                " WHERE stream.id IN (SELECT stream_id FROM dead_letter UNION SELECT stream_id FROM late)",
                (_names(streams),),
            ).fetchall()
        return {Stream(*row) for row in rows}

    def load_some(self, streams: Sequence[Stream]) -> list[SavedStream]:
        """Those of these streams that are known."""
        where = f"id IN (SELECT stream.id FROM {_wanted('stream')})"
        with self._database.translated():
            return list(self._load(self._database.connection, where, (_names(streams),)))

    def held_bytes_of(self, stream: Stream) -> int:
        """What of `held_bytes` is a stream's that is in memory."""
        stream_id = self._ids.get(stream)
        return 0 if stream_id is None else self._held_by_id.get(stream_id, 0)

    def knows(self, stream: Stream) -> bool:
        """Whether a stream that is in memory has a row."""
        return stream in self._ids

    def drop_ids(self, streams: Sequence[Stream]) -> None:
        """These streams are not in memory any more."""
        for stream in streams:
            self._ids.pop(stream, None)

    @property
    def stream_count(self) -> int:
        """How many streams are known."""
        return int(self._scalar("SELECT count(*) FROM stream"))

    @property
    def highest_epoch(self) -> int:
        """Of all streams."""
        return int(self._scalar("SELECT coalesce(max(epoch), 0) FROM epoch"))

    def _load(
        self, connection: sqlite3.Connection, where: str, values: Sequence[object]
    ) -> Iterator[SavedStream]:
        rows = connection.execute(
            "SELECT id, producer, topic, part, joined_epoch, joined_first, history FROM stream"
            f" WHERE {where} ORDER BY id",
            values,
        ).fetchall()
        for stream_id, producer, topic, part, joined_epoch, joined_first, history in rows:
            stream = Stream(producer, topic, part)
            self._ids[stream] = stream_id
            gap = connection.execute(
                "SELECT epoch, first, last, elapsed_s, waited_s FROM gap WHERE stream_id = ?", (stream_id,)
            ).fetchone()
            yield SavedStream(
                stream,
                None if joined_epoch is None else (joined_epoch, joined_first),
                msgspec.json.decode(history, type=History),
                _epochs(connection, stream, stream_id),
                connection.execute(
                    "SELECT epoch, first, last FROM held WHERE stream_id = ? ORDER BY epoch, last",
                    (stream_id,),
                ).fetchall(),
                None if gap is None else GapRow(stream, *gap),
                connection.execute(
                    "SELECT epoch, seq, attempts FROM attempt WHERE stream_id = ?", (stream_id,)
                ).fetchall(),
            )

    def page(self, stream: Stream, epoch: int, first: int, max_bytes: int) -> list[HeldFrame]:
        """Held frames from the one that holds `first` on, in order: at least one, if there is any, and about
        `max_bytes` of them."""
        stream_id = self._ids.get(stream)
        found: list[HeldFrame] = []
        with self._database.translated():
            cursor = self._database.connection.execute(
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
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT late.id, producer, topic, part, epoch, first, last, site, received_us, frame"
                " FROM late JOIN stream ON stream.id = stream_id WHERE late.id > ? ORDER BY late.id LIMIT ?",
                (above, limit),
            ).fetchall()
        return [
            HeldFrame(Stream(p, t, n), epoch, first, last, site, received_us, frame, number)
            for number, p, t, n, epoch, first, last, site, received_us, frame in rows
        ]


def _each(connection: sqlite3.Connection, sql: str, rows: Sequence[Sequence[object]]) -> int:
    """Execute a statement for each of `rows`, which most commits have not; returns how many rows it changed."""
    return connection.executemany(sql, rows).rowcount if rows else 0


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
    """SQL: the rows of a table for the streams that are bound as :func:`_names`."""
    return (
        f"json_each(?) AS wanted JOIN {table} ON producer = wanted.value ->> 0"
        " AND topic = wanted.value ->> 1 AND part = wanted.value ->> 2"
    )


def _names(streams: Sequence[Stream]) -> str:
    return msgspec.json.encode(streams).decode()
