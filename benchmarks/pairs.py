"""Running ours and peers alternately, each in a separate process, and formatting the results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from benchmarks.environment import ROOT, peer_python
from benchmarks.measured import Run

__all__ = [
    "Direction",
    "absolute",
    "alternate",
    "command_of",
    "costs",
    "environment_of",
    "rounded",
    "run_ours",
    "run_peer",
    "verdict",
]

Direction = Literal["least", "most"]
"""Whether the ratio must be at least, or at most, its target."""

Runs = dict[str, list[Run]]


def run_ours(name: str, *args: object, timeout: float = 180.0) -> Run:
    """Run ``benchmarks/ours/NAME.py`` with `args`; its last line is what :func:`benchmarks.measured.say` prints."""
    return _run("ours", name, args, timeout)


def run_peer(name: str, *args: object, timeout: float = 180.0) -> Run:
    """Run ``benchmarks/peers/NAME.py`` in the peers' environment."""
    return _run("peers", name, args, timeout)


def command_of(side: str, name: str) -> list[str]:
    """The command that runs a module of ``benchmarks/ours`` or ``benchmarks/peers``."""
    return [peer_python() if side == "peers" else sys.executable, "-m", f"benchmarks.{side}.{name}"]


def environment_of(side: str) -> dict[str, str]:
    """Its environment: peers can import nothing of ours except the benchmarks."""
    path = [str(ROOT)] if side == "peers" else [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _run(side: str, name: str, args: Sequence[object], timeout: float) -> Run:
    done = subprocess.run(
        [*command_of(side, name), *map(str, args)],
        env=environment_of(side),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name} {' '.join(map(str, args))} failed:\n{done.stderr[-4000:]}")
    return Run(*json.loads(done.stdout.strip().splitlines()[-1]))


def alternate(
    pairs: int, sides: Mapping[str, Callable[[int], Run]], note: Callable[[str], None], warm_up: int = 1
) -> Runs:
    """Run all `sides` in turn, `pairs` times after `warm_up` uncounted rounds. Each is called with the round's number;
    `note` is called with the progress."""
    runs: Runs = {name: [] for name in sides}
    for turn in range(pairs + warm_up):
        figures = []
        for name, side in sides.items():
            run = side(turn)
            figures.append(f"{name} {run.rate:,.4g}" if run.rate < 1000 else f"{name} {run.rate:,.0f}")
            if turn >= warm_up:
                runs[name].append(run)
        note("   ".join(figures) + ("   (warm-up)" if turn < warm_up else ""))
    return runs


def absolute(name: str, runs: Sequence[Run], target: float, *, holds: bool, **more: Any) -> dict[str, Any]:
    """The line of a benchmark without a peer: a rate that must be at least `target`. `holds`: a further condition."""
    rates = [run.rate for run in runs]
    return {
        "name": name,
        "ours": rounded(statistics.median(rates)),
        "unit": "messages/s",
        "target": target,
        "direction": "least",
        "met": statistics.median(rates) >= target and holds,
        "spread": [rounded(min(rates)), rounded(max(rates))],
        "pairs": len(rates),
        **more,
    }


def verdict(
    name: str,
    ours: Sequence[Run],
    peer: Sequence[Run],
    target: float | None,
    *,
    unit: str,
    direction: Direction = "least",
    **more: Any,
) -> dict[str, Any]:
    """The line of a benchmark: medians, the ratio pair by pair, and whether the target was met, if any."""
    ratios = [a.rate / b.rate for a, b in zip(ours, peer, strict=True)]
    ratio = statistics.median(ratios)
    aim: dict[str, Any] = {"met": True}
    if target is not None:
        met = ratio >= target if direction == "least" else ratio <= target
        aim = {"target": target, "direction": direction, "met": met}
    return {
        "name": name,
        "ours": rounded(statistics.median(run.rate for run in ours)),
        "peer": rounded(statistics.median(run.rate for run in peer)),
        "unit": unit,
        "ratio": round(ratio, 3),
        **aim,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "pairs": len(ratios),
        **costs("ours", ours),
        **costs("peer", peer),
        **more,
    }


def costs(side: str, runs: Sequence[Run]) -> dict[str, float]:
    """Processor time of a run, processor time per message, and peak memory of all runs."""
    return {
        f"{side}_cpu_s": round(statistics.median(run.cpu_seconds for run in runs), 2),
        f"{side}_cpu_us_per_message": round(
            statistics.median(1e6 * run.cpu_seconds / max(1, run.messages) for run in runs), 2
        ),
        f"{side}_rss_mb": round(max(run.rss_mb for run in runs), 1),
    }


def rounded(figure: float) -> float:
    """Four significant digits, without a fraction for large figures."""
    return round(figure) if figure >= 1000 else float(f"{figure:.4g}")
