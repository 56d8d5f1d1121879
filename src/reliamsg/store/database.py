"""The SQLite files: ownership, identity, schema, durability, and the translation of errors.

One process at a time owns a file, through a lock file beside it, and one thread uses its only connection: SQLite
before 3.51.3 can corrupt a WAL file that several connections write to. WAL with ``synchronous=FULL`` fsyncs once on
every commit; ``NORMAL`` would not. Checkpoints are made here, because SQLite hides the errors of its automatic
checkpoints, a failed fsync among them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from reliamsg.errors import (
    FatalError,
    InboxIndeterminate,
    InboxLocked,
    InboxWriteError,
    OutboxIndeterminate,
    OutboxLocked,
    OutboxWriteError,
    ReliamsgError,
    StoreCorrupt,
    StoreMismatch,
    StoreRetired,
    StoreTooNew,
    StoreUnsafe,
)
from reliamsg.files import create_private, make_directories, special_kind

__all__ = [
    "PAGE_BYTES",
    "Connect",
    "Database",
    "Kind",
    "get_meta",
    "kind_of",
    "open_readonly",
    "put_meta",
    "reading",
]

Kind = Literal["outbox", "inbox"]
Connect = Callable[..., sqlite3.Connection]
"""``sqlite3.connect``, or a replacement with the same arguments."""

_APPLICATION_ID = {"outbox": 0x524D4F31, "inbox": 0x524D4931}  # "RMO1", "RMI1": PRAGMA application_id
_LOCKED: dict[Kind, type[FatalError]] = {"outbox": OutboxLocked, "inbox": InboxLocked}
_WRITE: dict[Kind, type[ReliamsgError]] = {"outbox": OutboxWriteError, "inbox": InboxWriteError}
_INDETERMINATE: dict[Kind, type[FatalError]] = {"outbox": OutboxIndeterminate, "inbox": InboxIndeterminate}

# After these errors the transaction is rolled back and the file unchanged; a retry may succeed.
_NOT_WRITTEN = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}
# After these errors the state of the disk is unknown, and a second fsync may report a false success: the kernel marks
# pages that it could not write as clean (https://wiki.postgresql.org/wiki/Fsync_Errors).
_UNKNOWN = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# Errors in Python code that reads a value which was corrupted without SQLite noticing: a text instead of a number,
# invalid JSON, a reference to a missing row, a number too large.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

BUSY_TIMEOUT_MS = 5_000

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""A WAL file above this size is checkpointed."""

PAGE_BYTES = 4096
"""Disk space that a stored frame may need beyond its size: SQLite writes whole pages."""

RESERVE_BYTES = 64 * 1024
"""Disk space that new messages leave free, for the writes that free space: acknowledging and releasing messages."""


