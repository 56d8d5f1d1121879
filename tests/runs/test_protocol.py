"""Effects of brokers, clocks and restarts on the protocol itself, on real brokers of both kinds."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos.bridges import bridges
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.wire.address import EXCHANGE
from tests import patience
from tests.options import Size
from tests.runs.harness import run_in, wait_for, wait_until_reading
from tests.runs.paths import IMPATIENT, Paths, Traffic, traffic

DAY_S = 86_400.0


def test_duplicated_and_reordered(
    tmp_path: Path,
    rabbit: RabbitNode,
    shared_mosquitto: Mosquitto,
    make_mosquitto: Callable[..., Mosquitto],
    unique: str,
    size: Size,
    seeded: random.Random,
) -> None:
    """At both sites, a bridge between producer and consumer shuffles and repeats everything."""
    messages = size(3_000, 60_000)
    other = make_mosquitto(name="dc2")
    rabbit.ctl("add_vhost", unique)
    rabbit.ctl("set_permissions", "-p", unique, "guest", ".*", ".*", ".*")
    far = rabbit.url.replace("%2F", unique)
    try:
        with (
            bridges((rabbit.url, far), (shared_mosquitto.port, other.port), unique, seeded) as both,
            run_in(tmp_path / "run") as run,
        ):
            consumer = run.consumer(
                unique, [("dc1", far, IMPATIENT), ("dc2", other.url, {**IMPATIENT, "mqtt_version": "5"})], [unique]
            )  # fmt: skip
            producer = run.producer(
                "till", [("dc1", rabbit.url, IMPATIENT), ("dc2", shared_mosquitto.url, IMPATIENT)],
                unique, [], messages, rate=1_500, chunk=20, options={"max_batch_messages": 5},
            )  # fmt: skip
            t = Traffic(run, producer, consumer, messages)
            consumer.start()
            t.reads()
            producer.start()
            # Either may lag behind, and the consumer, which needs only one of them, may finish long before.
            patience.wait_for(
                lambda: sum(row.last - row.first + 1 for row in t.rows(consumer, "duplicate")) > messages,
                "more duplicates than from two sites without bridges",
                60.0,
                poll=0.5,
            )
            t.drained()
            assert min(bridge.forwarded for bridge in both) > messages / 20, "a bridge passed nothing on"
            assert min(bridge.shuffler.inversions for bridge in both) > messages / 100, "all came in order"
    finally:
        rabbit.ctl("delete_vhost", unique)


@pytest.mark.full  # at small size: test_restored.py and the simulator
def test_wall_clocks_off_by_a_day(tmp_path: Path, paths: Paths, unique: str) -> None:
    """The producer's clock is a day late, or early, at each start; the consumer's jumps all the time."""
    with run_in(tmp_path / "run") as run:
        t = traffic(
            run, paths, unique, 6_000, rate=2_000, module=wrong_clock,
            consuming={"jumps": [-DAY_S, 0.0, DAY_S]}, producing={"jumps": [0.0, DAY_S]},
        )  # fmt: skip
        for shift in (-DAY_S, DAY_S, 0.0):
            t.flows(800)
            t.producer.kill()
            t.producer.start(shift=shift, jumps=[shift])
        t.drained()
        opened = t.rows(t.producer, "opened")
        epochs = [row.epoch for row in opened]
        assert len(epochs) == 4
        assert epochs == sorted(set(epochs)), "an epoch was not above the one before"
        steps = [row.detail or {} for row in t.rows(t.producer, "clock_step")]
        assert max(step["from_us"] - step["to_us"] for step in steps) / 1e6 > DAY_S, "the clock was right"
        stamps = [row.wall_us for row in run.rows(t.producer)]
        assert stamps == sorted(stamps)


@pytest.mark.full  # at small size: test_crash_windows.py
def test_many_restarts(tmp_path: Path, paths: Paths, unique: str, size: Size, seeded: random.Random) -> None:
    """The producer is killed repeatedly without a reader while sites go down and up; then the consumer is."""
    starts, enough = size(5, 40), tmp_path / "enough"
    with run_in(tmp_path / "run") as run:
        producing = {"rate": 1_000, "chunk": 20, "enough": str(enough)}
        t = traffic(run, paths, unique, 1_000_000, producing=producing)
        t.last = 0  # as many as it publishes until it is told to stop
        t.flows(100)
        t.consumer.kill()
        before = t.delivered()
        for number in range(starts):
            t.producer.kill()
            away = paths.producer[seeded.choice(("dc1", "dc2"))]
            away.cut()
            t.producer.start()
            if number % 4 != 3:  # every fourth is killed before it does anything
                t.accepts(seeded.randrange(20, 200))
            away.heal()
        t.producer.kill()
        t.producer.start()
        waiting = wait_for(lambda: t.under_way * (t.under_way > 300), 30, "messages wait for the consumer")
        enough.touch()
        for _ in range(size(3, 20)):
            t.consumer.start(delay=0.0003)
            t.flows(seeded.randrange(1, 200))
            t.consumer.kill()
        t.consumer.start()
        t.drained()
        assert len(t.rows(t.producer, "opened")) >= starts * 3 // 4
        print(f"{t.accepted()} messages, {before} before, {waiting} waited")


class PlainReaders:
    """An ordinary pika consumer and an ordinary paho subscriber of one topic."""

    def __init__(self, rabbit: RabbitNode, mosquitto: Mosquitto, topic: str) -> None:
        self.got: queue.Queue[tuple[str, bytes, dict[str, str]]] = queue.Queue()
        self._finish = threading.Event()
        self._connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
        self._channel = self._connection.channel()
        self._channel.exchange_declare(EXCHANGE, "topic", durable=True)
        self._queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(self._queue, EXCHANGE, topic)
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()
        subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = self._message
        self._client.connect("127.0.0.1", mosquitto.port)
        self._client.subscribe(topic, qos=1)
        self._client.loop_start()
        assert subscribed.wait(60)

    def _consume(self) -> None:
        for method, properties, body in self._channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None:
                assert method.delivery_tag is not None
                assert properties is not None
                assert body is not None
                headers: Any = properties.headers
                assert properties.content_type == headers.get("content-type")
                self.got.put(("amqp", body, dict(headers)))
                self._channel.basic_ack(method.delivery_tag)
            elif self._finish.is_set():
                break
        self._connection.close()

    def _message(self, client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        properties = message.properties
        headers = dict(properties.UserProperty)  # type: ignore[union-attr]
        if getattr(properties, "ContentType", None) != headers.get("content-type"):
            headers = {"wrong": str(properties)}
        self.got.put(("mqtt", bytes(message.payload), headers))

    def finish(self) -> None:
        self._finish.set()
        self._thread.join(60)
        self._client.disconnect()
        self._client.loop_stop()


def test_plain_messages_are_read_by_everybody(
    tmp_path: Path, rabbit: RabbitNode, shared_mosquitto: Mosquitto, paths: Paths, unique: str
) -> None:
    """wire="plain": plain pika, plain paho and a consumer of ours read the same, across a reset of either site."""
    sites = {
        way: [Site(name, url, **options) for name, url, options in paths.sites(proxies)]
        for way, proxies in (("out", paths.producer), ("in", paths.consumer))
    }
    bodies = [b"\x00\xff%d " % number + b"x" * (number % 500) for number in range(600)]
    headers_of = [
        {"account": f"ä{number}"} | ({} if number % 3 else {"content-type": f"text/plain; n={number}"})
        for number in range(len(bodies))
    ]
    readers = PlainReaders(rabbit, shared_mosquitto, unique)
    seen: dict[str, dict[int, tuple[bytes, dict[str, str]]]] = {"amqp": {}, "mqtt": {}}
    with (
        contextlib.ExitStack() as stack,
        Consumer(unique, sites["in"], topics=[unique], inbox=tmp_path / "inbox.db") as consumer,
        Producer(
            "till", sites["out"], outbox=tmp_path / "outbox.db", groups={unique: [unique]}, wire="plain"
        ) as producer,
    ):
        stack.callback(readers.finish)
        wait_until_reading(consumer)
        receipts = []
        for number, body in enumerate(bodies):
            if number in (200, 400):
                paths.of(("dc1", "dc2")[number // 400])[0].reset()
            receipts.append(
                producer.publish_nowait(unique, body, key=f"k{number}", headers=headers_of[number])
            )
            if number % 100 == 0:
                receipts[-1].wait(timeout=120)
        for receipt in receipts:
            receipt.wait(timeout=120)
        for number, body in enumerate(bodies):
            message = consumer.get(timeout=120)
            assert message is not None, f"{number} did not come"
            assert (message.body, message.key) == (body, f"k{number}")
            assert message.headers == headers_of[number]
            message.ack()
        while min(map(len, seen.values())) < len(bodies):
            kind, body, headers = readers.got.get(timeout=120)
            number = int(headers["rm-seq"])
            known: Any = seen[kind].setdefault(number, (body, headers))
            assert known == (body, headers), "one identity, two contents"
        for found in seen.values():
            assert [found[number][0] for number in sorted(found)] == bodies
            for number, (_, headers) in found.items():
                assert headers["account"] == f"ä{number - 1}"
                assert headers["rm-key"] == f"k{number - 1}"
                assert headers["rm-producer"] == "till"
