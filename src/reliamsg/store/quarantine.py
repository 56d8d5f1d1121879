"""The quarantine of an inbox: whole deliveries that are sound but can't be taken in now.

Not to be confused with the samples of unusable deliveries (table ``quarantine``), which may be cut: what is here is
complete and committed, so brokers may forget it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from reliamsg.message import Prev, Stream
from reliamsg.store.database import Database

__all__ = ["QuarantineRows", "QuarantinedDelivery", "Selection", "read_quarantined"]

_COLUMNS = (
    "id, reason, site, producer, topic, part, epoch, incarnation, prev_epoch, prev_incarnation, prev_last, first, last,"
    " size, received_us, replay"
)


class QuarantinedDelivery(msgspec.Struct, frozen=True):
    """A delivery in quarantine: `first` to `last` of one epoch of a stream."""

    reason: str
    site: str
    stream: Stream
    epoch: int
    incarnation: int
    prev: Prev | None
    first: int
    last: int
    size: int
    """Of its frame, in bytes."""
    received_us: int
    """When it arrived, in µs since 1970."""
    frame: bytes = b""
    """Empty where it was not asked for."""
    id: int = 0
    replay: bool = False
    """It is to be taken in as if it arrived again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which deliveries are meant: those that agree with everything that is not None."""

    ids: tuple[int, ...] | None = None
    reason: str | None = None
    stream: Stream | None = None
    up_to_epoch: int | None = None

    @property
    def where(self) -> tuple[str, list[object]]:
        """As SQL, and its values."""
        terms, values = ["1"], list[object]()
        if self.ids is not None:
            terms.append("id IN (SELECT value FROM json_each(?))")
            values.append(msgspec.json.encode(self.ids).decode())
        if self.reason is not None:
            terms.append("reason = ?")
            values.append(self.reason)
        if self.stream is not None:
            terms.append("producer = ? AND topic = ? AND part = ?")
            values += self.stream
        if self.up_to_epoch is not None:
            terms.append("epoch <= ?")
            values.append(self.up_to_epoch)
        return " AND ".join(terms), values


class QuarantineRows:
    """The table, as the inbox's owner uses it. Used by the inbox's thread, but for `streams`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._streams: Counter[int] = Counter()
        """By stream and reason, of which only a hash is kept, how many deliveries are committed."""
        self._reasons: Counter[str] = Counter()
        self.sources: dict[tuple[str, str], tuple[int, int]] = {}
        """What there was when the inbox was opened: by reason and site, deliveries and their bytes."""
        with database.translated():
            for reason, site, producer, topic, part, count, size in database.connection.execute(
                "SELECT reason, site, producer, topic, part, count(*), sum(size) FROM quarantined_delivery"
                " GROUP BY reason, site, producer, topic, part"
            ):
                self._count(Stream(producer, topic, part), reason, count)
                rows, total = self.sources.get((reason, site), (0, 0))
                self.sources[reason, site] = (rows + count, total + size)

    def write(
        self, connection: sqlite3.Connection, adding: Sequence[QuarantinedDelivery], removing: Sequence[int]
    ) -> tuple[list[QuarantinedDelivery], list[QuarantinedDelivery]]:
        """Store and delete within the caller's transaction. Returns those that were stored before and need no second
        row, and those that are deleted. Call :meth:`written` when the transaction is committed."""
        known: list[QuarantinedDelivery] = []
        for one in adding:
            prev = one.prev
            done = connection.execute(
                "INSERT INTO quarantined_delivery (reason, site, producer, topic, part, epoch, incarnation, prev_epoch,"
                " prev_incarnation, prev_last, first, last, size, received_us, frame)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    one.reason, one.site, *one.stream, one.epoch, f"{one.incarnation:016x}",
                    None if prev is None else prev.epoch, None if prev is None else f"{prev.incarnation:016x}",
                    None if prev is None else prev.last, one.first, one.last, len(one.frame), one.received_us,
                    one.frame,
                ),
            )  # fmt: skip
            if not done.rowcount:
                known.append(one)
        return known, self._delete(connection, Selection(ids=tuple(removing))) if removing else []

    def written(
        self,
        added: Sequence[QuarantinedDelivery],
        known: Sequence[QuarantinedDelivery],
        removed: Sequence[QuarantinedDelivery],
    ) -> None:
        """That is committed."""
        for sign, some in ((1, added), (-1, known), (-1, removed)):
            for one in some:
                self._count(one.stream, one.reason, sign)

    def _count(self, stream: Stream, reason: str, count: int) -> None:
        key = hash((stream, reason))
        self._streams[key] += count
        self._reasons[reason] += count
        if not self._streams[key]:
            del self._streams[key]
        if not self._reasons[reason]:
            del self._reasons[reason]

    def may_hold(self, stream: Stream, reason: str) -> bool:
        """Whether anything of the stream is there for this reason; rarely, also where another stream's is. May be asked
        on any thread."""
        return self.count(stream, reason) > 0

    def count(self, stream: Stream, reason: str) -> int:
        """How much of the stream is there for this reason; rarely, with another stream's. May be asked on any
        thread."""
        return self._streams.get(hash((stream, reason)), 0)

    def has(self, reason: str) -> bool:
        """Whether anything is there for this reason."""
        return reason in self._reasons

    def streams_of(self, reason: str) -> list[Stream]:
        """All streams of which something is there for this reason."""
        if reason not in self._reasons:
            return []
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT DISTINCT producer, topic, part FROM quarantined_delivery WHERE reason = ?", (reason,)
            ).fetchall()
        return [Stream(*row) for row in rows]

    def some_streams(self, reason: str, most: int) -> list[Stream]:
        """Streams of which something is there for this reason, and is not about to be replayed."""
        if most <= 0 or reason not in self._reasons:
            return []
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT DISTINCT producer, topic, part FROM quarantined_delivery"
                " WHERE reason = ? AND replay = 0 LIMIT ?",
                (reason, most),
            ).fetchall()
        return [Stream(*row) for row in rows]

    def reaches_below(
        self, stream: Stream, reason: str, position: tuple[int, int], but: Collection[int]
    ) -> bool:
        """Whether any delivery of the stream, but those with an id in `but`, is there for this reason and begins at
        `position` (epoch and number) or before."""
        if not self.may_hold(stream, reason):
            return False
        with self._database.translated():
            cursor = self._database.connection.execute(
                "SELECT id FROM quarantined_delivery WHERE producer = ? AND topic = ? AND part = ? AND reason = ?"
                " AND (epoch, first) <= (?, ?)",
                (*stream, reason, *position),
            )
            found = any(number not in but for (number,) in cursor)
            cursor.close()
        return found

    def replay_streams(self, streams: Sequence[Stream], reason: str) -> None:
        """Mark what is there of these streams for this reason; see :meth:`mark`."""
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE quarantined_delivery SET replay = 1"
                " WHERE producer = ? AND topic = ? AND part = ? AND reason = ? AND replay = 0",
                [(*stream, reason) for stream in streams],
            )

    def page(self, but: Collection[int], max_bytes: int) -> list[QuarantinedDelivery]:
        """Deliveries to be taken in again, in the order of their streams, at least one if there is any and about
        `max_bytes` of them; none of those with an id in `but`."""
        found: list[QuarantinedDelivery] = []
        size = 0
        with self._database.translated():
            cursor = self._database.connection.execute(
                f"SELECT {_COLUMNS}, frame FROM quarantined_delivery WHERE replay = 1"
                " ORDER BY producer, topic, part, epoch, first"
            )
            for row in cursor:
                if row[0] in but:
                    continue
                found.append(_delivery(row))
                size += row[13]
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def mark(self, which: Selection, replay: bool) -> int:
        """Have deliveries taken in again, durably, or leave them where they are; returns how many changed.

        Raises what :meth:`~reliamsg.store.inbox.Inbox.commit` raises.
        """
        where, values = which.where
        with self._database.transaction() as connection:
            return connection.execute(
                f"UPDATE quarantined_delivery SET replay = ? WHERE replay = ? AND {where}",
                (int(replay), int(not replay), *values),
            ).rowcount

    def requalify(self, ids: Sequence[int], reason: str) -> list[QuarantinedDelivery]:
        """These stay where they are for another reason than before, durably; returns them as they were.

        Raises what :meth:`~reliamsg.store.inbox.Inbox.commit` raises.
        """
        where, values = Selection(ids=tuple(ids)).where
        with self._database.transaction() as connection:
            before = _select(connection, Selection(ids=tuple(ids)), -1)
            connection.execute(
                f"UPDATE quarantined_delivery SET reason = ?, replay = 0 WHERE {where}", (reason, *values)
            )
        for one in before:
            self._count(one.stream, one.reason, -1)
            self._count(one.stream, reason, 1)
        return before

    def select(self, which: Selection) -> list[QuarantinedDelivery]:
        """Matching deliveries, without their frames."""
        with self._database.translated():
            return _select(self._database.connection, which, -1)

    def _delete(self, connection: sqlite3.Connection, which: Selection) -> list[QuarantinedDelivery]:
        where, values = which.where
        rows = connection.execute(
            f"DELETE FROM quarantined_delivery WHERE {where} RETURNING {_COLUMNS}", values
        ).fetchall()
        return [_delivery(row) for row in rows]


