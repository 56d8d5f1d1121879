"""The time from publishing to acknowledging a message: exact numbers, the same from both judges."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reliamsg.audit import kept
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.verdict import table
from reliamsg.checker import Chain, Expect, check_directory
from reliamsg.protocol.histogram import bucket
from tests.audit.equality import by_audit, differences, plain
from tests.audit.local_spark import local_spark
from tests.audit.small import clients, written
from tests.audit.test_kept import moved

HOP = "publish_to_acknowledged"
NOW_US = 2**60
SECOND = 1_000_000
BEHIND = bucket(-3 * SECOND)
"""The group's clock is behind the producer's by more than a message took."""


def bound(number: int) -> float:
    """The upper bound of a bucket, in seconds."""
    return float(round(2 ** ((number + 1) / 4) / 1e6, 6))


def run(acknowledged: list[tuple[int, int, dict[int, int] | None]]) -> list[Chain]:
    """A producer and a group that acknowledges a hundred messages with these histograms."""
    return [each.add("closed").chain() for each in clients(acknowledged)]


def test_both_judges_have_exact_numbers(tmp_path: Path) -> None:
    """Of ten messages, the time was negative; of four others, unknown."""
    chains = run(
        [(1, 50, {bucket(2 * SECOND): 50}), (51, 60, {BEHIND: 10}), (61, 64, None),
         (65, 100, {bucket(2 * SECOND): 35, bucket(9 * SECOND): 1})]
    )  # fmt: skip
    assert BEHIND == 0
    expected = {
        "p50": bound(bucket(2 * SECOND)), "p95": bound(bucket(2 * SECOND)),
        "p99": bound(bucket(9 * SECOND)), "max": bound(bucket(9 * SECOND)),  # the last of 96
    }  # fmt: skip
    assert 2 < expected["p50"] < 2 * 1.2
    assert 9 < expected["max"] < 9 * 1.2
    one = plain(chains)
    assert one.latency == {HOP: expected}
    for seed in range(5):
        assert not differences(one, by_audit(chains, seed=seed))
    journals = tmp_path / "journals"
    written(journals, chains)
    verdict = audit(local_spark(1), journals, expect=AuditExpect(drained=True, now_us=NOW_US))
    report = check_directory(journals, Expect(drained=True, now_us=NOW_US))
    assert verdict["verdict"] == report.verdict == "complete"
    assert verdict["latency"] == report.as_dict()["latency"] == {HOP: expected}
    assert f"{HOP}: p50 {expected['p50']:.6g} s" in table(verdict)
    assert f"{HOP}: p50 {expected['p50']:.6g} s" in report.text()


def test_clocks_that_disagree_show_as_the_shortest_time() -> None:
    one = plain(run([(1, 100, {BEHIND: 100})]))
    assert one.latency[HOP] == dict.fromkeys(("p50", "p95", "p99", "max"), 1e-06)


def test_journals_without_these_times_stay_readable() -> None:
    chains = run([(1, 100, None)])
    one = plain(chains)
    assert one.latency == {}
    assert one.verdict() == "complete"
    assert not differences(one, by_audit(chains))


def test_the_state_of_audits_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the segments that had them are gone, and after what is kept was joined."""
    monkeypatch.setattr(kept, "MAX_PARTS", 1)
    chains = run([(1, 60, {bucket(2 * SECOND): 60}), (61, 100, {bucket(9 * SECOND): 40})])
    written(tmp_path / "all", chains)
    paths = sorted((tmp_path / "all").rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])
    expect = AuditExpect(now_us=NOW_US)
    for part in range(6):  # nothing is new to the last two
        shutil.rmtree(tmp_path / "journals", ignore_errors=True)
        (tmp_path / "journals").mkdir()
        moved(paths[part * 3 : part * 3 + 3], tmp_path / "all", tmp_path / "journals")
        verdict = audit(local_spark(part), tmp_path / "journals", state=tmp_path / "state", expect=expect)
    assert len(paths) == 13
    assert verdict["latency"].get(HOP) == {
        "p50": bound(bucket(2 * SECOND)), **dict.fromkeys(("p95", "p99", "max"), bound(bucket(9 * SECOND)))
    }  # fmt: skip
