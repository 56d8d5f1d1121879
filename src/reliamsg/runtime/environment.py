"""What engines use of the process that they run in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from reliamsg.runtime.callbacks import OnError
from reliamsg.runtime.clock import wall_us
from reliamsg.runtime.wakeup import Uninterrupted, Waiters

__all__ = ["Environment", "Probe", "no_probe"]

Probe = Callable[[str], None]


def no_probe(point: str) -> None:
    """Nobody is testing crashes here."""


def _no_wake() -> None:
    """The engine is stepped by hand."""


def _give_way() -> None:
    """Let go of the interpreter."""
    time.sleep(0)


@dataclass(frozen=True, slots=True)
class Environment:
    """One engine's. The simulator and tests have environments without threads, and with a clock of their own."""

    clock: Callable[[], float] = time.monotonic
    """Measures durations, in seconds; never goes back."""
    wall_us: Callable[[], int] = wall_us
    """The wall clock, in µs since 1970."""
    wake: Callable[[], None] = _no_wake
    """Has ``step()`` called soon. Any thread may call it, whatever it has interrupted."""
    probe: Probe = no_probe
    """Told of the points that are passed, for tests of crashes."""
    on_error: OnError | None = None
    """Told of what happens in the background."""
    calls: Uninterrupted | None = None
    """Makes a consumer's calls for an application that may be interrupted."""
    give_way: Callable[[], None] = _give_way
    """Lets other threads run: those that wait in ``publish()`` continue before sites are woken."""
    room: Waiters | None = None
    """Where threads wait for room in the outbox, unless the engine has a place of its own for them."""
