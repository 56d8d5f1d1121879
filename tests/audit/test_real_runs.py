"""The journals of the real runs, in one Spark session: judged like the plain checker, and as the applications observed.

The runs on real brokers (``tests/runs``) keep their files below ``$RELIAMSG_RUNS``; ``make test`` runs them alongside
the audit's tests, and creates a file there when they are done. Runs use the same names, so each run's number is
appended to its clients and topics, and one audit judges all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.checker import Expect, check_directory
from reliamsg.simulation.journals import renamed_row
from reliamsg.store.segment import decode, encode, parse_name
from tests.audit.equality import shared
from tests.patience import wait_for

NEEDED = {
    "test_two_accounts-wiped", "test_nothing_is_lost_when_a_site_forgets-mosquitto",
    "test_nothing_is_lost_when_a_site_forgets-rabbitmq", "test_output_equals_input",
}  # fmt: skip
"""Some runs that must exist, so that a forgotten step does not pass for a proof."""

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
    """All journals, with each run's number appended to every client and topic."""
    place = tmp_path_factory.mktemp("runs")
    for number, run in enumerate(kept):
        _rename(run / "journals", place / run.name, f"~{number}")
    return place


def _rename(journals: Path, target: Path, tail: str) -> None:
    """Write a run's segments below `target`, with `tail` appended to all names.

    Each keeps its rows and its position after its parent: a client's several files, and copies of one, stay separate.
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
    return audit(spark, renamed, expect=AuditExpect(drained=True))


def test_all_are_judged_as_by_the_plain_checker(verdict: dict[str, Any], renamed: Path) -> None:
    assert shared(verdict) == shared(check_directory(renamed, Expect(drained=True)).as_dict())


def test_each_agrees_with_the_applications(verdict: dict[str, Any], kept: list[Path]) -> None:
    """The counts and findings of each run equal those of its own report, and of the report that also reads the logs."""
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
