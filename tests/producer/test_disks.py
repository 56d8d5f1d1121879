"""Producers over disks that are full, fail, or hold something else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Producer
from reliamsg.errors import OutboxWriteError, StoreCorrupt, StoreMismatch
from reliamsg.store import database
from reliamsg.testing import MemoryNetwork
from tests.producer.tools import wait_for
from tests.store.faults import FailingDisk, fill, small_disk

Make = Callable[..., Producer]


class TestDisk:
    def test_a_full_disk_uses_no_number_and_ends_with_room(
        self, tmp_path: Path, network: MemoryNetwork
    ) -> None:
        from tests.producer import tools

        with small_disk(tmp_path / "small") as disk:
            producer = tools.producer(network, disk / "outbox.db")
            producer.publish("orders", b"1")
            filler = fill(disk)
            with pytest.raises(OutboxWriteError):
                producer.publish("orders", bytes(300_000))
            receipt = producer.publish_nowait("orders", bytes(300_000))
            with pytest.raises(OutboxWriteError):
                receipt.wait(timeout=120, until="durable")
            assert not receipt.durable
            filler.unlink()
            after = producer.publish("orders", b"2")
            assert after.id is not None
            assert after.id.seq == 2
            after.wait(timeout=120)
            assert producer.close(timeout=120).nothing

    def test_an_outside_lock_holder(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 100)
        producer = make()
        producer.publish("orders", b"1").wait(timeout=120)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA busy_timeout = 5000")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutboxWriteError, match="locked"):
            producer.publish("orders", b"no")
        other.execute("ROLLBACK")
        other.close()
        after = producer.publish("orders", b"2")
        assert after.id is not None
        assert after.id.seq == 2

    def test_a_failing_fsync_stops_it_for_good(self, tmp_path: Path) -> None:
        """Once the outcome is unknown, the file is not written any more, whatever else was under way."""
        out = FailingDisk(tmp_path).run(
            "import threading, time\n"
            "from reliamsg import Producer\n"
            "from reliamsg.errors import OutboxIndeterminate\n"
            "from reliamsg.testing import MemoryNetwork\n"
            "network = MemoryNetwork('dc1', 'dc2')\n"
            "path = os.environ['DIRECTORY'] + '/outbox.db'\n"
            "errors = []\n"
            "p = Producer('p', network.sites, outbox=path, groups={'t': ['g']},\n"
            "             on_error=errors.append)\n"
            "p.publish('t', b'1').wait(timeout=120)\n"
            "fail('outbox.db-wal')\n"
            "outcomes = []\n"
            "def publish():\n"
            "    try: p.publish('t', b'2')\n"
            "    except OutboxIndeterminate: outcomes.append('indeterminate')\n"
            "threads = [threading.Thread(target=publish) for _ in range(20)]\n"
            "for t in threads: t.start()\n"
            "for t in threads: t.join(60)\n"
            "assert outcomes == ['indeterminate'] * 20, outcomes\n"
            "before = failures()\n"
            "heal()\n"
            "for call in (lambda: p.publish('t', b'3'), lambda: p.flush(1), p.pending):\n"
            "    try: call(); sys.exit('no error')\n"
            "    except OutboxIndeterminate: pass\n"
            "written = os.stat(path + '-wal').st_mtime_ns\n"
            "network['dc1'].cut()\n"
            "deadline = time.monotonic() + 60\n"
            "while not errors and time.monotonic() < deadline: time.sleep(0.01)\n"
            "assert [type(e) for e in errors] == [OutboxIndeterminate], errors\n"
            "time.sleep(0.5)  # housekeeping is due several times in this\n"
            "assert os.stat(path + '-wal').st_mtime_ns == written, 'written again'\n"
            "p.close(timeout=1)\n"
            "print('stopped', before)\n"
        )
        assert out == "stopped 1\n"

    def test_a_damaged_batch_is_not_sent(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        for broker in network.brokers.values():
            broker.down()
        producer = make()
        producer.publish_many("orders", [b"damaged" * 20] * 5)
        producer.close(timeout=0.0)
        with sqlite3.connect(path, isolation_level=None) as other:
            (frame,) = other.execute("SELECT frame FROM batch").fetchone()
            broken = bytearray(frame)
            broken[-3] ^= 1
            other.execute("UPDATE batch SET frame = ?", (bytes(broken),))
        other.close()
        for broker in network.brokers.values():
            broker.up()
        errors: list[BaseException] = []
        again = make(on_error=errors.append)
        wait_for(lambda: errors)
        assert isinstance(errors[0], StoreCorrupt)
        with pytest.raises(StoreCorrupt):
            again.publish("orders", b"x")
        assert all(broker.queued() == 0 for broker in network.brokers.values())

    def test_another_producers_outbox(self, make: Make) -> None:
        make().close()
        with pytest.raises(StoreMismatch):
            make(producer_id="q")

    def test_no_database(self, make: Make, path: Path) -> None:
        path.write_bytes(b"text" * 1000)
        with pytest.raises(StoreCorrupt):
            make()
