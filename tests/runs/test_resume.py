"""A; the subscriber leaves; B, C; its broker is killed and loses its state; the subscriber returns; D, E; the broker
returns.

The run with which the project began. One plain broker gives the subscriber A alone; two sites give it A B C D E.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos.fixtures import PahoFixture
from tests.runs.collected import keep
from tests.runs.harness import assert_complete, wait_for, wait_until_reading

TOPIC = "resume-test"


def take(consumer: Consumer, count: int, seconds: float = 30.0) -> list[bytes]:
    """The next messages, acknowledged durably."""
    bodies: list[bytes] = []
    for _ in range(count):
        message = consumer.get(timeout=seconds)
        assert message is not None, f"only {bodies} came"
        bodies.append(message.body)
        message.ack(durable=True)
    return bodies


@pytest.mark.parametrize("second", ["mosquitto", "rabbitmq"])
def test_nothing_is_lost_when_a_site_forgets(
    second: str,
    tmp_path: Path,
    make_mosquitto: Callable[..., Mosquitto],
    rabbit: RabbitNode,
) -> None:
    dc1 = make_mosquitto(name="dc1")
    other = make_mosquitto(name="dc2") if second == "mosquitto" else rabbit
    topic = f"{TOPIC}-{second}"
    sites = [Site("dc1", dc1.url, backoff_max=0.5), Site("dc2", other.url)]

    def arrive() -> Consumer:
        return Consumer(
            topic, sites, topics=[topic], inbox=tmp_path / "inbox.db", journal=tmp_path / "journals"
        )

    with Producer(
        "station",
        sites,
        outbox=tmp_path / "outbox.db",
        groups={topic: [topic]},
        journal=tmp_path / "journals",
    ) as producer:
        with arrive() as consumer:
            wait_until_reading(consumer)
            producer.publish(topic, b"A").wait(timeout=120)
            assert take(consumer, 1) == [b"A"]
        for body in (b"B", b"C"):
            producer.publish(topic, body).wait(timeout=120)
        wait_for(lambda: dc1.stored() >= 1, 20, "dc1 counts the messages at stake")
        dc1.kill()
        with arrive() as consumer:
            receipts = [producer.publish(topic, body) for body in (b"D", b"E")]
            assert not receipts[-1].done, "dc1 is down: not published yet"
            assert take(consumer, 4) == [b"B", b"C", b"D", b"E"]
            dc1.wipe()
            dc1.start()
            for receipt in receipts:
                receipt.wait(timeout=120)
            producer.publish(topic, b"F").wait(timeout=120)
            assert take(consumer, 1) == [b"F"], "what dc1 delivers again is a duplicate"
    assert_complete(check_directory(tmp_path, Expect(drained=True)))
    keep(tmp_path)
    assert control(make_mosquitto(name="control")) == ["A"], (
        "the fault did not matter: the plain client lost nothing"
    )


def control(broker: Mosquitto) -> list[str]:
    """The messages that a plain QoS 1 subscriber with a persistent session receives in the same run on one broker."""
    plain = PahoFixture(TOPIC, broker.url)
    plain.visit("A")
    plain.publish("B", "C")
    broker.kill()
    broker.start()
    plain.publish("D", "E")
    plain.connect()
    return plain.finish()
