"""The cost of metrics at peak: publishing and consuming as in :mod:`benchmarks.flows`, with and without them."""

from __future__ import annotations

import contextlib
import statistics
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.child import Child, run_of
from benchmarks.flows import checked, consumer, producer
from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.ours.observing import OTEL, PROMETHEUS
from benchmarks.pairs import alternate, verdict
from benchmarks.sites import queue, rabbits, work_directory
from reliamsg.lab import RabbitNode

__all__ = ["observed"]

COUNT = 4_000_000
MOST = 1.03
"""The processor time per message with metrics, divided by that without."""
INTERVAL_S = 1.0


@contextlib.contextmanager
def scraped(*children: Child) -> Iterator[None]:
    """Scrape those that serve metrics, every second, as Prometheus does."""
    ports = [child.started["port"] for child in children if "port" in child.started]
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(INTERVAL_S):
            for port in ports:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                    answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def one(nodes: list[RabbitNode], topic: str, count: int, how: str) -> Run:
    """From the first publish until everything is acknowledged, and released by both sites. The processor time is that
    of both clients after their start: libraries that are loaded once are no cost of the peak."""
    with (
        queue(nodes, topic),
        work_directory() as directory,
        consumer(nodes, directory, topic, observed=how) as reading,
        producer(nodes, directory, topic, observed=how) as sending,
        scraped(reading, sending),
    ):
        reading.tell(do="wait", count=count + 1, timeout=120, settled=True)
        sent = sending.ask(do="publish", count=count, rate=0, numbered=False)
        got = checked(reading.answer(), count)
        for child, last in ((sending, sent), (reading, got)):
            last["cpu"] -= child.started["cpu"]
    return run_of(count / (max(sent["end"], got["at"]) - sent["start"]), count, sent, got)


def observed(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """The ratio is that of processor time per message; the rates are in the line, too."""
    count = options.scaled(COUNT)
    ways = {"observed": PROMETHEUS, "observed-otel": OTEL}
    with rabbits() as nodes:

        def side(name: str, how: str) -> Callable[[int], Run]:
            return lambda turn: one(nodes, f"{name}-{turn}", count, how)

        sides = {name: side(name, how) for name, how in ways.items() if name in names}
        runs = alternate(options.pairs, {**sides, "without": side("without", "")}, options.note)
    for name in sides:
        yield line(name, runs[name], runs["without"])


def line(name: str, ours: list[Run], without: list[Run]) -> dict[str, Any]:
    """Processor time per message, in µs, and the ratio of the rates."""

    def times(runs: list[Run]) -> list[Run]:
        return [
            Run(1e6 * run.cpu_seconds / run.messages, run.messages, run.cpu_seconds, run.rss_mb)
            for run in runs
        ]

    rates = [with_.rate / bare.rate for with_, bare in zip(ours, without, strict=True)]
    return verdict(
        name, times(ours), times(without), MOST, unit="us cpu/message", direction="most",
        rate_ratio=round(statistics.median(rates), 3), rate_spread=[round(min(rates), 3), round(max(rates), 3)],
    )  # fmt: skip
