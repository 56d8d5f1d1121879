"""The inbox: what a commit holds is there again, and what could not be written was not."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from reliamsg.errors import (
    InboxIndeterminate,
    InboxLocked,
    InboxWriteError,
    StoreCorrupt,
    StoreMismatch,
    StoreTooNew,
)
from reliamsg.message import Prev, Stream
from reliamsg.store.database import Database, migrations, statements
from reliamsg.store.inbox import STATES_RESERVED, Inbox
from reliamsg.store.inbox_rows import (
    Batch,
    DeadLetter,
    EpochRow,
    GapRow,
    HeldFrame,
    History,
    HistoryRow,
    Quarantined,
)
from reliamsg.store.inbox_view import list_streams, read_dead_letters, summarize_inbox
from reliamsg.store.journal import Entry
from tests.children import run_child

STREAM = Stream("p", "orders")


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path / "inbox.db", "billing")
    yield inbox
    inbox.close()


def epoch_row(position: int = 1, **options: object) -> EpochRow:
    row = EpochRow(
        STREAM, 10, 2**64 - 1, Prev(9, 2**64 - 2, 5), position, position + 50, [(90, 95)], None, True
    )
    for name, value in options.items():
        setattr(row, name, value)
    return row


def held(first: int, last: int, size: int = 100) -> HeldFrame:
    return HeldFrame(STREAM, 10, first, last, "dc1", 1, bytes([first % 256]) * size)


def commit(inbox: Inbox, **fields: object) -> None:
    inbox.commit(Batch(**fields), 1, 1)  # type: ignore[arg-type]


def test_what_was_committed_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    inbox = Inbox(path, "billing")
    history = History([(8, 2**64 - 1, 7)], 3, [(4, [(1, 2)])], [(10, 5, 6)], (1, 2))
    commit(
        inbox,
        streams=[HistoryRow(STREAM, (9, 3), history)],
        epochs=[epoch_row(20)],
        gaps=[GapRow(STREAM, 10, 30, None, 1.5, 2.5)],
        attempts=[(STREAM, 10, 21, 2), (STREAM, 10, 3, 2)],
        held=[held(20, 29), held(40, 49)],
    )
    inbox_id = inbox.id
    inbox.close()
    inbox = Inbox(path, "billing")
    assert inbox.id == inbox_id
    (saved,) = inbox.load()
    assert (saved.stream, saved.joined, saved.history) == (STREAM, (9, 3), history)
    assert saved.epochs == [msgspec.structs.replace(epoch_row(20), used_us=1)]
    assert saved.gap == GapRow(STREAM, 10, 30, None, 1.5, 2.5)
    assert saved.held == [(10, 20, 29), (10, 40, 49)]
    assert (10, 21, 2) in saved.attempts
    assert inbox.held_bytes == 200
    inbox.close()


def test_numbers_of_states_are_never_used_again(tmp_path: Path) -> None:
    path, free = tmp_path / "inbox.db", 0
    for wall_us in (10**15, 10**15 + 5, 7, 10**15 + 10 * STATES_RESERVED):
        with closing(Inbox(path, "billing")) as inbox:
            begin = inbox.reserve_states(wall_us)
        assert begin >= max(free, wall_us)
        free = begin + STATES_RESERVED


def test_held_frames_leave_when_the_position_has_passed_them(inbox: Inbox) -> None:
    commit(inbox, epochs=[epoch_row(1)], held=[held(1, 10), held(11, 20), held(21, 30)])
    inbox.load()
    assert [f.first for f in inbox.page(STREAM, 10, 15, 1)] == [11]
    assert [f.first for f in inbox.page(STREAM, 10, 11, 150)] == [11, 21]
    commit(inbox, epochs=[epoch_row(16)])
    assert inbox.held_bytes == 200
    assert [f.first for f in inbox.page(STREAM, 10, 1, 10_000)] == [11, 21]
    commit(inbox, finished=[(STREAM, 10)])
    assert inbox.held_bytes == 0
    assert inbox.load()[0].epochs == []


def test_dead_letters_and_quarantine(inbox: Inbox) -> None:
    letter = DeadLetter(0, STREAM, 10, 2**64 - 1, 5, "k", {"a": "ü"}, b"\0body", "poison", 5, 7)
    commit(
        inbox,
        dead=[letter],
        quarantine=[Quarantined("dc1", "orders", "malformed", b"x" * 300_000)] * 16,
        entries=[Entry("rejected", site="dc1")],
    )
    (found,) = read_dead_letters(inbox.path)
    assert (found.headers, found.body, found.incarnation, found.key) == (
        {"a": "ü"},
        b"\0body",
        2**64 - 1,
        "k",
    )
    assert read_dead_letters(inbox.path, [found.id + 1]) == []
    assert inbox.path.stat().st_size + os.stat(f"{inbox.path}-wal").st_size < 20_000_000
    info = summarize_inbox(inbox.path)
    assert (info.group, info.dead_letters, info.samples) == ("billing", 1, 16)
    assert inbox.quarantined() == {("dc1", "orders"): (16, 16 * 256 * 1024)}
    commit(inbox, revived=[found.id])
    assert inbox.dead_letter_count == 0


def test_inspection_reads_while_the_owner_runs(inbox: Inbox) -> None:
    commit(inbox, epochs=[epoch_row(4)], held=[held(5, 9)], gaps=[GapRow(STREAM, 10, 4, 4, 2.0)])
    info = summarize_inbox(inbox.path)
    (stream,) = list_streams(inbox.path, -1)
    assert (stream.epoch, stream.position, stream.held) == (10, 4, 5)
    assert stream.gap == GapRow(STREAM, 10, 4, 4, 2.0)
    assert (info.held_messages, info.held_bytes) == (5, 100)


def test_a_failed_commit_leaves_nothing(inbox: Inbox) -> None:
    def explode() -> None:
        raise RuntimeError("before the commit")

    with pytest.raises(RuntimeError):
        inbox.commit(
            Batch(epochs=[epoch_row(1)], held=[held(1, 10)], entries=[Entry("opened")]), 1, 1, explode
        )
    assert inbox.held_bytes == 0
    assert inbox.load() == []
    commit(inbox, epochs=[epoch_row(1)], held=[held(1, 10)], entries=[Entry("opened")])
    assert len(inbox.load()) == 1


def test_wrong_files_are_refused(tmp_path: Path, inbox: Inbox) -> None:
    with pytest.raises(InboxLocked):
        Inbox(inbox.path, "billing")
    code = (
        "import sys\nfrom reliamsg.store.inbox import Inbox\nfrom reliamsg.errors import InboxLocked\n"
        "try:\n    Inbox(sys.argv[1], 'billing')\nexcept InboxLocked:\n    sys.exit(7)\n"
    )
    assert run_child([sys.executable, "-c", code, inbox.path]).returncode == 7
    inbox.close()
    with pytest.raises(StoreMismatch):
        Inbox(inbox.path, "other")
    Database(tmp_path / "outbox.db", "outbox", "p").close()
    with pytest.raises(StoreMismatch):
        Inbox(tmp_path / "outbox.db", "billing")
    (tmp_path / "text.db").write_text("this is no database, whatever its name says\n" * 100)
    with pytest.raises(StoreCorrupt):
        Inbox(tmp_path / "text.db", "billing")
    with sqlite3.connect(inbox.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreTooNew):
        Inbox(inbox.path, "billing")
    Inbox(tmp_path / "other.db", "billing").close()


def test_a_file_of_the_first_version(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements(migrations("inbox")[0]):
            db.execute(statement)
        db.execute("PRAGMA application_id = 0x524D4931")
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO meta VALUES ('owner', 'billing')")
        db.execute("INSERT INTO stream VALUES (1, 'p', 'orders', 0, NULL, NULL, '{}')")
        db.execute("INSERT INTO gap VALUES (1, 10, 4, 6, 1.5)")
    inbox = Inbox(path, "billing")
    (saved,) = inbox.load()
    assert saved.gap == GapRow(STREAM, 10, 4, 6, 1.5, 0.0)
    inbox.close()


def test_an_outside_lock_holder_delays_and_then_fails_a_commit(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox._database.connection.execute("PRAGMA busy_timeout = 100")
    other = sqlite3.connect(inbox.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(InboxWriteError):
        commit(inbox, epochs=[epoch_row(1)])
    other.execute("ROLLBACK")
    other.close()
    commit(inbox, epochs=[epoch_row(1)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0:
        pytest.fail("mounting a tmpfs needs root")
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], check=True)
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_loses_nothing_and_works_again_when_there_is_room(small_disk: Path) -> None:
    inbox = Inbox(small_disk / "inbox.db", "billing")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 400_000)
    stored = 0

    def fill() -> None:
        nonlocal stored
        for n in range(1, 1_000):
            commit(inbox, epochs=[epoch_row(1)], held=[held(n, n, 20_000)])
            stored = n

    with pytest.raises(InboxWriteError):
        fill()
    assert stored > 0
    assert inbox.held_bytes == stored * 20_000
    ballast.unlink()
    commit(inbox, held=[held(stored + 1, stored + 1, 20_000)])
    inbox.close()
    inbox = Inbox(small_disk / "inbox.db", "billing")
    assert [first for _, first, _ in inbox.load()[0].held] == list(range(1, stored + 2))
    inbox.close()


def test_a_read_only_disk(small_disk: Path) -> None:
    inbox = Inbox(small_disk / "inbox.db", "billing")
    inbox.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(InboxWriteError):
        Inbox(small_disk / "inbox.db", "billing")
    with pytest.raises(InboxWriteError):
        Inbox(small_disk / "new.db", "billing")


class _FailingFsync:
    """A connection whose commits report that an fsync failed, as long as it `fails`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fails = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, sql: str, *rest: object) -> object:
        if sql == "COMMIT" and self.fails:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._connection.execute(sql, *rest)  # type: ignore[arg-type]


def test_a_failed_fsync_is_never_tried_again(inbox: Inbox) -> None:
    disk = inbox._database.connection = _FailingFsync(inbox._database.connection)  # type: ignore[assignment]
    with pytest.raises(InboxIndeterminate):
        commit(inbox, epochs=[epoch_row(1)])
    disk.fails = False
    for _ in range(2):
        with pytest.raises(InboxIndeterminate):
            commit(inbox, epochs=[epoch_row(2)])
    with pytest.raises(InboxIndeterminate):
        inbox._database.checkpoint()
    assert inbox.load() == []


def test_the_inbox_may_move_between_threads(inbox: Inbox) -> None:
    thread = threading.Thread(target=commit, args=(inbox,), kwargs={"epochs": [epoch_row(1)]})
    thread.start()
    thread.join()
    assert len(inbox.load()) == 1
