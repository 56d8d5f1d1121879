"""How topics, partitions and groups become broker addresses, and back.

`TOPIC` for partition 0, `TOPIC~N` above it. Names can't contain ``~`` or ``:``, so no two addresses are the
same, and `/` in a topic stays what it is in MQTT.
"""

from __future__ import annotations

import hashlib
import secrets

from reliamsg.config import check_name
from reliamsg.errors import ConfigError
from reliamsg.wire.limits import MAX_PARTITION

EXCHANGE = "reliamsg"
"""The durable AMQP topic exchange that everything goes through."""

CONTROL_PREFIX = "reliamsg:"
"""How every control address begins."""

_STATUS_PREFIX = CONTROL_PREFIX + "status:"
_CALL_PREFIX = CONTROL_PREFIX + "call:"
_PRODUCER_PREFIX = CONTROL_PREFIX + "producer:"
_GROUP_PREFIX = CONTROL_PREFIX + "group:"
# A level of their own below, so that access rules can name all of them: `reliamsg:proof:/+`.
_PROOF_PREFIX = CONTROL_PREFIX + "proof:/"
_CREATED_PREFIX = CONTROL_PREFIX + "created:/"

_MAX_ADDRESS_BYTES = 255
"""What RabbitMQ takes as a routing key, which it makes of MQTT topics."""


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


def control_queue(name: str) -> str:
    """The exclusive AMQP queue that one connection hears control frames through."""
    return f"reliamsg:control:{name}"


def client_id(group: str) -> str:
    """The MQTT client id, and with it the persistent session, of a group."""
    return f"reliamsg:{group}"


def substitute_id(group: str, number: int) -> str:
    """An MQTT client id that a group reads with while its session can't be had."""
    return f"reliamsg:{group}:substitute{number}"


def control_id(name: str) -> str:
    """The MQTT client id of the connection that sends control frames for the client called `name`."""
    return f"{name}:ctl"


# -- control addresses ----------------------------------------------------------------------------------------
#
# All begin with CONTROL_PREFIX. No topic does, since names have no colon.


def status_address(topic: str, partition: int = 0) -> str:
    """Where producers of a topic announce what they hold; every group of the topic listens."""
    return f"{_STATUS_PREFIX}{topic_address(topic, partition)}"


def call_address(topic: str, partition: int = 0) -> str:
    """Where a group calls for a topic's producers, whoever they are; they listen."""
    return f"{_CALL_PREFIX}{topic_address(topic, partition)}"


def producer_address(producer: str) -> str:
    """Where groups tell a producer their state; the producer, and a live twin of it, listens."""
    return f"{_PRODUCER_PREFIX}{producer}"


def group_address(group: str) -> str:
    """Where a group's inboxes listen: for answers, repairs, and each other's heartbeats."""
    return f"{_GROUP_PREFIX}{group}"


def proof_address(topic: str, partition: int, group: str) -> str:
    """Where a group's MQTT session subscribes so that producers can ask the broker whether it exists. Nothing is ever
    read from it."""
    return _of_group(_PROOF_PREFIX, topic, partition, group)


def created_address(topic: str, partition: int, group: str) -> str:
    """Where a group leaves a retained mark that its MQTT session exists."""
    return _of_group(_CREATED_PREFIX, topic, partition, group)


def nobodys_address() -> str:
    """A proof address that nobody can have subscribed to, other than with a wildcard: different each time."""
    return _PROOF_PREFIX + secrets.token_hex(16)


def is_created(address: str) -> bool:
    """Whether an address is one of marks, which brokers retain."""
    return address.startswith(_CREATED_PREFIX)


def _of_group(prefix: str, topic: str, partition: int, group: str) -> str:
    # As many levels whatever the topic: a subscription with a wildcard then matches all proof addresses or none.
    address = f"{prefix}{topic_address(topic, partition).replace('/', '::')}:{group}"
    if len(address.encode()) <= _MAX_ADDRESS_BYTES:
        return address
    return prefix + hashlib.sha256(address.encode()).hexdigest()


def is_control(address: str) -> bool:
    """Whether an address is one of those above, or of their kind in a later version."""
    return address.startswith(CONTROL_PREFIX)


def is_group(address: str) -> bool:
    """Whether an address is a group's own control address."""
    return address.startswith(_GROUP_PREFIX)


def is_status(address: str) -> bool:
    """Whether an address is one where producers announce what they hold."""
    return address.startswith(_STATUS_PREFIX)


def is_call(address: str) -> bool:
    """Whether an address is one where groups call for producers."""
    return address.startswith(_CALL_PREFIX)
