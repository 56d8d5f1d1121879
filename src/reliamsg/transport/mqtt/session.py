"""What both directions of an MQTT site share: being woken, dropping a connection on demand, saying goodbye."""

from __future__ import annotations

import time
from collections.abc import Sequence

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.mqtt.connection import Link
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.control import MqttControl
from reliamsg.transport.mqtt.control_connection import Teller
from reliamsg.transport.network import Waker
from reliamsg.transport.session import E, Ended, SiteSession

__all__ = ["MqttSession"]


class MqttSession(SiteSession[E]):
    """What both directions share: being woken, dropping a connection on demand, saying goodbye."""

    def __init__(
        self, site: Site, events: E, thread: str, name: str, prefetch: int | None, control_name: str
    ) -> None:
        """`name` and `control_name`: the client ids of this connection and of the one that sends control frames."""
        # Its events are E itself; mypy tries each of the two that E stands for.
        super().__init__(site, events, thread)  # type: ignore[arg-type]
        self._waker = Waker()
        self._connector = Connector(site, name, self._waker, self.stopping.is_set, prefetch=prefetch)
        self._control = MqttControl(site.name, self._waker.wake, self._heard)
        self._teller = Teller(site, self._connector, control_name, f"{thread}-control")
        self._telling = False
        """Control frames are sent since the broker has answered what is listened at."""
        self._drop: str | None = None
        self._goodbye_by = 0.0

    def interrupt(self) -> None:
        """Part of :class:`SiteSession`."""
        self._waker.wake()

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are heard."""
        self._control.listen(addresses)

    def tell(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it."""
        return self.up and self._teller.tell(address, body)

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the site does not let us send to, or listen at."""
        return sorted({*self._teller.refused, *self._control.refused})

    def reconnect(self, reason: str) -> None:
        """Drop the connection and connect again; nothing where there is none."""
        if self.up:
            self._drop = reason
            self._waker.wake()

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and end the I/O thread, within `timeout` seconds."""
        if not self.stopping.is_set():
            self._goodbye_by = time.monotonic() + timeout * 0.8
        end = time.monotonic() + timeout
        self._teller.stop(timeout * 0.8)
        super().close(timeout)
        self._teller.join(0.0 if self.on_io_thread else end - time.monotonic())
        if not self._thread.is_alive():
            self._waker.close()

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`SiteSession`."""
        self._drop = None
        link = self._connector.open(endpoint, login, deadline)
        return link if isinstance(link, Ended) else self._hold(link, endpoint)

    def _hold(self, link: Link, endpoint: Endpoint) -> Ended:
        self._telling = False
        self._teller.begin(link.maximum_packet_size)
        try:
            return self._serve(link, endpoint)
        finally:
            self._teller.end()
            self._ended(link, broken=self._drop is None and not self.stopping.is_set())
            link.close()

    def _ended(self, link: Link, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        self._control.end(link, broken)

    def _attend(self, link: Link, endpoint: Endpoint) -> None:
        """Do what control frames need, between two turns of the connection."""
        self._control.work(link)
        # A client that hears itself would miss what it says before that.
        if not self._telling and not link.listening_unanswered:
            self._telling = True
            self._teller.go(endpoint)

    def _heard(self, address: str, body: bytes) -> None:
        self.events.heard(address, body)  # whose they are may change

    def _serve(self, link: Link, endpoint: Endpoint) -> Ended:
        raise NotImplementedError
