"""The connections of one site: the one that it is read with, and one that only listens.

Reading takes the group's lock, or its session. A consumer that must not have them, since another inbox may be the one
that reads, listens at the group's control addresses under a throw-away name: with a connection of the kind that
publishes, which takes nothing from anybody. At any time a site has one of the two, or none; both, one aside of the
other, only while the lock is refused, or for a while after the session was lost: somebody may have taken it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reliamsg.transport.base import (
    Binding,
    Delivery,
    Evidence,
    Mark,
    Outcome,
    Outgoing,
    ReceiverTransport,
    SenderTransport,
    Transports,
)

if TYPE_CHECKING:
    from reliamsg.receiving.control import Control
    from reliamsg.receiving.sites import SiteReceiver

__all__ = ["Link", "Links"]


class Reading:
    """Implements :class:`~reliamsg.transport.base.ReceiverEvents`. Once its connection was given up it is silent."""

    def __init__(self, site: SiteReceiver, control: Control) -> None:
        self._site = site
        self._control = control

    def _current(self) -> bool:
        return self._site.links.reading is self

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
        first proof, would otherwise wait again each time that the connection is made anew to get more messages."""
        site, lease = self._site, self._site.shared.lease
        lost_at_once = lease.demanding and site.state != "connected" and not renewing
        if site.site.protocol == "mqtt" and (lost_at_once or lease.expired(site.shared.clock())):
            transport = site.transport
            site.links.give_up("given up: it is not known whether this inbox still reads")
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
            if self._current():
                self._site.drained()

    def heard(self, address: str, body: bytes) -> None:
        if self._current():
            self._control.heard(self._site, address, body, True)


class Listening:
    """Implements :class:`~reliamsg.transport.base.SenderEvents` for a connection that publishes no messages."""

    def __init__(self, site: SiteReceiver, control: Control, aside: bool) -> None:
        self._site = site
        self._control = control
        self._aside = aside
        """Beside a connection that tries to read: that one's state is the site's."""

    def _current(self) -> bool:
        return self._site.links.listening is self

    def connected(self, endpoint: str, window: int | None) -> None:
        with self._site.shared.lock:
            if self._current() and self._aside:
                self._site.links.hears_aside, self._site.greeted = True, False
                self._site.shared.due(0.0)
            elif self._current():
                self._site.listens(endpoint)

    def disconnected(self, reason: str) -> None:
        with self._site.shared.lock:
            if self._current() and self._aside:
                self._site.links.hears_aside = False
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

    def heard(self, address: str, body: bytes) -> None:
        if self._current():
            self._control.heard(self._site, address, body, False)


Link = ReceiverTransport | SenderTransport


class Links:
    """Opens and gives up a site's connections. Called under the consumer's lock; what is given up is to be closed
    without it, since closing waits for events that may wait for the lock."""

    def __init__(
        self,
        site: SiteReceiver,
        transports: Transports,
        bindings: Sequence[Binding],
        control: Control,
        name: str,
    ) -> None:
        self._site = site
        self._transports = transports
        self._bindings = bindings
        self._control = control
        self._name = name
        self.reading: Reading | None = None
        self.listening: Listening | None = None
        self.listener: SenderTransport | None = None
        self.hears_aside = False
        """What listens aside is connected."""
        self.given_up: list[Link] = []
        """To be closed without the lock."""

    @property
    def all(self) -> list[Link]:
        """Every connection that there is."""
        return [link for link in (self.listener, self._site.transport) if link is not None]

    @property
    def open(self) -> Link | None:
        """One that is connected."""
        if self.hears_aside or self._site.state == "listening":
            return self.listener
        return self._site.transport if self._site.state == "connected" else None

    def read(self) -> None:
        """Begin to read the site, if that was not begun. What listens must have been given up."""
        site = self._site
        if site.transport is None:
            site.state = "connecting"
            self.reading = Reading(site, self._control)
            site.transport = self._transports.open_receiver(site.site, self._bindings, self.reading)
            site.transport.listen(self._control.addresses)
            site.transport.start()

    def listen(self, aside: bool = False) -> None:
        """Begin to listen, if that was not begun. What reads must have been given up, unless this is `aside` of it."""
        if self.listener is None:
            if not aside:
                self._site.state = "connecting"
            self.listening = Listening(self._site, self._control, aside)
            self.listener = self._transports.open_sender(self._site.site, self._name, (), self.listening)
            self.listener.listen(self._control.addresses)
            self.listener.start()

    def stop_listening(self) -> None:
        """Give up what listens aside."""
        if self.listener is not None:
            self.given_up.append(self.listener)
        self.listening = self.listener = None
        self.hears_aside = False

    def give_up(self, reason: str) -> None:
        """Have nothing to do with any connection any more; what there was is to be closed."""
        site = self._site
        if self.all:
            site.disconnected(reason)
            self.given_up += self.all
            self.reading = self.listening = self.listener = site.transport = None
            self.hears_aside = False
