"""Clients of simulated MQTT sites: when more arrives than they can keep, and with control frames."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reliamsg.config import Site
from reliamsg.simulation.broker import Broker, BrokerTraits
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.mqtt import SECOND
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.settings import ClientSettings
from reliamsg.simulation.traffic import Traffic
from reliamsg.simulation.transport import SimulatedReceiver
from reliamsg.transport.base import Binding, Delivery
from reliamsg.transport.mqtt.receive_window import window_of
from reliamsg.wire.address import group_address, producer_address
from tests.simulation.hosts import host

GROUP = group_address("g")
OTHER = group_address("h")
PRODUCER = producer_address("p")


class World:
    """One consumer of one MQTT site."""

    def __init__(self, *, refuses: Any = "closing", prefetch: int = 2, held_bytes: int = 1_000) -> None:
        self.scheduler = Scheduler(0.0)
        self.host = host(self.scheduler, "g-1", held_bytes)
        self.second = self.host.path("dc1", SECOND)
        self.faults = Faults(0, ())
        traffic = Traffic(Oracle(self.scheduler, ["g"], {}, {}), self.host.trace)
        self.broker = Broker(
            BrokerTraits("dc1", "mqtt", refuses=refuses), self.scheduler, self.faults.at("dc1"), self.host.trace,
            traffic, random.Random(1),
        )  # fmt: skip
        self.site = Site("dc1", "mqtt://simulated", prefetch=prefetch)
        self.seen: list[str] = []
        self.got: list[Delivery] = []
        self.heard_at: list[tuple[str, bytes]] = []
        bindings = [Binding("t", 0, "g")]
        self.receiver = SimulatedReceiver(self.host, self.site, self.broker, "g", bindings, self)

    # ReceiverEvents

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        self.seen.append("connected")

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        self.seen.append(reason)

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        self.seen.append("unreachable")

    def busy(self, holder: str) -> None:
        self.seen.append("busy")

    def received(self, deliveries: Sequence[Delivery]) -> None:
        self.got += deliveries

    def drained(self) -> None:
        pass

    def control_received(self, address: str, body: bytes) -> None:
        self.heard_at.append((address, body))

    def control_returned(self, address: str) -> bool:
        return False

    # the test

    def begin(self, *addresses: str) -> None:
        self.receiver.listen(addresses)
        self.receiver.start()
        self.wait(1.0)
        assert self.seen == ["connected"]

    def wait(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)

    def publish(self, count: int) -> None:
        for number in range(count):
            self.broker.inject("t", b"%03d" % number + bytes(97), None)

    def told(self, address: str) -> list[bytes]:
        return [body for at, body in self.heard_at if at == address]


def test_a_full_window_blocks_no_control_frame() -> None:
    world = World()
    world.begin(GROUP)
    world.broker.send_all(True)
    world.publish(50)
    assert world.receiver.send_control(GROUP, b"I am here")
    world.broker.send_control(GROUP, b"hello")
    world.wait(1.0)
    assert window_of(world.site) <= len(world.got) < 50
    assert any("drops a message" in line for line in world.host.trace.lines)
    assert world.faults.struck == {"over_send": 48}
    assert sorted(world.told(GROUP)) == [b"I am here", b"hello"]


def test_dropped_messages_are_redelivered_in_order_once_there_is_room() -> None:
    world = World()
    world.begin(GROUP)
    world.broker.send_all(True)
    world.publish(50)
    bodies: list[bytes] = []
    for _ in range(40):
        world.wait(1.0)
        got, world.got = world.got, []
        bodies += [delivery.body[:3] for delivery in got]
        world.receiver.acknowledge([delivery.token for delivery in got])
    assert list(dict.fromkeys(bodies)) == [b"%03d" % number for number in range(50)]
    assert "there is room again for messages that were not taken" in world.seen
    assert world.broker.model.waiting() == 0


@pytest.mark.parametrize(("version", "limit"), [("5", 2), ("3.1.1", 50)])
def test_a_broker_sends_ahead_as_much_as_its_client_allows(version: Any, limit: int) -> None:
    world = World(held_bytes=1 << 20)
    world.receiver.site = replace(world.site, mqtt_version=version)
    world.begin(GROUP)
    world.publish(50)
    world.wait(1.0)
    assert len(world.got) == limit
    assert not world.faults.struck


def test_an_address_that_ends_the_sending_connection_is_left_out_and_the_others_are_served() -> None:
    world = World()
    world.begin(GROUP, OTHER)
    world.broker.refuse_address(PRODUCER)
    for number in range(60):
        for address in (PRODUCER, GROUP):
            world.receiver.send_control(address, b"%d" % number)
        world.wait(0.2)
    assert world.receiver.refused_addresses() == [PRODUCER]
    assert len(world.told(GROUP)) > 50
    assert world.seen == ["connected"], "nothing else goes over the connection that is ended"
    world.broker.allow_addresses()
    tried = world.faults.struck["address_refused"]
    for number in range(300):
        world.receiver.send_control(PRODUCER, b"%d" % number)
        world.wait(0.2)
    assert world.receiver.refused_addresses() == []
    assert world.faults.struck["address_refused"] == tried


@pytest.mark.parametrize("refuses", ["closing", "answering"])
def test_a_refused_address_is_skipped_and_the_others_are_read(refuses: Any) -> None:
    world = World(refuses=refuses)
    world.broker.refuse_address(OTHER)
    world.receiver.listen([GROUP, OTHER])
    world.receiver.start()
    world.wait(30.0)
    assert world.receiver.refused_addresses() == [OTHER]
    world.broker.send_control(GROUP, b"hello")
    world.wait(1.0)
    assert world.told(GROUP) == [b"hello"]
    assert ("not authorized" in world.seen) == (refuses == "closing")


def test_the_second_connection_breaks_by_itself() -> None:
    world = World()
    world.begin(GROUP)
    assert world.receiver.send_control(GROUP, b"1")
    world.wait(1.0)
    for connection in list(world.second.connections):
        connection.reset("connection reset")
    world.second.set_cut("up", True)
    world.wait(1.0)
    assert world.receiver.send_control(GROUP, b"2")
    world.broker.send_control(GROUP, b"3")
    world.wait(1.0)
    assert world.told(GROUP) == [b"1", b"3"]
    world.second.set_cut("up", False)
    world.wait(10.0)
    assert world.receiver.send_control(GROUP, b"4")
    world.wait(1.0)
    assert world.told(GROUP)[-1] == b"4"
    assert world.seen == ["connected"]


# -- the judge ----------------------------------------------------------------------------------------------


def full(seed: int) -> Scenario:
    """A consumer with a small inbox, behind a gap, of one MQTT site that sends everything it has."""
    drawn = draw(seed, 200, ("misroute",))

    def small(client: ClientSettings, **values: Any) -> ClientSettings:
        site = replace(
            drawn.producers["p1"].sites[0], url="mqtt://simulated", mqtt_version="3.1.1", prefetch=2
        )
        return ClientSettings(client.role, {**client.values, **values}, (site,))

    producer = small(
        drawn.producers["p1"], release="consumed", wire="batch", confirm="all", remove=0.0, add_group=0.0,
        max_batch_messages=1, max_bytes=1 << 30, max_repair_bytes_per_second=None, groups="all",
    )  # fmt: skip
    consumer = small(
        drawn.groups["g1"], max_inbox_bytes=4096, held_bytes=2048, on_gap="hold", gap_timeout=10.0, operator_s=3.0,
        takeover_timeout=8.0, begin="earliest", topics="all", standby=False,
    )  # fmt: skip
    return replace(
        drawn, sites=producer.sites, producers={"p1": producer}, groups={"g1": consumer}, standbys={}, created=True,
        brokers={"dc1": ClientSettings("Broker", {"tells": "always", "inflight": None, "refuses": "closing"}, ())},
        topics=("orders",),
    )  # fmt: skip


STALLS = (1, 2)
"""Seeds in which the gap lasts long enough."""


@pytest.mark.parametrize("seed", STALLS)
def test_a_full_window_stalls_nobody(seed: int) -> None:
    outcome = run(full(seed), keep=True)
    assert "stalled" not in outcome.kinds
    assert not outcome.violations
    assert any("drops a message" in line for line in outcome.lines), "choose a seed of which it is full"


@pytest.mark.parametrize("seed", STALLS)
def test_who_stops_reading_while_the_window_is_full_is_convicted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the receivers of earlier versions: their own heartbeats were queued behind messages that they did
    not read."""

    def has_room(receiver: SimulatedReceiver) -> bool:
        return len(receiver._window) < window_of(receiver.site)

    monkeypatch.setattr(SimulatedReceiver, "_reads", property(has_room))
    assert "stalled" in run(full(seed)).kinds
