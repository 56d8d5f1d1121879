"""The clocks of producers and consumers.

Engines are given their clocks: one that measures durations, in seconds (``time.monotonic`` for a producer,
:func:`elapsed_clock` for a consumer), and the wall clock, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["elapsed_clock", "microseconds", "wall_us"]


def wall_us() -> int:
    """The wall clock, in µs since 1970."""
    return time.time_ns() // 1000


def microseconds(seconds: float) -> int:
    """A reading of a clock that measures seconds, as journals store it."""
    return int(seconds * 1e6)


def elapsed_clock() -> Callable[[], float]:
    """A clock that never goes back, in seconds, and goes on while the machine is suspended, where the system has one.

    A lease that was young when a laptop was closed is old when it is opened, and another consumer may have taken over
    meanwhile. Linux's monotonic clock stands still in suspension; ``CLOCK_BOOTTIME`` does not. Elsewhere it is
    ``time.monotonic``. No clock inside a virtual machine counts the time for which its host had paused it.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None:
        return time.monotonic
    return partial(time.clock_gettime, number)
