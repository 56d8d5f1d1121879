"""Plain paho-mqtt for comparison, used as its documentation recommends: QoS 1, a persistent session, its reconnects.

Nothing is added to the client: it resends messages that the broker has not confirmed, and a subscriber subscribes on
every connect.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from reliamsg.lab.process import LabError

__all__ = ["PahoPublisher", "PahoSubscriber", "start_client"]

_SUBSCRIBER_SECONDS = 1
"""paho's default minimum delay before a reconnect; its default maximum would make a run last minutes."""
_PUBLISHER_SECONDS = 3
"""Longer, so that the subscriber usually reconnects first when a broker comes back without its sessions."""


def _client(client_id: str, reconnect_seconds: int) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    client.reconnect_delay_set(reconnect_seconds, reconnect_seconds)
    return client


def start_client(client: mqtt.Client, url: str) -> None:
    """Connect to a site, with the user in its URL if any, and start paho's network thread."""
    parts = urlsplit(url)
    if parts.username:
        client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
    client.connect(parts.hostname or "", parts.port or 1883)
    client.loop_start()


def _close(client: mqtt.Client) -> None:
    with contextlib.suppress(OSError):
        client.disconnect()
    client.loop_stop()


class PahoPublisher:
    """Publishes with QoS 1 and reports confirms. Not thread-safe."""

    def __init__(self, url: str, client_id: str) -> None:
        self._numbers: dict[int, object] = {}
        # paho calls back with its locks held, so the callback only appends to a queue.
        self._confirmed: deque[int] = deque()
        self._changed = threading.Event()
        self._client = _client(client_id, _PUBLISHER_SECONDS)
        self._client.on_publish = self._on_publish
        start_client(self._client, url)

    def _on_publish(
        self, client: mqtt.Client, data: object, mid: int, reason: object, properties: object
    ) -> None:
        self._confirmed.append(mid)
        self._changed.set()

    def publish(self, topic: str, body: bytes, number: object) -> None:
        """Pass a message to paho, which sends it now or once it is connected again."""
        info = self._client.publish(topic, body, qos=1)
        self._numbers[info.mid] = number

    @property
    def unconfirmed(self) -> int:
        """The number of messages whose confirm :meth:`confirmed` has not returned yet."""
        return len(self._numbers)

    def confirmed(self, timeout: float) -> list[object]:
        """The numbers of the messages that the broker has confirmed since the last call; waits up to `timeout` seconds
        if there are none."""
        self._changed.wait(timeout)
        self._changed.clear()
        found = []
        while self._confirmed:
            mid = self._confirmed.popleft()
            if mid in self._numbers:
                found.append(self._numbers.pop(mid))
        return found

    def close(self) -> None:
        """Disconnect."""
        _close(self._client)


class PahoSubscriber:
    """Subscribes with QoS 1 in a persistent session. `on_body` is called with each body on paho's thread, which
    acknowledges the message when it returns."""

    def __init__(self, url: str, client_id: str, topic: str, on_body: Callable[[bytes], None]) -> None:
        self._subscribed = threading.Event()
        self._client = _client(client_id, _SUBSCRIBER_SECONDS)
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _client, _data, message: on_body(bytes(message.payload))
        start_client(self._client, url)

    def subscribed(self) -> bool:
        """Whether the broker has the subscription."""
        return self._subscribed.is_set()

    def wait_subscribed(self, timeout: float) -> None:
        """Wait until the broker has the subscription; raise LabError after `timeout` seconds."""
        if not self._subscribed.wait(timeout):
            raise LabError(f"the plain subscriber could not subscribe within {timeout:g} s")

    def close(self) -> None:
        """Disconnect; the session stays at the broker."""
        _close(self._client)
