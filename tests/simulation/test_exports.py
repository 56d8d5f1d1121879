"""Clients in simulated worlds that export their journals."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from reliamsg.checker import groups
from reliamsg.checker.journals import collect
from reliamsg.simulation import settings
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.disk import Crash, DiskFault
from reliamsg.simulation.executor import Executor
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.journal_copy import JournalCopy
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.segments import SegmentWriter
from reliamsg.simulation.world import World
from reliamsg.store.journal import Entry, Journal
from reliamsg.store.segment import decode, encode

pytestmark = pytest.mark.integrations

SEEDS = range(8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients export their journals in small segments, with little room for what waits."""
    for role in ("Producer", "Consumer"):
        monkeypatch.setitem(settings.VALUES, f"{role}.journal", (True,))
        monkeypatch.setitem(settings.VALUES, f"{role}.journal_rows", (3, 10))
        monkeypatch.setitem(settings.VALUES, f"{role}.journal_backlog", (1, 2))


@pytest.mark.usefixtures("small")
def test_exported_and_truncated_journals_are_judged_correctly(tmp_path: Path) -> None:
    truncated, struck, exported = 0, 0, 0
    for seed in SEEDS:
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = World(draw(seed, 60, ("target_down", "crash", "restart")), directory)
        world.run()
        world.compare()
        assert not world.oracle.violations, seed
        truncated += len(world.incidents.truncated)
        struck += world.faults.struck.get("target_down", 0)
        exported += len(list((directory / "journals").rglob("*.ndjson")))
    assert truncated, "some backlog reaches its limit"
    assert struck
    assert exported > 100


@pytest.mark.usefixtures("small")
def test_signed_journals_are_those_of_their_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("Producer", "Consumer"):
        monkeypatch.setitem(settings.VALUES, f"{role}.journal_signed", (True,))
    signed = 0
    for seed in SEEDS[:4]:
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = World(draw(seed, 60, ("target_down", "crash", "restart")), directory)
        world.run()
        world.compare()
        assert not world.oracle.violations, seed
        paths = list((directory / "journals").rglob("*.ndjson"))
        assert all(b'"signature":' in path.read_bytes().partition(b"\n")[0] for path in paths)
        signed += len(paths)
    assert signed > 50


@pytest.mark.usefixtures("small")
def test_a_segment_that_its_client_did_not_sign_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("Producer", "Consumer"):
        monkeypatch.setitem(settings.VALUES, f"{role}.journal_signed", (True,))
    world = World(draw(1, 60, ()), tmp_path)
    world.run()
    path = next((tmp_path / "journals" / "role=producer").rglob("*.ndjson"))
    header, rows = decode(path.read_bytes())
    segment = encode(header.role, header.client, rows, header.parent)
    (tmp_path / "journals" / segment.path).write_bytes(segment.data)
    world.compare()
    assert [each.text for each in world.oracle.violations if each.text.endswith("not signed")]


