"""The stamps of journal rows: they never run backwards, and a clock that was set is noticed."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LIVENESS_S", "LIVENESS_US", "STEP_US", "Reading", "StampClock"]

LIVENESS_S = 60.0
"""The liveness interval. No row is extended for longer, and an idle client states once per interval that it is idle."""
LIVENESS_US = int(LIVENESS_S * 1e6)
STEP_US = 5_000_000
"""A clock that is off by more than this against the monotonic clock, or behind the latest stamp at opening, was set."""


class Reading(NamedTuple):
    """The stamp of a transaction, and the difference of the clocks. Times are in µs since 1970."""

    stamp_us: int
    offset_us: int
    """What the wall clock is ahead of the monotonic clock."""
    step: tuple[int, int] | None
    """If the clock was set: what it should have shown, and what it showed."""


class StampClock:
    """Makes the stamps of one file during one opening. `latest_us`: the latest stamp of earlier openings."""

    def __init__(self, latest_us: int = 0) -> None:
        self.latest_us: int = latest_us
        """The latest stamp, µs since 1970."""
        self._offset_us: int | None = None
        """What the clock is expected to be ahead of the monotonic one; None before the first transaction."""

    def read(self, wall_us: int, mono_us: int) -> Reading:
        """The stamp for these readings of the wall clock (µs since 1970) and the monotonic clock (µs), which were taken
        together. Changes nothing: see :meth:`keep`."""
        latest_us, known_us, offset_us = self.latest_us, self._offset_us, wall_us - mono_us
        step = None
        if known_us is None:
            if wall_us < latest_us - STEP_US:
                step = latest_us, wall_us
        elif not -STEP_US <= offset_us - known_us <= STEP_US:
            step = mono_us + known_us, wall_us
        return Reading(wall_us if wall_us > latest_us else latest_us, offset_us, step)

    def keep(self, reading: Reading) -> None:
        """A transaction with this stamp was committed."""
        self.latest_us = reading.stamp_us
        # Compared with the same reading until it is off: small steps add up.
        if self._offset_us is None or reading.step is not None:
            self._offset_us = reading.offset_us

    def raise_to(self, stamp_us: int) -> None:
        """No later stamp is below this."""
        self.latest_us = max(self.latest_us, stamp_us)
