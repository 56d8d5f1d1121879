"""The demo's output when something fails, and its counting."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from reliamsg.checker import AppRecord, Counts, Finding, Report
from reliamsg.checker.journals import read_chain
from reliamsg.cli.demo.audit import Audit, audit
from reliamsg.cli.demo.director import Outcome
from reliamsg.cli.demo.display import LiveDisplay
from reliamsg.cli.demo.plan import GROUPS, SITES, TOPIC, Plan
from reliamsg.cli.demo.summary import exit_code, text
from reliamsg.cli.demo.watch import PlainCounts, Watch
from reliamsg.cli.signals import StopRequest
from reliamsg.errors import StoreCorrupt
from reliamsg.lab import Mosquitto
from reliamsg.message import Stream
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from tests.cli.commands import environment
from tests.patience import wait_for


def plan(directory: Path) -> Plan:
    return Plan(
        str(directory), 10, {"dc1": "mqtt://h", "dc2": "mqtt://h"}, "mqtt://h", {"dc1": {}, "dc2": {}}
    )


AGREES = Audit(verdict="complete", seconds=20.0)


def outcome(
    directory: Path, report: Report, *, queued: int = 5, plain_lost: int = 3, audit: Audit = AGREES
) -> Outcome:
    watch = Watch(plan(directory))
    for number in range(1, 11):
        watch.plain.add(AppRecord("publish", "ok", producer="A", n=number))
        if number > plain_lost:
            watch.plain.add(AppRecord("delivered", producer="A", n=number))
    return Outcome(report, audit, watch, {"primary": queued, "secondary": 5}, plain_lost, 2, 1.0, True)


def counted(lost: int) -> Counts:
    return Counts(enqueued=20, delivered={"primary": 20 - lost, "secondary": 20}, lost=lost)


def test_complete(tmp_path: Path) -> None:
    found = outcome(tmp_path, Report(messages=counted(0)))
    assert exit_code(found) == 0
    shown = text(found, plan(tmp_path), "embedded", "embedded broker")
    assert "COMPLETE: nothing lost" in shown
    assert "5 for primary, 5 for secondary" in shown
    assert "COMPLETE: equal to the checker in verdict and every count" in shown


def test_without_spark_it_says_so(tmp_path: Path) -> None:
    found = outcome(tmp_path, Report(messages=counted(0)), audit=Audit(not_run="Java is not installed"))
    assert exit_code(found) == 0
    assert "not run: Java is not installed" in text(found, plan(tmp_path), "embedded", "embedded broker")


def test_an_audit_that_differs_leaves_the_outcome_open(tmp_path: Path) -> None:
    differs = Audit(verdict="lost", differences=["verdict: the checker says complete, the audit lost"])
    found = outcome(tmp_path, Report(messages=counted(0)), audit=differs)
    assert exit_code(found) == 2
    shown = text(found, plan(tmp_path), "embedded", "embedded broker")
    assert "DIFFERS" in shown
    assert "the checker says complete, the audit lost" in shown


TOLD = {
    name: Report(messages=counted(0)).as_dict()[name] for name in ("verdict", "messages", "streams", "sites")
}


@pytest.mark.parametrize(
    ("prints", "says"),
    [
        ("a warning\n" + json.dumps(TOLD), ""),
        (json.dumps({**TOLD, "streams": 7}), "streams: the checker says 0, the audit 7"),
        ("reliamsg: Spark can't start: no memory", "did not finish: reliamsg: Spark can't start: no memory"),
        ("", "no output"),
    ],
)
def test_the_audit_is_a_process_whose_last_line_is_compared(
    prints: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in: the real audit takes half a minute, and agrees in tests/audit and, at full size, in
    test_demo.py."""
    arguments, python = tmp_path / "arguments", tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {arguments}\necho {shlex.quote(prints)}\n")
    python.chmod(0o755)
    monkeypatch.setattr("reliamsg.cli.demo.audit.missing", str)
    monkeypatch.setattr("reliamsg.cli.demo.audit.sys", SimpleNamespace(executable=str(python)))
    report = Report(messages=counted(0))
    with StopRequest() as stop:
        found = audit(tmp_path / "journals", tmp_path / "out", report, stop, keep=True)
    assert found.agrees == (not says)
    assert says in " ".join(found.differences)
    words = arguments.read_text().split("\n")
    assert words[:3] == ["-m", "reliamsg.audit", str(tmp_path / "journals")]
    assert {"--json", "--out", "producer=A", "producer=B", "group=primary:payments"} <= set(words)


