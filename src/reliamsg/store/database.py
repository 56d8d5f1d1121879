"""Opening the SQLite files: ownership, identity, schema, durability, and what errors mean.

Every file is owned by one process at a time, through a lock file beside it, and has one connection that one
thread uses: SQLite before 3.51.3 can corrupt a WAL file that several connections write to. WAL with
``synchronous=FULL`` fsyncs once on every commit; ``NORMAL`` would not. Checkpoints are made here, since SQLite
swallows the errors of those that it makes by itself, a failed fsync among them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
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
    StoreTooNew,
    StoreUnsafe,
)
from reliamsg.files import create_private, make_directories, what_it_is

__all__ = ["PAGE_BYTES", "Connect", "Database", "Kind", "open_readonly", "put_meta", "reading"]

Kind = Literal["outbox", "inbox"]
Connect = Callable[..., sqlite3.Connection]
"""``sqlite3.connect``, or what takes its place and its arguments."""

_APPLICATION_ID = {"outbox": 0x524D4F31, "inbox": 0x524D4931}  # "RMO1", "RMI1": PRAGMA application_id
_LOCKED: dict[Kind, type[FatalError]] = {"outbox": OutboxLocked, "inbox": InboxLocked}
_WRITE: dict[Kind, type[ReliamsgError]] = {"outbox": OutboxWriteError, "inbox": InboxWriteError}
_INDETERMINATE: dict[Kind, type[FatalError]] = {"outbox": OutboxIndeterminate, "inbox": InboxIndeterminate}

# After these the transaction is undone and the file is as it was; the same may work later.
_NOT_WRITTEN = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}
# After these it is unknown what the disk holds, and a second fsync may lie: the kernel marks pages clean that
# it could not write (https://wiki.postgresql.org/wiki/Fsync_Errors).
_UNKNOWN = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# What a changed byte that SQLite does not notice does to whoever reads it: a text where a number should be, no JSON, a
# row that refers to none, a number too large.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

BUSY_TIMEOUT_MS = 5_000

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""A WAL file above this size is carried over into the database."""

PAGE_BYTES = 4096
"""What a stored frame may take up beyond its size: SQLite writes whole pages."""

RESERVE_BYTES = 64 * 1024
"""New messages leave so much of the disk free, for what makes room again: acknowledging and releasing them."""


