"""Files in which a byte was changed that SQLite does not miss: whoever reads them is told, in this library's words."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from reliamsg.checker import check, read_chain
from reliamsg.errors import StoreCorrupt
from reliamsg.message import Stream
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch, EpochRow
from reliamsg.store.inbox_view import list_streams
from reliamsg.store.outbox import Outbox
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from tests.fuzz import seeds


def change(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    path = tmp_path / "outbox.db"
    path.write_bytes(seeds.outbox_file())
    return path


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "inbox.db"
    path.write_bytes(seeds.inbox_file())
    return path


def test_a_schema_that_cannot_be_parsed(outbox: Path, inbox: Path) -> None:
    for path in (outbox, inbox):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE stream (' WHERE name = 'stream'")
            db.commit()
    for look in (inspect_outbox, lambda path: list_batches(path, 10), read_chain):
        with pytest.raises(StoreCorrupt):
            look(outbox)
    with pytest.raises(StoreCorrupt):
        list_streams(inbox, -1)


def test_a_name_in_the_schema_that_is_no_text(inbox: Path) -> None:
    """SQLite's own message can't be read then."""
    whole = inbox.read_bytes()
    begins = whole.index(b"CREATE TABLE attempt")
    at = whole.index(b"REFERENCES stream", begins) + len(b"REFERENCES ")
    inbox.write_bytes(whole[:at] + b"\x80" + whole[at + 1 :])
    epoch = EpochRow(Stream("p", "orders"), 10, 77, None, 30, 60, [], None, True)
    with contextlib.closing(Inbox(inbox, "billing")) as opened:
        list(opened.load())
        with pytest.raises(StoreCorrupt, match="codec"):
            opened.commit(Batch(epochs=[epoch]), 2, 2)


def test_an_epoch_that_is_no_number(outbox: Path) -> None:
    change(outbox, "UPDATE meta SET value = 'x' WHERE name = 'epoch'")
    for look in (inspect_outbox, lambda path: Outbox(path, "p", 6_000_000, 0, "c" * 16)):
        with pytest.raises(StoreCorrupt):
            look(outbox)


@pytest.mark.parametrize("column", ["seq", "count", "epoch"])
def test_a_batch_whose_row_and_frame_differ_is_not_sent(outbox: Path, column: str) -> None:
    change(outbox, f"UPDATE batch SET {column} = {column} + 1 WHERE id = 2")
    with contextlib.closing(Outbox(outbox, "p", 6_000_000, 0, "c" * 16)) as opened:
        assert [row.id for row in opened.page(1, None, 1)] == [1]
        with pytest.raises(StoreCorrupt, match="batch 2"):
            opened.page(2, None, 1)


def test_a_history_that_is_no_json(inbox: Path) -> None:
    change(inbox, "UPDATE stream SET history = '[[[' ")
    with contextlib.closing(Inbox(inbox, "billing")) as opened, pytest.raises(StoreCorrupt):
        opened.load()


@pytest.mark.parametrize("change_to", ["detail = '[1]'", "latency = '{\"a\": 1}'", "incarnation = 'x'"])
def test_a_damaged_row_of_the_journal_ends_what_can_be_read_of_it(outbox: Path, change_to: str) -> None:
    change(outbox, f"UPDATE journal SET {change_to} WHERE lsn = 2")
    chain = read_chain(outbox)
    assert [row.lsn for row in chain.rows] == [1]
    assert "can't be read beyond row 1" in chain.broken[0]
    assert check([chain]).of_kind("broken")
    assert Stream("p", "orders") == Stream(chain.rows[0].producer, chain.rows[0].topic)
