"""Files that earlier states of the sources wrote keep working.

``older/`` has an outbox and an inbox that belong together, written by commit 67a66c2. Both processes were killed. The
producer had published 30 messages with ``release="consumed"``, of which the last ten reached no broker. The consumer
had handled numbers 1 to 14 except 7, which became a dead letter, and was handling number 15.
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.checker import Expect, check_directory
from reliamsg.testing import MemoryNetwork
from tests.cli.commands import reliamsg, succeeded
from tests.patience import wait_for

OLDER = Path(__file__).parent / "older"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for packed in OLDER.glob("*.db.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
        (tmp_path / packed.stem).chmod(0o600)
    return tmp_path


def test_a_producer_and_a_consumer_continue_with_them(files: Path) -> None:
    with (
        MemoryNetwork("dc1", "dc2") as network,
        Consumer("billing", network.sites, topics=["orders"], inbox=files / "inbox.db") as consumer,
        Producer(
            "shop", network.sites, outbox=files / "outbox.db", groups={"orders": ["billing"]}, release="consumed",
            hello_timeout=0,
        ) as producer,
    ):  # fmt: skip
        producer.publish("orders", b"order 31")
        got: list[tuple[int, bool]] = []
        while not got or got[-1][0] < 31:
            message = consumer.get(timeout=30)
            assert message is not None
            got.append((int(message.body.split()[1]), message.redelivered))
            message.ack()
        assert [number for number, _ in got] == list(range(15, 32))
        assert got[0][1], "its handler was running when the process was killed"
        assert [letter.body for letter in consumer.dead_letters()] == [b"order 7"]
        wait_for(lambda: producer.pending() == 0, "the group has settled everything")
    report = check_directory(files, Expect(drained=True))
    assert report.verdict == "complete", report.findings


def test_commands_read_them_as_they_are(files: Path) -> None:
    for kind in ("outbox", "inbox"):
        succeeded(reliamsg(kind, "stats", str(files / f"{kind}.db")))


def test_they_are_older_than_the_schema_or_have_the_same_version(files: Path) -> None:
    versions = {
        name: sqlite3.connect(files / f"{name}.db").execute("PRAGMA user_version").fetchone()[0]
        for name in ("outbox", "inbox")
    }
    assert versions == {"outbox": 3, "inbox": 5}
