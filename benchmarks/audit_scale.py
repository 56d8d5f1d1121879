"""Audits of journals of up to a thousand million messages: seconds after Spark has started, and memory.

The journals are written by :mod:`benchmarks.made_journals`, which also says what an audit must find; a benchmark fails
unless its audit finds exactly that. Each audit has a process of its own, with all of its memory counted: Python, Java
and the Python of Spark's tasks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.made_journals import Traffic, write_journals
from benchmarks.measured_tree import Memory
from benchmarks.options import Options

__all__ = ["audits"]

_MIB = 1024 * 1024


@dataclass(frozen=True)
class _Case:
    traffic: Traffic
    target: float
    """Seconds, at most."""


CASES = {
    "audit-billion": _Case(Traffic(1_000, 1_000, 1_000, producers=10), 45),
    "audit-disturbed": _Case(Traffic(1_000, 1_000, 1_000, producers=10, disturbed=0.05, faults=20), 90),
    "audit-short-ranges": _Case(Traffic(1_000, 1_000, 100, producers=10), 45),
    "audit-rows-apart": _Case(Traffic(1, 200_000, 1, apart=True), 60),
    "audit-site-gaps": _Case(Traffic(1, 1_000_000, 1, site_gaps=True), 60),
    "audit-many-streams": _Case(Traffic(100_000, 1, 10, producers=10), 60),
    "audit-many-files": _Case(Traffic(1_000, 110, 100, producers=10, segment_rows=100), 30),
}
"""By name: the journals, and the target."""
INCREMENT = _Case(Traffic(1_000, 1_000, 1_000, producers=10), 20)
COMPACTED = _Case(Traffic(1_000, 1_000, 1_000, producers=10), 15)
NEW = 0.01
"""The share of each client's segments that arrive between two audits with a state."""
JOINED = Traffic(1_000, 100, 100, producers=10)
"""A tenth of ``audit-short-ranges``: joined message by message, that takes long enough."""
LEAST_RATIO = 20
ONE_STREAM = Traffic(1, 200_000, 1_000)
LEAST_SPEEDUP = 1.6


