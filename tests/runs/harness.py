"""Shared by the runs, beyond the chaos laboratory's processes: waiting, keeping evidence, and asserting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reliamsg import Consumer
from reliamsg.checker import Report
from reliamsg.lab.chaos import processes, waiting
from reliamsg.lab.chaos.processes import App, LineCounter, Run, SiteSpec
from tests.runs.collected import keep

__all__ = [
    "App",
    "LineCounter",
    "Run",
    "SiteSpec",
    "assert_complete",
    "run_in",
    "wait_for",
    "wait_until_reading",
]


def wait_for(condition: Callable[..., Any], seconds: float, what: str) -> Any:
    """Wait until `condition` is true, and return its value: :func:`reliamsg.lab.chaos.waiting.wait_for`.

    The condition takes no arguments, but a lambda may bind variables of a loop as defaults."""
    return waiting.wait_for(condition, what, seconds)


def wait_until_reading(consumer: Consumer) -> None:
    """Wait until a consumer reads all its sites: from then on an MQTT site keeps messages for it."""
    wait_for(
        lambda: all(site.state == "connected" for site in consumer.status().sites.values()),
        20,
        "all sites are read",
    )


@contextlib.contextmanager
def run_in(directory: Path) -> Iterator[Run]:
    """A run whose applications exit with it, and whose evidence is kept after its check."""
    with processes.run_in(directory) as run:
        yield run
    if run.checked:
        keep(run.directory)


def assert_complete(report: Report) -> None:
    """Nothing lost, duplicated, reordered, invented or pending."""
    assert report.verdict == "complete", report.text()
    messages = report.as_dict()["messages"]
    for kind in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending"):
        assert messages[kind] == 0, report.text()