@pytest.mark.parametrize("kind", ["lost", "out_of_order", "duplicate", "phantom"])
def test_lost_or_violated(kind: str, tmp_path: Path) -> None:
    finding = Finding(kind, f"it is {kind}", Stream("A", "payments"), "primary", epoch=1, first=3, last=4)
    found = outcome(tmp_path, Report([finding], messages=counted(2)))
    assert exit_code(found) == 1
    shown = text(found, plan(tmp_path), "mosquitto", "Mosquitto")
    assert found.report.verdict.upper() in shown
    assert f"it is {kind}" in shown


def test_unknown(tmp_path: Path) -> None:
    found = outcome(tmp_path, Report([Finding("missing", "no journal of group primary")]))
    assert exit_code(found) == 2
    assert "no journal of group primary" in text(found, plan(tmp_path), "mixed", "Mosquitto")


@pytest.mark.parametrize(("queued", "plain_lost"), [(0, 3), (5, 0)])
def test_faults_that_hit_nothing_prove_nothing(queued: int, plain_lost: int, tmp_path: Path) -> None:
    found = outcome(tmp_path, Report(messages=counted(0)), queued=queued, plain_lost=plain_lost)
    assert exit_code(found) == 2
    assert "proves nothing" in text(found, plan(tmp_path), "rabbitmq", "Mosquitto")


def test_counts_of_plain_clients() -> None:
    counts = PlainCounts()
    for number in (1, 2, 3, 4):
        counts.add(AppRecord("publish", "invoked", producer="A", n=number))
    for number in (1, 2, 3):
        counts.add(AppRecord("publish", "ok", producer="A", n=number))
    for number in (1, 3, 2, 3):
        counts.add(AppRecord("delivered", producer="A", n=number))
    assert counts.as_dict() == {
        "published": 4, "confirmed": 3, "delivered": 3, "lost": 0, "duplicates": 1, "out_of_order": 1,
    }  # fmt: skip
    counts.add(AppRecord("publish", "ok", producer="A", n=4))
    assert counts.lost == 1


def test_the_live_table_shows_numbers_and_events(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    display = LiveDisplay()
    with display:
        display.begin(plan(tmp_path))
        watch = Watch(plan(tmp_path))
        watch.published["A"] = 1234
        display.look(watch)
        display.event("dc1 is gone")
    shown = capfd.readouterr().err
    assert "1,234" in shown
    assert "dc1 is gone" in shown


def test_a_producer_that_is_done_stays_until_it_is_ended(
    tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    """A group that is restarted must still hear from it: otherwise nothing proves what dc1 lost for that group."""
    shown = Plan(
        str(tmp_path), 20, {name: make_mosquitto().url for name in SITES}, "", {name: {} for name in SITES}
    )
    shown.evidence.mkdir()
    for site in shown.sites():
        create_group(site, [Binding(TOPIC, 0, group) for group in GROUPS], 20)

    def published() -> int:
        try:
            rows = read_chain(shown.outbox("A")).rows
        except (OSError, StoreCorrupt):
            return 0  # it is just being created
        return sum(row.last - row.first + 1 for row in rows if row.kind == "published")

    process = subprocess.Popen(
        [sys.executable, "-m", "reliamsg.cli.demo.producing", shown.as_json(), "A"], env=environment()
    )
    try:
        wait_for(
            lambda: process.poll() is None and published() == shown.messages, "all is published", 30, 0.1
        )
        time.sleep(1.0)  # it would have exited by now
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
