"""Connecting to a simulated broker."""

from __future__ import annotations

import random
from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.simulation.broker import Broker, BrokerTraits
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.traffic import Traffic
from reliamsg.simulation.transport import SimulatedReceiver
from reliamsg.transport.base import Binding, Delivery
from tests.simulation.hosts import host


class Events:
    """The events of a receiver, except messages."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        self.seen.append("connected")

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        self.seen.append("disconnected")

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        self.seen.append("unreachable")

    def busy(self, holder: str) -> None:
        self.seen.append("busy")

    def received(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def drained(self) -> None:
        pass

    def control_received(self, address: str, body: bytes) -> None:
        pass

    def control_returned(self, address: str) -> bool:
        return False


def test_an_attempt_that_is_over_does_not_time_out() -> None:
    """A connection is lost just before the attempt that led to it would have timed out, and the next one can't succeed:
    there is one attempt at a time, and none ends after a later one has begun."""
    scheduler = Scheduler(0.0)
    process, events = host(scheduler, "p"), Events()
    path, trace = process.path("dc1"), process.trace
    traffic = Traffic(Oracle(scheduler, ["g"], {}, {}), trace)
    faults = Faults(0, ()).at("dc1")
    broker = Broker(BrokerTraits("dc1", "amqp"), scheduler, faults, trace, traffic, random.Random(1))
    site = Site("dc1", "amqp://simulated")
    transport = SimulatedReceiver(process, site, broker, "g", [Binding("t", 0, "g")], events)
    transport.start()
    scheduler.run(2.99)
    assert events.seen == ["connected"]
    for direction in ("up", "down"):
        path.set_cut(direction, True)
    for connection in list(path.connections):
        connection.reset("connection reset")
    scheduler.run(3.05)
    for direction in ("up", "down"):
        path.set_cut(direction, False)
    scheduler.run(20.0)
    assert events.seen == ["connected", "disconnected", "unreachable", "connected"]
