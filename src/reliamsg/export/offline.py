"""Exporting the journal of a file that nobody has open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Literal

from reliamsg.errors import ConfigError
from reliamsg.export.segments import check_client, make_segment
from reliamsg.export.target import open_target
from reliamsg.store.database import Database, Kind, open_readonly, reading
from reliamsg.store.exported import Exported
from reliamsg.store.journal import Journal

__all__ = ["export_file"]


def export_file(
    path: str | os.PathLike[str], target: str | os.PathLike[str], *, segment_rows: int = 10_000
) -> int:
    """Export all that is left of the journal in an outbox or inbox, in segments of at most `segment_rows` rows.

    Returns how many segments were written. What is exported leaves the file. Takes the file as its owner does: raises
    :class:`OutboxLocked` or :class:`InboxLocked` where it has one, :class:`StoreCorrupt` where it is neither, and
    :class:`JournalTargetError` where the target can't be written: segments up to there have left, the others stay.
    """
    if segment_rows < 1:
        raise ConfigError(f"segment_rows must be at least 1, not {segment_rows!r}")
    place = open_target(target)
    kind, client = _owner(path)
    role: Literal["producer", "group"] = "producer" if kind == "outbox" else "group"
    check_client(client)
    database = Database(path, kind, client)
    try:
        # No row will be written, so that this boot never shows.
        exported = Exported(database, Journal(""))
        count = 0
        while (cut := exported.cut(segment_rows)) is not None:
            segment = make_segment(database.path, role, client, cut)
            place.write(segment.path, segment.data)
            exported.finish(cut, segment.digest)
            count += 1
        return count
    finally:
        database.close()


def _owner(path: str | os.PathLike[str]) -> tuple[Kind, str]:
    """What kind of file it is, and whose."""
    with reading(path), contextlib.closing(open_readonly(Path(path))) as connection:
        return _kind(connection), connection.execute(
            "SELECT value FROM meta WHERE name = 'owner'"
        ).fetchone()[0]


def _kind(connection: sqlite3.Connection) -> Kind:
    outbox = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'batch'").fetchone()[0]
    return "outbox" if outbox else "inbox"
