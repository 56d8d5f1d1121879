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
from reliamsg.transport.mqtt.codec import forbidden
from reliamsg.transport.mqtt.connection import Link
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.control_sender import Sending, Telling
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Backoff, Ended

__all__ = ["Teller"]

log = logging.getLogger(__name__)

_PACKET_OVERHEAD = 512
"""More than header, address and properties add to a body."""


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
        self._telling = Telling(site.name)
        self._backlog = self._telling.backlog
        self._endpoint: Endpoint | None = None
        """Where the other connection is, while it stands."""
        self._stop_by = 0.0
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    # -- other threads --------------------------------------------------------------------------------------

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us send to, sorted."""
        return self._telling.refused

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
        sending = Sending(link)
        try:
            while self._endpoint == endpoint or self._stopping.is_set():
                if self._stopping.is_set():
                    self._leave(sending, link)
                    return Ended("closed")
                self._telling.send(sending)
                if not link.turn(1.0):
                    return self._broken(sending, link.reason, backoff)
                if self._telling.settle(sending):
                    backoff.reset()
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

    def _broken(self, sending: Sending, reason: str, backoff: Backoff) -> Ended:
        """The connection ended, perhaps over what was sent."""
        if self._telling.broken(sending, reason):
            backoff.reset()
        log.info("site %s: the connection for control frames ended: %s", self._site.name, reason)
        return Ended(reason)

    def _leave(self, sending: Sending, link: Link) -> None:
        """Write what was told last, and see it looked at, before the connection ends."""
        alive = True
        while alive and time.monotonic() < self._stop_by:
            self._telling.send(sending)
            if sending.idle and not len(self._backlog):  # suspects have missed it
                break
            alive = link.turn(max(0.0, min(0.2, self._stop_by - time.monotonic())))
            self._telling.settle(sending)
        link.disconnect(self._stop_by)
