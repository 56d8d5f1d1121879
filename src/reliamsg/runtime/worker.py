"""The thread that executes a client's work in steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from reliamsg.errors import FatalError
from reliamsg.logs import Log
from reliamsg.runtime.wakeup import Wakeup

__all__ = ["Work", "Worker"]


class Work(Protocol):
    """The work of a worker. All methods are called on its thread."""

    def step(self) -> float | None:
        """Do the due work; returns the time of the next step by the worker's clock, or None to wait for a wake-up."""

    def fail(self, error: FatalError) -> None:
        """A step raised this error, which is final. Further steps follow, to wake waiting threads."""

    def finish(self) -> None:
        """Called after the last step."""


class Worker:
    """Calls ``step()`` at the time that the previous call returned, and whenever it is woken, until it is ended."""

    def __init__(
        self, name: str, clock: Callable[[], float], log: Log, most_idle_s: float | None = None
    ) -> None:
        """`most_idle_s`: the maximum number of seconds between two steps; None for no limit."""
        self._name = name
        self._clock = clock
        self._log = log
        self._most_idle_s = most_idle_s
        self._wakeup = Wakeup()
        self.wake: Callable[[], None] = self._wakeup.set
        """Request a step. May be called on any thread and in signal handlers."""
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self, work: Work) -> None:
        """Start the thread; may be called once."""
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is the worker's own thread, on which an unclosed object may be garbage-collected."""
        return threading.current_thread() is self._thread

    def end(self, timeout: float) -> bool:
        """Stop after the current step; returns whether the work was finished within `timeout` seconds. On the worker's
        own thread it is finished later, after the step that called this."""
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
                self._log.error(
                    "client.step_failed", "%(thread_name)s: a step failed",
                    thread_name=self._name, error=type(error).__name__, exc_info=True,
                )  # fmt: skip
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
