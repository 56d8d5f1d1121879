"""A producer that executes orders, see :mod:`benchmarks.child`. Times are of the machine's monotonic clock.

``publish``: `count` messages at full speed (`rate` 0: `publish_many`, MANY per call) or at `rate` per second, until all
are confirmed; answers with start, end and seconds. ``hold``: `count` messages while no site is reachable; answers when
they are durable. ``catch_up``: live messages at `rate` per second meanwhile; measures from the first site's connection
until both have confirmed all held messages. Bodies begin with their number in the topic, unless an order has
``numbered`` false.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.child import answer, orders, serve
from benchmarks.ours.observing import observe
from reliamsg import OutboxFull, Producer, Receipt, Site

STEP_S = 0.02
"""At a given rate, messages that are due within this many seconds are published by one call."""
MANY = 10_000
WAIT_S = 300.0


class Publisher:
    """Numbers bodies, and keeps a rate."""

    def __init__(self, producer: Producer, topic: str, size: int) -> None:
        self._producer = producer
        self._topic = topic
        self._rest = bytes(size - 8)
        self.published = 0
        self._held: Receipt | None = None

    def _one(self) -> Receipt:
        self.published += 1
        body = self.published.to_bytes(8, "big") + self._rest
        try:
            return self._producer.publish_nowait(self._topic, body)
        except OutboxFull:  # the disk can't keep up: wait for it
            return self._producer.publish(self._topic, body)

    def _steadily(self, rate: float, done: threading.Event, count: int | None = None) -> None:
        start, number, step = time.monotonic(), 0, max(1, round(rate * STEP_S))
        while not done.is_set() and (count is None or number < count):
            some = step if count is None else min(step, count - number)
            self._at_once(some, True)
            number += some
            time.sleep(max(0.0, start + number / rate - time.monotonic()))

    def _at_once(self, count: int, numbered: bool) -> None:
        rest, same = self._rest, bytes(8) + self._rest
        for done in range(0, count, MANY):
            size, first = min(MANY, count - done), self.published + 1
            self._producer.publish_many(
                self._topic,
                [number.to_bytes(8, "big") + rest for number in range(first, first + size)]
                if numbered
                else [same] * size,
            )
            self.published += size

    def publish(self, order: dict[str, Any]) -> dict[str, Any]:
        start = time.monotonic()
        if order["rate"]:
            self._steadily(order["rate"], threading.Event(), order["count"])
        else:
            self._at_once(order["count"], order.get("numbered", True))
        self._producer.flush(WAIT_S)
        end = time.monotonic()
        return {"start": start, "end": end, "seconds": end - start, "published": self.published}

    def hold(self, order: dict[str, Any]) -> dict[str, Any]:
        while self._connected(any):
            time.sleep(0.02)
        for _ in range(order["count"]):
            self._held = self._one()
        assert self._held is not None
        self._held.wait(WAIT_S, until="durable")
        return {"published": self.published}

    def catch_up(self, order: dict[str, Any]) -> dict[str, Any]:
        over = threading.Event()
        live = threading.Thread(target=self._steadily, args=(order["rate"], over))
        before = self.published
        live.start()
        while not self._connected(any):
            time.sleep(0.002)
        start = time.monotonic()
        assert self._held is not None
        self._held.wait(WAIT_S)
        seconds = time.monotonic() - start
        over.set()
        live.join()
        self._producer.flush(WAIT_S)
        return {"seconds": seconds, "published": self.published, "live": self.published - before}

    def _connected(self, how: Any) -> bool:
        return bool(how(site.connected for site in self._producer.status().sites.values()))


def main() -> None:
    lines = orders()
    config = next(lines)
    # The wait of a returning site is not measured here: check for it often.
    sites = [Site(name, url, backoff_min=0.1, backoff_max=0.2) for name, url in config["sites"]]
    with Producer(
        "bench",
        sites,
        outbox=Path(config["outbox"]),
        groups={config["topic"]: ["bench"]},
        max_bytes=4 << 30,
        block_timeout=WAIT_S,
    ) as producer:
        publisher = Publisher(producer, config["topic"], config["size"])
        producer.publish(config["topic"], (0).to_bytes(8, "big")).wait(60)
        answer(**observe(producer, config.get("observed", "")))
        serve({"publish": publisher.publish, "hold": publisher.hold, "catch_up": publisher.catch_up}, lines)


if __name__ == "__main__":
    main()
