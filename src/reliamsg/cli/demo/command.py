"""``reliamsg demo``: the command."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reliamsg.cli.options import json_option
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status
from reliamsg.terminal import say, say_json, say_text

if TYPE_CHECKING:
    from reliamsg.cli.demo.director import Outcome
    from reliamsg.cli.demo.display import Display
    from reliamsg.cli.demo.plan import Kind, Plan

__all__ = ["demo"]

_SLOWNESS = (2.0, 4.0)
"""Slowness of the groups in the first run, and in a second run if nothing was at stake in the first."""


@click.command(epilog=SEE_EXIT_CODES)
@click.option(
    "--messages", type=click.IntRange(min=100), default=10_000, show_default=True, metavar="N",
    help="Messages of each of the two producers.",
)  # fmt: skip
@click.option(
    "--sites", "kind", type=click.Choice(["embedded", "mosquitto", "rabbitmq", "mixed"]), default="embedded",
    show_default=True, help="The brokers to start; embedded only requires a Python package.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path),
    help="Keep all files in this new or empty directory; by default they are removed if the outcome is complete.",
)  # fmt: skip
@json_option
def demo(messages: int, kind: Kind, directory: Path | None, as_json: bool) -> int:
    """Kill a site and a consumer, and check the fate of every message.

    Producers A and B publish N messages each through sites dc1 and dc2 to the groups primary and secondary. dc1 is
    SIGKILLed with messages queued, loses its state and returns empty; a consumer is SIGKILLed and restarted. For
    comparison, plain paho-mqtt (QoS 1, persistent session) runs through the same faults with a separate broker. At the
    end, a checker that trusts none of the clients reads the journals and the applications' own logs. If Java and
    PySpark are installed, Spark audits the same journals, with the same result.

    Takes about half a minute, and twice that with Spark. Exits with 0 only if no message was lost, duplicated,
    reordered or left open, although the faults could have lost messages. With --json the last line of standard output
    is the result.
    """
    from reliamsg.cli.demo.display import make_display
    from reliamsg.cli.demo.summary import as_dict, exit_code, text

    with _place(directory) as place, StopRequest() as stop:
        with make_display() as display:
            outcome, plan, plain_kind = _run(place, kind, messages, stop, display)
        status = exit_code(outcome)
        place.keep = place.keep or status is not Status.OK
        kept = str(place.path) if place.keep else None
        if as_json:
            say_json(as_dict(outcome, kind, kept))
        else:
            say_text("\n" + text(outcome, plan, kind, plain_kind))
            say(f"{'Files':21}{kept or 'removed (--dir keeps them)'}")
    return status


def _run(
    place: _Place, kind: Kind, messages: int, stop: StopRequest, display: Display
) -> tuple[Outcome, Plan, str]:
    """A run, and another one with slower groups if nothing was at stake in the first."""
    from reliamsg.cli.demo.brokers import start_brokers
    from reliamsg.cli.demo.director import Run
    from reliamsg.cli.demo.plan import Plan

    for number, slowness in enumerate(_SLOWNESS, 1):
        where = place.path / f"run{number}"
        display.event(f"starting brokers ({kind})")
        with start_brokers(kind, where / "brokers") as brokers:
            plan = Plan(str(where), messages, brokers.urls, brokers.plain.url, brokers.options, slowness)
            display.begin(plan)
            outcome = Run(plan, brokers, stop, display.look, display.event, place.keep).perform()
            plain_kind = brokers.plain_kind
        if outcome.mattered or outcome.report.verdict != "complete":
            break
        display.event("nothing was at stake; repeating the run with slower groups")
    return outcome, plan, plain_kind


class _Place:
    """The directory of a demo, and whether to keep it."""

    def __init__(self, path: Path, keep: bool) -> None:
        self.path = path
        self.keep = keep


@contextlib.contextmanager
def _place(directory: Path | None) -> Iterator[_Place]:
    """`directory`, which must be empty, or a temporary one, which is removed unless it is to be kept."""
    if directory is not None:
        if directory.exists() and any(directory.iterdir()):
            raise Failure(Status.USAGE, f"{directory}: not empty; the checker would read all its files")
        directory.mkdir(parents=True, exist_ok=True)
        yield _Place(directory.resolve(), True)
        return
    from reliamsg.lab.process import LabError  # on demand: every command imports this module

    with contextlib.ExitStack() as stack:
        place = _Place(Path(tempfile.mkdtemp(prefix="reliamsg-demo-")), False)
        stack.callback(lambda: None if place.keep else shutil.rmtree(place.path, ignore_errors=True))
        try:
            yield place
        except LabError:
            place.keep = True  # the message names files
            raise
