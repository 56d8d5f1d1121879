"""Rogue clients of a broker: they publish arbitrary frames, and record everything that passes."""

from __future__ import annotations

import contextlib
import struct
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as mqtt
import pika
import pika.exceptions
from paho.mqtt.enums import CallbackAPIVersion
from pika import spec

from reliamsg.lab.paho import start_client
from reliamsg.lab.process import LabError
from reliamsg.message import Prev, Stream
from reliamsg.wire.address import EXCHANGE
from reliamsg.wire.data import Origin, Records, encode

__all__ = ["BOMBS", "RawProperties", "RogueClient", "forged_frame", "publish_bomb"]

_TIMEOUT_S = 60.0
_NOW = (1_700_000_000_000_000, 1_700_000_000_000_000)


class RogueClient(ABC):
    """A plain client at one site; :meth:`at` returns one for the site's protocol. A context manager."""

    @staticmethod
    def at(url: str) -> RogueClient:
        """A connected client."""
        return _AmqpRogueClient(url) if url.startswith("amqp://") else _MqttRogueClient(url)

    @abstractmethod
    def publish(self, address: str, body: bytes, *, retain: bool = False) -> None:
        """Publish, and wait for the broker's confirm; only MQTT can `retain`."""

    @abstractmethod
    def flood(self, address: str, body: bytes) -> None:
        """Publish without waiting for a confirm."""

    @abstractmethod
    def listen(self, address: str) -> None:
        """From now on, record everything that is published there."""

    @abstractmethod
    def recorded(self) -> list[bytes]:
        """The bodies that were recorded so far."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _MqttRogueClient(RogueClient):
    """A client of an MQTT site."""

    def __init__(self, url: str) -> None:
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._recorded: list[bytes] = []
        self._lock = threading.Lock()
        self._subscribed = threading.Event()
        self._client.on_message = self._record
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        start_client(self._client, url)

    def publish(self, address: str, body: bytes, *, retain: bool = False) -> None:
        self._client.publish(address, body, qos=1, retain=retain).wait_for_publish(_TIMEOUT_S)

    def flood(self, address: str, body: bytes) -> None:
        self._client.publish(address, body, qos=0).wait_for_publish(_TIMEOUT_S)

    def listen(self, address: str) -> None:
        self._client.subscribe(address, qos=1)
        if not self._subscribed.wait(_TIMEOUT_S):
            raise LabError(f"a rogue client could not subscribe to {address}")

    def recorded(self) -> list[bytes]:
        with self._lock:
            return list(self._recorded)

    def _record(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            self._recorded.append(bytes(message.payload))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class _AmqpRogueClient(RogueClient):
    """A client of an AMQP site."""

    def __init__(self, url: str) -> None:
        # Without heartbeats: no thread answers them between calls.
        self._connection = pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=0"))
        self._confirmed, self._unconfirmed = self._connection.channel(), self._connection.channel()
        self._confirmed.confirm_delivery()
        self._recorded: list[bytes] = []

    def publish(self, address: str, body: bytes, *, retain: bool = False) -> None:
        if retain:
            raise LabError("AMQP does not support retained messages")
        self._confirmed.basic_publish(EXCHANGE, address, body)

    def flood(self, address: str, body: bytes) -> None:
        self._unconfirmed.basic_publish(EXCHANGE, address, body)

    def listen(self, address: str) -> None:
        queue = self._confirmed.queue_declare("", exclusive=True).method.queue
        self._confirmed.queue_bind(queue, EXCHANGE, address)
        self._confirmed.basic_consume(
            queue, lambda channel, method, properties, body: self._recorded.append(body), auto_ack=True
        )

    def recorded(self) -> list[bytes]:
        self._connection.process_data_events(0)
        return list(self._recorded)

    def close(self) -> None:
        self._connection.close()


def forged_frame(
    topic: str,
    producer: str,
    *,
    seq: int = 1,
    epoch: int = 10,
    incarnation: int = 7,
    prev: Prev | None = None,
) -> bytes:
    """A well-formed, unsigned batch of one message with forged coordinates."""
    return encode(
        Origin(Stream(producer, topic), epoch, incarnation, prev),
        seq,
        _NOW,
        Records([b"of a rogue client:0:"]),
    )


class RawProperties(spec.BasicProperties):
    """Properties with a header table given as bytes."""

    def __init__(self, table: bytes) -> None:
        super().__init__()
        self._table = table

    def encode(self) -> list[bytes]:
        return [struct.pack(">H", self.FLAG_HEADERS), struct.pack(">I", len(self._table)) + self._table]


def _nested(kind: bytes, name: bytes, depth: int = 3_000) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = kind + struct.pack(">I", len(name) + len(value)) + name + value
    return value


BOMBS = {
    # Each of the first three makes plain pika's decoder raise, which closes its connection.
    "timestamp": b"\x01tT" + struct.pack(">Q", 2**63),
    "arrays": b"\x01a" + _nested(b"A", b""),
    "tables": b"\x01f" + _nested(b"F", b"\x01k"),
    "decimal": b"\x01dD\xff" + struct.pack(">I", 2**32 - 1),
    "text": b"\x02haS" + struct.pack(">I", 4) + b"\xff\xfe\xfd\xfc",
    "name": b"\x04\xff\xfe\xfd\xfcS" + struct.pack(">I", 1) + b"x",
    "long": b"\x01hS" + struct.pack(">I", 60_000) + bytes(60_000),
    "many": b"".join(b"\x06%06dS\x00\x00\x00\x01v" % n for n in range(5_000)),
    "ours": b"\x04rm-vS\x00\x00\x00\x011" + b"\x06rm-seqS\x00\x00\x00\x03\xff\xfe1",
}
"""Header tables that break decoders, by their defect."""


def publish_bomb(url: str, exchange: str, key: str, table: bytes) -> bool:
    """Publish a message with this header table; False if the broker itself refuses it."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    with contextlib.suppress(pika.exceptions.AMQPError):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, key, b"0", RawProperties(table))
        connection.close()
        return True
    return False
