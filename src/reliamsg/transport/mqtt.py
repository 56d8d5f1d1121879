"""MQTT 5 and 3.1.1 sites.

Nothing is published before the broker's CONNACK, and no more than the broker's Receive Maximum is in flight.

What MQTT 3.1.1 can't tell: why a broker closed a connection, and that it refused a message. Mosquitto confirms
to a 3.1.1 client what its access rules or its size limit then drop; with MQTT 5 it says so. Neither version
tells a publisher whether anybody subscribes.

Client ids are longer than the 23 characters that a 3.1.1 broker has to allow; one that stops there refuses
the connection with that reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.errors import ConfigError, TransientError
from reliamsg.transport.base import Binding
from reliamsg.transport.mqtt_connect import Connector
from reliamsg.transport.mqtt_receiver import MqttReceiver
from reliamsg.transport.mqtt_sender import MqttSender
from reliamsg.transport.mqtt_subscribing import most_held, subscribe, topics_of
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Ended
from reliamsg.wire.address import client_id

__all__ = ["MqttReceiver", "MqttSender", "create_group"]


def create_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Make the persistent sessions of the groups in `bindings`, so that `site` collects for them from now on.

    Connects as each group, subscribes, and disconnects, within `timeout` seconds over all. A group whose
    consumer is connected at the time is interrupted: it loses its connection to this call and reconnects,
    and what it had not acknowledged is delivered to it again.

    Raises :class:`ConfigError` for a refused login, :class:`TransientError` for a site that can't be reached
    or refuses the subscription.
    """
    deadline = time.monotonic() + timeout
    waker = Waker()
    try:
        for group in sorted({binding.group for binding in bindings}):
            topics = topics_of([binding for binding in bindings if binding.group == group])
            connector = Connector(site, client_id(group), waker, lambda: False, prefetch=site.prefetch)
            ended = Ended("no time left")
            for number, endpoint in enumerate(site.endpoints):
                now = time.monotonic()
                share = (deadline - now) / (len(site.endpoints) - number)
                until = now + min(site.connect_timeout, share)
                ended_or_none = _subscribe_once(connector, endpoint, site, topics, until)
                if ended_or_none is None:
                    break
                ended = ended_or_none
            else:
                error = ConfigError if ended.credentials else TransientError
                raise error(f"site {site.name}: group {group!r} could not be created: {ended.reason}")
    finally:
        waker.close()


def _subscribe_once(
    connector: Connector, endpoint: Endpoint, site: Site, topics: Sequence[str], deadline: float
) -> Ended | None:
    link = connector.open(endpoint, site.login(), deadline)
    if isinstance(link, Ended):
        return link
    try:
        most = most_held(site)
        wrong = subscribe(link, topics, deadline, lambda: False, most)
        if wrong is not None:
            return Ended(wrong)
        link.disconnect(deadline)
        return None
    finally:
        link.close()
