"""Publishing from an event loop: against the blocking producer, and against aio-pika."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import alternate, rounded, run_ours, run_peer, verdict
from benchmarks.publishing import SMALL, at_rabbits
from benchmarks.sites import rabbits

__all__ = ["tasks", "vs_blocking"]

MANY, VS_BLOCKING = 1_000_000, 0.7
TASKS, AIO_PIKA, VS_AIO_PIKA = 100_000, 10_000, 10.0
LAG_P99_MS = 5.0


def vs_blocking(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    count = options.scaled(MANY)
    with rabbits() as nodes:
        urls = [node.url for node in nodes]

        def side(how: str) -> Callable[[int], Run]:
            return at_rabbits(
                nodes, lambda topic: run_ours("publish_aio", how, topic, count, SMALL, *urls), how
            )

        runs = alternate(options.pairs, {how: side(how) for how in ("many", "blocking")}, options.note)
    yield verdict(
        "asyncio-many",
        runs["many"],
        runs["blocking"],
        VS_BLOCKING,
        unit="messages/s",
        lag_ms=_lag(runs["many"]),
    )


def tasks(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """A thousand calls at a time, each until it is confirmed; the loop must run meanwhile."""
    with rabbits() as nodes:
        urls, count = [node.url for node in nodes], options.scaled
        ours = at_rabbits(
            nodes, lambda topic: run_ours("publish_aio", "tasks", topic, count(TASKS), SMALL, *urls), "tasks"
        )
        peer = at_rabbits(
            nodes[:1],
            lambda topic: run_peer("publish_aio_pika", topic, count(AIO_PIKA), SMALL, urls[0]),
            "aio-pika",
        )
        runs = alternate(options.pairs, {"tasks": ours, "aio-pika": peer}, options.note)
    line = verdict("asyncio-tasks", runs["tasks"], runs["aio-pika"], VS_AIO_PIKA, unit="messages/s")
    lag = _lag(runs["tasks"])
    yield {
        **line,
        "met": line["met"] and lag["p99"] <= LAG_P99_MS,
        "lag_ms": lag,
        "lag_p99_target_ms": LAG_P99_MS,
    }


def _lag(runs: list[Run]) -> dict[str, float]:
    """Medians of the runs' percentiles."""
    return {
        name: rounded(statistics.median(run.more["lag_ms"][name] for run in runs))
        for name in ("p50", "p99", "max")
    }
