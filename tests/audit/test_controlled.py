"""What the control plane did is judged by Spark as by the plain checker."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.verdict import table
from reliamsg.verify import Chain, check_directory
from tests.audit.equality import by_spark, differences, plain, shared
from tests.audit.fleet import renamed
from tests.audit.generated import segments
from tests.verify.controlled import E2, E9, SCENARIOS


def _chains(name: str) -> list[Chain]:
    number = list(SCENARIOS).index(name)
    return renamed(SCENARIOS[name].chains(), f"-{number}")


def _write(directory: Path, chains: list[Chain]) -> None:
    rng = random.Random(7)
    for chain in chains:
        for segment in segments(chain.role, chain.client, chain.rows, rng):
            path = directory / segment.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(segment.data)


@pytest.mark.timeout(600)
def test_scenarios_are_judged_alike(spark: SparkSession) -> None:
    """All of them at once, as one fleet."""
    chains = [chain for name in SCENARIOS for chain in _chains(name)]
    mine, theirs = plain(chains), by_spark(spark, chains)
    assert not differences(mine, theirs)
    assert mine.counts["saved_by_second_site", ""] > 0
    assert mine.sites["dc1"]["lost_after_confirm"] > 0


@pytest.mark.timeout(600)
def test_scenarios_from_segments(spark: SparkSession, tmp_path: Path) -> None:
    """The whole job, with what segments and expectations show."""
    _write(tmp_path, [chain for name in SCENARIOS for chain in _chains(name)])
    by_job, plainly = shared(audit(spark, tmp_path)), shared(check_directory(tmp_path).as_dict())
    found, others = by_job.pop("found"), plainly.pop("found")
    differ = [(each, others.get(each), found.get(each)) for each in sorted(found.keys() | others.keys())]
    assert [each for each in differ if each[1] != each[2]] == []
    assert by_job == plainly


@pytest.mark.timeout(600)
def test_forks_are_told_and_all_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    """An outbox that was put back, of which nothing is missing: in the verdict, the report and both texts."""
    journals, out = tmp_path / "journals", tmp_path / "out"
    _write(journals, SCENARIOS["a restored outbox"].chains())
    found = audit(spark, journals, out=out)
    assert found["verdict"] == json.loads((out / "verdict.json").read_text())["verdict"] == "complete"
    told = {(each["kind"], each["severity"], each["epoch"], each.get("group")) for each in found["findings"]}
    assert told == {("fork", "remark", E2, None), ("fork", "remark", E9, "g")}
    page = (out / "report.html").read_text()
    assert '<tr class="remark"><th scope="row">fork</th>' in page
    plainly = check_directory(journals)
    assert plainly.verdict == "complete"
    for line in (KINDS["fork"][1], f"they have epoch {E9} now", "it follows on the first, not on the third"):
        assert line in page
        assert line in table(found)
        assert line in plainly.text()
    assert table(found).count("  remark: ") == plainly.text().count("  remark: ") == 2
