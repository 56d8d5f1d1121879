"""Ctrl-C and SIGTERM as a condition to look at, not as an exception in the middle of something."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["StopRequest"]


class StopRequest:
    """Notices the first SIGINT or SIGTERM while it is entered; a second one has its usual effect.

    For the main thread. `fileno()` becomes readable with the signal, so that it can be waited for.
    """

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        """`on_stop` is called in the signal handler: it must be safe there."""
        self.signal = 0
        self._on_stop = on_stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()
        os.close(self._read)
        os.close(self._write)

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def status(self) -> int:
        """The exit code that says which signal it was."""
        return 128 + self.signal

    def fileno(self) -> int:
        """A file descriptor that is readable once a signal came."""
        return self._read

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; whether one came."""
        select.select([self], [], [], seconds)
        return bool(self)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        os.write(self._write, b"!")
        if self._on_stop is not None:
            self._on_stop()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
