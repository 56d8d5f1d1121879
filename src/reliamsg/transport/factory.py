"""Selects the transport for a site's URL. Broker clients are imported only when a site needs them."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding, ReceiverEvents, ReceiverTransport, SenderEvents, SenderTransport

__all__ = ["create_group", "delete_group", "open_receiver", "open_sender"]


def open_sender(
    site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
) -> SenderTransport:
    """Return a transport that publishes to `site`; the caller starts it."""
    if site.scheme == "memory":
        from reliamsg.transport.memory.registry import find_host

        return find_host(site).open_sender(site, producer_id, bindings, events)
    if site.protocol == "amqp":
        from reliamsg.transport.amqp.sender import AmqpSender

        return AmqpSender(site, producer_id, bindings, events)
    from reliamsg.transport.mqtt.sender import MqttSender

    return MqttSender(site, producer_id, bindings, events)


def open_receiver(site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> ReceiverTransport:
    """Return a transport that reads `site` for the one group that `bindings` name; the caller starts it."""
    if site.scheme == "memory":
        from reliamsg.transport.memory.registry import find_host

        return find_host(site).open_receiver(site, bindings, events)
    if site.protocol == "amqp":
        from reliamsg.transport.amqp.receiver import AmqpReceiver

        return AmqpReceiver(site, bindings, events)
    from reliamsg.transport.mqtt.receiver import MqttReceiver

    return MqttReceiver(site, bindings, events)


def create_group(
    site: Site, bindings: Sequence[Binding], timeout: float, keys: KeyRing | None = None
) -> None:
    """Have `site` retain messages for the groups in `bindings` from now on; existing groups are left unchanged. With
    `keys`, the mark that is left at an MQTT site is signed, so that producers with these keys trust it.

    Blocks for up to about `timeout` seconds. Raises :class:`~reliamsg.errors.ConfigError` if the site
    refuses the login or the declaration, :class:`~reliamsg.errors.TransientError` if it can't be reached.
    """
    if site.scheme == "memory":
        from reliamsg.transport.memory import groups as memory

        memory.create_group(site, bindings, keys)
    elif site.protocol == "amqp":
        from reliamsg.transport.amqp import groups as amqp

        amqp.create_group(site, bindings, timeout)
    else:
        from reliamsg.transport.mqtt import groups as mqtt

        mqtt.create_group(site, bindings, timeout, keys)


def delete_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Delete the groups in `bindings` from `site`, with everything stored for them; at an MQTT site for their other
    topics as well. A missing group is not an error. Blocks and raises as :func:`create_group` does."""
    if site.scheme == "memory":
        from reliamsg.transport.memory import groups as memory

        memory.delete_group(site, bindings)
    elif site.protocol == "amqp":
        from reliamsg.transport.amqp import groups as amqp

        amqp.delete_group(site, bindings, timeout)
    else:
        from reliamsg.transport.mqtt import groups as mqtt

        mqtt.delete_group(site, bindings, timeout)
