"""Runs the calls of one simulated process."""

from __future__ import annotations

import random
from collections.abc import Callable

from reliamsg.simulation.clock import Scheduler

__all__ = ["THREAD_S", "Executor"]

THREAD_S = 0.0002
"""A thread that is woken usually starts to run within this many seconds ..."""
SLOW_THREAD_S = 0.05
"""... and sometimes only within this many."""
SLOW = 0.05
"""The chance of the latter."""

Call = Callable[..., object]
Arguments = tuple[object, ...]


class Executor:
    """Runs calls one after the other while the process is alive. Calls for a suspended process wait."""

    def __init__(self, scheduler: Scheduler, pace: random.Random) -> None:
        """`pace`: how long threads take to run. Call :meth:`start` first."""
        self.alive: bool = False
        self.suspended: bool = False
        self.life: int = 0
        """Changes whenever the process is opened or terminates, so that calls of an earlier run of the process never
        execute."""
        self._scheduler, self._pace = scheduler, pace
        self._run: Callable[[Call, Arguments], object] = lambda function, arguments: function(*arguments)
        self._backlog: list[tuple[Call, Arguments]] = []

    def start(self, run: Callable[[Call, Arguments], object]) -> None:
        """From now on, `run` is called with each call and its arguments."""
        self._run = run

    # -- the process ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The process is opened."""
        self.life += 1
        self.alive = True

    def end(self) -> None:
        """The process is gone: nothing in it runs any more."""
        self.alive = self.suspended = False
        self.life += 1
        self._backlog.clear()

    def suspend(self) -> None:
        """Suspend all calls until :meth:`resume`."""
        self.suspended = True

    def resume(self) -> None:
        """Run everything that arrived while the process was suspended."""
        self.suspended = False
        backlog, self._backlog = self._backlog, []
        for function, arguments in backlog:
            self.after(0.0, function, *arguments)

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, function: Call, *arguments: object) -> None:
        """Make a call now, or when the process resumes; never if it is gone."""
        if not self.alive:
            return
        if self.suspended:
            self._backlog.append((function, arguments))
        else:
            self._run(function, arguments)

    def after(self, seconds: float, function: Call, *arguments: object) -> None:
        """Make a call in `seconds` seconds, unless the process terminates before that."""
        self._scheduler.after(seconds, self._later, self.life, function, arguments)

    def _later(self, life: int, function: Call, arguments: Arguments) -> None:
        if life == self.life:
            self.call(function, *arguments)

    def now(self) -> float:
        """The monotonic clock, in seconds."""
        return self._scheduler.now

    def uniform(self, low: float, high: float) -> float:
        """A random number."""
        return self._pace.uniform(low, high)

    def wake_delay(self) -> float:
        """How long a woken thread takes to run. Sometimes it has to wait while others run."""
        return self._pace.uniform(0.0, SLOW_THREAD_S if self._pace.random() < SLOW else THREAD_S)
