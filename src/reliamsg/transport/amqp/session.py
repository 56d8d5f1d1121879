"""What sending to an AMQP site and receiving from it share: one connection at a time, used from any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.control import ControlChannel, ControlState
from reliamsg.transport.amqp.pika_connection import InputListener
from reliamsg.transport.session import E, Ended, SiteSession

__all__ = ["ActiveConnection", "AmqpSession"]


class ActiveConnection(InputListener, ABC):
    """What a transport does on one connection. I/O thread only."""

    connection: AmqpConnection
    control: ControlChannel
    """The channel that listens for control frames."""

    @abstractmethod
    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""

    @abstractmethod
    def open(self) -> None:
        """The connection is established: begin."""

    @abstractmethod
    def close(self, grace: float) -> None:
        """Close the connection cleanly, within `grace` seconds."""


A = TypeVar("A", bound=ActiveConnection)


class AmqpSession(SiteSession[E], Generic[E, A]):
    """A :class:`~reliamsg.transport.session.SiteSession` with an :class:`ActiveConnection`.

    Other threads read :attr:`active` once and use what they got: it may be replaced at any time.
    """

    def __init__(self, site: Site, events: E, thread_name: str, client_name: str) -> None:
        """`client_name` is what the broker shows for the connection."""
        # Its events are E itself; mypy tries each of the two that E stands for.
        super().__init__(site, events, thread_name)  # type: ignore[arg-type]
        self.active: A | None = None
        """For the current connection or attempt."""
        self.control: ControlState = ControlState(site, self.gate)
        self._client_name = client_name

    @abstractmethod
    def make_active(self, connection: AmqpConnection, endpoint: str) -> A:
        """What to do on a connection that is about to run."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are received. Any thread."""
        self.control.listen(addresses)
        active = self.active
        if active is not None:
            active.connection.call(active.control.listen)

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""
        active = self.active
        return active is not None and self.gate.up and active.send_control(address, body)

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the broker does not let us listen at. Any thread."""
        active = self.active
        return () if active is None else sorted(active.control.forbidden)

    def reconnect(self, reason: str) -> None:
        """Drop the connection, if there is one, and connect again. Any thread."""
        active = self.active
        if active is not None:
            connection = active.connection
            connection.call(lambda: connection.drop(Ended(reason)) if self.gate.up else None)

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`~reliamsg.transport.session.SiteSession`."""
        connection = AmqpConnection(self.site, endpoint, login, deadline, self._client_name)
        active = self.make_active(connection, str(endpoint))
        self.active = active
        try:
            # close() sets stopping before it looks for a connection to interrupt.
            if self.stopping.is_set():
                return Ended("closed")
            return connection.run(active.open, active)
        finally:
            self.active = None

    def interrupt(self) -> None:
        """Part of :class:`~reliamsg.transport.session.SiteSession`."""
        active = self.active
        if active is not None:
            active.connection.call(partial(active.close, self.grace))
