"""Simulated time: a queue of scheduled calls, and the wall clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["START_S", "START_WALL_US", "Scheduler", "WallClock"]

START_S = 1_000.0
"""When simulated runs start, in simulated seconds."""
START_WALL_US = 1_700_000_000_000_000
"""The wall clock at zero simulated seconds."""


class Scheduler:
    """Runs calls at their times, one after the other. Calls for the same time run in the order of their scheduling.

    `now` is the only monotonic clock of a simulated world, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.now: float = now
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call in `seconds` seconds."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, call, arguments))

    def run(self, until: float) -> None:
        """Run all calls that are due by `until`."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)
        self.now = max(self.now, until)


class WallClock:
    """The wall clock of the simulated world, which can jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._jumps_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return START_WALL_US + int(self._scheduler.now * 1e6) + self._jumps_us

    def jump(self, by_us: int) -> None:
        """Set the clock forward, or back if `by_us` is negative."""
        self._jumps_us += by_us
