"""Sending control frames to an MQTT site, over a connection of their own.

A broker may close the connection over a topic that it does not permit or does not like, and some topics are made of
other clients' names. So nothing else uses this connection: what a refusal interrupts is the sending of control frames,
for a moment. Frames are sent at QoS 0, which brokers do not answer; the answer to a ping that follows them shows that
they did not end the connection.
"""

from __future__ import annotations

import logging
import threading
import time

from reliamsg.config import Endpoint, Site
from reliamsg.transport.control import Backlog
from reliamsg.transport.mqtt_connect import Connector
from reliamsg.transport.mqtt_link import Link
from reliamsg.transport.mqtt_packets import forbidden
from reliamsg.transport.mqtt_suspects import Suspects
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Backoff, Ended
from reliamsg.wire.limits import MAX_CONTROL_BYTES

__all__ = ["Teller"]

log = logging.getLogger(__name__)

_PACKET_OVERHEAD = 512
"""More than header, address and properties add to a body."""

_MOST_UNANSWERED = 64
"""Addresses that may be unanswered at a time: if the connection ends, so many become suspects at most."""

_MAX_AGE = 5.0
"""A frame that waited longer for a connection, in seconds, has been overtaken by others."""

_MOST_IN_TURN = 256
"""Frames that are sent before suspects have their turn."""

_MOST_SET_ASIDE = 100
"""Suspects for which a frame is kept until they are tried."""

_MAX_PROVEN = 10_000
"""Addresses that are remembered as having been taken on a connection."""


