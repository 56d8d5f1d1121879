"""A Prometheus on this machine that scrapes every second."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reliamsg.lab.process import Child, free_port, program, wait_until

__all__ = ["INTERVAL_S", "RULES", "Prometheus", "minutes_as_seconds"]

INTERVAL_S = 1.0
"""Between two scrapes, and between two evaluations of the rules."""
RULES = resources.files("reliamsg.metrics").joinpath("alerts.yml").read_text()


def minutes_as_seconds(rules: str) -> str:
    """The rules with every duration shortened to a sixtieth, so that a minute of operation takes a second of a test:
    each `for` (``5m``), each window (``[15m]``) and each threshold (``5 * 60``). The window of ReliamsgDown, a day,
    stays: it only limits how long an absent target is remembered."""
    return re.sub(r"\b(\d+)m\b", r"\1s", rules).replace("* 60", "* 1")


class Prometheus:
    """A context manager: a server with these rules. :meth:`watch` adds targets."""

    def __init__(self, directory: Path, rules: str) -> None:
        self._port = free_port()
        self._targets = directory / "targets"
        self._targets.mkdir(parents=True)
        (directory / "rules.yml").write_text(rules)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(directory / "rules.yml")],
            "scrape_configs": [
                {"job_name": "reliamsg", "file_sd_configs": [{"files": [f"{self._targets}/*.json"]}]}
            ],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # YAML, too
        self._command = [
            program("prometheus", "prometheus"), f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{self._port}",
        ]  # fmt: skip
        self._output = directory / "prometheus.log"
        self._child: Child | None = None

    def __enter__(self) -> Self:
        child = self._child = Child("prometheus", self._command, output=self._output)
        try:
            wait_until(self._ready, 60.0, "Prometheus is ready", child, 0.1)
        except BaseException:
            child.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.kill()

    def watch(self, instance: str, port: int) -> None:
        """Scrape this port, as `instance`. The server notices within five seconds."""
        target = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": instance}}]
        partial = self._targets / f"{instance}.new"
        partial.write_text(json.dumps(target))
        partial.rename(self._targets / f"{instance}.json")

    def forget(self, instance: str = "*") -> None:
        """Do not scrape this instance any more, or any."""
        for target in self._targets.glob(f"{instance}.json"):
            target.unlink()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The current values of an expression."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Its values at every second from `start` to `end`, times since 1970."""
        found: list[dict[str, Any]] = self._get(
            "query_range", query=expression, start=start, end=end, step=INTERVAL_S
        )["result"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that are pending or fire now."""
        found: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return found

    def fired(self, start: float, matchers: str = 'alertstate="firing"') -> dict[str, dict[str, list[float]]]:
        """The times at which alerts have fired since `start`, by instance and alert. `matchers`: of their labels."""
        found: dict[str, dict[str, list[float]]] = {}
        for series in self.query_range(f"ALERTS{{{matchers}}}", start, time.time()):
            labels = series["metric"]
            times = found.setdefault(labels["instance"], {}).setdefault(labels["alertname"], [])
            times.extend(at for at, _ in series["values"])
        return found

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def _get(self, what: str, **parameters: Any) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