def audits(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """A line for each name."""
    for name, case in CASES.items():
        if name in names:
            yield _measure(name, case, options)
    if "audit-join" in names:
        yield _measure_join(options)
    if "audit-increment" in names:
        yield _measure_increment(options)
    if "audit-compacted" in names:
        yield _measure_compacted(options)
    if "audit-one-stream" in names:
        yield _measure_speedup(options)


def _scaled(traffic: Traffic, options: Options) -> Traffic:
    """Fewer ranges, or streams if each has one."""
    if options.scale == 1:
        return traffic
    if traffic.ranges == 1:
        return replace(traffic, streams=max(10, round(traffic.streams * options.scale)))
    return replace(traffic, ranges=max(24, round(traffic.ranges * options.scale)))


def _measure(name: str, case: _Case, options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        found = _audited(Path(place), _scaled(case.traffic, options))
    return {
        "name": name, "ours": found["seconds"], "unit": "s", "target": case.target, "direction": "most",
        "met": found["seconds"] <= case.target, **found,
    }  # fmt: skip


def _measure_speedup(options: Options) -> dict[str, Any]:
    """One stream, with everything on one processor and on two."""
    with tempfile.TemporaryDirectory() as place:
        traffic = _scaled(ONE_STREAM, options)
        alone = _audited(Path(place), traffic, processors=1)
        both = _audited(Path(place), traffic, processors=2, written=True)
    speedup = alone["seconds"] / both["seconds"]
    return {
        "name": "audit-one-stream", "ours": round(speedup, 2), "unit": "times as fast on two processors",
        "target": LEAST_SPEEDUP, "direction": "least", "met": speedup >= LEAST_SPEEDUP,
        "seconds_on_one": alone["seconds"], "seconds_on_two": both["seconds"], "rows": both["rows"],
        "peak_mb": both["peak_mb"],
    }  # fmt: skip


def _measure_join(options: Options) -> dict[str, Any]:
    """The audit, and the join of single messages (:mod:`benchmarks.per_message`), of the same journals."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        found = _audited(place, _scaled(JOINED, options))
        joined = _run(place, program="benchmarks.per_message")
    counts = joined["counts"]
    if counts["enqueued"] != found["messages"] or counts["lost"] or counts["duplicates"] or counts["phantom"]:
        raise SystemExit(f"the join found {counts}")
    ratio = joined["seconds"] / found["seconds"]
    return {
        "name": "audit-join", "ours": round(ratio, 1), "unit": "times as fast as a join by message",
        "target": LEAST_RATIO, "direction": "least", "met": ratio >= LEAST_RATIO, **found,
        "seconds_of_the_join": joined["seconds"], "peak_mb_of_the_join": joined["peak_mb"],
    }  # fmt: skip


def _measure_increment(options: Options) -> dict[str, Any]:
    """The journals of ``audit-billion`` but for their last segments, and then these, with a state."""
    with tempfile.TemporaryDirectory() as name:
        place, state = Path(name) / "journals", str(Path(name) / "state")
        write_journals(place, _scaled(INCREMENT.traffic, options))
        late = _held_back(place, Path(name) / "later")
        first = _run(place, state=state)
        for source, target in late:
            source.rename(target)
        found = _audited(place, INCREMENT.traffic, written=True, state=state)
        kept = sum(path.stat().st_size for path in Path(state).iterdir())
    return {
        "name": "audit-increment", "ours": found["seconds"], "unit": "s", "target": INCREMENT.target,
        "direction": "most", "met": found["seconds"] <= INCREMENT.target, **found,
        "seconds_of_the_first": first["seconds"], "state_mb": round(kept / _MIB, 1), "new_segments": len(late),
    }  # fmt: skip


def _measure_compacted(options: Options) -> dict[str, Any]:
    """The journals of ``audit-billion`` after a compaction, whose segments are gone."""
    with tempfile.TemporaryDirectory() as name:
        place, archive = Path(name) / "journals", Path(name) / "archive"
        write_journals(place, _scaled(COMPACTED.traffic, options))
        size = sum(path.stat().st_size for path in place.rglob("*.ndjson"))
        command = [sys.executable, "-m", "reliamsg.audit.compact", str(place), "--archive", str(archive)]
        started = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = time.monotonic() - started
        shutil.rmtree(archive)
        found = _audited(place, COMPACTED.traffic, written=True)
        compacted = sum(path.stat().st_size for path in place.rglob("*.parquet"))
    return {
        "name": "audit-compacted", "ours": found["seconds"], "unit": "s", "target": COMPACTED.target,
        "direction": "most", "met": found["seconds"] <= COMPACTED.target, **found,
        "journal_mb": round(size / _MIB, 1), "compacted_mb": round(compacted / _MIB, 1),
        "seconds_of_the_compaction": round(seconds, 1),
    }  # fmt: skip


def _held_back(place: Path, aside: Path) -> list[tuple[Path, Path]]:
    """Move the last segments of each client aside: where they are, and where they belong."""
    aside.mkdir()
    moved = []
    for client in place.glob("role=*/client=*"):
        segments = sorted(client.rglob("*.ndjson"), key=lambda path: int(path.name.split("-")[1]))
        for path in segments[-max(1, round(len(segments) * NEW)) :]:
            path.rename(aside / path.name)
            moved.append((aside / path.name, path))
    return moved


def _audited(
    place: Path, traffic: Traffic, processors: int = 2, written: bool = False, state: str = ""
) -> dict[str, Any]:
    """Audit such journals in a new process, and compare the result with the truth."""
    if not written:
        write_journals(place, traffic)
    truth = json.loads((place / "truth.json").read_text())
    result = _run(place, processors, state)
    _compare(result.pop("verdict"), truth)
    size = sum(path.stat().st_size for path in place.rglob("*.ndjson"))
    return result | {
        "rows": truth["rows"],
        "messages": truth["messages"],
        "journal_mb": round(size / _MIB, 1),
    }


def _run(
    place: Path, processors: int = 2, state: str = "", program: str = "benchmarks.audit_scale"
) -> dict[str, Any]:
    """Run an audit, or another program with the same arguments, in a new process."""
    command = [sys.executable, "-m", program, str(place), str(processors), state]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        raise SystemExit(f"the audit ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _compare(verdict: Mapping[str, Any], truth: Mapping[str, Any]) -> None:
    found = {
        (each["kind"], each.get("producer"), each.get("topic"), each.get("partition"), each.get("group", ""),
         each.get("first"), each.get("last"))
        for each in verdict["findings"]
    }  # fmt: skip
    expected = {tuple(each) for each in truth["found"]}
    if found != expected:
        raise SystemExit(f"found {sorted(map(str, found ^ expected))[:10]} differently from the truth")
    messages = verdict["messages"]
    counts = (messages["enqueued"], messages["delivered"]["group"], verdict["rows"])
    if counts != (truth["messages"], truth["delivered"], truth["rows"]):
        raise SystemExit(f"counts {counts} differ from the truth")


def main(place: str, processors: int, state: str) -> None:
    """In a process of its own: audit, and print a line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])
    from reliamsg.audit.expect import Expect
    from reliamsg.audit.job import audit
    from reliamsg.audit.session import make_session

    quiet = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = make_session(f"local[{processors}]", journals=place, settings=quiet)
    memory = Memory()
    started = time.monotonic()
    verdict = audit(spark, place, state=state or None, expect=Expect(drained=True))
    seconds = time.monotonic() - started
    spark.stop()
    found = {"seconds": round(seconds, 1), "peak_mb": memory.peak_mb, "verdict": verdict}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
