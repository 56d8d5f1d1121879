"""The last messages before silence are lost by a broker that had confirmed them: they arrive nevertheless, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.lab import Mosquitto
from reliamsg.lab.chaos.fixtures import PahoFixture
from tests.runs.collected import keep
from tests.runs.harness import assert_complete, wait_for, wait_until_reading

STATUS_INTERVAL_S, NAK_DELAY_S = 1.0, 0.5
PROMISE_S = STATUS_INTERVAL_S + NAK_DELAY_S + 1.0
TRIES = 3
TAIL = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("restarted", [False, True], ids=["same-producer", "restarted-and-silent"])
def test_lost_tail(
    restarted: bool, tmp_path: Path, make_mosquitto: Callable[..., Mosquitto], unique: str
) -> None:
    """The tail arrives within the promised time; retried if the machine stalled meanwhile."""
    took: list[float] = []
    while not took or (min(took) >= PROMISE_S and len(took) < TRIES):
        place = tmp_path / str(len(took))
        place.mkdir()
        took.append(lose_a_tail(restarted, place, make_mosquitto, f"{unique}-{len(took)}"))
    print(f"the tail came {', '.join(f'{seconds:.2f}' for seconds in took)} s after the consumer could read")
    assert min(took) < PROMISE_S
    assert control(make_mosquitto(name="control", persistence=True), unique) == ["A"], (
        "the fault did not matter: the plain client lost nothing"
    )


def lose_a_tail(
    restarted: bool, tmp_path: Path, make_mosquitto: Callable[..., Mosquitto], unique: str
) -> float:
    """Ten messages are confirmed; Mosquitto is killed before its save and returns empty; nothing more is published.

    Returns the seconds from when the consumer could read until the last of them had arrived.
    """
    broker = make_mosquitto(name=f"dc1-{unique}", persistence=True)
    sites = [Site("dc1", broker.url, backoff_max=0.2)]
    producer = open_producer(unique, sites, tmp_path)
    try:
        with open_consumer(unique, sites, tmp_path) as consumer:
            wait_until_reading(consumer)
            producer.publish(unique, b"before").wait(timeout=120)
            assert take(consumer, 1) == [b"before"]
        for body in TAIL:
            producer.publish(unique, body).wait(timeout=120)
        wait_for(lambda: broker.stored() >= 1, 20, "the broker counts the messages at stake")
        broker.kill()
        if restarted:
            producer.close()
            producer = open_producer(unique, sites, tmp_path)
        broker.start()
        wait_for(lambda: producer.status().sites["dc1"].state == "connected", 60, "the producer is back")
        with open_consumer(unique, sites, tmp_path) as consumer:
            wait_until_reading(consumer)
            since = time.monotonic()
            assert take(consumer, len(TAIL)) == TAIL
            took = time.monotonic() - since
            wait_for(lambda: not producer.pending(), 60, "the outbox is released")
    finally:
        producer.close()
    report = check_directory(tmp_path, Expect(drained=True))
    assert_complete(report)
    keep(tmp_path)
    return took


def open_producer(name: str, sites: list[Site], directory: Path) -> Producer:
    return Producer(
        "station", sites, outbox=directory / "outbox.db", groups={name: [name]}, release="consumed",
        status_interval=STATUS_INTERVAL_S, journal=directory / "journals",
    )  # fmt: skip


def open_consumer(name: str, sites: list[Site], directory: Path) -> Consumer:
    return Consumer(
        name, sites, topics=[name], inbox=directory / "inbox.db", repair_delay=NAK_DELAY_S,
        journal=directory / "journals",
    )  # fmt: skip


def take(consumer: Consumer, count: int) -> list[bytes]:
    """The next messages, acknowledged durably."""
    bodies: list[bytes] = []
    for _ in range(count):
        message = consumer.get(timeout=120)
        assert message is not None, f"only {bodies} came"
        bodies.append(message.body)
        message.ack(durable=True)
    return bodies


def control(broker: Mosquitto, topic: str) -> list[str]:
    """The messages of A, and of the tail, that a plain QoS 1 subscriber with a persistent session receives."""
    plain = PahoFixture(topic, broker.url)
    plain.visit("A")
    plain.publish("B", "C")
    broker.kill()
    broker.start()
    plain.connect()
    return plain.finish()
