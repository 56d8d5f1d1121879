"""Publish N messages to every given site, until all sites have confirmed each. The journal stays in the outbox.

`how`: ``nowait``, one call per message; ``many``, one call per MANY messages (or MANY_BYTES), durable when it returns,
from THREADS threads; ``plain``, like ``nowait``, with one broker message each; ``json`` and ``zstd``, like ``many``
with JSON bodies, uncompressed and compressed.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured import say
from benchmarks.sites import GROUP, work_directory
from reliamsg import OutboxFull, Producer, Site
from reliamsg.store.outbox_view import inspect_outbox

MANY, MANY_BYTES, THREADS = 10_000, 4 << 20, 2
KINDS = MANY
"""Number of different JSON bodies."""


def publish(producer: Producer, topic: str, messages: int, bodies: Sequence[bytes], how: str) -> float:
    """Seconds until all are confirmed."""
    start = time.perf_counter()
    if how in ("many", "json", "zstd"):
        many = max(1, min(MANY, MANY_BYTES // len(bodies[0])))
        calls = iter([min(many, messages - first) for first in range(0, messages, many)])
        lists = list(itertools.islice(itertools.cycle(bodies), many))

        def run() -> None:
            for count in calls:
                producer.publish_many(topic, lists[:count])

        threads = [threading.Thread(target=run) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        call, body = producer.publish_nowait, bodies[0]
        for _ in range(messages):
            try:
                call(topic, body)
            except OutboxFull:  # the disk can't keep up: wait for it
                producer.publish(topic, body)
    producer.flush(timeout=120)
    return time.perf_counter() - start


def records() -> list[bytes]:
    """For example orders: repeated names and words, and different numbers."""
    return [
        json.dumps(
            {
                "order": number * 7919,
                "customer": f"customer-{number * 31 % 977}",
                "status": ("new", "paid", "sent", "returned")[number % 4],
                "amount": number * 1.17,
                "currency": "EUR",
                "at": 1_700_000_000_000 + number * 13,
                "items": [{"sku": f"sku-{number * each % 4999:05d}", "count": each} for each in (1, 2)],
            }
        ).encode()
        for number in range(KINDS)
    ]


def options(how: str, size: int) -> dict[str, Any]:
    """The producer's arguments. With large messages, the outbox must have room for all."""
    chosen: dict[str, Any] = {"plain": {"wire": "plain"}, "zstd": {"compression": "zstd"}}.get(how, {})
    return {**chosen, "max_bytes": 8 << 30} if size > 10_000 else chosen


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
        bodies = records() if how in ("json", "zstd") else [bytes(size)]
        seconds = publish(producer, topic, messages, bodies, how)
        held = inspect_outbox(Path(directory) / "outbox.db")
    say(messages / seconds, messages, held_bytes_per_message=held.bytes / max(1, held.messages))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
