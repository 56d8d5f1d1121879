"""A group that has entered an epoch above any producer's, for tests in other processes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import Binding, Evidence, Mark
from reliamsg.wire.address import group_address, producer_address
from reliamsg.wire.control import VERSION, State, Status, StreamState, encode_state, open_control

__all__ = ["group_that_is_ahead"]


class _Ahead:
    def __init__(self, network: MemoryNetwork, topic: str, group: str) -> None:
        self._topic, self._group = topic, group
        self._epoch = time.time_ns() // 10**6 + 3_600_000
        self._transport = factory.open_sender(network.sites[0], f"group {group}", (), self)
        self._transport.listen([group_address(group)])
        self._transport.start()

    def control_received(self, address: str, body: bytes) -> None:
        status = open_control(body, address)
        assert isinstance(status, Status)
        to = producer_address(status.producer)
        ahead = StreamState(self._topic, 0, (self._epoch, 5), (self._epoch, 77), 0, [], [], [])
        said = State(VERSION, self._group, "inbox", 1, 0, to, status.producer, "active", b"", [ahead])
        for frame in encode_state(said):
            self._transport.send_control(to, frame)

    def connected(self, endpoint: str, window: int | None) -> None: ...
    def disconnected(self, reason: str, renewing: bool = False) -> None: ...
    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None: ...
    def blocked(self, reason: str | None) -> None: ...
    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None: ...
    def confirmed(self, tokens: object) -> None: ...
    def refused(self, token: int, outcome: object, reason: str) -> None: ...
    def pull(self) -> tuple[()]:
        return ()


def group_that_is_ahead(network: MemoryNetwork, topic: str, group: str) -> object:
    """Answers every status with an epoch that is not the producer's."""
    return _Ahead(network, topic, group)
