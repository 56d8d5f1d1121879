"""The control of runs of a few messages: plain paho, one message at a time."""

from __future__ import annotations

from reliamsg.lab.chaos.result import Control
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.paho import PlainPublisher, PlainSubscriber

__all__ = ["PlainLetters"]


class PlainLetters:
    """Plain paho: QoS 1, a persistent session at one broker. Messages are texts, each another."""

    def __init__(self, topic: str, read: str, write: str | None = None) -> None:
        """`read`, `write`: the URLs that are subscribed and published at."""
        self.topic, self.read, self.write = topic, read, write or read
        self.received: list[str] = []
        self.published: list[str] = []
        self._client: PlainSubscriber | None = None

    def arrive(self, *, subscribed: bool = True) -> None:
        """The subscriber comes."""
        # An MQTT 3.1.1 broker need not take more than 23 characters.
        self._client = PlainSubscriber(self.read, self.topic[-20:], self.topic, self._take)
        if subscribed:
            self.subscribed()

    def visit(self, body: str) -> None:
        """The subscriber comes, gets one message, and goes: from now on the broker keeps messages for it."""
        self.arrive()
        self.publish(body)
        self.wait_for(body)
        self.leave()

    def subscribed(self) -> None:
        """Wait until it has subscribed."""
        if self._client is not None:
            wait_for(self._client.subscribed, "plain paho subscribes", 30)

    def leave(self) -> None:
        """It goes; its session stays."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def publish(self, *bodies: str) -> None:
        """Publish, and return when the broker has confirmed all."""
        publisher = PlainPublisher(self.write, f"{self.topic[-18:]}-p")

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
        """Wait until this one has come."""
        wait_for(lambda: body in self.received, lambda: f"plain paho gets {body}; it has {self.received}", 30)

    def _take(self, body: bytes) -> None:
        self.received.append(body.decode())

    def finish(self) -> list[str]:
        """All that came: a last message, ``end``, tells that nothing more comes. The subscriber goes."""
        self.publish("end")
        self.wait_for("end")
        self.leave()
        return [body for body in self.received if body != "end"]

    def control(self) -> Control:
        """What came of what was confirmed, in the end."""
        came = self.finish()
        return Control(
            f"plain paho, which got {' '.join(came) or 'nothing'}",
            len(self.published) - 1,
            len(set(self.published) - set(self.received)),
            len(self.received) - len(set(self.received)),
        )
