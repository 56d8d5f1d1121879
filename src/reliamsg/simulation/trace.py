"""A trace of a simulated run: events and their times, in readable lines."""

from __future__ import annotations

from reliamsg.simulation.clock import Scheduler

__all__ = ["Trace"]


class Trace:
    """Records lines. The same seed produces the same lines."""

    def __init__(self, scheduler: Scheduler, keep: bool) -> None:
        self.lines: list[str] = []
        self.keeps = keep
        """Whether lines are recorded. Otherwise, frequent events need not be formatted."""
        self._scheduler = scheduler

    def note(self, kind: str, who: str, what: str) -> None:
        """Record a line."""
        if self.keeps:
            self.lines.append(f"{self._scheduler.now:10.4f}  {kind:9} {who:10} {what}")
