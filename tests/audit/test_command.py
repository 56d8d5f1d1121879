"""``reliamsg audit`` as a process: its output, its files, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from reliamsg.audit.__main__ import main
from reliamsg.audit.expect import Expect, parse_expect
from reliamsg.audit.times import parse_time
from reliamsg.audit.verdict import status, table
from reliamsg.checker import Expect as CheckerExpect
from reliamsg.checker import check_directory
from reliamsg.errors import ConfigError
from tests.audit.mutilated import exported
from tests.children import run_child

_SECONDS = 500


def audit(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_child(
        [sys.executable, "-m", "reliamsg", "audit", *map(str, arguments)],
        text=True,
        timeout=_SECONDS,
        env={**os.environ, **environment},
    )


@pytest.mark.spark
@pytest.mark.full  # the tests of the demo and the README start the same program, half a minute each
def test_a_verdict_as_json_and_its_files(tmp_path: Path) -> None:
    journals, out = exported(tmp_path), tmp_path / "out"
    done = audit(journals, "--drained", "--out", out, "--json", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["verdict"] == "complete"
    assert found == json.loads((out / "verdict.json").read_text())
    assert {each.name for each in out.iterdir() if not each.name.startswith(".")} == {
        "chains", "findings", "latency", "ranges", "sites", "verdict.json", "report.html",
    }  # fmt: skip
    plain = check_directory(journals, CheckerExpect(drained=True)).as_dict()
    for name in ("through", "clients", "messages", "streams", "sites", "latency", "rows", "lost_ranges"):
        assert found[name] == plain[name], name
    assert table(found).startswith(f"verdict: complete through {found['through']}\n")


@pytest.mark.parametrize(
    ("verdict", "expected"), [("complete", 0), ("accepted", 0), ("violated", 1), ("lost", 1), ("unknown", 2)]
)
def test_the_status_follows_the_verdict(verdict: str, expected: int) -> None:
    assert status({"verdict": "lost", "window": {"verdict": verdict}}) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["absent"], 66, "absent: no such directory"),
        ([], 64, "Missing argument 'JOURNALS'"),
        ([".", "--expect", "group=g"], 64, "use group=NAME:TOPIC"),
        ([".", "--until", "soon"], 64, "neither ISO 8601 nor µs since 1970"),
        ([".", "--retired", "till-4"], 64, "use NAME@SEGMENT"),
        ([".", "--max-skew", "-1"], 64, "-1.0 is not in the range x>=0"),
        ([".", "--journal-keys", "absent"], 64, "absent: No such file or directory"),
        ([".", "--unsigned-before", f"producer/p@{'0' * 64}"], 64, "--unsigned-before needs --journal-keys"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.splitlines()) == 1


def test_a_mistake_ends_the_process_with_that_code_and_line() -> None:
    done = audit("absent")
    assert done.returncode == 66
    assert done.stdout == ""
    assert "absent: no such directory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_java_one_line_names_the_package_to_install(tmp_path: Path) -> None:
    done = audit(tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 69
    assert "the audit needs Java 17 or 21" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_is_that_of_the_audit() -> None:
    done = audit("--help")
    assert done.returncode == 0
    assert "--until" in done.stdout
    assert "69   PySpark or Java is missing" in done.stdout


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    journals, out = exported(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("of much worth")
    done = audit(journals, "--out", out)
    assert done.returncode == 64
    assert "thesis.txt" in done.stderr
    assert [each.name for each in out.iterdir()] == ["thesis.txt"]


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("1970-01-02", "--until") == 86_400_000_000
    assert parse_time("1970-01-02T00:00:00+01:00", "--until") == 82_800_000_000
    assert parse_time("1790000000000000", "--until") == 1_790_000_000_000_000
    with pytest.raises(ConfigError):
        parse_time("yesterday", "--until")


def test_expectations_in_words_and_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('{"producers": ["b"], "groups": {"t": ["h"]}}')
    found = parse_expect(["producer=a", "group=g:t", str(path)], drained=False)
    assert found == Expect(("a", "b"), {"t": ["g", "h"]}, drained=False)
    path.write_text('{"clients": []}')
    with pytest.raises(ConfigError):
        parse_expect([str(path)])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RuntimeError("odd"), 70, "RuntimeError: odd"),
        (MemoryError(), 70, "internal error: MemoryError"),
        (Py4JError("An error occurred\njava.lang.OutOfMemoryError: Java heap space\n"), 70, "Java heap space"),
        (Py4JError("x\nTraceback:\n  File y\nreliamsg.errors.ConfigError: s/f: damaged; remove s\n\n\tat z"), 64,
         "reliamsg: s/f: damaged; remove s"),
        (Py4JError("x\nOSError: [Errno 28] No space left on device: 'f'\n"), 74, "No space left on device: 'f'"),
        (OSError(28, "No space left on device", "f"), 74, "No space left on device"),
    ],
    ids=["bug", "memory", "heap", "state", "disk of a task", "disk"],
)  # fmt: skip
def test_no_failure_looks_like_a_verdict(
    error: Exception, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """1 means violated or lost."""

    @contextmanager
    def no_session(*_: object) -> Iterator[None]:
        yield None

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("reliamsg.audit.__main__._session", no_session)
    monkeypatch.setattr("reliamsg.audit.__main__.audit", fails)
    assert main([str(tmp_path)]) == code
    assert says in capsys.readouterr().err
