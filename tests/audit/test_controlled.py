"""Spark judges the actions of the control plane like the plain checker."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.kinds import KINDS
from reliamsg.audit.verdict import table
from reliamsg.checker import Expect, check_directory
from tests.audit.equality import by_audit, differences, plain
from tests.audit.generated import write_chains
from tests.checker.controlled import E2, E9, SCENARIOS

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "audit.py"


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_is_judged_like_by_the_plain_checker(name: str) -> None:
    chains = SCENARIOS[name].chains()
    assert not differences(plain(chains), by_audit(chains))


@pytest.mark.integrations
@pytest.mark.timeout(900)
def test_forks_are_reported_and_everything_is_complete(
    kept_spark: list[SparkSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A restored outbox of which nothing is missing: in the verdict, the report and both texts.

    Uses the example, whose output is the same.
    """
    journals, out = tmp_path / "journals", tmp_path / "out"
    write_chains(journals, SCENARIOS["a restored outbox"].chains())
    monkeypatch.setattr("sys.argv", [str(PROGRAM), str(journals), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    text = capsys.readouterr().out
    assert ended.value.code == 0, text
    assert len(kept_spark) == 1
    found = json.loads((out / "verdict.json").read_text())
    assert found["verdict"] == "complete"
    told = {(each["kind"], each["severity"], each["epoch"], each.get("group")) for each in found["findings"]}
    assert told == {("fork", "remark", E2, None), ("fork", "remark", E9, "g")}
    page = (out / "report.html").read_text()
    assert '<tr class="remark"><th scope="row">fork</th>' in page
    plainly = check_directory(journals, Expect(drained=True))
    assert plainly.verdict == "complete"
    enqueued, delivered = plainly.messages.enqueued, plainly.messages.delivered["g"]
    assert (
        text == f"complete: {enqueued} messages in {plainly.streams} streams\n  delivered to g: {delivered}\n"
    )
    for line in (KINDS["fork"][1], f"they have epoch {E9} now", "it follows on the first, not on the third"):
        assert line in page
        assert line in table(found)
        assert line in plainly.text()
    assert table(found).count("  remark: ") == plainly.text().count("  remark: ") == 2
