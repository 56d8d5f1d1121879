"""Runs scenarios of ``reliamsg lab chaos`` while a real Prometheus scrapes every client, and compares the alerts that
fire with docs/reference/alerts.md: ``python -m tests.monitoring.chaos [SCENARIO...]``. All scenarios take an hour.

The rules' durations are shortened, see :func:`~tests.monitoring.server.minutes_as_seconds`: the clients of the
laboratory notice faults within seconds, and its faults last for seconds.
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
from tests.monitoring.server import RULES, Prometheus, minutes_as_seconds

_SEED = 1
_add = Run.add


@contextmanager
def observed(server: Prometheus) -> Iterator[dict[str, Path]]:
    """Every application of a run is scraped. Yields the files that show whether each has exited, by instance."""
    ended: dict[str, Path] = {}

    def add(run: Run, module: str, config: dict[str, Any]) -> App:
        name, port = Path(config["log"]).stem, free_port()
        until = ended[name] = run.directory / f"{name}.scraped-until"
        server.watch(name, port)
        more = {"scraped": module, "metrics_port": port, "scraped_until": str(until)}
        return _add(run, "tests.monitoring.scraped", {**config, **more})

    with mock.patch.object(Run, "add", add):
        yield ended


def alerts_of(scenario: str, server: Prometheus, directory: Path) -> tuple[set[str], dict[str, Any]]:
    """Runs a scenario. Returns the alerts that fired during it, and details."""
    start = time.time()
    with observed(server) as ended:
        result = run_scenario(
            find(scenario),
            RunOptions(directory / scenario, _SEED, keep=True, tries=1),
            on_event=lambda text: print(
                f"    {time.time() - start:5.1f} {text}", file=sys.stderr, flush=True
            ),
        )
    end = time.time()
    until = {name: path.stat().st_mtime if path.exists() else end for name, path in ended.items()}
    server.forget()
    seconds: dict[str, dict[str, str]] = {}
    for alert, instances in server.fired(start).items():
        for instance, times in instances.items():
            # A process that has exited as it should is not a target any more; instances of earlier runs are not, either.
            found = [at - start for at in times if at < until.get(instance, 0.0)]
            if found:
                seconds.setdefault(alert, {})[instance] = f"{found[0]:.0f}-{found[-1]:.0f} s"
    return set(seconds), {"ok": result.ok, "seconds": round(end - start), "alerts": seconds}


def main(names: list[str]) -> None:
    """Print a line for each scenario."""
    directory = Path(tempfile.mkdtemp(prefix="reliamsg-alerts-"))
    with Prometheus(directory / "prometheus", minutes_as_seconds(RULES)) as server:
        for name in names or [entry.scenario.name for entry in scenarios()]:
            print(f"  {name}", file=sys.stderr, flush=True)
            alerts, details = alerts_of(name, server, directory)
            print(json.dumps({"scenario": name, "raised": sorted(alerts), **details}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
