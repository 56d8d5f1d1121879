"""The model of a broker that in-memory sites and the simulator share."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from reliamsg.transport.base import Delivery, Evidence, Outcome, Outgoing
from reliamsg.transport.memory import model as module
from reliamsg.transport.memory.broker import NoFaults
from reliamsg.transport.memory.model import BrokerModel, BrokerSession, Copy, Fate, Published
from reliamsg.wire.address import created_address

BILLING, SHIPPING = ("orders", 0, "billing"), ("orders", 0, "shipping")


class Faults(NoFaults):
    """Each message has the next of these fates, if there is one, and any other none."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []

    def fate(self, session: BrokerSession, message: Outgoing, copies: Sequence[Copy]) -> Fate:
        return self.fates.pop(0) if self.fates else Fate(copies)


class World:
    """One broker, with a producer and, on request, readers."""

    def __init__(self, protocol: str) -> None:
        self.faults = Faults()
        self.model = BrokerModel[BrokerSession](protocol, self.faults)  # type: ignore[arg-type]
        self.producer = self.connect()

    def connect(self) -> BrokerSession:
        session = BrokerSession("client")
        self.model.open(session)
        return session

    def read(self, *queues: tuple[str, int, str]) -> BrokerSession:
        session = self.connect()
        self.model.read(session, queues)
        return session

    def publish(self, number: int, parts_left: int = 0, largest: int | None = None) -> Published:
        message = Outgoing(number, "orders", 0, b"%d" % number, None, None, f"p/{number}", 0, parts_left)
        published = self.model.publish(self.producer, message, largest)
        for copy in published.copies or ():
            self.model.store(copy)
        return published


@pytest.fixture(params=["amqp", "mqtt"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def bodies(deliveries: Sequence[Delivery]) -> list[tuple[bytes, bool]]:
    return [(delivery.body, delivery.redelivered) for delivery in deliveries]


def test_it_has_no_threads_and_no_clock() -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if not name.startswith("reliamsg.")} == {
        "__future__", "collections", "collections.abc", "itertools", "msgspec", "random", "typing",
    }  # fmt: skip


def test_unacknowledged_deliveries_return_in_order_before_all_others(world: World) -> None:
    reader = world.read(BILLING)
    for number in range(4):
        world.publish(number)
    found = world.model.take(reader, 3)
    assert bodies(found) == [(b"0", False), (b"1", False), (b"2", False)]
    world.model.acknowledge(reader, [1])
    assert world.model.close(reader)
    assert not world.model.close(reader)
    assert not world.model.acknowledge(reader, [2])
    again = world.read(BILLING)
    assert bodies(world.model.take(again, 9)) == [(b"1", True), (b"2", True), (b"3", False)]


def test_queues_are_gone_only_if_none_is_left(world: World) -> None:
    first, second, third = (world.connect() for _ in range(3))
    assert world.model.read(first, [BILLING]) is False
    world.model.close(first)
    assert world.model.read(second, [BILLING, SHIPPING]) is None
    world.model.close(second)
    assert world.model.read(third, [BILLING, SHIPPING]) is True


def test_acknowledgements_out_of_order(world: World) -> None:
    reader = world.read(BILLING, SHIPPING)
    for number in range(3):
        world.publish(number)
    assert len(world.model.take(reader, 9)) == 6
    in_order = world.model.protocol == "mqtt"
    assert len(world.model.acknowledge(reader, [2, 3])) == (0 if in_order else 2)
    assert len(world.model.acknowledge(reader, [1, 1, 99])) == (3 if in_order else 1)
    assert reader.unacknowledged == world.model.waiting() == 3


def test_a_batch_is_answered_once_with_the_first_refusal(world: World) -> None:
    world.model.create(BILLING)
    refusal = Outcome.REFUSED, "as told"
    world.faults.fates = [Fate(refusal=refusal)]
    assert world.publish(7, parts_left=1).answer is None
    answer = world.publish(7).answer
    assert answer is not None
    assert (answer.token, answer.refusal, len(answer.parts)) == (7, refusal, 2)
    world.faults.fates = [Fate(answered=False)]
    assert world.publish(8, parts_left=1).answer is world.publish(8).answer is None
    assert world.model.waiting() == 2, "the other parts are stored"


def test_what_reaches_no_queue_and_what_is_too_large(world: World) -> None:
    answer = world.publish(1).answer
    assert answer is not None
    assert (answer.refusal is not None) == (world.model.protocol == "amqp")
    world.model.create(BILLING)
    answer = world.publish(12, largest=1).answer
    assert answer is not None
    assert answer.refusal is not None
    assert answer.refusal[0] is Outcome.REFUSED
    assert not world.model.waiting()


def test_an_amqp_queue_is_reported_empty_once_each_time(world: World) -> None:
    reader, amqp = world.read(BILLING), world.model.protocol == "amqp"
    for number in range(2):
        assert [world.model.turned_empty(reader) for _ in range(2)] == [amqp, False]
        world.publish(number)
        assert len(world.model.take(reader, 9)) == 1


def test_nothing_is_delivered_until_further_notice(world: World) -> None:
    reader = world.read(BILLING)
    world.publish(1)
    world.model.deliver(False)
    assert not world.model.take(reader, 9)
    world.model.deliver(True)
    assert len(world.model.take(reader, 9)) == 1


def test_a_snapshot_holds_what_is_delivered_too(world: World) -> None:
    reader = world.read(BILLING)
    world.publish(1)
    world.model.take(reader, 9)
    world.model.take_snapshot()
    world.model.acknowledge(reader, [1])
    world.model.close(reader)
    world.model.create(SHIPPING, b"mark")
    assert world.model.restore_snapshot() == 1
    assert [delivery.body for _, delivery in world.model.stored()] == [b"1"]
    assert SHIPPING not in world.model.queues
    assert world.model.evidence(SHIPPING, tells=False, wrongly=False) is Evidence.NOT_MARKED
    assert world.model.wipe() == 1
    assert not world.model.waiting()


def test_only_mqtt_brokers_retain_marks(world: World) -> None:
    address = created_address(*BILLING)
    mqtt = world.model.protocol == "mqtt"
    assert [world.model.keep_mark(address, b"mark") for _ in range(2)] == [mqtt, False]
    shown = world.model.evidence(BILLING, tells=False, wrongly=False)
    assert shown == (b"mark" if mqtt else Evidence.NOT_MARKED)
