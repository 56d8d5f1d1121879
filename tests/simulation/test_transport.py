"""Connecting to a simulated broker."""

from __future__ import annotations

import random
from collections.abc import Callable

from reliamsg.config import Site
from reliamsg.simulation.broker import Broker
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.history import History
from reliamsg.simulation.network import Path
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.transport import SimulatedReceiver
from reliamsg.transport.base import Binding, Delivery
from reliamsg.transport.mqtt_inflow import HELD_BYTES


class Process:
    """Runs everything at once, and waits as short as it may."""

    name = "p"
    held_bytes = HELD_BYTES

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.way = Path(scheduler, random.Random(1))

    def path(self, site: str, which: str = "") -> Path:
        return self.way

    def now(self) -> float:
        return self.scheduler.now

    def left_out(self) -> None:
        pass

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)

    def after(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        self.scheduler.after(seconds, function, *arguments)

    def uniform(self, low: float, high: float) -> float:
        return low

    def overhear(self, address: str, body: bytes) -> None:
        pass


class Events:
    """What a receiver is told, but for messages."""

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

    def received(self, deliveries: list[Delivery]) -> None:
        pass

    def drained(self) -> None:
        pass

    def heard(self, address: str, body: bytes) -> None:
        pass


def test_an_attempt_that_is_over_does_not_time_out() -> None:
    """A connection is lost just before the attempt that led to it would have timed out, and the next one can't pass:
    there is one attempt at a time, and none ends behind the back of a later one."""
    scheduler = Scheduler(0.0)
    process, events = Process(scheduler), Events()
    history = History(scheduler, Oracle(scheduler, ["g"], 5.0, 1), False)
    broker = Broker("dc1", "amqp", scheduler, Faults(0, ()).at("dc1"), history, random.Random(1))
    site = Site("dc1", "amqp://simulated")
    transport = SimulatedReceiver(process, site, broker, "g", [Binding("t", 0, "g")], events)  # type: ignore[arg-type]
    transport.start()
    scheduler.run(2.99)
    assert events.seen == ["connected"]
    for direction in ("up", "down"):
        process.way.set_cut(direction, True)
    for connection in list(process.way.connections):
        connection.reset("connection reset")
    scheduler.run(3.05)
    for direction in ("up", "down"):
        process.way.set_cut(direction, False)
    scheduler.run(20.0)
    assert events.seen == ["connected", "disconnected", "unreachable", "connected"]
