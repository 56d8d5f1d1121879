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
from reliamsg.transport.mqtt.quarantine import Suspects

__all__ = ["MqttControl"]

LOOK_AGAIN_SECONDS = 1.0
"""How often it is looked whether an address may be tried again."""


class Line(Protocol):
    """A connection, as far as it is needed."""

    listening_refused: dict[str, str]

    @property
    def listening_unanswered(self) -> Collection[str]:
        """Addresses to which the broker has yet to answer a subscription."""

    @property
    def reason(self) -> str:
        """Why the connection is gone."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Subscribe to these, and to no others any more."""


class MqttControl:
    """What is listened at, over all connections of a transport. I/O thread only, but for :meth:`listen` and
    :attr:`refused`."""

    def __init__(
        self,
        site: str,
        wake: Callable[[], None],
        heard: Callable[[str, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`heard` is :meth:`~reliamsg.transport.base.ControlEvents.heard`."""
        self._wake = wake
        self._heard = heard
        self._clock = clock
        self._addresses: tuple[str, ...] = ()
        self._wanted: frozenset[str] = frozenset()
        """Addresses as the I/O thread last saw them."""
        self._changed = False
        self._suspects = Suspects(site, "heard at")
        self._trial: str | None = None
        """The suspect that is subscribed to now, with nothing else unanswered."""
        self._listening: set[str] = set()
        self._look_at = 0.0

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us listen at, sorted. Any thread."""
        return self._suspects.refused

    @property
    def waits(self) -> bool:
        """Whether there are addresses that are not listened at, to be tried when they may be."""
        return not self._wanted <= self._listening

    def listen(self, addresses: Sequence[str]) -> None:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._changed = True
        self._wake()

    def begin(self, link: Line) -> None:
        """A connection stands: listen."""
        self._trial, self._listening = None, set()
        self._look_at = 0.0
        self._listen(link)

    def work(self, link: Line) -> None:
        """Listen where that changed, and try what may be refused, one at a time."""
        if self._changed:
            self._listen(link)
        if link.listening_refused:
            refused, link.listening_refused = link.listening_refused, {}
            for address, reason in refused.items():
                self._suspects.quarantine(
                    address, f"the broker refuses the subscription ({reason})", self._clock()
                )
                self._listening.discard(address)
        if link.listening_unanswered:
            return
        if self._trial is not None:
            if self._trial in self._listening:
                self._suspects.cleared(self._trial)
            self._trial, self._look_at = None, 0.0
        if self._clock() >= self._look_at:
            self._try_next(link)

    def _listen(self, link: Line) -> None:
        """Subscribe to what is wanted and not under suspicion."""
        self._changed = False
        self._wanted = frozenset(self._addresses)
        self._look_at = 0.0
        kept = self._listening & self._wanted
        self._listening = kept | {address for address in self._wanted if address not in self._suspects}
        self._tell(link)

    def _try_next(self, link: Line) -> None:
        now = self._clock()
        for address in sorted(self._wanted - self._listening):
            if address not in self._suspects or self._suspects.may_try(address, now):
                self._trial = address
                self._listening.add(address)
                self._tell(link)
                return
        self._look_at = now + LOOK_AGAIN_SECONDS

    def _tell(self, link: Line) -> None:
        link.listen(sorted(self._listening))

    def hear(self, publish: Publish) -> None:
        """A message came for a control address. One left over from an earlier life of the session is dropped."""
        if publish.topic in self._wanted and not publish.retain and publish.damaged is None:
            self._heard(publish.topic, publish.body)

    def leave(self, link: Line) -> None:
        """The connection is about to be ended in good order: a session that stays must not collect for us."""
        link.listen(())

    def end(self, link: Line, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        unanswered = link.listening_unanswered
        if broken and unanswered:
            self._suspects.ended(unanswered, link.reason, self._clock())
