"""Waiting for promised events, only slightly longer than promised.

The caller states how many seconds the product (or a broker) may take. These are seconds of an idle machine: while more
tasks are runnable or waiting for the disk than there are processors, a second counts only for each task's share of it.
A pause in which the machine ran no process at all does not count. So a bound can be close to the promise and still hold
on a shared machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliamsg.lab.process import LabError

__all__ = ["STALL_S", "Machine", "MachineClock", "Unmet", "contention", "wait_for"]

STALL_S = 10.0
"""Added to every bound, for one stall of a disk or the start of a process, which no load figure shows."""
_MAX_CONTENTION = 8.0
"""A second never counts as less than an eighth, so that waiting for a product that keeps all processors busy ends."""
_PAUSE_S = 0.25
"""If a sleep takes this much longer than requested, the machine ran no process meanwhile."""
_STAT = Path("/proc/stat")


class Unmet(LabError):
    """A condition that a run waited for, or expects, does not hold."""


def contention(stat: Path = _STAT) -> float:
    """How many tasks share a processor, from 1 (none waits) to 8: the tasks that are running, runnable or waiting for a
    disk, divided by the number of processors. 1 if the kernel does not report it."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 1.0
    counts = [int(line.split()[1]) for line in lines if line.startswith(("procs_running ", "procs_blocked "))]
    return min(_MAX_CONTENTION, max(1.0, sum(counts) / (os.cpu_count() or 1)))


class Machine:
    """The time and load of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def contention(self) -> float:
        return contention()


class MachineClock:
    """Counts seconds of an idle machine."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._looked = self._machine.now()
        self.spent: float = 0.0
        """The seconds that had passed at the last :meth:`look`."""

    def look(self) -> float:
        """Count the time since the last look, and return the total."""
        now = self._machine.now()
        self.spent += (now - self._looked) / self._machine.contention()
        self._looked = now
        return self.spent

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, and count at most that."""
        self.look()
        self._machine.sleep(seconds)
        late = self._machine.now() - self._looked - seconds
        if late > _PAUSE_S:
            self._looked += late


def wait_for(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = 20.0,
    poll: float = 0.02,
    clock: MachineClock | None = None,
) -> Any:
    """Wait until `condition` is true, and return its value; check every `poll` seconds. Raise :class:`Unmet` with
    `what` if it takes longer than the promised `seconds` plus one stall (:data:`STALL_S`), in seconds of an idle
    machine (see :class:`MachineClock`)."""
    clock = clock or MachineClock()
    limit = seconds + STALL_S
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if clock.look() >= limit:
            took = time.monotonic() - began
            text = what if isinstance(what, str) else what()
            raise Unmet(
                f"not within {limit:.0f} s of this machine's time ({took:.0f} s by the clock): {text}"
            )
        clock.pause(poll)
