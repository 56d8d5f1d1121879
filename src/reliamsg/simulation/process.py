"""A simulated process: what runs in it, until it crashes; and what waits while it is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from reliamsg.errors import ReliamsgError
from reliamsg.simulation.disk import Crash, Drive, Image, Mishap
from reliamsg.simulation.mqtt import SECOND
from reliamsg.simulation.network import Path
from reliamsg.simulation.settings import ClientSettings
from reliamsg.simulation.transport import SimulatedTransports
from reliamsg.transport.mqtt_inflow import HELD_BYTES

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["Process"]

RESTART_S = (0.05, 2.0)
PAUSE_S = (0.1, 12.0)
CRASHES: tuple[Mishap, ...] = ("crash_before_commit", "torn_write", "torn_checkpoint", "crash_after_commit")
BACKUP_S = (0.5, 4.0)
"""A copy of a file is made so long after it was opened."""
FULL_S = (0.2, 3.0)
DAY_US = 86_400_000_000
THREAD_S = 0.0002
"""A thread that is woken takes up to so long to run ..."""
SLOW_THREAD_S = 0.05
"""... and sometimes up to so long."""
MOST_AT_ONCE = 1_000
"""An engine that wants to be called again at once more often than that, one time after the other, does not do anything:
no run holds so much that could be done."""


class Process:
    """One process with one file. Subclasses know what it does.

    Whatever happens in it goes through :meth:`call`, so that it can end, or be stopped, between any two things.
    """

    settings: ClientSettings
    held_bytes = HELD_BYTES
    """See :class:`~reliamsg.simulation.transport.Host`."""
    restored_by = ""
    """The fault that replaces its file by an older copy."""

    def __init__(self, world: World, name: str, drive: Drive) -> None:
        self.world = world
        self.scheduler = world.scheduler
        self.faults = world.faults.at(name)
        self.name = name
        self.drive = drive
        seed = world.scenario.seed
        self._pace = random.Random(f"{seed}/process/{name}/pace")
        """How long threads take to run."""
        self._supervisor = random.Random(f"{seed}/process/{name}/supervisor")
        """How long nobody opens it again."""
        self.identities = random.Random(f"{seed}/process/{name}/identities")
        """What makes one life of it another than the one before."""
        self.alive = False
        self.life = 0
        """How often it was opened."""
        self.paused = False
        self.ended_by: ReliamsgError | None = None
        """What its client stopped with, if it is not to be opened again."""
        self.transports = SimulatedTransports(self, world.brokers)
        self._backlog: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._full_until = 0.0
        self._step_at = float("inf")
        self._steps = 0
        self._at_once = 0
        """How often in succession its engine wanted to be called again at once."""
        # Looked up once: most runs have few faults, and nothing is asked more often.
        self._mortal = not self.faults.enabled.isdisjoint(("crash", "restart", "pause"))
        self._fragile = not self.faults.enabled.isdisjoint(("disk_full", "fsync_error", *CRASHES))
        self._copy: tuple[float, Image] | None = None
        """An older copy of the file, and when it was made."""
        self._clock_off_us = 0
        self._clock_stands = False
        """It says that it is 1970."""
        drive.mishap = self._mishap
        if "wal_lost" in self.faults.enabled:
            drive.watch_checkpoints(lambda: self.scheduler.now)

    # -- its clock ------------------------------------------------------------------------------------------

    def set_clock(self, may_forget: bool) -> None:
        """It is opened: its clock may be wrong. `may_forget`: it may have no battery."""
        self._clock_off_us, self._clock_stands = 0, False
        if self.faults.bites("clock_off"):
            self.faults.strikes("clock_off", self.name)
            chance = self.faults.random("clock_off")
            self._clock_off_us = chance.randint(-DAY_US, DAY_US)
            self._clock_stands = may_forget and chance.random() < 0.4
            self.note("has a clock that is wrong")

    def wall_us(self) -> int:
        """What its wall clock says."""
        if self._clock_stands:
            return int(self.scheduler.now * 1e6)
        return self.world.wall_us() + self._clock_off_us

    # -- Host -----------------------------------------------------------------------------------------------

    def path(self, site: str, which: str = "") -> Path:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        return self.world.path(self.name, site, which)

    def now(self) -> float:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        return self.scheduler.now

    def left_out(self) -> None:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        self.note("does not take a message: too much waits")

    def uniform(self, low: float, high: float) -> float:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        return self._pace.uniform(low, high)

    def overhear(self, address: str, body: bytes) -> None:
        """See :class:`~reliamsg.simulation.transport.Host`."""

    def telling(self, address: str, body: bytes) -> None:
        """See :class:`~reliamsg.simulation.transport.Host`."""

    def after(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        self.scheduler.after(seconds, self._later, self.life, function, arguments)

    def _later(self, life: int, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if life == self.life:
            self.call(function, *arguments)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """See :class:`~reliamsg.simulation.transport.Host`."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((function, arguments))
            return
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
            self.looked_at()
        except Crash as crash:
            self.crash(str(crash) or "in the middle of a commit")
        except Exception as error:  # noqa: BLE001  (nothing else may come out of the product)
            self.note(f"raises {error!r}")
            self.world.oracle.violate("internal_error", f"{self.name}: {error!r}")
            self.world.broken(error)
            self.crash("an internal error")

    # -- faults ---------------------------------------------------------------------------------------------

    def probe(self, point: str) -> None:
        """The product passes a point at which a crash is interesting."""
        if self.faults.bites("crash_inside"):
            self.faults.strikes("crash_inside")
            raise Crash(f"at {point}")

    def _mishap(self) -> Mishap:
        if not self._fragile:
            return ""
        if self.scheduler.now < self._full_until and not self.faults.over:
            self.faults.strikes("disk_full")
            return "disk_full"
        if self.faults.bites("disk_full"):
            self._full_until = self.scheduler.now + self.faults.random("disk_full").uniform(*FULL_S)
            self.faults.strikes("disk_full")
            self.note("disk is full")
            return "disk_full"
        if self.faults.bites("fsync_error"):
            self.faults.strikes("fsync_error")
            self.note("an fsync fails")
            return "fsync_error"
        for name in CRASHES:
            if self.faults.bites(name):
                self.faults.strikes(name)
                return name
        return ""

    def _pause(self) -> None:
        seconds = self.faults.random("pause").uniform(*PAUSE_S)
        self.note(f"is stopped for {seconds:.2f} s")
        self.faults.strikes("pause")
        self.paused = True
        for site in self.world.brokers:
            for connection in (*self.path(site).connections, *self.path(site, SECOND).connections):
                connection.site.starve_unless(lambda: self.paused)
        self.scheduler.after(seconds, self._go_on, self.life)

    def _go_on(self, life: int) -> None:
        if life != self.life or not self.paused:
            return
        self.note("goes on")
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for function, arguments in backlog:
            # What came while it was stopped is all there at once.
            self.after(0.0, function, *arguments)

    def _restart(self) -> None:
        self.note("is closed")
        self.faults.strikes("restart")
        self.close()
        self.scheduler.after(self._supervisor.uniform(*RESTART_S), self.open, self.life)

    def crash(self, where: str) -> None:
        """End as by SIGKILL."""
        if not self.alive:
            return
        self.note(f"crashes {where}")
        self.returned()
        self.end()
        self.drive.crash(self.abandon)
        self.ended()
        self.scheduler.after(self._supervisor.uniform(*RESTART_S), self.open, self.life)

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.alive = self.paused = False
        self.life += 1
        self._backlog.clear()
        self._step_at, self._at_once = float("inf"), 0
        self.transports.kill()

    def give_up(self, error: ReliamsgError, again_in: float | None) -> None:
        """The product refuses to go on: the application opens it again after so many seconds, as a supervisor would;
        never for None."""
        text = str(error).replace(f"{self.drive.path.parent}/", "")  # the same in each run
        self.note(f"stops: {type(error).__name__}: {text}")
        self.world.expected(self, error)
        self.end()
        self.drive.abandon(self.abandon)
        self.ended()
        if again_in is None:
            self.ended_by = error
        else:
            self.scheduler.after(again_in, self.open, self.life)

    # -- the disk -------------------------------------------------------------------------------------------

    def back_up_later(self) -> None:
        """The file is open: some time from now a copy of it is made."""
        if self.restored_by in self.faults.enabled:
            after = self.faults.random(self.restored_by).uniform(*BACKUP_S)
            self.scheduler.after(after, self._back_up, self.life)

    def _back_up(self, life: int) -> None:
        # Not by the process itself: what happens in it must not depend on whether somebody makes a copy.
        if life == self.life and self.alive:
            self._copy = self.scheduler.now, self.drive.image()

    @property
    def may_lose_its_file(self) -> bool:
        """Whether its file may be replaced by an older one when it ends."""
        return not self.faults.enabled.isdisjoint((self.restored_by, "wal_lost"))

    def ended(self) -> None:
        """The process is gone: what it had begun is indeterminate, and its file may not be the same when it is opened
        again."""
        if self._copy is not None and self.faults.bites(self.restored_by, 300):
            at, image = self._copy
            self.faults.strikes(self.restored_by, self.name)
            self.note(f"its file is replaced by a copy of {at:.4f}")
            self.drive.restore(image)
            self.file_replaced(at)
        if self.faults.bites("wal_lost", 100):
            before = self.drive.lose_wal()
            if before is not None:
                self.faults.strikes("wal_lost", self.name)
                self.note(f"its WAL file is gone: it is as it was at {before:.4f}")
                self.file_replaced(before)

    def file_replaced(self, since: float) -> None:
        """The file is what it was at `since` again. Subclasses tell the judge."""
        raise NotImplementedError

    # -- the engine's thread --------------------------------------------------------------------------------

    def wake(self) -> None:
        """The engine wants to be called soon. Sometimes its thread has to wait, and others go on meanwhile."""
        waits = SLOW_THREAD_S if self._pace.random() < 0.05 else THREAD_S
        self.step_at(self.scheduler.now + self._pace.uniform(0.0, waits))

    def step_at(self, at: float) -> None:
        """Have the engine called at a time, if not before."""
        if at < self._step_at:
            self._step_at = at
            self._steps += 1
            self.after(max(0.0, at - self.scheduler.now), self._step, self._steps)

    def _step(self, number: int) -> None:
        if number != self._steps:
            return
        self._step_at = float("inf")
        deadline = self.step()
        self._at_once = self._at_once + 1 if deadline is not None and deadline <= self.scheduler.now else 0
        if self._at_once == MOST_AT_ONCE:
            self.world.oracle.violate("spins", f"{self.name} has been called {MOST_AT_ONCE:,} times in a row")
        if deadline is not None:
            pause = THREAD_S if self._at_once < MOST_AT_ONCE else SLOW_THREAD_S  # so that the run ends
            self.step_at(max(deadline, self.scheduler.now + pause))

    # -- what subclasses do ---------------------------------------------------------------------------------

    def open(self, life: int | None = None) -> None:
        """Begin, again or for the first time."""
        raise NotImplementedError

    def close(self) -> None:
        """End cleanly."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Give up the file, as the end of a process does."""
        raise NotImplementedError

    def returned(self) -> None:
        """The process is about to crash: what its other threads were told until now was told."""

    def step(self) -> float | None:
        """Let the engine do what is due."""
        raise NotImplementedError

    def looked_at(self) -> None:
        """Something happened in it; the application may have something to do."""

    def note(self, what: str) -> None:
        """Record a line."""
        self.world.history.note("process", self.name, what)
