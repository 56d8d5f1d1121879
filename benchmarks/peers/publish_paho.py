"""paho-mqtt: publish N messages with QoS 1 to one broker, until all are acknowledged.

MQTT 3.1.1, where paho is fastest (its MQTT 5 properties cost more); `publish()` without waiting; paho's own queue never
empty, and at most QUEUE messages unacknowledged. Of the in-flight limits from 20 to 60,000, INFLIGHT was the fastest:
paho iterates over all in-flight messages at each acknowledgement.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.measured import say

INFLIGHT = 20
QUEUE = 5_000


class Publisher:
    """One client with paho's own network thread."""

    def __init__(self, port: int) -> None:
        self.confirmed = 0
        self.wanted: int | None = None
        self.changed = threading.Event()
        self.connected = threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self.client.max_inflight_messages_set(INFLIGHT)
        self.client.max_queued_messages_set(0)
        self.client.on_connect = self.on_connect
        self.client.on_publish = self.on_publish
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        if not self.connected.wait(30):
            raise SystemExit("no connection")

    def on_connect(self, *_: Any) -> None:
        self.connected.set()

    def on_publish(self, client: Any, data: Any, mid: int, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            raise SystemExit("the broker refused a message")
        self.confirmed += 1
        if self.confirmed == self.wanted:
            self.changed.set()

    def wait(self, count: int) -> None:
        """Wait until `count` messages are acknowledged."""
        self.changed.clear()
        self.wanted = count
        if self.confirmed < count:
            self.changed.wait(120)
        if self.confirmed < count:
            raise SystemExit(f"{self.confirmed} of {count} were acknowledged")


def main(topic: str, messages: int, size: int, port: int) -> None:
    publisher = Publisher(port)
    publish, body = publisher.client.publish, bytes(size)
    start = time.perf_counter()
    for number in range(1, messages + 1):
        publish(topic, body, 1)
        if number - publisher.confirmed >= QUEUE:
            publisher.wait(number - QUEUE // 2)
    publisher.wait(messages)
    seconds = time.perf_counter() - start
    publisher.client.disconnect()
    publisher.client.loop_stop()
    say(messages / seconds, messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
