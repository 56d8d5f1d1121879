"""The clocks of producers and consumers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

__all__ = ["Clock", "elapsed_clock", "microseconds", "wall_us"]


def wall_us() -> int:
    """The wall clock, in µs since 1970."""
    return time.time_ns() // 1000


def microseconds(seconds: float) -> int:
    """A reading of a clock that measures seconds, as journals store it."""
    return int(seconds * 1e6)


def elapsed_clock() -> Callable[[], float]:
    """A clock that never goes back, in seconds, and keeps running while the machine is suspended, if the system has
    one.

    A lease that was fresh when a laptop was closed has expired when it is opened, and another consumer may have taken
    over. Linux's monotonic clock stands still in suspension; ``CLOCK_BOOTTIME`` does not. Elsewhere it is
    ``time.monotonic``. No clock inside a virtual machine counts the time during which its host paused it.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if number is None else partial(time.clock_gettime, number)


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks that an engine is given."""

    now: Callable[[], float] = time.monotonic
    """Measures durations, in seconds; never goes back. Consumers use :func:`elapsed_clock`."""
    wall_us: Callable[[], int] = wall_us
    """The wall clock, in µs since 1970."""

    def now_us(self) -> int:
        """The clock for durations, as journals store it."""
        return microseconds(self.now())
