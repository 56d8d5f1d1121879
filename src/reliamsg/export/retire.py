"""Retires the file of a client that will never run again: its journal ends, and it can't be opened any more."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.export.offline import export_rest
from reliamsg.export.segments import check_client
from reliamsg.export.target import open_target
from reliamsg.keys import KeyRing, check_keys
from reliamsg.store.database import Database, get_meta, kind_of, put_meta, reading
from reliamsg.store.exported import Exported, newest_row
from reliamsg.store.journal import Entry

__all__ = ["NotRetired", "Retired", "retire_file"]

_UNSETTLED_OUTBOX = """
SELECT coalesce(sum(CASE WHEN b.id >= ? THEN b.count ELSE coalesce((
    SELECT max(CASE WHEN b.epoch > m.epoch THEN b.count
                    WHEN b.epoch = m.epoch THEN max(0, min(b.count, b.seq + b.count - m.next))
                    ELSE 0 END)
    FROM member AS m WHERE m.stream_id = b.stream_id), 0) END), 0)
FROM batch AS b
"""
"""Messages whose confirm policy may not be met, and those that a named group has not settled."""
_UNSETTLED_INBOX = """
SELECT (SELECT coalesce(sum(last - first + 1), 0) FROM held)
    + (SELECT coalesce(sum(last - first + 1), 0) FROM quarantined_delivery)
"""
"""Messages that the application has not settled."""


class NotRetired(ReliamsgError):
    """The file still holds something, or its journal is not at its end. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Retired:
    """How a file was retired."""

    pending: int
    """Messages that were abandoned in it."""
    unclosed: bool
    """Whether its last opening was not closed."""
    segments: int
    """Segments that were exported."""


def retire_file(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    abandon: bool = False,
    key: KeyRing | None = None,
) -> Retired:
    """End the journal of an outbox or inbox with a ``retired`` row, after which no client can open the file. With a
    `target`, export the rest of the journal, signed if there is a `key`; otherwise
    :func:`~reliamsg.export.offline.export_file` can do that later.

    `abandon`: also retire an outbox with messages that are not confirmed, or that a named group has not settled; an
    inbox with messages that its application has not settled; and a file whose last opening was not closed.

    Raises :class:`NotRetired` without `abandon`; :class:`OutboxLocked` or :class:`InboxLocked` if a client has the file
    open; :class:`StoreRetired` if it was retired before; :class:`ConfigError` if no client has opened it yet; and
    :class:`JournalTargetError` if it was retired, but the target can't be written.
    """
    check_keys(key, "key")
    destination = None if target is None else open_target(target)
    with reading(path) as connection:
        kind, client = kind_of(connection), get_meta(connection, "owner", "")
    check_client(client)
    database = Database(path, kind, client)
    try:
        with database.reading() as connection:
            boot, last_kind = _newest(connection, path)
            pending = _unsettled(connection, kind)
        unclosed = last_kind != "closed"
        if not abandon:
            _check_settled(path, kind, pending, unclosed)
        exported = Exported(database, boot)
        _retire(database, exported, pending, unclosed)
        segments = 0 if destination is None else export_rest(database, exported, destination, key=key)
        return Retired(pending, unclosed, segments)
    finally:
        database.close()


def _newest(connection: sqlite3.Connection, path: str | os.PathLike[str]) -> tuple[str, str]:
    """The boot and the kind of the last row, which may have been exported."""
    boot, kind = newest_row(connection)
    if not boot:
        raise ConfigError(
            f"{os.fspath(path)}: it has no journal, or an earlier version exported it: have its client open and close"
            " it, then retire it"
        )
    return boot, kind


def _unsettled(connection: sqlite3.Connection, kind: str) -> int:
    if kind == "inbox":
        return int(connection.execute(_UNSETTLED_INBOX).fetchone()[0])
    published = int(get_meta(connection, "published", "1"))
    return int(connection.execute(_UNSETTLED_OUTBOX, (published,)).fetchone()[0])


def _check_settled(path: str | os.PathLike[str], kind: str, pending: int, unclosed: bool) -> None:
    problems = []
    if pending:
        what = (
            "messages that are not confirmed, or that a group has not settled"
            if kind == "outbox"
            else "messages that its application has not settled"
        )
        problems.append(f"it holds {pending:,} {what}")
    if unclosed:
        problems.append("its client was not closed")
    if problems:
        raise NotRetired(f"{os.fspath(path)}: not retired: {', and '.join(problems)}")


def _retire(database: Database, exported: Exported, pending: int, unclosed: bool) -> None:
    wall_us = time.time_ns() // 1000
    detail: dict[str, Any] = {"pending": pending} if pending else {}
    if unclosed:
        detail["unclosed"] = True
    group = database.owner if database.kind == "inbox" else ""
    entry = Entry("retired", group=group, detail=detail or None)
    with exported.journal.transaction(database, [entry], wall_us, time.monotonic_ns() // 1000) as connection:
        put_meta(connection, "retired_us", str(wall_us))
