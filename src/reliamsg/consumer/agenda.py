"""When the consumer's engine is stepped next."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reliamsg.runtime.wakeup import Uninterrupted, can_be_interrupted

__all__ = ["Agenda"]


class Agenda:
    """Wakes whoever steps the engine when something becomes due before the next step. Under the consumer's lock, except
    :meth:`due_soon` and :meth:`wake`."""

    def __init__(self, lock: threading.RLock, calls: Uninterrupted | None, wake: Callable[[], None]) -> None:
        self._lock = lock
        self._calls = calls
        self._wake = wake
        self.wakes_at: float = -1.0
        """When the next step is due; negative while one runs."""
        self.called: bool = False
        """A step is due at once, as a thread without the lock has found."""

    def step_begins(self) -> None:
        """A step begins: it sees whatever becomes due, so that no one need be woken."""
        self.called, self.wakes_at = False, -1.0

    def step_ends(self, deadline: float | None) -> None:
        """The next step is due at `deadline` (None: none is planned), unless something becomes due before."""
        self.wakes_at = float("inf") if deadline is None else deadline

    def due(self, at: float) -> None:
        """The engine has something to do at `at`."""
        if at < self.wakes_at:
            self.wakes_at = at
            self._wake()

    def due_soon(self, at: float) -> None:
        """The same, called by an application's thread, without the lock."""
        if self._calls is None or not can_be_interrupted():
            with self._lock:
                self.due(at)
        elif at < self.wakes_at:
            self.wake()

    def wake(self) -> None:
        """Have a step made at once. Any thread may call this, and so may a signal handler."""
        self.called = True
        self._wake()
