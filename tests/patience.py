"""How long tests wait for what must happen.

Such a number is the point at which a test gives up, not a measurement: a test that passes never waits for it. So it
is chosen for a machine that is several times slower than the one it was written on, shared with others, and stalled
now and then for seconds; what hangs is told from what is slow a little later, and that is all it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["STALL_S", "patient", "quickest", "wait_for"]

_FACTOR = 4.0
_LEAST_S = 60.0
"""Nothing is given up sooner, since one stall alone may take many seconds."""
STALL_S = 15.0
"""What a stalled machine may add to anything: upper bounds that are promises of the product allow for it, and are told
apart from the promise's breach by more than that."""


def patient(seconds: float) -> float:
    """How long to wait, in seconds, for what takes less than `seconds` on a machine that is not busy."""
    return max(_LEAST_S, _FACTOR * seconds)


def wait_for(
    condition: Callable[[], Any],
    what: str = "the condition holds",
    seconds: float = 20.0,
    poll: float = 0.005,
) -> Any:
    """Wait until `condition` is true, and return its value; look every `poll` seconds. AssertionError, saying `what`,
    if that takes more than ``patient(seconds)``.

    For what is a step of a test. Waits that judge a promise of the product end with it:
    :func:`reliamsg.lab.chaos.waiting.wait_for`.
    """
    limit = patient(seconds)
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {limit:.0f} s: {what}")
        time.sleep(poll)


def quickest(action: Callable[[], object], enough: float, tries: int = 5) -> float:
    """The least time, in seconds, that `action` took: in at most `tries` tries, until one took less than `enough`.

    For upper bounds that are too close to the promise's breach to allow for a stall.
    """
    best = float("inf")
    for _ in range(tries):
        began = time.monotonic()
        action()
        best = min(best, time.monotonic() - began)
        if best < enough:
            break
    return best
