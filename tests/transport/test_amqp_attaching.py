"""How a group's queues are consumed from, request by request, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.config import Site
from reliamsg.transport.amqp.receiver import AmqpReceiver, _Consuming
from reliamsg.transport.amqp.topology import PRECONDITION_FAILED, Refused
from reliamsg.transport.base import Binding
from reliamsg.wire.address import group_queue
from tests.transport.amqp_tools import Asked, perform
from tests.transport.tools import Receiving

BINDING = Binding("orders", 0, "billing")
QUEUE = group_queue("orders", 0, "billing")


class Channel(Asked):
    """Notes what is asked for. `kind`: of the group's queue, which somebody has declared."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.consumed: dict[str, Any] = {}

    def answer(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "basic_consume":
            self.consumed[arguments[0]] = options["arguments"]
        if name == "queue_declare" and arguments[0] == QUEUE and not options.get("passive"):
            asked = options["arguments"]["x-queue-type"]
            if asked != self.kind:
                reason = (
                    f"inequivalent arg 'x-queue-type' for queue '{QUEUE}' in vhost '/': received '{asked}'"
                )
                raise Refused(PRECONDITION_FAILED, f"{reason} but current is '{self.kind}'")
        return SimpleNamespace(method=SimpleNamespace(message_count=0))


class Delivery(SimpleNamespace):
    delivery_tag = 1
    routing_key = "orders"
    redelivered = False


def connected(receiver: AmqpReceiver, channel: Channel) -> tuple[_Consuming, list[str]]:
    """A connection on which the receiver has set itself up; and why it was dropped."""
    dropped: list[str] = []
    connection = SimpleNamespace(
        server_version=(3, 13), script_channel=channel, alive=True,
        drop=lambda ended: dropped.append(ended.reason), perform=lambda *_: None, later=lambda *_: None,
    )  # fmt: skip
    active = receiver.make_active(connection, "broker:5672")  # type: ignore[arg-type]
    active._channel = channel
    perform(active._set_up(), channel)
    return active, dropped


def deliver(active: _Consuming, headers: dict[str, Any]) -> None:
    active._on_message(QUEUE, None, Delivery(), SimpleNamespace(headers=headers, content_type=None), b"1")


@pytest.mark.parametrize(
    ("kind", "attached"), [("quorum", None), ("classic", None), ("stream", {"x-stream-offset": "first"})]
)
def test_a_queue_that_an_operator_declared_is_attached_to_as_what_it_is(kind: str, attached: Any) -> None:
    channel = Channel(kind)
    receiver = AmqpReceiver(Site("dc1", "amqp://h"), [BINDING], Receiving())
    connected(receiver, channel)
    assert channel.consumed[QUEUE] == attached


def test_what_only_its_deliveries_show_to_be_a_stream_is_read_from_its_start_by_the_next_connection() -> None:
    """Where nothing is declared, no answer says of what kind a queue is."""
    receiver = AmqpReceiver(Site("dc1", "amqp://h", declare="none"), [BINDING], Receiving())
    channel = Channel("stream")
    active, dropped = connected(receiver, channel)
    assert channel.consumed[QUEUE] is None
    deliver(active, {"x-stream-offset": 7})
    assert dropped == [f"queue {QUEUE} is a stream: it is to be read from its start"]
    assert active._arrived == [], "nothing counts as delivered that did not come in its turn"
    again, dropped = connected(receiver, channel)
    assert channel.consumed[QUEUE] == {"x-stream-offset": "first"}
    deliver(again, {"x-stream-offset": 0})
    assert (dropped, len(again._arrived)) == ([], 1)
