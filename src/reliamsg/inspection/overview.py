"""How an outbox or inbox is doing, in numbers that can be read often.

Nothing here reads frames, or all rows of a table that can be large: a full outbox costs no more than an empty one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Hashable, Mapping

import msgspec

from reliamsg.inspection.snapshot import snapshot
from reliamsg.message import Stream
from reliamsg.store.database import get_meta, kind_of, reading
from reliamsg.store.inbox_rows import GapRow
from reliamsg.store.outbox_view import STORED_FROM, MemberInfo, read_members

__all__ = ["Counts", "InboxOverview", "OutboxOverview", "SiteOverview", "overview"]

JOURNAL_ROWS = 10_000
"""Repairs are counted in this number of the latest journal rows."""
MAX_LISTED = 100
"""Gaps and parked streams that are listed."""

Counts = Mapping[Hashable, int]
"""Numbers that only grow while their key exists. Their growth between two readings is a rate."""


class SiteOverview(msgspec.Struct, frozen=True):
    """A site of an outbox."""

    name: str
    behind: int
    """Stored messages that it has not confirmed, as of the latest stored cursor."""
    oldest_us: int | None
    """When the oldest of them was stored, in µs since 1970."""
    parked: tuple[tuple[str, int, str], ...]
    """Streams that it refuses: topic, partition, reason."""


class OutboxOverview(msgspec.Struct, frozen=True):
    """An outbox, as of one commit."""

    producer: str
    epoch: int
    release: str
    accepted: Counts
    """Messages that were ever stored, by stream and epoch."""
    messages: int
    """Messages in the file."""
    unpublished: int
    """Messages above the published cursor: all whose confirm policy is not met, and possibly others."""
    oldest_us: int | None
    """When the oldest of them was stored, in µs since 1970."""
    sites: tuple[SiteOverview, ...]
    members: tuple[MemberInfo, ...]
    repaired: Counts
    """Messages that were sent again on request, by journal row."""
    journal_rows: int


class InboxOverview(msgspec.Struct, frozen=True):
    """An inbox, as of one commit."""

    group: str
    inbox_id: str
    settled: Counts
    """Messages that were acknowledged or declared lost, by stream and epoch that is not finished."""
    finished: Counts
    """The same of the finished epochs right before them."""
    streams: int
    held_messages: int
    held_bytes: int
    gap_count: int
    gaps: tuple[GapRow, ...]
    """The oldest ones."""
    dead_letters: int
    quarantined: dict[str, int]
    """Deliveries in quarantine, by reason."""
    samples: int
    """Samples of unusable deliveries."""
    asked: Counts
    """Messages that were requested from their producers, by journal row."""
    repaired: Counts
    """Messages that were received as repairs, by journal row."""
    journal_rows: int


def overview(path: str | os.PathLike[str]) -> OutboxOverview | InboxOverview:
    """Read an outbox or inbox, even while its owner runs.

    Raises :class:`StoreCorrupt` if the file is neither or is damaged, :class:`StoreMismatch` if it was not opened since
    an earlier version wrote it, and :class:`StoreTooNew`. Errors after which a retry may succeed remain
    ``sqlite3.Error``.
    """
    with reading(path) as connection:
        kind = kind_of(connection)
    with snapshot(path, kind) as connection:
        return _outbox(connection) if kind == "outbox" else _inbox(connection)


def _outbox(db: sqlite3.Connection) -> OutboxOverview:
    meta: dict[str, str] = dict(db.execute("SELECT name, value FROM meta"))
    published = int(meta.get("published", "1"))
    unpublished, oldest_us = _behind(db, "", published)
    return OutboxOverview(
        meta["owner"],
        int(meta.get("epoch", "0")),
        meta.get("release", "confirmed"),
        {(row[0], row[1]): row[2] for row in db.execute("SELECT stream_id, epoch, last FROM chain")},
        _behind(db, "", 0)[0],
        unpublished,
        oldest_us,
        tuple(
            SiteOverview(name, *_behind(db, name, cursor), tuple(_parked(db, name)))
            for name, cursor in db.execute("SELECT name, cursor FROM site ORDER BY name").fetchall()
        ),
        tuple(read_members(db, meta)),
        _journalled(db, "kind = 'repaired'"),
        _journal_rows(db),
    )


def _behind(db: sqlite3.Connection, site: str, cursor: int) -> tuple[int, int | None]:
    """The messages from the row `cursor` on, where `site` does not lack earlier ones of a parked stream, and when the
    oldest was stored."""
    count, oldest_us = db.execute(
        f"SELECT sum({STORED_FROM.format(stream='b.stream_id', epoch='b.epoch', seq='b.seq')}), min(b.wall_us)"
        " FROM stream AS s LEFT JOIN parked AS p ON p.site = ? AND p.stream_id = s.id"
        " JOIN batch AS b ON b.id = ("
        "  SELECT min(id) FROM batch WHERE stream_id = s.id AND id >= min(?, coalesce(p.cursor, ?)))",
        (site, cursor, cursor),
    ).fetchone()
    return int(count or 0), oldest_us


def _parked(db: sqlite3.Connection, site: str) -> list[tuple[str, int, str]]:
    return db.execute(
        "SELECT s.topic, s.part, p.reason FROM parked AS p JOIN stream AS s ON s.id = p.stream_id WHERE p.site = ?"
        " ORDER BY s.topic, s.part LIMIT ?",
        (site, MAX_LISTED),
    ).fetchall()


def _inbox(db: sqlite3.Connection) -> InboxOverview:
    def number(sql: str) -> int:
        return int(db.execute(sql).fetchone()[0])

    gaps = db.execute(
        "SELECT producer, topic, part, epoch, first, last, elapsed_s, waited_s FROM gap"
        " JOIN stream ON stream.id = stream_id ORDER BY elapsed_s DESC, producer, topic, part LIMIT ?",
        (MAX_LISTED,),
    )
    return InboxOverview(
        get_meta(db, "owner", ""),
        get_meta(db, "inbox_id", ""),
        *_settled(db),
        number("SELECT count(*) FROM stream WHERE producer != ''"),
        number("SELECT coalesce(sum(last - first + 1), 0) FROM held"),
        number("SELECT coalesce(sum(size), 0) FROM held"),
        number("SELECT count(*) FROM gap"),
        tuple(GapRow(Stream(*row[:3]), *row[3:]) for row in gaps),
        number("SELECT count(*) FROM dead_letter"),
        dict(db.execute("SELECT reason, count(*) FROM quarantined_delivery GROUP BY reason ORDER BY reason")),
        number("SELECT count(*) FROM quarantine"),
        _journalled(db, "kind = 'asked'"),
        _journalled(db, "kind = 'received' AND reason = 'repair'"),
        _journal_rows(db),
    )


def _settled(db: sqlite3.Connection) -> tuple[dict[Hashable, int], dict[Hashable, int]]:
    """By stream and epoch: of epochs that are not finished, and of the finished ones right before them."""
    settled: dict[Hashable, int] = {}
    finished: dict[Hashable, int] = {}
    for stream_id, epoch, position, above, prev_epoch, prev_last, joined_epoch, joined_first in db.execute(
        "SELECT stream_id, e.epoch, position, settled, prev_epoch, prev_last, joined_epoch, joined_first"
        " FROM epoch AS e JOIN stream AS s ON s.id = stream_id WHERE entered"
    ):
        skipped = joined_first - 1 if joined_epoch is not None else 0
        ranges: list[tuple[int, int]] = msgspec.json.decode(above, type=list[tuple[int, int]])
        settled[stream_id, epoch] = (
            position - 1 + sum(last - first + 1 for first, last in ranges) - skipped * (joined_epoch == epoch)
        )
        if prev_epoch is not None:
            finished[stream_id, prev_epoch] = prev_last - skipped * (joined_epoch == prev_epoch)
    return settled, {key: last for key, last in finished.items() if key not in settled}


def _journalled(db: sqlite3.Connection, condition: str) -> dict[Hashable, int]:
    """Messages in the latest journal rows that meet a condition, by row: a row may grow."""
    rows = db.execute(
        f"SELECT lsn, last - first + 1 FROM journal WHERE lsn > (SELECT max(lsn) FROM journal) - ? AND {condition}",
        (JOURNAL_ROWS,),
    )
    return dict(rows.fetchall())


def _journal_rows(db: sqlite3.Connection) -> int:
    """They are numbered without a hole, and only the oldest are deleted."""
    first, last = db.execute(
        "SELECT (SELECT min(lsn) FROM journal), (SELECT max(lsn) FROM journal)"
    ).fetchone()
    return 0 if first is None else int(last - first + 1)
