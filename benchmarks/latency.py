"""From `publish()` to the other side's application: 1,500 messages per second from 50 threads, compared with paho QoS
1."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import alternate, command_of, costs, environment_of, rounded
from benchmarks.sites import mosquittos, session

__all__ = ["latency"]

THREADS, RATE, SIZE = 50, 1_500.0, 100
WARM_UP_S, SECONDS = 2.0, 10.0
PERCENTILES = (50, 95, 99, 99.9)
ABOVE_MS = {"p95": 5.0, "p99": 5.0, "p99.9": 20.0}
"""The maximum additional latency of ours."""
LONGEST_S = 180.0


def one(side: str, module: str, address: str, seconds: float) -> Run:
    """A subscriber and a publisher of one kind; returns the subscriber's percentiles, and the resources of both."""
    subscriber = subprocess.Popen(
        [*command_of(side, module), "subscribe", address, json.dumps(PERCENTILES)],
        env=environment_of(side),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    watchdog = threading.Timer(LONGEST_S, subscriber.kill)
    watchdog.start()
    try:
        if subscriber.stdout.readline() != "ready\n":
            raise SystemExit(f"{module} subscribe failed")
        given = map(str, (THREADS, RATE, WARM_UP_S, seconds, SIZE))
        published = subprocess.run(
            [*command_of(side, module), "publish", address, *given],
            env=environment_of(side),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LONGEST_S,
        )
        sent = Run(*json.loads(published.stdout))
        printed, _ = subscriber.communicate(f"{sent.messages}\n")
        got = Run(*json.loads(printed))
    finally:
        watchdog.cancel()
        subscriber.kill()
        subscriber.wait()
    return Run(got.rate, got.messages, sent.cpu_seconds + got.cpu_seconds, sent.rss_mb + got.rss_mb, got.more)


def latency(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """The figures of the line are those of p99, in ms."""
    seconds = max(1.0, SECONDS * min(1.0, options.scale))
    with mosquittos() as brokers:
        urls = json.dumps([broker.url for broker in brokers])

        def ours(turn: int) -> Run:
            with session(brokers, "latency"):
                return one("ours", "latency", urls, seconds)

        runs = alternate(
            options.pairs,
            {"ours": ours, "paho": lambda _: one("peers", "latency_paho", str(brokers[0].port), seconds)},
            options.note,
        )
    yield line(runs["ours"], runs["paho"])


def line(ours: Sequence[Run], peer: Sequence[Run]) -> dict[str, Any]:
    """Differences pair by pair, their medians, and whether each is within its limit."""
    figures: dict[str, Any] = {}
    for name in ours[0].more["percentiles"]:
        mine, other = ([run.more["percentiles"][name] for run in side] for side in (ours, peer))
        above = [a - b for a, b in zip(mine, other, strict=True)]
        figures[name] = {
            "ours": rounded(statistics.median(mine)),
            "peer": rounded(statistics.median(other)),
            "above": rounded(statistics.median(above)),
            "spread": [rounded(min(above)), rounded(max(above))],
        }
        if name in ABOVE_MS:
            figures[name] |= {"target": ABOVE_MS[name], "met": statistics.median(above) <= ABOVE_MS[name]}
    return {
        "name": "latency",
        "unit": "ms (p99)",
        **figures["p99"],
        "direction": "most",
        "met": all(figures[name]["met"] for name in ABOVE_MS),
        "pairs": len(ours),
        **costs("ours", ours),
        **costs("peer", peer),
        "percentiles": figures,
    }
