"""Many short runs, each with a few random faults, to find what no scenario anticipates.

Every run has a seed that determines its faults and all settings of its clients: a campaign of that seed alone makes the
same choices again. Only the timing differs.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.campaign_run import CampaignRun
from reliamsg.lab.chaos.environment_faults import injected
from reliamsg.lab.chaos.options import RunOptions
from reliamsg.lab.chaos.registry import Entry
from reliamsg.lab.chaos.requirements import missing
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.settings import Drawn, tally

__all__ = ["Summary", "campaign", "run_line"]

_SCENARIO = Scenario(
    "campaign", "Random faults", promises="P1 P3 P4 P5", messages=100, needs=frozenset(), own_brokers=True
)


@dataclass
class Summary:
    """The totals of a campaign."""

    seed: int
    """Of the first run."""
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lost: int = 0
    declared: int = 0
    held: int = 0
    operated: int = 0
    """How often an operator had to follow the advice in a client's error message."""
    duplicates: int = 0
    out_of_order: int = 0
    idle: int = 0
    """Runs in which nothing was at stake when faults struck."""
    slowest_drain_seconds: float = 0.0
    seconds: float = 0.0
    not_ok: list[int] = field(default_factory=list)
    """Seeds of runs that were not ok."""
    missing: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    """The settings of each run that drew any."""

    @property
    def ok(self) -> bool:
        """Whether all runs were ok, and something was at stake in at least one."""
        return not self.not_ok and not self.missing and self.runs > self.idle

    def add(self, result: Result) -> None:
        """Add the result of a run."""
        observed, judged = result.observed, result.judgement
        self.runs += 1
        self.faults.update(_injected(result))
        self.messages += judged.messages
        self.lost += judged.lost
        self.declared += judged.declared
        self.held += judged.held
        self.operated += observed.interventions
        self.duplicates += judged.duplicates
        self.out_of_order += judged.out_of_order
        self.seconds += observed.seconds
        self.slowest_drain_seconds = max(self.slowest_drain_seconds, observed.drain_seconds)
        self.idle += _idle(result)
        if observed.drawn is not None:
            self.drawn.append(observed.drawn)
        if _bad(result):
            self.not_ok.append(result.seed)

    def as_dict(self) -> dict[str, Any]:
        """The object of ``--json``: the fields of a scenario, and those that only a campaign has."""
        return {
            "scenario": "campaign", "seed": self.seed, "ok": self.ok,
            "verdict": "ok" if self.ok else "missing" if self.missing else "not ok",
            "messages": self.messages, "lost": self.lost, "duplicates": self.duplicates,
            "out_of_order": self.out_of_order, "control": {"lost": None}, "seconds": round(self.seconds, 1),
            "runs": self.runs, "idle": self.idle, "faults": dict(sorted(self.faults.items())),
            "declared_gaps": self.declared, "held": self.held, "operated": self.operated,
            "slowest_drain_seconds": round(self.slowest_drain_seconds, 1),
            "not_ok": self.not_ok, "missing": self.missing,
            **({"settings": tally(self.drawn)} if self.drawn else {}),
        }  # fmt: skip

    def text(self) -> str:
        """A summary for people."""
        if self.missing:
            return f"not run, this machine lacks: {'; '.join(self.missing)}"
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lines = [
            f"{self.runs} runs of {self.seconds / max(1, self.runs):.1f} s on average, {self.idle} of them with nothing"
            f" at stake; seed {self.seed}",
            f"faults: {sum(self.faults.values())} ({faults})",
            f"{self.messages:,} messages: {self.lost:,} lost, {self.declared:,} declared lost,"
            f" {self.held:,} held back by gaps that the faults explain,"
            f" {self.duplicates:,} duplicated, {self.out_of_order:,} out of order",
            f"slowest drain after the faults: {self.slowest_drain_seconds:.1f} s",
            f"full quarantines that an operator enlarged: {self.operated}",
        ]
        for name, values in tally(self.drawn).items():
            lines.append(f"  {name}: " + ", ".join(f"{value} {count} ×" for value, count in values.items()))
        if self.not_ok:
            lines.append(f"NOT OK, seeds: {', '.join(map(str, self.not_ok))}")
        return "\n".join(lines)


