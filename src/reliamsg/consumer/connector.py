"""Opening the connections of one site: the one that it is read with, and one that only listens.

Reading takes the group's lock, or its session. A consumer that must not have them, since another inbox may be the one
that reads, listens at the group's control addresses under a throw-away name: with a connection of the kind that
publishes, which takes nothing from anybody. At any time a site has one of the two, or none; both, one aside of the
other, only while the lock is refused, or for a while after the session was lost: another inbox may have taken it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reliamsg.consumer.control import Control
from reliamsg.consumer.site import SiteReceiver
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing, Transports

__all__ = ["Connector"]


class Reading:
    """Implements :class:`~reliamsg.transport.base.ReceiverEvents`. Once its connection was given up it is silent."""

    def __init__(self, site: SiteReceiver, control: Control) -> None:
        self._site = site
        self._control = control

    def _current(self) -> bool:
        return self._site.connections.reading is self

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        with self._site.shared.lock:
            if self._current():
                self._site.connected(endpoint, session_present)
                self._leave_to_others()

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        with self._site.shared.lock:
            if self._current():
                self._site.disconnected(reason)
                self._leave_to_others(renewing)

    def _leave_to_others(self, renewing: bool = False) -> None:
        """A session that may have been taken over since the last proof must not be taken back, not even once. One whose
        connection is `renewing` was not taken from here: an inbox that waited for its turn, and is still to have its
        first proof, would otherwise wait again each time that the connection is renewed to get more messages."""
        site, lease = self._site, self._site.shared.role.lease
        lost_at_once = lease.demanding and site.state != "connected" and not renewing
        if site.site.protocol == "mqtt" and (lost_at_once or lease.expired(site.shared.clock())):
            transport = site.connections.transport
            site.give_up("given up: it is not known whether this inbox still reads")
            if transport is not None:
                transport.close(0.0)  # on its own thread this does not wait; the rest follows on another

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        with self._site.shared.lock:
            if self._current():
                self._site.unreachable(endpoint, reason, credentials)

    def busy(self, holder: str) -> None:
        with self._site.shared.lock:
            if self._current():
                self._site.busy(holder)

    def received(self, deliveries: Sequence[Delivery]) -> None:
        self._site.received(deliveries, self)

    def drained(self) -> None:
        with self._site.shared.lock:
            if self._site.connections.reading is self:
                self._site.drained()

    def control_received(self, address: str, body: bytes) -> None:
        if self._current():
            self._control.received(self._site, address, body, True)

    def control_returned(self, address: str) -> bool:
        return self._current() and self._control.returned(self._site, address)


class Listening:
    """Implements :class:`~reliamsg.transport.base.SenderEvents` for a connection that publishes no messages."""

    def __init__(self, site: SiteReceiver, control: Control, aside: bool) -> None:
        self._site = site
        self._control = control
        self._aside = aside
        """Beside a connection that tries to read: that one's state is the site's."""

    def _current(self) -> bool:
        return self._site.connections.listening is self

    def connected(self, endpoint: str, window: int | None) -> None:
        with self._site.shared.lock:
            if self._current() and self._aside:
                self._site.listens_aside()
            elif self._current():
                self._site.listens(endpoint)

    def disconnected(self, reason: str) -> None:
        with self._site.shared.lock:
            if self._current() and self._aside:
                self._site.connections.note_aside(False)
            elif self._current():
                self._site.disconnected(reason)

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        with self._site.shared.lock:
            if self._current() and not self._aside:
                self._site.unreachable(endpoint, reason, credentials)

    def pull(self) -> Sequence[Outgoing]:
        return ()

    def confirmed(self, tokens: Sequence[int]) -> None:
        """Nothing was published."""

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        """Nothing was published."""

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        """It names no groups."""

    def blocked(self, reason: str | None) -> None:
        """Control frames that can't be sent are lost, as any may be."""

    def control_received(self, address: str, body: bytes) -> None:
        if self._current():
            self._control.received(self._site, address, body, False)

    def control_returned(self, address: str) -> bool:
        return self._current() and self._control.returned(self._site, address)


class Connector:
    """Opens the connections of a site. Called under the consumer's lock."""

    def __init__(
        self,
        site: SiteReceiver,
        control: Control,
        transports: Transports,
        bindings: Sequence[Binding],
        name: str,
    ) -> None:
        """`name`: the throw-away name to listen under."""
        self._site = site
        self._control = control
        self._transports = transports
        self._bindings = bindings
        self._name = name

    def read(self) -> None:
        """Begin to read the site, if that was not begun. What listens must have been given up."""
        site = self._site
        if site.connections.transport is None:
            site.connects()
            events = Reading(site, self._control)
            transport = self._transports.open_receiver(site.site, self._bindings, events)
            site.connections.read_with(transport, events)
            transport.listen(self._control.addresses)
            transport.start()

    def listen(self, aside: bool = False) -> None:
        """Begin to listen, if that was not begun. What reads must have been given up, unless this is `aside` of it."""
        site = self._site
        if site.connections.listener is None:
            if not aside:
                site.connects()
            events = Listening(site, self._control, aside)
            listener = self._transports.open_sender(site.site, self._name, (), events)
            site.connections.listen_with(listener, events)
            listener.listen(self._control.addresses)
            listener.start()
