"""The journals of the real runs, all in one Spark session, judged as by the plain checker and as the applications saw.

The runs on real brokers (``tests/runs``) keep what they leave below ``$RELIAMSG_RUNS``; ``make test`` runs them beside
the audit's tests, and says by a file there when they have ended.
Runs use the same names, so each run's clients and topics get its number behind theirs, and one audit judges all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.checker import check_directory
from reliamsg.simulation.journals import renamed_row
from reliamsg.store.segment import decode, encode, parse_name
from tests.audit.equality import shared
from tests.patience import wait_for

NEEDED = {
    "test_two_accounts-wiped", "test_nothing_is_lost_when_a_site_forgets-mosquitto",
    "test_nothing_is_lost_when_a_site_forgets-rabbitmq", "test_output_equals_input",
}  # fmt: skip
"""Some that must be there, so that a forgotten step does not pass for a proof."""

pytestmark = [pytest.mark.last, pytest.mark.timeout(3600)]
"""Seconds; the first test waits for the runs, and for Spark."""


@pytest.fixture(scope="module")
def kept() -> list[Path]:
    place = os.environ.get("RELIAMSG_RUNS")
    assert place, "RELIAMSG_RUNS names no directory with the journals of tests/runs: see 'make test'"
    wait_for(Path(place, "complete").exists, "the runs of tests/runs end", 600)
    found = sorted(each for each in Path(place).iterdir() if (each / "report.json").exists())
    assert {each.name for each in found} >= NEEDED
    return found


@pytest.fixture(scope="module")
def renamed(kept: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All journals, each run's with its number behind every client and topic."""
    place = tmp_path_factory.mktemp("runs")
    for number, run in enumerate(kept):
        _rename(run / "journals", place / run.name, f"~{number}")
    return place


def _rename(journals: Path, target: Path, tail: str) -> None:
    """Write a run's segments below `target`, with `tail` behind all names.

    Each keeps its rows and its place behind its parent: a client's several files, and copies of one, stay apart.
    """
    segments = []
    for path in journals.rglob("*.ndjson"):
        name = parse_name(path.name)
        assert name is not None, path
        segments.append((name.digest, *decode(path.read_bytes())))
    digests: dict[str | None, str] = {}
    for digest, header, rows in sorted(segments, key=lambda each: each[1].first_lsn):
        parent = digests.get(header.parent, header.parent)
        segment = encode(header.role, header.client + tail, [renamed_row(row, tail) for row in rows], parent)
        digests[digest] = segment.digest
        path = target / segment.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment.data)


@pytest.fixture(scope="module")
def verdict(spark: SparkSession, renamed: Path) -> dict[str, Any]:
    return audit(spark, renamed)


def test_all_are_judged_as_by_the_plain_checker(verdict: dict[str, Any], renamed: Path) -> None:
    assert shared(verdict) == shared(check_directory(renamed).as_dict())


def test_each_is_what_the_applications_saw(verdict: dict[str, Any], kept: list[Path]) -> None:
    """Counts and findings of each run are those of its own report, also of the one that reads the logs as well."""
    enqueued = 0
    for number, run in enumerate(kept):
        tail = f"~{number}"
        alone = json.loads((run / "report.json").read_text())
        with_logs = json.loads((run / "report-with-logs.json").read_text())
        delivered = {
            name.removesuffix(tail): count
            for name, count in verdict["messages"]["delivered"].items()
            if name.endswith(tail)
        }
        assert delivered == alone["messages"]["delivered"], run.name
        assert alone["messages"]["delivered"] == with_logs["messages"]["delivered"], run.name
        findings = [
            each
            for each in verdict["findings"]
            if each["severity"] != "remark" and (f"{tail}'" in str(each) or f"{tail})" in str(each))
        ]
        assert bool(findings) == (alone["verdict"] != "complete"), (run.name, findings)
        enqueued += alone["messages"]["enqueued"]
    assert verdict["messages"]["enqueued"] == enqueued > 0
