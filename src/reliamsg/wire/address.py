"""Converts topics, partitions and groups to broker addresses, and back.

The address of partition 0 is `TOPIC`, that of partition N is `TOPIC~N`. Names can't contain ``~`` or ``:``, so
addresses are unique, and `/` in a topic separates levels as usual in MQTT.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache

from reliamsg.config import check_name
from reliamsg.errors import ConfigError
from reliamsg.wire.limits import MAX_PARTITION

EXCHANGE = "reliamsg"
"""The durable AMQP topic exchange for all messages and control frames."""

CONTROL_PREFIX = "reliamsg:"
"""The prefix of every control address."""

_STATUS_PREFIX = CONTROL_PREFIX + "status:"
_CALL_PREFIX = CONTROL_PREFIX + "call:"
_PRODUCER_PREFIX = CONTROL_PREFIX + "producer:"
_GROUP_PREFIX = CONTROL_PREFIX + "group:"
# These addresses have a separate level, so that one access rule covers all of them: `reliamsg:proof:/+`.
_PROOF_PREFIX = CONTROL_PREFIX + "proof:/"
_CREATED_PREFIX = CONTROL_PREFIX + "created:/"

_MAX_ADDRESS_BYTES = 255
"""The limit for routing keys in RabbitMQ, which also apply to MQTT topics."""


@lru_cache(maxsize=1_024)
def topic_address(topic: str, partition: int = 0) -> str:
    """The MQTT topic, or AMQP routing key, of one partition of a topic."""
    return topic if partition == 0 else f"{topic}~{partition}"


def parse_address(address: str) -> tuple[str, int] | None:
    """Topic and partition of an address; None if it is not a topic address of this library."""
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
    """The AMQP queue with a topic's messages for a group."""
    return f"reliamsg:{topic}:{partition}:{group}"


def lock_queue(topic: str, partition: int, group: str) -> str:
    """The exclusive AMQP queue that the group's active consumer owns."""
    return f"reliamsg:lock:{topic}:{partition}:{group}"


def control_queue(name: str) -> str:
    """The exclusive AMQP queue from which one connection receives control frames."""
    return f"reliamsg:control:{name}"


def client_id(group: str) -> str:
    """The MQTT client id of a group, and thereby of its persistent session."""
    return f"reliamsg:{group}"


def substitute_id(group: str, number: int) -> str:
    """An MQTT client id with which a group consumes while its session is unavailable."""
    return f"reliamsg:{group}:substitute{number}"


def control_id(name: str) -> str:
    """The MQTT client id of the connection that sends control frames for the client called `name`."""
    return f"{name}:ctl"


# -- control addresses ----------------------------------------------------------------------------------------
#
# All begin with CONTROL_PREFIX. No topic does, because names contain no colon.


def status_address(topic: str, partition: int = 0) -> str:
    """For producers to announce their messages of a topic; every group of the topic listens."""
    return f"{_STATUS_PREFIX}{topic_address(topic, partition)}"


def call_address(topic: str, partition: int = 0) -> str:
    """For groups to call unknown producers of a topic; all its producers listen."""
    return f"{_CALL_PREFIX}{topic_address(topic, partition)}"


def producer_address(producer: str) -> str:
    """For groups to announce their state to a producer; the producer and any running duplicate of it listen."""
    return f"{_PRODUCER_PREFIX}{producer}"


def group_address(group: str) -> str:
    """For answers, repairs and heartbeats; a group's inboxes listen."""
    return f"{_GROUP_PREFIX}{group}"


def proof_address(topic: str, partition: int, group: str) -> str:
    """A group's MQTT session subscribes to this address so that producers can ask the broker whether the session
    exists. No messages are consumed from it."""
    return _of_group(_PROOF_PREFIX, topic, partition, group)


def created_address(topic: str, partition: int, group: str) -> str:
    """For the retained mark of a group that its MQTT session exists."""
    return _of_group(_CREATED_PREFIX, topic, partition, group)


def unused_proof_address() -> str:
    """A random proof address, to which nobody can have subscribed except with a wildcard."""
    return _PROOF_PREFIX + secrets.token_hex(16)


def is_for_one(address: str) -> bool:
    """Whether an address is that of one producer or group, rather than of whoever has to do with a topic."""
    return address.startswith((_PRODUCER_PREFIX, _GROUP_PREFIX))


def is_created(address: str) -> bool:
    """Whether an address is one of :func:`created_address`."""
    return address.startswith(_CREATED_PREFIX)


def _of_group(prefix: str, topic: str, partition: int, group: str) -> str:
    # The same number of levels for every topic: a subscription with a wildcard matches all proof addresses or none.
    address = f"{prefix}{topic_address(topic, partition).replace('/', '::')}:{group}"
    if len(address.encode()) <= _MAX_ADDRESS_BYTES:
        return address
    return prefix + hashlib.sha256(address.encode()).hexdigest()


def is_control(address: str) -> bool:
    """Whether an address is a control address, of this or a later version."""
    return address.startswith(CONTROL_PREFIX)


def is_group(address: str) -> bool:
    """Whether an address is one of :func:`group_address`."""
    return address.startswith(_GROUP_PREFIX)


def is_status(address: str) -> bool:
    """Whether an address is one of :func:`status_address`."""
    return address.startswith(_STATUS_PREFIX)


def is_call(address: str) -> bool:
    """Whether an address is one of :func:`call_address`."""
    return address.startswith(_CALL_PREFIX)
