"""Waiting for what must happen, for as long as is promised and no longer.

Whoever waits says within how many seconds the product (or a broker) promises it. These are seconds of a machine that
has time for it: while more tasks want to run, or wait for the disk, than there are processors, a second counts for the
share of it that each of them gets; and a pause in which the machine ran nobody, the waiting process included, does not
count. So a bound can be close to the promise, and still hold on a machine that is shared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliamsg.lab.process import LabError

__all__ = ["STALL_S", "MachineClock", "Unmet", "contention", "wait_for"]

STALL_S = 10.0
"""What is added to every bound: one stall of a disk, or the start of a process, which no load figure shows."""
_MOST_SHARED = 8.0
"""A second never counts for less than an eighth: a product that keeps all processors busy must not be waited for
for ever."""
_PAUSE_S = 0.25
"""A sleep that took so much longer than it should was no sleep: the machine ran nobody."""
_STAT = Path("/proc/stat")


class Unmet(LabError):
    """What a run waited for, or expects, did not come true."""


def contention(stat: Path = _STAT) -> float:
    """How many tasks share a processor, from 1 (nobody waits) to 8: those that run, want to, or wait for a disk, over
    the number of processors. 1 where the kernel does not say."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 1.0
    counts = [int(line.split()[1]) for line in lines if line.startswith(("procs_running ", "procs_blocked "))]
    return min(_MOST_SHARED, max(1.0, sum(counts) / (os.cpu_count() or 1)))


class MachineClock:
    """Seconds of a machine that has time for us."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        shared: Callable[[], float] = contention,
    ) -> None:
        self._clock, self._sleep, self._shared = clock, sleep, shared
        self._looked = clock()
        self.spent = 0.0
        """So many have passed, by the latest :meth:`look`."""

    def look(self) -> float:
        """Count what has passed since the last look; returns how much that is altogether."""
        now = self._clock()
        self.spent += (now - self._looked) / self._shared()
        self._looked = now
        return self.spent

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, and count no more than that."""
        self.look()
        self._sleep(seconds)
        late = self._clock() - self._looked - seconds
        if late > _PAUSE_S:
            self._looked += late


def wait_for(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = 20.0,
    poll: float = 0.02,
    clock: MachineClock | None = None,
) -> Any:
    """Wait until `condition` is true, and return its value; look every `poll` seconds. :class:`Unmet`, saying
    `what`, if that takes longer than `seconds`, which is what is promised, and one stall (:data:`STALL_S`), both in
    seconds of a machine that has time for it (see :class:`MachineClock`)."""
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
