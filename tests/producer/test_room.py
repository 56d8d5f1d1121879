"""An outbox that is full, and what leaves it to make room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Producer, Receipt
from reliamsg.errors import ClosedError, OutboxFull
from reliamsg.store.outbox import Row
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.producer.control_tools import Bench
from tests.producer.tools import journal, numbers, wait_for

Make = Callable[..., Producer]


class TestRoom:
    def fill(self, producer: Producer) -> int:
        """Publish until there is no room, with everything committed; returns how many."""
        receipts: list[Receipt] = []
        while True:
            before = len(receipts)
            try:
                while True:
                    receipts.append(producer.publish_nowait("orders", bytes(10_000)))
            except OutboxFull:
                if len(receipts) == before:
                    return before
            receipts[-1].wait(timeout=120, until="durable")  # what is committed takes a little less room

    def test_nowait_raises_at_once_and_stores_nothing(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=200_000)
        count = self.fill(producer)
        assert 15 <= count <= 20
        assert producer.pending() == count
        network["dc1"].up()
        producer.flush(timeout=120)
        producer.publish("orders", bytes(10_000)).wait(timeout=120)

    def test_what_is_being_stored_takes_room_as_well(
        self, make: Make, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network["dc1"].down()
        producer = make(max_bytes=200_000)
        append, storing, go_on = producer._engine._outbox.append, threading.Event(), threading.Event()

        def slow(*arguments: Any) -> list[Row]:
            storing.set()
            assert go_on.wait(60)
            return append(*arguments)

        monkeypatch.setattr(producer._engine._outbox, "append", slow)
        for _ in range(10):
            producer.publish_nowait("orders", bytes(10_000))
        assert storing.wait(60)

        def flood() -> None:
            for _ in range(20):
                producer.publish_nowait("orders", bytes(10_000))

        with pytest.raises(OutboxFull):
            flood()
        assert 15 <= producer.pending() <= 20
        go_on.set()

    def test_raise(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, when_full="raise")
        self.fill(producer)
        with pytest.raises(OutboxFull):
            producer.publish("orders", bytes(10_000))

    def test_block_waits_for_room(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=60)
        self.fill(producer)
        done = threading.Event()

        def publish() -> None:
            producer.publish("orders", bytes(10_000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        wait_for(lambda: producer._engine.admission.waiting)
        assert not done.is_set()
        network["dc1"].up()
        thread.join(60)
        assert done.is_set()

    def test_block_ends_with_the_time_out(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=0.05)
        self.fill(producer)
        with pytest.raises(OutboxFull):
            producer.publish("orders", bytes(10_000))

    def test_closing_releases_who_waits(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=60.0)
        self.fill(producer)
        raised: list[BaseException] = []

        def publish() -> None:
            try:
                producer.publish("orders", bytes(10_000))
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        wait_for(lambda: producer._engine.admission.waiting)
        producer.close(timeout=0.0)
        thread.join(60)
        assert len(raised) == 1

    def test_what_is_published_never_causes_a_full_outbox(self, make: Make, path: Path) -> None:
        producer = make(max_bytes=300_000, retain_bytes=10_000_000, block_timeout=60)
        for _ in range(200):
            producer.publish("orders", bytes(10_000))
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 300_000)

    def test_retention_by_bytes(self, make: Make, path: Path) -> None:
        producer = make(retain_bytes=100_000, max_batch_messages=1)
        producer.publish_many("orders", [bytes(10_000)] * 50)
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 110_000)
        assert inspect_outbox(path).messages >= 5

    def test_retention_by_time(self, make: Make, path: Path) -> None:
        producer = make(retain_seconds=0.1)
        producer.publish_many("orders", numbers(1, 10)).wait(timeout=120)
        wait_for(lambda: inspect_outbox(path).messages == 0)
        producer.close()
        (row,) = journal(path, "released")
        assert (row.first, row.last) == (1, 10)

    def test_unconfirmed_at_one_site_stays_until_the_room_is_needed(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        network["dc2"].down()
        producer = make(
            confirm="any", max_bytes=200_000, retain_seconds=0.0, retain_bytes=0, max_batch_messages=1
        )
        first = producer.publish_many("orders", [bytes(10_000)] * 10)
        producer.flush(timeout=120)
        assert inspect_outbox(path).messages == 10
        for _ in range(40):
            producer.publish("orders", bytes(10_000))
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 210_000)
        assert first.sites == {"dc1": "confirmed", "dc2": "released"}
        network["dc2"].up()
        wait_for(lambda: producer.status().sites["dc2"].in_flight == 0 and network["dc2"].queued("orders"))
        producer.close(timeout=120)
        released = journal(path, "released_unsent")
        assert {row.site for row in released} == {"dc2"}
        assert released[0].first == 1

    def test_a_parked_stream_does_not_fill_the_outbox_for_the_others(
        self, make: Make, network: MemoryNetwork
    ) -> None:
        network["dc1"].refuse("orders", Outcome.NACKED)
        producer = make(max_bytes=300_000, block_timeout=60, retain_bytes=0)
        producer.publish("orders", bytes(10_000))
        for _ in range(100):
            producer.publish("other", bytes(10_000))
        assert producer.pending() >= 1
        network["dc1"].accept("orders")
        producer.flush(timeout=120)


class TestReleasing:
    def test_what_leaves_for_room_was_journalled_as_published(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        """With nothing retained, batches may leave as soon as they are published, between two looks at progress."""
        producer = make(retain_bytes=0, max_bytes=100_000, max_batch_messages=5, block_timeout=60)
        for number in range(600):
            producer.publish("orders", b"%03d" % number + bytes(2_000))
        producer.flush(timeout=120)
        producer.close(timeout=120)
        rows = journal(path)
        told = {n for row in rows if row.kind == "published" for n in range(row.first, row.last + 1)}
        assert [row for row in rows if row.kind == "released"]
        assert told == set(range(1, 601))

    @pytest.mark.parametrize("size", [1_000, 2_000, 9_000])
    def test_what_one_site_lacks_leaves_in_order_and_only_for_room(self, path: Path, size: int) -> None:
        """Stepped: the file never holds more than it may, and each batch that left was published first."""
        bench = Bench(path, "dc1", "dc2")
        bench.network["dc2"].down()
        engine = bench.open(
            confirm="any", max_bytes=20_000, retain_seconds=0.0, retain_bytes=0, hello_timeout=0
        )
        for number in range(1, 41):
            receipt = bench.publish(engine, "t", bytes(size))
            bench.run(2.0)
            assert receipt.done
            assert engine.retention.stored_bytes <= 20_000
            held = inspect_outbox(path).messages
            left = [row for row in journal(path, "released_unsent") for _ in range(row.first, row.last + 1)]
            assert held + len(left) == number
            assert held == number or engine.retention.stored_bytes + 2 * (size + 300) > 20_000, (
                "not before it must"
            )
        bench.close(engine)
        rows = journal(path)
        released = [row for row in rows if row.kind == "released_unsent"]
        assert released
        assert {row.site for row in released} == {"dc2"}
        numbers = [n for row in released for n in range(row.first, row.last + 1)]
        assert numbers == list(range(1, len(numbers) + 1))
        told = {n for row in rows if row.kind == "published" for n in range(row.first, row.last + 1)}
        assert told >= set(numbers)
        assert not [row for row in rows if row.kind == "released"]

    def test_what_no_site_has_never_leaves_for_room(self, path: Path) -> None:
        bench = Bench(path, "dc1", "dc2")
        for name in ("dc1", "dc2"):
            bench.network[name].down()
        engine = bench.open(
            confirm="any", max_bytes=20_000, retain_seconds=0.0, retain_bytes=0, hello_timeout=0
        )
        for _ in range(8):
            bench.publish(engine, "t", bytes(2_000))
            bench.run(2.0)
        with pytest.raises(OutboxFull):
            bench.publish(engine, "t", bytes(4_000))
        bench.run(2.0)
        assert inspect_outbox(path).messages == 8
        assert not [row for row in journal(path) if row.kind.startswith("released")]
