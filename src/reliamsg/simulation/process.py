"""A simulated process: its client, its terminations and suspensions, and the fate of its file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from reliamsg.errors import ReliamsgError
from reliamsg.simulation.broker import Broker
from reliamsg.simulation.client_clock import ClientClock
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.disk import Backup, Crash, Drive
from reliamsg.simulation.executor import THREAD_S, Executor
from reliamsg.simulation.faults import Chances
from reliamsg.simulation.host import Host
from reliamsg.simulation.mqtt import SECOND
from reliamsg.simulation.segments import SegmentWriter
from reliamsg.simulation.transport import SimulatedTransports

__all__ = ["Machine", "Process", "ProcessJudge"]

RESTART_S = (0.05, 2.0)
PAUSE_S = (0.1, 12.0)
BACKUP_S = (0.5, 4.0)
"""How long after a file was opened a copy of it is made, in seconds."""
SPINNING = 1_000
"""An engine that asks to be called again at once more often than this, each time after the other, gets nothing done: no
run holds that much work."""
SPINNING_PAUSE_S = 0.05
"""Such an engine is slowed down, so that the run terminates."""


@dataclass(frozen=True)
class Machine:
    """What a simulated process runs on."""

    seed: int
    host: Host
    scheduler: Scheduler
    clock: ClientClock
    drive: Drive
    brokers: Mapping[str, Broker]
    faults: Chances


class ProcessJudge(Protocol):
    """Judges the errors of processes."""

    def terminated(self, client: str, error: ReliamsgError, *, halts: bool) -> None:
        """A client terminated with an error. `halts`: it was to halt at dead letters."""

    def reported(self, client: str, errors: Iterable[BaseException]) -> None:
        """A client reported errors to its application."""

    def raised(self, client: str, error: BaseException) -> None:
        """A client raised what the product should never raise."""

    def spins(self, client: str, times: int) -> None:
        """A client's engine asked to be called again at once, `times` times in a row."""


