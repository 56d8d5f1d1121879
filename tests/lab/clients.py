"""Plain MQTT clients for inspecting brokers."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from reliamsg.lab import wait_until


class MqttClient:
    """A connected paho client that collects what arrives."""

    def __init__(
        self,
        url: str,
        client_id: str = "",
        *,
        persistent: bool = False,
        manual: bool = False,
        version: int = mqtt.MQTTv311,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        clean = None if version == mqtt.MQTTv5 else not persistent
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean,
            protocol=MQTTProtocolVersion(version),
            manual_ack=manual,
        )
        if parts.username:
            self.paho.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if tls is not None:
            self.paho.tls_set_context(tls)
        self.connected: list[tuple[bool, bool]] = []
        self.disconnected: list[Any] = []
        self.puback: dict[int, Any] = {}
        self.granted: list[int] = []
        self.messages: list[mqtt.MQTTMessage] = []
        self.paho.on_connect = lambda _c, _u, flags, code, _p: self.connected.append(
            (flags.session_present, not code.is_failure)
        )
        self.paho.on_disconnect = lambda _c, _u, _f, code, _p: self.disconnected.append(code)
        self.paho.on_publish = lambda _c, _u, mid, code, _p: self.puback.__setitem__(mid, code)
        self.paho.on_subscribe = lambda _c, _u, mid, _codes, _p: self.granted.append(mid)
        self.paho.on_message = lambda _c, _u, message: self.messages.append(message)
        self.paho.connect(parts.hostname or "", parts.port or 1883)
        self.paho.loop_start()
        wait_until(lambda: bool(self.connected), 60, "the broker answers a CONNECT")

    @property
    def accepted(self) -> bool:
        return self.connected[-1][1]

    @property
    def session_present(self) -> bool:
        return self.connected[-1][0]

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(message.payload) for message in self.messages]

    def subscribe(self, topic: str) -> None:
        _, mid = self.paho.subscribe(topic, 1)
        wait_until(lambda: mid in self.granted, 60, "the subscription is granted")

    def publish(self, topic: str, bodies: Sequence[bytes]) -> list[Any]:
        """Publish with QoS 1, wait for all acknowledgements, and return their reason codes."""
        infos = [self.paho.publish(topic, body, 1) for body in bodies]
        wait_until(lambda: all(info.mid in self.puback for info in infos), 60, "all are acknowledged")
        return [self.puback[info.mid] for info in infos]

    def receive(self, count: int) -> list[bytes]:
        """Wait for `count` messages in total."""
        wait_until(lambda: len(self.messages) >= count, 60, f"{count} messages arrive")
        return self.bodies

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextlib.contextmanager
def client(url: str, client_id: str = "", **options: Any) -> Iterator[MqttClient]:
    made = MqttClient(url, client_id, **options)
    try:
        yield made
    finally:
        made.close()


def leave_subscription(url: str, client_id: str, topic: str) -> None:
    """Subscribe in a persistent session, and disconnect."""
    with client(url, client_id, persistent=True) as subscriber:
        subscriber.subscribe(topic)
