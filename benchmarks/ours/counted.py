"""Ordinary brokers that count the bytes sent to them: data, and the protocol's control frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reliamsg.config import Site
from reliamsg.transport import factory
from reliamsg.transport.base import Binding, Outgoing, ReceiverEvents, SenderEvents

__all__ = ["CountedTransports"]


class CountedTransports:
    """Injected as the `transports` of a producer or consumer. Counts the bytes of bodies, over all sites."""

    def __init__(self) -> None:
        self.data_bytes = 0
        self.control_bytes = 0
        self.control_frames = 0
        self.repair_bytes = 0

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> Any:
        return _Counted(factory.open_sender(site, producer_id, bindings, _Events(events, self)), self)

    def open_receiver(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> Any:
        return _Counted(factory.open_receiver(site, bindings, events), self)


class _Events:
    """Forwards everything, and counts the pulled data."""

    def __init__(self, events: SenderEvents, counts: CountedTransports) -> None:
        self._events = events
        self._counts = counts

    def pull(self) -> Sequence[Outgoing]:
        messages = self._events.pull()
        self._counts.data_bytes += sum(len(message.body) for message in messages)
        return messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)


class _Counted:
    """Forwards everything, and counts the control frames."""

    def __init__(self, transport: Any, counts: CountedTransports) -> None:
        self._transport = transport
        self._counts = counts

    def send_control(self, address: str, body: bytes) -> bool:
        if body.startswith(b"RMB1"):
            self._counts.repair_bytes += len(body)
        else:
            self._counts.control_bytes += len(body)
            self._counts.control_frames += 1
        return bool(self._transport.send_control(address, body))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