class Database:
    """One outbox or inbox file, owned.

    `owner` is the producer id or group. Opening takes the lock, creates the file (0600, in a directory made
    0700 if it is missing) and brings its schema up to date.

    Raises :class:`OutboxLocked`/:class:`InboxLocked`, :class:`StoreMismatch`, :class:`StoreCorrupt`,
    :class:`StoreTooNew`, :class:`StoreUnsafe`, or :class:`OutboxWriteError`/:class:`InboxWriteError` when the
    directory can't be written.

    `connect` is for simulated disks.
    """

    def __init__(
        self, path: str | os.PathLike[str], kind: Kind, owner: str, connect: Connect = sqlite3.connect
    ) -> None:
        # The lock is named from the real path, so that a symbolic link is no second outbox.
        self.path = Path(os.path.realpath(path))
        self.kind: Kind = kind
        self.owner = owner
        self._connect = connect
        self._name, self._wal_name = str(self.path), f"{self.path}-wal"
        self._broken: FatalError | None = None
        """Why nothing may be written any more."""
        check_safe(path)
        self._lock = self._acquire()
        try:
            with self.translated():
                self.connection = self._open()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Close the connection and give the file up."""
        try:
            self.connection.close()
        finally:
            self._lock.release()

    def checkpoint(self) -> None:
        """Carry what is committed over into the database file.

        Raises ``…Indeterminate`` when its fsync fails, :class:`StoreCorrupt` when a page is damaged. A reader in the
        way, or a full disk, only puts it off.
        """
        self._check_whole()
        try:
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            meaning = self._meaning(error)
            if isinstance(meaning, FatalError):
                self._broken = meaning
                raise meaning from error

    @contextlib.contextmanager
    def transaction(self, adding: int = 0) -> Iterator[sqlite3.Connection]:
        """One transaction: committed and fsynced when the block ends, undone when it raises. `adding`: bytes of
        frames that it stores, with :data:`PAGE_BYTES` for each; they must fit without using up the disk.

        SQLite's errors come out as this library's: ``…WriteError`` (nothing was stored, try again later),
        ``…Indeterminate`` (stop) or :class:`StoreCorrupt`. After one of these two, every later transaction raises it
        again: what the one before should have held may be there, or not, so nothing can be built on it.
        """
        self._check_whole()
        connection = self.connection
        try:
            if adding:
                self._check_room(adding)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    self.checkpoint()  # then the next transaction may have the WAL file's room
                raise
        except sqlite3.Error as error:
            meaning = self._meaning(error)
            if isinstance(meaning, FatalError):
                self._broken = meaning
            raise meaning from error
        except UnicodeDecodeError as error:  # of SQLite's message, which names what is damaged
            self._broken = StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")
            raise self._broken from error
        if self._wal_is_long():
            self.checkpoint()

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(*self._broken.args)

    def _wal_is_long(self) -> bool:
        """Whether it is time for a checkpoint. SQLite cuts the WAL file down to its limit when it begins anew after
        one, so above the limit the size says how much waits. Where the disk is nearly full, it is time while the
        database can still grow by what waits: without that the WAL file would fill the disk for good."""
        size = self._wal_bytes()
        if size > CHECKPOINT_BYTES:
            return True
        free = self._free_bytes()
        return free is not None and size > free // 4

    def _check_room(self, adding: int) -> None:
        """Messages go into the WAL file first, and then into the database as well."""
        free = self._free_bytes()
        if free is None or free >= 2 * adding + RESERVE_BYTES:
            return
        connection = self.connection
        unused = connection.execute("PRAGMA freelist_count").fetchone()[0] * PAGE_BYTES
        # After a checkpoint, which is frequent here, the WAL file is written from its start again.
        growth = max(0, adding - unused) + max(0, adding + RESERVE_BYTES - self._wal_bytes())
        if growth and free < growth + RESERVE_BYTES // 2:
            raise _WRITE[self.kind](f"{self.path}: not written: the disk is full ({free} bytes are free)")

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self._wal_name).st_size
        except OSError:
            return 0

    def _free_bytes(self) -> int | None:
        """What is free on the disk; None where the file system does not tell."""
        try:
            found = os.statvfs(self._name)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """For a block that reads the file and makes something of it: SQLite's errors come out as this library's, and
        what is stored and makes no sense as :class:`StoreCorrupt`."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._meaning(error) from error
        except ReliamsgError:
            raise
        except _UNREADABLE as error:
            raise StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}") from error

    def _meaning(self, error: sqlite3.Error) -> ReliamsgError:
        code = getattr(error, "sqlite_errorcode", None)
        if code in _UNKNOWN:
            return _INDETERMINATE[self.kind](f"{self.path}: an fsync failed; what is on the disk is unknown")
        primary = None if code is None else code & 0xFF
        if primary in _DAMAGED:
            return StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")
        if primary in _NOT_WRITTEN:
            return _WRITE[self.kind](f"{self.path}: not written: {error}")
        if primary == sqlite3.SQLITE_IOERR:
            # A write that failed before the commit's fsync: undone like a full disk.
            return _WRITE[self.kind](f"{self.path}: not written: {error}")
        return StoreCorrupt(f"{self.path}: not a usable {self.kind}: {error}")

    def _acquire(self) -> FileLock:
        directory = self.path.parent
        try:
            make_directories(directory)
            # Not per thread, as it would be by default: the thread that closes is not the one that opened.
            lock = FileLock(f"{self.path}.lock", timeout=0, mode=0o600, thread_local=False)
            lock.acquire()
        except Timeout:
            if not os.path.exists(f"{self.path}.lock"):
                raise _WRITE[self.kind](
                    f"{self.path}: can't be opened for writing: no file can be made there"
                ) from None
            raise _LOCKED[self.kind](
                f"{self.path}: this {self.kind} is open in another process (or elsewhere in this one)"
            ) from None
        except OSError as error:
            raise _WRITE[self.kind](f"{self.path}: can't be opened for writing: {error.strerror}") from error
        return lock

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            # Created before SQLite does, which would use the umask's mode; its -wal and -shm copy ours.
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
                raise StoreCorrupt(f"{self.path}: this file system can't hold a WAL database (mode {mode})")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # Some builds (Debian's) overwrite with zeros what is deleted: as much writing again, and on a full disk
            # no way to make room.
            connection.execute("PRAGMA secure_delete = FAST")
            connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection)
            self._check_owner(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found != _APPLICATION_ID[self.kind] and (found or tables):
            other = next((kind for kind, number in _APPLICATION_ID.items() if number == found), None)
            what = f"an {other}" if other else "a database of something else"
            raise StoreMismatch(f"{self.path}: this is {what}, not an {self.kind}")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        steps = migrations(self.kind)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(steps):
            raise StoreTooNew(
                f"{self.path}: schema version {version} is newer than this reliamsg knows ({len(steps)}); upgrade it"
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


def check_safe(path: str | os.PathLike[str]) -> None:
    """Raise :class:`StoreUnsafe` where others than this user could change or replace an outbox or inbox at `path`, or
    have put something else in its place: its directory, the file, and what SQLite and the lock put beside it."""
    if os.name != "posix":
        return
    user = os.geteuid()
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        if os.path.islink(path) and os.lstat(path).st_uid not in (0, user):
            raise StoreUnsafe(f"{os.fspath(path)}: a symbolic link that another user has made")
    if os.path.islink(path) and not os.path.lexists(real):
        # SQLite would begin a new file at its end, as if nothing had ever been there.
        raise StoreUnsafe(
            f"{os.fspath(path)}: a symbolic link to {real}, which does not exist: is its disk there? To begin with an"
            " empty file, name that path itself, or remove the link"
        )
    with contextlib.suppress(OSError):
        directory = os.stat(os.path.dirname(real))
        if directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
            raise StoreUnsafe(
                f"{real}: anybody can replace files in its directory: chmod o-w {os.path.dirname(real)}"
            )
    for name in (real, *(f"{real}{suffix}" for suffix in ("-wal", "-shm", ".lock"))):
        try:
            found = os.lstat(name)
        except OSError:
            continue  # it is not there; what else is wrong is said by whoever opens it
        kind = what_it_is(found.st_mode)
        if name != real and kind is not None:
            raise StoreUnsafe(f"{name}: not a file: {kind}")
        if found.st_uid != user:
            raise StoreUnsafe(
                f"{name}: belongs to another user (uid {found.st_uid}): run as that user, or chown it"
            )
        if found.st_mode & stat.S_IWOTH:
            raise StoreUnsafe(f"{name}: anybody can write it: chmod 600 {name}")


@functools.cache
def migrations(kind: Kind) -> tuple[str, ...]:
    """The SQL of every schema version of a kind of file, in order: ``sql/outbox/0001.sql`` and so on."""
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


def put_meta(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a value under a name, in the place of what was there."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def open_readonly(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open an outbox or inbox to look at it, also while its owner runs. Never writes, never checkpoints.

    Raises :class:`StoreCorrupt` when it is neither.
    """
    real = Path(os.path.realpath(path))
    if not real.is_file():
        raise StoreCorrupt(f"{real}: there is no such file")
    try:
        try:
            connection, found = _look("mode=ro", real)
        except sqlite3.OperationalError:
            # SQLite wants to make files beside it, which a read-only place forbids. Where there is no WAL file,
            # nobody has it open, and all of it is in the one file.
            if os.path.exists(f"{real}-wal"):
                raise
            connection, found = _look("immutable=1", real)
    except sqlite3.Error as error:
        raise StoreCorrupt(f"{real}: not an outbox or inbox: {error}") from None
    if found not in _APPLICATION_ID.values():
        connection.close()
        raise StoreCorrupt(f"{real}: not an outbox or inbox")
    return connection


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """For a block that makes something of a file that :func:`open_readonly` opened: raises :class:`StoreCorrupt` where
    it is damaged. What may work later stays SQLite's error."""
    try:
        yield
    except ReliamsgError:
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _NOT_WRITTEN:
            raise
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: {error}") from error
    except _UNREADABLE as error:
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: {error}") from error


def _look(how: str, path: Path) -> tuple[sqlite3.Connection, int]:
    connection = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        return connection, connection.execute("PRAGMA application_id").fetchone()[0]
    except BaseException:
        connection.close()
        raise
