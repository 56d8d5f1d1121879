"""Which transport serves which URL. Broker clients are imported only when a site needs them."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding, ReceiverEvents, ReceiverTransport, SenderEvents, SenderTransport

__all__ = ["create_group", "delete_group", "open_receiver", "open_sender"]


def open_sender(
    site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
) -> SenderTransport:
    """A transport that publishes to `site`; not started yet."""
    if site.scheme == "memory":
        from reliamsg.transport.memory_registry import find_host

        return find_host(site).open_sender(site, producer_id, bindings, events)
    if site.protocol == "amqp":
        from reliamsg.transport.amqp import AmqpSender

        return AmqpSender(site, producer_id, bindings, events)
    from reliamsg.transport.mqtt import MqttSender

    return MqttSender(site, producer_id, bindings, events)


def open_receiver(site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> ReceiverTransport:
    """A transport that reads `site` for the one group that `bindings` name; not started yet."""
    if site.scheme == "memory":
        from reliamsg.transport.memory_registry import find_host

        return find_host(site).open_receiver(site, bindings, events)
    if site.protocol == "amqp":
        from reliamsg.transport.amqp import AmqpReceiver

        return AmqpReceiver(site, bindings, events)
    from reliamsg.transport.mqtt import MqttReceiver

    return MqttReceiver(site, bindings, events)


def create_group(
    site: Site, bindings: Sequence[Binding], timeout: float, keys: KeyRing | None = None
) -> None:
    """Have `site` keep messages for the groups in `bindings` from now on; what exists is left as it is. With `keys`,
    producers that have them believe the mark that is left at an MQTT site.

    Blocks for at most about `timeout` seconds. Raises :class:`~reliamsg.errors.ConfigError` when the site
    refuses the login or the declaration, :class:`~reliamsg.errors.TransientError` when it can't be reached.
    """
    if site.scheme == "memory":
        from reliamsg.transport import memory_registry

        memory_registry.create_group(site, bindings, keys)
    elif site.protocol == "amqp":
        from reliamsg.transport import amqp

        amqp.create_group(site, bindings, timeout)
    else:
        from reliamsg.transport import mqtt

        mqtt.create_group(site, bindings, timeout, keys)


def delete_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Have `site` forget the groups in `bindings`, with all that it has for them; at an MQTT site for their other
    topics as well. What does not exist is no error. Blocks and raises as :func:`create_group` does."""
    if site.scheme == "memory":
        from reliamsg.transport import memory_registry

        memory_registry.delete_group(site, bindings)
    elif site.protocol == "amqp":
        from reliamsg.transport import amqp

        amqp.delete_group(site, bindings, timeout)
    else:
        from reliamsg.transport import mqtt

        mqtt.delete_group(site, bindings, timeout)
