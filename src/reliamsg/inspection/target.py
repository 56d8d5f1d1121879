"""A new SQLite file, written with sqlite-utils. It appears under its name when it is complete, and not before."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from sqlite_utils import Database

from reliamsg.errors import ConfigError, StoreCorrupt
from reliamsg.files import create_private, special_kind
from reliamsg.store.database import open_readonly

__all__ = ["ExportFile", "ExportFileError", "Table"]

_BUFFERED_ROWS = 500
_BUFFERED_BYTES = 4 * 1024 * 1024
_BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the names of files that belong to the SQLite file of the name before."""


class ExportFileError(OSError):
    """An exported file can't be written."""


class Table(msgspec.Struct, frozen=True):
    """A table of an exported file."""

    name: str
    columns: Mapping[str, type]
    """Their types, by name: int, str, bytes or float."""
    pk: str | tuple[str, ...]
    foreign_keys: Sequence[tuple[str, str, str]] = ()
    """(column, table, column of that table)"""
    indexes: Sequence[tuple[str, ...]] = ()
    nullable: frozenset[str] = frozenset()


class ExportFile:
    """Creates the file `path`, with mode 0600, from rows that are added to tables; as a context manager.

    The rows are written to a hidden file in the same directory, with little of them in memory. :meth:`finish` moves it
    to its place; without it, the block deletes it.

    Raises :class:`ConfigError` if `path` exists, unless `replace`, and even then if it is an outbox or inbox, or not a
    regular file; :class:`ExportFileError` if it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], replace: bool = False) -> None:
        self._path = Path(path)
        self._may_replace = replace
        self._check_path()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._buffered = (0, 0)
        """Rows and bytes."""
        self.counts: Counter[str] = Counter()
        """Rows by table."""
        self._aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        with self._writing(), contextlib.ExitStack() as stack:
            os.close(create_private(self._aside))
            stack.callback(self._aside.unlink, missing_ok=True)
            connection = stack.enter_context(contextlib.closing(sqlite3.connect(self._aside)))
            # A file that was not finished is deleted, so nothing is ever rolled back.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            # Plugins of sqlite-utils are code of others, which an export has no use for.
            self._db = Database(connection, execute_plugins=False, strict=True)
            self._db.begin()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def create(self, *tables: Table) -> None:
        """Create tables, each after those that it refers to."""
        with self._writing():
            for table in tables:
                made = self._db.table(table.name).create(
                    dict(table.columns),
                    pk=table.pk,
                    foreign_keys=list(table.foreign_keys),
                    not_null=set(table.columns) - table.nullable,
                )
                for index in table.indexes:
                    made.create_index(index)
                self._rows[table.name] = []
                self.counts[table.name] = 0

    def add(self, table: str, row: dict[str, Any], size: int = 0) -> None:
        """Add a row to a table. Dicts and lists are stored as JSON. `size` is about how many bytes it has if it may be
        large."""
        self._rows[table].append(row)
        self.counts[table] += 1
        rows, bytes_ = self._buffered
        self._buffered = (rows + 1, bytes_ + size)
        if rows >= _BUFFERED_ROWS or bytes_ + size >= _BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        with self._writing():
            for table, rows in self._rows.items():
                if rows:
                    self._db.table(table).insert_all(rows)
                    rows.clear()
        self._buffered = (0, 0)

    def finish(self, views: Mapping[str, str]) -> dict[str, int]:
        """Create views (SQL by name), and move the file to its place. It is durable on return. Returns the number of
        rows by table."""
        self._flush()
        with self._writing():
            for name, sql in views.items():
                self._db.create_view(name, sql)
            self._db.commit()
            self._db.close()
            _sync(self._aside, os.O_RDWR)
            if not self._may_replace and os.path.lexists(self._path):  # it appeared in the meantime
                raise ConfigError(_exists(self._path))
            os.replace(self._aside, self._path)
            _sync(self._path.parent, os.O_RDONLY)
        return dict(self.counts)

    def _check_path(self) -> None:
        path = self._path
        for end in _BESIDE:
            if os.path.lexists(f"{path}{end}"):
                raise ConfigError(
                    f"{path}{end} exists: a program has {path} open, or left it unfinished; choose another name"
                )
            if path.name.endswith(end) and os.path.lexists(str(path).removesuffix(end)):
                raise ConfigError(f"{path}: this name belongs to a file of SQLite's; choose another one")
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return  # missing, or reported when the file is created
        kind = special_kind(mode)
        if kind is not None:
            raise ConfigError(f"{path}: not a file: {kind}")
        if not self._may_replace:
            raise ConfigError(_exists(path))
        if _is_store(path):
            raise ConfigError(f"{path}: an outbox or inbox is not replaced")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Translates errors of the new file, so that they are not taken for those of the file that is read."""
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            number = errno.ENOSPC if full else errno.EIO
            raise ExportFileError(number, f"not written: {error}", str(self._path)) from error
        except OSError as error:
            raise ExportFileError(error.errno, f"not written: {error.strerror}", str(self._path)) from error


def _exists(path: Path) -> str:
    return f"{path} exists; to replace it, use --replace"


def _is_store(path: Path) -> bool:
    try:
        open_readonly(path).close()
    except StoreCorrupt:
        return False
    return True


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
