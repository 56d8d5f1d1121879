"""The controls: what an application gets from plain pika and plain paho in the same run.

Each does what its documentation recommends: persistent messages, durable queues, publisher confirms where the run says
so, manual acknowledgements, QoS 1, a persistent session, and reconnecting until it is done.
"""

from __future__ import annotations

import contextlib
import threading
import time

import pika
import pika.exceptions

from reliamsg.lab.plain import PlainPublisher, PlainSubscriber
from tests.patience import patient

RETRY = (pika.exceptions.AMQPError, OSError)


class PikaPublisher(threading.Thread):
    """Publishes 1, 2, … to a durable queue until it is told to finish; with `confirms`, each until confirmed."""

    def __init__(self, url: str, queue: str, *, confirms: bool, rate: float) -> None:
        super().__init__(daemon=True)
        self.url, self.queue, self.confirms, self.rate = url, queue, confirms, rate
        self.accepted: list[int] = []
        self.finish = threading.Event()

    def run(self) -> None:
        number, started = 1, time.monotonic()
        while not self.finish.is_set():
            try:
                parameters = pika.URLParameters(self.url)
                parameters.socket_timeout = 2
                connection = pika.BlockingConnection(parameters)
            except RETRY:
                self.finish.wait(0.2)
                continue
            with contextlib.suppress(*RETRY):
                channel = connection.channel()
                channel.queue_declare(self.queue, durable=True)
                if self.confirms:
                    channel.confirm_delivery()
                while not self.finish.is_set():
                    channel.basic_publish(
                        "", self.queue, str(number).encode(), pika.BasicProperties(delivery_mode=2)
                    )
                    self.accepted.append(number)
                    number += 1
                    ahead = number / self.rate - (time.monotonic() - started)
                    if ahead > 0.01:
                        connection.sleep(ahead)
                connection.close()


class PikaConsumer(threading.Thread):
    """Reads a durable queue with manual acknowledgements until it is told to finish."""

    def __init__(self, url: str, queue: str, *, delay: float) -> None:
        super().__init__(daemon=True)
        self.url, self.queue, self.delay = url, queue, delay
        self.received: list[int] = []
        self.latest = time.monotonic()
        self.finish = threading.Event()

    def run(self) -> None:
        while not self.finish.is_set():
            with contextlib.suppress(*RETRY):
                parameters = pika.URLParameters(self.url)
                parameters.socket_timeout = 2
                connection = pika.BlockingConnection(parameters)
                channel = connection.channel()
                channel.queue_declare(self.queue, durable=True)
                channel.basic_qos(prefetch_count=100)
                for method, _, body in channel.consume(self.queue, inactivity_timeout=0.2):
                    if self.finish.is_set():
                        break
                    if method is None:
                        continue
                    self.received.append(int(body))
                    self.latest = time.monotonic()
                    time.sleep(self.delay)
                    channel.basic_ack(method.delivery_tag)
                connection.close()
            self.finish.wait(0.2)

    def drain(self, quiet: float, deadline: float) -> None:
        """Work without delay until nothing came for `quiet` seconds, then end."""
        self.delay = 0.0
        end = time.monotonic() + deadline
        while time.monotonic() < end and time.monotonic() - self.latest < quiet:
            self.finish.wait(0.1)
        self.finish.set()
        self.join(60)


class PahoSubscriber:
    """A QoS 1 subscriber with a persistent session, which may leave and return."""

    def __init__(self, url: str, topic: str, client_id: str) -> None:
        self.url, self.topic, self.client_id = url, topic, client_id
        self.received: list[str] = []
        self.changed = threading.Condition()

    def arrive(self) -> None:
        self.client = PlainSubscriber(self.url, self.client_id, self.topic, self._take)
        self.client.wait_subscribed(60)

    def leave(self) -> None:
        self.client.close()

    def wait_for(self, count: int, timeout: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.received) >= count, patient(timeout))

    def _take(self, body: bytes) -> None:
        with self.changed:
            self.received.append(body.decode())
            self.changed.notify_all()


def paho_publish(url: str, topic: str, *bodies: str) -> None:
    """Publish with QoS 1, and return when the broker has acknowledged all; TimeoutError after a minute."""
    publisher = PlainPublisher(url, "plain-publisher")
    deadline = time.monotonic() + 60
    try:
        for body in bodies:
            publisher.publish(topic, body.encode(), body)
        while publisher.unconfirmed:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{publisher.unconfirmed} messages are not confirmed")
            publisher.confirmed(0.1)
    finally:
        publisher.close()
