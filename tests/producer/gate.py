"""A group that has entered an epoch above any producer's, for tests in other processes."""

from __future__ import annotations

import time

from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.wire.address import group_address, producer_address
from reliamsg.wire.control import VERSION, State, Status, StreamState, encode_state, open_control
from tests.silent import SilentSender

__all__ = ["group_that_is_ahead"]


class _Ahead(SilentSender):
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


def group_that_is_ahead(network: MemoryNetwork, topic: str, group: str) -> object:
    """Answers every status with an epoch that is not the producer's."""
    return _Ahead(network, topic, group)
