"""simulate, as a command."""

from __future__ import annotations

from pathlib import Path

from reliamsg.cli.status import Status
from reliamsg.verify import check_directory
from tests.cli.commands import json_of, refused, reliamsg, reliamsg_here, succeeded


def test_journals_are_kept_for_one_audit_of_all(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    told = succeeded(
        reliamsg(
            "simulate", "--seeds", "0:3", "--messages", "20", "--faults", "none", "--keep", runs, "--json"
        )
    )
    assert json_of(told)["seeds"] == 3
    for seed in range(3):
        assert check_directory(runs / f"seed-{seed}").verdict == "complete"
    report = check_directory(runs)
    assert report.verdict == "complete"
    assert report.messages.enqueued == 60
    assert all(name.split("-")[1] in ("0", "1", "2") for name in report.messages.delivered)


def test_journals_are_not_put_beside_others(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    refused(reliamsg_here("simulate", "--seed", "0", "--keep", tmp_path), Status.USAGE, "not empty")
