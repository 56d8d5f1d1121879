"""One stream is refused at one site: it is parked there, the others continue, and it resumes when the cause is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pika

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.wire.address import EXCHANGE, group_queue
from tests.runs.harness import wait_for, wait_until_reading


def check_parked_and_resumed(
    producer: Producer,
    consumer: Consumer,
    bad: str,
    good: str,
    repair: Callable[[], None],
    body: bytes = b"x",
) -> None:
    """Publish to both topics; only `bad` is parked, at dc1 alone; after `repair` all of it arrives, in order."""
    held = [producer.publish(bad, b"%d " % number + body) for number in range(20)]
    wait_for(
        lambda: bad in {s.topic for s in producer.status().sites["dc1"].parked}, 30, f"{bad} is parked at dc1"
    )
    for number in range(20):
        producer.publish(good, b"%d" % number).wait(timeout=120)
    assert not held[0].done
    assert {s.topic for s in producer.status().sites["dc1"].parked} == {bad}
    assert producer.status().sites["dc2"].parked == ()
    repair()
    for receipt in held:
        receipt.wait(timeout=120)
    assert producer.status().sites["dc1"].parked == ()
    got: dict[str, list[int]] = {bad: [], good: []}
    for _ in range(40):
        message = consumer.get(timeout=120)
        assert message is not None, f"only {got} came"
        got[message.topic].append(int(message.body.split()[0]))
        message.ack()
    assert got == {bad: list(range(20)), good: list(range(20))}


def test_an_unbound_topic(tmp_path: Path, make_rabbit: Callable[..., RabbitNode], rabbit: RabbitNode) -> None:
    topics = ["unbound-1", "bound-1"]
    sites = [Site("dc1", rabbit.url, declare="none"), Site("dc2", make_rabbit(name="dc2").url)]
    parameters = pika.URLParameters(rabbit.url)
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        for topic in topics:
            queue = group_queue(topic, 0, "desk")
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(group_queue("bound-1", 0, "desk"), EXCHANGE, "bound-1")

        def bind() -> None:
            channel.queue_bind(group_queue("unbound-1", 0, "desk"), EXCHANGE, "unbound-1")

        groups = {topic: ["desk"] for topic in topics}
        with (
            Producer("p", sites, outbox=tmp_path / "outbox.db", groups=groups) as producer,
            Consumer("desk", sites, topics=topics, inbox=tmp_path / "inbox.db") as consumer,
        ):
            check_parked_and_resumed(producer, consumer, "unbound-1", "bound-1", bind)


def test_a_refused_size(tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]) -> None:
    topics = ["large-1", "small-1"]
    dc1, dc2 = make_mosquitto(name="dc1", message_size_limit=50_000), make_mosquitto(name="dc2")
    sites = [Site("dc1", dc1.url, backoff_max=0.5), Site("dc2", dc2.url)]

    def allow() -> None:
        dc1.stop()
        make_mosquitto(name="dc1", port=dc1.port)

    groups = {topic: ["desk"] for topic in topics}
    with (
        Consumer("desk", sites, topics=topics, inbox=tmp_path / "inbox.db") as consumer,
        Producer("p", sites, outbox=tmp_path / "outbox.db", groups=groups) as producer,
    ):
        wait_until_reading(consumer)
        check_parked_and_resumed(
            producer, consumer, "large-1", "small-1", allow, bytes(60_000).hex().encode()
        )


def test_a_failing_puback(tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]) -> None:
    topics = ["denied-1", "allowed-1"]
    # Without any limit of queued messages, Mosquitto 2.0.11 drops the connection after each refusal.
    dc1 = make_mosquitto(name="dc1", deny=["denied-1"], max_queued_messages=1_000_000)
    dc2 = make_mosquitto(name="dc2")
    sites = [Site("dc1", dc1.url), Site("dc2", dc2.url)]

    def allow() -> None:
        dc1.stop()
        make_mosquitto(name="dc1", port=dc1.port)

    groups = {topic: ["desk"] for topic in topics}
    with (
        Consumer("desk", sites, topics=topics, inbox=tmp_path / "inbox.db") as consumer,
        Producer("p", sites, outbox=tmp_path / "outbox.db", groups=groups) as producer,
    ):
        wait_until_reading(consumer)
        check_parked_and_resumed(producer, consumer, "denied-1", "allowed-1", allow)
