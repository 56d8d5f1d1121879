"""``reliamsg audit --follow``: repeated audits with a state, killed at any time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from reliamsg.audit.__main__ import main
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.verdict import line, status
from reliamsg.errors import JournalTargetError
from reliamsg.trust import Owner
from tests.audit.generated import journals
from tests.audit.local_spark import local_spark
from tests.audit.test_command import audit as command
from tests.audit.test_kept import in_pieces, moved, shown, without_incidents, written
from tests.patience import wait_for
from tests.signed import key_of, keys_file


class Follower:
    """The command, on the journals and with the state and output of a directory."""

    def __init__(self, place: Path) -> None:
        self._out = place / "out"
        self._log = (place / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reliamsg", "audit", str(place / "journals"), "--state", str(place / "state"),
             "--out", str(self._out), "--follow", "0.2", "--drained", "--master", "local[2]"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def verdict(self) -> dict[str, Any]:
        """The one in the output now; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads((self._out / "verdict.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def stop(self, number: int) -> int:
        self._process.send_signal(number)
        code = self._process.wait(120)
        self._log.close()
        return code


@pytest.fixture
def followers(tmp_path: Path) -> Iterator[list[Follower]]:
    found: list[Follower] = []
    yield found
    for each in found:
        each.kill()


@pytest.mark.integrations
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))])
def test_killed_at_any_time_it_comes_to_the_verdict_of_one_audit_of_everything(
    spark: SparkSession, tmp_path: Path, followers: list[Follower], seed: int
) -> None:
    (tmp_path / "journals").mkdir()
    written(tmp_path / "all", seed)
    paths = sorted((tmp_path / "all").rglob("*.ndjson"))
    rng = random.Random(seed)
    rng.shuffle(paths)
    followers.append(Follower(tmp_path))
    for number, piece in enumerate(in_pieces(paths, rng, 4)):
        moved(piece, tmp_path / "all", tmp_path / "journals")
        if number < 3:
            time.sleep(rng.uniform(1.0, 12.0))  # starting takes about half of that, and each audit a second
            followers[-1].kill()
            followers[-1] = Follower(tmp_path)
    whole = audit(spark, tmp_path / "journals", expect=Expect(drained=True))
    expected = without_incidents(shown(whole))
    wait_for(lambda: without_incidents(shown(followers[-1].verdict())) == expected, "its verdict is that", 60)
    assert followers.pop().stop(signal.SIGTERM) == status(whole)


@pytest.mark.integrations
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_the_last_verdict(tmp_path: Path, followers: list[Follower], number: int) -> None:
    journals(5, "-x").write(tmp_path / "journals", random.Random(5))
    followers.append(Follower(tmp_path))
    wait_for(lambda: followers[-1].verdict().get("verdict") == "complete", "it is complete", 60)
    assert followers.pop().stop(number) == 0
    said = (tmp_path / "log").read_text().splitlines()
    assert len(said) == 1, "nothing has changed since"
    assert said[0].startswith("complete through ")


def test_it_needs_a_state(tmp_path: Path) -> None:
    done = command(tmp_path, "--follow", "1")
    assert done.returncode == 64
    assert "--follow needs --state" in done.stderr


def test_a_line_names_what_is_wrong() -> None:
    verdict = {
        "verdict": "unknown", "through": "2026-11-21T10:15:02.250417Z",
        "held_by": [{"role": "group", "client": "billing", "why": "…", "through": "…"}],
        "messages": {
            "enqueued": 20_000, "proven": 5, "lost": 0, "declared_gaps": 3, "duplicates": 0, "out_of_order": 0,
            "phantom": 0, "pending": 7, "dead_lettered": 0,
        },
        "evidence": {"missing": ["x"], "broken": ["y"]}, "window": {"since": None, "accepted": 0},
    }  # fmt: skip
    assert line(verdict) == (
        "unknown (whole through 2026-11-21T10:15:02.250417Z): 20,000 messages, 5 proven, declared gaps 3, pending 7, 2"
        " lines of missing or damaged evidence; held by group billing"
    )


def followed(
    place: Path, monkeypatch: pytest.MonkeyPatch, audited: Callable[..., dict[str, Any]], *options: str
) -> int:
    """The exit code of the command in this process, with another audit, which has to end it by a signal."""

    @contextmanager
    def no_session(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr("reliamsg.audit.__main__._session", no_session)
    monkeypatch.setattr("reliamsg.audit.__main__.audit", audited)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        return main([str(place / "journals"), "--state", str(place / "state"), "--follow", "0.01", *options])
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(each, handler)


def test_keys_may_be_added_between_two_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = journals(5, "-x")
    owners: list[Owner] = [(role, name) for role, name, _ in run.clients]
    run.write(tmp_path / "journals", random.Random(5), key_of)
    keys_file(tmp_path / "keys", owners[1:])
    verdicts: list[str] = []

    def audited(*_: object, expect: Expect, **__: object) -> dict[str, Any]:
        found = audit(local_spark(1), tmp_path / "journals", expect=replace(expect, drained=True))
        verdicts.append(found["verdict"])
        if len(verdicts) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        keys_file(tmp_path / "keys", owners)
        return found

    assert followed(tmp_path, monkeypatch, audited, "--journal-keys", str(tmp_path / "keys")) == 0
    assert verdicts == ["unknown", "complete"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "f"),
        Py4JError("x\nOSError: [Errno 28] No space left on device: 'f'\n"),
        Py4JError("x\nFileNotFoundError: [Errno 2] No such file or directory: 'f'\n"),
        JournalTargetError("[Errno 5] j: can't be read: Input/output error (j/role=group)"),
    ],
    ids=["driver", "task", "archived", "unreadable"],
)
def test_it_goes_on_after_a_failure_that_need_not_last(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the driver or a task meets it: also a segment that is archived while an audit reads it."""
    journals(5, "-x").write(tmp_path / "journals", random.Random(5))
    outcomes: list[Exception | None] = [error, None]

    def audited(*_: object, **__: object) -> dict[str, Any]:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        os.kill(os.getpid(), signal.SIGTERM)
        return audit(local_spark(1), tmp_path / "journals", expect=Expect(drained=True))

    assert followed(tmp_path, monkeypatch, audited) == 0
    said = capsys.readouterr()
    assert said.err.startswith("reliamsg: [Errno ")
    assert said.out.startswith("complete through ")
    assert not outcomes
