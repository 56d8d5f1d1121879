"""How long a consumer was able to miss something: the most that the clock of a gap can have counted."""

from __future__ import annotations

__all__ = ["Stopwatch"]

STEP_S = 1.0
"""Of any time in which a process was stopped, or connected to no site, a gap's clock may count so much."""


class Stopwatch:
    """Counts the seconds in which a process ran with a connection to a site, and at most one of each interruption."""

    def __init__(self, now: float) -> None:
        self._seconds = 0.0
        self._at = now
        """Up to when it has counted; while it stands, when it stopped."""
        self._runs = False

    def look(self, now: float, runs: bool) -> None:
        """Something happened: from now on it runs, or not."""
        if self._runs:
            self._seconds += now - self._at
        elif runs:
            self._seconds += min(now - self._at, STEP_S)
        else:
            return
        self._at, self._runs = now, runs

    def read(self, now: float) -> float:
        """Seconds until now."""
        return self._seconds + (now - self._at if self._runs else 0.0)