class Database:
    """An outbox or inbox file, owned and open for writing.

    `owner` is the producer id or group. Opening takes the lock, creates the file (mode 0600; a missing directory is
    created with 0700) and migrates its schema.

    Raises :class:`OutboxLocked`/:class:`InboxLocked`, :class:`StoreMismatch`, :class:`StoreCorrupt`,
    :class:`StoreTooNew`, :class:`StoreUnsafe`, :class:`StoreRetired` unless `retired`, or
    :class:`OutboxWriteError`/:class:`InboxWriteError` when the directory is not writable.

    `connect` is for simulated disks.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: Kind,
        owner: str,
        connect: Connect = sqlite3.connect,
        *,
        retired: bool = False,
    ) -> None:
        # The lock file is named after the real path, so that a symbolic link does not open a second outbox.
        self.path: Path = Path(os.path.realpath(path))
        self.kind: Kind = kind
        self.owner = owner
        self._connect = connect
        self._opens_retired = retired
        self._name, self._wal_name = str(self.path), f"{self.path}-wal"
        self._broken: FatalError | None = None
        """The error after which nothing may be written any more."""
        check_safe(path)
        self._lock = self._acquire()
        try:
            self.connection: sqlite3.Connection = self._open()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, (sqlite3.Error, *_UNREADABLE)) and not isinstance(error, ReliamsgError):
                raise self._translate(error) from error
            raise

    def close(self) -> None:
        """Close the connection and release the lock."""
        try:
            self.connection.close()
        finally:
            self._lock.release()

    def checkpoint(self) -> None:
        """Copy committed pages from the WAL into the database file.

        Raises ``…Indeterminate`` when its fsync fails and :class:`StoreCorrupt` when a page is damaged. A reader or a
        full disk only postpones it.
        """
        if self._broken is not None:
            raise type(self._broken)(*self._broken.args)
        try:
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            translated = self._translate(error)
            if isinstance(translated, FatalError):
                self._broken = translated
                raise translated from error

    @contextlib.contextmanager
    def transaction(
        self,
        adding: int = 0,
        last: Callable[[sqlite3.Connection], object] | None = None,
        settle: Callable[[bool], object] | None = None,
    ) -> Iterator[sqlite3.Connection]:
        """A transaction: committed and fsynced when the block ends, rolled back when it raises. `adding` is the size of
        the frames that it stores, plus :data:`PAGE_BYTES` for each; they must fit without filling the disk. `last` is
        called before the commit, and `settle` at the end, with whether everything succeeded.

        Raises ``…WriteError`` (nothing was stored; a retry may succeed), ``…Indeterminate`` or :class:`StoreCorrupt`.
        After one of the latter two, every later transaction raises it again: whether the failed transaction was stored
        is unknown, so nothing can be built on it.
        """
        succeeded = False
        try:
            if self._broken is not None:
                raise type(self._broken)(*self._broken.args)
            connection = self.connection
            try:
                if adding:
                    self._check_room(adding)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    if last is not None:
                        last(connection)
                    connection.execute("COMMIT")
                except BaseException as error:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                        self.checkpoint()  # so that the next transaction can reuse the WAL file's space
                    raise
            except sqlite3.Error as error:
                translated = self._translate(error)
                if isinstance(translated, FatalError):
                    self._broken = translated
                raise translated from error
            except UnicodeDecodeError as error:  # in SQLite's message, which names the damaged object
                self._broken = StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")
                raise self._broken from error
            # SQLite truncates the WAL file to its limit when it restarts it after a checkpoint, so above the limit the
            # size tells how much is pending. On a nearly full disk a checkpoint is due while the database can still
            # grow by the pending pages; otherwise the WAL file would fill the disk for good.
            wal, free = self._space()
            if wal > CHECKPOINT_BYTES or (free is not None and wal > free // 4):
                self.checkpoint()
            succeeded = True
        finally:
            if settle is not None:
                settle(succeeded)

    def _check_room(self, adding: int) -> None:
        """Messages are written to the WAL file first and later copied to the database, so both must have room."""
        wal, free = self._space()
        if free is None or free >= 2 * adding + RESERVE_BYTES:
            return
        connection = self.connection
        unused = connection.execute("PRAGMA freelist_count").fetchone()[0] * PAGE_BYTES
        # After a checkpoint, which is frequent here, SQLite overwrites the WAL file from its start.
        growth = max(0, adding - unused) + max(0, adding + RESERVE_BYTES - wal)
        if growth and free < growth + RESERVE_BYTES // 2:
            raise _WRITE[self.kind](f"{self.path}: not written: the disk is full ({free} bytes are free)")

    def _space(self) -> tuple[int, int | None]:
        """The size of the WAL file, and the free bytes on the disk; None where the file system does not report them."""
        wal, free = 0, None
        with contextlib.suppress(OSError):
            wal = os.stat(self._wal_name).st_size
        with contextlib.suppress(OSError):
            found = os.statvfs(self._name)
            free = found.f_bavail * found.f_frsize if found.f_blocks else None
        return wal, free

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for a block that reads the file and decodes the values: translates SQLite's errors, and
        raises :class:`StoreCorrupt` for values that can't be decoded."""
        try:
            yield self.connection
        except ReliamsgError:
            raise
        except (sqlite3.Error, *_UNREADABLE) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> ReliamsgError:
        code = getattr(error, "sqlite_errorcode", None)
        if code in _UNKNOWN:
            return _INDETERMINATE[self.kind](
                f"{self.path}: an fsync failed; the state on the disk is unknown"
            )
        primary = None if code is None else code & 0xFF
        if primary in _DAMAGED:
            return StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")
        if primary in _NOT_WRITTEN or primary == sqlite3.SQLITE_IOERR:
            # An I/O error other than a failed fsync precedes the commit's fsync: rolled back as on a full disk.
            return _WRITE[self.kind](f"{self.path}: not written: {error}")
        return StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")

    def _acquire(self) -> FileLock:
        directory = self.path.parent
        try:
            make_directories(directory)
            # Not thread-local, which is the default: the thread that closes is not the one that opened.
            lock = FileLock(f"{self.path}.lock", timeout=0, mode=0o600, thread_local=False)
            lock.acquire()
        except Timeout:
            if not os.path.exists(f"{self.path}.lock"):
                raise _WRITE[self.kind](
                    f"{self.path}: can't be opened for writing: no file can be created there"
                ) from None
            raise _LOCKED[self.kind](
                f"{self.path}: this {self.kind} is open in another process (or elsewhere in this process)"
            ) from None
        except OSError as error:
            raise _WRITE[self.kind](f"{self.path}: can't be opened for writing: {error.strerror}") from error
        return lock

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            # Created here, because SQLite would apply the umask; it gives its -wal and -shm files the same mode.
            try:
                os.close(create_private(self.path))
            except OSError as error:
                raise _WRITE[self.kind](f"{self.path}: can't be created: {error.strerror}") from error
        elif not self.path.is_file():
            raise StoreCorrupt(f"{self.path}: not a file")
        connection = self._connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self._check_kind(connection)
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreCorrupt(
                    f"{self.path}: this file system does not support WAL databases (mode {mode})"
                )
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # Some builds (Debian's) overwrite deleted content with zeros, which doubles the writes, and on a full disk
            # makes it impossible to free space.
            connection.execute("PRAGMA secure_delete = FAST")
            connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection)
            self._check_owner(connection)
            if not self._opens_retired:
                self._check_not_retired(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found != _APPLICATION_ID[self.kind] and (found or tables):
            other = next((kind for kind, number in _APPLICATION_ID.items() if number == found), None)
            actual = f"an {other}" if other else "another application's database"
            raise StoreMismatch(f"{self.path}: this is {actual}, not an {self.kind}")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        steps = migrations(self.kind)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(steps):
            raise StoreTooNew(
                f"{self.path}: schema version {version} is newer than this reliamsg supports ({len(steps)}):"
                " upgrade reliamsg"
            )
        if version == len(steps):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for number in range(version, len(steps)):
                for statement in statements(steps[number]):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID[self.kind]}")
            connection.execute(f"PRAGMA user_version = {len(steps)}")
            connection.execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('owner', ?)", (self.owner,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        owner = connection.execute("SELECT value FROM meta WHERE name = 'owner'").fetchone()[0]
        if owner != self.owner:
            whose = "producer" if self.kind == "outbox" else "group"
            raise StoreMismatch(
                f"{self.path}: this {self.kind} belongs to {whose} {owner!r}, not {self.owner!r}"
            )

    def _check_not_retired(self, connection: sqlite3.Connection) -> None:
        retired_us = int(get_meta(connection, "retired_us", "0"))
        if retired_us:
            when = datetime.fromtimestamp(retired_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise StoreRetired(
                f"{self.path}: this {self.kind} was retired at {when}; its client needs a new file"
            )


def check_safe(path: str | os.PathLike[str]) -> None:
    """Raise :class:`StoreUnsafe` where another user could change or replace an outbox or inbox at `path`, or has
    already replaced it. Checks its directory, the file, SQLite's files beside it and the lock file."""
    if os.name != "posix":
        return
    user = os.geteuid()
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        if os.path.islink(path) and os.lstat(path).st_uid not in (0, user):
            raise StoreUnsafe(f"{os.fspath(path)}: a symbolic link that another user created")
    if os.path.islink(path) and not os.path.lexists(real):
        # SQLite would create a new file at the target, as if there had never been one.
        raise StoreUnsafe(
            f"{os.fspath(path)}: a symbolic link to {real}, which does not exist: is its disk mounted? To start with an"
            " empty file, pass that path itself, or remove the link"
        )
    with contextlib.suppress(OSError):
        directory = os.stat(os.path.dirname(real))
        if directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
            raise StoreUnsafe(
                f"{real}: any user can replace files in its directory: chmod o-w {os.path.dirname(real)}"
            )
    for name in (real, *(f"{real}{suffix}" for suffix in ("-wal", "-shm", ".lock"))):
        try:
            found = os.lstat(name)
        except OSError:
            continue  # missing; any other problem is reported when the file is opened
        kind = special_kind(found.st_mode)
        if name != real and kind is not None:
            raise StoreUnsafe(f"{name}: not a file: {kind}")
        if found.st_uid != user:
            raise StoreUnsafe(
                f"{name}: belongs to another user (uid {found.st_uid}): run as that user, or chown it"
            )
        if found.st_mode & stat.S_IWOTH:
            raise StoreUnsafe(f"{name}: any user can write to it: chmod 600 {name}")


@functools.cache
def migrations(kind: Kind) -> tuple[str, ...]:
    """The SQL of all schema versions of a kind of file, in order: ``sql/outbox/0001.sql`` and so on."""
    folder = resources.files("reliamsg.store") / "sql" / kind
    entries = sorted(folder.iterdir(), key=lambda e: e.name)
    return tuple(entry.read_text() for entry in entries if entry.name.endswith(".sql"))


def statements(script: str) -> list[str]:
    """The statements of a migration. (``executescript()`` would commit before it runs.)"""
    found: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text.strip())
            text = ""
    return found


