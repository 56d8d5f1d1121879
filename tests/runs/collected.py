"""Keeps the evidence of finished runs, for a later audit of all of them in one session.

Below ``$RELIAMSG_RUNS``, if that is set, each run has a directory named after its test: ``journals/`` as its clients
exported them, ``logs/`` of its applications, ``report.json``, the plain checker's report on the journals alone, and
``report-with-logs.json``, its report on both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from reliamsg.checker import Expect, Report, check_directory

__all__ = ["keep"]


def keep(directory: Path) -> Path | None:
    """Keep the evidence of the finished run in `directory`; returns its new location, or None if it is not
    requested."""
    place = os.environ.get("RELIAMSG_RUNS")
    if not place:
        return None
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].rpartition("::")[2]
    kept = _free(Path(place), re.sub(r"[^\w.-]+", "-", test).strip("-"))
    shutil.copytree(directory / "journals", kept / "journals")
    (kept / "logs").mkdir()
    for log in sorted(directory.glob("*.ndjson")):
        shutil.copy(log, kept / "logs")
    with_logs = check_directory(kept, Expect(drained=True))
    _write(kept / "report-with-logs.json", with_logs)
    _write(
        kept / "report.json", check_directory(kept / "journals", Expect(drained=True))
    )  # last: it shows that everything is there
    return kept


def _free(place: Path, name: str) -> Path:
    """A new directory: a test may make several runs."""
    number = 1
    while True:
        kept = place / (name if number == 1 else f"{name}-{number}")
        try:
            kept.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return kept


def _write(path: Path, report: Report) -> None:
    path.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
