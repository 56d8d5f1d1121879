"""The truth about made journals is what both judges find in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.made_journals import DISTURBANCES, FAULTS, Traffic, write_journals
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.checker import Expect, check_directory
from reliamsg.checker.journals import collect
from tests.audit.equality import judged_streams

TRAFFIC = {
    "undisturbed": Traffic(7, 30, 5, producers=3, segment_rows=100),
    "disturbed": Traffic(40, 24, 10, producers=3, segment_rows=500, disturbed=0.5, faults=len(FAULTS)),
    "a site lacks every second range": Traffic(2, 30, 5, site_gaps=True),
    "no row continues another": Traffic(1, 50, 1, apart=True),
    "many streams": Traffic(300, 1, 10, producers=2),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_both_judges_find_the_truth(name: str, tmp_path: Path) -> None:
    traffic = TRAFFIC[name]
    truth = write_journals(tmp_path, traffic)
    assert json.loads((tmp_path / "truth.json").read_text())["messages"] == truth.messages
    report = check_directory(tmp_path, Expect(drained=True))
    wanted = {tuple(each) for each in truth.found}
    assert {
        (each.kind, *(each.stream or ("", "", 0)), each.group, each.first, each.last)
        for each in report.findings
    } == wanted
    counts = report.messages.enqueued, report.messages.delivered["group"], report.rows
    assert counts == (truth.messages, truth.delivered, truth.rows)
    clients, streams, _ = judged_streams(collect(tmp_path).chains, AuditExpect(drained=True))
    assert not clients.findings
    assert {
        (each.kind, *(each.stream or ("", "", 0)), each.group, each.first, each.last)
        for judged in streams
        for each in judged.findings
    } == wanted


def test_every_fault_and_disturbance_occurs_in_the_disturbed_ones(tmp_path: Path) -> None:
    truth = write_journals(tmp_path, TRAFFIC["disturbed"])
    assert {each[0] for each in truth.found} == {*FAULTS, "undeclared_gap"}
    assert len(DISTURBANCES) + len(FAULTS) <= 20, "half of the streams are disturbed"
