"""The clock that a consumer goes by."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["elapsed_clock"]


def elapsed_clock() -> Callable[[], float]:
    """A clock that never goes back, in seconds, and goes on while the machine is suspended, where the system has one.

    A lease that was young when a laptop was closed is old when it is opened, and another consumer may have taken over
    meanwhile. Linux's monotonic clock stands still in suspension; ``CLOCK_BOOTTIME`` does not. Elsewhere it is
    ``time.monotonic``. No clock inside a virtual machine counts the time for which its host had paused it.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None:
        return time.monotonic
    return lambda: time.clock_gettime(number)
