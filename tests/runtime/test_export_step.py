"""The export as one step of a worker. (Targets are tested in tests/export.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.config import JournalExport
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.export_step import ExportStep, JournalSource
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.journal import Entry
from tests.patience import wait_for


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    made = Inbox(tmp_path / "i.db", "g")
    yield made
    made.close()


def step_of(inbox: Inbox, export: JournalExport | None) -> ExportStep:
    return ExportStep(
        export, JournalSource("group", "g", inbox.path, inbox.exported), Environment(Clock(lambda: 0.0))
    )


def note(inbox: Inbox, *entries: Entry) -> None:
    inbox.commit(Batch(entries=list(entries)), 0, 0)


def test_without_a_target_nothing_is_due_and_nothing_is_full(inbox: Inbox) -> None:
    export = step_of(inbox, None)
    note(inbox, Entry("opened", group="g"))
    stepped = export.step(0.0)
    assert (stepped.deadline, stepped.full_changed) == (None, False)
    assert (export.has_target, export.full, export.why_full, export.status()) == (False, False, "", None)
    export.finish(0.0)
    export.stop()
    assert export.rows_left == 0


def test_that_it_is_full_is_said_once_and_so_is_its_end(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "away").write_text("no directory")
    export = step_of(inbox, JournalExport(str(tmp_path / "away"), segment_rows=5, max_backlog_rows=10))
    note(inbox, *[Entry("late", first=2 * n, last=2 * n, group="g") for n in range(1, 12)])
    wait_for(lambda: export.step(0.0).full_changed, "it is full")
    assert export.full
    assert "the limit is" in export.why_full
    assert not export.step(0.0).full_changed
    (tmp_path / "away").unlink()
    at = 0.0

    def goes_on() -> bool:
        nonlocal at
        at += 1.0
        return export.step(at).full_changed

    wait_for(goes_on, "there is room again")
    assert (export.full, export.why_full) == (False, "")
    export.finish(60.0)
    assert export.rows_left == 0
    assert export.status() is not None


def test_calls_that_do_not_finish_in_time_are_counted(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "away").write_text("no directory")
    export = step_of(inbox, JournalExport(str(tmp_path / "away")))
    note(inbox, Entry("late", first=1, last=1, group="g"))
    export.finish(0.0)
    assert export.rows_left == 1
