"""Stamps of journal rows: they never run backwards, a clock that was set is noticed, and rows stay short."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg.audit.segment import read_segment
from reliamsg.checker import check_directory
from reliamsg.checker.journals import collect, read_chain
from reliamsg.checker.segments import check_segment
from reliamsg.export.offline import export_file
from reliamsg.message import Stream
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.journal import Entry, JournalRow
from reliamsg.store.outbox import Outbox
from tests.chance import examples
from tests.export.tools import left, segments

S = 1_000_000
START = 1_700_000_000 * S
STREAM = Stream("p", "t")
OLDER = Path(__file__).parent / "older"


class File:
    """An outbox whose clocks the test sets."""

    def __init__(self, path: Path) -> None:
        self.path, self.wall_us, self.mono_us, self.boots, self.last = path, START, 0, 0, 0
        self.outbox = self._open()

    def _open(self) -> Outbox:
        self.boots += 1
        return Outbox(self.path, "p", self.wall_us, self.mono_us, f"{self.boots:016x}")

    def reopen(self) -> None:
        """As after a restart of the machine: the monotonic clock begins anew."""
        self.outbox.close()
        self.mono_us, self.last = 5 * S, 0
        self.outbox = self._open()
        self.write(Entry("opened"))

    def wait(self, seconds: float, wall: float | None = None) -> None:
        """Time passes; `wall`: what the wall clock shows of it, in seconds."""
        self.mono_us += int(seconds * S)
        self.wall_us += int((seconds if wall is None else wall) * S)

    def write(self, *entries: Entry) -> None:
        self.outbox.note(entries, self.wall_us, self.mono_us)

    def enqueue(self) -> None:
        self.last += 1
        self.write(Entry("enqueued", STREAM, self.boots, 1, self.last, self.last, digest=1))

    @property
    def rows(self) -> list[JournalRow]:
        return left(self.path)

    @property
    def kinds(self) -> list[str]:
        return [row.kind for row in self.rows]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    found = File(tmp_path / "out.db")
    found.write(Entry("opened"))
    yield found
    found.outbox.close()


def test_no_row_is_extended_for_longer_than_a_minute(file: File) -> None:
    for _ in range(7):
        file.enqueue()
        file.wait(20)
    rows = [row for row in file.rows if row.kind == "enqueued"]
    assert [(row.first, row.last) for row in rows] == [(1, 4), (5, 7)]
    assert [row.wall_last_us - row.wall_us for row in rows] == [60 * S, 40 * S]


def test_neither_is_one_that_only_counts(file: File) -> None:
    for _ in range(7):
        file.write(Entry("rejected", site="dc1", reason="malformed", detail={"count": 1}))
        file.wait(20)
    assert [row.detail for row in file.rows[1:]] == [{"count": 4}, {"count": 3}]


def test_neither_while_the_clock_stands_still(file: File) -> None:
    """It was set back, so that the stamps stay the same for long."""
    file.enqueue()
    file.wait(1, -1_000_000)
    for _ in range(4):
        file.enqueue()
        file.wait(50)
    rows = [row for row in file.rows if row.kind == "enqueued"]
    assert [(row.first, row.last) for row in rows] == [(1, 3), (4, 5)]
    assert {row.wall_us for row in file.rows} == {START}


@pytest.mark.parametrize(("change", "stamp"), [(-3_600.0, START), (7_200.0, START + 7_200 * S)])
def test_a_clock_that_is_set(file: File, change: float, stamp: int) -> None:
    file.wait(2, 2 + change)
    file.enqueue()
    _, step, enqueued = file.rows
    assert step.kind == "clock_step"
    assert step.detail == {"from_us": START + 2 * S, "to_us": START + 2 * S + int(change * S)}
    assert step.wall_us == enqueued.wall_us == max(stamp, START) + (2 * S if change > 0 else 0)
    file.wait(1)
    file.enqueue()
    assert file.kinds.count("clock_step") == 1


def test_a_clock_that_is_a_little_off_is_not_noticed(file: File) -> None:
    for seconds in (4.9, -9.0, 8.0, 0.0):
        file.wait(10, 10 + seconds)
        file.enqueue()
    assert "clock_step" not in file.kinds


def test_small_steps_add_up(file: File) -> None:
    for _ in range(6):
        file.wait(10, 8)
        file.enqueue()
    steps = [row.detail for row in file.rows if row.kind == "clock_step"]
    assert steps == [
        {"from_us": START + at * S, "to_us": START + to * S} for at, to in ((30, 24), (24 + 30, 24 + 24))
    ]


def test_a_step_in_a_transaction_that_is_undone_is_noticed_by_the_next(file: File) -> None:
    file.wait(1, 100)
    with (
        pytest.raises(ZeroDivisionError),
        file.outbox.journal.transaction(file.outbox._db, [Entry("connected")], file.wall_us, file.mono_us),
    ):
        raise ZeroDivisionError
    file.write()
    assert file.kinds == ["opened"]
    file.write(Entry("connected"))
    assert file.kinds == ["opened", "clock_step", "connected"]


def test_a_clock_that_was_set_back_while_the_file_was_closed(file: File) -> None:
    file.wait(100)
    file.enqueue()
    latest = file.wall_us
    file.wait(50, -1_000)
    file.reopen()
    file.enqueue()
    assert file.kinds == ["opened", "enqueued", "opened", "clock_step", "enqueued"]
    step = file.rows[3]
    assert step.detail == {"from_us": latest, "to_us": latest - 1_000 * S}
    assert [row.wall_us for row in file.rows[2:]] == [latest] * 3
    file.wait(2_000)
    file.enqueue()
    assert file.rows[-1].wall_us == file.wall_us > latest


@pytest.mark.parametrize("seconds", [-4, 0, 10**6])
def test_other_changes_while_it_was_closed_are_not_noticed(file: File, seconds: int) -> None:
    file.wait(1, seconds)
    file.reopen()
    assert file.kinds == ["opened", "opened"]
    assert file.rows[1].wall_us == max(START, file.wall_us)


def test_the_file_keeps_its_latest_stamp_when_its_rows_have_left(file: File, tmp_path: Path) -> None:
    file.wait(100)
    file.enqueue()
    latest = file.wall_us
    file.outbox.close()
    assert export_file(file.path, tmp_path / "journals") == 1
    file.outbox = Outbox(file.path, "p", 0, 0, "f" * 16)
    file.wait(1, -1_000)
    file.reopen()
    assert file.kinds == ["opened", "clock_step"]
    assert {row.wall_us for row in file.rows} == {latest}
    file.outbox.close()
    assert export_file(file.path, tmp_path / "journals") == 1
    (chain,) = collect(tmp_path / "journals").chains
    assert not chain.broken
    assert chain.old_lsn == 0


def test_a_truncation_that_goes_on_for_long(file: File) -> None:
    for number in range(10):
        for _ in range(3):
            file.write(Entry("connected", site=f"dc{number}"))
        file.outbox.exported.truncate(3, Entry("truncated"), file.wall_us, file.mono_us)
        file.wait(20)
    rows = [row for row in file.rows if row.kind == "truncated"]
    assert all(row.wall_last_us - row.wall_us <= 60 * S for row in rows)
    gone = set(range(1, file.outbox.journal.newest_lsn + 1)) - {row.lsn for row in file.rows}
    told: set[int] = set()
    for row in rows:
        assert row.detail is not None
        told |= set(range(row.detail["first_lsn"], row.detail["last_lsn"] + 1))
    assert told == gone


def test_an_inbox_has_them_too(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "in.db", "g")
    inbox.commit(Batch(entries=[Entry("opened", group="g")]), START, 0)
    inbox.commit(Batch(entries=[Entry("connected", group="g")]), START - 60 * S, S)
    inbox.close()
    rows = left(tmp_path / "in.db")
    assert [(row.kind, row.group, row.wall_us) for row in rows] == [
        ("opened", "g", START), ("clock_step", "g", START), ("connected", "g", START),
    ]  # fmt: skip


_MOVES = st.tuples(
    st.sampled_from(["write", "write", "enqueue", "enqueue", "reopen", "export", "truncate"]),
    st.integers(0, 90), st.sampled_from([0, 0, 0, 0, 3, -3, 6, -6, 86_400, -86_400]),
)  # fmt: skip


@given(st.lists(_MOVES, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_stamps_never_run_backwards(moves: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, target = Path(directory) / "out.db", Path(directory) / "journals"
        file = File(path)
        file.write(Entry("opened"))
        for action, seconds, change in moves:
            file.wait(seconds, seconds + change)
            if action == "reopen":
                file.reopen()
            elif action == "export":
                file.outbox.close()
                export_file(path, target, segment_rows=3)
                file.outbox = file._open()
                file.write(Entry("opened"))
                file.last = 0
            elif action == "truncate":
                file.outbox.exported.truncate(2, Entry("truncated"), file.wall_us, file.mono_us)
            elif action == "write":
                file.write(Entry("connected"))
            else:
                file.enqueue()
        file.outbox.close()
        rows = [row for found in segments(target) for row in found.rows] if target.exists() else []
        rows = sorted([*rows, *left(path)], key=lambda row: row.lsn)
    latest = 0
    for row in rows:
        assert row.wall_us >= latest, "stamps are in the order of rows"
        latest = row.wall_us
        assert 0 <= row.wall_last_us - row.wall_us <= 60 * S


def test_rows_of_an_older_version_stay_that_when_they_are_exported(tmp_path: Path) -> None:
    for kind in ("outbox", "inbox"):
        path = tmp_path / f"{kind}.db"
        path.write_bytes(gzip.decompress((OLDER / f"{kind}.db.gz").read_bytes()))
        path.chmod(0o600)
    before = read_chain(tmp_path / "outbox.db")
    assert before.old_lsn == before.rows[-1].lsn
    now_us = before.rows[-1].wall_us + S
    outbox = Outbox(tmp_path / "outbox.db", "shop", now_us, 0, "e" * 16)
    outbox.note([Entry("opened")], now_us, 0)
    outbox.close()
    after = read_chain(tmp_path / "outbox.db")
    assert after.old_lsn == before.old_lsn == after.rows[-2].lsn
    for kind in ("outbox", "inbox"):
        export_file(tmp_path / f"{kind}.db", tmp_path / "journals")
    versions = {
        (found.header.role, found.header.boot): found.header.version
        for found in segments(tmp_path / "journals")
    }
    assert versions.pop(("producer", "e" * 16)) == 2
    assert set(versions.values()) == {1}
    chains = {chain.role: chain for chain in collect(tmp_path / "journals").chains}
    assert chains["producer"].old_lsn == before.old_lsn
    assert chains["group"].old_lsn == chains["group"].rows[-1].lsn


def test_journals_of_version_1_are_read_as_before() -> None:
    """``older/journals`` was written before version 2: two openings of a producer and of a group, with ten messages."""
    found = collect(OLDER / "journals")
    assert not found.problems
    assert sorted((chain.role, chain.sound, chain.old_lsn) for chain in found.chains) == [
        ("group", True, 31), ("producer", True, 24),
    ]  # fmt: skip
    report = check_directory(OLDER / "journals")
    assert report.verdict == "complete", report.text()
    for path in sorted((OLDER / "journals").rglob("*.ndjson")):
        data = path.read_bytes()
        assert check_segment(path.as_posix(), data).header.version == 1
        read = read_segment(path.as_posix(), data)
        assert read is not None
        assert read.problem is None
        assert read.header is not None
        assert read.header.version == 1
