"""The thread that does a client's work, one step after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from reliamsg.errors import FatalError
from reliamsg.runtime.wakeup import Wakeup

__all__ = ["Work", "Worker"]


class Work(Protocol):
    """What a worker does. All methods are called on its thread."""

    def step(self) -> float | None:
        """Do what is due; returns when, by the worker's clock, there will be more; None for only when woken."""

    def fail(self, error: FatalError) -> None:
        """A step raised this: nothing more can be done. Further steps follow, to wake threads that wait."""

    def finish(self) -> None:
        """There will be no further step."""


class Worker:
    """Calls ``step()`` at the time that the last call returned and whenever it is woken, until it is ended."""

    def __init__(
        self, name: str, clock: Callable[[], float], log: logging.Logger, most_idle_s: float | None = None
    ) -> None:
        """`most_idle_s`: steps are at most this far apart, in seconds; None: without a limit."""
        self._name = name
        self._clock = clock
        self._log = log
        self._most_idle_s = most_idle_s
        self._wakeup = Wakeup()
        self.wake = self._wakeup.set
        """Have a step made soon. Any thread may call this, and so may a signal handler."""
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self, work: Work) -> None:
        """Start the thread. Once."""
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is the worker's own thread, which may garbage-collect an object that was not closed."""
        return threading.current_thread() is self._thread

    def end(self, timeout: float) -> bool:
        """Have no further step made; returns whether the work was finished within `timeout` seconds. On the worker's
        own thread it is finished later: once the step in which this is called has returned."""
        self._ending = True
        self._wakeup.set()
        if self._thread is None:
            return True
        if self.is_current:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, work: Work) -> None:
        while not self._ending:
            try:
                deadline = work.step()
            except Exception as error:  # noqa: BLE001  (no thread may be left waiting, whatever the error)
                self._log.exception("%s: a step failed", self._name)
                work.fail(
                    error if isinstance(error, FatalError) else FatalError(f"internal error: {error!r}")
                )
                deadline = None
            if self._ending:
                break
            left = None if deadline is None else max(0.0, deadline - self._clock())
            if self._most_idle_s is not None:
                left = self._most_idle_s if left is None else min(left, self._most_idle_s)
            self._wakeup.wait(left)
        work.finish()
