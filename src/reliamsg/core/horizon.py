"""How far ahead an epoch may be before its producer has to vouch for it.

Epochs are clock readings of producers, and the highest one wins: whoever could have a group enter an epoch of the year
3000 would silence a genuine producer for as long. So what lies far beyond all that is known of the time is not believed
without an answer. What raises the horizon must be out of a forger's reach.
"""

from __future__ import annotations

__all__ = ["FAR_MS", "Horizon"]

FAR_MS = 48 * 3600 * 1000
"""Clocks may be so far off, all together."""


class Horizon:
    """What a group knows of the time. `known_us`: the latest that its clock ever said, as far as its inbox knows, in µs
    since 1970. `signed`: frames are authentic, so that what they say of the time counts."""

    __slots__ = ("_newest_ms", "_signed")

    def __init__(self, known_us: int = 0, signed: bool = False) -> None:
        self._newest_ms = known_us // 1000
        self._signed = signed

    def look(self, wall_us: int) -> None:
        """The clock says this."""
        self._newest_ms = max(self._newest_ms, wall_us // 1000)

    def learn(self, epoch: int, ts_us: int = 0) -> None:
        """A frame of this epoch, with this timestamp, was accepted."""
        if self._signed:
            self._newest_ms = max(self._newest_ms, epoch, ts_us // 1000)

    def is_far(self, epoch: int, vouched: int = 0) -> bool:
        """Whether an epoch is too far ahead to be believed. `vouched`: the newest one of its stream that was vouched
        for."""
        return epoch > self.limit(vouched)

    def limit(self, vouched: int = 0) -> int:
        """The highest epoch that is believed."""
        return max(self._newest_ms, vouched) + FAR_MS
