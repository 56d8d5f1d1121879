"""Names of spans' attributes, in one table, since those for messaging are not stable yet.

Names that begin with ``messaging.`` or ``error.`` are taken from the semantic conventions of OpenTelemetry, version
1.44.0 (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/); the others are ours.
"""

from __future__ import annotations

__all__ = [
    "BATCH_COUNT", "BODY_SIZE", "CLIENT_ID", "DESTINATION", "ERROR_TYPE", "GROUP", "MESSAGE_ID", "OPERATION_NAME",
    "OPERATION_TYPE", "PARTITION", "REDELIVERED", "REPLAYED", "SCHEMA_URL", "SYSTEM",
]  # fmt: skip

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
"""``reliamsg``: brokers of different kinds may carry the same message."""
OPERATION_NAME = "messaging.operation.name"
"""``publish`` or ``process``."""
OPERATION_TYPE = "messaging.operation.type"
"""``send`` or ``process``."""
DESTINATION = "messaging.destination.name"
"""The topic."""
PARTITION = "messaging.destination.partition.id"
CLIENT_ID = "messaging.client.id"
"""The producer id."""
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
"""In bytes."""
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
"""The class of an exception."""
REDELIVERED = "reliamsg.redelivered"
"""True if the message may have been delivered before."""
REPLAYED = "reliamsg.replayed"
"""True if the message comes from the dead letters."""
