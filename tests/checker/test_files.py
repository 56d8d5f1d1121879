"""Real outbox and inbox files and logs: open, closed, killed, damaged, copied."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reliamsg.checker import AppLog, AppRecord, Expect, check_directory, read_applog, read_chain
from reliamsg.errors import StoreCorrupt
from reliamsg.message import Gap, MessageId, Stream
from reliamsg.store.database import Database, Kind
from reliamsg.store.journal import Entry, Journal
from tests.checker.histories import History, make


def save(path: Path, kind: Kind, owner: str, boots: list[list[Entry]]) -> None:
    """Write a client's entries into a separate file, as the client would."""
    for number, entries in enumerate(boots, 1):
        database = Database(path, kind, owner)
        try:
            journal = Journal(f"{number:016x}")
            with database.transaction() as connection:
                journal.write(connection, entries, 1_700_000_000_000_000 + number, number)
            journal.settle(True)
        finally:
            database.close()


def save_all(directory: Path, history: History) -> None:
    for name, boots in history.producers.items():
        save(directory / f"{name}.outbox.db", "outbox", name, boots)
    for name, boots in history.groups.items():
        save(directory / "inboxes" / f"{name}.db", "inbox", name, boots)
    for name, records in history.logs.items():
        log = AppLog(directory / f"{name}.ndjson", sync_every=0)
        for record in records:
            log.write(record)
        log.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_all(tmp_path, make(7))
    return tmp_path


def test_directory(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*.db")}
    report = check_directory(run, Expect(drained=True))
    assert report.verdict == "complete", report.text()
    assert report.clients == 4
    assert {path: path.read_bytes() for path in run.rglob("*.db")} == before
    shape = report.as_dict()
    assert json.loads(json.dumps(shape)) == shape
    assert set(shape["messages"]) == {
        "enqueued", "proven", "delivered", "lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending",
        "late", "before_join", "dead_lettered", "saved_by_repair", "saved_by_second_site",
    }  # fmt: skip
    assert set(shape["sites"]["dc1"]) == {"confirmed", "received", "lost_after_confirm", "saved_alone"}
    assert "verdict: complete" in report.text()


def test_files_of_running_clients_are_read(run: Path) -> None:
    owner = Database(run / "A.outbox.db", "outbox", "A")
    try:
        journal = Journal("f" * 16)
        with owner.transaction() as connection:
            journal.write(connection, [Entry("opened")], 1, 1)
        chain = read_chain(run / "A.outbox.db")
        assert (chain.role, chain.client, chain.boots[-1].name) == ("producer", "A", "f" * 16)
        assert not chain.finished
        assert check_directory(run, Expect(drained=True)).verdict == "unknown"
    finally:
        owner.close()


def test_other_databases_and_copies_are_passed_over(run: Path) -> None:
    with sqlite3.connect(run / "application.db") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    shutil.copy(run / "inboxes" / "primary.db", run / "backup of primary.db")
    report = check_directory(run, Expect(drained=True))
    assert (report.verdict, report.clients) == ("complete", 4), report.text()


def test_damaged_files_are_evidence_that_is_broken(run: Path) -> None:
    (run / "noise.db").write_bytes(os.urandom(8192))
    path = run / "inboxes" / "primary.db"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    report = check_directory(run, Expect(drained=True))
    assert report.verdict in ("unknown", "lost")
    assert len(report.of_kind("broken")) >= 2, report.text()
    with pytest.raises(StoreCorrupt):
        read_chain(run / "noise.db")


def test_deleted_row_is_noticed(run: Path) -> None:
    with sqlite3.connect(run / "inboxes" / "primary.db") as connection:
        connection.execute("DELETE FROM journal WHERE lsn = 4")
    connection.close()
    report = check_directory(run, Expect(drained=True))
    assert str(report.of_kind("broken")[0]).endswith("rows 4 to 4 are missing")
    assert report.verdict != "complete"


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        check_directory(tmp_path / "nowhere", Expect(drained=True))
    assert check_directory(tmp_path, Expect(drained=True)).verdict == "unknown"


WRITER = """
import sys
from reliamsg.checker import AppLog
log = AppLog(sys.argv[1], producer="A")
n = 0
while True:
    n += 1
    log.publish("invoked", "orders", n, b"x" * 100)
    print(n, flush=True)
"""


def test_log_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "app.ndjson"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            deadline = time.monotonic() + 30
            said = 0
            while said < 50 and time.monotonic() < deadline:
                said = int(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGKILL)
    with path.open("ab") as file:
        file.write(b'{"op":"publish","outc')  # left by a kill in the middle of a write
    with AppLog(path, producer="A") as log:
        log.publish("ok", "orders", 1, b"x" * 100, id=MessageId("A", 5, "orders", 0, 1))
    read = read_applog(path)
    assert read.damaged == []
    assert [r.op for r in read.records if r.op == "opened"] == ["opened", "opened"]
    assert max(r.n or 0 for r in read.records) >= 50
    assert (read.records[-1].epoch, read.records[-1].seq) == (5, 1)


def test_damaged_log(tmp_path: Path) -> None:
    path = tmp_path / "app.ndjson"
    with AppLog(path, group="g", topics=["orders"]) as log:
        log.gap(Gap(Stream("A", "orders"), 5, 3, None, "expired"))
        log.write(AppRecord("late", group="g", producer="A", topic="orders", epoch=5, seq=3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"rubbish\n" + b"".join(lines[1:]))
    assert read_applog(path).damaged == [2]
    assert "lines can't be read: 2" in check_directory(tmp_path, Expect(drained=True)).text()
