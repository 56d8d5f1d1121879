"""pika: publish N persistent messages to each site with pipelined publisher confirms, until all sites have confirmed.

Asynchronous connections that share one loop; up to WINDOW unconfirmed messages at each site (fewer large ones); one
properties object for all messages; nothing durable on the client. This is pika at its fastest.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import pika

from benchmarks.measured import say

EXCHANGE = "reliamsg"
"""The exchange to which group queues are bound, so that both publish to the same queues."""
WINDOW = 5_000
WINDOW_BYTES = 32 << 20


class Site:
    """One connection, and its progress."""

    def __init__(self, run: Publisher, url: str, loop: Any = None) -> None:
        self.run = run
        self.sent = self.confirmed = 0
        self.connection = pika.SelectConnection(
            pika.URLParameters(url), on_open_callback=self.opened, custom_ioloop=loop
        )

    def opened(self, connection: Any) -> None:
        self.channel = connection.channel(on_open_callback=self.ready)

    def ready(self, channel: Any) -> None:
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.run.ready())

    def pump(self) -> None:
        run, publish = self.run, self.channel.basic_publish
        for _ in range(min(run.messages - self.sent, run.window - (self.sent - self.confirmed))):
            publish(EXCHANGE, run.topic, run.body, run.properties)
            self.sent += 1

    def on_confirm(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise SystemExit("the broker refused a message")
        # Confirms arrive in the order of publishing; with multiple=True one stands for many.
        self.confirmed = max(self.confirmed, frame.method.delivery_tag)
        if self.confirmed == self.run.messages:
            self.run.finished()
        elif self.sent - self.confirmed <= self.run.window // 2:
            self.pump()


class Publisher:
    """Publishes everything at every site, and stops the clock when everything is confirmed."""

    def __init__(self, urls: list[str], topic: str, messages: int, size: int) -> None:
        self.topic, self.messages, self.body = topic, messages, bytes(size)
        self.window = max(32, min(WINDOW, WINDOW_BYTES // size))
        self.properties = pika.BasicProperties(delivery_mode=2)
        self.started = self.seconds = 0.0
        self.waiting = self.open = len(urls)
        self.sites: list[Site] = []
        for url in urls:
            self.sites.append(Site(self, url, self.sites[0].connection.ioloop if self.sites else None))

    def ready(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.started = time.perf_counter()
            for site in self.sites:
                site.pump()

    def finished(self) -> None:
        self.open -= 1
        if not self.open:
            self.seconds = time.perf_counter() - self.started
            for site in self.sites:
                site.connection.close()
            self.sites[0].connection.ioloop.stop()


def main(topic: str, messages: int, size: int, urls: list[str]) -> None:
    publisher = Publisher(urls, topic, messages, size)
    publisher.sites[0].connection.ioloop.start()
    say(messages / publisher.seconds, messages)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
