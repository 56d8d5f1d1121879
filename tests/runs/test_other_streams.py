"""A slow or failing handler, and huge messages, on one stream; other streams are not delayed."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from tests.options import Size
from tests.runs.harness import wait_for, wait_until_reading


@pytest.fixture
def sites(rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto]) -> list[Site]:
    return [Site("dc1", rabbit.url), Site("dc2", make_mosquitto(name="dc2").url)]


def test_a_slow_and_a_raising_handler(tmp_path: Path, sites: list[Site]) -> None:
    release, seen = threading.Event(), defaultdict[str, list[int]](list)
    failures: list[int] = []

    def handle(message: Message) -> None:
        number = int(message.body)
        if message.topic == "slow-1":
            release.wait(60)
        elif message.topic == "raising-1" and len(failures) < 3:
            failures.append(number)
            raise RuntimeError("this handler does not like it yet")
        seen[message.topic].append(number)

    topics = ["slow-1", "raising-1", "quick-1"]
    groups = {topic: ["clerks"] for topic in topics}
    consumer = Consumer("clerks", sites, topics=topics, inbox=tmp_path / "inbox.db")
    reader = threading.Thread(target=consumer.run, args=(handle,))
    with Producer("desk", sites, outbox=tmp_path / "outbox.db", groups=groups) as producer:
        reader.start()
        wait_until_reading(consumer)
        for topic in ("slow-1", "raising-1"):
            producer.publish_many(topic, [str(n).encode() for n in range(200)])
        producer.publish_many("quick-1", [str(n).encode() for n in range(10_000)]).wait(timeout=120)
        wait_for(lambda: len(seen["quick-1"]) == 10_000, 60, "the quick stream passes the slow one")
        assert seen["slow-1"] == [], "the slow handler still holds its first message"
        release.set()
        wait_for(lambda: len(seen["slow-1"]) == len(seen["raising-1"]) == 200, 60, "the others follow")
    consumer.stop()
    reader.join(60)
    consumer.close()
    assert failures == [0, 0, 0], "a failing message is redelivered in place"
    assert seen["quick-1"] == list(range(10_000))
    assert seen["slow-1"] == seen["raising-1"] == list(range(200))


def test_huge_messages_beside_tiny_ones(tmp_path: Path, sites: list[Site], size: Size) -> None:
    huge, tiny = size(50, 600), size(5_000, 60_000)
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    consumer = Consumer("movers", sites, topics=["huge-1", "tiny-1"], inbox=tmp_path / "inbox.db")

    def handle(message: Message) -> None:
        number, sent = message.body[:40].split(b" ")[:2]
        seen[message.topic].append((int(number), time.time() - float(sent)))

    reader = threading.Thread(target=consumer.run, args=(handle,))
    reader.start()
    groups = {"huge-1": ["movers"], "tiny-1": ["movers"]}
    with Producer("truck", sites, outbox=tmp_path / "outbox.db", groups=groups) as producer:

        def drive() -> None:
            for number in range(huge):
                producer.publish("huge-1", f"{number} {time.time():.3f} ".encode().ljust(500_000, b"."))
                time.sleep(0.1)  # ten a second

        truck = threading.Thread(target=drive)
        truck.start()
        for start in range(0, tiny, 50):
            now = f"{time.time():.3f}"
            producer.publish_many("tiny-1", [f"{n} {now} ".encode() for n in range(start, start + 50)])
            time.sleep(huge * 0.1 / (tiny / 50))
        truck.join(120)
        producer.flush(timeout=120)
        wait_for(lambda: len(seen["huge-1"]) == huge and len(seen["tiny-1"]) == tiny, 60, "all are delivered")
    consumer.stop()
    reader.join(60)
    consumer.close()
    assert [n for n, _ in seen["huge-1"]] == list(range(huge))
    assert [n for n, _ in seen["tiny-1"]] == list(range(tiny))
    waits = sorted(wait for _, wait in seen["tiny-1"])
    print(f"tiny messages: median {waits[len(waits) // 2] * 1e3:.0f} ms, maximum {waits[-1] * 1e3:.0f} ms")
