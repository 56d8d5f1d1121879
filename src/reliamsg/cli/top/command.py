"""The command."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from reliamsg.cli.options import json_option
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status
from reliamsg.terminal import say, say_json

if TYPE_CHECKING:
    from reliamsg.cli.top.lines import Line
    from reliamsg.cli.top.watch import Seen, Watch

__all__ = ["top"]


@click.command(epilog=SEE_EXIT_CODES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS",
    help="How often the files are read.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show the files once, and exit; without rates.")
@json_option
def top(files: tuple[str, ...], interval: float, once: bool, as_json: bool) -> int:
    """Watch outboxes and inboxes, even while producers and consumers use them.

    Shows the rates, sites, groups, gaps, the oldest messages that are not confirmed, and repairs, of the files with
    problems first. Only reads, without blocking the clients. A file that does not exist yet, is replaced or is damaged
    has a line that says so.

    On a terminal, the view is live (this needs rich: pip install 'reliamsg[demo]'), and q or Ctrl-C ends it. Otherwise,
    it is printed at each interval. With --json there is an object per interval. With --once, the exit code is 65 if a
    file can't be read.
    """
    from reliamsg.cli.top.watch import Watch

    watches = [Watch(file) for file in dict.fromkeys(files)]
    with StopRequest() as stop:
        if once:
            return _once(watches, as_json)
        if sys.stdout.isatty() and not as_json:
            if importlib.util.find_spec("rich") is None:
                raise Failure(
                    Status.UNAVAILABLE,
                    "a live view needs rich: pip install 'reliamsg[demo]' (--once and --json do not)",
                )
            from reliamsg.cli.top.lines import lines_of
            from reliamsg.cli.top.screen import show_live

            def look() -> tuple[str, Sequence[Line]]:
                return f"reliamsg top  {_time()}  every {interval:g} s  q: quit", lines_of(_look(watches))

            show_live(look, interval, stop)
            return Status.OK
        while not stop:
            _print(_look(watches), as_json)
            stop.wait(interval)
    return Status.OK


def _once(watches: Sequence[Watch], as_json: bool) -> int:
    from reliamsg.cli.top.watch import Problem

    found = _look(watches)
    _print(found, as_json)
    return Status.DATA if any(isinstance(seen, Problem) for seen in found) else Status.OK


def _look(watches: Sequence[Watch]) -> list[Seen]:
    return [watch.look(time.monotonic(), time.time_ns() // 1000) for watch in watches]


def _print(found: list[Seen], as_json: bool) -> None:
    import msgspec

    from reliamsg.cli.top.lines import lines_of

    if as_json:
        say_json(msgspec.json.encode({"at_us": time.time_ns() // 1000, "files": found}))
    else:
        say(f"reliamsg top  {_time()}", *(line.text for line in lines_of(found)))


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
