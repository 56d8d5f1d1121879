"""Runs many seeds, and counts what failed, how often each fault struck, and how long it took."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reliamsg.simulation.faults import FAULTS
from reliamsg.simulation.journals import keep_journals
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.settings import DRAWN
from reliamsg.simulation.verdicts import Violation
from reliamsg.simulation.world import World

__all__ = ["Outcome", "Summary", "run", "run_many"]

MEMORY = Path("/dev/shm")
"""Where writing files costs nothing."""
GARBAGE_OBJECTS = 50_000
"""How many objects trigger a garbage collection: a world produces few reference cycles."""
SILENT = logging.CRITICAL + 1
TOGETHER = 4
"""How many seeds a process receives at a time."""


REACHED: dict[str, str] = {
    "quarantined": "deliveries behind a held gap that went into the quarantine",
    "let_go": "ranges behind a held gap that were left to their producer",
}
"""Conditions that are counted in addition to faults, because few runs reach them."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    struck: dict[str, int]
    lines: tuple[str, ...] = ()
    """The trace, if it was recorded."""
    error: str = ""
    """A traceback, if an error was raised that must never be raised."""
    seconds: float = 0.0
    """Simulated seconds."""
    bit: frozenset[str] = frozenset()
    """Faults that happened at all: without the others the run is the same."""
    reached: Mapping[str, int] = field(default_factory=dict)
    """How often it reached the conditions in :data:`REACHED`."""

    @property
    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}


@dataclass
class Summary:
    """The totals of many runs."""

    seeds: int = 0
    violations: int = 0
    failing_seeds: list[int] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    """How often each struck."""
    settings: dict[str, Counter[str]] = field(
        default_factory=lambda: {
            name: Counter(dict.fromkeys(map(str, values), 0)) for name, values in DRAWN.items()
        }
    )
    """By setting, how often each value was drawn, for all clients and sites."""
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REACHED, 0))
    """How often runs reached the conditions in :data:`REACHED`."""
    seconds: float = 0.0
    """Processor time of all processes. With one process on an idle machine, this is the elapsed time."""

    @property
    def runs_per_minute(self) -> float:
        """Runs per minute on one core."""
        return self.seeds / self.seconds * 60 if self.seconds else 0.0

    @property
    def idle_values(self) -> list[str]:
        """Settings with values that were never drawn."""
        return [
            f"{name}={value}"
            for name, values in self.settings.items()
            for value, times in values.items()
            if not times
        ]

    @property
    def idle_faults(self) -> list[str]:
        """Faults that never struck."""
        return [name for name, times in self.faults.items() if not times]

    @property
    def unreached(self) -> list[str]:
        """The conditions in :data:`REACHED` that no run reached."""
        return [name for name, times in self.reached.items() if not times]

    def add(self, outcome: Outcome, seconds: float) -> None:
        """Count a run that took `seconds` of processor time."""
        self.seeds += 1
        self.seconds += seconds
        self.violations += len(outcome.violations)
        if outcome.violations:
            self.failing_seeds.append(outcome.scenario.seed)
        for name, value in outcome.scenario.drawn():
            self.settings[name][str(value)] += 1
        for name, times in outcome.struck.items():
            self.faults[name] += times
        for name, times in outcome.reached.items():
            self.reached[name] += times

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seeds": self.seeds,
            "violations": self.violations,
            "failing_seeds": self.failing_seeds,
            "faults": self.faults,
            "reached": self.reached,
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "runs_per_minute": round(self.runs_per_minute, 1),
        }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the product's log, in which everything is going wrong, and collect garbage less often."""
    logger = logging.getLogger("reliamsg")
    level, thresholds = logger.level, gc.get_threshold()
    if level == SILENT:  # already; setting it again would clear every logger's cache
        yield
        return
    logger.setLevel(SILENT)
    gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        logger.setLevel(level)


def run(
    scenario: Scenario,
    keep: bool = False,
    directory: Path | None = None,
    journals: Path | None = None,
    world: type[World] = World,
) -> Outcome:
    """Run one scenario. `keep`: whether to record a trace. `directory`: where to leave its files; by default they are
    deleted. `journals`: where to leave its journals as segments, with the seed appended to all names. `world`: the kind
    of world, with its applications."""
    with quiet():
        if directory is not None:
            return _run(world(scenario, directory, keep), directory, journals)
        made = Path(tempfile.mkdtemp(prefix="reliamsg-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        try:
            return _run(world(scenario, made, keep), made, journals)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _run(world: World, directory: Path, journals: Path | None) -> Outcome:
    scenario = world.scenario
    try:
        world.run()
        world.compare()
    except Exception as cause:  # noqa: BLE001  (one failed run must not end all others, nor hide its seed)
        world.error_judge.raised("the run itself", cause)
    if journals is not None:
        keep_journals(directory, journals, f"-{scenario.seed}")
    raised = world.error_judge.internal_error
    error = "" if raised is None else "".join(traceback.format_exception(raised))
    return Outcome(
        scenario, tuple(world.oracle.violations), world.faults.struck, tuple(world.trace.lines), error,
        world.scheduler.now, frozenset(world.faults.bit), dict(world.incidents.counts),
    )  # fmt: skip


def run_many(
    seeds: Iterable[int],
    messages: int,
    faults: Iterable[str] | None = None,
    on_outcome: Callable[[Outcome], object] = lambda outcome: None,
    journals: Path | None = None,
    jobs: int = 1,
) -> Summary:
    """Run the scenarios of many seeds in `jobs` processes. `on_outcome` is called with each outcome, in the order of
    the seeds. `journals`: where to leave all journals, each run's in a directory of its own."""
    summary = Summary()
    chosen = None if faults is None else tuple(faults)
    one = partial(_timed, messages=messages, faults=chosen, journals=journals)
    with contextlib.ExitStack() as stack:
        if jobs == 1:
            stack.enter_context(quiet())
            found: Iterator[tuple[Outcome, float]] = map(one, seeds)
        else:
            # Spawned, because forked processes would inherit whatever threads and locks the caller has.
            processes = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
            stack.callback(processes.shutdown, cancel_futures=True)
            found = processes.map(one, seeds, chunksize=TOGETHER)
        for outcome, seconds in found:
            summary.add(outcome, seconds)
            on_outcome(outcome)
    return summary


def _timed(
    seed: int, messages: int, faults: tuple[str, ...] | None, journals: Path | None
) -> tuple[Outcome, float]:
    """A run, and how much processor time it took."""
    begun = time.process_time()
    place = journals / f"seed-{seed}" if journals is not None else None
    outcome = run(draw(seed, messages, faults), journals=place)
    return outcome, time.process_time() - begun
