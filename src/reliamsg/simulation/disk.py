"""Simulated disks: real SQLite files whose commits can fail, be cut short by a crash, or be undone by a restore.

What a process committed with ``synchronous=FULL`` is on the disk; a crash takes everything else, and may leave any
part of the commit that was being written. Files lie in memory (``/dev/shm`` where there is one), so that a simulated
fsync costs nothing.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from reliamsg.store.database import Database, Kind, open_readonly

__all__ = ["Crash", "Drive", "Image", "Mishap"]

SECTOR = 512
"""A disk writes that much, or nothing of it."""
SYNC_FULL = 2
"""``PRAGMA synchronous``: each commit is fsynced."""

Mishap = Literal[
    "", "disk_full", "fsync_error", "crash_before_commit", "torn_write", "torn_checkpoint", "crash_after_commit",
]  # fmt: skip
"""What happens to a commit; empty where nothing does."""

Image = tuple[bytes, bytes]
"""A database file and its WAL file."""

_templates: dict[tuple[Kind, str], bytes] = {}
"""Files as they are when they were just made, by kind and owner: making one takes longer than copying it."""


class Crash(BaseException):
    """The process ends at this point, as by SIGKILL or a power cut. No part of the product may catch it for good."""


_execute = sqlite3.Connection.execute
_CHECKPOINT = "PRAGMA wal_checkpoint"


class _Connection(sqlite3.Connection):
    """Lets its drive decide on each commit."""

    drive: Drive | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.drive is not None:
            return self.drive.commit(super().execute)
        if sql.startswith(_CHECKPOINT) and self.drive is not None:
            self.drive.checkpointed = True
        return _execute(self, sql, parameters)

    def close(self) -> None:
        if self.drive is not None:
            self.drive.closed()
        super().close()


class Drive:
    """One client's file. `mishap` is asked at every commit; `committed` is told of each that is on the disk."""

    def __init__(self, path: Path, kind: Kind, owner: str, chance: random.Random) -> None:
        self.path = path
        self.mishap: Callable[[], Mishap] = lambda: ""
        self.commits = 0
        self.checkpointed = True
        """The database file may be another than it was at the latest commit: nothing else writes to it."""
        self._kind, self._owner = kind, owner
        self._random = chance
        self._wal = path.with_name(path.name + "-wal")
        self._connection: _Connection | None = None
        self._opened: Image = b"", b""
        self._looked = False
        """Whether it is known if commits are fsynced."""
        self._torn: Image | None = None
        """What a crash in the middle of a commit has left, if there was one."""
        self._synced: Image | None = None
        """Where commits are not fsynced: what is on the disk for sure."""
        self._clock: Callable[[], float] | None = None
        self._committed_at = 0.0
        self._seen: dict[int, float] = {}
        """When the database file was first seen to have this checksum, by the latest commit that can be in it."""
        self._torn_databases: set[int] = set()
        """Checksums of database files that are nothing without their WAL files."""

    def watch_checkpoints(self, clock: Callable[[], float]) -> None:
        """Keep a record of what is in the database file alone: see :meth:`lose_wal`."""
        self._clock = clock

    def _look_at_database(self) -> float:
        """Since when the database file is as it is."""
        return self._seen.setdefault(zlib.crc32(self.path.read_bytes()), self._committed_at)

    def lose_wal(self) -> float | None:
        """Remove the WAL file. Nobody may have the database open. Gives the time up to which all is in the database
        file; None where nothing was removed: there is no WAL file, or no database without it."""
        database, wal = self.image()
        if not wal or zlib.crc32(database) in self._torn_databases:
            return None
        since = self._look_at_database()
        self.restore((database, b""))
        return since

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        """Takes the place of ``sqlite3.connect``."""
        before = self.image()
        connection = sqlite3.connect(path, factory=_Connection, **options)
        connection.drive = self
        self._connection, self._opened, self._synced = connection, before, None
        self._looked = False
        self.checkpointed = True
        return connection

    def closed(self) -> None:
        """The connection is about to be closed cleanly."""
        self._connection = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For a look at what is committed: over the process's own connection where it has one, since opening another
        takes longer than most looks. Nothing may be going on in the process."""
        if self._connection is not None:
            assert not self._connection.in_transaction
            yield self._connection
        else:
            with contextlib.closing(open_readonly(self.path)) as connection:
                yield connection

    def format(self) -> None:
        """Make a new file, where there is none."""
        if self.path.exists():
            return
        key = (self._kind, self._owner)
        if key not in _templates:
            Database(self.path, self._kind, self._owner).close()
            _templates[key] = self.path.read_bytes()
        self.path.write_bytes(_templates[key])
        self.path.chmod(0o600)

    def commit(self, execute: Callable[[str], sqlite3.Cursor]) -> sqlite3.Cursor:
        """Commit, or what becomes of that."""
        if not self._looked:
            self._looked = True
            if execute("PRAGMA synchronous").fetchone()[0] < SYNC_FULL:
                self._synced = self._opened
        mishap = self.mishap()
        if mishap == "disk_full":
            raise _error("database or disk is full", sqlite3.SQLITE_FULL)
        if mishap == "fsync_error":
            if self._random.random() < 0.5:
                execute("COMMIT")
            raise _error("disk I/O error", sqlite3.SQLITE_IOERR_FSYNC)
        if mishap == "crash_before_commit":
            raise Crash
        before = self.image() if mishap == "torn_write" else None
        if self._clock is not None:
            if self.checkpointed:
                self._look_at_database()
                self.checkpointed = False
            self._committed_at = self._clock()
        cursor = execute("COMMIT")
        self.commits += 1
        if before is not None:
            self._torn = self._tear(before, self.image())
        if mishap == "torn_checkpoint":
            self._torn = self._tear_checkpoint(self.image())
        if mishap:
            raise Crash
        return cursor

    def _tear(self, before: Image, after: Image) -> Image:
        """The WAL file while it was being written: new up to somewhere, old from there on. A disk leaves alone what is
        not being written (SQLite relies on that: https://www.sqlite.org/psow.html)."""
        old, new = before[1], after[1]
        size = len(new)
        first, both = 0, min(len(old), size)
        while first < both and old[first : first + SECTOR] == new[first : first + SECTOR]:
            first += SECTOR
        while first < both and old[first] == new[first]:
            first += 1
        first = min(first, both)
        # The last frame says that the transaction is complete: it never is.
        at = self._random.randrange(first, max(first + 1, size - 512))
        rest = old[at:] if self._random.random() < 0.5 else self._random.randbytes(min(64, size - at))
        return before[0], new[:at] + rest

    def _tear_checkpoint(self, image: Image) -> Image:
        """The database file while what is in the WAL file was being copied into it: any part of that is there. The WAL
        file is complete until all of it is."""
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

    # -- what becomes of the file ---------------------------------------------------------------------------

    def image(self) -> Image:
        """The files as they are now."""
        return self.path.read_bytes(), self._wal.read_bytes() if self._wal.exists() else b""

    def crash(self, close: Callable[[], None]) -> None:
        """Leave the files as they were when the process ended. `close` gives up the process's hold on them."""
        image = self._torn or self.image()
        if self._synced is not None:
            image = self._synced
        self.abandon(close)
        self.restore(image)

    def abandon(self, close: Callable[[], None]) -> None:
        """The process is gone; what closing does to the files does not count."""
        if self._connection is not None:
            self._connection.drive = None
            self._connection = None
        self._torn = None
        close()

    def restore(self, image: Image) -> None:
        """Make the files what they were. Nobody may have them open."""
        database, wal = image
        self.path.write_bytes(database)
        self.path.with_name(self.path.name + "-shm").unlink(missing_ok=True)
        if wal:
            self._wal.write_bytes(wal)
        else:
            self._wal.unlink(missing_ok=True)


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
