"""Control frames at an MQTT site: published and subscribed to at QoS 0, in the connection that is there anyway.

A broker that refuses an address may say so, say nothing, or close the connection. The last would end what else
flows there again and again, so a connection that breaks each time over control frames goes on without them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from reliamsg.config import Site
from reliamsg.transport.control import Backlog
from reliamsg.transport.mqtt_link import Link
from reliamsg.transport.mqtt_packets import Publish, forbidden
from reliamsg.transport.network import Waker

__all__ = ["MqttControl"]

log = logging.getLogger(__name__)

STRIKES = 3
"""So many connections, one after the other, that end before the broker has answered to control frames are no
coincidence."""

WITHOUT_SECONDS = (60.0, 900.0)
"""How long a site is used without control frames then: the first time, and at most."""

_PACKET_OVERHEAD = 512
"""More than header, address and properties add to a body."""


class MqttControl:
    """What is listened at and told, over all connections of a transport. I/O thread only, but for
    :meth:`listen` and :meth:`tell`."""

    def __init__(self, site: Site, waker: Waker, heard: Callable[[str, bytes], None]) -> None:
        """`heard` is :meth:`~reliamsg.transport.base.ControlEvents.heard`."""
        self._site = site
        self._waker = waker
        self._heard = heard
        self._backlog = Backlog()
        self._addresses: tuple[str, ...] = ()
        self._wanted: frozenset[str] = frozenset()
        """Addresses as the I/O thread last saw them."""
        self._changed = False
        self._strikes = 0
        self._without = WITHOUT_SECONDS[0]
        self._off_until = float("-inf")
        self._off = False
        self._said = False

    def listen(self, addresses: Sequence[str]) -> None:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._changed = True
        self._waker.wake()

    def tell(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        if forbidden(address) or not self._backlog.put(address, body):
            return False
        self._waker.wake()
        return True

    def begin(self, link: Link) -> None:
        """A connection stands: listen, and take what is told from now on."""
        self._off = time.monotonic() < self._off_until
        self._changed = False
        self._wanted = frozenset(self._addresses)
        if self._off:
            return
        link.listen(sorted(self._wanted))
        largest = self._site.max_frame_bytes
        if link.maximum_packet_size is not None:
            largest = min(largest, link.maximum_packet_size - _PACKET_OVERHEAD)
        self._backlog.open(max(0, largest))

    def work(self, link: Link) -> None:
        """Listen where that changed, and write what was told, as far as the connection takes it."""
        if self._off and time.monotonic() >= self._off_until:
            self.begin(link)
        if self._off:
            return
        if self._changed:
            self._changed = False
            self._wanted = frozenset(self._addresses)
            link.listen(sorted(self._wanted))
        if link.listening_refused:
            self._say(link.listening_refused)
            link.listening_refused = ""
        while link.can_write:
            frame = self._backlog.take()
            if frame is None:
                return
            link.tell(*frame)

    def hear(self, publish: Publish) -> None:
        """A message came for a control address. One left over from an earlier life of the session is dropped."""
        if publish.topic in self._wanted and not publish.retain and publish.damaged is None and not self._off:
            self._heard(publish.topic, publish.body)

    def leave(self, link: Link) -> None:
        """The connection is about to be ended in good order: a session that stays must not collect for us."""
        if not self._off:
            self.work(link)
            link.listen(())

    def end(self, link: Link, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        self._backlog.close()
        if self._off or not broken:
            return
        if not link.listening_unanswered and not link.telling_unanswered:
            self._strikes = 0
            return
        self._strikes += 1
        if self._strikes >= STRIKES:
            self._off_until = time.monotonic() + self._without
            self._without = min(2 * self._without, WITHOUT_SECONDS[1])
            # What it did again and again it is likely to do once more: then that is enough.
            self._strikes = STRIKES - 1
            self._say(f"the connection ends over them ({link.reason})")

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            log.warning("site %s: control frames: %s", self._site.name, problem)
