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
    """Convert the reading of a clock in seconds to the unit of journals."""
    return int(seconds * 1e6)


def elapsed_clock() -> Callable[[], float]:
    """A clock that never goes back, in seconds, and keeps running while the machine is suspended, if the system has
    one.

    A lease that was valid when a laptop was closed has expired when it is opened, and another consumer may have taken
    over. Linux's monotonic clock stops during suspension; ``CLOCK_BOOTTIME`` does not. Elsewhere it is
    ``time.monotonic``. No clock inside a virtual machine counts the time during which its host paused it.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if number is None else partial(time.clock_gettime, number)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of an engine."""

    now: Callable[[], float] = time.monotonic
    """Measures durations, in seconds; never goes back. Consumers use :func:`elapsed_clock`."""
    wall_us: Callable[[], int] = wall_us
    """The wall clock, in µs since 1970."""

    def now_us(self) -> int:
        """The clock for durations, in µs, as in journals."""
        return microseconds(self.now())
