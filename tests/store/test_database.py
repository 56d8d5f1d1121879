"""Owning a file, and what a disk does to it."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
from pathlib import Path

import pytest

from reliamsg.errors import (
    InboxLocked,
    OutboxLocked,
    OutboxWriteError,
    StoreCorrupt,
    StoreMismatch,
    StoreTooNew,
)
from reliamsg.store import database
from reliamsg.store.database import CHECKPOINT_BYTES, Database, open_readonly
from tests.children import run_child
from tests.store.faults import FailingDisk, fill, remount, small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def put(db: Database, name: str, value: str = "x") -> None:
    with db.transaction() as connection:
        connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))


def names(db: Database) -> set[str]:
    return {name for (name,) in db.connection.execute("SELECT name FROM meta")} - {"owner", "journal_v2_lsn"}


class TestOwning:
    def test_files_are_private_in_a_private_directory(self, tmp_path: Path) -> None:
        db = Database(tmp_path / "new" / "outbox.db", "outbox", "p")
        put(db, "a")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        for file in (tmp_path / "new").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        db.close()

    def test_a_second_owner_is_refused_and_the_first_goes_on(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        with pytest.raises(OutboxLocked, match="is open in another process"):
            Database(path, "outbox", "p")
        put(db, "a")
        db.close()
        again = Database(path, "outbox", "p")
        assert names(again) == {"a"}
        again.close()

    def test_another_thread_may_close_it(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        thread = threading.Thread(target=db.close)
        thread.start()
        thread.join(60)
        Database(path, "outbox", "p").close()

    def test_a_symbolic_link_is_no_second_outbox(self, path: Path, tmp_path: Path) -> None:
        db = Database(path, "outbox", "p")
        (tmp_path / "link.db").symlink_to(path)
        with pytest.raises(OutboxLocked):
            Database(tmp_path / "link.db", "outbox", "p")
        db.close()

    def test_an_inbox_is_locked_as_an_inbox(self, path: Path) -> None:
        db = Database(path, "inbox", "g")
        with pytest.raises(InboxLocked):
            Database(path, "inbox", "g")
        db.close()

    def test_another_process_is_refused(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        code = (
            "import sys\nfrom reliamsg.errors import OutboxLocked\nfrom reliamsg.store.database import Database\n"
            "try: Database(sys.argv[1], 'outbox', 'p')\nexcept OutboxLocked: print('locked')"
        )
        found = run_child([sys.executable, "-c", code, str(path)], text=True, check=True)
        assert found.stdout == "locked\n"
        db.close()

    def test_a_child_that_ends_after_fork_leaves_the_lock_with_its_parent(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        put(db, "a")
        child = os.fork()
        if child == 0:
            del db
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(OutboxLocked):
            Database(path, "outbox", "p")
        put(db, "b")
        assert names(db) == {"a", "b"}
        db.close()


class TestWrongFiles:
    def test_another_producers(self, path: Path) -> None:
        Database(path, "outbox", "p").close()
        with pytest.raises(StoreMismatch, match="belongs to producer 'p', not 'q'"):
            Database(path, "outbox", "q")

    def test_an_inbox(self, path: Path) -> None:
        Database(path, "inbox", "p").close()
        with pytest.raises(StoreMismatch, match="this is an inbox"):
            Database(path, "outbox", "p")

    def test_a_database_of_something_else(self, path: Path) -> None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        with pytest.raises(StoreMismatch, match="another application's database"):
            Database(path, "outbox", "p")

    def test_no_database(self, path: Path) -> None:
        path.write_bytes(b"this is no database at all" * 100)
        with pytest.raises(StoreCorrupt):
            Database(path, "outbox", "p")
        assert path.read_bytes().startswith(b"this is no database")

    def test_a_directory(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(StoreCorrupt, match="not a file"):
            Database(path, "outbox", "p")

    def test_a_newer_schema(self, path: Path) -> None:
        Database(path, "outbox", "p").close()
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA user_version = 99")
        other.close()
        with pytest.raises(StoreTooNew, match="99"):
            Database(path, "outbox", "p")

    def test_a_refused_file_is_free_again(self, path: Path) -> None:
        Database(path, "outbox", "p").close()
        with pytest.raises(StoreMismatch):
            Database(path, "outbox", "q")
        Database(path, "outbox", "p").close()

    def test_looking_at_what_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(StoreCorrupt, match="no such file"):
            open_readonly(tmp_path / "missing.db")
        assert not (tmp_path / "missing.db").exists()
        (tmp_path / "text.db").write_text("text" * 1000)
        with pytest.raises(StoreCorrupt):
            open_readonly(tmp_path / "text.db")

    def test_looking_changes_nothing(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        put(db, "a")
        seen = open_readonly(path)
        assert seen.execute("SELECT count(*) FROM meta WHERE name = 'a'").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError):
            seen.execute("DELETE FROM meta")
        seen.close()
        put(db, "b")
        db.close()


class TestTransactions:
    def test_what_raises_is_undone(self, path: Path) -> None:
        db = Database(path, "outbox", "p")

        def fail() -> None:
            with db.transaction() as connection:
                connection.execute("INSERT INTO meta (name, value) VALUES ('a', 'x')")
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert names(db) == set()
        put(db, "b")
        db.close()

    def test_an_outside_lock_holder(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 100)
        db = Database(path, "outbox", "p")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutboxWriteError, match="locked"):
            put(db, "a")
        other.execute("ROLLBACK")
        other.close()
        put(db, "b")
        assert names(db) == {"b"}
        db.close()

    def test_the_wal_file_stays_bounded(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        largest = 0
        for number in range(400):
            put(db, str(number), "y" * 50_000)
            largest = max(largest, os.stat(f"{path}-wal").st_size)
        db.close()
        assert largest < CHECKPOINT_BYTES + 1_000_000

    def test_a_reader_only_puts_checkpoints_off(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        put(db, "first")
        reader = open_readonly(path)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchone()
        for number in range(150):
            put(db, str(number), "y" * 50_000)
        reader.close()
        put(db, "last")
        assert len(names(db)) == 152
        db.close()


class TestDamage:
    def test_a_truncated_wal_loses_nothing_in_silence(self, path: Path) -> None:
        """What was committed before the cut survives, in order; what is not there is a suffix."""
        db = Database(path, "outbox", "p")
        for number in range(50):
            put(db, f"{number:03}")
        wal = Path(f"{path}-wal")
        saved_db, saved_wal = path.read_bytes(), wal.read_bytes()
        db.close()
        for cut in (0, 1, 31, 32, len(saved_wal) // 3, len(saved_wal) - 1):
            path.write_bytes(saved_db)
            wal.write_bytes(saved_wal[:cut])
            Path(f"{path}-shm").unlink(missing_ok=True)
            try:
                again = Database(path, "outbox", "p")
            except StoreCorrupt:
                continue
            found = sorted(names(again))
            assert found == [f"{number:03}" for number in range(len(found))]
            again.close()

    def test_a_flipped_bit_is_not_served_as_truth(self, path: Path) -> None:
        db = Database(path, "outbox", "p")
        for number in range(200):
            put(db, f"{number:03}", "y" * 500)
        db.close()
        data = bytearray(path.read_bytes())
        for page in range(1, len(data) // 4096):
            data[page * 4096] ^= 0xFF  # the kind of each b-tree page
        path.write_bytes(data)

        def read() -> None:
            again = Database(path, "outbox", "p")
            try:
                with again.reading():
                    again.connection.execute("SELECT count(*), max(value) FROM meta").fetchone()
            finally:
                again.close()

        with pytest.raises(StoreCorrupt):
            read()


class TestFailingDisk:
    def test_a_full_disk(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "small") as disk:
            db = Database(disk / "outbox.db", "outbox", "p")
            put(db, "before")
            filler = fill(disk)
            with pytest.raises(OutboxWriteError, match="full"):
                put(db, "no", "y" * 2_000_000)
            filler.unlink()
            put(db, "after")
            assert {"before", "after"} <= names(db)
            db.close()

    def test_a_read_only_disk(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "small", "8m") as disk:
            Database(disk / "outbox.db", "outbox", "p").close()
            remount(disk, "ro")
            with pytest.raises(OutboxWriteError):
                Database(disk / "outbox.db", "outbox", "p")
            with pytest.raises(OutboxWriteError):
                Database(disk / "new.db", "outbox", "p")
            remount(disk, "rw")
            Database(disk / "outbox.db", "outbox", "p").close()

    def test_a_failing_fsync_of_a_commit(self, tmp_path: Path) -> None:
        out = FailingDisk(tmp_path).run(
            "from reliamsg.errors import OutboxIndeterminate\n"
            "from reliamsg.store.database import Database\n"
            "db = Database(os.environ['DIRECTORY'] + '/outbox.db', 'outbox', 'p')\n"
            "fail('outbox.db-wal')\n"
            "try:\n"
            "    with db.transaction() as c: c.execute(\"INSERT INTO meta VALUES ('a', 'x')\")\n"
            "except OutboxIndeterminate: print('indeterminate', failures() > 0)\n"
        )
        assert out == "indeterminate True\n"

    def test_a_failing_fsync_of_a_checkpoint(self, tmp_path: Path) -> None:
        """SQLite itself would go on, and the next fsync would succeed without having written the page."""
        out = FailingDisk(tmp_path).run(
            "from reliamsg.errors import OutboxIndeterminate\n"
            "from reliamsg.store import database\n"
            "database.CHECKPOINT_BYTES = 100_000\n"
            "path = os.environ['DIRECTORY'] + '/outbox.db'\n"
            "db = database.Database(path, 'outbox', 'p')\n"
            "fail('outbox.db')\n"
            "try:\n"
            "    for n in range(50):\n"
            "        with db.transaction() as c: c.execute('INSERT INTO meta VALUES (?, ?)', (str(n), 'y' * 5000))\n"
            "except OutboxIndeterminate: print('indeterminate', failures() > 0)\n"
        )
        assert out == "indeterminate True\n"


def test_one_thread_of_many_gets_the_file(path: Path) -> None:
    opened: list[Database] = []
    refused: list[OutboxLocked] = []
    start = threading.Barrier(8)

    def attempt() -> None:
        start.wait()
        try:
            opened.append(Database(path, "outbox", "p"))
        except OutboxLocked as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(opened), len(refused)) == (1, 7)
    opened[0].close()