def get_meta(connection: sqlite3.Connection, name: str, default: str) -> str:
    """The value of a name in the table ``meta``."""
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return default if found is None else str(found[0])


def put_meta(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Set the value of a name in the table ``meta``."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def open_readonly(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open an outbox or inbox for reading only, even while its owner runs. Never writes, never checkpoints.

    Raises :class:`StoreCorrupt` when the file is neither.
    """
    real = Path(os.path.realpath(path))
    if not real.is_file():
        raise StoreCorrupt(f"{real}: {'not a file' if real.exists() else 'no such file'}")
    try:
        try:
            connection, found = _connect_readonly("mode=ro", real)
        except sqlite3.OperationalError:
            # SQLite creates files beside it, which a read-only directory forbids. Without a WAL file, no process has
            # the database open, and the one file is complete.
            if os.path.exists(f"{real}-wal"):
                raise
            connection, found = _connect_readonly("immutable=1", real)
    except sqlite3.Error as error:
        raise StoreCorrupt(f"{real}: not an outbox or inbox: {error}") from None
    if found not in _APPLICATION_ID.values():
        connection.close()
        raise StoreCorrupt(f"{real}: not an outbox or inbox")
    return connection


def kind_of(connection: sqlite3.Connection) -> Kind:
    """The kind of an outbox or inbox."""
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    return "outbox" if found == _APPLICATION_ID["outbox"] else "inbox"


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[sqlite3.Connection]:
    """A connection of :func:`open_readonly`, for a block that reads and decodes.

    Raises :class:`StoreMismatch` for another `kind` of file, and :class:`StoreCorrupt` if the file is damaged. Errors
    after which a retry may succeed remain ``sqlite3.Error``.
    """
    try:
        with contextlib.closing(open_readonly(path)) as connection:
            found = kind_of(connection)
            if kind not in (None, found):
                raise StoreMismatch(f"{path}: this is an {found}, not an {kind}")
            yield connection
    except ReliamsgError:
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _NOT_WRITTEN:
            raise
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: {error}") from error
    except _UNREADABLE as error:
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: {error}") from error


def _connect_readonly(mode: str, path: Path) -> tuple[sqlite3.Connection, int]:
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        return connection, connection.execute("PRAGMA application_id").fetchone()[0]
    except BaseException:
        connection.close()
        raise
