"""The command ``simulate``."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from reliamsg.checker import Expect, check_directory
from reliamsg.cli.status import Status
from reliamsg.producer.settings import Settings
from reliamsg.simulation import producer
from tests.cli.commands import json_of, refused, reliamsg, reliamsg_here, succeeded

pytestmark = pytest.mark.integrations


def test_journals_are_kept_for_one_audit_of_all(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    drawn = ("--seeds", "0:3", "--messages", "20", "--faults", "none")
    told = succeeded(reliamsg("lab", "simulate", *drawn, "--keep", runs, "--json"))
    assert json_of(told)["seeds"] == 3
    for seed in range(3):
        assert check_directory(runs / f"seed-{seed}", Expect(drained=True)).verdict == "complete"
    report = check_directory(runs, Expect(drained=True))
    assert report.verdict == "complete"
    assert report.messages.enqueued == 60
    assert all(name.split("-")[1] in ("0", "1", "2") for name in report.messages.delivered)


def test_journals_are_not_put_beside_others(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    refused(reliamsg_here("lab", "simulate", "--seed", "0", "--keep", tmp_path), Status.USAGE, "not empty")


def test_the_line_that_is_printed_for_a_failing_run_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With producers that report messages as published when one site has confirmed them, whatever their policy: several
    runs with the faults that their seeds draw, with selected ones, and a reduced one."""

    monkeypatch.setattr(producer, "Settings", lambda **chosen: Settings(**{**chosen, "confirm": "any"}))
    chosen = ("--faults", "restored,crash,control_lost,delay,restart,confirm_and_lose,misroute")
    printed: list[tuple[str, str]] = []
    for more in (("--no-shrink",), chosen):
        done = reliamsg_here("lab", "simulate", "--seeds", "0:8", "--messages", "20", *more)
        assert done.returncode == Status.INCOMPLETE
        printed += _failed(done.stdout.decode())
    assert len(printed) >= 4
    assert len({line for line, _ in printed}) >= 4
    for line, violation in printed:
        assert " --faults " in line
        program, *arguments = shlex.split(line)
        assert program == "reliamsg"
        arguments = [each for each in arguments if each != "--trace"]
        again = reliamsg_here(*arguments, "--no-shrink")
        assert again.returncode == Status.INCOMPLETE, line
        assert (line, violation) in _failed(again.stdout.decode())


def _failed(output: str) -> list[tuple[str, str]]:
    """The line that reproduces each failing run, and its first violation."""
    found = re.findall(r"^seed \d+: .*\n  (\S+: .*)\n(?:  .*\n)*?  again: (.*)$", output, re.MULTILINE)
    return [(line, violation) for violation, line in found]


def test_what_the_simulator_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    refused(reliamsg_here("lab", "simulate", "--seeds", "0:1"), Status.USAGE, "pip install 'reliamsg[zstd]'")
