"""`max_bytes` at every instant: what is stored and what is accepted never exceed it together, and nothing leaks."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reliamsg import KeyRing, MessageId, Producer
from reliamsg.errors import OutboxFull, OutboxWriteError
from reliamsg.producer.admission import QUEUE_BYTES, Admission
from reliamsg.producer.commit import Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.testing import MemoryNetwork
from tests.producer.control_tools import Bench


class Watched(Admission):
    """Looks at itself after every step, and at what is stored for what was reserved."""

    @classmethod
    def watch(cls, admission: Admission) -> Watched:
        admission.__class__ = cls
        assert isinstance(admission, cls)
        return admission

    def reserve(self, owner: object, size: int) -> bool:
        reserved = super().reserve(owner, size)
        if reserved:
            assert self.used <= self.max_bytes
        return reserved

    def transfer(self, owner: object, stored: int) -> None:
        with self._lock:
            mine = sum(size for claim, size in self._claims.items() if claim[0] is owner)
            assert stored <= mine, "what is stored takes no more room than was reserved for it"
            super().transfer(owner, stored)
            assert 0 <= self.used <= self.max_bytes


class TestBudget:
    def test_reserve_transfer_release(self) -> None:
        admission = Admission(1_000)
        assert admission.reserve("a", 600)
        assert not admission.reserve("b", 401)
        assert admission.reserve("b", 400)
        admission.transfer("a", 500)
        assert (admission.stored, admission.reserved, admission.used) == (500, 400, 900)
        assert admission.reserve("c", 100)
        admission.give_back("b")
        admission.release(500)
        assert (admission.stored, admission.used) == (0, 100)

    def test_what_is_held_lets_nothing_in(self) -> None:
        admission = Admission(1_000)
        admission.hold(True)
        assert not admission.reserve("a", 1)
        admission.hold(False)
        assert admission.reserve("a", 1)

    def test_the_queue_is_bounded_unless_something_is_alone(self) -> None:
        admission = Admission(4 * QUEUE_BYTES)
        assert admission.reserve("a", 2 * QUEUE_BYTES)
        assert not admission.reserve("b", 1)
        admission.transfer("a", 2 * QUEUE_BYTES)
        assert admission.reserve("b", 1)

    def test_who_waits_for_room_gets_it(self) -> None:
        admission = Admission(100)
        assert admission.reserve("a", 100)
        found: list[bool] = []
        thread = threading.Thread(
            target=lambda: found.append(admission.wait(lambda: admission.fits(50), 60.0))
        )
        thread.start()
        while not admission.waiting:
            time.sleep(0.001)
        admission.transfer("a", 40)
        thread.join(60)
        assert found == [True]
        assert not admission.wait(lambda: admission.fits(61), 0.0)

    def test_threads(self) -> None:
        admission, stop = Watched(1_000), time.monotonic() + 0.3
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)

        def work(rng: random.Random) -> None:
            while time.monotonic() < stop:
                owner, size = object(), rng.randrange(1, 400)
                if admission.reserve(owner, size):
                    stored = rng.randrange(size + 1)
                    admission.transfer(owner, stored)
                    admission.release(stored)

        try:
            threads = [threading.Thread(target=work, args=[random.Random(n)]) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            sys.setswitchinterval(interval)
        assert admission.used == 0


def test_what_is_published_while_a_group_is_taken(make: Any, network: MemoryNetwork) -> None:
    """Between the writer's taking a group and storing it, its bytes still count."""
    for site in ("dc1", "dc2"):
        network[site].down()
    one: Producer = make(max_bytes=1_000_000)
    engine = one._engine
    admission = Watched.watch(engine.admission)
    one.publish("orders", b"a")
    take = engine.accumulator.take
    accepted: list[int] = []

    def flood() -> None:
        while True:
            one.publish_nowait("orders", bytes(1_000))
            accepted[0] += 1

    def taking() -> Any:
        group = take()
        if group is not None and not accepted and group.count > 500:
            accepted.append(0)
            with pytest.raises(OutboxFull):
                flood()
        return group

    engine.accumulator.take = taking  # type: ignore[method-assign]
    one.publish_many("orders", [bytes(1_000)] * 900)
    assert accepted
    assert admission.used <= 1_000_000


