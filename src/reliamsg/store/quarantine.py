"""The quarantine of an inbox: valid deliveries that can't be accepted at present.

Unlike the samples of unusable deliveries (table ``quarantine``), which may be truncated, these deliveries are complete
and durable, so that brokers may forget them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from reliamsg.message import Prev, Stream
from reliamsg.store.database import Database

__all__ = ["LATER_VERSION", "QuarantineRows", "QuarantinedDelivery", "Selection", "read_quarantined"]

LATER_VERSION = "later-version"
"""Why a delivery is there whose format is of a later version as a whole. Its messages are unknown."""

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
    """Empty where it was not requested."""
    id: int = 0
    replay: bool = False
    """It is to be processed as if it arrived again."""


class Selection(msgspec.Struct, frozen=True):
    """Selects the deliveries that match every field that is not None."""

    ids: tuple[int, ...] | None = None
    reason: str | None = None
    stream: Stream | None = None
    up_to_epoch: int | None = None

    @property
    def where(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its parameters."""
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
    """The quarantine of an open inbox. Used by the inbox's thread, except where a method says otherwise."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._streams: Counter[int] = Counter()
        """The number of committed deliveries by a hash of stream and reason."""
        self._reasons: Counter[str] = Counter()
        self.sources: dict[tuple[str, str], tuple[int, int]] = {}
        """At opening: by reason and site, the number of deliveries and their bytes."""
        with database.reading() as connection:
            for reason, site, producer, topic, part, count, size in connection.execute(
                "SELECT reason, site, producer, topic, part, count(*), sum(size) FROM quarantined_delivery"
                " GROUP BY reason, site, producer, topic, part"
            ):
                self._count(Stream(producer, topic, part), reason, count)
                rows, total = self.sources.get((reason, site), (0, 0))
                self.sources[reason, site] = (rows + count, total + size)

    def write(
        self, connection: sqlite3.Connection, adding: Sequence[QuarantinedDelivery], removing: Sequence[int]
    ) -> tuple[list[QuarantinedDelivery], list[QuarantinedDelivery]]:
        """Store and delete deliveries within the caller's transaction. Returns the deliveries that were stored before,
        and the deleted ones. The caller must call :meth:`committed` after the transaction."""
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

    def committed(
        self,
        added: Sequence[QuarantinedDelivery],
        known: Sequence[QuarantinedDelivery],
        removed: Sequence[QuarantinedDelivery],
    ) -> None:
        """Count the deliveries of a committed :meth:`write`."""
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
        """Whether deliveries of the stream are stored for this reason; rarely true because of another stream.
        Thread-safe."""
        return self.count(stream, reason) > 0

    def count(self, stream: Stream, reason: str) -> int:
        """The number of the stream's deliveries for this reason, rarely including another stream's. Thread-safe."""
        return self._streams.get(hash((stream, reason)), 0)

    def has(self, reason: str) -> bool:
        """Whether any delivery is stored for this reason."""
        return reason in self._reasons

    def streams_of(self, reason: str) -> list[Stream]:
        """All streams with deliveries for this reason."""
        if reason not in self._reasons:
            return []
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT producer, topic, part FROM quarantined_delivery WHERE reason = ?", (reason,)
            ).fetchall()
        return [Stream(*row) for row in rows]

    def some_streams(self, reason: str, limit: int) -> list[Stream]:
        """At most `limit` streams with deliveries for this reason that are not marked for replay."""
        if limit <= 0 or reason not in self._reasons:
            return []
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT producer, topic, part FROM quarantined_delivery"
                " WHERE reason = ? AND replay = 0 LIMIT ?",
                (reason, limit),
            ).fetchall()
        return [Stream(*row) for row in rows]

    def reaches_below(
        self, stream: Stream, reason: str, position: tuple[int, int], excluded: Collection[int]
    ) -> bool:
        """Whether a delivery of the stream for this reason begins at or before `position` (epoch and number), apart
        from those with an `excluded` id."""
        if not self.may_hold(stream, reason):
            return False
        with self._database.reading() as connection:
            cursor = connection.execute(
                "SELECT id FROM quarantined_delivery WHERE producer = ? AND topic = ? AND part = ? AND reason = ?"
                " AND (epoch, first) <= (?, ?)",
                (*stream, reason, *position),
            )
            found = any(number not in excluded for (number,) in cursor)
            cursor.close()
        return found

    def replay_streams(self, streams: Sequence[Stream], reason: str) -> None:
        """Mark the deliveries of these streams for this reason for replay."""
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE quarantined_delivery SET replay = 1"
                " WHERE producer = ? AND topic = ? AND part = ? AND reason = ? AND replay = 0",
                [(*stream, reason) for stream in streams],
            )

    def page(self, excluded: Collection[int], max_bytes: int) -> list[QuarantinedDelivery]:
        """Deliveries that are marked for replay, in the order of their streams, up to `max_bytes` (at least one if
        there is any), without those with an `excluded` id."""
        found: list[QuarantinedDelivery] = []
        size = 0
        with self._database.reading() as connection:
            cursor = connection.execute(
                f"SELECT {_COLUMNS}, frame FROM quarantined_delivery WHERE replay = 1"
                " ORDER BY producer, topic, part, epoch, first"
            )
            for row in cursor:
                if row[0] in excluded:
                    continue
                found.append(_delivery(row))
                size += row[13]
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def mark(self, which: Selection, replay: bool) -> int:
        """Durably mark or unmark deliveries for replay; returns the number of changed deliveries.

        Raises the same errors as :meth:`~reliamsg.store.inbox.Inbox.commit`.
        """
        where, values = which.where
        with self._database.transaction() as connection:
            return connection.execute(
                f"UPDATE quarantined_delivery SET replay = ? WHERE replay = ? AND {where}",
                (int(replay), int(not replay), *values),
            ).rowcount

    def requalify(self, ids: Sequence[int], reason: str) -> list[QuarantinedDelivery]:
        """Durably change the reason of deliveries and unmark them; returns them as they were before.

        Raises the same errors as :meth:`~reliamsg.store.inbox.Inbox.commit`.
        """
        which = Selection(ids=tuple(ids))
        where, values = which.where
        with self._database.transaction() as connection:
            before = read_quarantined(connection, which, -1)
            connection.execute(
                f"UPDATE quarantined_delivery SET reason = ?, replay = 0 WHERE {where}", (reason, *values)
            )
        for one in before:
            self._count(one.stream, one.reason, -1)
            self._count(one.stream, reason, 1)
        return before

    def identify(
        self, found: Sequence[tuple[QuarantinedDelivery, QuarantinedDelivery]], reason: str
    ) -> list[QuarantinedDelivery]:
        """Durably replace the descriptions of deliveries: each `found` pair has one as it is stored, and as it is now
        known. Their reason becomes `reason`. One that is stored already under its new identity is deleted.

        Returns them as they were before, with `replay` only if they were not deleted. Raises the same errors as
        :meth:`~reliamsg.store.inbox.Inbox.commit`.
        """
        changed: list[QuarantinedDelivery] = []
        with self._database.transaction() as connection:
            for before, now in found:
                prev = now.prev
                count = connection.execute(
                    "UPDATE OR IGNORE quarantined_delivery SET reason = ?, producer = ?, topic = ?, part = ?,"
                    " epoch = ?, incarnation = ?, prev_epoch = ?, prev_incarnation = ?, prev_last = ?, first = ?,"
                    " last = ? WHERE id = ?",
                    (
                        reason, *now.stream, now.epoch, f"{now.incarnation:016x}",
                        None if prev is None else prev.epoch, None if prev is None else f"{prev.incarnation:016x}",
                        None if prev is None else prev.last, now.first, now.last, before.id,
                    ),
                ).rowcount  # fmt: skip
                if not count:
                    self._delete(connection, Selection(ids=(before.id,)))
                changed.append(msgspec.structs.replace(before, replay=bool(count)))
        for one, (_, now) in zip(changed, found, strict=True):
            self._count(one.stream, one.reason, -1)
            if one.replay:
                self._count(now.stream, reason, 1)
        return changed

    def select(self, which: Selection) -> list[QuarantinedDelivery]:
        """Matching deliveries, without their frames."""
        with self._database.reading() as connection:
            return read_quarantined(connection, which, -1)

    def _delete(self, connection: sqlite3.Connection, which: Selection) -> list[QuarantinedDelivery]:
        where, values = which.where
        rows = connection.execute(
            f"DELETE FROM quarantined_delivery WHERE {where} RETURNING {_COLUMNS}", values
        ).fetchall()
        return [_delivery(row) for row in rows]


def read_quarantined(
    connection: sqlite3.Connection, which: Selection, limit: int
) -> list[QuarantinedDelivery]:
    """The oldest `limit` matching deliveries (-1: all), without their frames."""
    where, values = which.where
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM quarantined_delivery WHERE {where} ORDER BY id LIMIT ?", (*values, limit)
    )
    return [_delivery(row) for row in rows]


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
