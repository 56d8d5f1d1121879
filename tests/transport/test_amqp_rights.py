"""Clients ask RabbitMQ for nothing beyond the documented permission sets: without a broker, by its rules of which right
each request needs. That the sets suffice at a broker, and permit no more, is seen in tests/e2e/test_permissions.py."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import Any, Literal, get_args

import pytest

from reliamsg.config import Site
from reliamsg.transport.amqp.receiver import AmqpReceiver
from reliamsg.transport.amqp.sender import AmqpSender
from reliamsg.transport.amqp.topology import ACCESS_REFUSED, Refused, listen_queue
from reliamsg.transport.base import Binding
from reliamsg.wire.address import (
    EXCHANGE,
    call_address,
    control_queue,
    group_address,
    producer_address,
    status_address,
    topic_address,
)
from tests.docs.permissions import GROUP, PRODUCER, SECTIONS, TOPIC, Declare, recipe
from tests.transport.amqp_tools import Asked, perform
from tests.transport.tools import Receiving, Sending

Right = Literal["configure", "write", "read", "topic write", "topic read"]
BINDINGS = [Binding(TOPIC, 0, GROUP), Binding(TOPIC, 3, GROUP)]

TOLD = {
    PRODUCER: [
        status_address(TOPIC),
        status_address(TOPIC, 3),
        group_address(GROUP),
        producer_address(PRODUCER),
    ],
    GROUP: [call_address(TOPIC), call_address(TOPIC, 3), producer_address(PRODUCER), group_address(GROUP)],
}
"""Where each account sends control frames."""
HEARD = {
    PRODUCER: [call_address(TOPIC), call_address(TOPIC, 3), producer_address(PRODUCER)],
    GROUP: [status_address(TOPIC), status_address(TOPIC, 3), group_address(GROUP)],
}
"""Where each one listens."""


class Broker(Asked):
    """Refuses an account what its recipe does not permit."""

    def __init__(self, user: str, declare: Declare) -> None:
        self.site = Site("dc1", "amqp://h", declare=declare)
        self.rights: dict[Right, str] = {}
        for line in recipe(SECTIONS[declare]).splitlines():
            _, command, _, _, account, *patterns = shlex.split(line)
            if account == user and command == "set_permissions":
                self.rights |= zip(("configure", "write", "read"), patterns, strict=True)
            elif account == user:
                assert command == "set_topic_permissions"
                assert patterns.pop(0) == EXCHANGE
                self.rights |= zip(("topic write", "topic read"), patterns, strict=True)
        assert set(self.rights) == set(get_args(Right))
        self.granted = 0

    def need(self, right: Right, name: str) -> None:
        """Refuse what the account may not."""
        if re.search(self.rights[right], name) is None:
            raise Refused(ACCESS_REFUSED, f"{right} access to {name!r} refused")
        self.granted += 1

    def answer(self, name: str, *arguments: Any, **options: Any) -> Any:
        """What a request needs, as RabbitMQ's documentation has it."""
        if name in ("exchange_declare", "queue_declare"):
            if not options.get("passive"):
                self.need("configure", arguments[0])
        elif name in ("queue_bind", "queue_unbind"):
            queue, exchange, key = arguments
            self.need("write", queue)
            self.need("read", exchange)
            self.need("topic read", key)
        elif name == "basic_consume":
            self.need("read", arguments[0])
        else:
            assert name == "basic_qos", f"which right does {name} need?"
        return SimpleNamespace(method=SimpleNamespace(message_count=0))

    def publish(self, key: str) -> None:
        self.need("write", EXCHANGE)
        self.need("topic write", key)

    @property
    def connection(self) -> Any:
        return SimpleNamespace(server_version=(3, 13), script_channel=self, alive=True)


@pytest.fixture(params=get_args(Declare))
def declare(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_what_a_group_asks_for(declare: Declare) -> None:
    broker = Broker(GROUP, declare)
    active = AmqpReceiver(broker.site, BINDINGS, Receiving()).make_active(broker.connection, "broker:5672")
    active._channel = broker
    assert perform(active._set_up(), broker) is None
    assert broker.granted >= 2 * len(BINDINGS), "locks, and reading"


def test_what_a_producer_asks_for(declare: Declare) -> None:
    broker = Broker(PRODUCER, declare)
    active = AmqpSender(broker.site, PRODUCER, BINDINGS, Sending()).make_active(
        broker.connection, "broker:5672"
    )
    perform(active._topology(), broker)
    for binding in BINDINGS:
        broker.publish(topic_address(binding.topic, binding.partition))


@pytest.mark.parametrize("user", [PRODUCER, GROUP])
def test_control_frames(user: str, declare: Declare) -> None:
    broker = Broker(user, declare)
    refused = perform(
        listen_queue(broker.connection, control_queue("0123456789abcdef"), [(a, 0) for a in HEARD[user]]),
        broker,
    )
    assert refused == {}
    for address in TOLD[user]:
        broker.publish(address)
