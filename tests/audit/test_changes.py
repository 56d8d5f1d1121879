"""The comparison with an earlier audit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.changes import compare, read_earlier
from reliamsg.audit.job import audit
from reliamsg.audit.output import Output
from tests.audit.generated import journals
from tests.audit.reported import night, reported


def verdict(*incidents: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"verdict": "lost", "messages": {"enqueued": 10, "delivered": {}, "lost": 3}, "incidents": list(incidents),
            "incidents_total": len(incidents)} | more  # fmt: skip


def incident(name: str, messages: int | None = 5, groups: tuple[str, ...] = ("g",)) -> dict[str, Any]:
    return {"id": name, "severity": "lost", "cause": "Lost", "first": 1, "last": messages, "messages": messages,
            "groups": list(groups)}  # fmt: skip


def compared(tmp_path: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(before))
    earlier = read_earlier(path)
    assert earlier is not None
    return compare(earlier, now)


def test_new_grown_and_gone(tmp_path: Path) -> None:
    before = verdict(incident("a"), incident("b"), incident("c"), incident("d"), incident("e", None))
    now = verdict(
        incident("a"), incident("b", 6), incident("c", 5, ("g", "h")), incident("e", None), incident("f"),
        messages={"enqueued": 20, "delivered": {}, "lost": 1},
    )  # fmt: skip
    found = compared(tmp_path, before, now)
    assert found["state"] == {"b": "grown", "c": "grown", "f": "new"}
    assert [each["id"] for each in found["gone"]] == ["d"]
    assert {each["name"]: (each["before"], each["now"]) for each in found["counts"]} == {
        "enqueued": (10, 20), "lost": (3, 1),
    }  # fmt: skip
    assert found["comparable"]
    assert not found["partial"]
    assert abs(found["written_us"] / 1e6 - (tmp_path / "verdict.json").stat().st_mtime) < 1


def test_a_verdict_without_incidents_is_not_compared(tmp_path: Path) -> None:
    before = verdict()
    del before["incidents"]
    found = compared(tmp_path, before, verdict(incident("a")))
    assert (found["comparable"], found["state"], found["gone"]) == (False, {}, [])


def test_incidents_beyond_those_listed_are_not_known(tmp_path: Path) -> None:
    assert compared(tmp_path, verdict(incident("a"), incidents_total=2), verdict(incident("a")))["partial"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"verdict": 3, "messages": {}}', "\xff", '{"verdict": "lost"', "[" * 100_000]
)
def test_other_content_is_no_verdict(tmp_path: Path, content: str) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(content.encode("latin-1"))
    assert read_earlier(path) is None
    assert read_earlier(tmp_path / "absent") is None


def test_two_audits_of_a_night(tmp_path: Path) -> None:
    """Losses that appear between two audits are new; everything else is as before."""
    before, _ = reported(night(lost=False))
    now, _ = reported(night())
    found = compared(tmp_path, before, now)
    (new,) = (each for each in now["incidents"] if found["state"].get(each["id"]) == "new")
    assert new["producer"] == "gateway-3"
    assert (list(found["state"].values()), found["gone"]) == (["new"], [])


def test_the_output_before_stays_until_the_next_one_is_complete(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit that is interrupted changes nothing. Between its first and its last file there is no verdict, but the
    next audit can still compare."""
    target, out = tmp_path / "journals", tmp_path / "out"
    journals(5, "-x").write(target, random.Random(5))
    audit(spark, target, out=out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Output, "_put_in_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            audit(spark, target, out=out)
    assert {path: path.read_bytes() for path in before} == before
    with monkeypatch.context() as patched:
        patched.setattr("reliamsg.audit.output.shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            audit(spark, target, out=out)
    assert not (out / "verdict.json").exists()
    assert read_earlier(out / ".verdict.json.earlier") is not None
    audit(spark, target, out=out)
    assert "Since the previous audit" in (out / "report.html").read_text()
    assert {each.name for each in out.iterdir()} == {
        "chains", "findings", "latency", "ranges", "sites", "verdict.json", "report.html",
    }  # fmt: skip
