"""Producer and consumer with keys, and a client without them at the same brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from reliamsg import KeyRing, Producer
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.testing import MemoryNetwork
from tests.badinput.tools import site
from tests.e2e.tools import World, numbers, published, take

KEYS = KeyRing({"old": b"O" * 32, "new": b"N" * 32}, sign_with="new")
OLD_KEYS = KeyRing({"old": b"O" * 32, "new": b"N" * 32}, sign_with="old")
OTHER_KEYS = KeyRing({"new": b"X" * 32}, sign_with="new")


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as network:
        yield network


@pytest.fixture
def both(tmp_path: Path, rabbit: RabbitNode, shared_mosquitto: Mosquitto, unique: str) -> Iterator[World]:
    world = World(tmp_path, unique, [site("dc1", rabbit.url), site("dc2", shared_mosquitto.url)])
    yield world
    world.close()


def test_a_lost_tail_is_repaired(tmp_path: Path, network: MemoryNetwork) -> None:
    world = World(tmp_path, "orders", network.sites)
    producer = world.producer(release="consumed", keys=KEYS)
    consumer = world.consumer(keys=OLD_KEYS)  # during a rotation of keys
    world.connected(consumer)
    published(producer, "orders", 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    network["dc1"].lose(1)  # batch
    published(producer, "orders", 21, 30)
    assert numbers(take(consumer, 10)) == list(range(21, 31))
    receipt = producer.publish("orders", b"31")
    assert numbers(take(consumer, 1)) == [31]
    receipt.wait(timeout=60, until="consumed")
    assert consumer.status().repaired == 10
    assert producer.status().rejected == {}
    report = world.check()
    assert report.verdict == "complete", report.text()


@pytest.mark.parametrize("wire", ["batch", "plain"])
def test_at_real_brokers_of_both_kinds(both: World, wire: Literal["batch", "plain"]) -> None:
    """Whatever brokers change in headers and bytes on the way, signatures are valid, in both directions."""
    producer = both.producer(
        release="consumed", keys=KEYS, wire=wire, compression="zstd" if wire == "batch" else None
    )
    consumer = both.consumer(keys=KEYS)
    both.connected(consumer)
    producer.publish(both.topic, b"1", key="ключ", headers={"name": "ä ö", "empty": ""})
    (first,) = take(consumer, 1)
    assert (first.key, first.headers) == ("ключ", {"name": "ä ö", "empty": ""})
    published(producer, both.topic, 2, 200)
    assert numbers(take(consumer, 199)) == list(range(2, 201))
    producer.publish(both.topic, b"201").wait(timeout=60)
    last = producer.publish(both.topic, b"202")
    assert numbers(take(consumer, 2)) == [201, 202]
    last.wait(timeout=60, until="consumed")
    assert [found.rejected for found in consumer.status().sites.values()] == [{}, {}]
    assert producer.status().rejected == {}
    report = both.check()
    assert report.verdict == "complete", report.text()


@pytest.mark.parametrize("keys", [None, OTHER_KEYS], ids=["unsigned", "forged"])
def test_a_flood_in_the_producers_name_loses_nothing(
    both: World, keys: KeyRing | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An attacker publishes in the producer's name at full speed, with the same numbers, in a later epoch."""
    producer = both.producer(keys=KEYS, release="consumed")
    consumer = both.consumer(keys=KEYS)
    both.connected(consumer)
    forger = Producer("p", both.sites[:1], outbox=tmp_path_factory.mktemp("forger") / "p.db", keys=keys)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            forger.publish_many(both.topic, [b"forged"] * 500)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        got: list[int] = []
        for first in range(1, 201, 10):
            published(producer, both.topic, first, first + 9)
            got += numbers(take(consumer, 10))
    finally:
        stop.set()
        thread.join()
        forger.close(0.0)
    assert got == list(range(1, 201))
    rejected = consumer.status().sites["dc1"].rejected
    assert set(rejected) == {"unsigned" if keys is None else "forged"}
    assert list(consumer.status().sites["dc2"].rejected) in ([], list(rejected))
    report = both.check()
    assert report.verdict == "complete", report.text()
