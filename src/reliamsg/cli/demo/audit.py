"""A second opinion at the end of a run: the Spark audit of the same journals, if Java and PySpark are installed."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.checker import Report
from reliamsg.cli.audit import missing
from reliamsg.cli.demo.plan import GROUPS, PRODUCERS, TOPIC
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Failure
from reliamsg.lab.process import Child

__all__ = ["Audit", "audit"]

_SECONDS = 600.0
"""Time limit for the audit. It takes 15 seconds, and several times that on a busy machine."""
_COMPARED = ("verdict", "messages", "streams", "sites")
"""The counts that must be equal. The plain checker also reads the applications' logs, so its counts prove that the
journals agree with the applications."""


@dataclass(frozen=True)
class Audit:
    """The outcome of the audit."""

    not_run: str = ""
    """Why it did not run; empty if it did."""
    verdict: str = ""
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)
    """The differences between the audit and the plain checker."""

    @property
    def agrees(self) -> bool:
        """Whether the audit does not contradict the plain checker's report."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        if self.not_run:
            return {"not_run": self.not_run}
        return {
            "verdict": self.verdict,
            "equal": self.agrees,
            "differences": self.differences,
            "seconds": round(self.seconds, 1),
        }


def audit(journals: Path, out: Path, report: Report, stop: StopRequest, *, keep: bool) -> Audit:
    """Audit the segments below `journals` in a separate process, and compare the outcome with `report`.

    Writes the output of the process to `out`, and with `keep` also tables and an HTML report. Takes ten seconds or
    more, unless `stop` is set.
    """
    if not_run := missing():
        return Audit(not_run=not_run)
    out.mkdir(parents=True)
    expected = [f"producer={name}" for name in PRODUCERS] + [f"group={name}:{TOPIC}" for name in GROUPS]
    command = [sys.executable, "-m", "reliamsg.audit", str(journals), "--drained", "--json"]
    command += ["--out", str(out / "audit")] if keep else []
    command += [part for name in expected for part in ("--expect", name)]
    started = time.monotonic()
    child = Child("the audit", command, output=out / "output.txt")
    try:
        while child.alive and time.monotonic() < started + _SECONDS:
            if stop.wait(0.1):
                raise Failure(stop.status, "interrupted; all processes were stopped")
    finally:
        child.kill()
    seconds = time.monotonic() - started
    last = ((out / "output.txt").read_text().strip().splitlines() or ["no output"])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        return Audit(seconds=seconds, differences=[f"the audit did not finish: {last} ({child.output})"])
    return Audit("", found["verdict"], seconds, _differences(report.as_dict(), found))


def _differences(plain: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [
        f"{name}: the checker says {plain[name]}, the audit {found.get(name)}"
        for name in _COMPARED
        if plain[name] != found.get(name)
    ]
