"""One run of plain pika: publish N persistent messages to one site with pipelined publisher confirms.

Asynchronous connection, up to 2,000 unconfirmed messages, nothing durable on the client: pika at its fastest.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import pika

from benchmarks.pairs import measured
from reliamsg.wire.address import EXCHANGE

WINDOW = 2_000


class Publisher:
    """Publishes as fast as the window allows, and counts confirms."""

    def __init__(self, url: str, topic: str, messages: int, size: int) -> None:
        self.topic, self.messages, self.body = topic, messages, bytes(size)
        self.sent = self.confirmed = 0
        self.started = self.seconds = 0.0
        self.properties = pika.BasicProperties(delivery_mode=2)
        self.connection = pika.SelectConnection(pika.URLParameters(url), on_open_callback=self.opened)

    def opened(self, connection: Any) -> None:
        self.channel = connection.channel(on_open_callback=self.ready)

    def ready(self, channel: Any) -> None:
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.begin())

    def begin(self) -> None:
        self.started = time.perf_counter()
        self.pump()

    def pump(self) -> None:
        while self.sent < self.messages and self.sent - self.confirmed < WINDOW:
            self.channel.basic_publish(EXCHANGE, self.topic, self.body, self.properties)
            self.sent += 1

    def on_confirm(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise SystemExit("the broker refused a message")
        # Confirms of a publisher come in order here; with multiple=True one stands for many.
        self.confirmed = max(self.confirmed, frame.method.delivery_tag)
        if self.confirmed == self.messages:
            self.seconds = time.perf_counter() - self.started
            self.connection.close()
            self.connection.ioloop.stop()
        elif self.sent - self.confirmed < WINDOW // 2:
            self.pump()


def main(topic: str, messages: int, size: int, url: str) -> None:
    publisher = Publisher(url, topic, messages, size)
    publisher.connection.ioloop.start()
    measured(messages / publisher.seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
