"""Waiting for what must happen.

Such a number is the point at which a run gives up, not a measurement: a run that is well never waits for it. So it is
chosen for a machine that is several times slower than usual, shared with others, and stalled now and then for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from reliamsg.lab.process import LabError

__all__ = ["Unmet", "patient", "wait_for"]

_FACTOR = 4.0
_LEAST_S = 60.0
"""Nothing is given up sooner, since one stall alone may take many seconds."""


class Unmet(LabError):
    """What a run waited for, or expects, did not come true."""


def patient(seconds: float) -> float:
    """How long to wait, in seconds, for what takes less than `seconds` on a machine that is not busy."""
    return max(_LEAST_S, _FACTOR * seconds)


def wait_for(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = 20.0,
    poll: float = 0.02,
) -> Any:
    """Wait until `condition` is true, and return its value; look every `poll` seconds. :class:`Unmet`, saying
    `what`, if that takes more than ``patient(seconds)``."""
    limit = patient(seconds)
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise Unmet(f"not within {limit:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(poll)
