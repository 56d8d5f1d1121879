"""Many short runs, each with a few faults at random: what no scenario thought of.

Every run has its own seed, which is counted up from the campaign's: ``runs=1`` with the seed of one that failed does
the same again. Timing differs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.chaos.scenario import Scenario, missing
from reliamsg.lab.chaos.traffic import Paths, Traffic
from reliamsg.lab.disk import fill
from reliamsg.lab.mosquitto import Mosquitto
from reliamsg.lab.process import LabError
from reliamsg.lab.proxy import TcpProxy
from reliamsg.lab.rabbitmq import RabbitNode

__all__ = ["FAULT", "Summary", "campaign"]

FAULT = "fault: "
"""How the event of a fault begins."""
_RATE = 400
_MIXED_RUNS = 0.3
"""The part of the runs at RabbitMQ and Mosquitto, where there is a RabbitMQ; the others are at two Mosquittos."""
_SMALL_DISKS = 0.3
"""The part of the runs whose outbox has a disk of 2 MB, where we are root."""
_SEEDS = 2**32


@dataclass
class Summary:
    """What all runs of a campaign came to."""

    seed: int
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lost: int = 0
    declared: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    idle: int = 0
    """Runs whose faults hit nothing that was under way."""
    slowest_drain_seconds: float = 0.0
    seconds: float = 0.0
    not_ok: list[int] = field(default_factory=list)
    """Seeds of runs that were not ok."""
    missing: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All runs were, and in some the faults had something to hit."""
        return not self.not_ok and not self.missing and self.runs > self.idle

    def add(self, result: Result) -> None:
        """One more run."""
        self.runs += 1
        self.messages += result.messages
        self.lost += result.lost
        self.declared += result.declared
        self.duplicates += result.duplicates
        self.out_of_order += result.out_of_order
        self.seconds += result.seconds
        self.slowest_drain_seconds = max(self.slowest_drain_seconds, result.drain_seconds)
        idle = not result.mattered and not result.problems and result.verdict == "complete"
        self.idle += idle
        if not (result.ok or idle):
            self.not_ok.append(result.seed)

    def as_dict(self) -> dict[str, Any]:
        """For the last line of ``--json``: in the form of a scenario's, and what only a campaign has."""
        return {
            "scenario": "campaign", "seed": self.seed, "ok": self.ok,
            "verdict": "ok" if self.ok else "missing" if self.missing else "not ok",
            "messages": self.messages, "lost": self.lost, "duplicates": self.duplicates,
            "out_of_order": self.out_of_order, "control": {"lost": None}, "seconds": round(self.seconds, 1),
            "runs": self.runs, "idle": self.idle, "faults": dict(sorted(self.faults.items())),
            "declared_gaps": self.declared, "slowest_drain_seconds": round(self.slowest_drain_seconds, 1),
            "not_ok": self.not_ok, "missing": self.missing,
        }  # fmt: skip

    def text(self) -> str:
        """For people."""
        if self.missing:
            return f"not run, this machine lacks: {'; '.join(self.missing)}"
        struck = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lines = [
            f"{self.runs} runs in {self.seconds:.0f} s, {self.idle} of them with nothing at stake; seed {self.seed}",
            f"faults struck: {sum(self.faults.values())} ({struck})",
            f"{self.messages:,} messages: {self.lost:,} lost, {self.declared:,} declared lost,"
            f" {self.duplicates:,} doubled, {self.out_of_order:,} out of order",
            f"slowest drain after the faults: {self.slowest_drain_seconds:.1f} s",
        ]
        if self.not_ok:
            lines.append(f"NOT OK, seeds: {', '.join(map(str, self.not_ok))}")
        return "\n".join(lines)


def campaign(
    runs: int,
    directory: Path,
    seed: int,
    *,
    on_event: Callable[[str], object] = lambda text: None,
    on_result: Callable[[Result], object] = lambda result: None,
) -> Summary:
    """Do `runs` runs; the files of those that are not ok stay in `directory`.

    `on_event` is told what is done, `on_result` how each run ended.
    """
    summary = Summary(seed, missing=missing(frozenset({"mosquitto"})))
    if summary.missing:
        return summary
    with _fleet(directory / "brokers") as rabbit:
        for number in range(runs):
            one = (seed + number) % _SEEDS
            chaos = _Chaos(summary.faults, rabbit)
            scenario = Scenario(
                "campaign", "Faults at random", chaos.perform, (), "P1 P3 P4 P5", 100, frozenset(), True
            )
            result = run_scenario(scenario, directory / f"campaign-{one}", one, on_event=on_event)
            summary.add(result)
            on_result(result)
            if one not in summary.not_ok:
                shutil.rmtree(directory / f"campaign-{one}", ignore_errors=True)
    return summary


