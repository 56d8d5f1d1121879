"""The state of export in a file, for any order of events: nothing is lost without a report."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reliamsg.errors import OutboxWriteError, StoreCorrupt
from reliamsg.export.segments import JournalSource, make_segment
from reliamsg.message import Stream
from reliamsg.store.exported import Exported
from reliamsg.store.journal import Entry, JournalRow
from reliamsg.store.outbox import Outbox
from reliamsg.store.segment import Segment, decode
from tests.chance import examples
from tests.export.tools import left


class Exporting(RuleBasedStateMachine):
    """Rows are written and extended, cut, exported, given up; the file is closed, reopened, and left as by a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "out.db"
        self.boots = 0
        self.segments: dict[str, Segment] = {}
        self.order: list[str] = []
        self.made: Segment | None = None
        """Written to the target, and not recorded."""
        self.told: set[int] = set()
        self.sequence = 0
        self.open()

    def open(self) -> None:
        self.boots += 1
        self.outbox = Outbox(self.path, "p", 1_000_000 * self.boots, 0, f"{self.boots:016x}")
        self.exported: Exported = self.outbox.exported
        self.sequence = 0

    def teardown(self) -> None:
        self.outbox.close()
        self.directory.cleanup()

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        self.outbox.note([Entry("opened", detail={"n": number}) for number in range(count)], 1_000_000, 0)

    @rule(count=st.integers(1, 3))
    def extend(self, count: int) -> None:
        first = self.sequence + 1
        self.sequence += count
        entry = Entry("enqueued", Stream("p", "t"), self.boots, 1, first, self.sequence, digest=count)
        self.outbox.note([entry], 2_000_000, 0)

    @rule()
    def undone(self) -> None:
        with (
            pytest.raises(ZeroDivisionError),
            self.outbox.journal.transaction(self.outbox._db, [Entry("opened")], 1, 1),
        ):
            raise ZeroDivisionError

    @rule(most=st.integers(1, 6))
    def cut(self, most: int) -> None:
        cut = self.exported.cut(most)
        assert (cut is None) == (self.exported.backlog == 0)

    @precondition(lambda self: self.exported.cut_pending is not None)
    @rule()
    def put(self) -> None:
        cut = self.exported.cut_pending
        assert cut is not None
        segment = make_segment(JournalSource("producer", "p", self.path, self.exported), cut)
        if self.made is not None:
            assert segment == self.made, "it was made differently"
        self.made = segment

    @precondition(lambda self: self.made is not None)
    @rule()
    def finish(self) -> None:
        cut, segment = self.exported.cut_pending, self.made
        assert cut is not None
        assert segment is not None
        self.exported.finish(cut, segment.digest)
        self.segments[segment.digest] = segment
        self.order.append(segment.digest)
        self.made = None

    @rule(keep=st.integers(0, 8))
    def truncate(self, keep: int) -> None:
        before = {row.lsn for row in left(self.path)}
        count = self.exported.truncate(keep, Entry("truncated"), 3_000_000, 0)
        gone = before - {row.lsn for row in left(self.path)}
        assert len(gone) == count
        cut = self.exported.cut_pending
        assert not cut or not gone & set(range(cut.first_lsn, cut.last_lsn + 1))
        self.told |= gone

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.outbox.note([Entry("closed")], 4_000_000, 0)
        backlog = self.exported.backlog
        self.outbox.close()
        self.open()
        assert self.exported.backlog == backlog

    @invariant()
    def the_backlog_is_what_the_file_holds(self) -> None:
        assert self.exported.backlog == len(left(self.path))

    @invariant()
    def nothing_is_missing_that_was_not_told(self) -> None:
        rows: dict[int, JournalRow] = {}
        parent = None
        for digest in self.order:
            header, some = decode(self.segments[digest].data)
            assert header.parent == parent
            parent = digest
            assert not rows.keys() & {row.lsn for row in some}
            rows |= {row.lsn: row for row in some}
        rest = left(self.path)
        assert not rows.keys() & {row.lsn for row in rest}
        rows |= {row.lsn: row for row in rest}
        newest = self.outbox.journal.newest_lsn
        assert self.outbox.journal.newest_boot == (rows[newest].boot if newest else "")
        assert set(range(1, newest + 1)) - rows.keys() == self.told
        told: set[int] = set()
        for row in rows.values():
            if row.kind == "truncated":
                assert row.detail is not None
                told |= set(range(row.detail["first_lsn"], row.detail["last_lsn"] + 1))
        assert told == self.told

    @invariant()
    def ranges_follow_each_other(self) -> None:
        found = [row for digest in self.order for row in decode(self.segments[digest].data)[1]]
        ends: dict[int, int] = {}
        for row in [*found, *left(self.path)]:
            if row.kind == "enqueued":
                if row.epoch in ends and not self.told:
                    assert row.first == ends[row.epoch] + 1
                ends[row.epoch] = row.last
        assert self.told or not self.sequence or ends.get(self.boots, self.sequence) == self.sequence


Exporting.TestCase.settings = settings(
    max_examples=examples(30, full=600),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestExporting = Exporting.TestCase


def test_a_cut_whose_rows_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    outbox = Outbox(path, "p", 1, 0, "1" * 16)
    outbox.note([Entry("opened")], 1, 0)
    assert outbox.exported.cut(10) is not None
    outbox._db.connection.execute("DELETE FROM journal")
    outbox.close()
    with pytest.raises(StoreCorrupt, match="journal rows that were about to be exported are missing"):
        Outbox(path, "p", 2, 0, "2" * 16)


def test_an_outbox_that_can_not_be_written_keeps_its_state(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out.db", "p", 1, 0, "1" * 16)
    outbox.note([Entry("opened")], 1, 0)
    outbox._db.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(OutboxWriteError):
        outbox.exported.cut(10)
    outbox._db.connection.execute("PRAGMA query_only = OFF")
    assert outbox.exported.backlog == 1
    cut = outbox.exported.cut(10)
    assert cut is not None
    assert cut.rows == 1
    outbox.close()


def test_the_opening_that_wrote_the_newest_row_is_known_once_it_is_exported(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    for boot, earlier in (("1" * 16, ""), ("2" * 16, "1" * 16)):
        outbox = Outbox(path, "p", 1, 0, boot)
        exported = outbox.exported
        assert (exported.journal.newest_boot, exported.journal.begun_here) == (earlier, False)
        outbox.note([Entry("opened")], 1, 0)
        assert (exported.journal.newest_boot, exported.journal.begun_here) == (boot, True)
        cut = exported.cut(10)
        assert cut is not None
        exported.finish(cut, "0" * 64)
        assert exported.backlog == 0
        outbox.close()
