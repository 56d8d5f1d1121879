"""Sending control frames to an MQTT site, over a connection of their own.

A broker may close the connection over a topic that it does not permit, and some topics contain other clients' names. So
nothing else uses this connection: a refusal only interrupts the sending of control frames, for a moment. Frames are
sent at QoS 0, which brokers do not answer; the answer to a ping that follows them shows that they did not end the
connection.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from reliamsg.config import Endpoint, Site
from reliamsg.logs import Log
from reliamsg.transport.mqtt.codec import forbidden
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.control_sender import ControlSender, SentFrames
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Ended, log_in, retry_until_steady, shortest_pause

__all__ = ["ControlConnection"]

log: Log = Log(__name__)

_PACKET_OVERHEAD = 512
"""More than header, address and properties add to a body."""


class ControlConnection:
    """A connection that publishes control frames, beside the main one of the same client, to the same endpoint. It
    has a thread of its own.

    :meth:`send_control` and :attr:`refused` may be used on any thread, everything else on the main connection's, and
    :meth:`stop` and :meth:`join` on whichever closes that.
    """

    def __init__(self, site: Site, main: Connector, name: str, thread: str) -> None:
        """`name`: the client id."""
        self._site = site
        self._stopping = threading.Event()
        self._waker = Waker()
        self._connector = main.beside(name, self._waker, self._stopping.is_set)
        self._sender = ControlSender(site.name)
        self._backlog = self._sender.backlog
        self._endpoint: Endpoint | None = None
        """Where the main connection is, while it exists."""
        self._stop_by = 0.0
        self._logged = ""
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    # -- other threads --------------------------------------------------------------------------------------

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us send to, sorted."""
        return self._sender.refused

    def send_control(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`."""
        if forbidden(address) or not self._backlog.put(address, body):
            return False
        self._waker.wake()
        return True

    def begin(self, largest_packet: int | None) -> None:
        """The main connection is established: accept frames from now on."""
        largest = self._site.max_frame_bytes
        if largest_packet is not None:
            largest = min(largest, largest_packet - _PACKET_OVERHEAD)
        self._backlog.open(max(0, largest))

    def allow(self, endpoint: Endpoint) -> None:
        """From now on, connect as soon as there is something to send."""
        self._endpoint = endpoint
        if self._thread.ident is None and not self._stopping.is_set():
            self._thread.start()
        self._waker.wake()

    def end(self) -> None:
        """The main connection is over."""
        self._endpoint = None
        if not self._stopping.is_set():  # otherwise the last frames are still sent
            self._backlog.close()
        self._waker.wake()

    def stop(self, timeout: float) -> None:
        """Write the frames that wait, within `timeout` seconds, and terminate. Does not wait."""
        self._stop_by = time.monotonic() + timeout
        self._stopping.set()
        self._waker.wake()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the thread to terminate."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))
        if not self._thread.is_alive():
            self._waker.close()

    # -- its thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry = retry_until_steady(self._site, self._stopping)
        while not self._stopping.is_set():
            retry(self._connect_when_needed)
        self._backlog.close()

    def _connect_when_needed(self) -> Ended:
        """Wait for something to send, connect, and send it; what is not needed any more counts as steady."""
        while (endpoint := self._endpoint) is None or not len(self._backlog):
            if self._stopping.is_set():
                return Ended("closed")
            self._waker.wait(None, read=False, write=False, timeout=60.0)
        try:
            ended = self._attempt(endpoint)
        except Exception as error:
            # If the thread terminated here, the site would be without control frames, and nobody would know.
            log.error(
                "transport.control_connection_crashed",
                "site %(site)s: the connection for control frames failed unexpectedly",
                site=self._site.name, error=type(error).__name__, exc_info=True,
            )  # fmt: skip
            ended = Ended(f"internal error: {type(error).__name__}")
        if self._endpoint != endpoint:
            return replace(ended, steady=True)
        if ended.steady:
            self._stopping.wait(shortest_pause(self._site))
        return ended

    def _attempt(self, endpoint: Endpoint) -> Ended:
        login = log_in(self._site)
        if isinstance(login, Ended):
            return login
        connection = self._connector.open(endpoint, login, time.monotonic() + self._site.connect_timeout)
        if isinstance(connection, Ended):
            self._log_failure(connection.reason)
            return connection
        self._logged = ""
        sent = SentFrames(connection)
        progress = False
        try:
            while self._endpoint == endpoint or self._stopping.is_set():
                if self._stopping.is_set():
                    self._finish(sent, connection)
                    return Ended("closed")
                self._sender.send(sent)
                if not connection.turn(1.0):
                    progress = self._sender.connection_ended(sent, connection.reason) or progress
                    log.info(
                        "transport.control_connection_ended",
                        "site %(site)s: the connection for control frames ended: %(reason)s",
                        site=self._site.name,
                        reason=connection.reason,
                    )
                    return Ended(connection.reason, steady=progress)
                progress = self._sender.settle(sent) or progress
            connection.disconnect(time.monotonic() + 0.5)
            return Ended("no longer needed")
        finally:
            connection.close()

    def _log_failure(self, reason: str) -> None:
        """The main connection exists, and this one cannot be established."""
        if self._stopping.is_set() or self._endpoint is None or self._logged == reason:
            return
        self._logged = reason
        log.warning(
            "transport.control_connection_failed", "site %(site)s: control frames can't be sent: %(reason)s",
            site=self._site.name, reason=reason,
        )  # fmt: skip

    def _finish(self, sent: SentFrames, connection: MqttConnection) -> None:
        """Write the last frames, and wait until the broker has processed them."""
        alive = True
        while alive and time.monotonic() < self._stop_by:
            self._sender.send(sent)
            if sent.idle and not len(self._backlog):  # isolated addresses have missed it
                break
            alive = connection.turn(max(0.0, min(0.2, self._stop_by - time.monotonic())))
            self._sender.settle(sent)
        connection.disconnect(self._stop_by)
