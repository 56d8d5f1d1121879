"""Pseudo-random delays, so that groups which lack the same messages do not request them in step."""

from __future__ import annotations

__all__ = ["JITTER", "Jitter"]

JITTER = 0.2


class Jitter:
    """Pseudo-random factors around 1; equal seeds give equal sequences."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & 0xFFFFFFFFFFFFFFFF

    def spread(self, seconds: float) -> float:
        """`seconds`, up to a fifth more or less."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return seconds * (1 - JITTER + 2 * JITTER * (self._state >> 11) / (1 << 53))
