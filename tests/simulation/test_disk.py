"""Simulated disks: the possible states of a file after a power failure or an operator's action."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.simulation.disk import Crash, DiskFault, Drive
from reliamsg.store.outbox import Outbox

WALL_US = 1_700_000_000_000_000


class Client:
    """An outbox that is opened and committed to, at given times."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.now = 0.0
        self.fault: DiskFault = ""
        """The outcome of commits."""
        self.drive = Drive(
            directory / "p.outbox.db",
            "outbox",
            "p",
            random.Random(seed),
            lambda: self.fault,
            lambda: self.now,
        )
        self.drive.format()
        self.outbox: Outbox | None = None

    def open(self) -> Outbox:
        self.outbox = Outbox(self.drive.path, "p", WALL_US, 0, "00", self.drive.connect)
        return self.outbox

    def commit(self, value: int, fault: DiskFault = "") -> None:
        assert self.outbox is not None
        self.fault = fault
        self.now += 1.0
        with self.outbox._db.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('value', ?)", (str(value),))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('filler', ?)", ("x" * 20_000,))

    def crash(self) -> None:
        self.drive.crash(self.close)

    def close(self) -> None:
        if self.outbox is not None:
            self.outbox.close()
            self.outbox = None

    def value(self) -> str | None:
        """The content, as SQLite recovers it."""
        with contextlib.closing(sqlite3.connect(self.drive.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            row = connection.execute("SELECT value FROM meta WHERE name = 'value'").fetchone()
        return None if row is None else row[0]


@pytest.fixture(params=range(10))
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    found = Client(tmp_path, request.param)
    yield found
    found.close()


def test_a_checkpoint_that_was_cut_short_loses_nothing(client: Client) -> None:
    client.open()
    client.commit(1)
    before, _ = client.drive.image()
    with pytest.raises(Crash):
        client.commit(2, "torn_checkpoint")
    client.crash()
    after, wal = client.drive.image()
    assert after != before
    assert wal
    assert client.drive.lose_wal() is None, (
        "a database in the middle of a checkpoint is nothing without the WAL"
    )
    assert client.value() == "2"
    assert not list(client.drive.path.parent.glob("*checkpoint*"))


def test_commits_that_were_cut_short_take_nothing_of_the_one_before_with_them(client: Client) -> None:
    """The second one is written over the remains of the first."""
    client.open()
    for value in range(50):
        client.commit(value)
        with pytest.raises(Crash):
            client.commit(-1, "torn_write")
        client.crash()
        with pytest.raises(Crash):
            client.open()
        client.crash()
        client.fault = ""
        client.open()
        with client.drive.reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = 'value'").fetchone()
        assert row == (str(value),)


def test_without_its_wal_file_a_database_is_in_the_state_of_its_last_checkpoint(client: Client) -> None:
    outbox = client.open()
    client.commit(1)
    client.commit(2)
    outbox._db.checkpoint()
    client.commit(3)
    client.commit(4)
    client.crash()
    assert client.drive.lose_wal() == 2.0
    assert client.value() == "2"
    assert client.drive.lose_wal() is None


def test_a_cleanly_closed_database_has_no_wal_file_to_lose(client: Client) -> None:
    client.open()
    client.commit(1)
    client.close()
    assert client.drive.lose_wal() is None
    assert client.value() == "1"
