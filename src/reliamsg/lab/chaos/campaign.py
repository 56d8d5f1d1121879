"""Many short runs, each with a few faults at random: what no scenario thought of.

Every run has its own seed, of which its faults and all settings of its clients follow: a campaign of that seed alone
does the same again. Timing differs.
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
from reliamsg.lab.chaos.campaign_run import OutsideRun
from reliamsg.lab.chaos.environment_faults import struck
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.chaos.scenario import Scenario, missing
from reliamsg.lab.chaos.settings import Drawn, tally

__all__ = ["Summary", "campaign", "run_line"]


@dataclass
class Summary:
    """What all runs of a campaign came to."""

    seed: int
    """Of the first run."""
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lost: int = 0
    declared: int = 0
    held: int = 0
    operated: int = 0
    """How often an operator had to do what a client's last error asked for."""
    duplicates: int = 0
    out_of_order: int = 0
    idle: int = 0
    """Runs whose faults hit nothing that was under way."""
    slowest_drain_seconds: float = 0.0
    seconds: float = 0.0
    not_ok: list[int] = field(default_factory=list)
    """Seeds of runs that were not ok."""
    missing: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    """The settings of each run that drew some."""

    @property
    def ok(self) -> bool:
        """All runs were, and in some the faults had something to hit."""
        return not self.not_ok and not self.missing and self.runs > self.idle

    def add(self, result: Result) -> None:
        """One more run."""
        self.runs += 1
        self.faults.update(struck(result))
        self.messages += result.messages
        self.lost += result.lost
        self.declared += result.declared
        self.held += result.held
        self.operated += result.operated
        self.duplicates += result.duplicates
        self.out_of_order += result.out_of_order
        self.seconds += result.seconds
        self.slowest_drain_seconds = max(self.slowest_drain_seconds, result.drain_seconds)
        self.idle += _idle(result)
        if result.drawn is not None:
            self.drawn.append(result.drawn)
        if _bad(result):
            self.not_ok.append(result.seed)

    def as_dict(self) -> dict[str, Any]:
        """For the last line of ``--json``: in the form of a scenario's, and what only a campaign has."""
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
        """For people."""
        if self.missing:
            return f"not run, this machine lacks: {'; '.join(self.missing)}"
        struck = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lines = [
            f"{self.runs} runs of {self.seconds / max(1, self.runs):.1f} s on average, {self.idle} of them with nothing"
            f" at stake; seed {self.seed}",
            f"faults struck: {sum(self.faults.values())} ({struck})",
            f"{self.messages:,} messages: {self.lost:,} lost, {self.declared:,} declared lost,"
            f" {self.held:,} held back by gaps that brokers explain,"
            f" {self.duplicates:,} doubled, {self.out_of_order:,} out of order",
            f"slowest drain after the faults: {self.slowest_drain_seconds:.1f} s",
            f"full quarantines that an operator gave more room: {self.operated}",
        ]
        for name, values in tally(self.drawn).items():
            lines.append(f"  {name}: " + ", ".join(f"{value} {count} ×" for value, count in values.items()))
        if self.not_ok:
            lines.append(f"NOT OK, seeds: {', '.join(map(str, self.not_ok))}")
        return "\n".join(lines)


def _idle(result: Result) -> bool:
    return not result.mattered and not result.problems and result.verdict == "complete"


def _bad(result: Result) -> bool:
    return not (result.ok or _idle(result))


def run_line(result: Result) -> dict[str, Any]:
    """One run, for its line of ``--json``: lines of several campaigns can be added up."""
    return {
        **result.as_dict(), "scenario": "campaign run", "idle": _idle(result), "ok": not _bad(result),
        "drain_seconds": round(result.drain_seconds, 1), "operated": result.operated, "faults": struck(result),
        "findings": result.findings, "files": result.files if _bad(result) else "",
        **({"settings": tally([result.drawn])} if result.drawn is not None else {}),
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
    """Do a run for each of `seeds`, `jobs` of them side by side; the files of those that are not ok stay in
    `directory`.

    `black_box`: the applications' own logs are the only evidence; else the clients' journals are checked as well.
    `on_event` is told what is done, from several threads, `on_result` how each run ended, in the order of their seeds.
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
        stack.callback(
            pool.shutdown, cancel_futures=True
        )  # interrupted, it ends what is under way, and no more
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
    rabbit = None if node is None else node.running
    run = OutsideRun(rabbit, black_box=black_box)
    scenario = Scenario(
        "campaign", "Faults at random", run.perform, (), "P1 P3 P4 P5", 100, frozenset(), True
    )
    result = run_scenario(scenario, place, seed, on_event=on_event, judge=run.judge, tries=1)
    if not _bad(result):
        shutil.rmtree(place, ignore_errors=True)
    elif node is not None:
        node.renew(place)
    return result


class _Node:
    """A RabbitMQ that all runs of a job share, since it takes long to start."""

    def __init__(self, directory: Path) -> None:
        self._node = RabbitNode(directory, "dc1", start_timeout=300.0)

    def running(self) -> RabbitNode:
        """It, started if need be."""
        if not self._node.alive:
            self._node.start()
        return self._node

    def renew(self, place: Path) -> None:
        """After a run that was not ok: no other is to find what that one left; its log goes to that run's files."""
        self._node.kill()
        log = self._node.directory / "log"
        if log.exists():
            shutil.move(log, place / "dc1-log")
        self._node.wipe()

    def end(self) -> None:
        """It, and all that it has."""
        self._node.kill()
        self._node.wipe()


@contextlib.contextmanager
def _node(directory: Path) -> Iterator[_Node | None]:
    """None where there is no RabbitMQ."""
    if missing(frozenset({"rabbitmq"})):
        yield None
        return
    node = _Node(directory)
    try:
        yield node
    finally:
        node.end()
