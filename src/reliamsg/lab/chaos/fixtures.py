"""Clients for scenarios of a few messages, published and consumed one at a time: reliamsg, and plain paho beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from reliamsg.config import Site
from reliamsg.consumer.api import Consumer
from reliamsg.errors import ConfirmTimeout
from reliamsg.lab.chaos.result import Baseline
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.paho import PahoPublisher, PahoSubscriber
from reliamsg.producer.api import Producer
from reliamsg.producer.receipt import Receipt

__all__ = ["ClientFixture", "PahoFixture"]


class ClientFixture:
    """A producer and a group, named after their topic, in this process. Each message is one character."""

    def __init__(
        self,
        topic: str,
        directory: Path,
        outbound: list[Site],
        inbound: list[Site] | None = None,
        on_event: Callable[[str], object] = lambda text: None,
    ) -> None:
        """`outbound`, `inbound`: the producer's and the consumer's sites, the same by default."""
        self.topic = topic
        self._directory = directory
        self._outbound, self._inbound = outbound, inbound or outbound
        self._on_event = on_event

    def producer(self) -> Producer:
        """Open the producer. A message stays in its outbox until the group has consumed it."""
        return Producer(
            "station", self._outbound, outbox=self._directory / "outbox.db", groups={self.topic: [self.topic]},
            release="consumed", journal=self._directory / "journals",
        )  # fmt: skip

    @contextlib.contextmanager
    def consumer(self, *, reading: bool = True) -> Iterator[Consumer]:
        """Open the group's consumer, and with `reading` wait until it reads all sites."""
        with Consumer(
            self.topic, self._inbound, topics=[self.topic], inbox=self._directory / "inbox.db", repair_delay=0.5,
            journal=self._directory / "journals",
        ) as consumer:  # fmt: skip
            if reading:
                wait_for(
                    lambda: all(site.state == "connected" for site in consumer.status().sites.values()),
                    "the consumer reads all sites",
                )
            yield consumer

    def publish(self, producer: Producer, bodies: str, *, confirmed: bool = True) -> None:
        """Publish one message per character, and with `confirmed` wait until all sites have confirmed it."""
        for body in bodies:
            receipt = producer.publish(self.topic, body.encode())
            if confirmed:
                wait_for(lambda r=receipt: _is_confirmed(r), f"{body} is confirmed")  # type: ignore[misc]
        self._on_event(f"published: {' '.join(bodies)}")

    def take(self, consumer: Consumer, bodies: str) -> None:
        """Consume the next messages, which must be these, once each and in this order."""
        for body in bodies:
            message = wait_for(lambda: consumer.get(timeout=0.1), f"{body} is delivered")
            if message.body != body.encode():
                raise Unmet(f"{message.body.decode()} was delivered instead of {body}")
            message.ack(durable=True)
        self._on_event(f"delivered: {' '.join(bodies)}")


def _is_confirmed(receipt: Receipt) -> bool:
    """Whether all sites have confirmed it."""
    with contextlib.suppress(ConfirmTimeout):
        receipt.wait(timeout=0.1)
        return True
    return False


class PahoFixture:
    """Plain paho: QoS 1, a persistent session at one broker. Each message is a different text."""

    def __init__(self, topic: str, read: str, write: str | None = None) -> None:
        """`read`, `write`: the subscriber's and the publisher's URL, the same by default."""
        self.topic: str = topic
        self.read: str = read
        self.write: str = write or read
        self.received: list[str] = []
        self.published: list[str] = []
        self._client: PahoSubscriber | None = None

    def connect(self, *, subscribed: bool = True) -> None:
        """Connect the subscriber, and with `subscribed` wait until it has subscribed."""
        # An MQTT 3.1.1 broker may refuse client ids of more than 23 characters.
        self._client = PahoSubscriber(self.read, self.topic[-20:], self.topic, self._take)
        if subscribed:
            self.wait_subscribed()

    def visit(self, body: str) -> None:
        """Connect, receive one message, and disconnect: from now on the broker keeps messages for the subscriber."""
        self.connect()
        self.publish(body)
        self.wait_for(body)
        self.disconnect()

    def wait_subscribed(self) -> None:
        """Wait until the subscriber has subscribed."""
        if self._client is not None:
            wait_for(self._client.subscribed, "plain paho subscribes", 30)

    def disconnect(self) -> None:
        """Disconnect the subscriber; its session stays."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def publish(self, *bodies: str) -> None:
        """Publish, and return when the broker has confirmed everything."""
        publisher = PahoPublisher(self.write, f"{self.topic[-18:]}-p")

        def confirmed() -> bool:
            publisher.confirmed(0.1)
            return not publisher.unconfirmed

        try:
            for body in bodies:
                publisher.publish(self.topic, body.encode(), body)
            wait_for(confirmed, "plain paho is confirmed")
        finally:
            publisher.close()
        self.published += bodies

    def wait_for(self, body: str) -> None:
        """Wait until this message has arrived."""
        wait_for(
            lambda: body in self.received,
            lambda: f"plain paho receives {body}; it has {self.received}",
            30,
        )

    def _take(self, body: bytes) -> None:
        self.received.append(body.decode())

    def finish(self) -> list[str]:
        """Publish a last message, ``end``, wait for it, disconnect, and return everything else that arrived."""
        self.publish("end")
        self.wait_for("end")
        self.disconnect()
        return [body for body in self.received if body != "end"]

    def baseline(self) -> Baseline:
        """Finish: the fate of the confirmed messages."""
        arrived = self.finish()
        return Baseline(
            f"plain paho, which received {' '.join(arrived) or 'nothing'}",
            len(self.published) - 1,
            len(set(self.published) - set(self.received)),
            len(self.received) - len(set(self.received)),
        )
