"""What sending to an AMQP site and receiving from it share: one connection at a time, reached from any thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.amqp.connection import Link
from reliamsg.transport.amqp.control import ControlChannel
from reliamsg.transport.session import E, Ended, SiteSession

__all__ = ["AmqpSession", "Flow"]


class Flow(Protocol):
    """What is done on one connection. I/O thread only."""

    @property
    def link(self) -> Link: ...

    @property
    def control(self) -> ControlChannel: ...

    def tell(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""

    def open(self) -> None:
        """The connection stands: begin."""

    def close(self) -> None:
        """Say goodbye within the session's ``grace``."""


F = TypeVar("F", bound=Flow)


class AmqpSession(SiteSession[E], Generic[E, F]):
    """A :class:`~reliamsg.transport.session.SiteSession` that runs one flow on each connection.

    Other threads take :attr:`flow` once and use what they got: it may be replaced at any time.
    """

    def __init__(self, site: Site, events: E, thread_name: str, client_name: str) -> None:
        """`client_name` is what the broker shows of the connection."""
        # Its events are E itself; mypy tries each of the two that E stands for.
        super().__init__(site, events, thread_name)  # type: ignore[arg-type]
        self.flow: F | None = None
        """Of the connection, or the attempt, that there is."""
        self.addresses: tuple[str, ...] = ()
        """Control addresses to listen at."""
        self.control_refused = ""
        self.silent_until = float("-inf")
        self._client_name = client_name

    @abstractmethod
    def make_flow(self, link: Link, endpoint: str) -> F:
        """The flow for a link that is about to run."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are heard. Any thread."""
        self.addresses = tuple(dict.fromkeys(addresses))
        flow = self.flow
        if flow is not None:
            flow.link.call(flow.control.listen)

    def tell(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""
        flow = self.flow
        return flow is not None and self.up and flow.tell(address, body)

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the broker does not let us listen at. Any thread."""
        flow = self.flow
        return () if flow is None else sorted(flow.control.forbidden)

    def heard(self, address: str, body: bytes) -> None:
        """Part of :class:`~reliamsg.transport.amqp.control.Listener`."""
        self.events.heard(address, body)

    def reconnect(self, reason: str) -> None:
        """Drop the connection and connect again; nothing where there is none. Any thread."""
        flow = self.flow
        if flow is not None:
            link = flow.link
            link.call(lambda: link.drop(Ended(reason)) if self.up else None)

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`~reliamsg.transport.session.SiteSession`."""
        link = Link(self.site, endpoint, login, deadline, self._client_name)
        flow = self.make_flow(link, str(endpoint))
        self.flow = flow
        try:
            # close() sets stopping before it looks for a connection to interrupt.
            return Ended("closed") if self.stopping.is_set() else link.run(flow.open)
        finally:
            self.flow = None

    def interrupt(self) -> None:
        """Part of :class:`~reliamsg.transport.session.SiteSession`."""
        flow = self.flow
        if flow is not None:
            flow.link.call(flow.close)