class Process:
    """One process with one file. Subclasses know its client and its application.

    Everything that happens in it goes through its executor, so it can terminate or be suspended between any two calls.
    """

    restored_by: ClassVar[str]
    """The fault that replaces its file by an older copy."""
    file_kind: ClassVar[str]
    clock_may_be_lost: ClassVar[bool]
    """Whether its clock may show 1970."""

    def __init__(self, machine: Machine, judge: ProcessJudge) -> None:
        self.name: str = machine.host.name
        self.drive: Drive = machine.drive
        self.executor: Executor = machine.host.executor
        self.scheduler: Scheduler = machine.scheduler
        self.clock: ClientClock = machine.clock
        self.faults: Chances = machine.faults
        self.judge = judge
        self.transports: SimulatedTransports = SimulatedTransports(machine.host, machine.brokers)
        self.identities: random.Random = random.Random(f"{machine.seed}/process/{self.name}/identities")
        """Distinguishes each run of the process from the one before."""
        self.terminated_with: ReliamsgError | None = None
        """The error of its client, if it is not to be opened again."""
        self.segments: SegmentWriter = SegmentWriter(self.executor, self.faults, self.note)
        self.journals: Path = machine.drive.path.parent / "journals"
        """The target of its journal, if it is exported."""
        self._host = machine.host
        self._sites = tuple(machine.brokers)
        self._supervisor = random.Random(f"{machine.seed}/process/{self.name}/supervisor")
        """How long it takes until someone opens it again."""
        self._step_at = float("inf")
        self._steps = 0
        self._at_once = 0
        """How often in a row its engine asked to be called again at once."""
        # Looked up once: most runs have few faults, and every call asks.
        self._mortal = not self.faults.enabled.isdisjoint(("crash", "restart", "pause"))
        self._copy: tuple[float, Backup] | None = None
        """An older copy of the file, and when it was made."""
        self.executor.start(self._run)

    def note(self, what: str) -> None:
        """Record a line in the trace."""
        self._host.note(what)

    @property
    def traced(self) -> bool:
        """Whether lines are recorded."""
        return self._host.trace.keeps

    def _run(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Make a call in the process, unless it is terminated just before."""
        if self._mortal:
            if self.faults.bites("crash"):
                self.faults.strikes("crash")
                self.crash("between two steps")
                return
            if self.faults.bites("restart"):
                function, arguments = self._restart, ()
            if self.faults.bites("pause"):
                self._pause()
        try:
            function(*arguments)
            self.after_call()
        except Crash as crash:
            self.crash(str(crash) or "in the middle of a commit")
        except Exception as error:  # noqa: BLE001  (nothing else may come out of the product)
            self.note(f"raises {error!r}")
            self.judge.raised(self.name, error)
            self.crash("after an internal error")

    # -- opening and terminating ----------------------------------------------------------------------------

    def open(self, life: int | None = None) -> None:
        """Open the client, unless it is open. `life`: not if the process has been reopened since."""
        if self.executor.alive or (life is not None and life != self.executor.life):
            return
        self.executor.begin()
        self.drive.format()
        self.note(f"opens its {self.file_kind}")
        self.clock.reset(may_be_lost=self.clock_may_be_lost)
        self.segments.open()
        self.executor.call(self.open_client)
        if self.is_open and self.executor.alive:
            self.after_open()
            self._back_up_later()

    def open_later(self, seconds: float) -> None:
        """Someone opens the process again in `seconds` seconds."""
        self.scheduler.after(seconds, self.open, self.executor.life)

    def close(self) -> None:
        """Close the client cleanly."""
        if not self.is_open:
            self._end()
            return
        self.segments.close()
        self.close_client()
        self._end()
        self._ended()

    def crash(self, where: str) -> None:
        """Terminate as with SIGKILL."""
        if not self.executor.alive:
            return
        self.note(f"crashes {where}")
        self.before_crash()
        self._end()
        self.drive.crash(self.abandon_client)
        self._ended()
        self.open_later(self._supervisor.uniform(*RESTART_S))

    def give_up(self, error: ReliamsgError, again_in: float | None) -> None:
        """The client terminated with an error: the application opens it again after `again_in` seconds, as a supervisor
        would, or (None) never."""
        text = str(error).replace(f"{self.drive.path.parent}/", "")  # the same in each run
        self.note(f"terminates: {type(error).__name__}: {text}")
        self.judge.terminated(self.name, error, halts=self.halts)
        self._end()
        self.drive.abandon(self.abandon_client)
        self._ended()
        if again_in is None:
            self.terminated_with = error
        else:
            self.open_later(again_in)

    def _end(self) -> None:
        """Nothing runs in the process any more."""
        self.executor.end()
        self._step_at, self._at_once = float("inf"), 0
        self.transports.kill()

    def _ended(self) -> None:
        """The process is gone. When it is opened again, its file may be another."""
        self.after_end()
        if self._copy is not None and self.faults.bites(self.restored_by, 300):
            at, backup = self._copy
            self.faults.strikes(self.restored_by, self.name)
            self.note(f"its file is replaced by a copy from {at:.4f}")
            self.drive.bring_back(backup)
            self.after_file_replaced(at)
        if self.faults.bites("wal_lost", 100):
            before = self.drive.lose_wal()
            if before is not None:
                self.faults.strikes("wal_lost", self.name)
                self.note(f"its WAL file is gone: its database is in the state of {before:.4f}")
                self.after_file_replaced(before)

    # -- faults ---------------------------------------------------------------------------------------------

    def probe(self, point: str) -> None:
        """The product passes a point at which a crash is interesting."""
        if self.faults.bites("crash_inside"):
            self.faults.strikes("crash_inside")
            raise Crash(f"at {point}")

    def _restart(self) -> None:
        self.note("is closed")
        self.faults.strikes("restart")
        self.close()
        self.open_later(self._supervisor.uniform(*RESTART_S))

    def _pause(self) -> None:
        seconds = self.faults.random("pause").uniform(*PAUSE_S)
        self.note(f"is suspended for {seconds:.2f} s")
        self.faults.strikes("pause")
        self.executor.suspend()
        for site in self._sites:
            for channel in ("", SECOND):
                for connection in self._host.path(site, channel).connections:
                    connection.site.starve_while(lambda: self.executor.suspended)
        self.scheduler.after(seconds, self.resume, self.executor.life)

    def resume(self, life: int) -> None:
        """Continue after a pause, if the process has not terminated since."""
        if life == self.executor.life and self.executor.suspended:
            self.note("resumes")
            self.executor.resume()

    @property
    def may_lose_its_file(self) -> bool:
        """Whether its file may be replaced by an older one when it terminates."""
        return not self.faults.enabled.isdisjoint((self.restored_by, "wal_lost"))

    def _back_up_later(self) -> None:
        if self.restored_by in self.faults.enabled:
            after = self.faults.random(self.restored_by).uniform(*BACKUP_S)
            self.scheduler.after(after, self._back_up, self.executor.life)

    def _back_up(self, life: int) -> None:
        # Not run by the process itself: whether someone makes a copy must not change what happens in it.
        if life == self.executor.life and self.executor.alive:
            self._copy = self.scheduler.now, self.drive.back_up()

    # -- the engine's thread --------------------------------------------------------------------------------

    def wake(self) -> None:
        """The engine asks to be called soon."""
        self._step_no_later_than(self.scheduler.now + self.executor.wake_delay())

    def _step_no_later_than(self, at: float) -> None:
        if at < self._step_at:
            self._step_at = at
            self._steps += 1
            self.executor.after(max(0.0, at - self.scheduler.now), self._step, self._steps)

    def _step(self, number: int) -> None:
        if number != self._steps:
            return
        self._step_at = float("inf")
        deadline = self.step_engine()
        self._at_once = self._at_once + 1 if deadline is not None and deadline <= self.scheduler.now else 0
        if self._at_once == SPINNING:
            self.judge.spins(self.name, SPINNING)
        if deadline is not None:
            pause = THREAD_S if self._at_once < SPINNING else SPINNING_PAUSE_S
            self._step_no_later_than(max(deadline, self.scheduler.now + pause))

    # -- what subclasses do ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a client."""
        raise NotImplementedError

    @property
    def halts(self) -> bool:
        """Whether the client is to halt at dead letters."""
        return False

    def open_client(self) -> None:
        """Open the client, in the process."""
        raise NotImplementedError

    def close_client(self) -> None:
        """Close the client cleanly."""
        raise NotImplementedError

    def abandon_client(self) -> None:
        """Forget the client, and close its file as the end of a process does."""
        raise NotImplementedError

    def step_engine(self) -> float | None:
        """Let the engine do its due work. Returns when to call it again."""
        raise NotImplementedError

    def after_open(self) -> None:
        """The client was opened."""

    def after_call(self) -> None:
        """Something happened in the process; the application may have something to do."""

    def before_crash(self) -> None:
        """The process is about to crash: what had returned to its other threads by now has returned."""

    def after_end(self) -> None:
        """The process is gone: the results of its unfinished calls are indeterminate."""

    def after_file_replaced(self, since: float) -> None:
        """The file is in the state of `since` again."""
        raise NotImplementedError
