"""The options of a benchmark: number and size of runs, and a callback for progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Options"]


def _silent(text: str) -> None:
    """Ignores the progress."""


@dataclass(frozen=True)
class Options:
    """Passed to every benchmark."""

    pairs: int = 5
    """Counted rounds, after one uncounted warm-up."""
    scale: float = 1.0
    """Fraction of the number of messages in a run; below 1 only shows that it works."""
    seconds: float | None = None
    """Seconds that the soak lasts; None for ten minutes."""
    note: Callable[[str], None] = _silent

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))
