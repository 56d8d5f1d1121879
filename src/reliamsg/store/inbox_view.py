"""Looking into an inbox file without owning it, also while its owner runs. Nothing here changes anything."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from reliamsg.message import Stream
from reliamsg.store.database import open_readonly, reading
from reliamsg.store.inbox_rows import DeadLetter, GapRow

__all__ = ["InboxInfo", "StreamInfo", "inspect_inbox", "read_dead_letters"]


def _dead_letters(connection: sqlite3.Connection, number: int | None, limit: int) -> list[DeadLetter]:
    rows = connection.execute(
        "SELECT dead_letter.id, producer, topic, part, epoch, incarnation, seq, key, headers, body, reason, attempts,"
        " wall_us FROM dead_letter JOIN stream ON stream.id = stream_id WHERE ? IS NULL OR dead_letter.id = ?"
        " ORDER BY dead_letter.id LIMIT ?",
        (number, number, limit),
    )
    return [
        DeadLetter(
            row[0], Stream(*row[1:4]), row[4], int(row[5], 16), row[6], row[7],
            msgspec.json.decode(row[8], type=dict[str, str]), *row[9:],
        )
        for row in rows
    ]  # fmt: skip


def read_dead_letters(
    path: str | os.PathLike[str], number: int | None = None, limit: int = 1_000
) -> list[DeadLetter]:
    """Dead letters of an inbox, oldest first, as of its last commit; only the one with id `number` if given.

    Works while the inbox's owner runs. Raises :class:`StoreCorrupt` when it is no inbox, or a damaged one.
    """
    with reading(path), contextlib.closing(open_readonly(path)) as connection:
        return _dead_letters(connection, number, limit)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as an inbox file shows it."""

    stream: Stream
    epoch: int
    position: int
    """The next number of `epoch` that is not settled."""
    held: int
    """Messages that are stored, in this epoch and later ones."""
    gap: GapRow | None


@dataclass(frozen=True, slots=True)
class InboxInfo:
    """What an inbox file holds, as of its last commit."""

    group: str
    inbox_id: str
    streams: Sequence[StreamInfo]
    held_messages: int
    held_bytes: int
    dead_letters: Sequence[DeadLetter]
    """The oldest 1,000."""
    dead_letter_count: int
    quarantined: int


def inspect_inbox(path: str | os.PathLike[str]) -> InboxInfo:
    """Look into an inbox, also while its owner runs. Changes nothing.

    Raises :class:`StoreCorrupt` when it is none, or a damaged one.
    """
    with reading(path), contextlib.closing(open_readonly(path)) as connection:
        meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
        streams = [
            _stream_info(connection, stream_id, Stream(*names))
            for stream_id, *names in connection.execute(
                "SELECT id, producer, topic, part FROM stream ORDER BY producer, topic, part"
            ).fetchall()
        ]
        count, size = connection.execute(
            "SELECT coalesce(sum(last - first + 1), 0), coalesce(sum(size), 0) FROM held"
        ).fetchone()
        return InboxInfo(
            meta["owner"],
            meta.get("inbox_id", ""),
            streams,
            count,
            size,
            _dead_letters(connection, None, 1_000),
            connection.execute("SELECT count(*) FROM dead_letter").fetchone()[0],
            connection.execute("SELECT count(*) FROM quarantine").fetchone()[0],
        )


def _stream_info(connection: sqlite3.Connection, stream_id: int, stream: Stream) -> StreamInfo:
    row = connection.execute(
        "SELECT epoch, position FROM epoch WHERE stream_id = ? AND entered ORDER BY epoch LIMIT 1",
        (stream_id,),
    ).fetchone() or (0, 1)
    held = connection.execute(
        "SELECT coalesce(sum(last - first + 1), 0) FROM held WHERE stream_id = ?", (stream_id,)
    ).fetchone()[0]
    gap = connection.execute(
        "SELECT epoch, first, last, elapsed_s FROM gap WHERE stream_id = ?", (stream_id,)
    ).fetchone()
    return StreamInfo(stream, row[0], row[1], held, None if gap is None else GapRow(stream, *gap))
