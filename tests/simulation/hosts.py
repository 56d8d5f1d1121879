"""A process without a client, for simulated transports."""

from __future__ import annotations

import random

from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.executor import Executor
from reliamsg.simulation.host import Host
from reliamsg.simulation.network import Network
from reliamsg.simulation.trace import Trace
from reliamsg.transport.mqtt.receive_window import HELD_BYTES

__all__ = ["host"]


class Nobody:
    """A witness that ignores everything."""

    def received(self, address: str, body: bytes) -> None:
        pass

    def sent(self, address: str, body: bytes) -> None:
        pass


class Prompt(random.Random):
    """Everything happens as early as possible."""

    def uniform(self, a: float, b: float) -> float:
        return a


def host(scheduler: Scheduler, name: str, held_bytes: int = HELD_BYTES) -> Host:
    """It runs, waits as short as possible, and records a trace."""
    executor = Executor(scheduler, Prompt())
    executor.begin()
    return Host(name, executor, Network(scheduler, 1), Trace(scheduler, True), Nobody(), held_bytes)
