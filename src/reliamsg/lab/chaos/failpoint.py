"""A probe that kills its own process with SIGKILL the nth time that a named point is passed."""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["Failpoint"]


class Failpoint:
    """Injected as the ``probe`` of a producer or consumer. It creates the file `mark` before it kills the process."""

    def __init__(self, point: str, nth: int, mark: str) -> None:
        self.point: str = point
        self.left: int = nth
        self.mark: str = mark
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        if point != self.point:
            return
        with self._lock:
            self.left -= 1
            if self.left == 0:
                os.close(os.open(self.mark, os.O_CREAT | os.O_WRONLY, 0o600))
                os.kill(os.getpid(), signal.SIGKILL)