@pytest.mark.usefixtures("small")
def test_a_verdict_that_rests_on_missing_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: messages whose acknowledgement was truncated were said not to have been redelivered."""
    gather = groups.GroupFacts.__init__

    def sound(self: groups.GroupFacts, *arguments: object, **named: object) -> None:
        gather(self, *arguments, **{**named, "sound": True})  # type: ignore[arg-type]

    monkeypatch.setattr(groups.GroupFacts, "__init__", sound)
    assert any(
        violation.text.startswith("not_redelivered")
        for seed in range(30)
        for violation in run(draw(seed, 60, ("target_down", "crash", "restart"))).violations
    )


def test_a_copy_has_what_was_exported_or_truncated(tmp_path: Path) -> None:
    world = World(draw(1, 10, ()), tmp_path)
    drive, incidents = world.consumers[0].drive, Incidents()
    drive.format()
    copy, journal = JournalCopy(drive, incidents, "g1"), Journal("boot")
    with closing(drive.connect(drive.path, isolation_level=None)) as connection:
        backup = None
        for kind in ("opened", "connected", "closed"):
            connection.execute("BEGIN")
            journal.write(connection, [Entry(kind, group="g1")], 1, 1)
            connection.execute("COMMIT")
            journal.settle(True)
            backup = backup or drive.back_up()
        connection.execute("BEGIN")
        connection.execute("DELETE FROM journal WHERE lsn <= 2")
        connection.execute("COMMIT")
    assert [row.kind for row in copy.rows()] == ["opened", "connected", "closed"]
    assert [row.kind for row in copy.rows(after=1)] == ["connected", "closed"]
    assert not incidents.truncated
    assert backup is not None
    drive.bring_back(backup)
    assert [row.kind for row in copy.rows()] == ["opened"]


def test_a_copy_follows_the_history_that_comes_back(tmp_path: Path) -> None:
    """A backup is older than the present history of the file, and has what it had exported itself by then. A commit
    that was cut short is in no history."""
    world = World(draw(1, 10, ()), tmp_path)
    drive = world.consumers[0].drive
    drive.format()
    copy = JournalCopy(drive, Incidents(), "g1")
    fault: DiskFault = ""
    drive._draw_fault = lambda: fault

    def write(boot: str, *kinds: str, exported: int = 0) -> None:
        journal = Journal(boot)
        connection = drive.connect(drive.path, isolation_level=None)
        try:
            connection.execute("BEGIN")
            journal.write(connection, [Entry(kind, group="g1") for kind in kinds], 1, 1)
            connection.execute("COMMIT")
            connection.execute("BEGIN")
            connection.execute("DELETE FROM journal WHERE lsn <= ?", (exported,))
            connection.execute("COMMIT")
        finally:
            drive.crash(connection.close)

    def known() -> list[tuple[str, str]]:
        return [(row.boot, row.kind) for row in copy.rows()]

    new = drive.back_up()
    write("a", "opened", "connected", "closed", exported=2)
    first, whole = drive.back_up(), known()
    assert whole == [("a", "opened"), ("a", "connected"), ("a", "closed")]
    drive.bring_back(new)
    assert known() == []
    write("b", "opened", "closed", exported=1)
    assert known() == [("b", "opened"), ("b", "closed")]
    drive.bring_back(first)
    assert known() == whole
    fault = "torn_write"
    with pytest.raises(Crash):
        write("c", "opened")
    assert known() == whole


def test_truncated_rows_are_incidents(tmp_path: Path) -> None:
    world = World(draw(1, 10, ()), tmp_path)
    drive, incidents = world.consumers[0].drive, Incidents()
    drive.format()
    JournalCopy(drive, incidents, "g1")
    with closing(drive.connect(drive.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        Journal("boot").write(connection, [Entry("truncated", group="g1")], 1, 1)
        connection.execute("COMMIT")
    assert incidents.truncated == {"g1"}


@pytest.fixture
def written() -> list[float]:
    return []


def test_segments_wait_for_a_target_that_does_not_answer(written: list[float]) -> None:
    scheduler, faults = Scheduler(0.0), Faults(1, ["target_down"])
    executor = Executor(scheduler, random.Random(1))
    executor.start(lambda function, arguments: function(*arguments))
    executor.begin()
    writer = SegmentWriter(executor, faults.at("p1"), lambda _: None)
    for _ in range(400):
        writer.start("segment", lambda: written.append(scheduler.now))
        begun = scheduler.now
        scheduler.run(begun + 13.0)
        assert written.pop() > begun
        assert not written
    assert 0 < faults.struck["target_down"] < 400


def test_a_client_that_is_closed_writes_its_last_segments_at_once(written: list[float]) -> None:
    scheduler = Scheduler(0.0)
    executor = Executor(scheduler, random.Random(1))
    executor.start(lambda function, arguments: function(*arguments))
    executor.begin()
    writer = SegmentWriter(executor, Faults(1, []).at("p1"), lambda _: None)
    writer.start("segment", lambda: written.append(1.0))
    assert not written
    writer.close()
    writer.start("segment", lambda: written.append(2.0))
    assert written == [1.0, 2.0]
    scheduler.run(5.0)
    assert written == [1.0, 2.0], "once"


@pytest.mark.usefixtures("small")
def test_kept_journals_include_what_was_exported(tmp_path: Path) -> None:
    for seed in SEEDS[:3]:
        run(draw(seed, 60, ("crash",)), journals=tmp_path / str(seed))
        found = collect(tmp_path / str(seed))
        assert not found.problems
        assert {chain.role for chain in found.chains} == {"producer", "group"}
        for chain in found.chains:
            assert chain.rows[0].lsn == 1, "rows that left the file come first"
