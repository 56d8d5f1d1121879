"""The dependencies of an engine on its process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from reliamsg.export.exporter import Threads
from reliamsg.runtime.callbacks import OnError
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.wakeup import Uninterrupted, Waiters

__all__ = ["Environment", "Probe", "Waker", "no_probe"]

Probe = Callable[[str], None]


no_probe: Probe = deque[str](maxlen=0).append
"""Does nothing, without a Python call."""


class Waker(Protocol):
    """Requests calls of an engine's ``step()``."""

    def wake(self) -> None:
        """Request a call. May be called on any thread and in signal handlers."""


class DaemonThreads:
    """Threads of the operating system, which don't keep the process running."""

    def start(self, name: str, function: Callable[[], object]) -> None:
        threading.Thread(target=function, name=name, daemon=True).start()


class NoWaker:
    """For an engine whose caller decides when to step."""

    def wake(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one engine. The simulator and tests run engines without threads, with their own clocks."""

    clock: Clock = field(default_factory=Clock)
    waker: Waker = field(default_factory=NoWaker)
    probe: Probe = no_probe
    """Called with the name of each point that the engine passes, so that tests can crash it there."""
    on_error: OnError | None = None
    """Called with errors of background work."""
    calls: Uninterrupted | None = None
    """Executes a consumer's calls for an application that may be interrupted."""
    threads: Threads = field(default_factory=DaemonThreads)
    """For work that may take long: writing the journal's segments."""
    room: Waiters | None = None
    """Where threads wait for room in the outbox; None: the engine makes its own."""
