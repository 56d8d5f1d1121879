"""What the MQTT transport's tests share: sites, and connections that are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from reliamsg.config import Site
from reliamsg.transport.base import Binding, Outgoing
from reliamsg.transport.mqtt.receiver import MqttReceiver
from reliamsg.transport.mqtt.sender import MqttSender
from tests.transport.tools import Receiving, Sending, running


def site(url: str, **settings: Any) -> Site:
    """A site that gives up and comes back quickly."""
    quick = {"backoff_min": 0.05, "backoff_max": 0.2, "connect_timeout": 5.0}
    return Site("dc1", url, **{**quick, **settings})


@contextmanager
def sending(
    where: Site, messages: Iterable[Outgoing] = (), most_open: int = 1000
) -> Iterator[tuple[MqttSender, Sending]]:
    events = Sending(most_open)
    events.queue.extend(messages)
    with running(MqttSender(where, "gateway-7", [], events)) as sender:
        yield sender, events


@contextmanager
def receiving(
    where: Site, *topics: str, group: str = "billing", acknowledge: bool = False
) -> Iterator[tuple[MqttReceiver, Receiving]]:
    events = Receiving()
    bindings = [Binding(topic, 0, group) for topic in topics or ("orders",)]
    receiver = MqttReceiver(where, bindings, events)
    if acknowledge:
        events.transport = receiver
    with running(receiver):
        yield receiver, events
    assert not events.held, "MQTT has no locks"
    assert not events.empty, "MQTT can't tell"
