"""Simulated time: a queue of what will happen, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Scheduler"]


class Scheduler:
    """Runs calls at their times, one after the other; of two at the same time first the one that was planned first.

    `now` is the only monotonic clock of a simulated world, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Have `call` made in so many seconds."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, call, arguments))

    def run(self, until: float) -> None:
        """Let everything happen that happens by `until`."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)
        self.now = max(self.now, until)
