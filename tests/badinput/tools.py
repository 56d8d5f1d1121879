"""Shared by the tests of bad input: clients of real sites, plain clients, and queries of the files."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import read_journal
from reliamsg.wire.address import EXCHANGE
from tests.patience import patient, wait_for


def site(name: str, url: str, **options: Any) -> Site:
    """A site that is soon retried."""
    options = {"backoff_min": 0.05, "backoff_max": 0.3, "connect_timeout": 10.0, **options}
    return Site(name, url, **options)


def all_connected(client: Producer | Consumer) -> bool:
    return all(found.state == "connected" for found in client.status().sites.values())


def wait_connected(client: Producer | Consumer) -> None:
    wait_for(lambda: all_connected(client), "all sites are connected")


def states(client: Producer | Consumer) -> dict[str, str]:
    return {name: found.state for name, found in client.status().sites.items()}


def take(consumer: Consumer, count: int, seconds: float = 30.0, ack: bool = True) -> list[Message]:
    """The next `count` messages, acknowledged unless specified otherwise."""
    found: list[Message] = []
    deadline = time.monotonic() + patient(seconds)
    while len(found) < count:
        message = consumer.get(max(0.0, deadline - time.monotonic()))
        assert message is not None, (
            f"{len(found)} of {count} messages within {patient(seconds):g} s: {consumer.status()}"
        )
        found.append(message)
        if ack:
            message.ack()
    return found


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def rejections(consumer: Consumer) -> dict[str, int]:
    """Unusable deliveries by reason, of all sites together."""
    total: Counter[str] = Counter()
    for found in consumer.status().sites.values():
        total.update(found.rejected)
    return dict(total)


def journalled(path: Path, kind: str) -> list[Any]:
    """The rows of one kind in a journal."""
    connection = open_readonly(path)
    try:
        return [row for row in read_journal(connection) if row.kind == kind]
    finally:
        connection.close()


def journalled_rejections(path: Path) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in journalled(path, "rejected"):
        total[row.reason] += row.detail["count"]
    return dict(total)


def quarantined(path: Path) -> list[tuple[str, bytes]]:
    """(reason, bytes) of quarantined deliveries."""
    connection = open_readonly(path)
    try:
        return list(connection.execute("SELECT reason, frame FROM quarantine ORDER BY id"))
    finally:
        connection.close()


@contextlib.contextmanager
def plain_pika(url: str) -> Iterator[Any]:
    """A channel of plain pika with confirms, as any other client would have it."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


class PlainPaho:
    """A connected plain paho client."""

    def __init__(self, url: str, version: str) -> None:
        protocol = mqtt.MQTTv5 if version == "5" else mqtt.MQTTv311
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
        parts = urlsplit(url)
        self._client.connect(cast(str, parts.hostname), cast(int, parts.port))
        self._client.loop_start()

    def publish(self, topic: str, body: bytes, **options: Any) -> None:
        """Publish, with QoS 1 unless specified otherwise, and wait for the broker's confirm."""
        options.setdefault("qos", 1)
        self._client.publish(topic, body, **options).wait_for_publish(60)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Stranger:
    """An ordinary client that publishes arbitrary content to a group's addresses."""

    def __init__(self, where: Site, url: str) -> None:
        self._stack = contextlib.ExitStack()
        self.amqp = where.protocol == "amqp"
        if self.amqp:
            self._channel = self._stack.enter_context(plain_pika(url))
        else:
            self._paho = PlainPaho(url, "3.1.1" if where.mqtt_version == "3.1.1" else "5")
            self._stack.callback(self._paho.close)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        headers: dict[str, Any] | None = None,
        content_type: str | None = None,
        retain: bool = False,
    ) -> None:
        """Publish; confirmed when this returns. Content types are AMQP's."""
        if self.amqp:
            properties = pika.BasicProperties(headers=headers, content_type=content_type)
            self._channel.basic_publish(EXCHANGE, topic, body, properties)
            return
        options: dict[str, Any] = {"retain": retain}
        if headers:
            properties5 = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties5.UserProperty = list(headers.items())
            options["properties"] = properties5
        self._paho.publish(topic, body, **options)


class Clients:
    """Opens producers and consumers, and closes them when the test ends."""

    def __init__(self, stack: contextlib.ExitStack, directory: Path, name: str) -> None:
        self._stack = stack
        self.directory = directory
        self.topic = self.group = name
        self.outbox = directory / "outbox.db"
        self.inbox = directory / "inbox.db"

    def producer(self, sites: list[Site], **options: Any) -> Producer:
        options = {"outbox": self.outbox, "groups": {self.topic: [self.group]}, **options}
        made = Producer(options.pop("producer_id", "p"), sites, **options)
        self._stack.callback(made.close, 1.0)
        return made

    def consumer(self, sites: list[Site], **options: Any) -> Consumer:
        options = {"inbox": self.inbox, "topics": [self.topic], "gap_timeout": 2.0, **options}
        made = Consumer(options.pop("group", self.group), sites, **options)
        self._stack.callback(made.close, 2.0)
        return made
