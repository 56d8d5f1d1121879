"""The process that simulated transports belong to, as far as they need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reliamsg.simulation.executor import Executor
from reliamsg.simulation.network import Network, Path
from reliamsg.simulation.trace import Trace
from reliamsg.transport.mqtt.receive_window import HELD_BYTES

__all__ = ["ControlWitness", "Host"]


class ControlWitness(Protocol):
    """Is notified of the control frames of one process."""

    def received(self, address: str, body: bytes) -> None:
        """A control frame arrived."""

    def sent(self, address: str, body: bytes) -> None:
        """A control frame is sent."""


@dataclass(frozen=True)
class Host:
    """See the fields."""

    name: str
    executor: Executor
    network: Network
    trace: Trace
    witness: ControlWitness
    held_bytes: int = HELD_BYTES
    """MQTT: messages beyond a receiver's window are accepted while those that it holds have fewer bytes than this."""

    def path(self, site: str, channel: str = "") -> Path:
        """The network to a site; `channel`: for which of several connections."""
        return self.network.path(self.name, site, channel)

    def note(self, what: str) -> None:
        """Record a line in the trace."""
        self.trace.note("process", self.name, what)
