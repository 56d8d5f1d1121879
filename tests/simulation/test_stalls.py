"""When a simulated run that does not finish is a stall, and which stalls are excused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.consumer.deliveries import Deliveries
from reliamsg.errors import ProducerFenced, QuarantineFull, ReliamsgError
from reliamsg.message import MessageId, Stream
from reliamsg.producer.status import UnseenGroup
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.runner import quiet
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.stalls import (
    Bounds,
    ConsumerReport,
    Excuses,
    Key,
    Liveness,
    ProducerReport,
    Progress,
    find_stalls,
)
from reliamsg.simulation.world import LINGER_S, World

ONE, TWO = Stream("p1", "orders"), Stream("p2", "orders")
GROUPS = {"g1": ("g1-1",), "g2": ("g2-1", "g2-2")}


class Run:
    """Two producers and two groups, and the faults that occurred."""

    def __init__(self) -> None:
        self.faults = Faults(0, ())
        self.producers: dict[str, ReliamsgError | None] = {"p1": None, "p2": None}
        self.consumers: dict[str, ReliamsgError | None] = dict.fromkeys(("g1-1", "g2-1", "g2-2"))

    def strike(self, fault: str, client: str = "") -> None:
        self.faults.at("somewhere").strikes(fault, client)

    def terminate_consumers(self, error: ReliamsgError | None) -> None:
        self.consumers = dict.fromkeys(self.consumers, error)

    @property
    def excuses(self) -> Excuses:
        groups = {group: {name: self.consumers[name] for name in names} for group, names in GROUPS.items()}
        return Excuses(self.faults, self.producers, groups)

    @property
    def excused(self) -> set[tuple[str, Stream]]:
        excuses = self.excuses
        return {(g, stream) for g in GROUPS for stream in (ONE, TWO) if excuses.excuses_stream(g, stream)}


@pytest.fixture
def finished() -> Run:
    """Nothing more is going to happen."""
    return Run()


def full(why: str) -> QuarantineFull:
    return QuarantineFull(
        f"x.db: a message of stream p1/orders can't be taken in ({why}), and the quarantine is full"
    )


@pytest.mark.parametrize("fault", ["restored", "wal_lost"])
def test_a_fenced_producer_is_excused_by_the_fate_of_its_own_disk(finished: Run, fault: str) -> None:
    finished.producers["p1"] = ProducerFenced("another has its name")
    finished.strike(fault, "p2")
    assert finished.excused == set()
    finished.strike(fault, "p1")
    assert finished.excused == {("g1", ONE), ("g2", ONE)}
    assert finished.excuses.excuses_producer("p1")


@pytest.mark.parametrize(
    ("why", "fault"), [("far-epoch", "far_epoch"), ("far-epoch", "forged"), ("too-many-streams", "forged")]
)
def test_a_full_quarantine_is_excused_by_an_attack_on_the_stream_that_it_names(
    finished: Run, why: str, fault: str
) -> None:
    finished.terminate_consumers(full(why))
    for other in ("damage", "restored", "replayed"):
        finished.strike(other, "p1")
    finished.strike(fault, "p2")
    assert finished.excused == set()
    consumers = [ConsumerReport(f"{group}-1", group, None, full(why)) for group in GROUPS]
    left: dict[Key, int] = {("g1", ONE): 1, ("g2", TWO): 2, "p1": 1}
    stalls = list(find_stalls(finished.excuses, [], consumers, left))
    assert [text.split(": ")[0] for text in stalls] == [
        f"g1 still lacks 1 message of {ONE}",
        f"g2 still lacks 2 messages of {TWO}",
    ]
    finished.strike(fault, "p1")
    assert len(finished.excused) == 4
    assert not list(find_stalls(finished.excuses, [], consumers, left))


@pytest.mark.parametrize("gone", ["restored", "wal_lost"])
@pytest.mark.parametrize("clock", ["g", "p1", ""])
def test_a_full_quarantine_is_excused_by_a_wrong_clock_and_a_disk_that_is_gone(
    finished: Run, gone: str, clock: str
) -> None:
    finished.terminate_consumers(full("far-epoch"))
    finished.strike(gone, "p1")
    assert finished.excused == set(), "no clock was wrong"
    if clock == "g":
        for consumer in finished.consumers:
            finished.strike("clock_off", consumer)
    else:
        finished.strike("clock_off" if clock else "clock_jump", clock)
    assert len(finished.excused) == 4


def test_a_full_quarantine_is_not_excused_where_a_producer_can_vouch(finished: Run) -> None:
    finished.terminate_consumers(full("far-epoch"))
    for consumer in finished.consumers:
        finished.strike("clock_off", consumer)
    finished.strike("restored", "p2")
    assert finished.excused == set()


def test_a_group_is_not_excused_as_long_as_one_of_its_consumers_is_not(finished: Run) -> None:
    finished.strike("far_epoch", "p1")
    finished.consumers["g1-1"] = finished.consumers["g2-1"] = full("far-epoch")
    assert finished.excused == {("g1", ONE), ("g1", TWO)}


@pytest.mark.parametrize(
    ("shown", "stalled"),
    [
        ({}, False),
        ({"unseen": ()}, True),
        ({"state": "connecting"}, True),
        ({"parked": (SimpleNamespace(topic="orders", reason="nacked"),)}, True),
        ({"left": 1}, True),
        ({"over": False}, True),
        ({"open": False}, True),
    ],
)
def test_a_producer_may_wait_for_confirms_for_a_group_that_ended_for_a_reason(
    finished: Run, shown: dict[str, Any], stalled: bool
) -> None:
    """A broker need not show a group whose consumer is gone, and then its confirms do not count."""
    finished.strike("far_epoch", "p1")
    if shown.get("over", True):
        finished.terminate_consumers(full("far-epoch"))
    unseen = tuple(UnseenGroup(group, "orders", 0) for group in GROUPS)
    site = SimpleNamespace(
        state=shown.get("state", "connected"), parked=shown.get("parked", ()), unseen=shown.get("unseen", unseen),
        error="",
    )  # fmt: skip
    status: Any = SimpleNamespace(sites={"dc1": site}, pending=3) if shown.get("open", True) else None
    report = ProducerReport("p1", False, shown.get("left", 0), status, None)
    assert bool(list(find_stalls(finished.excuses, [report], [], {}))) == stalled


def test_a_producer_that_is_done_has_not_stalled(finished: Run) -> None:
    report = ProducerReport("p1", True, 0, None, None)
    assert not list(find_stalls(finished.excuses, [report], [], {}))


@pytest.mark.parametrize("error", [None, QuarantineFull("full, and no word of what"), ReliamsgError("tired")])
def test_an_end_without_a_cause_excuses_nothing(finished: Run, error: ReliamsgError | None) -> None:
    for name in ("far_epoch", "forged", "flood", "restored", "wal_lost"):
        finished.strike(name, "p1")
    finished.producers = dict.fromkeys(finished.producers, error)
    finished.terminate_consumers(error)
    assert finished.excused == set()
    assert not finished.excuses.excuses_producer("p1")


# -- how long anything may take -----------------------------------------------------------------------------


def _is_plain(scenario: Scenario) -> bool:
    """Two producers, and groups that are owed everything by one consumer each."""
    begins = {settings["begin"] for settings in scenario.consumers.values()}
    return len(scenario.producers) == 2 and not scenario.standbys and begins == {"earliest"}


PLAIN = next(seed for seed in range(100) if _is_plain(draw(seed)))


def bounds_of(scenario: Scenario) -> Bounds:
    return Bounds(scenario, frozenset(), addresses_refused=False)


def test_slow_progress_is_no_stall_and_a_standstill_is_one() -> None:
    bounds, liveness, now = bounds_of(draw(PLAIN, 20, ())), Liveness(), 1_000.0
    key = "g1", ONE
    bound = bounds.of(key)

    def left(count: int) -> bool:
        liveness.update(Progress(now, {key: count}, {}))
        return liveness.stalled(now, bounds)

    assert not left(5)
    for count in (4, 3, 2, 1):
        now += bound - 1.0
        assert not left(count)
    assert not left(5)
    now += bound - 1.0
    assert not left(1)
    now += 2.0
    assert left(1), "a gap that opens again, and then as before, is no progress"


def test_a_group_that_passes_unowed_messages_is_not_stalled() -> None:
    """Its producer named it late: what is owed is behind gaps that nobody is obliged to fill."""
    bounds, liveness, now = bounds_of(draw(PLAIN, 20, ())), Liveness(), 1_000.0
    key = "g1", ONE
    bound = bounds.of(key)
    for seq in range(1, 8):
        liveness.update(Progress(now, {key: 1}, {("g1", ONE, "g1-1"): (5, seq)}))
        assert not liveness.stalled(now, bounds)
        now += bound - 1.0
    now += 2.0
    liveness.update(Progress(now, {key: 1}, {("g1", ONE, "g1-1"): (5, 7)}))
    assert liveness.stalled(now, bounds), "messages passed once more are no progress"


def test_everything_that_is_left_has_to_stand_still() -> None:
    bounds, liveness = bounds_of(draw(PLAIN, 20, ())), Liveness()
    liveness.update(Progress(0.0, {("g1", ONE): 2, "p1": 2}, {}))
    later = bounds.of("p1") + 1.0
    assert liveness.stalled(later, bounds)
    liveness.update(Progress(later, {("g1", ONE): 1, "p1": 2}, {}))
    assert not liveness.stalled(later, bounds)


def test_the_bound_follows_the_settings() -> None:
    found = {}
    for seed in range(40):
        scenario = draw(seed, 10, ())
        for group, settings in scenario.groups.items():
            bound = bounds_of(scenario).of_group(group)
            assert bound > settings["gap_timeout"] + settings["takeover_timeout"]
            refused = Bounds(scenario, frozenset(), addresses_refused=True).of_group(group)
            unrepaired = Bounds(scenario, {group}, addresses_refused=False).of_group(group)
            assert min(refused, unrepaired) > bound
            found[seed, group] = bound
    assert min(found.values()) < 250 < max(found.values()) < 600


# -- whole runs ---------------------------------------------------------------------------------------------


def world_of(path: Path, seed: int = PLAIN) -> World:
    return World(draw(seed, 20, ()), path)


def test_a_stream_that_a_consumer_sits_on_is_a_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails in this run, so no status can excuse it."""
    monkeypatch.setattr(Deliveries, "take", lambda *_: None)
    with quiet():
        world = world_of(tmp_path)
        world.run()
    stalled = {
        violation.text.split(":")[0] for violation in world.oracle.violations if violation.kind == "stalled"
    }
    for group in world.scenario.groups:
        assert any(text.startswith(f"{group} still lacks ") for text in stalled), stalled


def test_streams_met_at_the_very_end_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything owed to it is done, and the run is about to finish."""
    world, left = world_of(tmp_path), list[object]()

    def meet() -> None:
        message = MessageId("p1", 5, "orders", 0, 999)
        world.oracle.durable(world.oracle.invoked(ONE, b"late"), message)
        for group in world.scenario.groups:
            world.scheduler.after(LINGER_S + 2.0, world.oracle.acked[group].add, message)

    def judge(_: object) -> None:
        left.extend(each for group in world.scenario.groups for each in world.oracle.open_for(group))

    monkeypatch.setattr(world, "_wait_for_successors", meet)
    monkeypatch.setattr(world.oracle, "judge", judge)
    with quiet():
        world.run()
    assert left == []
