"""Publish N messages to every site given, until each is confirmed by all of them. The journal stays in the outbox.

`how`: ``nowait``, a call for each message; ``many``, a call for MANY of them, durable when it returns; ``plain``, as
``nowait``, each a broker message of its own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measured import say
from benchmarks.sites import GROUP, work_directory
from reliamsg import Producer, Site
from reliamsg.errors import OutboxFull

MANY = 2_000


def publish(producer: Producer, topic: str, messages: int, body: bytes, how: str) -> float:
    """Seconds until all are confirmed."""
    start = time.perf_counter()
    if how == "many":
        for first in range(0, messages, MANY):
            producer.publish_many(topic, [body] * min(MANY, messages - first))
    else:
        call = producer.publish_nowait
        for _ in range(messages):
            try:
                call(topic, body)
            except OutboxFull:  # the disk can't keep up: wait for it
                producer.publish(topic, body)
    producer.flush(timeout=120)
    return time.perf_counter() - start


def options(how: str, size: int) -> dict[str, Any]:
    """What the producer is given. With large messages the outbox must have room for all."""
    wire = {"wire": "plain"} if how == "plain" else {}
    return {**wire, "max_bytes": 8 << 30} if size > 10_000 else wire


def main(how: str, topic: str, messages: int, size: int, urls: list[str]) -> None:
    sites = [Site(f"dc{number}", url) for number, url in enumerate(urls, 1)]
    with (
        work_directory() as directory,
        Producer(
            "bench",
            sites,
            outbox=Path(directory) / "outbox.db",
            groups={topic: [GROUP]},
            **options(how, size),
        ) as producer,
    ):
        producer.publish(topic, b"warm-up").wait(timeout=60)
        seconds = publish(producer, topic, messages, bytes(size), how)
    say(messages / seconds, messages)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