def test_many_threads_and_a_site_that_comes_and_goes(make: Any, network: MemoryNetwork) -> None:
    network["dc2"].down()
    one: Producer = make(max_bytes=300_000, confirm="any", hello_timeout=0.0)
    admission = Watched.watch(one._engine.admission)
    interval, stop, errors = sys.getswitchinterval(), time.monotonic() + 1.0, []
    sys.setswitchinterval(1e-5)

    def work(rng: random.Random) -> None:
        try:
            while time.monotonic() < stop:
                try:
                    if rng.random() < 0.1:
                        one.publish_many("orders", [bytes(rng.randrange(500))] * 20, headers={"ä": "ö" * 20})
                    else:
                        one.publish_nowait(rng.choice(["orders", "other"]), bytes(rng.randrange(2_000)))
                except OutboxFull:
                    time.sleep(0.001)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    try:
        threads = [threading.Thread(target=work, args=[random.Random(n)]) for n in range(4)]
        for thread in threads:
            thread.start()
        while time.monotonic() < stop:
            network["dc1"].down()
            time.sleep(0.05)
            network["dc1"].up()
            time.sleep(0.1)
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    network["dc1"].up()
    one.flush(60)
    assert not errors
    assert one._engine.fatal is None
    deadline = time.monotonic() + 60
    while admission.used and time.monotonic() < deadline:
        time.sleep(0.01)
    assert admission.used == 0


class Trouble:
    """A disk that refuses now and then."""

    def __init__(self, engine: ProducerEngine, rng: random.Random) -> None:
        self.on = False
        outbox, self._rng = engine._outbox, rng
        self._append = outbox.append
        outbox.append = self.append  # type: ignore[assignment,method-assign]

    def append(self, *arguments: Any) -> Any:
        if self.on and self._rng.random() < 0.5:
            raise OutboxWriteError("the disk is full")
        return self._append(*arguments)


@pytest.mark.parametrize("attempt", range(6))
def test_nothing_leaks(tmp_path: Path, attempt: int, seeded: random.Random) -> None:
    """Failed transactions, removals, renumbering, and what leaves unsent give their bytes back, in any order; and of
    messages of any kind no more is stored than was reserved."""
    rng = seeded
    bench = Bench(tmp_path / "outbox.db", "dc1", "dc2")
    engine = bench.open(
        {"t": ("g",), "u" * 100: ("g",)}, max_bytes=rng.choice([20_000, 100_000, 2_000_000]),
        max_batch_bytes=rng.choice([1, 300, 5_000, 2**18]), max_batch_messages=rng.choice([1, 3, 40, 2_048]),
        compression=rng.choice([None, "zstd"]), confirm=rng.choice(["all", "any"]), retain_bytes=0,
        keys=KeyRing({"k" * 64: bytes(range(32))}, sign_with="k" * 64) if rng.random() < 0.3 else None,
        hello_timeout=rng.choice([0.0, 2.0]), producer="p" * rng.choice([1, 100]),
    )  # fmt: skip
    admission, disk, last = Watched.watch(engine.admission), Trouble(engine, rng), 0

    def publish() -> None:
        nonlocal last
        for _ in range(rng.choice([1, 3, 50])):
            topic = rng.choice(["t", "u" * 100])
            size = rng.choice([0, 1, 100, 400, 6_000, 40_000])
            try:
                if rng.random() < 0.6:
                    engine.accumulator.accept_one(topic, rng.randbytes(size))
                else:
                    key, headers = (
                        rng.choice([None, "k" * 255]),
                        rng.choice([None, {"h": "v" * 255, "i": ""}]),
                    )
                    bodies = [rng.randbytes(size)] * rng.choice([1, 2, 30])
                    beside = len(key or "") + (257 if headers else 0)
                    engine.accumulator.accept(
                        Content(topic, bodies, key, headers, (size + beside) * len(bodies))
                    )
            except OutboxFull:
                pass
        disk.on = rng.random() < 0.3
        bench.run(rng.choice([0.0, 0.5]))
        disk.on = False

    def remove() -> None:
        for page in list(engine.shared.streams.by_stream.values()):
            if page.chain and page.chain[-1].epoch == engine._outbox.epoch:
                end = page.chain[-1].last
                first = rng.randrange(1, end + 1)
                message = MessageId(
                    page.row.stream.producer, engine._outbox.epoch, page.row.stream.topic, 0, first
                )
                engine.remove(message, message._replace(seq=rng.randrange(first, end + 1)))

    def renumber() -> None:
        if engine._outbox.offered < engine._outbox.epoch:
            engine.renumber(engine._outbox.epoch + 5)

    def trouble() -> None:
        broker = bench.network[rng.choice(["dc1", "dc2"])]
        rng.choice([broker.down, broker.up, broker.cut])()

    for _ in range(40):
        rng.choice([publish, publish, publish, remove, renumber, trouble])()
        assert admission.reserved == 0 or not engine.accumulator.empty
    for site in ("dc1", "dc2"):
        bench.network[site].up()
    bench.run(200.0)
    assert engine.fatal is None
    assert engine.pending() == 0
    assert admission.used == 0
