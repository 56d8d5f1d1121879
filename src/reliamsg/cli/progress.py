"""A progress line on standard error, if it is a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Self

from reliamsg.terminal import rewrite

__all__ = ["Progress"]

_EVERY_SECONDS = 0.2


class Progress:
    """Shows the current state in one line; does nothing without a terminal."""

    def __init__(self) -> None:
        self._active = sys.stderr.isatty()
        self._due = 0.0
        self._shown = False

    def show(self, text: Callable[[], str]) -> None:
        """Show the result of `text`, which is called at most five times a second."""
        now = time.monotonic()
        if self._active and now >= self._due:
            self._due = now + _EVERY_SECONDS
            width = shutil.get_terminal_size().columns
            rewrite(text(), width - 1)
            self._shown = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shown:
            rewrite("", 0)
