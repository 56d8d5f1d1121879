"""`publish()`, each durable when it returns.

``latency``: one thread, a pause before each call, two connected sites; the median in µs. ``threads``: that many threads
share one producer at full speed, no site is reachable; messages per second.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

from benchmarks.measured import say
from benchmarks.sites import GROUP, work_directory
from reliamsg import Producer, Site

BODY = bytes(100)
PAUSE_S = 0.005
NOWHERE = "amqp://127.0.0.1:9/%2F"
"""A port without a listener."""


def measure_latency(topic: str, count: int, urls: list[str]) -> None:
    sites = [Site(f"dc{number}", url) for number, url in enumerate(urls, 1)]
    took = []
    with (
        work_directory() as place,
        Producer("bench", sites, outbox=Path(place) / "outbox.db", groups={topic: [GROUP]}) as producer,
    ):
        producer.publish(topic, BODY).wait(timeout=60)
        for _ in range(count):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            producer.publish(topic, BODY)
            took.append(time.perf_counter() - start)
        producer.flush(60)
    say(statistics.median(took) * 1e6, count)


def measure_threads(threads: int, seconds: float) -> None:
    counts = [0] * threads
    ready = threading.Barrier(threads + 1)
    over = threading.Event()

    def publish(number: int, producer: Producer) -> None:
        ready.wait()
        while not over.is_set():
            producer.publish("t", BODY)
            counts[number] += 1

    sites = [Site("dc1", NOWHERE), Site("dc2", NOWHERE)]
    with work_directory() as place:
        producer = Producer("bench", sites, outbox=Path(place) / "outbox.db", max_bytes=4 << 30)
        workers = [threading.Thread(target=publish, args=(number, producer)) for number in range(threads)]
        for worker in workers:
            worker.start()
        ready.wait()
        start = time.perf_counter()
        time.sleep(seconds)
        done, took = sum(counts), time.perf_counter() - start
        over.set()
        for worker in workers:
            worker.join()
        producer.close(0.1)
    say(done / took, done)


if __name__ == "__main__":
    if sys.argv[1] == "latency":
        measure_latency(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        measure_threads(int(sys.argv[2]), float(sys.argv[3]))
