"""When a simulated run that does not end is a stall, and which stalls are excused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.errors import ProducerFenced, QuarantineFull, ReliamsgError
from reliamsg.message import Gap, MessageId, Stream
from reliamsg.receiving.engine import ReceivingEngine
from reliamsg.sending.status import UnseenGroup
from reliamsg.simulation.runner import quiet
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.stalls import Liveness, excused_streams, group_bound, judge_stalls
from reliamsg.simulation.world import LINGER_S, World


def _is_plain(scenario: Scenario) -> bool:
    """Two producers, and groups that are owed everything by one consumer each."""
    begins = {settings["begin"] for settings in scenario.consumers.values()}
    return len(scenario.producers) == 2 and not scenario.standbys and begins == {"earliest"}


TWO = next(seed for seed in range(100) if _is_plain(draw(seed)))


def world_of(path: Path, seed: int = TWO) -> World:
    return World(draw(seed, 20, ()), path)


def publish(world: World, producer: str, seq: int) -> MessageId:
    body = f"{producer} {seq}".encode()
    operation = world.oracle.invoked(Stream(producer, "orders"), body)
    message = MessageId(producer, 5, "orders", 0, seq)
    world.oracle.durable(operation, message)
    return message


def full(why: str) -> QuarantineFull:
    return QuarantineFull(
        f"x.db: a message of stream p1/orders can't be taken in ({why}), and the quarantine is full"
    )


@pytest.mark.parametrize("fault", ["restored", "wal_lost"])
def test_a_fenced_producer_is_excused_by_what_became_of_its_own_disk(tmp_path: Path, fault: str) -> None:
    world = world_of(tmp_path)
    for producer in world.producers:
        publish(world, producer.name, 1)
    world.producers[0].ended_by = ProducerFenced("another has its name")
    world.faults.strikes(fault, "p2")
    assert excused_streams(world) == set()
    world.faults.strikes(fault, "p1")
    assert excused_streams(world) == {(group, Stream("p1", "orders")) for group in world.scenario.groups}


@pytest.mark.parametrize(
    ("why", "fault"), [("far-epoch", "far_epoch"), ("far-epoch", "forged"), ("too-many-streams", "forged")]
)
def test_a_full_quarantine_is_excused_by_what_somebody_did_to_the_stream_that_it_names(
    tmp_path: Path, why: str, fault: str
) -> None:
    world = world_of(tmp_path)
    for producer in world.producers:
        publish(world, producer.name, 1)
    for consumer in world.consumers:
        consumer.ended_by = full(why)
    for other in ("damage", "restored", "replayed"):
        world.faults.strikes(other, "p1")
    world.faults.strikes(fault, "p2")
    assert excused_streams(world) == set()
    judge_stalls(world)
    assert {violation.kind for violation in world.oracle.violations} == {"stalled"}
    world.faults.strikes(fault, "p1")
    assert len(excused_streams(world)) == 2 * len(world.scenario.groups)


@pytest.mark.parametrize("gone", ["restored", "wal_lost"])
@pytest.mark.parametrize("clock", ["g", "p1", ""])
def test_a_full_quarantine_is_excused_by_a_wrong_clock_and_a_disk_that_is_gone(
    tmp_path: Path, gone: str, clock: str
) -> None:
    world = world_of(tmp_path)
    publish(world, "p1", 1)
    for consumer in world.consumers:
        consumer.ended_by = full("far-epoch")
    world.faults.strikes(gone, "p1")
    assert excused_streams(world) == set(), "no clock was wrong"
    if clock == "g":
        for consumer in world.consumers:
            world.faults.strikes("clock_off", consumer.name)
    else:
        world.faults.strikes("clock_off" if clock else "clock_jump", clock)
    assert excused_streams(world) == {(group, Stream("p1", "orders")) for group in world.scenario.groups}


def test_a_full_quarantine_is_not_excused_where_a_producer_can_vouch(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    publish(world, "p1", 1)
    for consumer in world.consumers:
        consumer.ended_by = full("far-epoch")
        world.faults.strikes("clock_off", consumer.name)
    world.faults.strikes("restored", "p2")
    assert excused_streams(world) == set()


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        ({}, set()),
        ({"unseen": ()}, {"stalled"}),
        ({"state": "connecting"}, {"stalled"}),
        ({"parked": ("orders",)}, {"stalled"}),
        ({"left": 1}, {"stalled"}),
        ({"over": False}, {"stalled"}),
    ],
)
def test_a_producer_may_wait_for_confirms_for_a_group_that_ended_for_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any], wrong: set[str]
) -> None:
    """A broker need not show a group whose consumer is gone, and then its confirms do not count."""
    world = world_of(tmp_path)
    world.faults.strikes("far_epoch", "p1")
    if shown.get("over", True):
        for consumer in world.consumers:
            consumer.ended_by = full("far-epoch")
    unseen = tuple(UnseenGroup(group, "orders", 0) for group in world.scenario.groups)
    site = SimpleNamespace(
        state=shown.get("state", "connected"), parked=shown.get("parked", ()), unseen=shown.get("unseen", unseen),
        error="",
    )  # fmt: skip
    status = SimpleNamespace(sites={"dc1": site}, pending=3)
    for producer in world.producers:
        monkeypatch.setattr(producer, "engine", SimpleNamespace(status=lambda: status))
        monkeypatch.setattr(type(producer), "pending", 3)
        producer.left = shown.get("left", 0)
    monkeypatch.setattr("reliamsg.simulation.stalls._producer_says", lambda producer: "something")
    judge_stalls(world)
    assert {violation.kind for violation in world.oracle.violations} == wrong


@pytest.mark.parametrize("error", [None, QuarantineFull("full, and no word of what"), ReliamsgError("tired")])
def test_an_end_without_a_cause_excuses_nothing(tmp_path: Path, error: ReliamsgError | None) -> None:
    world = world_of(tmp_path)
    publish(world, "p1", 1)
    for name in ("far_epoch", "forged", "flood", "restored", "wal_lost"):
        world.faults.strikes(name, "p1")
    for process in world.processes:
        process.ended_by = error
    assert excused_streams(world) == set()


def test_what_goes_on_slowly_is_no_stall_and_what_stands_still_is(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    group = next(iter(world.scenario.groups))
    for producer in world.producers:
        producer.left = 0
    messages = [publish(world, "p1", seq) for seq in range(1, 6)]
    liveness, bound = Liveness(world), group_bound(world, group)
    liveness.look()
    for message in messages[:-1]:
        world.scheduler.run(world.scheduler.now + bound - 1.0)
        for each in world.scenario.groups:
            world.oracle.acked[each].add(message)
        liveness.look()
        assert not liveness.stalled
    for each in world.scenario.groups:  # what is open again, and then as before, is no progress
        world.oracle.acked[each].clear()
    liveness.look()
    assert not liveness.stalled
    for each in world.scenario.groups:
        world.oracle.acked[each].update(messages[:-1])
    world.scheduler.run(world.scheduler.now + 10 * bound)
    liveness.look()
    assert liveness.stalled


def test_a_group_that_passes_what_it_is_not_owed_on_its_way_is_not_stalled(tmp_path: Path) -> None:
    """Its producer named it late: what is owed lies behind gaps that nobody has to fill."""
    world = world_of(tmp_path)
    group = next(iter(world.scenario.groups))
    for producer in world.producers:
        producer.left = 0
    consumer = next(each.name for each in world.consumers if each.group == group)
    publish(world, "p1", 9)
    liveness, bound = Liveness(world), group_bound(world, group)
    liveness.look()
    for seq in range(1, 8):
        world.scheduler.run(world.scheduler.now + bound - 1.0)
        world.oracle.missed(group, consumer, Gap(Stream("p1", "orders"), 5, seq, seq, "expired"))
        liveness.look()
        assert not liveness.stalled
    for _ in range(2):  # what it passes once more is no progress
        world.scheduler.run(world.scheduler.now + bound - 1.0)
        world.oracle.missed(group, consumer, Gap(Stream("p1", "orders"), 5, 7, 7, "expired"))
        liveness.look()
    assert liveness.stalled


def test_the_bound_follows_the_settings(tmp_path: Path) -> None:
    found = {}
    for seed in range(40):
        world = World(draw(seed, 10, ()), tmp_path / str(seed))
        for group, settings in world.scenario.groups.items():
            bound = group_bound(world, group)
            assert bound > settings["gap_timeout"] + settings["takeover_timeout"]
            found[seed, group] = bound
    assert min(found.values()) < 250 < max(found.values()) < 600


def test_a_stream_that_a_consumer_sits_on_is_a_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails in this run, so nothing that a status says can excuse it."""
    monkeypatch.setattr(ReceivingEngine, "take", lambda *_: None)
    with quiet():
        world = world_of(tmp_path)
        world.run()
    stalled = {
        violation.text.split(":")[0] for violation in world.oracle.violations if violation.kind == "stalled"
    }
    for group in world.scenario.groups:
        assert any(text.startswith(f"{group} has ") for text in stalled), stalled


def test_what_a_group_meets_at_the_very_end_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was owed to it is done, and the run about to end."""
    world, left = world_of(tmp_path), list[object]()

    def meet() -> None:
        message = publish(world, "p1", 999)
        for group in world.scenario.groups:
            world.scheduler.after(LINGER_S + 2.0, world.oracle.acked[group].add, message)

    def judge(_: object) -> None:
        left.extend(each for group in world.scenario.groups for each in world.oracle.open_for(group))

    monkeypatch.setattr(world, "_wait_for_successors", meet)
    monkeypatch.setattr(world.oracle, "judge", judge)
    with quiet():
        world.run()
    assert left == []
