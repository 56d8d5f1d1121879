"""Bridges between two brokers that forward everything, out of order and more than once."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from reliamsg.wire.address import EXCHANGE

__all__ = ["AmqpBridge", "MqttBridge", "bridges"]

SHUFFLED = 16
"""The number of messages that are collected and then shuffled."""
FLUSH_S = 0.1


class Shuffler:
    """Shuffles and duplicates messages, and counts inversions."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.inversions: int = 0
        """Adjacent pairs whose later message was sent first."""

    def shuffle(self, messages: list[Any]) -> list[Any]:
        """Each message one to three times, in random order."""
        places = [place for place in range(len(messages)) for _ in range(self._rng.choice((1, 1, 2, 3)))]
        self._rng.shuffle(places)
        self.inversions += sum(first > second for first, second in itertools.pairwise(places))
        return [messages[place] for place in places]


class AmqpBridge(threading.Thread):
    """Forwards from the exchange of one virtual host to that of another."""

    def __init__(self, source: str, target: str, topic: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.topic: str = topic
        self.shuffler: Shuffler = Shuffler(rng)
        self.forwarded: int = 0
        self._finish = threading.Event()
        self._source, self._target = (
            pika.BlockingConnection(pika.URLParameters(url)) for url in (source, target)
        )
        self._in, self._out = self._source.channel(), self._target.channel()
        for channel in (self._in, self._out):
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
        self._queue = self._in.queue_declare("", exclusive=True).method.queue
        self._in.queue_bind(self._queue, EXCHANGE, topic)
        self._out.confirm_delivery()

    def run(self) -> None:
        """Forward messages until :meth:`finish`."""
        waiting: list[tuple[Any, bytes]] = []
        tag = 0
        for method, properties, body in self._in.consume(self._queue, inactivity_timeout=FLUSH_S):
            if method is not None and body is not None and method.delivery_tag is not None:
                waiting.append((properties, body))
                tag = method.delivery_tag
            if waiting and (method is None or len(waiting) >= SHUFFLED):
                for old_properties, old_body in self.shuffler.shuffle(waiting):
                    self._out.basic_publish(EXCHANGE, self.topic, old_body, old_properties)
                    self.forwarded += 1
                self._in.basic_ack(tag, multiple=True)
                waiting.clear()
            if self._finish.is_set():
                break
        for connection in (self._source, self._target):
            connection.close()

    def finish(self) -> None:
        """Stop, and close the connections."""
        self._finish.set()
        self.join(60)


class MqttBridge:
    """Forwards from one MQTT broker to another."""

    def __init__(self, source: int, target: int, topic: str, rng: random.Random) -> None:
        self.topic: str = topic
        self.shuffler: Shuffler = Shuffler(rng)
        self.forwarded: int = 0
        self._waiting: list[mqtt.MQTTMessage] = []
        self._lock = threading.Lock()
        self._finish = threading.Event()
        self._subscribed = threading.Event()
        self._out = self._client(target)
        self._in = self._client(source)
        self._in.on_message = self._message
        self._in.on_subscribe = lambda *_: self._subscribed.set()
        self._in.subscribe(topic, qos=1)
        if not self._subscribed.wait(60):
            raise TimeoutError("the bridge could not subscribe")
        self._flusher = threading.Thread(target=self._flush_periodically, daemon=True)
        self._flusher.start()

    @staticmethod
    def _client(port: int) -> mqtt.Client:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect("127.0.0.1", port)
        client.loop_start()
        return client

    def _message(self, client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            self._waiting.append(message)
            if len(self._waiting) >= SHUFFLED:
                self._flush()

    def _flush(self) -> None:
        for message in self.shuffler.shuffle(self._waiting):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            if hasattr(message.properties, "ContentType"):  # plain clients set none
                properties.ContentType = message.properties.ContentType
            self._out.publish(self.topic, message.payload, qos=1, properties=properties)
            self.forwarded += 1
        self._waiting.clear()

    def _flush_periodically(self) -> None:
        while not self._finish.wait(FLUSH_S):
            with self._lock:
                self._flush()

    def finish(self) -> None:
        """Stop, and close the connections."""
        self._finish.set()
        self._flusher.join(60)
        for client in (self._in, self._out):
            client.disconnect()
            client.loop_stop()


@contextlib.contextmanager
def bridges(
    amqp: tuple[str, str], mqtt_ports: tuple[int, int], topic: str, rng: random.Random
) -> Iterator[list[AmqpBridge | MqttBridge]]:
    """One bridge of each kind, from the first URL or port to the second."""
    with contextlib.ExitStack() as stack:
        one = AmqpBridge(*amqp, topic, rng)
        stack.callback(one.finish)
        two = MqttBridge(*mqtt_ports, topic, random.Random(rng.random()))
        stack.callback(two.finish)
        one.start()
        yield [one, two]
