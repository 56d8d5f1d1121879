"""Recognizes recent frames. A control frame is sent over every site that is up, so most arrive several times."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["DuplicateFilter"]


class DuplicateFilter:
    """Remembers at least the latest `capacity` frames, and at most twice as many.

    Forgetting a frame too early only costs the work of handling a duplicate, since control frames may be repeated. May
    be used by several threads: two that ask at the same moment may both learn that a frame is new.
    """

    def __init__(self, capacity: int = 1_000) -> None:
        self._capacity = capacity
        self._latest: set[int] = set()
        self._earlier: set[int] = set()

    def has(self, frame: Hashable) -> bool:
        """Whether the frame was added recently."""
        mark = hash(frame)
        return mark in self._latest or mark in self._earlier

    def add(self, frame: Hashable) -> None:
        """The frame was handled: its duplicates can be ignored."""
        if len(self._latest) >= self._capacity:
            self._earlier, self._latest = self._latest, set()
        self._latest.add(hash(frame))
