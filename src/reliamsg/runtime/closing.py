"""Closes something exactly once, even if callers that wait for it are interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reliamsg.runtime.wakeup import Waiters

__all__ = ["Closing"]


class Closing:
    """Closes something once, on a separate thread, so that closing completes even if the waiting caller is
    interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = False
        self._clean = False
        self._error: BaseException | None = None
        self._waiters = Waiters()

    def begin(self, close: Callable[[], bool], name: str) -> bool:
        """Start calling `close`; returns False if it was started before. Not for the main thread."""
        with self._lock:
            if self._begun:
                return False
            self._begun = True
        thread = threading.Thread(target=self._run, args=(close,), name=name, daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._run(close)
        return True

    def wait(self) -> bool:
        """Wait until `close` has ended; returns its result or raises its exception."""
        self._waiters.wait(lambda: self._ended, None)
        if self._error is not None:
            raise self._error
        return self._clean

    def _run(self, close: Callable[[], bool]) -> None:
        try:
            self._clean = close()
        except BaseException as error:  # noqa: BLE001  (raised by wait())
            self._error = error
        self._ended = True
        self._waiters.notify_all()
