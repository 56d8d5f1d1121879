"""Convict every deliberate defect with the simulator: ``make mutants``.

One defect at a time is put into a copy of the sources, in ``build/mutants/NAME``, and the simulator of that copy runs
plain seeds until one has violations that it does not have without the defect. Prints a line for each: its name, the
seed that convicted it, the kind of violation, how many seeds were tried, what it breaks. Exit status: 0, or 1 when a
defect survived all seeds: then the simulator or its judge is blind.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant

__all__ = ["ROOT", "SOURCES", "Verdict", "convict"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
BUILD = ROOT / "build" / "mutants"
SEEDS = range(2_000)


@dataclass(frozen=True)
class Verdict:
    """What became of one defect."""

    name: str
    breaks: str
    seed: int | None
    """The one that convicted it; None: it survived."""
    kind: str
    text: str
    """The first violation."""
    tried: int


def convict(mutant: Mutant, seeds: range, build: Path = BUILD) -> Verdict:
    """Look for the first of `seeds` that has violations with the defect, and none without it."""
    copy = build / mutant.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCES, copy)  # with times, so that what is compiled already need not be once more
    file = copy / "reliamsg" / mutant.file
    file.write_text(mutant.applied(file.read_text()))
    at, tried = seeds.start, 0
    while at < seeds.stop:
        found = _search(copy, range(at, seeds.stop))
        tried += found["tried"]
        seed = found["seed"]
        if seed is None:
            break
        if _is_sound(seed):
            shutil.rmtree(copy)
            return Verdict(mutant.name, mutant.breaks, seed, found["kind"], found["text"], tried)
        at = seed + 1
    return Verdict(mutant.name, mutant.breaks, None, "", "", tried)


@functools.cache
def _is_sound(seed: int) -> bool:
    """Whether a seed has no violations without any defect."""
    return _search(SOURCES, range(seed, seed + 1))["seed"] is None


def _search(sources: Path, seeds: range) -> dict:  # type: ignore[type-arg]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants.search", f"{seeds.start}:{seeds.stop}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:  # not even the interpreter survives it
        return {"tried": 1, "seed": seeds.start, "kind": "error", "text": done.stderr[-500:]}
    found: dict = json.loads(lines[-1])  # type: ignore[type-arg]
    return found


def convict_all(mutants: Iterable[Mutant], seeds: range, jobs: int) -> Iterator[Verdict]:
    """All of them, `jobs` side by side, in the order in which they are done."""
    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(convict, mutant, seeds) for mutant in mutants]
        for done in as_completed(begun):
            yield done.result()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", default="", help="these defects, by name, separated by commas")
    parser.add_argument("--seeds", default=f"{SEEDS.start}:{SEEDS.stop}", help="from A, up to B without it")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument(
        "--markdown", action="store_true", help="end with the table of docs/reference/evidence.md"
    )
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    first, last = map(int, options.seeds.split(":"))
    mutants = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    verdicts = []
    for verdict in convict_all(mutants, range(first, last), options.jobs):
        verdicts.append(verdict)
        told = "SURVIVED" if verdict.seed is None else f"{verdict.kind} in seed {verdict.seed}"
        print(f"{verdict.name:34} {told:36} {verdict.tried:5} tried  {verdict.breaks}", flush=True)
    survivors = [verdict.name for verdict in verdicts if verdict.seed is None]
    print(
        f"{len(verdicts)} defects, {len(survivors)} survived{': ' if survivors else ''}{', '.join(survivors)}"
    )
    if options.markdown:
        print(_markdown(verdicts))
    if options.json:
        print(json.dumps({"survivors": survivors, "mutants": [asdict(verdict) for verdict in verdicts]}))
    return 1 if survivors else 0


def _markdown(verdicts: Iterable[Verdict]) -> str:
    lines = ["| defect | breaks | convicted of | seed | tried |", "|---|---|---|---|---|"]
    for verdict in sorted(verdicts, key=lambda each: each.name):
        seed = "" if verdict.seed is None else verdict.seed
        kind = verdict.kind.replace("_", " ") or "**survived**"
        lines.append(f"| `{verdict.name}` | {verdict.breaks} | {kind} | {seed} | {verdict.tried:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
