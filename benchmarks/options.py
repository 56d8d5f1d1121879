"""What a benchmark is told: how often and how much to run, and whom to tell how it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Options"]


def _silent(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Options:
    """Given to every benchmark."""

    pairs: int = 5
    """Rounds that count, after one that does not."""
    scale: float = 1.0
    """Of the number of messages in a run: below 1 only to see that it works."""
    seconds: float | None = None
    """How long the soak lasts; None for its usual ten minutes."""
    note: Callable[[str], None] = _silent

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))
