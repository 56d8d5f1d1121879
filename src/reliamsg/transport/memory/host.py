"""One broker in memory with its transports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from reliamsg.config import Site
from reliamsg.transport.base import Binding, ReceiverEvents, SenderEvents
from reliamsg.transport.memory.broker import LocalBroker
from reliamsg.transport.memory.receiver import MemoryReceiver
from reliamsg.transport.memory.sender import MemorySender

__all__ = ["MemoryHost"]

T = TypeVar("T", bound="MemorySender | MemoryReceiver")


class MemoryHost:
    """One broker in memory, and the transports to it."""

    def __init__(self, broker: LocalBroker, *, threaded: bool = True) -> None:
        self.broker = broker
        self._threaded = threaded
        self._transports: list[MemorySender | MemoryReceiver] = []
        """Those that were opened here and not closed since, in that order."""

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> MemorySender:
        """A transport that publishes to this broker; not started yet."""
        return self._opened(
            MemorySender(site, self.broker, producer_id, bindings, events, threaded=self._threaded)
        )

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents
    ) -> MemoryReceiver:
        """A transport that reads this broker for the one group that `bindings` name; not started yet."""
        return self._opened(MemoryReceiver(site, self.broker, bindings, events, threaded=self._threaded))

    def rested(self) -> None:
        """Let stepped transports that dropped their connection themselves reconnect."""
        for transport in list(self._transports):
            transport.rested()

    def step(self) -> bool:
        """Give each stepped transport one turn; return whether any had something to do."""
        # A list, not any(): each has a turn.
        return any([transport.step() for transport in list(self._transports)])  # noqa: C419

    def close(self, timeout: float) -> None:
        """Close every transport that was opened here."""
        for transport in list(self._transports):
            transport.close(timeout)

    def _opened(self, transport: T) -> T:
        self._transports = [other for other in self._transports if not other.stopping]
        self._transports.append(transport)
        return transport
