"""No keys: one blind packet speaks of an epoch far ahead, and a real producer and consumer go on as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.message import Prev, Stream
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.address import group_address, producer_address, status_address
from reliamsg.wire.control import (
    VERSION,
    ChainEpoch,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_state,
    encode_status,
)
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode
from reliamsg.wire.limits import MAX_EPOCH, MAX_SEQ
from tests.consumer.control_tools import Ear
from tests.patience import wait_for

STREAM = Stream("till", "sales")
GROUP = "books"


def message(network: MemoryNetwork, _: Ear, epoch: int) -> None:
    frame = encode(Origin(STREAM, epoch, 5, Prev(epoch - 1, 4, 1)), 1, (1, epoch), Records([b"forged"]))
    network["dc1"].inject("sales", frame, content_type=CONTENT_TYPE)


def status(_: MemoryNetwork, ear: Ear, epoch: int) -> None:
    to = status_address("sales")
    told = StreamStatus("sales", 0, [ChainEpoch(epoch, 5, 1, MAX_SEQ)])
    for frame in encode_status(Status(VERSION, "till", epoch, 5, 2**60, 2**60, 0, 60_000, False, to, [told])):
        ear.transport.send_control(to, frame)


def hello(_: MemoryNetwork, ear: Ear, epoch: int) -> None:
    to = producer_address("till")
    for frame in encode_status(Status(VERSION, "till", epoch, 5, 1, 0, 0, 0, False, to, [])):
        ear.transport.send_control(to, frame)


def _state(ear: Ear, epoch: int, to: str) -> None:
    told = StreamState("sales", 0, (epoch, 2**60), (epoch, 5), 2**60)
    said = State(VERSION, GROUP, "evil", 2**60, 0, to, "till", "active", b"12345678", [told])
    for frame in encode_state(said):
        ear.transport.send_control(to, frame)


def state(_: MemoryNetwork, ear: Ear, epoch: int) -> None:
    _state(ear, epoch, producer_address("till"))


def told_to_standbys(_: MemoryNetwork, ear: Ear, epoch: int) -> None:
    _state(ear, epoch, group_address(GROUP))


@pytest.mark.parametrize(
    "epoch", [2**62, MAX_EPOCH - 1, MAX_EPOCH, MAX_SEQ], ids=["2^62", "last", "first-out", "max"]
)
@pytest.mark.parametrize("packet", [message, status, hello, state, told_to_standbys])
def test_a_producer_is_not_silenced(
    tmp_path: Path, packet: Callable[[MemoryNetwork, Ear, int], None], epoch: int
) -> None:
    def opened() -> Producer:
        return Producer(
            "till", network.sites, outbox=tmp_path / "till.db", groups={"sales": [GROUP]},
            release="consumed", hello_timeout=0.3, on_error=errors.append,
        )  # fmt: skip

    def goes_through(*bodies: bytes) -> None:
        for body in bodies:
            producer.publish("sales", body).wait(timeout=60)
        for body in bodies:
            got = wait_for(lambda: consumer.get(timeout=0.2), "delivered")
            assert (got.body, got.redelivered) == (body, False)
            got.ack(durable=True)

    errors: list[BaseException] = []
    with MemoryNetwork("dc1") as network:
        consumer = Consumer(
            GROUP, network.sites, topics=["sales"], inbox=tmp_path / "books.db", gap_timeout=1.0,
            takeover_timeout=4.0,
        )  # fmt: skip
        producer = opened()
        goes_through(b"1")
        ear = Ear(network, network.sites[0], "somebody", [])
        wait_for(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
        packet(network, ear, epoch)
        goes_through(b"2", b"3")
        producer.close()
        producer = opened()
        goes_through(b"4", b"5")
        assert producer.close().nothing
        consumer.close()
    assert {type(error).__name__ for error in errors} <= {"ProducerConflict"}
