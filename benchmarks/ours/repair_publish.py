"""The publishing child of ``benchmarks/repair.py``: executes orders from standard input, one JSON object per line. The
first line is its configuration.

``publish``: `count` messages of `size` bytes to `topics` in turn, at `rate` per second (0: at full speed), and wait
until all are confirmed. ``sleep``: `seconds`. Each order is answered by one line: seconds, and the resources and bytes
used since the previous one.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.child import answer, orders
from benchmarks.ours.counted import CountedTransports
from reliamsg import OutboxFull, Producer, Site
from reliamsg.testing import inject


def main() -> None:
    lines = orders()
    config = next(lines)
    counts = CountedTransports()
    sites = [Site(name, url) for name, url in config["sites"]]
    with inject(transports=counts):
        producer = Producer(
            "bench",
            sites,
            outbox=Path(config["outbox"]),
            groups=config["groups"],
            release="consumed",
            max_bytes=4 << 30,
        )
    with producer:
        say(counts, 0.0)
        for order in lines:
            start = time.perf_counter()
            if order["do"] == "publish":
                publish(producer, order["topics"], order["count"], order["size"], order["rate"])
            else:
                time.sleep(order["seconds"])
            say(counts, time.perf_counter() - start)


def publish(producer: Producer, topics: list[str], count: int, size: int, rate: int) -> None:
    body = bytes(size)
    start = time.perf_counter()
    for number in range(count):
        topic = topics[number % len(topics)]
        try:
            producer.publish_nowait(topic, body)
        except OutboxFull:  # the disk can't keep up: wait for it
            producer.publish(topic, body)
        if rate and number % 100 == 99:
            time.sleep(max(0.0, start + number / rate - time.perf_counter()))
    producer.flush(timeout=300)


def say(counts: CountedTransports, seconds: float) -> None:
    answer(
        seconds=seconds,
        data=counts.data_bytes,
        control=counts.control_bytes,
        frames=counts.control_frames,
        repairs=counts.repair_bytes,
    )


if __name__ == "__main__":
    main()
