"""Publish N messages from an event loop to every given site, until all sites have confirmed each.

`how`: ``tasks``, ``await publish()`` in WINDOW tasks at a time, each of which awaits its receipt, as in the
benchmark of aio-pika; ``many``, one call per MANY messages, from CALLERS tasks; ``blocking``, the same with the
blocking producer and as many threads.

Meanwhile a task sleeps EVERY_S at a time: how much later than that it wakes is the loop's lag.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import reliamsg
from benchmarks.measured import say
from benchmarks.sites import GROUP, work_directory
from reliamsg import Site
from reliamsg.aio import Producer

WINDOW = 1_000
MANY, CALLERS = 10_000, 2
EVERY_S = 0.001


class Lag:
    """How late the loop wakes a task."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._task = asyncio.create_task(self._measure())

    async def _measure(self) -> None:
        while True:
            due = time.perf_counter() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_ms.append((time.perf_counter() - due) * 1e3)

    def end(self) -> dict[str, float]:
        """Percentiles in ms."""
        self._task.cancel()
        found = statistics.quantiles(self._late_ms, n=1000)
        return {"p50": found[499], "p99": found[989], "max": max(self._late_ms)}


async def in_tasks(producer: Producer, topic: str, messages: int, body: bytes) -> None:
    async def publish() -> None:
        receipt = await producer.publish(topic, body)
        await receipt

    for first in range(0, messages, WINDOW):
        await asyncio.gather(*(publish() for _ in range(min(WINDOW, messages - first))))


async def in_lists(producer: Producer, topic: str, messages: int, body: bytes) -> None:
    calls = iter([min(MANY, messages - first) for first in range(0, messages, MANY)])
    bodies = [body] * MANY

    async def publish() -> None:
        for count in calls:
            await producer.publish_many(topic, bodies[:count])

    await asyncio.gather(*(publish() for _ in range(CALLERS)))
    await producer.flush(120)


async def publish(how: str, arguments: dict[str, Any], topic: str, messages: int, size: int) -> None:
    async with Producer(**arguments) as producer:
        await (await producer.publish(topic, b"warm-up")).wait(60)
        lag = Lag()
        start = time.perf_counter()
        await (in_tasks if how == "tasks" else in_lists)(producer, topic, messages, bytes(size))
        seconds = time.perf_counter() - start
        late = lag.end()
    say(messages / seconds, messages, lag_ms=late)


def publish_blocking(arguments: dict[str, Any], topic: str, messages: int, size: int) -> None:
    calls = iter([min(MANY, messages - first) for first in range(0, messages, MANY)])
    bodies = [bytes(size)] * MANY

    def run() -> None:
        for count in calls:
            producer.publish_many(topic, bodies[:count])

    with reliamsg.Producer(**arguments) as producer:
        producer.publish(topic, b"warm-up").wait(60)
        start = time.perf_counter()
        threads = [threading.Thread(target=run) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(120)
        seconds = time.perf_counter() - start
    say(messages / seconds, messages)


def main(how: str, topic: str, messages: int, size: int, urls: list[str]) -> None:
    sites = [Site(f"dc{number}", url) for number, url in enumerate(urls, 1)]
    with work_directory() as directory:
        outbox = Path(directory) / "outbox.db"
        arguments = {"producer_id": "bench", "sites": sites, "outbox": outbox, "groups": {topic: [GROUP]}}
        if how == "blocking":
            publish_blocking(arguments, topic, messages, size)
        else:
            asyncio.run(publish(how, arguments, topic, messages, size))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
