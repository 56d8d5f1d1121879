"""How far ahead an epoch may be before its producer has to vouch for it.

Epochs are clock readings of producers, and the highest one wins: an attacker who got a group to enter an epoch of the
year 3000 would silence the genuine producer until then. So an epoch far beyond everything known about the time is not
believed without an answer. Only events that a forger can't cause may raise the horizon.
"""

from __future__ import annotations

__all__ = ["FAR_MS", "Horizon"]

FAR_MS = 48 * 3600 * 1000
"""How far all clocks together may be off."""


class Horizon:
    """What a group knows about the time. `known_us`: the latest reading of its clock that its inbox knows, in µs since
    1970. `signed`: frames are authentic, so their timestamps count."""

    __slots__ = ("_newest_ms", "_signed")

    def __init__(self, known_us: int = 0, signed: bool = False) -> None:
        self._newest_ms = known_us // 1000
        self._signed = signed

    def accepts(self, epoch: int, ts_us: int, wall_us: int) -> bool:
        """A frame of this epoch, with this timestamp, arrived when the clock read `wall_us`. Returns whether the epoch
        is believed; if so, the frame counts as accepted."""
        now_ms = wall_us // 1000
        self._newest_ms = max(self._newest_ms, now_ms)
        if epoch > self._newest_ms + FAR_MS:
            return False
        if self._signed:
            self.learn(epoch, ts_us)
        return True

    def look(self, wall_us: int) -> None:
        """The clock reads this."""
        self._newest_ms = max(self._newest_ms, wall_us // 1000)

    def learn(self, epoch: int, ts_us: int = 0) -> None:
        """A frame of this epoch, with this timestamp, was accepted."""
        if self._signed:
            self._newest_ms = max(self._newest_ms, epoch, ts_us // 1000)

    def is_far(self, epoch: int, vouched: int = 0) -> bool:
        """Whether an epoch is too far ahead to be believed. `vouched`: the highest epoch of its stream that was vouched
        for."""
        return epoch > self.limit(vouched)

    def limit(self, vouched: int = 0) -> int:
        """The highest epoch that is believed."""
        return max(self._newest_ms, vouched) + FAR_MS
