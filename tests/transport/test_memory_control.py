"""Control frames at brokers in memory: who hears what is told, and what goes wrong on demand."""

from __future__ import annotations

import threading

import pytest

from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import Binding
from reliamsg.transport.memory.connection import MOST_WAITING_BYTES
from reliamsg.transport.memory.receiver import MemoryReceiver
from reliamsg.transport.memory.sender import MemorySender
from reliamsg.wire.address import group_address, producer_address, status_address
from tests.patience import wait_for
from tests.transport.tools import Receiving, Sending

STATUS = status_address("orders")
GROUP = group_address("billing")
PRODUCER = producer_address("p")


class World:
    """One stepped site with a producer and a group, each of which listens where it would."""

    def __init__(self, protocol: str = "amqp", seed: int = 0) -> None:
        self.network = MemoryNetwork("dc1", protocol=protocol, seed=seed, threaded=False)  # type: ignore[arg-type]
        self.broker = self.network["dc1"]
        (self.site,) = self.network.sites
        self.sending, self.receiving = Sending(), Receiving()
        sender = factory.open_sender(self.site, "p", [], self.sending)
        receiver = factory.open_receiver(self.site, [Binding("orders", 0, "billing")], self.receiving)
        assert isinstance(sender, MemorySender)
        assert isinstance(receiver, MemoryReceiver)
        self.sender, self.receiver = sender, receiver
        self.sender.listen([PRODUCER])
        self.receiver.listen([STATUS, GROUP])

    def start(self) -> World:
        self.sender.start()
        self.receiver.start()
        self.run()
        return self

    def run(self) -> None:
        self.network.run_pending()


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_both_directions_hear_at_their_addresses(protocol: str) -> None:
    world = World(protocol).start()
    assert world.sender.send_control(STATUS, b"status")
    assert world.receiver.send_control(PRODUCER, b"state")
    assert world.receiver.send_control(GROUP, b"beacon")
    world.run()
    assert world.sending.frames == [(PRODUCER, b"state")]
    assert world.receiving.frames == [(STATUS, b"status"), (GROUP, b"beacon")]
    assert not world.receiving.deliveries
    assert world.broker.queued() == 0


def test_nothing_is_taken_while_not_connected() -> None:
    world = World()
    assert not world.sender.send_control(STATUS, b"too early")
    world.start()
    world.broker.down()
    assert not world.sender.send_control(STATUS, b"site down")
    world.run()
    world.broker.up()
    world.run()
    assert world.sender.send_control(STATUS, b"back")
    world.run()
    assert world.receiving.frames == [(STATUS, b"back")]


def test_nothing_is_kept_for_who_is_absent() -> None:
    world = World()
    world.sender.start()
    world.run()
    assert world.sender.send_control(STATUS, b"nobody is there")
    world.receiver.start()
    world.run()
    assert world.sender.send_control(STATUS, b"somebody is")
    # It came, and was not handed out yet, when the connection broke.
    assert world.sender.send_control(STATUS, b"lost on the way")
    world.receiver.reconnect("test")
    world.run()
    assert world.receiving.frames == []
    assert world.sender.send_control(STATUS, b"after the reconnect")
    world.run()
    assert world.receiving.frames == [(STATUS, b"after the reconnect")]


def test_addresses_are_replaced_at_once() -> None:
    world = World().start()
    world.sender.send_control(STATUS, b"of an address given up")
    other = status_address("invoices")
    world.receiver.listen([other])
    world.sender.send_control(STATUS, b"of an address given up")
    world.sender.send_control(other, b"new")
    world.run()
    assert world.receiving.frames == [(other, b"new")]
    assert world.broker.control.listeners(STATUS) == 0
    assert world.broker.control.listeners(other) == 1


def test_listening_begins_before_connected_is_told() -> None:
    """Whoever tells something on connecting hears the answer."""
    world = World()
    told: list[bool] = []

    def connected(endpoint: str, session_present: bool | None) -> None:
        told.append(world.receiver.send_control(GROUP, b"beacon"))

    world.receiving.connected = connected  # type: ignore[method-assign]
    world.start()
    assert told == [True]
    assert world.receiving.frames == [(GROUP, b"beacon")]


def test_blocked_refused_and_too_large() -> None:
    world = World().start()
    world.broker.block()
    assert not world.sender.send_control(STATUS, b"blocked")
    world.broker.unblock()
    world.broker.control.refuse()
    assert not world.sender.send_control(STATUS, b"refused")
    world.broker.control.refuse(False)
    assert not world.sender.send_control(STATUS, bytes(world.site.max_frame_bytes + 1))
    assert world.sender.send_control(STATUS, bytes(world.site.max_frame_bytes))
    world.run()
    assert [len(body) for _, body in world.receiving.frames] == [world.site.max_frame_bytes]


def test_faults() -> None:
    world = World(seed=3).start()
    control = world.broker.control
    control.lose(1)
    control.duplicate(1)
    for body in (b"lost", b"twice", b"once"):
        assert world.sender.send_control(STATUS, body)
    world.run()
    assert [body for _, body in world.receiving.frames] == [b"twice", b"twice", b"once"]
    world.receiving.frames.clear()
    control.hold()
    late = [b"%d" % number for number in range(20)]
    for body in late:
        assert world.sender.send_control(STATUS, body)
    world.run()
    assert not world.receiving.frames
    control.release(shuffle=True)
    world.run()
    came = [body for _, body in world.receiving.frames]
    assert sorted(came) == sorted(late)
    assert came != late


def test_a_listener_that_does_not_listen_costs_no_more_than_a_bound() -> None:
    """The oldest go, since a later snapshot replaces an earlier one."""
    world = World().start()
    size = world.site.max_frame_bytes // 4
    for number in range(20):
        assert world.sender.send_control(STATUS, bytes([number]) * size)
    world.run()
    numbers = [body[0] for _, body in world.receiving.frames]
    assert numbers == list(range(20))[-(MOST_WAITING_BYTES // size) :]


def test_threads_hear_what_others_tell() -> None:
    sending, receiving = Sending(), Receiving()
    with MemoryNetwork("dc1") as network:
        sender = factory.open_sender(network.sites[0], "p", [], sending)
        receiver = factory.open_receiver(network.sites[0], [Binding("orders", 0, "billing")], receiving)
        receiver.listen([STATUS])
        sender.start()
        receiver.start()
        wait_for(lambda: sending.up and receiving.up, "both are connected")
        assert sender.send_control(STATUS, b"status")
        wait_for(lambda: receiving.frames, "the frame is heard")
        assert threading.get_ident() not in receiving.threads
    assert not sender.send_control(STATUS, b"closed")