def _injected(result: Result) -> list[str]:
    return injected(what for _, what in result.observed.events)


def _idle(result: Result) -> bool:
    return bool(result.inconclusive) and not result.problems and result.verdict == "complete"


def _bad(result: Result) -> bool:
    return not (result.ok or _idle(result))


def run_line(result: Result) -> dict[str, Any]:
    """One run as a line of ``--json``; the lines of several campaigns can be added up."""
    observed = result.observed
    return {
        **result.as_dict(), "scenario": "campaign run", "idle": _idle(result), "ok": not _bad(result),
        "drain_seconds": round(observed.drain_seconds, 1), "operated": observed.interventions,
        "faults": _injected(result), "findings": list(result.judgement.findings),
        "files": result.files if _bad(result) else "",
        **({"settings": tally([observed.drawn])} if observed.drawn is not None else {}),
    }  # fmt: skip


def campaign(
    seeds: Sequence[int],
    directory: Path,
    *,
    jobs: int = 1,
    black_box: bool = False,
    on_event: Callable[[str], object] = lambda text: None,
    on_result: Callable[[Result], object] = lambda result: None,
) -> Summary:
    """Run each of `seeds`, `jobs` at a time. The files of runs that are not ok stay in `directory`.

    `black_box`: the applications' own logs are the only evidence; otherwise the clients' journals are checked too.
    `on_event` is called with each event, from several threads, and `on_result` with each result, in the order of the
    seeds.
    """
    summary = Summary(seeds[0], missing=missing(frozenset({"mosquitto"})))
    if summary.missing:
        return summary
    with contextlib.ExitStack() as stack:
        nodes: queue.SimpleQueue[_Node | None] = queue.SimpleQueue()
        for number in range(jobs):
            nodes.put(stack.enter_context(_node(directory / "brokers" / str(number))))

        def one(seed: int) -> Result:
            node = nodes.get()
            try:
                return _one(directory, seed, node, black_box, on_event)
            finally:
                nodes.put(node)

        pool = ThreadPoolExecutor(jobs, thread_name_prefix="reliamsg-campaign")
        # If interrupted, it completes the runs in progress, and no more.
        stack.callback(pool.shutdown, cancel_futures=True)
        for result in pool.map(one, seeds):
            summary.add(result)
            on_result(result)
    return summary


def _one(
    directory: Path,
    seed: int,
    node: _Node | None,
    black_box: bool,
    on_event: Callable[[str], object],
) -> Result:
    """One run."""
    place = directory / f"campaign-{seed}"
    run = CampaignRun(None if node is None else node.running, black_box=black_box)
    result = run_scenario(
        Entry(_SCENARIO, run.perform), RunOptions(place, seed, tries=1), on_event=on_event, judge=run.judge
    )
    if not _bad(result):
        shutil.rmtree(place, ignore_errors=True)
    elif node is not None:
        node.renew(place)
    return result


class _Node:
    """A RabbitMQ that all runs of a job share, since it is slow to start."""

    def __init__(self, directory: Path) -> None:
        self._node = RabbitNode(directory, "dc1", start_timeout=300.0)

    def running(self) -> RabbitNode:
        """The node, started if necessary."""
        if not self._node.alive:
            self._node.start()
        return self._node

    def renew(self, place: Path) -> None:
        """Start afresh after a run that was not ok, and move the log to that run's files."""
        self._node.kill()
        log = self._node.directory / "log"
        if log.exists():
            shutil.move(log, place / "dc1-log")
        self._node.wipe()

    def delete(self) -> None:
        """Kill the node, and delete its data."""
        self._node.kill()
        self._node.wipe()


@contextlib.contextmanager
def _node(directory: Path) -> Iterator[_Node | None]:
    """A node, or None if RabbitMQ is not installed."""
    if missing(frozenset({"rabbitmq"})):
        yield None
        return
    node = _Node(directory)
    try:
        yield node
    finally:
        node.delete()
