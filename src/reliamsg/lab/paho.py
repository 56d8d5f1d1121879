"""paho-mqtt as its documentation recommends it, for comparison: QoS 1, a persistent session, its own reconnecting.

Nothing is added to the client and nothing is taken away: it sends again what the broker has not confirmed, and
a subscriber subscribes on every connect.
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

__all__ = ["PlainPublisher", "PlainSubscriber", "start_client"]

_SUBSCRIBER_SECONDS = 1
"""paho's own shortest pause before it connects again; its longest would make a run last minutes."""
_PUBLISHER_SECONDS = 3
"""Longer, so that a subscriber has a good chance to be there first when a broker returns without its sessions."""


def _client(client_id: str, reconnect_seconds: int) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    client.reconnect_delay_set(reconnect_seconds, reconnect_seconds)
    return client


def start_client(client: mqtt.Client, url: str) -> None:
    """Connect to a site, with its user if it names one, and have a thread of paho's own go on."""
    parts = urlsplit(url)
    if parts.username:
        client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
    client.connect(parts.hostname or "", parts.port or 1883)
    client.loop_start()


def _end(client: mqtt.Client) -> None:
    with contextlib.suppress(OSError):
        client.disconnect()
    client.loop_stop()


class PlainPublisher:
    """Publishes with QoS 1 and says what was confirmed. For one thread."""

    def __init__(self, url: str, client_id: str) -> None:
        self._numbers: dict[int, object] = {}
        # paho calls back with its own locks held, so its thread only leaves a note.
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
        """Hand a message to paho, which sends it now or when it is connected again."""
        info = self._client.publish(topic, body, qos=1)
        self._numbers[info.mid] = number

    @property
    def unconfirmed(self) -> int:
        """How many messages have no confirm that was taken with :meth:`confirmed`."""
        return len(self._numbers)

    def confirmed(self, timeout: float) -> list[object]:
        """The numbers of messages that the broker has confirmed since the last call; waits up to `timeout`
        seconds where there are none."""
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
        _end(self._client)


class PlainSubscriber:
    """Subscribes with QoS 1 in a persistent session; `on_body` gets each body on paho's thread, which confirms the
    message when it returns."""

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
        """Wait until the broker has the subscription; LabError after `timeout` seconds."""
        if not self._subscribed.wait(timeout):
            raise LabError(f"the plain subscriber could not subscribe within {timeout:g} s")

    def close(self) -> None:
        """Disconnect; the session stays at the broker."""
        _end(self._client)
