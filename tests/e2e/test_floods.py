"""A client at the same Mosquitto forges frames of every kind, fifty for each genuine message. There are no keys, so
each forged name counts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from reliamsg import Producer
from reliamsg.consumer.quarantine import MAX_SAMPLE_BYTES
from reliamsg.lab import Mosquitto
from reliamsg.message import Stream
from reliamsg.wire.address import (
    call_address,
    group_address,
    producer_address,
    status_address,
    topic_address,
)
from reliamsg.wire.control import (
    VERSION,
    ChainEpoch,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_state,
    encode_status,
)
from reliamsg.wire.data import Origin, Records, encode
from tests.badinput.tools import site
from tests.e2e.tools import World, numbers, published, take

MOST_STREAMS = 200
KINDS = 7
"""Of forged frames."""
MOST_GROWTH = 200 * 1024 * 1024


class Forger:
    """Publishes forged frames of all kinds, as many at a time as requested."""

    def __init__(self, broker: Mosquitto, topic: str, epoch: int) -> None:
        self.sent = 0
        self._topic = topic
        self._epoch = epoch
        self._numbers = itertools.count()
        url = urlsplit(broker.url)
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.connect(url.hostname or "localhost", url.port or 1883)
        self._client.loop_start()

    def send(self, frames: int) -> None:
        for n in itertools.islice(self._numbers, frames // KINDS):
            for address, body in self._frames(n):
                self._client.publish(address, body, qos=0)
                self.sent += 1

    def _frames(self, n: int) -> Iterator[tuple[str, bytes]]:
        topic, epoch, name = self._topic, self._epoch, f"made-up-{n}"
        yield topic_address(topic), b"no batch" * 100
        yield (
            topic_address(topic),
            encode(Origin(Stream(name, topic), 5, 6), 1, (1, 1), Records([b"made up"])),
        )
        yield group_address("billing"), b"no repair" * 100
        to = status_address(topic)
        chain = [ChainEpoch(5, 6, 1, 1_000_000)]
        stream = StreamStatus(topic, 0, chain, [], {"billing": (5, 1)})
        yield to, encode_status(Status(VERSION, name, 5, 6, 1, 1, 1, 1_000, True, to, [stream]))[0]
        to = producer_address("p")
        everything = [(epoch, 1, 1_000_000)]
        wants = StreamState(topic, 0, (0, 1), (0, 0), 0, everything, everything, [])
        yield to, encode_state(State(VERSION, name, "i", 1, 1, to, "p", "active", b"n" * 8, [wants]))[0]
        to = call_address(topic)
        yield to, encode_state(State(VERSION, name, "i", 1, 1, to, "", "call", b"n" * 8, []))[0]

    def stop(self) -> None:
        self._client.loop_stop()
        self._client.disconnect()


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.integrations
def test_genuine_messages_and_repairs_go_on(
    tmp_path: Path, unique: str, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = make_mosquitto()
    world = World(tmp_path, unique, [site("dc1", broker.url)])
    producer = world.producer(release="consumed")
    assert isinstance(producer, Producer)
    options: dict[str, Any] = {"max_streams": MOST_STREAMS, "on_gap": "skip", "repair_timeout": 5.0}
    consumer = world.consumer(**options)
    world.connected(consumer)
    published(producer, unique, 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    world.open.remove(consumer)
    consumer.close()
    published(producer, unique, 21, 30)
    broker.kill()  # forgets what it has confirmed
    broker.start()
    before = rss()
    forger = Forger(broker, unique, producer.status().epoch)
    got: list[int] = []
    try:
        forger.send(500)
        consumer = world.consumer(**options)
        while len(got) < 210:
            forger.send(1_000)
            if got:
                published(producer, unique, len(got) + 21, len(got) + 40)
            expected = 10 if not got else 20
            while expected:
                message = consumer.get(timeout=120)
                assert message is not None, f"{len(got)} messages, among {forger.sent} made-up frames"
                message.ack()
                if message.producer == "p":
                    got.append(int(message.body))
                    expected -= 1
    finally:
        forger.stop()
    assert got == list(range(21, 231))
    status = consumer.status()
    assert status.repaired >= 10
    assert forger.sent > 9_000
    assert rss() - before < MOST_GROWTH
    assert len(consumer._engine.shared.core.streams) <= MOST_STREAMS
    assert sum(path.stat().st_size for path in tmp_path.glob("billing.inbox.db*")) < 8 * MAX_SAMPLE_BYTES
    world.close()
