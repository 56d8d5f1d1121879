"""How soon ``reliamsg audit --follow`` knows of a segment: a hundred clients export while it runs.

Segments that :mod:`benchmarks.made_journals` wrote are moved into place in the order in which clients export them,
at a fixed number of rows a second. The lag of a segment is the time from its arrival to the first verdict that includes
it: verdicts name the number of rows that were audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.made_journals import Traffic, write_journals
from benchmarks.measured_tree import Memory
from benchmarks.options import Options

__all__ = ["lags"]

ROWS_A_SECOND = 20_000
SECONDS = 120
KNOWN_ROWS = 9_000_000
"""In the state before the measurement, as after 450 seconds of such traffic."""
STREAMS, PRODUCERS = 990, 99
"""With the group, a hundred clients."""
ROWS_OF_A_RANGE = 9
INTERVAL_S = 5
MOST_LAG_S = 60.0


@dataclass(frozen=True, slots=True)
class _Segment:
    source: Path
    target: Path
    rows: int


@dataclass(slots=True)
class _Arrivals:
    """When segments arrived, and the numbers of rows that were there from then on."""

    rows: int = 0
    pending: list[tuple[float, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, segment: _Segment, is_timed: bool) -> None:
        segment.target.parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            segment.source.rename(segment.target)
            self.rows += segment.rows
            if is_timed:
                self.pending.append((time.monotonic(), self.rows))

    def audited(self, rows: int) -> None:
        """A verdict about so many rows was given."""
        now = time.monotonic()
        with self.lock:
            while self.pending and self.pending[0][1] <= rows:
                self.lags.append(now - self.pending.pop(0)[0])


def lags(_: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """A line with the longest lag."""
    memory = Memory()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        ranges = round((KNOWN_ROWS + ROWS_A_SECOND * SECONDS) / ROWS_OF_A_RANGE / STREAMS * options.scale)
        write_journals(place / "later", Traffic(STREAMS, max(10, ranges), 100, PRODUCERS, segment_rows=1_000))
        segments = _in_order(place)
        found = _follow(place, segments, KNOWN_ROWS * options.scale)
    yield {
        "name": "audit-follow", "ours": round(max(found.lags), 1), "unit": "s", "target": MOST_LAG_S,
        "direction": "most", "met": max(found.lags) <= MOST_LAG_S, "median_lag_s": round(median(found.lags), 1),
        "rows": found.rows, "segments": len(found.lags), "rows_a_second": ROWS_A_SECOND, "peak_mb": memory.peak_mb,
    }  # fmt: skip


def _in_order(place: Path) -> list[_Segment]:
    paths = sorted((place / "later").rglob("*.ndjson"), key=lambda path: path.stat().st_mtime_ns)
    found = []
    for path in paths:
        with path.open() as file:
            rows = json.loads(file.readline())["rows"]
        found.append(_Segment(path, place / "journals" / path.relative_to(place / "later"), rows))
    return found


def _follow(place: Path, segments: Sequence[_Segment], known_rows: float) -> _Arrivals:
    """Run the command, and move the segments into place: some before it starts, the others in their time."""
    arrivals, left = _Arrivals(), list(segments)
    while left and arrivals.rows < known_rows:
        arrivals.add(left.pop(0), is_timed=False)
    process = subprocess.Popen(
        [sys.executable, "-m", "reliamsg", "audit", str(place / "journals"), "--state", str(place / "state"),
         "--follow", str(INTERVAL_S), "--json", "--master", "local[2]"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    feeder: threading.Thread | None = None
    try:
        for line in process.stdout:
            rows = json.loads(line)["rows"]
            arrivals.audited(rows)
            if feeder is None:
                feeder = threading.Thread(target=_feed, args=(arrivals, left), daemon=True)
                feeder.start()
            elif not feeder.is_alive() and rows == arrivals.rows:
                return arrivals
    finally:
        process.terminate()
        process.wait()
    raise SystemExit(f"the audit ended with {process.returncode}")


def _feed(arrivals: _Arrivals, segments: Sequence[_Segment]) -> None:
    started, fed = time.monotonic(), 0
    for segment in segments:
        fed += segment.rows
        time.sleep(max(0.0, started + fed / ROWS_A_SECOND - time.monotonic()))
        arrivals.add(segment, is_timed=True)
