"""The consuming child of ``benchmarks/repair.py``: reads until its standard input ends.

The first input line is its configuration, answered when the consumer reads all sites. Each other line is a JSON object
with `topic`, `count` and `timeout`, answered once that many messages of the topic have been delivered since the start
(with a count of 0: at once), with the deliveries, their times, and the resources and bytes used.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.child import answer, orders
from benchmarks.ours.counted import CountedTransports
from reliamsg import Consumer, Message, Site
from reliamsg.testing import inject


class Reader:
    """Reads on its own thread, and counts by topic."""

    def __init__(self, consumer: Consumer) -> None:
        self.delivered: Counter[str] = Counter()
        self.first: dict[str, tuple[float, int]] = {}
        """By topic, when its first messages were delivered, and how many those were."""
        self._consumer = consumer
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._consumer.run(self._handle, batch=1_000, workers=2)

    def _handle(self, messages: list[Message]) -> None:
        topic, count = messages[0].topic, len(messages)
        with self._changed:
            self.first.setdefault(topic, (time.time(), count))
            self.delivered[topic] += count
            self._changed.notify_all()

    def wait(self, topic: str, count: int, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.delivered[topic] >= count, timeout)

    def stop(self) -> None:
        self._consumer.stop()
        self._thread.join(30)


def main() -> None:
    lines = orders()
    config = next(lines)
    counts = CountedTransports()
    sites = [Site(name, url) for name, url in config["sites"]]
    with inject(transports=counts):
        consumer = Consumer(
            "bench",
            sites,
            topics=config["topics"],
            inbox=Path(config["inbox"]),
            max_unacknowledged=20_000,
        )
    with consumer:
        reader = Reader(consumer)
        while any(site.state != "connected" for site in consumer.status().sites.values()):
            time.sleep(0.05)
        say(reader, counts, "", True)
        for order in lines:
            done = reader.wait(order["topic"], order["count"], order["timeout"])
            say(reader, counts, order["topic"], done)
        reader.stop()


def say(reader: Reader, counts: CountedTransports, topic: str, done: bool) -> None:
    answer(
        done=done,
        at=time.time(),
        first=reader.first.get(topic),
        delivered=dict(reader.delivered) if len(reader.delivered) < 100 else {},
        total=reader.delivered.total(),
        control=counts.control_bytes,
        frames=counts.control_frames,
    )


if __name__ == "__main__":
    main()
