"""How long tests wait for what must happen.

Such a number is the point at which a test gives up, not a measurement: a test that passes never waits for it. So it
is chosen for a machine that is several times slower than the one it was written on, shared with others, and stalled
now and then for seconds; what hangs is told from what is slow a little later, and that is all it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from reliamsg.lab.chaos import waiting
from reliamsg.lab.chaos.waiting import patient

__all__ = ["STALL_S", "patient", "quickest", "wait_for"]

STALL_S = 15.0
"""What a stalled machine may add to anything: upper bounds that are promises of the product allow for it, and are told
apart from the promise's breach by more than that."""


def wait_for(
    condition: Callable[[], Any],
    what: str = "the condition holds",
    seconds: float = 20.0,
    poll: float = 0.005,
) -> Any:
    """:func:`reliamsg.lab.chaos.waiting.wait_for`, of what is quicker to look at."""
    return waiting.wait_for(condition, what, seconds, poll)


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