@contextlib.contextmanager
def _fleet(directory: Path) -> Iterator[Callable[[], RabbitNode] | None]:
    """Gives a running RabbitMQ, which all runs share since it takes long to start; None where there is none."""
    if missing(frozenset({"rabbitmq"})):
        yield None
        return
    node = RabbitNode(directory, "dc1")

    def running() -> RabbitNode:
        if not node.alive:
            node.start()
        return node

    try:
        yield running
    finally:
        node.kill()
        node.wipe()


class _Chaos:
    """One run: a few faults, one after the other or side by side, and then everything must come."""

    def __init__(self, faults: Counter[str], rabbit: Callable[[], RabbitNode] | None) -> None:
        self._faults = faults
        self._rabbit = rabbit

    def perform(self, context: Context) -> None:
        """Do it."""
        rng = context.rng
        # In this order always: what a seed means must not depend on the machine.
        mixed, small = rng.random() < _MIXED_RUNS, rng.random() < _SMALL_DISKS
        if mixed and self._rabbit is not None:
            context.brokers["dc1"] = self._rabbit()
        else:
            context.mosquitto("dc1")
        context.mosquitto("dc2")
        paths = context.proxied()
        disk = context.disk("small", "2m") if small and os.geteuid() == 0 else None
        t = self._traffic(context, paths, disk)
        strikes = self._strikes(context, t, paths, disk)
        t.flows(50)
        at_stake = 0
        for _ in range(rng.randrange(2, 6)):
            name = rng.choice(sorted(strikes))
            context.event(f"{FAULT}{name}")
            self._faults[name] += 1
            strikes[name]()
            time.sleep(rng.uniform(0.1, 1.2))  # what is random here is the instant
            at_stake += max(0, t.under_way)
            if rng.random() < 0.4:
                paths.heal(reset=True)
        self._mend(context, t, paths, disk)
        context.stake(at_stake, "messages under way when faults struck")
        since = time.monotonic()
        t.comes()
        context.result.drain_seconds = time.monotonic() - since

    @staticmethod
    def _traffic(context: Context, paths: Paths, disk: Path | None) -> Traffic:
        files = {} if disk is None else {"outbox": str(disk / "outbox.db")}
        options = {"release": "consumed", "max_batch_messages": 20}
        return context.traffic(
            paths, messages=0, rate=_RATE,
            producing={**files, "options": options, "linger": True, "enough": str(context.directory / "enough")},
            consuming={**context.slow(0.001), "options": {"max_inbox_bytes": 1 << 16}},
        )  # fmt: skip

    def _strikes(
        self, context: Context, t: Traffic, paths: Paths, disk: Path | None
    ) -> dict[str, Callable[[], object]]:
        """Faults by name."""
        rng = context.rng

        def path() -> TcpProxy:
            return rng.choice(paths.of())

        def everything() -> None:
            for proxy in paths.of():
                proxy.stall()

        def site() -> None:
            for proxy in paths.of(rng.choice(list(paths.urls))):
                proxy.cut()

        def forget() -> None:
            brokers = [broker for broker in context.brokers.values() if isinstance(broker, Mosquitto)]
            broker = rng.choice(brokers)
            broker.kill()
            broker.start()

        def producer() -> None:
            if disk is not None:  # it would not start on a full disk, and says so
                _make_room(disk)
            _restart(t.producer)

        strikes: dict[str, Callable[[], object]] = {
            "producer killed": producer,
            "consumer killed": lambda: _restart(t.consumer),
            "process stopped": lambda: _stop_for(rng.choice((t.producer, t.consumer)), rng.uniform(0.2, 2.5)),
            "broker killed, empty": forget,
            "partition from all sites": everything,
            "site cut off": site,
            "path hangs": lambda: path().stall(),
            "confirms lost": lambda: path().drop_from_broker(),
            "half open": lambda: path().half_open(),
            "reset in mid-frame": lambda: path().reset_mid_frame(rng.randrange(1, 5_000)),
            "delay": lambda: path().delay(rng.uniform(0.0, 1.0)),
            "slow line": lambda: path().limit(rng.choice((2_000, 20_000))),
        }
        if disk is not None:
            strikes["disk full"] = lambda: fill(disk)
        return strikes

    @staticmethod
    def _mend(context: Context, t: Traffic, paths: Paths, disk: Path | None) -> None:
        """End all faults, and publishing."""
        if disk is not None:
            _make_room(disk)
        paths.heal(reset=True)
        for app in (t.producer, t.consumer):
            if not app.running:
                raise LabError(f"{app.name} ended by itself: {app.errors()}")
        (context.directory / "enough").touch()
        context.hurry()
        context.event("all faults are over")


def _restart(app: App) -> None:
    app.kill()
    app.start()


def _make_room(disk: Path) -> None:
    (disk / "filler").unlink(missing_ok=True)


def _stop_for(app: App, seconds: float) -> None:
    app.signal(signal.SIGSTOP)
    time.sleep(seconds)
    app.signal(signal.SIGCONT)
