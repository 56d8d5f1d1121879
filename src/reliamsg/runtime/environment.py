"""What an engine uses of the process in which it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from reliamsg.runtime.callbacks import OnError
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.wakeup import Uninterrupted, Waiters

__all__ = ["Environment", "Probe", "Waker", "no_probe"]

Probe = Callable[[str], None]


no_probe: Probe = deque[str](maxlen=0).append
"""Does nothing, at the cost of nothing: no crash is tested."""


class Waker(Protocol):
    """Has an engine's ``step()`` called."""

    def wake(self) -> None:
        """Have it called soon. Any thread may call this, and so may a signal handler."""


class NoWaker:
    """For an engine that is stepped by hand."""

    def wake(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One engine's. The simulator and tests run engines without threads, and with clocks of their own."""

    clock: Clock = field(default_factory=Clock)
    waker: Waker = field(default_factory=NoWaker)
    probe: Probe = no_probe
    """Called with the name of each point that is passed, so that tests can crash there."""
    on_error: OnError | None = None
    """Called with errors of background work."""
    calls: Uninterrupted | None = None
    """Makes a consumer's calls for an application that may be interrupted."""
    room: Waiters | None = None
    """Where threads wait for room in the outbox; None: the engine makes its own."""
