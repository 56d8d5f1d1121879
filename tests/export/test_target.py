"""Directories and fsspec URLs as targets, and their settings."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reliamsg import JournalExport
from reliamsg.config import shown_target
from reliamsg.errors import ConfigError, JournalTargetError, TransientError
from reliamsg.export.target import DirectoryTarget, RemoteTarget, Target, open_target
from tests.children import run_child

PATH = "role=producer/client=a%2Fb/date=2026-01-01/x.ndjson"


@pytest.fixture(params=["directory", "file URL", "memory", "renaming"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    url = f"memory://{tmp_path.name}-{os.getpid()}/a"
    match request.param:
        case "directory":
            return open_target(tmp_path / "a b")
        case "file URL":
            return open_target(f"file://{tmp_path}/a%20b")
        case "memory":
            return open_target(url)
    found = RemoteTarget(url + "-renaming", "sftp")  # as on targets where files do not appear atomically
    assert not found._whole
    return found


def test_a_file_is_written_once(target: Target) -> None:
    target.write(PATH, b"one\n")
    target.write(PATH, b"one\n")
    assert target.read(PATH) == b"one\n"
    with pytest.raises(
        JournalTargetError, match=r"x\.ndjson exists with other content .* it is not overwritten"
    ):
        target.write(PATH, b"two\n")
    assert target.read(PATH) == b"one\n"
    assert list(target.paths()) == [PATH]


def test_what_is_listed(target: Target) -> None:
    for path in (
        "b/2.ndjson",
        "b/1.ndjson",
        "a.ndjson",
        "b/.3.ndjson",
        ".c/4.ndjson",
        "b/5.json",
        "b/c/d/6.ndjson",
    ):
        target.write(path, b"")
    assert list(target.paths()) == ["a.ndjson", "b/1.ndjson", "b/2.ndjson", "b/c/d/6.ndjson"]


def test_a_file_that_is_not_there(target: Target) -> None:
    target.write("a.ndjson", b"")
    with pytest.raises(JournalTargetError, match="can't be read"):
        target.read("b.ndjson")


def test_many_write_the_same_file(target: Target) -> None:
    failed: list[Exception] = []

    def write() -> None:
        try:
            target.write(PATH, b"x" * 100_000)
        except JournalTargetError as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert target.read(PATH) == b"x" * 100_000
    assert list(target.paths()) == [PATH]


def test_nothing_is_left_aside(tmp_path: Path) -> None:
    target = open_target(tmp_path / "a")
    target.write(PATH, b"one\n")
    with pytest.raises(JournalTargetError):
        target.write(PATH, b"two\n")
    assert [file.name for file in (tmp_path / "a").rglob("*") if file.is_file()] == ["x.ndjson"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    target = open_target(tmp_path)
    target.write(PATH, b"one\n")
    aside = (tmp_path / PATH).with_name(".x.ndjson.0123")
    other = (tmp_path / PATH).with_name(".y.ndjson.0123")
    for file in (aside, other):
        file.write_bytes(b"on")
    target.write(PATH, b"one\n")
    assert not aside.exists()
    assert other.exists()  # another segment's, whose writer may still be active


def test_a_name_taken_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(tmp_path)
    aside = DirectoryTarget._write_aside

    def overtaken(path: Path, data: bytes) -> None:
        aside(path, data)
        (tmp_path / PATH).write_bytes(b"other\n")

    monkeypatch.setattr(DirectoryTarget, "_write_aside", staticmethod(overtaken))
    with pytest.raises(JournalTargetError, match="other content"):
        target.write(PATH, b"one\n")
    assert (tmp_path / PATH).read_bytes() == b"other\n"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    target = open_target(tmp_path)
    target.write(PATH, b"one\n")
    target.write(PATH, b"one\n")
    with pytest.raises(JournalTargetError):
        target.write(PATH, b"two\n")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["x.ndjson"]


def test_files_and_directories_are_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    open_target(tmp_path / "root").write("a/b.ndjson", b"x")
    assert {str(tmp_path), str(tmp_path / "root"), str(tmp_path / "root" / "a")} <= synced
    assert any("/root/a/.b.ndjson." in name for name in synced)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(JournalTargetError, match="no such directory") as caught:
            list(open_target(where).paths())
        assert str(where) in str(caught.value)
    with pytest.raises(JournalTargetError, match="can't be written"):
        open_target(tmp_path / "file").write("a/b.ndjson", b"")
    assert issubclass(JournalTargetError, TransientError)


def test_protocols_that_are_unknown_or_lack_a_package() -> None:
    with pytest.raises(ConfigError, match=r"^nope://host/x: fsspec does not support the protocol 'nope'$"):
        open_target("nope://user:secret@host/x")
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from reliamsg.export.target import open_target\n"
        "open_target('/tmp')\n"
        "try: open_target('s3://key:secret@bucket/x')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    found = run_child([sys.executable, "-c", code], text=True, check=True)
    assert found.stdout == (
        "ConfigError s3://bucket/x: a journal at a URL needs the extra: pip install 'reliamsg[remote]'\n"
    )


def test_logins_never_show() -> None:
    url = "memory://user:secret@host/a?token=secret#secret"
    export = JournalExport(url)
    target = open_target(url)
    for text in (repr(export), str(export), export.shown_target, repr(target), target.shown):
        assert "secret" not in text
        assert "memory://host/a" in text
    with pytest.raises(JournalTargetError) as caught:
        target.read("x.ndjson")
    assert "secret" not in str(caught.value)
    assert shown_target("simplecache::s3://k:secret@b/c") == "simplecache::s3://b/c"
    assert shown_target("/a/b@c?d") == "/a/b@c?d"
    assert shown_target("sftp://u:se/cret@h/p") == "sftp://h/p"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": ""}, "the target is empty"),
        ({"target": 7}, "must be a path or URL, not int"),
        ({"target": b"x"}, "must be a path or URL, not bytes"),
        ({"target": "a\0b"}, "which paths can't have"),
        ({"interval": 0}, "interval must be above 0"),
        ({"interval": float("inf")}, "interval must be a number up to"),
        ({"interval": float("nan")}, "interval must be a number up to"),
        ({"segment_rows": 0}, "segment_rows must be at least 1"),
        ({"segment_rows": 1.5}, "segment_rows must be a whole number"),
        ({"segment_rows": 100, "max_backlog_rows": 99}, "max_backlog_rows must be at least 200"),
        ({"when_full": "drop"}, "choose 'block' or 'truncate'"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        JournalExport(options.pop("target", "/tmp/x"), **options)


def test_fsspec_is_not_loaded_for_directories() -> None:
    code = (
        "import sys, reliamsg\n"
        "from reliamsg.export.target import open_target\n"
        "open_target('/tmp')\n"
        "assert 'fsspec' not in sys.modules\n"
    )
    run_child([sys.executable, "-c", code], check=True)
