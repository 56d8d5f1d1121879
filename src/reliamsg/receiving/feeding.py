"""Queues that bring nothing though they should: whether a broker uses the binding that it lists shows nowhere else.

Nothing here reads a clock. Times are monotonic seconds, those of the caller.
"""

from __future__ import annotations

__all__ = ["SILENT_S", "Feeding"]

SILENT_S = 60.0
"""A queue is suspected when repairs of its topic came for so long, through the same site, and nothing else did."""

Topic = tuple[str, int]
"""With its partition."""


class Feeding:
    """Of one site: what came through queues, and what only by repair. Not thread-safe."""

    def __init__(self) -> None:
        self._starved_since: dict[Topic, float] = {}

    def came(self, topic: Topic) -> None:
        """Its queue brought something."""
        self._starved_since.pop(topic, None)

    def repaired(self, topic: Topic, now: float, seen_empty_at: float) -> bool:
        """Something missing came by repair. Returns whether the queue is suspected, `SILENT_S` apart: it brought
        nothing all that time, and not because something waited in it."""
        since = self._starved_since.setdefault(topic, now)
        if now - since < SILENT_S or seen_empty_at < since:
            return False
        self._starved_since[topic] = now
        return True
