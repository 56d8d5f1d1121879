"""Shows the progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from reliamsg.cli.demo.plan import Plan
from reliamsg.cli.demo.watch import Watch
from reliamsg.terminal import printable, say

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

__all__ = ["Display", "make_display"]

_LINE_EVERY_SECONDS = 3.0


class Display(Protocol):
    """Shows a run on standard error; standard output is for the result."""

    def begin(self, plan: Plan) -> None: ...
    def look(self, watch: Watch) -> None: ...
    def event(self, text: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display() -> Display:
    """A live table on a terminal with rich installed, otherwise lines."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        return LiveDisplay()
    return LineDisplay()


class _Clock:
    def __init__(self) -> None:
        self._started = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"


class LineDisplay:
    """A line for each event, and a line with the numbers every few seconds."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._due = 0.0

    def begin(self, plan: Plan) -> None:
        self._total = plan.total

    def look(self, watch: Watch) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LINE_EVERY_SECONDS
        parts = [f"published {sum(watch.published.values()):,} of {self._total:,}"]
        parts += [f"confirmed by {site} {count:,}" for site, count in watch.confirmed.items()]
        parts += [f"delivered to {group} {count:,}" for group, count in watch.acknowledged.items()]
        say(f"{self._clock}  {'; '.join(parts)}", err=True)

    def event(self, text: str) -> None:
        say(f"{self._clock}  * {text}", err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class LiveDisplay:
    """A table that is redrawn in place, with events below it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = _Clock()
        self._events: list[str] = []
        self._total = 1
        self._watch: Watch | None = None
        self._live: Live = Live(
            get_renderable=self._draw, console=Console(stderr=True), refresh_per_second=4, transient=False
        )

    def begin(self, plan: Plan) -> None:
        self._total = plan.total

    def look(self, watch: Watch) -> None:
        self._watch = watch

    def event(self, text: str) -> None:
        self._events.append(f"{self._clock}  {printable(text)}")

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        watch = self._watch
        if watch is not None:
            rows = [("published, durable", sum(watch.published.values()))]
            rows += [(f"confirmed by {site}", count) for site, count in watch.confirmed.items()]
            rows += [(f"delivered to {group}", count) for group, count in watch.acknowledged.items()]
            rows += [
                ("plain paho: confirmed", len(watch.plain.confirmed)),
                ("plain paho: delivered", len(watch.plain.delivered)),
            ]
            for name, count in rows:
                bar = ProgressBar(total=self._total, completed=min(count, self._total), width=40)
                table.add_row(name, bar, Text(f"{count:,}", justify="right"))
        return Group(table, Text(""), *(Text(event) for event in self._events))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.refresh()
        self._live.__exit__(kind, error, trace)
