"""Reading a broker in memory for a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.transport.base import Binding, ReceiverEvents, Token
from reliamsg.transport.memory.broker import LocalBroker, Refused
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.session import MemorySession
from reliamsg.transport.mqtt.receive_window import ReceiveWindow, window_of

__all__ = ["MemoryReceiver"]


class MemoryReceiver(MemorySession[ReceiverEvents]):
    """Reads one broker in memory for a group."""

    def __init__(
        self,
        site: Site,
        broker: LocalBroker,
        bindings: Sequence[Binding],
        events: ReceiverEvents,
        *,
        threaded: bool,
    ) -> None:
        super().__init__(site, broker, events, bindings[0].group, threaded=threaded)
        self._bindings = tuple(bindings)
        self._acknowledged: deque[Sequence[Token]] = deque()
        self._hold_none()

    def _hold_none(self) -> None:
        self._window = ReceiveWindow(window_of(self.site))
        self._numbers: dict[Token, int] = {}

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Let the broker delete these messages."""
        connection = self._connection
        if connection is not None:
            if self.broker.protocol == "mqtt":
                self._acknowledged.append(tokens)
            self.broker.acknowledge(connection, tokens)
            self._wake()

    def renew(self, topic: str, partition: int) -> None:
        """Nothing: this broker uses the bindings that it has."""

    def _connect(self) -> None:
        self._connection, existed = self.broker.connect_receiver(self.client, self._wake, self._bindings)
        self._hold_none()
        self._listen()
        self._events.connected(str(self.site.endpoints[0]), existed)

    def _lost(self, connection: Connection) -> None:
        self._events.disconnected(connection.reason, renewing=self._resting)

    def _refused(self, refused: Refused) -> None:
        if refused.busy:
            self._events.busy(refused.reason)
        else:
            super()._refused(refused)

    def _flow(self, connection: Connection) -> bool:
        received = self._receive_control(connection)
        if self.broker.protocol == "mqtt":
            return self._flow_mqtt(connection) or received
        deliveries = self.broker.fetch(connection, self.site.prefetch)
        if deliveries:
            self._events.received(deliveries)
        elif self.broker.turned_empty(connection):
            self._events.drained()
        return bool(received or deliveries)

    def _flow_mqtt(self, connection: Connection) -> bool:
        """Read whatever the broker sends, and keep as much of it as the real transport does."""
        while self._acknowledged:
            for token in self._acknowledged.popleft():
                if (number := self._numbers.pop(token, None)) is not None:
                    self._window.acknowledge(number)
        self._window.release()
        if self._window.has_room_again:
            self.reconnect("there is room again for messages that were not taken")
            return True
        sent = self.broker.fetch(connection, self.broker.max_inflight or self.site.prefetch)
        taken = []
        for delivery in sent:
            number = self._window.receive(0, len(delivery.body))
            if number is not None:
                self._numbers[delivery.token] = number
                taken.append(delivery)
        if taken:
            self._events.received(taken)
        return bool(sent)
