"""What both directions of an MQTT site share: waking up, dropping a connection on demand, and closing it cleanly."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.mqtt.codec import Publish
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.control import ControlListener
from reliamsg.transport.mqtt.control_connection import ControlConnection
from reliamsg.transport.network import Waker
from reliamsg.transport.session import E, Ended, SiteSession

__all__ = ["MqttSession"]


class MqttSession(SiteSession[E]):
    """A :class:`~reliamsg.transport.session.SiteSession` with a second connection for control frames."""

    def __init__(
        self, site: Site, events: E, thread: str, name: str, prefetch: int | None, control_name: str
    ) -> None:
        """`name` and `control_name`: the client ids of this connection and of the one that sends control frames."""
        # Its events are E itself; mypy tries each of the two that E stands for.
        super().__init__(site, events, thread)  # type: ignore[arg-type]
        self._waker = Waker()
        self._connector = Connector(site, name, self._waker, self.stopping.is_set, prefetch=prefetch)
        self._listener = ControlListener(site.name, self._waker.wake)
        self._control = ControlConnection(site, self._connector, control_name, f"{thread}-control")
        self._may_send_control = False
        """The broker has answered the subscriptions to control addresses."""
        self._drop: str | None = None
        self._goodbye_by = 0.0

    def interrupt(self) -> None:
        """Part of :class:`SiteSession`."""
        self._waker.wake()

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are received."""
        self._listener.listen(addresses)

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it."""
        return self.gate.up and self._control.send_control(address, body)

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the site does not let us send to, or listen at."""
        return sorted({*self._control.refused, *self._listener.refused})

    def reconnect(self, reason: str) -> None:
        """Drop the connection, if there is one, and connect again."""
        if self.gate.up:
            self._drop = reason
            self._waker.wake()

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and terminate the I/O thread, within `timeout` seconds."""
        if not self.stopping.is_set():
            self._goodbye_by = time.monotonic() + timeout * 0.8
        end = time.monotonic() + timeout
        self._control.stop(timeout * 0.8)
        super().close(timeout)
        self._control.join(0.0 if self.on_io_thread else end - time.monotonic())
        if not self._thread.is_alive():
            self._waker.close()

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`SiteSession`."""
        self._drop = None
        connection = self._connector.open(endpoint, login, deadline)
        return connection if isinstance(connection, Ended) else self._hold(connection, endpoint)

    def _hold(self, connection: MqttConnection, endpoint: Endpoint) -> Ended:
        self._may_send_control = False
        connack = connection.connack
        self._control.begin(None if connack is None else connack.maximum_packet_size)
        try:
            return self._serve(connection, endpoint)
        finally:
            self._control.end()
            self._ended(connection, broken=self._drop is None and not self.stopping.is_set())
            connection.close()

    @abstractmethod
    def _serve(self, connection: MqttConnection, endpoint: Endpoint) -> Ended:
        """Use the connection until it ends."""

    def _ended(self, connection: MqttConnection, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        self._listener.end(connection, broken)

    def _serve_control(self, connection: MqttConnection, endpoint: Endpoint) -> None:
        """Do what control frames require, between two turns of the connection."""
        self._listener.work(connection)
        # A client that listens to itself would miss what it sends before that.
        if not self._may_send_control and not connection.listening_unanswered:
            self._may_send_control = True
            self._control.allow(endpoint)

    def _on_control(self, publish: Publish) -> None:
        """Pass on a message that arrived at a control address."""
        if self._listener.accepts(publish):
            self.gate.events.control_received(publish.topic, publish.body)
