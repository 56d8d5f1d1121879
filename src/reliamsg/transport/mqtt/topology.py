"""The subscriptions of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from reliamsg.transport.base import Binding
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.wire.address import proof_address, topic_address

__all__ = ["proofs_of", "subscribe", "topics_of"]


def subscribe(
    connection: MqttConnection,
    topics: Sequence[str],
    deadline: float,
    stopping: Callable[[], bool],
    most: int,
) -> str | None:
    """Subscribe, and wait for the answer or for `most` messages; return the problem, if there is one."""
    connection.subscribe(topics)
    while not connection.subscribed and len(connection.arrived) < most:
        left = deadline - time.monotonic()
        if stopping():
            return "closed"
        if left <= 0:
            return "the broker did not answer the subscription in time"
        if not connection.turn(left) and not connection.subscribed:
            return f"while subscribing: {connection.reason}"
    return connection.refusal


def topics_of(bindings: Sequence[Binding]) -> list[str]:
    """The addresses to subscribe to."""
    return sorted({topic_address(binding.topic, binding.partition) for binding in bindings})


def proofs_of(bindings: Sequence[Binding]) -> list[str]:
    """The addresses at which producers ask the broker whether the group subscribes."""
    return sorted({proof_address(b.topic, b.partition, b.group) for b in bindings})
