"""Segments of simulated clients: written a moment later, or when their target answers again."""

from __future__ import annotations

from collections.abc import Callable

from reliamsg.simulation.executor import Executor
from reliamsg.simulation.faults import Chances

__all__ = ["SegmentWriter"]

WRITE_S = (0.001, 0.05)
"""How long it takes to write a segment, in seconds."""
DOWN_S = (0.5, 12.0)
"""How long a target does not answer."""


class SegmentWriter:
    """Stands for the threads on which one process writes segments. A target that does not answer holds them up."""

    def __init__(self, executor: Executor, faults: Chances, note: Callable[[str], None]) -> None:
        self._executor, self._faults, self._note = executor, faults, note
        self._answers_at = 0.0
        self._closing = False
        self._waiting: Callable[[], object] | None = None

    def open(self) -> None:
        """The process is opened."""
        self._closing, self._waiting = False, None

    def start(self, name: str, function: Callable[[], object]) -> None:
        """See :class:`~reliamsg.export.exporter.Threads`."""
        now = self._executor.now()
        if self._faults.bites("target_down"):
            self._faults.strikes("target_down")
            self._answers_at = now + self._faults.random("target_down").uniform(*DOWN_S)
            self._note(f"the target of its journal does not answer until {self._answers_at:.2f}")
        self._waiting = function
        if self._closing:
            self.close()
        else:
            takes = self._executor.uniform(*WRITE_S)
            self._executor.after(max(takes, self._answers_at - now), self._write, function)

    def close(self) -> None:
        """The client is being closed, and waits for its last segments: what can be written is written at once."""
        self._closing = True
        if self._waiting is not None and self._executor.now() >= self._answers_at:
            self._write(self._waiting)

    def _write(self, function: Callable[[], object]) -> None:
        if function is self._waiting:
            self._waiting = None
            function()