class _Sending:
    """What was sent on one connection and may still end it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.trial: str | None = None
        """The suspect that is being tried; nothing else is unanswered then."""
        self.suspects_turn = False
        """Others have had their turn since a suspect was tried."""
        self.proven: set[str] = set()
        self._unasked: dict[str, None] = {}
        self._asked: list[tuple[int, list[str]]] = []
        """By the number of the ping that followed them."""

    @property
    def unanswered(self) -> list[str]:
        """Addresses of frames that may not have been looked at by the broker, those on trial included."""
        found = {address: None for _, part in self._asked for address in part}
        return list(found | self._unasked)

    @property
    def idle(self) -> bool:
        return not (self._asked or self._unasked)

    @property
    def full(self) -> bool:
        return len(self._unasked) + sum(len(part) for _, part in self._asked) >= _MOST_UNANSWERED

    def tell(self, address: str, body: bytes) -> None:
        self.link.tell(address, body)
        self._unasked[address] = None

    def ask(self) -> None:
        if self._unasked:
            self._asked.append((self.link.ping(), list(self._unasked)))
            self._unasked.clear()

    def answered(self) -> list[str]:
        """Addresses that have turned out well since the last call."""
        found: list[str] = []
        while self._asked and self._asked[0][0] <= self.link.pongs:
            found += self._asked.pop(0)[1]
        if len(self.proven) > _MAX_PROVEN:
            self.proven.clear()
        self.proven.update(found)
        if self.trial in found:
            self.trial = None
        return found

    @property
    def blamed(self) -> list[str]:
        """Who may have ended the connection: of what is unanswered, what was never taken on it."""
        found = self.unanswered
        return [address for address in found if address not in self.proven] or found


class Teller:
    """A connection that publishes control frames, beside another one of the same client, to the same endpoint. A thread
    keeps it while that one lasts.

    :meth:`tell` and :attr:`refused` may be used on any thread, all else on the other connection's, and :meth:`stop` and
    :meth:`join` on whichever closes that.
    """

    def __init__(self, site: Site, main: Connector, name: str, thread: str) -> None:
        """`name`: the client id."""
        self._site = site
        self._stopping = threading.Event()
        self._waker = Waker()
        self._connector = main.beside(name, self._waker, self._stopping.is_set)
        self._backlog = Backlog()
        self._suspects = Suspects(site.name, "sent to")
        self._set_aside: dict[str, bytes] = {}
        """The latest frame for each suspect."""
        self._endpoint: Endpoint | None = None
        """Where the other connection is, while it stands."""
        self._stop_by = 0.0
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    # -- other threads --------------------------------------------------------------------------------------

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us send to, sorted."""
        return self._suspects.refused

    def tell(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`."""
        if forbidden(address) or not self._backlog.put(address, body):
            return False
        self._waker.wake()
        return True

    def begin(self, largest_packet: int | None) -> None:
        """The other connection stands: take what is told from now on."""
        largest = self._site.max_frame_bytes
        if largest_packet is not None:
            largest = min(largest, largest_packet - _PACKET_OVERHEAD)
        self._backlog.open(max(0, largest))

    def go(self, endpoint: Endpoint) -> None:
        """Connect as soon as there is something to send, and send it."""
        self._endpoint = endpoint
        if self._thread.ident is None and not self._stopping.is_set():
            self._thread.start()
        self._waker.wake()

    def end(self) -> None:
        """The other connection is over."""
        self._endpoint = None
        if not self._stopping.is_set():  # else what was told last goes out still
            self._backlog.close()
        self._waker.wake()

    def stop(self, timeout: float) -> None:
        """Write what was told, within `timeout` seconds, and end. Does not wait."""
        self._stop_by = time.monotonic() + timeout
        self._stopping.set()
        self._waker.wake()

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, for `timeout` seconds at most."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))
        if not self._thread.is_alive():
            self._waker.close()

    # -- its thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(self._site)
        while not self._stopping.is_set():
            endpoint = self._endpoint
            if endpoint is None or not len(self._backlog):
                self._waker.wait(None, read=False, write=False, timeout=60.0)
                continue
            try:
                ended = self._attempt(endpoint, backoff)
            except Exception as error:
                # A thread that ended here would leave the site without control frames, and nobody would know.
                log.exception(
                    "site %s: the connection for control frames failed unexpectedly", self._site.name
                )
                ended = Ended(f"internal error: {type(error).__name__}")
            if self._endpoint == endpoint:
                self._stopping.wait(backoff.next(ended.credentials))
        self._backlog.close()

    def _attempt(self, endpoint: Endpoint, backoff: Backoff) -> Ended:
        try:
            login = self._site.login()
        except Exception as error:  # noqa: BLE001 - the application's callable may raise anything
            return Ended(f"the credentials callable raised {type(error).__name__}", credentials=True)
        link = self._connector.open(endpoint, login, time.monotonic() + self._site.connect_timeout)
        if isinstance(link, Ended):
            self._not_connected(link.reason)
            return link
        self._said = ""
        sending = _Sending(link)
        try:
            while self._endpoint == endpoint or self._stopping.is_set():
                if self._stopping.is_set():
                    self._leave(sending, backoff)
                    return Ended("closed")
                self._send(sending)
                if not link.turn(1.0):
                    return self._broken(sending, backoff)
                self._settle(sending, backoff)
            link.disconnect(time.monotonic() + 0.5)
            return Ended("no longer needed")
        finally:
            link.close()

    def _not_connected(self, reason: str) -> None:
        """The other connection stands, and this one does not come about."""
        if self._stopping.is_set() or self._endpoint is None or self._said == reason:
            return
        self._said = reason
        log.warning("site %s: control frames can't be sent: %s", self._site.name, reason)

    def _send(self, sending: _Sending) -> None:
        """Write what the connection takes, and then ask whether it still stands."""
        if sending.trial is not None:
            return
        suspect = self._next_suspect()
        if suspect is None:
            self._send_others(sending)
        elif sending.idle:
            # Suspects and others in turn, each once all before them were answered.
            if not (sending.suspects_turn or self._send_others(sending)):
                sending.suspects_turn = True
            if sending.suspects_turn and sending.link.can_write:
                sending.suspects_turn, sending.trial = False, suspect
                sending.tell(suspect, self._set_aside.pop(suspect))
            else:
                sending.suspects_turn = True
        sending.ask()

    def _send_others(self, sending: _Sending) -> bool:
        """Send frames for whom nothing is held against; returns whether there were any."""
        any_sent = False
        for _ in range(_MOST_IN_TURN):
            frame = self._backlog.take(_MAX_AGE) if sending.link.can_write and not sending.full else None
            if frame is None:
                break
            address, body = frame
            if address not in self._suspects:
                sending.tell(address, body)
                any_sent = True
            elif len(body) <= MAX_CONTROL_BYTES and len(self._set_aside) < _MOST_SET_ASIDE:
                self._set_aside[address] = body
        return any_sent

    def _next_suspect(self) -> str | None:
        """One that may be tried now, and for which there is a frame."""
        now = time.monotonic()
        for address in list(self._set_aside):
            if address in self._suspects and self._suspects.may_try(address, now):
                return address
            if address in self._suspects:
                del self._set_aside[address]
        return None

    def _settle(self, sending: _Sending, backoff: Backoff) -> None:
        for address in sending.answered():
            self._suspects.cleared(address)
            self._set_aside.pop(address, None)
            backoff.reset()

    def _broken(self, sending: _Sending, backoff: Backoff) -> Ended:
        """The connection ended, perhaps over what was sent."""
        reason = sending.link.reason
        blamed = sending.blamed
        if self._suspects.ended(blamed, reason, time.monotonic()):
            backoff.reset()
        log.info("site %s: the connection for control frames ended: %s", self._site.name, reason)
        return Ended(reason)

    def _leave(self, sending: _Sending, backoff: Backoff) -> None:
        """Write what was told last, and see it looked at, before the connection ends."""
        alive = True
        while alive and time.monotonic() < self._stop_by:
            self._send(sending)
            if sending.idle and not len(self._backlog):  # suspects have missed it
                break
            alive = sending.link.turn(max(0.0, min(0.2, self._stop_by - time.monotonic())))
            self._settle(sending, backoff)
        sending.link.disconnect(self._stop_by)
