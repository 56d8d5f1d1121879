"""Ctrl-C and SIGTERM as a condition to check, instead of an exception at any point."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["StopRequest"]


class StopRequest:
    """Catches the first SIGINT or SIGTERM within its block; a second one has its usual effect.

    For the main thread only. `fileno()` becomes readable with the signal, for use with select().
    """

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        """`on_stop` is called in the signal handler, and must be safe there."""
        self.signal: int = 0
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
        """The exit code for the signal."""
        return 128 + self.signal

    def fileno(self) -> int:
        """A file descriptor that is readable after a signal."""
        return self._read

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a signal; whether one was received."""
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
