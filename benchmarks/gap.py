"""One message is missing, and a million wait behind it: their memory, and the rate of their release once it arrives.

The benchmark itself encodes and publishes the frames, except the first message's, which it publishes when the consumer
holds all others.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pika

from benchmarks.flows import checked, consumer
from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import absolute, alternate, rounded
from benchmarks.sites import queue, rabbits, work_directory
from reliamsg.lab import RabbitNode
from reliamsg.message import Stream
from reliamsg.wire.address import EXCHANGE
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode

__all__ = ["gap"]

BEHIND, BATCH, SIZE = 1_000_000, 1_000, 100
EPOCH, INCARNATION = 10, 77
LEAST_RATE, MOST_MB = 100_000, 200.0
LONG_S = 3600.0
MAX_INBOX_BYTES = 1 << 30
WAIT_S = 120.0


def frames(topic: str, first: int, last: int) -> Iterator[bytes]:
    """Batches with messages `first` to `last`; each body begins with its index, from 0."""
    for start in range(first, last + 1, BATCH):
        end = min(last, start + BATCH - 1)
        bodies = [(seq - 1).to_bytes(8, "big") + bytes(SIZE - 8) for seq in range(start, end + 1)]
        now = time.time_ns() // 1000
        yield encode(Origin(Stream("gap", topic), EPOCH, INCARNATION), start, (now, now), Records(bodies))


def send(nodes: list[RabbitNode], topic: str, bodies: Iterable[bytes]) -> None:
    properties = pika.BasicProperties(delivery_mode=2, content_type=CONTENT_TYPE)
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(node.channel()) for node in nodes]
        for channel in channels:
            channel.confirm_delivery()
        for body in bodies:
            for channel in channels:
                channel.basic_publish(EXCHANGE, topic, body, properties)


def one(nodes: list[RabbitNode], topic: str, behind: int) -> Run:
    """The rate of the release, and the growth of memory."""
    options = {
        "gap_timeout": LONG_S,
        "repair_delay": LONG_S,
        "max_inbox_bytes": MAX_INBOX_BYTES,
        "begin": "earliest",
    }
    with (
        queue(nodes, topic),
        work_directory() as directory,
        consumer(nodes, directory, topic, every=True, options=options) as reading,
    ):
        before = reading.resident_mb
        send(nodes, topic, frames(topic, 2, behind + 1))
        start = time.monotonic()
        held = reading.ask(do="held", count=behind, timeout=WAIT_S)
        filled = time.monotonic() - start
        if held["held"] < behind:
            raise SystemExit(f"of {behind} messages {held['held']} wait")
        send(nodes, topic, frames(topic, 1, 1))
        got = checked(reading.ask(do="wait", count=behind + 1, timeout=WAIT_S, settled=True), behind)
    rate = behind / (got["at"] - got["first_at"])
    return Run(
        rate, behind, got["cpu"], got["rss_mb"],
        {"grown_mb": got["rss_mb"] - before, "grown_while_held_mb": held["rss_mb"] - before, "held_after_s": filled},
    )  # fmt: skip


def gap(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """Absolute targets; the maximum memory of all runs counts."""
    count = options.scaled(BEHIND)
    with rabbits() as nodes:
        runs = alternate(
            min(options.pairs, 3), {"gap": lambda turn: one(nodes, f"gap-{turn}", count)}, options.note, 0
        )["gap"]
    grown = max(run.more["grown_mb"] for run in runs)
    yield absolute(
        "gap", runs, LEAST_RATE, holds=grown <= MOST_MB, behind=count,
        grown_mb=rounded(grown), grown_target_mb=MOST_MB,
        grown_while_held_mb=rounded(max(run.more["grown_while_held_mb"] for run in runs)),
        ours_rss_mb=rounded(max(run.rss_mb for run in runs)),
        ours_cpu_s=rounded(statistics.median(run.cpu_seconds for run in runs)),
    )  # fmt: skip
