"""Reading an inbox file without owning it, even while its owner runs."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from reliamsg.errors import StoreMismatch
from reliamsg.message import Stream
from reliamsg.store.database import reading
from reliamsg.store.inbox_rows import DeadLetter, GapRow
from reliamsg.store.quarantine import QuarantinedDelivery, Selection, read_quarantined

__all__ = [
    "InboxSummary", "StreamInfo", "check_inbox", "find_stream", "list_gaps", "list_quarantined", "list_streams",
    "page_streams", "read_dead_letters", "summarize_inbox",
]  # fmt: skip

TABLES_VERSION = 5
"""The latest version of the schema that changed tables."""
PAGE_STREAMS = 500
"""Streams per page; a request with this number of streams fits into its file."""


def read_dead_letters(
    path: str | os.PathLike[str], ids: Collection[int] | None = None, limit: int = 1_000
) -> list[DeadLetter]:
    """Dead letters of an inbox, oldest first, as of its last commit; only those with these `ids` if given.

    Works while the inbox's owner runs. Raises :class:`StoreCorrupt` if the file is not an inbox or is damaged.
    """
    with reading(path) as connection:
        rows = connection.execute(
            "SELECT dead_letter.id, producer, topic, part, epoch, incarnation, seq, key, headers, body, reason,"
            " attempts, wall_us FROM dead_letter JOIN stream ON stream.id = stream_id"
            f" {'' if ids is None else 'WHERE dead_letter.id IN (SELECT value FROM json_each(?))'}"
            " ORDER BY dead_letter.id LIMIT ?",
            (limit,) if ids is None else (json.dumps(list(ids)), limit),
        )
        return [
            DeadLetter(
                row[0], Stream(*row[1:4]), row[4], int(row[5], 16), row[6], row[7],
                msgspec.json.decode(row[8], type=dict[str, str]), *row[9:],
            )
            for row in rows
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream of an inbox file."""

    stream: Stream
    epoch: int
    position: int
    """The next number of `epoch` that is not settled."""
    held: int
    """Stored messages of this epoch and later ones."""
    gap: GapRow | None
    left: int
    """Messages behind the gap that are known to exist but were left to their producer: the group requests them when it
    reaches them."""


@dataclass(frozen=True, slots=True)
class InboxSummary:
    """The content of an inbox file in numbers, for inboxes of any size."""

    group: str
    inbox_id: str
    streams: int
    gaps: int
    """Streams with a gap at their heads."""
    held_messages: int
    held_bytes: int
    dead_letters: int
    samples: int
    """Samples of unusable deliveries, stored for inspection."""
    quarantined: dict[str, tuple[int, int]]
    """By reason, the number of whole deliveries in quarantine, and their bytes."""
    forgotten: int
    """Forgotten streams that have a tombstone."""


def _stream_info(connection: sqlite3.Connection, stream_id: int, stream: Stream) -> StreamInfo:
    row = connection.execute(
        "SELECT epoch, position FROM epoch WHERE stream_id = ? AND entered ORDER BY epoch LIMIT 1",
        (stream_id,),
    ).fetchone() or (0, 1)
    held = connection.execute(
        "SELECT coalesce(sum(last - first + 1), 0) FROM held WHERE stream_id = ?", (stream_id,)
    ).fetchone()[0]
    found = connection.execute(
        "SELECT epoch, first, last, elapsed_s FROM gap WHERE stream_id = ?", (stream_id,)
    ).fetchone()
    gap = None if found is None else GapRow(stream, *found)
    return StreamInfo(stream, row[0], row[1], held, gap, _left(connection, stream_id, stream, gap))


def _left(connection: sqlite3.Connection, stream_id: int, stream: Stream, gap: GapRow | None) -> int:
    """The number of messages behind the gap that were left to their producer."""
    count = 0
    for epoch, incarnation, position, top, settled in connection.execute(
        "SELECT epoch, incarnation, position, min(let_go, coalesce(last, let_go)) AS top, settled FROM epoch"
        " WHERE stream_id = ? AND top >= position",
        (stream_id,),
    ).fetchall():
        others = msgspec.json.decode(settled, type=list[tuple[int, int]])
        if gap is not None and gap.epoch == epoch and gap.last is not None:
            others.append((gap.first, gap.last))
        others += connection.execute(
            "SELECT first, last FROM held WHERE stream_id = ? AND epoch = ?"
            " UNION ALL SELECT first, last FROM quarantined_delivery"
            " WHERE producer = ? AND topic = ? AND part = ? AND epoch = ? AND incarnation = ?",
            (stream_id, epoch, *stream, epoch, incarnation),
        )
        count += top - position + 1
        for first, last in sorted(others):
            count -= max(0, min(last, top) - max(first, position) + 1)
            position = max(position, last + 1)  # noqa: PLW2901
    return count


