"""A consumer that executes orders, see :mod:`benchmarks.child`. Times are of the machine's monotonic clock.

It answers when it reads all sites. ``wait``: until `count` messages in total were delivered (and with `settled` also
acknowledged, and released by their brokers), at most `timeout` seconds; answers with their number, the time, and the
number that were out of order. ``held``: until that many messages wait behind a gap.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.child import answer, orders, serve
from benchmarks.ours.observing import observe
from reliamsg import Consumer, Message, Site

BATCH = 2_048


class Reader:
    """Reads on its own thread, counts messages, and checks their order."""

    def __init__(self, consumer: Consumer, every: bool) -> None:
        self._consumer = consumer
        self._every = every
        """Whether each body's number is checked, or only the sequence numbers of each list's first and last message."""
        self._changed = threading.Condition()
        self._next = 0
        self.delivered = self.out_of_order = 0
        self.first_at = self.last_at = 0.0
        self.thread = threading.Thread(
            target=consumer.run, args=(self._handle,), kwargs={"batch": BATCH}, daemon=True
        )
        self.thread.start()

    def _handle(self, messages: list[Message]) -> None:
        first, self._next = self._next, self._next + len(messages)
        if (messages[0].seq, messages[-1].seq) != (first + 1, self._next):
            self.out_of_order += 1
        if self._every:
            for number, message in enumerate(messages, first):
                self.out_of_order += int.from_bytes(message.body[:8], "big") != number
        with self._changed:
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at
            self.delivered += len(messages)
            self._changed.notify_all()

    def wait(self, order: dict[str, Any]) -> dict[str, Any]:
        end = time.monotonic() + order["timeout"]
        with self._changed:
            done = self._changed.wait_for(lambda: self.delivered >= order["count"], order["timeout"])
        while done and order.get("settled") and time.monotonic() < end and not self._settled():
            time.sleep(0.001)
        return {
            "done": done,
            "delivered": self.delivered,
            "at": time.monotonic() if order.get("settled") else self.last_at,
            "first_at": self.first_at,
            "out_of_order": self.out_of_order,
        }

    def _settled(self) -> bool:
        status = self._consumer.status()
        return not any(stream.held for stream in status.streams.values()) and not any(
            site.pending for site in status.sites.values()
        )

    def held(self, order: dict[str, Any]) -> dict[str, Any]:
        end = time.monotonic() + order["timeout"]
        held = 0
        while held < order["count"] and time.monotonic() < end:
            time.sleep(0.05)
            held = sum(stream.held for stream in self._consumer.status().streams.values())
        return {"held": held}


def main() -> None:
    lines = orders()
    config = next(lines)
    with Consumer(
        "bench",
        [Site(name, url) for name, url in config["sites"]],
        topics=[config["topic"]],
        inbox=Path(config["inbox"]),
        max_unacknowledged=20_000,
        **config.get("options", {}),
    ) as consumer:
        reader = Reader(consumer, config.get("every", False))
        while any(site.state != "connected" for site in consumer.status().sites.values()):
            time.sleep(0.02)
        answer(**observe(consumer, config.get("observed", "")))
        serve({"wait": reader.wait, "held": reader.held}, lines)
        consumer.stop()
        reader.thread.join(30)


if __name__ == "__main__":
    main()
