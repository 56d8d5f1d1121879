"""Running ours and a peer in turn, each in a process of its own, and saying what came out."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One measured run: messages (or bytes) per second, and what it cost."""

    rate: float
    cpu_seconds: float
    rss_mb: float


def measured(rate: float) -> None:
    """Called by a child at its end: print its figure for the parent."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([rate, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))


def run_child(module: str, *args: str, timeout: float = 120.0) -> Run:
    """Run ``python -m MODULE ARGS``, whose last line is what :func:`measured` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args], capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(args)} failed:\n{done.stderr[-4000:]}")
    return Run(*json.loads(done.stdout.strip().splitlines()[-1]))


def verdict(name: str, ours: Sequence[Run], peer: Sequence[Run], target: float) -> dict[str, Any]:
    """The line of a benchmark: medians, the ratio pair by pair, and whether the target was met."""
    ratios = [a.rate / b.rate for a, b in zip(ours, peer, strict=True)]
    ratio = statistics.median(ratios)
    return {
        "name": name,
        "ours": round(statistics.median(run.rate for run in ours)),
        "peer": round(statistics.median(run.rate for run in peer)),
        "ratio": round(ratio, 2),
        "target": target,
        "met": ratio >= target,
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "pairs": len(ratios),
        "ours_cpu_s": round(statistics.median(run.cpu_seconds for run in ours), 2),
        "peer_cpu_s": round(statistics.median(run.cpu_seconds for run in peer), 2),
        "ours_rss_mb": round(max(run.rss_mb for run in ours), 1),
        "peer_rss_mb": round(max(run.rss_mb for run in peer), 1),
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print only the result, as one line of JSON")
    parser.add_argument("--pairs", type=int, default=5, help="pairs to run, after one that is not counted")
    return parser
