"""How long a consumer was able to notice that something is missing: the most that a gap's clock can have counted."""

from __future__ import annotations

__all__ = ["Stopwatch"]

STEP_S = 1.0
"""How much a gap's clock may count of each interruption, in which the process is suspended or connected to no site."""


class Stopwatch:
    """Counts the seconds in which a process runs with a connection to a site, and at most one of each interruption."""

    def __init__(self, now: float) -> None:
        self._seconds = 0.0
        self._at = now
        """Up to when it has counted; while it does not run, when it stopped."""
        self._runs = False

    def update(self, now: float, runs: bool) -> None:
        """Something happened: from now on it runs, or not."""
        if self._runs:
            self._seconds += now - self._at
        elif runs:
            self._seconds += min(now - self._at, STEP_S)
        else:
            return
        self._at, self._runs = now, runs

    def read(self, now: float) -> float:
        """How many seconds it has counted."""
        return self._seconds + (now - self._at if self._runs else 0.0)
