"""What the control plane did is judged by Spark as by the plain checker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.verdict import table
from reliamsg.verify import check_directory
from tests.audit.generated import write_chains
from tests.verify.controlled import E2, E9, SCENARIOS


@pytest.mark.timeout(900)
def test_forks_are_told_and_all_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    """An outbox that was put back, of which nothing is missing: in the verdict, the report and both texts."""
    journals, out = tmp_path / "journals", tmp_path / "out"
    write_chains(journals, SCENARIOS["a restored outbox"].chains())
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
