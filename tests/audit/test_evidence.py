"""Damaged evidence: one clear line each, as in the plain checker, and a verdict that is never better."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Opening, Part
from reliamsg.audit.job import audit
from reliamsg.audit.lineage import Placed, lines
from reliamsg.audit.tasks import MAX_FINDINGS
from reliamsg.checker import Expect as PlainExpect
from reliamsg.checker import check_directory
from reliamsg.store.head import Head, encode_head, head_path
from reliamsg.store.segment import decode, parse_name
from tests.audit.equality import shared
from tests.audit.generated import write_chains
from tests.audit.mutilated import a_day_off, of, of_run, rewritten, written
from tests.audit.test_equal import universe
from tests.audit.together import of_scenario
from tests.checker.controlled import SCENARIOS

pytestmark = pytest.mark.integrations
"""One audit of everything, which takes two minutes."""


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
    rewritten(path, path.read_bytes().replace(b'"version":2', b'"version":3', 1))


def no_segment(journals: Path) -> None:
    (journals / "notes.ndjson").write_text('{"note": 1}\n')


def sound(journals: Path) -> None:
    """No damage."""


def clock_a_day_off(journals: Path) -> None:
    """See where the run is made."""


def twice(journals: Path) -> None:
    source = of(journals, "producer")[1]
    (source.parent / "again").mkdir()
    shutil.copy(source, source.parent / "again" / source.name)


def _with_head(journals: Path, data: Callable[[Head], bytes]) -> None:
    """The producer's last segment is followed by a head."""
    segment = of(journals, "producer")[-1]
    header, rows = decode(segment.read_bytes())
    name = parse_name(segment.name)
    assert name is not None
    head = Head(
        role=header.role, client=header.client, boot=header.boot, lsn=header.last_lsn, digest=name.digest,
        wall_us=rows[-1].wall_last_us + 60_000_000,
    )  # fmt: skip
    (segment.parent.parent / f"head-{head.boot}.json").write_bytes(data(head))


def with_head(journals: Path) -> None:
    _with_head(journals, encode_head)


def damaged_head(journals: Path) -> None:
    _with_head(journals, lambda head: encode_head(head).replace(b'"wall_us":1', b'"wall_us":2'))


def misplaced_head(journals: Path) -> None:
    _with_head(journals, lambda head: encode_head(msgspec.structs.replace(head, client="somebody")))


def lonely_head(journals: Path) -> None:
    """Of a client whose segments are gone."""
    head = Head(role="group", client="gone-lonely_head", boot="9" * 16, lsn=3, digest="8" * 64, wall_us=5)
    path = journals / head_path(head.role, head.client, head.boot)
    path.parent.mkdir()
    path.write_bytes(encode_head(head))


def cloned(journals: Path) -> None:
    """A producer's file was copied after its first segment, and the copy was opened: one boot, and nothing more."""
    segment = of(journals, "producer")[0]
    header, rows = decode(segment.read_bytes())
    name = parse_name(segment.name)
    assert name is not None
    last = rows[-1]
    opened = replace(
        rows[0], lsn=last.lsn + 1, boot="c" * 16, wall_us=last.wall_us, wall_last_us=last.wall_us
    )
    written(journals, header.role, header.client, [opened], 12, name.digest)


CUT = " complete rows instead of "
OTHER_BYTES = "edited or damaged: its content does not match the hash in its name"
DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncated, CUT),
    (edited, OTHER_BYTES),
    (reordered, OTHER_BYTES),
    (missing_in_the_middle, " are missing"),
    (missing_at_the_end, "a journal ends without being closed"),
    (foreign, "misplaced: it is among those of group"),
    (newer, "written by a newer version (format 3): upgrade reliamsg"),
    (no_segment, "neither a journal's segment nor an application's log"),
    (cloned, "a journal ends without being closed"),
    (damaged_head, "edited or damaged: its content does not match its checksum"),
    (misplaced_head, "misplaced: it is among those of producer"),
    (lonely_head, "group gone-lonely_head: head-9999999999999999.json: there is no segment of this client"),
    (with_head, ""),
    (sound, ""),
    (twice, ""),
    (clock_a_day_off, ""),
]
"""The damage to a run's journals, and the expected lines; none if they are as good as before."""
ABSENT: dict[str, Any] = {"producers": ["nobody"], "groups": {"t": ["absentees"]}}
"""A producer, and a group of a topic, that are expected and left no journal."""


