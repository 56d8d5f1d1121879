"""Files that were cloned while their owner ran, or restored from a backup: nothing is ever overwritten."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import JournalExport
from reliamsg.export.offline import export_file
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import until
from tests.export.tools import consumer, left, meta, producer, segments, whole


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


def copy(path: Path, to: Path) -> None:
    """As a careless administrator copies it: the file, and its -wal, while the owner runs."""
    for end in ("", "-wal"):
        if Path(f"{path}{end}").exists():
            shutil.copy(f"{path}{end}", f"{to}{end}")


def contents(target: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in target.rglob("*.ndjson")}


@pytest.mark.parametrize("role", ["producer", "group"])
def test_a_clone_continues_next_to_its_original(role: str, network: MemoryNetwork, tmp_path: Path) -> None:
    one, two, target = tmp_path / "one.db", tmp_path / "two.db", tmp_path / "journals"
    make = producer if role == "producer" else consumer
    export = JournalExport(target, interval=0.05, segment_rows=5)
    with make(network, one, journal=export) as original:
        until(lambda: target.exists() and segments(target), "a segment")
        until(lambda: not original.status().journal.backlog_rows, "nothing waits")  # type: ignore[union-attr]
        copy(one, two)
        before = contents(target)
        # A separate network: here the broker lets one consumer read for a group at a time.
        with MemoryNetwork("dc1", "dc2") as elsewhere, make(elsewhere, two, journal=export):
            pass
    for path in (one, two):
        rows = whole(target, path)
        assert rows[-1].kind == "closed"
        assert not left(path)
    after = contents(target)
    assert before.items() <= after.items()
    found = segments(target)
    parents = [segment.header.parent for segment in found]
    forks = {parent for parent in parents if parents.count(parent) > 1}
    assert len(forks) == 1
    assert {segment.header.boot for segment in found if segment.header.parent in forks} == {
        whole(target, one)[-1].boot,
        whole(target, two)[-1].boot,
    }


def test_a_backup_continues_where_it_was_made(network: MemoryNetwork, tmp_path: Path) -> None:
    outbox, backup, target = tmp_path / "out.db", tmp_path / "backup.db", tmp_path / "journals"
    export = JournalExport(target, interval=3600)
    with producer(network, outbox, journal=export) as one:
        one.publish("orders", b"1")
        one.flush(10)
        copy(outbox, backup)  # before anything of this boot was exported
        one.publish("orders", b"2")
    lost = whole(target, outbox)
    before = contents(target)
    for end in ("", "-wal", "-shm"):
        Path(f"{outbox}{end}").unlink(missing_ok=True)
    copy(backup, outbox)
    with producer(network, outbox, journal=export) as one:
        one.publish("orders", b"3")
    rows = whole(target, outbox)
    assert before.items() <= contents(target).items()
    assert rows[0] == lost[0]  # the shared rows
    assert [row.kind for row in rows].count("opened") == 2
    assert len([segment for segment in segments(target) if segment.header.parent is None]) == 2


def test_clones_with_a_segment_on_its_way_make_the_same_one(network: MemoryNetwork, tmp_path: Path) -> None:
    one, target = tmp_path / "one.db", tmp_path / "journals"
    target.write_text("not a directory")
    with producer(network, one, journal=JournalExport(target, interval=0.05)) as original:
        original.publish("orders", b"x")
        until(lambda: original.status().journal.error, "it failed")  # type: ignore[union-attr]
        until(lambda: not original.pending(), "confirmed")
    assert "journal_cut_lsn" in meta(one)
    clones = [tmp_path / f"clone-{number}.db" for number in range(6)]
    for clone in clones:
        copy(one, clone)
    target.unlink()
    threads = [threading.Thread(target=export_file, args=(path, target)) for path in (one, *clones)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in (one, *clones):
        assert whole(target, path)[-1].kind == "closed"
        assert not left(path)
    assert len(segments(target)) == len({segment.header.first_lsn for segment in segments(target)})
    assert not list(target.rglob(".*"))
