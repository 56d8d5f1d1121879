"""Real producers and consumers with keys over an in-memory network, and somebody who recorded what passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, KeyRing, Message, Producer
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import read_journal
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.data import CONTENT_TYPE, frames_of
from reliamsg.wire.limits import MAX_FRAME_BYTES
from tests.patience import wait_for

KEYS = KeyRing({"k": b"0123456789abcdef0123456789abcdef"}, sign_with="k")
BODIES = [b"pay 0", b"pay 1", b"pay 2"]

Read = Callable[..., Consumer]


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as made:
        yield made


@pytest.fixture
def read(network: MemoryNetwork, tmp_path: Path) -> Iterator[Read]:
    opened: list[Consumer] = []

    def make(group: str, inbox: str = "", **settings: Any) -> Consumer:
        settings = {"gap_timeout": 1.5, "keys": KEYS, "takeover_timeout": 4.0, **settings}
        consumer = Consumer(
            group, network.sites, topics=["orders"], inbox=tmp_path / f"{inbox or group}.inbox.db", **settings,
        )  # fmt: skip
        opened.append(consumer)
        wait_for(lambda: consumer.status().sites["dc1"].state == "connected", "connected", 20.0)
        return consumer

    yield make
    for consumer in opened:
        consumer.close()


@pytest.fixture
def produce(network: MemoryNetwork, tmp_path: Path) -> Iterator[Callable[[], Producer]]:
    opened: list[Producer] = []

    def make() -> Producer:
        opened.append(
            Producer(
                "bank", network.sites, outbox=tmp_path / "bank.outbox.db", keys=KEYS,
                groups={"orders": ["billing"]}, retain_seconds=3_600.0, hello_timeout=0.2,
            )
        )  # fmt: skip
        return opened[-1]

    yield make
    for producer in opened:
        producer.close(1.0)


def recorded(tmp_path: Path) -> list[bytes]:
    """The frames as they passed."""
    with closing(open_readonly(tmp_path / "bank.outbox.db")) as connection:
        rows = connection.execute("SELECT frame FROM batch ORDER BY id").fetchall()
    return [frame for (data,) in rows for frame in frames_of(data, MAX_FRAME_BYTES, KEYS)]


def replay(network: MemoryNetwork, frames: Sequence[bytes]) -> None:
    for frame in frames:
        network["dc1"].inject("orders", frame, content_type=CONTENT_TYPE)


def pay(producer: Producer) -> None:
    for body in BODIES:
        producer.publish("orders", body).wait(timeout=60)


def joined(tmp_path: Path, inbox: str) -> list[str]:
    with closing(open_readonly(tmp_path / f"{inbox}.inbox.db")) as connection:
        return [row.reason for row in read_journal(connection) if row.kind == "joined"]


def drain(consumer: Consumer, count: int, seconds: float = 20.0) -> list[Message]:
    found: list[Message] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        message = consumer.get(timeout=0.1)
        if message is not None:
            message.ack()
            found.append(message)
    return found


def summary(messages: Sequence[Message]) -> list[tuple[bytes, bool]]:
    return [(message.body, message.redelivered) for message in messages]


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_new_group_is_given_a_recording_flagged_when_its_producer_is_gone(
    network: MemoryNetwork, produce: Callable[[], Producer], read: Read, tmp_path: Path, begin: str
) -> None:
    producer = produce()
    pay(producer)
    frames = recorded(tmp_path)
    producer.close()
    consumer = read("newcomer", begin=begin)
    replay(network, frames)
    assert summary(drain(consumer, 3)) == [(body, True) for body in BODIES]
    assert joined(tmp_path, "newcomer") == ["unproven"]


def test_a_lost_inbox_is_given_a_recording_flagged_when_its_producer_is_gone(
    network: MemoryNetwork, produce: Callable[[], Producer], read: Read, tmp_path: Path
) -> None:
    consumer, producer = read("billing"), produce()
    pay(producer)
    assert summary(drain(consumer, 3)) == [(body, False) for body in BODIES]
    frames = recorded(tmp_path)
    producer.close()
    consumer.close()
    again = read("billing", "replacement")
    replay(network, frames)
    assert summary(drain(again, 3)) == [(body, True) for body in BODIES]


def test_a_group_that_begins_with_the_latest_is_given_a_recording_flagged_and_what_follows_plain(
    network: MemoryNetwork, produce: Callable[[], Producer], read: Read, tmp_path: Path
) -> None:
    producer = produce()
    pay(producer)
    consumer = read("newcomer", begin="latest")
    replay(network, recorded(tmp_path))
    assert summary(drain(consumer, 3)) == [(body, True) for body in BODIES]
    producer.publish("orders", b"pay now").wait(timeout=60)
    assert summary(drain(consumer, 1)) == [(b"pay now", False)]
    replay(network, recorded(tmp_path))
    assert drain(consumer, 1, 0.5) == []
    assert joined(tmp_path, "newcomer") == [""]


def test_what_a_living_producer_publishes_and_holds_comes_plain_and_soon(
    network: MemoryNetwork, produce: Callable[[], Producer], read: Read, tmp_path: Path
) -> None:
    """Nobody pays for the question but with a moment at the very beginning."""
    producer = produce()
    consumer = read("billing", gap_timeout=60.0)
    pay(producer)
    assert summary(drain(consumer, 3)) == [(body, False) for body in BODIES]
    late = read("latecomer", gap_timeout=60.0)
    producer.publish("orders", b"pay 3").wait(timeout=60)
    assert summary(drain(late, 4)) == [(body, False) for body in (*BODIES, b"pay 3")]
    assert joined(tmp_path, "billing") == joined(tmp_path, "latecomer") == [""]