@pytest.fixture(scope="module")
def mutilated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each kind of damage, with the journals of a separate run, one with all scenarios, and one with
    random journals, clones and missing rows included."""
    # Here, a pattern of Spark's is a name.
    place = tmp_path_factory.mktemp("mutilated") / "a b%20[c]{d}*"
    for damage, _ in DAMAGE:
        name = damage.__name__
        change = a_day_off if damage is clock_a_day_off else list
        damage(of_run(place / name, f"-{name}", change=change))
    write_chains(place / "scenarios", [chain for name in SCENARIOS for chain in of_scenario(name)])
    rng = random.Random(0)
    for run in universe(0).runs[:40]:
        run.write(place / "random", rng)
    return place


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutilated") / "a b%20[c]{d}* out"


@pytest.fixture(scope="module")
def judged(spark: SparkSession, mutilated: Path, out: Path) -> dict[str, Any]:
    """All of them, and clients that are expected and absent, in one audit: starting one takes longer than
    judging them."""
    return audit(spark, mutilated, out=out, expect=Expect(drained=True, **ABSENT))


@pytest.mark.timeout(900)
def test_all_evidence_is_judged_as_by_the_plain_checker(judged: dict[str, Any], mutilated: Path) -> None:
    report = check_directory(mutilated, PlainExpect(drained=True, **ABSENT))
    by_spark, plain = shared(judged), shared(report.as_dict())
    found, others = by_spark.pop("found"), plain.pop("found")
    differ = [(each, others.get(each), found.get(each)) for each in sorted(found.keys() | others.keys())]
    assert [each for each in differ if each[1] != each[2]] == []
    assert by_spark == plain
    assert judged["evidence"]["duplicated"] == 1
    assert judged["findings_total"] < MAX_FINDINGS, "not all findings are here to be compared"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("damage", "says"), DAMAGE, ids=lambda each: getattr(each, "__name__", ""))
def test_damage_is_named_once_and_never_makes_a_verdict_better(
    judged: dict[str, Any], mutilated: Path, damage: Callable[[Path], None], says: str
) -> None:
    name = damage.__name__
    lines = [line for line in judged["evidence"]["broken"] if f"/{name}/" in line or f"-{name}: " in line]
    plain = check_directory(mutilated / name, PlainExpect(drained=True))
    if not says:
        assert lines == []
        assert plain.verdict == "complete", plain.text()
        assert not [each for each in judged["findings"] if f"-{name}" in str(each)]
        return
    assert sum(says in line for line in lines) == 1, lines
    assert plain.verdict != "complete"


@pytest.mark.timeout(900)
def test_clients_that_are_expected_and_absent(judged: dict[str, Any], out: Path) -> None:
    """In the evidence, which the test above compares with the plain checker's, and in the file."""
    assert "no journal of producer nobody" in judged["evidence"]["missing"]
    assert "no journal of group absentees" in judged["evidence"]["missing"]
    assert json.loads((out / "verdict.json").read_text()) == judged


@pytest.mark.timeout(900)
def test_no_journals_at_all(spark: SparkSession, tmp_path: Path) -> None:
    found = audit(spark, tmp_path, expect=Expect(("nobody",), drained=True))
    plain = check_directory(tmp_path, PlainExpect(drained=True, producers=["nobody"])).as_dict()
    assert found["verdict"] == plain["verdict"] == "unknown"
    assert found["evidence"]["missing"] == ["there are no journals", "no journal of producer nobody"]
    assert sorted(found["evidence"]["missing"]) == sorted(plain["evidence"]["missing"])


def placed(digest: str, parent: str | None, boot: str, first_lsn: int, last_lsn: int) -> Placed:
    """A segment as a part."""
    opening = Opening(boot, first_lsn, last_lsn, "opened", "0" * 16, 0, 0, None)
    part = Part(
        "producer", "p", [digest], parent, first_lsn, last_lsn, [opening], [], [], set(), set(), set(), set(), set(),
        {}, set(), set(), {}, 0, 0, [],
    )  # fmt: skip
    return Placed(ord(digest), part, "", "", "", 0)


def test_a_clone_s_chains_share_their_beginning() -> None:
    first, second = placed("a", None, "b1", 1, 5), placed("b", "a", "b1", 6, 9)
    other = placed("c", "a", "b2", 6, 7)
    assert lines([second, other, first]) == [[first, other], [first, second]]


def test_a_segment_without_its_parent_continues_where_its_boot_ended() -> None:
    first, other = placed("a", None, "b1", 1, 5), placed("c", None, "b2", 1, 7)
    orphan = placed("d", "lost", "b1", 10, 12)
    assert lines([orphan, other, first]) == [[other], [first, orphan]]
