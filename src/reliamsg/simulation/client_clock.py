"""The wall clock of one simulated client, which may be wrong."""

from __future__ import annotations

from reliamsg.simulation.clock import Scheduler, WallClock
from reliamsg.simulation.faults import Chances
from reliamsg.simulation.trace import Trace

__all__ = ["ClientClock"]

DAY_US = 86_400_000_000
NO_BATTERY = 0.4
"""The chance that a wrong clock is reset completely, where that is possible."""


class ClientClock:
    """Follows the world's wall clock, with its own error since the client was opened."""

    def __init__(self, scheduler: Scheduler, wall: WallClock, faults: Chances, trace: Trace) -> None:
        self._scheduler, self._wall = scheduler, wall
        self._faults, self._trace = faults, trace
        self._off_us = 0
        self._is_lost = False
        """Whether it shows 1970."""

    def reset(self, *, may_be_lost: bool) -> None:
        """The client is opened: draw whether its clock is wrong. `may_be_lost`: it may have been reset."""
        self._off_us, self._is_lost = 0, False
        if self._faults.bites("clock_off"):
            self._faults.strikes("clock_off", self._faults.place)
            chance = self._faults.random("clock_off")
            self._off_us = chance.randint(-DAY_US, DAY_US)
            self._is_lost = may_be_lost and chance.random() < NO_BATTERY
            self._trace.note("process", self._faults.place, "has a wrong clock")

    def now_us(self) -> int:
        """Microseconds since 1970, as the client sees them."""
        if self._is_lost:
            return int(self._scheduler.now * 1e6)
        return self._wall.now_us() + self._off_us