def _select(connection: sqlite3.Connection, which: Selection, limit: int) -> list[QuarantinedDelivery]:
    where, values = which.where
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM quarantined_delivery WHERE {where} ORDER BY id LIMIT ?", (*values, limit)
    )
    return [_delivery(row) for row in rows]


def read_quarantined(
    connection: sqlite3.Connection, which: Selection, limit: int
) -> list[QuarantinedDelivery]:
    """The oldest `limit` matching deliveries of an inbox that is only read, without their frames."""
    return _select(connection, which, limit)


def _delivery(row: tuple[object, ...]) -> QuarantinedDelivery:
    (
        number, reason, site, producer, topic, part, epoch, incarnation, prev_epoch, prev_incarnation, prev_last, first,
        last, size, received_us, replay, *frame,
    ) = row  # fmt: skip
    return msgspec.convert(
        {
            "id": number,
            "reason": reason,
            "site": site,
            "stream": (producer, topic, part),
            "epoch": epoch,
            "incarnation": int(str(incarnation), 16),
            "prev": None if prev_epoch is None else (prev_epoch, int(str(prev_incarnation), 16), prev_last),
            "first": first,
            "last": last,
            "size": size,
            "received_us": received_us,
            "replay": bool(replay),
            "frame": frame[0] if frame else b"",
        },
        QuarantinedDelivery,
    )
