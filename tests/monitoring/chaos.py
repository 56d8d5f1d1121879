"""Runs scenarios of ``reliamsg lab chaos`` while a real Prometheus scrapes every client, and compares the alerts that
fire with docs/reference/alerts.md: ``python -m tests.monitoring.chaos [SCENARIO...]``. All scenarios take the better
part of an hour.

The rules' durations are shortened, see :func:`~tests.monitoring.server.minutes_as_seconds`, since the faults of the
laboratory last for seconds. A fault that does not last as long as an alert's `for` leaves it pending, which is enough
to show that the fault meets its condition. What fires must be named on the page.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from reliamsg.lab.chaos.catalogue import find, scenarios
from reliamsg.lab.chaos.options import RunOptions
from reliamsg.lab.chaos.processes import App, Run
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.process import free_port
from tests.monitoring.page import due_alerts
from tests.monitoring.server import RULES, Prometheus, minutes_as_seconds

_SEED = 1
_add = Run.add


@contextmanager
def observed(server: Prometheus) -> Iterator[dict[str, Path]]:
    """Every application of a run is scraped. Yields the files that show whether each has exited, by instance."""
    ended: dict[str, Path] = {}

    def add(run: Run, module: str, config: dict[str, Any]) -> App:
        name, port = f"{run.directory.parent.name}-{Path(config['log']).stem}", free_port()
        until = ended[name] = run.directory / f"{name}.scraped-until"
        server.watch(name, port)
        more = {
            "scraped": module,
            "scraped_log": config["log"],
            "metrics_port": port,
            "scraped_until": str(until),
        }
        return _add(run, "tests.monitoring.scraped", {**config, **more})

    with mock.patch.object(Run, "add", add):
        yield ended


def alerts_of(scenario: str, server: Prometheus, directory: Path) -> tuple[set[str], set[str], bool]:
    """Runs a scenario. Returns the alerts that fired during it, those that were pending, and whether the run was ok."""
    start = time.time()
    with observed(server) as ended:
        result = run_scenario(
            find(scenario),
            RunOptions(directory / scenario, _SEED, keep=True, tries=1),
            on_event=lambda text: print(f"    {text}", file=sys.stderr, flush=True),
        )
    end = time.time()
    until = {name: path.stat().st_mtime if path.exists() else end for name, path in ended.items()}
    server.forget()
    found: dict[str, set[str]] = {}
    for state in ("firing", "pending"):
        found[state] = {
            alert
            for instance, alerts in server.fired(start, f'alertstate="{state}"').items()
            for alert, times in alerts.items()
            # A process that has exited as it should would not be a target any more. Earlier runs are over.
            if min(times) < until.get(instance, 0.0)
        }
    return found["firing"], found["pending"], result.ok


def main(names: list[str]) -> int:
    """Print a line for each scenario. Returns 1 if any contradicts the page."""
    directory, page, agrees = Path(tempfile.mkdtemp(prefix="reliamsg-alerts-")), due_alerts(), True
    with Prometheus(directory / "prometheus", minutes_as_seconds(RULES)) as server:
        for name in names or [entry.scenario.name for entry in scenarios()]:
            print(f"  {name}", file=sys.stderr, flush=True)
            fired, pending, ok = alerts_of(name, server, directory)
            due = page[name]
            as_due = fired <= due.alerts and (not due.certain or due.alerts <= fired | pending)
            agrees = agrees and as_due
            line = {
                "scenario": name,
                "as_due": as_due,
                "fired": sorted(fired),
                "pending": sorted(pending),
                "ok": ok,
            }
            print(json.dumps(line), flush=True)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
