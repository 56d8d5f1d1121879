"""The JSON Schema of configuration files: for editors, and for docs/reference/settings.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reliamsg.config import JournalExport, Site
from reliamsg.configfile import ConsumerTable, JournalTable, ProducerTable, SiteTable, Tables
from reliamsg.consumer.api import Consumer
from reliamsg.producer.api import Producer

__all__ = ["SETTINGS", "schema"]

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "sites": {
        "url": "amqp, amqps, mqtt or mqtts; several hosts are separated by commas.",
        "user": "The user name for the broker.",
        "password": 'Its password. Outside of this file: { file = "…" } or { env = "…" }.',
        "tls": "Files of certificates, for amqps and mqtts; without it, the system's authorities.",
        "auth": "AMQP: log in with the password, or with the client certificate (SASL EXTERNAL).",
        "confirm_timeout": (
            "If the oldest batch is not confirmed in this time, in seconds, the producer reconnects and "
            "sends it again. Doubled after each failure, up to eight times the value."
        ),
        "connect_timeout": (
            "Time limit for one attempt to connect to one host, in seconds, with TLS and the protocol's "
            "handshake."
        ),
        "backoff_min": "The shortest pause between rounds over the hosts, in seconds.",
        "backoff_max": "The longest pause between rounds over the hosts, in seconds.",
        "heartbeat": "AMQP heartbeat and MQTT keepalive, in seconds.",
        "window_batches": (
            "The maximum number of batches in flight to this site; an MQTT 5 broker may lower it."
        ),
        "window_bytes": "The maximum size of all batches in flight to this site, in bytes.",
        "prefetch": "The maximum number of unacknowledged batches that a consumer takes from this site.",
        "max_frame_bytes": (
            "The maximum size of a broker message that is sent to this site, in bytes. A larger batch is "
            "split."
        ),
        "declare": (
            "AMQP: create exchange and queues, only check that they exist, or assume it. MQTT: none "
            "assumes that the named groups exist."
        ),
        "queue_type": "AMQP: the type of the group queues that are created.",
        "mqtt_version": "MQTT: auto tries version 5, and 3.1.1 if the broker refuses it.",
    },
    "producers": {
        "outbox": "The file of this producer, on a local disk.",
        "groups": "The consumer groups of each topic.",
        "confirm": (
            "The sites that must have confirmed before a message counts as published; a number: this many."
        ),
        "release": (
            "When messages may leave the outbox: confirmed by sites, or consumed by all named groups as well."
        ),
        "wire": (
            "batch: many messages in one broker message. plain: each in one of its own, for consumers "
            "without reliamsg."
        ),
        "compression": "Compression of batches; needs the extra zstd.",
        "max_bytes": (
            "The maximum size of messages that the outbox must hold, in bytes; then when_full applies."
        ),
        "retain_seconds": "How long the outbox keeps messages that are published, for repairs, in seconds.",
        "retain_bytes": "The maximum size of published messages that the outbox keeps, in bytes.",
        "when_full": (
            "In a full outbox, publish() waits for up to block_timeout, or raises OutboxFull at once."
        ),
        "block_timeout": "How long publish() waits for room, in seconds.",
        "max_batch_messages": "The maximum number of messages in a batch.",
        "max_batch_bytes": "The maximum size of a batch, in bytes; a larger message is sent alone.",
        "hello_timeout": (
            "How long new messages wait, after opening, for reports of the named groups, in seconds; this "
            "protects groups from an outbox that was restored from a backup."
        ),
        "status_interval": (
            "Seconds until groups that have not acknowledged everything are told the end of a quiet stream."
        ),
        "max_repair_bytes_per_second": (
            "The maximum rate at which messages are sent again to groups that lack them, in bytes per second."
        ),
        "sites": "Names of the sites to use; by default all sites of the file.",
        "keys": "A file of keys: frames are signed with the first, and every key is trusted.",
        "journal": (
            "Where the journal is exported: a directory, relative to this file, an fsspec URL, or a table."
        ),
    },
    "consumers": {
        "topics": "The topics that the group reads.",
        "inbox": "The file of this consumer, on a local disk.",
        "begin": (
            "Where a stream that is new to the group starts: with the oldest message that arrives, or "
            "with the first one."
        ),
        "gap_timeout": "How long messages of a stream may be missing before on_gap applies, in seconds.",
        "on_gap": (
            "When messages are missing: the stream waits (hold), get() and run() raise GapError (raise), "
            "or the stream goes on without them (skip)."
        ),
        "max_deliveries": "A message that was delivered this often without success becomes a dead letter.",
        "max_unacknowledged": (
            "The maximum number of messages of one stream that are delivered and not acknowledged."
        ),
        "max_inbox_bytes": (
            "The maximum size of messages that are held back or not acknowledged, in bytes; then brokers "
            "keep the rest."
        ),
        "max_streams": "The maximum number of unsettled streams (producers times topics) in memory.",
        "max_known_streams": "The maximum number of streams that the group ever reads.",
        "max_quarantine_bytes": (
            "The maximum size of the quarantine, which stores sound messages that can't be taken in, in "
            "bytes."
        ),
        "repair_delay": (
            "How long messages are missing before they are requested from their producer, in seconds."
        ),
        "repair_timeout": (
            "How long a gap waits, at most, for a producer that states that it still holds the messages, "
            "in seconds."
        ),
        "standby": "Wait while another consumer reads for the group, and take over from it.",
        "takeover_timeout": (
            "After this silence of the other consumer, in seconds, a standby takes over. Without standby: "
            "how long to wait for the other to end."
        ),
        "on_dead_letter": (
            "After max_deliveries failures: go on without the message, or stop with DeadLetterHalt."
        ),
        "unsequenced": (
            "Messages of clients without reliamsg: refuse them, or deliver them in a stream of their own."
        ),
        "sites": "Names of the sites to use; by default all sites of the file.",
        "keys": "A file of keys: frames are signed with the first, and every key is trusted.",
        "journal": (
            "Where the journal is exported: a directory, relative to this file, an fsspec URL, or a table."
        ),
    },
    "journal": {
        "target": "A directory, relative to this file, or an fsspec URL.",
        "interval": "Seconds between two segments while there are new rows.",
        "segment_rows": "The maximum number of rows in a segment.",
        "max_backlog_rows": (
            "The maximum number of rows that are not exported, at least twice segment_rows; at this limit "
            "when_full applies."
        ),
        "when_full": (
            "While the target is unavailable and the backlog is full: wait (block), or delete the oldest "
            "rows, which audits report as missing evidence (truncate)."
        ),
        "key": "A file of keys: the first one signs segments.",
    },
}
"""By kind of table, one sentence about each setting. The docstrings of the constructors have the rest."""


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of configuration files, for editors: with a description of each setting, and its
    default, unless there is none or it can't be written in a file."""
    found = msgspec.json.schema(Tables)
    tables: dict[str, tuple[type[msgspec.Struct], Callable[..., object]]] = {
        "sites": (SiteTable, Site), "producers": (ProducerTable, Producer), "consumers": (ConsumerTable, Consumer),
        "journal": (JournalTable, JournalExport),
    }  # fmt: skip
    for kind, (table, constructor) in tables.items():
        properties = found["$defs"][table.__name__]["properties"]
        arguments = inspect.signature(constructor).parameters
        for name, text in SETTINGS[kind].items():
            properties[name]["description"] = text
            default = arguments[name].default if name in arguments else None
            if isinstance(default, (str, int, float)):
                properties[name]["default"] = default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "reliamsg", **found}
