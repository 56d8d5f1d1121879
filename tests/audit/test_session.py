"""The configuration of a session, without one."""

from __future__ import annotations

from pathlib import Path

from reliamsg.audit.session import are_few


def test_journals_are_few_by_the_size_of_their_segments(tmp_path: Path) -> None:
    deep = tmp_path / "role=producer" / "client=a"
    deep.mkdir(parents=True)
    assert are_few(tmp_path)
    (deep / "little.ndjson").write_bytes(b"{}")
    with (tmp_path / "notes.txt").open("wb") as other:
        other.truncate(10**9)
    assert are_few(str(tmp_path))
    with (deep / "much.ndjson").open("wb") as segment:
        segment.truncate(10**9)
    assert not are_few(tmp_path)


def test_the_number_of_rows_elsewhere_is_unknown(tmp_path: Path) -> None:
    assert not are_few("s3a://bucket/journals")
    assert not are_few(tmp_path / "absent")


def test_an_unreadable_directory_does_not_count_as_small(tmp_path: Path) -> None:
    (tmp_path / "gone.ndjson").symlink_to(tmp_path / "nowhere")
    assert not are_few(tmp_path)
