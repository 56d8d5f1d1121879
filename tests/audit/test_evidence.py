"""Mutilated evidence: one clear line each, as the plain checker has it, and a verdict that is never better."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.chains import Header, lines
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.verify import Expect as PlainExpect
from reliamsg.verify import check_directory
from tests.audit.mutilated import exported, of, rewritten


def truncated(journals: Path) -> None:
    path = of(journals, "producer")[1]
    path.write_bytes(path.read_bytes()[:-40])


def edited(journals: Path) -> None:
    path = of(journals, "producer")[1]
    path.write_bytes(path.read_bytes().replace(b'"last":', b'"last": ', 1))


def reordered(journals: Path) -> None:
    path = of(journals, "group")[1]
    header, one, other, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([header, other, one, *rest]))


def missing_in_the_middle(journals: Path) -> None:
    of(journals, "group")[1].unlink()


def missing_at_the_end(journals: Path) -> None:
    of(journals, "group")[-1].unlink()


def foreign(journals: Path) -> None:
    source = of(journals, "producer")[0]
    shutil.copy(source, of(journals, "group")[0].with_name(source.name))


def newer(journals: Path) -> None:
    path = of(journals, "producer")[1]
    rewritten(path, path.read_bytes().replace(b'"version":1', b'"version":2', 1))


def no_segment(journals: Path) -> None:
    (journals / "notes.ndjson").write_text('{"note": 1}\n')


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "cut: it has 11 whole rows instead of 12"),
    (edited, "edited or damaged: its bytes are not those that its name promises"),
    (reordered, "edited or damaged: its bytes are not those that its name promises"),
    (missing_in_the_middle, " are missing"),
    (missing_at_the_end, "a journal ends without being closed"),
    (foreign, "foreign: it lies among those of group"),
    (newer, "written by a newer version (form 2): update reliamsg"),
    (no_segment, "neither a journal's segment nor an application's log"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGE, ids=lambda each: getattr(each, "__name__", ""))
def test_damage_is_named_once(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    journals = exported(tmp_path)
    damage(journals)
    found, plain = audit(spark, journals), check_directory(journals).as_dict()
    assert sum(says in line for line in found["evidence"]["broken"]) == 1, found["evidence"]
    assert sorted(found["evidence"]["broken"]) == sorted(plain["evidence"]["broken"])
    assert found["evidence"]["missing"] == plain["evidence"]["missing"]
    assert found["verdict"] == plain["verdict"] == "unknown"
    assert found["messages"] == plain["messages"]


def test_a_segment_twice_is_counted_and_no_fault(spark: SparkSession, tmp_path: Path) -> None:
    journals = exported(tmp_path)
    source = of(journals, "producer")[1]
    (source.parent / "again").mkdir()
    shutil.copy(source, source.parent / "again" / source.name)
    found = audit(spark, journals)
    assert found["evidence"]["duplicated"] == 1
    assert found["verdict"] == "complete", found["findings"]


def test_clients_that_are_expected_and_absent(spark: SparkSession, tmp_path: Path) -> None:
    journals = exported(tmp_path)
    found = audit(spark, journals, expect=Expect(("nobody",), {"t": ["absentees"]}))
    plain = check_directory(journals, PlainExpect(producers=["nobody"], groups={"t": ["absentees"]}))
    assert "no journal of producer nobody" in found["evidence"]["missing"]
    assert "no journal of group absentees" in found["evidence"]["missing"]
    assert sorted(found["evidence"]["missing"]) == sorted(plain.as_dict()["evidence"]["missing"])
    assert found["verdict"] == plain.verdict == "unknown"


def test_no_journals_at_all(spark: SparkSession, tmp_path: Path) -> None:
    found = audit(spark, tmp_path)
    assert found["verdict"] == "unknown"
    assert found["evidence"]["missing"] == ["there are no journals"]


def test_paths_with_what_spark_takes_for_patterns(spark: SparkSession, tmp_path: Path) -> None:
    odd = tmp_path / "a b%20[c]{d}*"
    odd.mkdir()
    shutil.move(exported(tmp_path), odd / "journals")
    found = audit(spark, odd / "journals", out=odd / "out")
    assert found["verdict"] == "complete", found["evidence"]
    assert json.loads((odd / "out" / "verdict.json").read_text()) == found


def test_a_clone_s_chains_share_their_beginning() -> None:
    first, second = Header("a", None, "b1", 1, 5), Header("b", "a", "b1", 6, 9)
    other = Header("c", "a", "b2", 6, 7)
    assert lines([second, other, first]) == [[first, other], [first, second]]


def test_a_segment_without_its_parent_goes_on_where_its_boot_ended() -> None:
    first, other = Header("a", None, "b1", 1, 5), Header("c", None, "b2", 1, 7)
    orphan = Header("d", "lost", "b1", 10, 12)
    assert lines([orphan, other, first]) == [[other], [first, orphan]]