@contextlib.contextmanager
def _reading_inbox(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    with reading(path, "inbox") as connection:
        if connection.execute("PRAGMA user_version").fetchone()[0] < TABLES_VERSION:
            raise StoreMismatch(
                f"{path}: this inbox was written by an older version; open it once with the current version"
            )
        yield connection


def check_inbox(path: str | os.PathLike[str]) -> None:
    """Raises :class:`StoreCorrupt` or :class:`StoreMismatch` if the file is not a usable inbox."""
    with _reading_inbox(path):
        pass


def summarize_inbox(path: str | os.PathLike[str]) -> InboxSummary:
    """The content of an inbox in numbers. Raises the same errors as :func:`check_inbox`."""
    with _reading_inbox(path) as connection:
        meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())

        def number(sql: str) -> int:
            return int(connection.execute(sql).fetchone()[0])

        return InboxSummary(
            meta["owner"],
            meta.get("inbox_id", ""),
            number("SELECT count(*) FROM stream"),
            number("SELECT count(*) FROM gap"),
            number("SELECT coalesce(sum(last - first + 1), 0) FROM held"),
            number("SELECT coalesce(sum(size), 0) FROM held"),
            number("SELECT count(*) FROM dead_letter"),
            number("SELECT count(*) FROM quarantine"),
            {
                reason: (count, size)
                for reason, count, size in connection.execute(
                    "SELECT reason, count(*), sum(size) FROM quarantined_delivery GROUP BY reason ORDER BY reason"
                )
            },
            number("SELECT count(*) FROM tombstone"),
        )


def list_streams(path: str | os.PathLike[str], limit: int) -> list[StreamInfo]:
    """The first `limit` streams, by name (-1: all). Raises the same errors as :func:`check_inbox`."""
    with _reading_inbox(path) as connection:
        return [
            _stream_info(connection, stream_id, Stream(*names))
            for stream_id, *names in connection.execute(
                "SELECT id, producer, topic, part FROM stream ORDER BY producer, topic, part LIMIT ?",
                (limit,),
            ).fetchall()
        ]


def page_streams(
    path: str | os.PathLike[str], after: int, unused_since_us: int | None = None
) -> tuple[list[Stream], int | None]:
    """A page of streams, in the order in which they became known, and the value of `after` for the next page, None if
    there is none. The first page is 0. With `unused_since_us` (µs since 1970), returns only streams without progress
    since then.

    Raises the same errors as :func:`check_inbox`.
    """
    with _reading_inbox(path) as connection:
        rows = connection.execute(
            "SELECT id, producer, topic, part, (SELECT coalesce(max(used_us), 0) FROM epoch WHERE stream_id = id)"
            " FROM stream WHERE id > ? AND producer != '' ORDER BY id LIMIT ?",
            (after, PAGE_STREAMS),
        ).fetchall()
    streams = [Stream(*row[1:4]) for row in rows if unused_since_us is None or row[4] < unused_since_us]
    return streams, rows[-1][0] if len(rows) == PAGE_STREAMS else None


def list_gaps(path: str | os.PathLike[str], limit: int) -> list[GapRow]:
    """The gaps at streams' heads, oldest first (limit -1: all). Raises the same errors as :func:`check_inbox`."""
    with _reading_inbox(path) as connection:
        return [
            GapRow(Stream(producer, topic, part), *gap)
            for producer, topic, part, *gap in connection.execute(
                "SELECT producer, topic, part, epoch, first, last, elapsed_s, waited_s FROM gap"
                " JOIN stream ON stream.id = stream_id ORDER BY elapsed_s DESC, producer, topic, part LIMIT ?",
                (limit,),
            )
        ]


def list_quarantined(path: str | os.PathLike[str], limit: int) -> list[QuarantinedDelivery]:
    """The oldest deliveries in quarantine, without frames. Raises the same errors as :func:`check_inbox`."""
    with _reading_inbox(path) as connection:
        return read_quarantined(connection, Selection(), limit)


def find_stream(path: str | os.PathLike[str], name: str) -> Stream | None:
    """The known stream with this written name; None if there is none."""
    with _reading_inbox(path) as connection:
        for table in ("stream", "quarantined_delivery"):
            for at, character in enumerate(name):
                if character != "/":
                    continue
                producer, rest = name[:at], name[at + 1 :]
                topic, _, part = rest.partition("~")
                row = connection.execute(
                    f"SELECT producer, topic, part FROM {table} WHERE producer = ? AND topic = ? AND part = ? LIMIT 1",
                    (producer, topic, int(part) if part.isdecimal() else 0),
                ).fetchone()
                if row is not None:
                    return Stream(*row)
    return None
