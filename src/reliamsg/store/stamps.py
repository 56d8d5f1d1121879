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
    """The stamp of a transaction."""

    stamp_us: int
    """µs since 1970."""
    step: tuple[int, int] | None
    """If the clock was set: what it should have shown, and what it showed, in µs since 1970."""


class StampClock:
    """Makes the stamps of one file during one opening. `latest_us`: the latest stamp of earlier openings."""

    def __init__(self, latest_us: int = 0) -> None:
        self.latest_us = latest_us
        """The latest stamp, µs since 1970."""
        self._offset_us: int | None = None
        """What the clock is expected to be ahead of the monotonic one; None before the first transaction."""

    def read(self, wall_us: int, mono_us: int) -> Reading:
        """The stamp for these readings of the wall clock (µs since 1970) and the monotonic clock (µs), which were taken
        together. Changes nothing: see :meth:`keep`."""
        if self._offset_us is not None:
            expected_us = mono_us + self._offset_us
            is_step = abs(wall_us - expected_us) > STEP_US
        else:
            expected_us = self.latest_us
            is_step = wall_us < expected_us - STEP_US
        return Reading(max(wall_us, self.latest_us), (expected_us, wall_us) if is_step else None)

    def keep(self, wall_us: int, mono_us: int) -> None:
        """A transaction with the stamp of these readings was committed."""
        reading = self.read(wall_us, mono_us)
        self.latest_us = reading.stamp_us
        # Compared with the same reading until it is off: small steps add up.
        if self._offset_us is None or reading.step is not None:
            self._offset_us = wall_us - mono_us

    def raise_to(self, stamp_us: int) -> None:
        """No later stamp is below this."""
        self.latest_us = max(self.latest_us, stamp_us)
