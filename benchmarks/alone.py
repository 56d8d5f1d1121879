"""Benchmarks without brokers: the import, the protocol's receiver, and `publish()` from one thread and from many."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import absolute, alternate, rounded, run_ours, run_peer, verdict
from benchmarks.sites import mosquittos, session

__all__ = ["core", "imported", "publish_latency", "publish_threads"]

IMPORT_MS = 100.0
UNWANTED = ("pyspark", "pika", "paho", "sqlite_utils", "click", "amqtt", "aio_pika")
STARTS = 5
"""Interpreters in a run. The fastest counts, since only other work on the machine makes one slower."""

CORE_RATE, CORE_BATCH, CORE_MESSAGES = 2_000_000, 100, 4_000_000
CORE_GROWTH = 1.1
"""The maximum growth of a stream's memory after a hundred times as many messages."""

LATENCY_RATIO, LATENCY_EXTRA_US = 1.5, 150.0
COMMITS = 400
THREADS, THREADS_RATIO, THREADS_S = 50, 6.0, 3.0


def imported(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """Compared with the same interpreter that imports nothing."""
    modules = json.loads(_output("import reliamsg, sys, json; print(json.dumps(sorted(sys.modules)))"))
    found = sorted({name.split(".")[0] for name in modules} & set(UNWANTED))
    runs = alternate(
        options.pairs,
        {"import": lambda _: _start("import reliamsg"), "bare": lambda _: _start("pass")},
        options.note,
    )
    above = [a.rate - b.rate for a, b in zip(runs["import"], runs["bare"], strict=True)]
    yield {
        "name": "import",
        "ours": rounded(statistics.median(run.rate for run in runs["import"])),
        "peer": rounded(statistics.median(run.rate for run in runs["bare"])),
        "unit": "ms",
        "above": rounded(statistics.median(above)),
        "spread": [rounded(min(above)), rounded(max(above))],
        "target": IMPORT_MS,
        "direction": "most",
        "met": statistics.median(above) <= IMPORT_MS and not found,
        "pairs": options.pairs,
        "unwanted_modules": found,
    }


def _start(code: str) -> Run:
    best = min(_timed(code) for _ in range(STARTS))
    return Run(best * 1e3, 1, 0.0, 0.0)


def _timed(code: str) -> float:
    start = time.perf_counter()
    _output(code)
    return time.perf_counter() - start


def _output(code: str) -> str:
    # As installed: with compiled bytecode, even if the environment prevents writing it next to the sources.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def core(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """An absolute target; also, the memory for a stream must not grow with the number of its messages."""
    count = options.scaled(CORE_MESSAGES)
    runs = alternate(
        options.pairs, {"core": lambda _: run_ours("core", "rate", count, CORE_BATCH)}, options.note
    )["core"]
    counts = [100, 10_000]
    sizes = run_ours("core", "memory", options.scaled(200), json.dumps(counts)).more["bytes_per_stream"]
    grown = sizes[str(counts[1])] / sizes[str(counts[0])]
    yield absolute(
        "core", runs, CORE_RATE, holds=grown <= CORE_GROWTH, batch=CORE_BATCH, bytes_per_stream_after=sizes
    )


def publish_latency(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """`publish()` on an idle machine, compared with one bare commit on the same file system."""
    count = options.scaled(COMMITS)
    with mosquittos() as brokers, session(brokers, "each"):
        urls = [broker.url for broker in brokers]
        runs = alternate(
            options.pairs,
            {
                "publish": lambda _: run_ours("publish_each", "latency", "each", count, *urls),
                "commit": lambda _: run_peer("commit", count),
            },
            options.note,
        )
    line = verdict(
        "publish-latency", runs["publish"], runs["commit"], LATENCY_RATIO, unit="us", direction="most",
        allowed_us=LATENCY_EXTRA_US,
    )  # fmt: skip
    above = statistics.median(a.rate - b.rate for a, b in zip(runs["publish"], runs["commit"], strict=True))
    yield {**line, "above_us": rounded(above), "met": line["met"] or above <= LATENCY_EXTRA_US}


def publish_threads(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """Compared with one thread: how many threads share a commit."""
    seconds = max(0.2, THREADS_S * min(1.0, options.scale))
    runs = alternate(
        options.pairs,
        {
            f"{THREADS} threads": lambda _: run_ours("publish_each", "threads", THREADS, seconds),
            "one": lambda _: run_ours("publish_each", "threads", 1, seconds),
        },
        options.note,
    )
    yield verdict(
        "publish-threads", runs[f"{THREADS} threads"], runs["one"], THREADS_RATIO, unit="messages/s"
    )
