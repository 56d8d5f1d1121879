"""How topics, partitions and groups become broker addresses, and back.

`TOPIC` for partition 0, `TOPIC~N` above it. Names can't contain ``~`` or ``:``, so no two addresses are the
same, and `/` in a topic stays what it is in MQTT.
"""

from __future__ import annotations

from reliamsg.config import check_name
from reliamsg.errors import ConfigError
from reliamsg.wire.limits import MAX_PARTITION

EXCHANGE = "reliamsg"
"""The durable AMQP topic exchange that everything goes through."""


def topic_address(topic: str, partition: int = 0) -> str:
    """The MQTT topic, or AMQP routing key, of one partition of a topic."""
    return topic if partition == 0 else f"{topic}~{partition}"


def parse_address(address: str) -> tuple[str, int] | None:
    """Topic and partition of an address; None where it is not one of ours."""
    topic, tilde, number = address.partition("~")
    partition = 0
    if tilde:
        if not (number.isascii() and number.isdigit()) or len(number) > 5 or number[0] == "0":
            return None
        partition = int(number)
        if partition > MAX_PARTITION:
            return None
    try:
        check_name("topic", topic)
    except ConfigError:
        return None
    return topic, partition


def group_queue(topic: str, partition: int, group: str) -> str:
    """The AMQP queue that collects a topic's messages for a group."""
    return f"reliamsg:{topic}:{partition}:{group}"


def lock_queue(topic: str, partition: int, group: str) -> str:
    """The exclusive AMQP queue whose owner is the group's one active consumer."""
    return f"reliamsg:lock:{topic}:{partition}:{group}"


def client_id(group: str) -> str:
    """The MQTT client id, and with it the persistent session, of a group."""
    return f"reliamsg:{group}"
