"""Consumers in simulated worlds that can't read some forms of batches until they are upgraded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliamsg.consumer.quarantine import Quarantine
from reliamsg.consumer.site import SiteReceiver
from reliamsg.message import Stream
from reliamsg.simulation import consumer_journal, installation
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.installation import Installation
from reliamsg.simulation.runner import Outcome, run
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.journal import Entry
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery, Selection
from reliamsg.wire.data import Frame, Origin, Records, encode

SEEDS = range(6)


@pytest.fixture
def nothing_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "OUTDATED", installation.OUTDATED[-2:])


def upgraded(seeds: range = SEEDS, *faults: str) -> list[Outcome]:
    return [run(draw(seed, 60, ("outdated", *faults)), keep=True) for seed in seeds]


@pytest.mark.usefixtures("nothing_is_readable")
def test_what_could_not_be_read_is_delivered_after_the_upgrade() -> None:
    outcomes = upgraded()
    assert not [outcome.violations for outcome in outcomes if outcome.violations]
    assert sum("outdated" in outcome.struck for outcome in outcomes) > 1, "choose other seeds"


def test_each_outdated_installation_is_drawn() -> None:
    names = set()
    for number in range(60):
        drawn = Installation(Faults(number, ["outdated"]).at("g1-1"), random.Random(number))
        drawn.open()
        names.add(drawn.name)
    assert names == {
        "",
        "without zstd",
        "of an earlier version",
        "that does not know the flag of moved messages",
        "that knows an earlier format only",
    }


@pytest.mark.usefixtures("nothing_is_readable")
def test_batches_that_are_acknowledged_and_not_kept_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before unreadable batches went into the quarantine."""

    def forgets(
        self: SiteReceiver, delivery: object, frame: Frame, reason: str, stream: object = None
    ) -> bool:
        self.shared.durability.pending.tokens.append((self.name, delivery.token))  # type: ignore[attr-defined]
        return True

    monkeypatch.setattr(SiteReceiver, "quarantine", forgets)
    kinds = set().union(*(outcome.kinds for outcome in upgraded()))
    assert kinds & {"lost", "let_go_unsafe"}, kinds


@pytest.mark.usefixtures("nothing_is_readable")
def test_batches_that_stay_in_the_quarantine_after_the_upgrade_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Quarantine, "replay", lambda *_: None)
    kinds = set().union(*(outcome.kinds for outcome in upgraded()))
    assert kinds & {"stalled"}, kinds


@pytest.mark.usefixtures("nothing_is_readable")
def test_a_quarantine_that_status_does_not_show_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quarantine, "by_reason", {})
    assert "unreported" in set().union(*(outcome.kinds for outcome in upgraded()))


def test_an_installation_is_outdated_from_the_beginning_or_never() -> None:
    faults = Faults(1, ["outdated"])
    drawn = []
    for number in range(40):
        one = Installation(faults.at(f"g{number}"), random.Random(number))
        one.open()
        first = one.is_outdated
        for _ in range(8):
            before = one.is_outdated
            one.open()
            assert before or not one.is_outdated, "no upgrade is undone"
        one.upgrade()
        one.open()
        assert not one.is_outdated
        drawn.append(first)
    assert 5 < sum(drawn) < 35


def test_a_kept_batch_that_is_gone_without_having_been_taken_in_is_lost(tmp_path: Path) -> None:
    world = World(draw(1, 10, ()), tmp_path)
    consumer = world.consumers[0]
    consumer.drive.format()
    stream = Stream("p1", "orders")
    inbox = Inbox(consumer.drive.path, consumer.group, consumer.drive.connect)
    rows = [
        QuarantinedDelivery("unreadable", "dc1", stream, 5, 7, None, n, n, 4, 0, b"data") for n in (1, 2, 3)
    ]
    entries = [
        Entry("quarantined", stream, 5, 7, n, n, "dc1", consumer.group, "unreadable") for n in (1, 2, 3)
    ]
    inbox.commit(Batch(quarantined=rows, entries=entries), 0, 0)
    consumer.journal.report_unreadable()
    assert not world.oracle.violations
    kept = inbox.quarantine.select(Selection())
    taken_in = Entry("late", stream, 5, 7, 1, 1, "dc1", consumer.group)
    inbox.commit(Batch(unquarantined=[kept[0].id, kept[1].id], entries=[taken_in]), 0, 0)
    consumer.journal.report_unreadable()
    (violation,) = world.oracle.violations
    assert violation.kind == "lost"
    assert "5, 2)" in violation.text
    inbox.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_damaged_batch_of_a_later_version_may_leave_the_quarantine(tmp_path: Path, damaged: bool) -> None:
    """Whoever can open it finds that it is no message."""
    world = World(draw(1, 10, ()), tmp_path)
    consumer = world.consumers[0]
    consumer.drive.format()
    stream = Stream("p1", "orders")
    data = bytearray(encode(Origin(stream, 5, 8), 1, (0, 0), Records([b"a body"])))
    data[-1] ^= damaged
    inbox = Inbox(consumer.drive.path, consumer.group, consumer.drive.connect)
    row = QuarantinedDelivery(LATER_VERSION, "dc1", stream, 0, 0, None, 0, 0, len(data), 0, bytes(data))
    inbox.commit(Batch(quarantined=[row]), 0, 0)
    consumer.journal.report_kept()
    (kept,) = inbox.quarantine.select(Selection())
    inbox.commit(Batch(unquarantined=[kept.id]), 0, 0)
    consumer.journal.report_unreadable()
    assert [violation.kind for violation in world.oracle.violations] == ([] if damaged else ["lost"])
    inbox.close()


@pytest.mark.parametrize("seen", [True, False])
def test_what_finds_no_room_before_it_can_be_verified_is_repaired_after_the_upgrade(
    seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:  # by the judge, which else knows that it was dropped
        monkeypatch.setattr(consumer_journal, "dropped_unverified", lambda _: [])
    outcome = run(draw(810_000_000_266, 13, ("outdated",)), keep=True)
    assert outcome.kinds == (set() if seen else {"let_go_unsafe"})
    assert any("g2-1" in line and "delivers" in line and line.endswith("/13") for line in outcome.lines)
