"""Opens outboxes and inboxes for decoding what is in them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from reliamsg.errors import StoreMismatch, StoreTooNew
from reliamsg.store.database import Kind, migrations, reading
from reliamsg.store.inbox_view import TABLES_VERSION

__all__ = ["looking", "snapshot"]

_TABLES_VERSION = {"outbox": 3, "inbox": TABLES_VERSION}
"""The latest version of each schema that changed tables."""


@contextlib.contextmanager
def looking(path: str | os.PathLike[str], kind: Kind) -> Iterator[sqlite3.Connection]:
    """A connection for reading, even while the owner of the file runs. Each statement sees the latest commit.

    Text that is not valid UTF-8, because it was damaged, is read with replacement characters.

    Raises :class:`StoreCorrupt`, :class:`StoreMismatch` for another kind of file and for one of an earlier version that
    was not opened since, and :class:`StoreTooNew`.
    """
    with reading(path, kind) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        latest = len(migrations(kind))
        if version > latest:
            raise StoreTooNew(
                f"{path}: schema version {version} is newer than this reliamsg supports ({latest}): upgrade reliamsg"
            )
        if version < _TABLES_VERSION[kind]:
            raise StoreMismatch(
                f"{path}: this {kind} was written by an older version; open it once with the current version"
            )
        connection.text_factory = _text
        yield connection


@contextlib.contextmanager
def snapshot(path: str | os.PathLike[str], kind: Kind) -> Iterator[sqlite3.Connection]:
    """The same, but all statements see one commit. Meanwhile, the owner's WAL file can't be reset, and grows by what
    the owner writes."""
    with looking(path, kind) as connection:
        connection.execute("BEGIN")
        yield connection


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
