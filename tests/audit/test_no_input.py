"""Where there is nothing to read, every program of the audit and of journals says so, and names it: an empty directory,
one that is missing or holds other things, a file in its place, and one that can't be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit import accept, compact, show
from reliamsg.audit.__main__ import main as audit
from reliamsg.audit.sources import check_local
from reliamsg.cli.app import main as command
from tests.audit.local_spark import local_spark
from tests.audit.mutilated import exported

_PROGRAMS: dict[str, Callable[[str], int]] = {
    "audit": lambda path: audit([path]),
    "audit show": lambda path: show.main([path, "till-4/sales"]),
    "audit accept": lambda path: accept.main([path]),
    "audit accept one": lambda path: accept.main([path, "0123456789ab", "--reason", "known"]),
    "audit accept withdraw": lambda path: accept.main([path, "0123456789ab", "--withdraw"]),
    "journal compact": lambda path: compact.main([path]),
    "journal verify": lambda path: command(["journal", "verify", path]),
    "journal cat": lambda path: command(["journal", "cat", path]),
    "journal retire": lambda path: command(["journal", "retire", path]),
    "journal export": lambda path: command(["journal", "export", path, "--to", f"{path}.target"]),
}


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield local_spark(1)

    monkeypatch.setattr("reliamsg.audit.__main__._session", session)


def _empty(place: Path) -> None:
    place.mkdir()


def _other_things(place: Path) -> None:
    place.mkdir()
    (place / "notes.txt").write_text("none of ours\n")


def _file(place: Path) -> None:
    place.write_text("a file\n" * 100)


def _missing(_: Path) -> None:
    pass


# Evidence that is not there is a verdict of the programs that judge it: 2, as for a client without a journal.
_NONE, _INVALID, _NO_INPUT = 2, 65, 66
_JUDGES = {"audit": "there are no journals", "journal compact": "there are no segments",
           "journal verify": "there are no journals"}  # fmt: skip
_FILES = {"journal verify", "journal cat", "journal retire", "journal export"}
"""These take outboxes and inboxes, too."""


@pytest.mark.parametrize("program", _PROGRAMS)
@pytest.mark.parametrize("prepare", [_empty, _other_things, _file, _missing])
def test_a_place_without_input_is_named(
    program: str, prepare: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    prepare(place)
    code = _PROGRAMS[program](str(place))
    out, err = capsys.readouterr()
    if place.is_dir() and program in _JUDGES:
        assert code == _NONE
        assert _JUDGES[program] in out + err
        return
    if place.is_dir() and program == "journal cat":
        assert (code, out) == (0, "")  # no rows, as of a journal in which nothing matches
        return
    assert code == (_INVALID if place.is_file() and program in _FILES else _NO_INPUT)
    assert str(place) in err
    assert out == ""
    if program not in _FILES:
        assert err.count("\n") == 1


def test_a_directory_whose_name_begins_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night:1").mkdir()
    assert check_local("night:1") == "night:1"
    assert check_local("night:2") is None  # Spark may know what that is
    assert check_local(f"file:{tmp_path}/night:1") == f"{tmp_path}/night:1"
    assert check_local(f"file:{tmp_path}/night*") is None


@pytest.mark.parametrize("program", ["audit", "journal compact", "journal verify", "journal cat"])
def test_a_directory_that_cant_be_read_is_not_left_out(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its client would be missing without anybody noticing."""
    journals = exported(tmp_path)
    locked = next(iter(sorted(journals.glob("role=*/client=*"))))
    _lock(locked, monkeypatch)
    assert _PROGRAMS[program](str(journals)) == _NO_INPUT
    assert f"{journals}: can't be read: Permission denied ({locked})" in capsys.readouterr().err


def _junk(*names: str) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("junk\n")

    return prepare


@pytest.mark.parametrize(
    ("program", "prepare", "code", "named"),
    [
        ("audit show", _junk("verdict.json"), 66, "lacks the table ranges"),
        ("audit show", _junk("verdict.json", "ranges/a.parquet", "findings/a.parquet"), 74, "ranges"),
        ("audit accept", _junk("kept.json"), 64, "kept.json: damaged"),
        ("audit accept one", _junk("kept.json"), 64, "kept.json: damaged"),
        ("audit accept", _junk("accepted-0123456789ab.json"), 64, "accepted-0123456789ab.json: damaged"),
        ("audit accept one", _junk("accepted-0123456789ab.json"), 66, "no audit has used this state yet"),
    ],
)
def test_damage_is_named(
    program: str, prepare: Callable[[Path], None], code: int, named: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    prepare(tmp_path / "place")
    assert _PROGRAMS[program](str(tmp_path / "place")) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert str(tmp_path / "place") in err
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("program", "lock"), [("journal compact", "compaction"), ("audit", "kept")])
def test_a_directory_that_cant_be_written_is_named(
    program: str,
    lock: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # as the lock does, without the path

    monkeypatch.setattr(f"reliamsg.audit.{lock}.FileLock.acquire", fails)
    arguments = (
        [str(tmp_path)] if program == "journal compact" else ["--state", str(tmp_path / "s"), str(tmp_path)]
    )
    assert (compact.main(arguments) if program == "journal compact" else audit(arguments)) == 74
    place = arguments[0] if program == "journal compact" else arguments[1]
    assert capsys.readouterr().err == f"reliamsg: {place}: can't be locked: Permission denied\n"


def _lock(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, whatever its mode."""
    scandir = os.scandir

    def locked(path: Any = ".") -> Any:
        if os.fspath(path) == str(directory):
            raise PermissionError(13, "Permission denied", str(directory))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
