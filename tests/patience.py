"""How long tests wait for events that must happen.

Such a number is the point at which a test gives up, not a measurement: a passing test never waits for it. So it is
chosen for a machine that is several times slower than the one it was written on, shared with others, and stalled now
and then for seconds; the only cost is that a hang is told from slowness a little later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["STALL_S", "patient", "quickest", "wait_for"]

_FACTOR = 4.0
_LEAST_S = 60.0
"""The minimum wait, since a single stall may take many seconds."""
STALL_S = 15.0
"""The time that a stalled machine may add to anything: upper bounds that are promises of the product allow for it, and
a breach of the promise exceeds them by more than that."""


def patient(seconds: float) -> float:
    """How long to wait, in seconds, for something that takes less than `seconds` on an idle machine."""
    return max(_LEAST_S, _FACTOR * seconds)


def wait_for(
    condition: Callable[..., Any],  # without arguments, but a lambda may bind variables of a loop as defaults
    what: str | Callable[[], str] = "the condition holds",
    seconds: float = 20.0,
    poll: float = 0.005,
) -> Any:
    """Wait until `condition` is true, and return its value; check every `poll` seconds. AssertionError with `what`, or
    what it returns then, if that takes more than ``patient(seconds)``.

    For steps of a test. Waits that judge a promise of the product use :func:`reliamsg.lab.chaos.waiting.wait_for`.
    """
    limit = patient(seconds)
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {limit:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(poll)


def quickest(action: Callable[[], object], enough: float, tries: int = 5) -> float:
    """The minimum time, in seconds, that `action` took: in at most `tries` attempts, until one took less than `enough`.

    For upper bounds that are too close to a breach of the promise to allow for a stall.
    """
    best = float("inf")
    for _ in range(tries):
        began = time.monotonic()
        action()
        best = min(best, time.monotonic() - began)
        if best < enough:
            break
    return best
