"""The journals of the real runs, all in one Spark session, judged as by the plain checker and as the applications saw.

The runs on real brokers (``tests/runs``) keep what they leave below ``$RELIAMSG_RUNS``; ``make test`` runs them first.
Runs use the same names, so each run's clients and topics get its own name behind theirs, and one audit judges all.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.store.journal import JournalRow
from reliamsg.verify import check_directory
from reliamsg.verify.journals import collect
from tests.audit.equality import shared
from tests.audit.mutilated import written

NEEDED = {
    "test_two_accounts-wiped", "test_nothing_is_lost_when_a_site_forgets-mosquitto",
    "test_nothing_is_lost_when_a_site_forgets-rabbitmq", "test_output_equals_input",
}  # fmt: skip
"""Some that must be there, so that a forgotten step does not pass for a proof."""
SEVERAL = ("test_takeover", "test_restored", "test_both_clones")
"""Runs in which clients have several files each: they are judged where they are made, by the plain checker."""


@pytest.fixture(scope="module")
def kept() -> list[Path]:
    place = os.environ.get("RELIAMSG_RUNS")
    assert place, "RELIAMSG_RUNS names no directory with the journals of tests/runs: see 'make test'"
    found = sorted(each for each in Path(place).iterdir() if (each / "report.json").exists())
    assert {each.name for each in found} >= NEEDED
    return [each for each in found if not each.name.startswith(SEVERAL)]


@pytest.fixture(scope="module")
def renamed(kept: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All journals, each run's with a name of its own behind every client and topic."""
    place = tmp_path_factory.mktemp("runs")
    for number, run in enumerate(kept):
        chains = collect(run / "journals").chains
        assert len({(chain.role, chain.client) for chain in chains}) == len(chains), f"{run}: copies"
        for chain in chains:
            rows = [_renamed(row, f"~{number}") for row in chain.rows]
            written(place / run.name, chain.role, f"{chain.client}~{number}", rows, 10_000)
    return place


def _renamed(row: JournalRow, tail: str) -> JournalRow:
    detail = dict(row.detail or {})
    if isinstance(detail.get("topics"), list):
        detail["topics"] = [topic + tail for topic in detail["topics"]]
    if isinstance(detail.get("groups"), dict):
        detail["groups"] = {
            topic + tail: [name + tail for name in names] for topic, names in detail["groups"].items()
        }
    names = {name: value + tail for name in ("producer", "topic", "group") if (value := getattr(row, name))}
    return replace(row, **names, detail=detail or None)


@pytest.fixture(scope="module")
def verdict(spark: SparkSession, renamed: Path) -> dict[str, Any]:
    return audit(spark, renamed)


@pytest.mark.timeout(300)
def test_all_are_judged_as_by_the_plain_checker(verdict: dict[str, Any], renamed: Path) -> None:
    assert shared(verdict) == shared(check_directory(renamed).as_dict())


@pytest.mark.timeout(300)
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
            each for each in verdict["findings"] if f"{tail}'" in str(each) or f"{tail})" in str(each)
        ]
        assert bool(findings) == (alone["verdict"] != "complete"), (run.name, findings)
        enqueued += alone["messages"]["enqueued"]
    assert verdict["messages"]["enqueued"] == enqueued > 0
