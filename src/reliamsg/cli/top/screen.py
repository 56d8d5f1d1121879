"""The live view on a terminal, and the keys that end it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from reliamsg.cli.signals import StopRequest
from reliamsg.cli.top.lines import Level, Line

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Keys", "show_live"]

_STYLES = {Level.OK: "", Level.NOTE: "yellow", Level.PROBLEM: "red", Level.UNREADABLE: "bold red"}
_RESIZE_SECONDS = 0.25
"""How often the size of the terminal is compared."""


class Keys:
    """Reads single keys from standard input, if it is a terminal."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def quits(self, seconds: float, stop: StopRequest) -> bool:
        """Wait up to `seconds`; whether q was pressed or a signal arrived."""
        if self._before is None:
            return stop.wait(seconds)
        ready, _, _ = select.select([stop, sys.stdin], [], [], seconds)
        if sys.stdin in ready:
            pressed = os.read(sys.stdin.fileno(), 64)
            return not pressed or b"q" in pressed.lower()
        return bool(stop)


def show_live(look: Callable[[], tuple[str, Sequence[Line]]], interval: float, stop: StopRequest) -> None:
    """Show a title and lines until q or a signal; `look` is called every `interval` seconds."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    with Live(console=console, screen=True, auto_refresh=False) as live, Keys() as keys:
        while True:
            title, lines = look()
            due = time.monotonic() + interval
            while True:
                size = console.size
                live.update(_drawn(title, lines, size.height), refresh=True)
                while (left := due - time.monotonic()) > 0 and console.size == size:
                    if keys.quits(min(left, _RESIZE_SECONDS), stop):
                        return
                if left <= 0:
                    break


def _drawn(title: str, lines: Sequence[Line], height: int) -> Group:
    """As many lines as fit, each cut at the right edge."""
    from rich.console import Group
    from rich.text import Text

    def text(content: str, style: str = "") -> Text:
        return Text(content, style, no_wrap=True, overflow="ellipsis")

    shown = [text(title, "reverse")]
    room = max(1, height - 1)
    fitting = lines if len(lines) <= room else lines[: room - 1]
    shown += [
        text(line.text, f"{_STYLES[line.level]} {'bold' if line.heading else ''}".strip()) for line in fitting
    ]
    if len(fitting) < len(lines):
        shown.append(text(f"… {len(lines) - len(fitting):,} more lines", "dim"))
    return Group(*shown)
