"""Exports the journal of a file that no client has open."""

from __future__ import annotations

import os

from reliamsg.errors import ConfigError
from reliamsg.export.segments import JournalSource, Role, check_client, make_segment
from reliamsg.export.target import Target, open_target
from reliamsg.keys import KeyRing, check_keys
from reliamsg.store.database import Database, get_meta, kind_of, reading
from reliamsg.store.exported import Exported

__all__ = ["export_file", "export_rest"]


def export_file(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    segment_rows: int = 10_000,
    key: KeyRing | None = None,
) -> int:
    """Export the remaining journal of an outbox or inbox, in segments of at most `segment_rows` rows. `key`: that of
    its client, to sign them with.

    Returns the number of segments written. Exported rows are deleted from the file. Locks the file as its owner would:
    raises :class:`OutboxLocked` or :class:`InboxLocked` if a client has it open. Raises :class:`StoreCorrupt` if it is
    neither an outbox nor an inbox, and :class:`JournalTargetError` if the target can't be written: earlier segments are
    exported, the others stay.
    """
    if segment_rows < 1:
        raise ConfigError(f"segment_rows must be at least 1, not {segment_rows!r}")
    check_keys(key, "key")
    destination = open_target(target)
    with reading(path) as connection:
        kind, client = kind_of(connection), get_meta(connection, "owner", "")
    check_client(client)
    database = Database(path, kind, client, retired=True)
    try:
        # The boot is not used: no rows are written.
        return export_rest(database, Exported(database, boot=""), destination, segment_rows, key)
    finally:
        database.close()


def export_rest(
    database: Database,
    exported: Exported,
    destination: Target,
    segment_rows: int = 10_000,
    key: KeyRing | None = None,
) -> int:
    """Export all rows of an open file; returns the number of segments. Raises as :func:`export_file` does."""
    role: Role = "producer" if database.kind == "outbox" else "group"
    source = JournalSource(role, database.owner, database.path, exported)
    count = 0
    while (cut := exported.cut(segment_rows)) is not None:
        segment = make_segment(source, cut, key)
        destination.write(segment.path, segment.data)
        exported.finish(cut, segment.digest)
        count += 1
    return count
