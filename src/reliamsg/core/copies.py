"""Which frames were seen lately. A control frame goes out at every site that is up, so most come several times."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Copies"]


class Copies:
    """Remembers at least the latest `most` frames, and at most twice as many.

    To forget one too early costs the work of looking at a copy, since control frames may be repeated. May be used by
    several threads: two that ask at the same instant may both be told that a frame is new.
    """

    def __init__(self, most: int = 1_000) -> None:
        self._most = most
        self._latest: set[int] = set()
        self._earlier: set[int] = set()

    def has(self, frame: Hashable) -> bool:
        """Whether it was added lately."""
        mark = hash(frame)
        return mark in self._latest or mark in self._earlier

    def add(self, frame: Hashable) -> None:
        """It was dealt with: its copies need not be looked at."""
        if len(self._latest) >= self._most:
            self._earlier, self._latest = self._latest, set()
        self._latest.add(hash(frame))
