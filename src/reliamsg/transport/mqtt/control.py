"""Listening for control frames at an MQTT site: subscriptions at QoS 0 on the transport's own connection.

A control frame that arrives on the connection that reads the group proves that this connection works, so the listener
uses no other. Frames are sent over a connection of their own (:mod:`~reliamsg.transport.mqtt.control_connection`). A
broker that refuses a subscription may say so or close the connection; in the second case the addresses without an
answer are retried one at a time, and the refused one is left out for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from reliamsg.transport.mqtt.codec import Publish
from reliamsg.transport.mqtt.quarantine import AddressQuarantine

__all__ = ["CHECK_SECONDS", "ControlListener", "SubscribingConnection"]

CHECK_SECONDS = 1.0
"""How often to check whether an address may be tried again."""


class SubscribingConnection(Protocol):
    """A connection that listens."""

    @property
    def listening_unanswered(self) -> Collection[str]:
        """Addresses to which the broker has yet to answer a subscription."""

    @property
    def reason(self) -> str:
        """Why the connection is gone."""

    def take_listening_refused(self) -> dict[str, str]:
        """Addresses to which the broker has refused a subscription since the last call, with its reasons."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Subscribe to these, and unsubscribe from all others."""


class ControlListener:
    """The addresses that a transport listens at, over all its connections. I/O thread only, except :meth:`listen` and
    :attr:`refused`."""

    def __init__(
        self, site: str, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._addresses: tuple[str, ...] = ()
        self._wanted: frozenset[str] = frozenset()
        """Addresses as the I/O thread last saw them."""
        self._changed = False
        self._quarantine = AddressQuarantine(site, "received at")
        self._trial: str | None = None
        """The isolated address that is subscribed to now, with nothing else unanswered."""
        self._listening: set[str] = set()
        self._check_at = 0.0

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us listen at, sorted. Any thread."""
        return self._quarantine.refused

    @property
    def waits(self) -> bool:
        """Whether some addresses are not listened at, to be tried when they may be."""
        return not self._wanted <= self._listening

    def listen(self, addresses: Sequence[str]) -> None:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._changed = True
        self._wake()

    def begin(self, connection: SubscribingConnection) -> None:
        """A connection is established: listen."""
        self._trial, self._listening = None, set()
        self._check_at = 0.0
        self._listen(connection)

    def work(self, connection: SubscribingConnection) -> None:
        """Apply changes, and try addresses that may be refused, one at a time."""
        if self._changed:
            self._listen(connection)
        for address, reason in connection.take_listening_refused().items():
            self._quarantine.quarantine(
                address, f"the broker refuses the subscription ({reason})", self._clock()
            )
            self._listening.discard(address)
        if connection.listening_unanswered:
            return
        if self._trial is not None:
            if self._trial in self._listening:
                self._quarantine.clear(self._trial)
            self._trial, self._check_at = None, 0.0
        if self._clock() >= self._check_at:
            self._try_next(connection)

    def _listen(self, connection: SubscribingConnection) -> None:
        """Subscribe to all wanted addresses that are not isolated."""
        self._changed = False
        self._wanted = frozenset(self._addresses)
        self._check_at = 0.0
        kept = self._listening & self._wanted
        self._listening = kept | {address for address in self._wanted if address not in self._quarantine}
        connection.listen(sorted(self._listening))

    def _try_next(self, connection: SubscribingConnection) -> None:
        now = self._clock()
        for address in sorted(self._wanted - self._listening):
            if address not in self._quarantine or self._quarantine.may_try(address, now):
                self._trial = address
                self._listening.add(address)
                connection.listen(sorted(self._listening))
                return
        self._check_at = now + CHECK_SECONDS

    def accepts(self, publish: Publish) -> bool:
        """Whether a message at a control address is a frame for us, and not left over from an earlier connection of the
        session."""
        return publish.topic in self._wanted and not publish.retain and publish.damaged is None

    def leave(self, connection: SubscribingConnection) -> None:
        """The connection is about to be closed cleanly: a session that remains must not collect frames for us."""
        connection.listen(())

    def end(self, connection: SubscribingConnection, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        unanswered = connection.listening_unanswered
        if broken and unanswered:
            self._quarantine.connection_ended(unanswered, connection.reason, self._clock())
