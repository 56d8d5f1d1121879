"""Simulated disks: real SQLite files whose commits can fail, be cut short by a crash, or be undone by a restore.

A commit with ``synchronous=FULL`` is on the disk. A crash loses everything else, and may leave any part of the commit
that was being written. Files are in memory (``/dev/shm`` if it exists), so a simulated fsync costs nothing.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from reliamsg.store.database import Database, Kind, open_readonly

__all__ = ["Backup", "Crash", "DiskFault", "Drive", "Image", "Watcher"]

SECTOR = 512
"""Bytes that a disk writes either completely or not at all."""
SYNC_FULL = 2
"""``PRAGMA synchronous``: each commit is fsynced."""

DiskFault = Literal[
    "", "disk_full", "fsync_error", "crash_before_commit", "torn_write", "torn_checkpoint", "crash_after_commit",
]  # fmt: skip
"""The outcome of a commit; empty if nothing goes wrong."""

Image = tuple[bytes, bytes]
"""A database file and its WAL file."""

Execute = Callable[[str], sqlite3.Cursor]

_templates: dict[tuple[Kind, str], bytes] = {}
"""Newly created files, by kind and owner: copying one is faster than creating it."""


class Crash(BaseException):
    """The process terminates here, as with SIGKILL or a power failure. The product must not swallow it."""


_execute = sqlite3.Connection.execute
_CHECKPOINT = "PRAGMA wal_checkpoint"


class _Connection(sqlite3.Connection):
    """Lets its drive decide the outcome of each commit.

    `on_commit` is called with the object that executes SQL; `on_event` with ``"checkpoint"`` or ``"close"``.
    """

    def __init__(
        self,
        *arguments: Any,
        on_commit: Callable[[Execute], sqlite3.Cursor],
        on_event: Callable[[str], object],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._on_commit, self._on_event = on_commit, on_event
        self._attached = True

    def detach(self) -> None:
        """From now on, behave like an ordinary connection."""
        self._attached = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self._attached:
            return self._on_commit(super().execute)
        if sql.startswith(_CHECKPOINT) and self._attached:
            self._on_event("checkpoint")
        return _execute(self, sql, parameters)

    def close(self) -> None:
        if self._attached:
            self._on_event("close")
        super().close()


class Watcher(Protocol):
    """Is notified of commits, and of files that are replaced."""

    def committed(self, connection: sqlite3.Connection) -> None:
        """A transaction was committed."""

    def noted(self) -> object:
        """What it knows about the history of the file so far, for a later call of :meth:`replaced`."""

    def replaced(self, noted: Any) -> None:
        """The file is in an earlier state. `noted`: what the watcher knew when it was in that state, or later in the
        same history. The database is not open."""


@dataclass(frozen=True)
class Backup:
    """A copy of the files."""

    image: Image
    noted: object
    """By the watcher, at that time."""


class Drive:
    """One client's file."""

    def __init__(
        self,
        path: Path,
        kind: Kind,
        owner: str,
        chance: random.Random,
        draw_fault: Callable[[], DiskFault],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`draw_fault` is called at every commit and returns its outcome. `clock`: the time in seconds, required by
        :meth:`lose_wal`."""
        self.path = path
        self._kind, self._owner = kind, owner
        self._random, self._draw_fault, self._clock = chance, draw_fault, clock
        self._wal = path.with_name(path.name + "-wal")
        self._connection: _Connection | None = None
        self._watcher: Watcher | None = None
        self._opened: Image = b"", b""
        self._checked_sync = False
        """Whether it is known if commits are fsynced."""
        self._torn: Image | None = None
        """The files after a crash in the middle of a commit, if there was one."""
        self._synced: Image | None = None
        """Without fsync of commits: the state that is certainly on the disk."""
        self._checkpointed = True
        """The database file may have changed since the latest commit: only a checkpoint writes to it."""
        self._committed_at = 0.0
        self._first_seen: dict[int, tuple[float, object]] = {}
        """By checksum of a database file: when it was first seen, as the time of the latest commit that it can contain;
        and what the watcher had noted by then."""
        self._torn_databases: set[int] = set()
        """Checksums of database files that are useless without their WAL files."""

    def watch(self, watcher: Watcher) -> None:
        """Notify `watcher` of each commit of the process."""
        self._watcher = watcher

    def _seen_since(self) -> tuple[float, object]:
        """The time since which the database file has been in its current state, and what the watcher knew by then."""
        checksum = zlib.crc32(self.path.read_bytes())
        if checksum not in self._first_seen:
            self._first_seen[checksum] = self._committed_at, self._noted()
        return self._first_seen[checksum]

    def _noted(self) -> object:
        return None if self._watcher is None else self._watcher.noted()

    def back_up(self) -> Backup:
        """Copy the files."""
        return Backup(self.image(), self._noted())

    def bring_back(self, backup: Backup) -> None:
        """Replace the files by a copy. The database must not be open."""
        database, wal = backup.image
        self.path.write_bytes(database)
        self.path.with_name(self.path.name + "-shm").unlink(missing_ok=True)
        if wal:
            self._wal.write_bytes(wal)
        else:
            self._wal.unlink(missing_ok=True)
        if self._watcher is not None:
            self._watcher.replaced(backup.noted)

    def lose_wal(self) -> float | None:
        """Remove the WAL file. The database must not be open.

        Returns the time up to which everything is in the database file, or None if nothing was removed, because there
        is no WAL file or no intact database without it.
        """
        database, wal = self.image()
        if not wal or zlib.crc32(database) in self._torn_databases:
            return None
        since, noted = self._seen_since()
        self.bring_back(Backup((database, b""), noted))
        return since

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        """Replaces ``sqlite3.connect``."""
        before = self.image()
        connection = _Connection(path, on_commit=self._commit, on_event=self._on_event, **options)
        self._connection, self._opened, self._synced = connection, before, None
        self._checked_sync = False
        self._checkpointed = True
        return connection

    def _on_event(self, event: str) -> None:
        if event == "checkpoint":
            self._checkpointed = True
        else:
            self._connection = None

    @property
    def is_open(self) -> bool:
        """Whether the process has the file open."""
        return self._connection is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read committed data, over the process's own connection if it has one: opening another takes longer than most
        reads. The process must have no open transaction."""
        if self._connection is not None:
            assert not self._connection.in_transaction
            yield self._connection
        else:
            with contextlib.closing(open_readonly(self.path)) as connection:
                yield connection

    def format(self) -> None:
        """Create a new file if there is none."""
        if self.path.exists():
            return
        key = (self._kind, self._owner)
        if key not in _templates:
            Database(self.path, self._kind, self._owner).close()
            _templates[key] = self.path.read_bytes()
        self.path.write_bytes(_templates[key])
        self.path.chmod(0o600)

    def _commit(self, execute: Execute) -> sqlite3.Cursor:
        if not self._checked_sync:
            self._checked_sync = True
            if execute("PRAGMA synchronous").fetchone()[0] < SYNC_FULL:
                self._synced = self._opened
        fault = self._draw_fault()
        if fault == "disk_full":
            raise _DiskError("database or disk is full", sqlite3.SQLITE_FULL)
        if fault == "fsync_error":
            if self._random.random() < 0.5:
                execute("COMMIT")
            raise _DiskError("disk I/O error", sqlite3.SQLITE_IOERR_FSYNC)
        if fault == "crash_before_commit":
            raise Crash
        before = self.image() if fault == "torn_write" else None
        if self._clock is not None:
            if self._checkpointed:
                self._seen_since()
                self._checkpointed = False
            self._committed_at = self._clock()
        cursor = execute("COMMIT")
        if self._watcher is not None and self._connection is not None:
            self._watcher.committed(self._connection)
        if before is not None:
            self._torn = self._tear(before, self.image())
        if fault == "torn_checkpoint":
            self._torn = self._tear_checkpoint(self.image())
        if fault:
            raise Crash
        return cursor

    def _tear(self, before: Image, after: Image) -> Image:
        """The WAL file in the middle of a write: new up to some point, old from there on. A disk does not change bytes
        that are not being written (SQLite relies on that: https://www.sqlite.org/psow.html)."""
        old, new = before[1], after[1]
        size = len(new)
        first, both = 0, min(len(old), size)
        while first < both and old[first : first + SECTOR] == new[first : first + SECTOR]:
            first += SECTOR
        while first < both and old[first] == new[first]:
            first += 1
        first = min(first, both)
        # The last frame marks the transaction as complete, so it is never complete itself.
        at = self._random.randrange(first, max(first + 1, size - 512))
        rest = old[at:] if self._random.random() < 0.5 else self._random.randbytes(min(64, size - at))
        return before[0], new[:at] + rest

    def _tear_checkpoint(self, image: Image) -> Image:
        """The database file in the middle of a checkpoint: any part of the WAL file's content was copied. The WAL file
        stays complete until everything was copied."""
        old, wal = image
        aside = self.path.with_name(f"{self.path.name}.checkpoint")
        aside_wal = aside.with_name(f"{aside.name}-wal")
        aside.write_bytes(old)
        aside_wal.write_bytes(wal)
        with contextlib.closing(sqlite3.connect(aside)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            new = aside.read_bytes()
        for left in self.path.parent.glob(f"{aside.name}*"):
            left.unlink()
        torn = bytearray(old.ljust(len(new), b"\0"))
        share = self._random.random()
        for at in range(0, len(new), SECTOR):
            if self._random.random() < share:
                torn[at : at + SECTOR] = new[at : at + SECTOR]
        self._torn_databases.add(zlib.crc32(torn))
        return bytes(torn), wal

    # -- crashes and restores -------------------------------------------------------------------------------

    def image(self) -> Image:
        """The current files."""
        return self.path.read_bytes(), self._wal.read_bytes() if self._wal.exists() else b""

    def crash(self, close: Callable[[], None]) -> None:
        """Leave the files as they were when the process terminated. `close` closes them for the process."""
        image = self._torn or self.image()
        if self._synced is not None:
            image = self._synced
        self.abandon(close)
        self.bring_back(Backup(image, self._noted()))  # a commit that was torn is not part of its history

    def abandon(self, close: Callable[[], None]) -> None:
        """The process is gone; closing its files is not one of its actions."""
        if self._connection is not None:
            self._connection.detach()
            self._connection = None
        self._torn = None
        close()


class _DiskError(sqlite3.OperationalError):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.sqlite_errorcode = code
