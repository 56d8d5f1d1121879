"""Disk faults of one simulated process."""

from __future__ import annotations

from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.disk import DiskFault
from reliamsg.simulation.faults import Chances
from reliamsg.simulation.trace import Trace

__all__ = ["DiskFaults"]

CRASHES: tuple[DiskFault, ...] = (
    "crash_before_commit", "torn_write", "torn_checkpoint", "crash_after_commit",
)  # fmt: skip
FULL_S = (0.2, 3.0)
"""How long a disk stays full, in seconds."""


class DiskFaults:
    """Draws the outcome of each commit."""

    def __init__(self, scheduler: Scheduler, faults: Chances, trace: Trace) -> None:
        self._scheduler, self._faults, self._trace = scheduler, faults, trace
        # Looked up once: most runs have few faults, and every commit asks.
        self._any = not faults.enabled.isdisjoint(("disk_full", "fsync_error", *CRASHES))
        self._full_until = 0.0

    def draw(self) -> DiskFault:
        """The outcome of the next commit."""
        if not self._any:
            return ""
        faults, now = self._faults, self._scheduler.now
        if now < self._full_until and not faults.over:
            faults.strikes("disk_full")
            return "disk_full"
        if faults.bites("disk_full"):
            self._full_until = now + faults.random("disk_full").uniform(*FULL_S)
            faults.strikes("disk_full")
            self._note("its disk is full")
            return "disk_full"
        if faults.bites("fsync_error"):
            faults.strikes("fsync_error")
            self._note("an fsync fails")
            return "fsync_error"
        for name in CRASHES:
            if faults.bites(name):
                faults.strikes(name)
                return name
        return ""

    def _note(self, what: str) -> None:
        self._trace.note("process", self._faults.place, what)
