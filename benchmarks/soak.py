"""Ten minutes at half the peak rate: the slope of producer's and consumer's resident memory, after the first minute."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.child import Child
from benchmarks.flows import checked, consumer, one_end_to_end, producer
from benchmarks.options import Options
from benchmarks.pairs import rounded
from benchmarks.sites import queue, rabbits, work_directory

__all__ = ["slope", "soak"]

SECONDS, SETTLING_S = 600.0, 60.0
MOST_MB_A_MINUTE = 1.0
PEAK = 1_000_000
EVERY_S = 1.0
KEPT = 120
"""The number of points of each curve in the result."""


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares of (seconds, MB): MB per minute."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def watch(children: dict[str, Child], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Each child's resident memory, every second."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in children}
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        for name, child in children.items():
            found[name].append((round(now, 1), round(child.resident_mb, 2)))
        time.sleep(EVERY_S)
    return found


def soak(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    seconds = options.seconds or SECONDS
    settling = min(SETTLING_S, seconds / 5)
    with rabbits() as nodes:
        peak = max(one_end_to_end(nodes, f"peak-{turn}", options.scaled(PEAK)).rate for turn in range(2))
        rate = peak / 2
        options.note(f"peak {peak:,.0f}/s, end to end; now {rate:,.0f}/s for {seconds:g} s")
        count = round(rate * seconds)
        with (
            queue(nodes, "soak"),
            work_directory() as directory,
            consumer(nodes, directory, "soak") as reading,
            producer(nodes, directory, "soak") as sending,
        ):
            sending.tell(do="publish", count=count, rate=rate)
            curves = watch({"producer": sending, "consumer": reading}, seconds)
            sent = sending.answer()
            got = checked(reading.ask(do="wait", count=count + 1, timeout=120), count)
    slopes = {
        name: slope([point for point in curve if point[0] >= settling]) for name, curve in curves.items()
    }
    yield {
        "name": "soak",
        "ours": rounded(max(slopes.values())),
        "unit": "MB/minute",
        "target": MOST_MB_A_MINUTE,
        "direction": "most",
        "met": max(slopes.values()) < MOST_MB_A_MINUTE,
        "slopes": {name: round(value, 3) for name, value in slopes.items()},
        "rate": rounded(count / sent["seconds"]),
        "peak_rate": rounded(peak),
        "seconds": seconds,
        "behind_s": rounded(max(0.0, got["at"] - sent["end"])),
        "ours_cpu_s": rounded(sent["cpu"] + got["cpu"]),
        "ours_rss_mb": rounded(sent["rss_mb"] + got["rss_mb"]),
        "resident_mb": {name: curve[:: max(1, len(curve) // KEPT)] for name, curve in curves.items()},
    }
