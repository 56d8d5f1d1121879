"""The checker's verdict on a run, compared with the judge's, in both directions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.checker import Expect, Finding, Report
from reliamsg.checker.renumbered import Renumbering
from reliamsg.message import MessageId, Stream
from reliamsg.simulation import comparison
from reliamsg.simulation.declarations import stream_of
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.verdicts import Violation
from reliamsg.simulation.world import World
from reliamsg.store.journal import JournalRow


def finished(seed: int, path: Path) -> World:
    path.mkdir(exist_ok=True)
    world = World(draw(seed, 60), path)
    world.run()
    assert not world.oracle.violations
    return world


def finished_with_losses(path: Path) -> World:
    """A run in which a group did not receive everything, according to the given findings."""
    return finished(_seed_with_losses(), path)


@cache
def _seed_with_losses() -> int:
    """Searched for once: each seed is a run. The first is one that had losses, for as long as worlds are drawn as they
    are now; it is only a hint."""
    seeds: list[int] = [37, *range(100)]
    for seed in seeds:
        with TemporaryDirectory() as place:
            world = finished(seed, Path(place))
            if any(map(world.oracle.not_delivered, world.oracle.groups)):
                return seed
    raise AssertionError("every group was given everything")


def texts(world: World) -> list[str]:
    assert {violation.kind for violation in world.oracle.violations} <= {"checker"}
    return [violation.text for violation in world.oracle.violations]


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """A checker that finds nothing but this."""
    findings: list[Finding] = []
    monkeypatch.setattr(comparison, "check_directory", lambda path, expect: Report(findings))
    return findings


def test_a_checker_that_misses_the_judges_findings_is_wrong(tmp_path: Path, blind: list[Finding]) -> None:
    world = finished_with_losses(tmp_path)
    oracle = world.oracle
    missing = [(group, message) for group in oracle.groups for message in oracle.not_delivered(group)]
    group = oracle.groups[0]
    twice = next(iter(oracle.deliveries[group]))
    for consumer in ("one", "another"):
        oracle.first_deliveries[group].delivered(consumer, twice, 0.0, flagged=False)
    world.compare()
    expected = {f"not reported: not delivered: {message} at {group}" for group, message in missing}
    assert expected | {f"not reported: duplicate_apart: {twice} at {group}"} <= set(texts(world))


@pytest.mark.parametrize("truncated", ["producer", "group"])
def test_the_checker_may_miss_what_was_truncated(
    tmp_path: Path, blind: list[Finding], truncated: str
) -> None:
    world = finished_with_losses(tmp_path)
    producers = {
        message.producer for group in world.oracle.groups for message in world.oracle.not_delivered(group)
    }
    for name in producers if truncated == "producer" else world.oracle.groups:
        world.incidents.journal_truncated(name)
    world.compare()
    assert not world.oracle.violations


def test_evidence_that_was_truncated_is_unknown_and_nothing_is_violated(
    tmp_path: Path, blind: list[Finding]
) -> None:
    world = finished(1, tmp_path)
    group, stream = world.oracle.groups[0], next(iter(world.oracle.streams))
    message = next(message for message in world.oracle.deliveries[group])
    place: dict[str, Any] = {"epoch": message.epoch, "first": message.seq, "last": message.seq}
    unproven = Finding("unproven", "", stream_of(message), group, **place)
    world.incidents.journal_truncated(stream.producer)
    blind.append(unproven)
    world.compare()
    assert not world.oracle.violations
    blind.append(Finding("duplicate", "", stream_of(message), group, **place))
    world.compare()
    (text,) = texts(world)
    assert text.startswith("duplicate")


@pytest.mark.parametrize("named", [True, False])
def test_a_run_with_open_messages_that_were_not_promised_is_not_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    world = finished(1, tmp_path)
    expected: list[Expect] = []

    def check(path: Path, expect: Expect) -> Report:
        expected.append(expect)
        return Report()

    monkeypatch.setattr(comparison, "check_directory", check)
    stream = next(iter(world.oracle.streams))
    operation = world.oracle.invoked(stream, b"late")
    world.oracle.durable(operation, MessageId(stream.producer, 9, stream.topic, stream.partition, 1))
    operation.groups = None if named else frozenset()
    world.compare()
    assert [expect.drained for expect in expected] == [named]


@pytest.mark.parametrize("covered", [True, False])
def test_a_broken_promise_is_to_be_found_by_both(tmp_path: Path, blind: list[Finding], covered: bool) -> None:
    world = finished(4, tmp_path)
    message = MessageId("p1", 7, "orders", 0, 3)
    world.oracle.violations.append(Violation("lost", "", 0.0, ("g1", message)))
    last = 3 if covered else 2
    blind.append(Finding("undelivered", "", Stream("p1", "orders"), "g1", epoch=7, first=1, last=last))
    world.compare()
    said = [violation.text for violation in world.oracle.violations if str(message) in violation.text]
    assert said == ([] if covered else [f"not reported: lost: {message} at g1"])


@pytest.mark.parametrize("kind", comparison.UNKNOWN)
def test_findings_that_only_the_judge_can_verify_must_match_its_view(
    tmp_path: Path, blind: list[Finding], kind: str
) -> None:
    world = finished(1, tmp_path)
    oracle = world.oracle
    group, message = next(
        (group, each.message)
        for group in oracle.groups
        for each in oracle.operations.values()
        if oracle.owes(group, each) and each.message in oracle.deliveries[group]
    )
    assert message is not None
    if kind == "settled_unseen":
        del oracle.deliveries[group][message]  # as if it had not been delivered to any group
    stream = Stream(message.producer, message.topic, message.partition)
    blind.append(Finding(kind, "", stream, group, epoch=message.epoch, first=message.seq, last=message.seq))
    world.compare()
    assert [text.partition(":")[0] for text in texts(world) if "not reported" not in text] == [kind]


@pytest.mark.parametrize(
    ("named", "replaced", "wrong"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_what_only_a_lost_inbox_had_may_be_lost(
    tmp_path: Path, blind: list[Finding], named: bool, replaced: bool, wrong: bool
) -> None:
    world = finished(1, tmp_path)
    operation = next(each for each in world.oracle.operations.values() if each.message is not None)
    message = operation.message
    assert message is not None
    operation.groups = frozenset({"g1"} if named else {"g2"})
    if replaced:
        world.incidents.inbox_went_back("g1", repairs=True)
    stream = stream_of(message)
    blind.append(Finding("lost", "", stream, "g1", epoch=message.epoch, first=message.seq, last=message.seq))
    world.compare()
    assert any(text.startswith("lost") for text in texts(world)) == wrong


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        ("no journal of the opening 000000000000000f of producer p1", ("p1", "opening", 15)),
        (
            "the journal of the opening 000000000000000f of producer p1 lacks rows that it had",
            ("p1", "opening", 15),
        ),
        ("no journal of epoch 15 of producer p1", ("p1", "epoch", 15)),
        ("no journal of any producer of topic orders", "an outbox"),
        ("no journal of producer p1", None),
    ],
)
def test_missing_evidence_must_have_been_lost(
    tmp_path: Path, blind: list[Finding], what: str, gone: tuple[str, str, int] | str | None
) -> None:
    world = finished(1, tmp_path)
    blind.append(Finding("missing", what))
    world.compare()
    assert f"missing: {what}" in texts(world)
    world.oracle.violations.clear()
    if gone is not None:
        if isinstance(gone, str):
            world.incidents.outbox_went_back("p1", [], [])
        elif gone[1] == "opening":
            world.incidents.outbox_went_back(gone[0], [gone[2]], [])
        else:
            world.incidents.outbox_went_back(gone[0], [], [gone[2]])
        world.compare()
        assert f"missing: {what}" not in texts(world)


def test_messages_removed_before_they_were_renumbered_are_reported_under_the_new_identity(
    tmp_path: Path, blind: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = finished(4, tmp_path)
    stream, message = Stream("p1", "orders"), MessageId("p1", 7, "orders", 0, 3)
    world.oracle.violations.append(Violation("lost", "", 0.0, ("g1", message)))
    moved = JournalRow(
        9, "", "renumbered", 0, 0, 0, *stream, 7, 1, 1, 5, "", "", "", None, None, {"epoch": 8}
    )
    monkeypatch.setattr(world.producers[0], "renumbering", lambda: Renumbering([moved]))
    blind.append(Finding("removed", "", stream, "g1", epoch=8, first=3, last=3))
    world.compare()
    assert not any(str(message) in violation.text for violation in world.oracle.violations)


def test_messages_removed_after_they_were_renumbered_are_removed_for_the_judge_under_the_first_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(draw(4, 60), tmp_path)
    oracle, producer, stream = world.oracle, world.producers[0], Stream("p1", "orders")
    operations = [oracle.invoked(stream, b"%d" % seq) for seq in range(1, 4)]
    for seq, operation in enumerate(operations, 1):
        oracle.durable(operation, MessageId("p1", 7, "orders", 0, seq))
    moved = JournalRow(
        9, "", "renumbered", 0, 0, 0, *stream, 7, 1, 1, 3, "", "", "", None, None, {"epoch": 8}
    )
    monkeypatch.setattr(producer, "renumbering", lambda: Renumbering([moved]))
    monkeypatch.setattr(producer, "_order", lambda call: True)
    receipts = [SimpleNamespace(id=MessageId("p1", 8, "orders", 0, seq)) for seq in (2, 3)]
    monkeypatch.setattr(producer, "_durable", list(zip(operations[1:], receipts, strict=True)))
    monkeypatch.setattr(producer, "_removing", SimpleNamespace(randrange=lambda count: 0))
    producer._take_some_back(producer)  # type: ignore[arg-type]
    assert [operation.removed for operation in operations] == [False, True, True]


@pytest.mark.parametrize("kind", ["out_of_order", "not_redelivered"])
def test_findings_about_a_forked_epoch_count(tmp_path: Path, blind: list[Finding], kind: str) -> None:
    """A group that continues with another history of its producer is owed the same."""
    world = finished(1, tmp_path)
    group, stream = world.oracle.groups[0], Stream("p1", "orders")
    found = Finding(kind, "made up", stream, group, epoch=1, first=3, last=4)
    blind += [found, Finding("fork", "made up", stream, group, epoch=2)]
    world.compare()
    assert f"{kind}: {found}" in texts(world)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_continues_until_the_successor_of_an_inbox_expects_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """The judge considers everything done that the one before had settled."""
    world = finished(1, tmp_path)
    ended, group = world.scheduler.now, world.oracle.groups[0]
    if replaced:
        world.incidents.inbox_went_back(group, repairs=True)
    gap = SimpleNamespace(streams={"s": SimpleNamespace(gap=object(), held=0)})
    none = SimpleNamespace(streams={"s": SimpleNamespace(gap=None, held=0)})

    class Successor:
        def __init__(self) -> None:
            self.group, self.is_open, self.may_read = group, True, True

        @property
        def known_producers(self) -> set[str]:
            return set() if world.scheduler.now < ended + 5 else {"p1"}

        def status(self) -> SimpleNamespace:
            return gap if ended + 5 <= world.scheduler.now < ended + 10 else none

    monkeypatch.setattr(world, "consumers", [Successor()])
    monkeypatch.setattr(world, "producers", [SimpleNamespace(name="p1", is_open=True)])
    monkeypatch.setattr(world, "brokers", {})
    world._wait_for_successors()
    assert world.scheduler.now - ended == (10 if replaced else 0)
