"""Transports to brokers in memory: the port of :mod:`reliamsg.transport.base` without any network.

There are two kinds. Threaded transports have an I/O thread each, as real ones do. Stepped transports have none:
everything happens inside :meth:`MemoryHost.step`, on the caller's thread and always in the same order, so a test
decides what happens when, without sleeping.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from reliamsg.config import Site
from reliamsg.transport.base import ReceiverEvents, SenderEvents
from reliamsg.transport.memory.broker import LocalBroker, Refused
from reliamsg.transport.memory.connection import Connection

__all__ = ["MemorySession"]

REST_SECONDS = 0.01
"""How long a thread pauses before it reconnects after it dropped the connection itself."""

E = TypeVar("E", SenderEvents, ReceiverEvents)


class MemorySession(ABC, Generic[E]):
    """Connecting, disconnecting and the thread. Subclasses send and receive.

    A refused attempt to connect is repeated when the broker's state changes, not after a pause: nothing else can make
    it succeed.
    """

    def __init__(self, site: Site, broker: LocalBroker, events: E, client: str, *, threaded: bool) -> None:
        self.site = site
        self.broker = broker
        self.client = client
        self._events: E = events
        self._connection: Connection | None = None
        self._addresses: tuple[str, ...] = ()
        self._listening = threading.Lock()
        """Held while addresses are passed to the broker, so that the newest are passed last."""
        self._pending = threading.Event()
        self._resting = False
        """It dropped the connection itself, and reconnects a moment later: otherwise a caller that drops each new
        connection would keep it in a loop."""
        self._paused = False
        self._stopping = False
        self._killed = False
        self._started = False
        self._thread = (
            threading.Thread(target=self._run, name=f"memory {site.name} {client}", daemon=True)
            if threaded
            else None
        )

    @abstractmethod
    def _connect(self) -> None: ...
    @abstractmethod
    def _flow(self, connection: Connection) -> bool: ...

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        connection = self._connection
        return connection is not None and connection.alive

    @property
    def stopping(self) -> bool:
        """Whether it was closed or killed."""
        return self._stopping

    def start(self) -> None:
        """Begin to connect: on a thread, or at the next :meth:`step`."""
        self._started = True
        self.broker.watch(self._wake)
        self._pending.set()
        if self._thread is not None:
            self._thread.start()

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are received."""
        self._addresses = tuple(addresses)
        self._listen()

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame to everyone who listens now; returns False if it is dropped."""
        connection = self._connection
        if connection is None or len(body) > self.site.max_frame_bytes:
            return False
        return self.broker.send_control(connection, address, body)

    def refused_addresses(self) -> Sequence[str]:
        """Always empty: a broker in memory carries all control frames, or none."""
        return ()

    def _listen(self) -> None:
        with self._listening:
            if self._connection is not None:
                self.broker.listen(self._connection, self._addresses)

    def _receive_control(self, connection: Connection) -> bool:
        """Pass on control frames; returns whether there were any."""
        frames = self.broker.take_control(connection)
        for address, body in frames:
            self._events.control_received(address, body)
        return bool(frames)

    def reconnect(self, reason: str) -> None:
        """Drop the connection, if there is one, and connect again."""
        connection = self._connection
        if connection is not None:
            self._resting = True
            self.broker.drop(connection, reason)
        self._wake()

    def rested(self) -> None:
        """It may reconnect after it dropped its connection itself. Called by threaded transports themselves."""
        if self._resting and not self._paused:
            self._resting = False
            self._wake()

    def close(self, timeout: float) -> None:
        """Disconnect and terminate the thread."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        self._wake()
        if self._thread is None:
            self.step()
        elif threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))

    def kill(self) -> None:
        """Terminate as if the process had died: the connection breaks, and no event is called any more."""
        self._killed = self._stopping = True
        connection = self._connection
        if connection is not None:
            self.broker.drop(connection, "connection reset")
        self._leave()
        self._wake()

    def pause(self) -> None:
        """Do nothing until :meth:`resume`, like a process that SIGSTOP suspended. Not for threaded transports."""
        self._paused = True

    def resume(self) -> None:
        """End :meth:`pause`."""
        self._paused = False

    def step(self) -> bool:
        """Handle events that are due; return whether there were any. Not for threaded transports."""
        if not self._started or self._killed or self._paused or not self._pending.is_set():
            return False
        self._pending.clear()
        self._work()
        return True

    def _wake(self) -> None:
        self._pending.set()

    def _run(self) -> None:
        while not (self._killed or (self._stopping and self._connection is None)):
            self._pending.wait()
            self._pending.clear()
            self._work()
            if self._resting:
                time.sleep(REST_SECONDS)
                self.rested()

    def _work(self) -> None:
        while not self._killed:
            connection = self._connection
            if connection is None:
                if self._stopping or self._resting or not self._try_to_connect():
                    break
            elif self._stopping or not connection.alive:
                self.broker.drop(connection, "closed")
                self._connection = None
                self._lost(connection)
            elif not self._flow(connection):
                break
        if self._killed and self._connection is not None:  # it connected while it was being killed
            self.broker.drop(self._connection, "connection reset")
        if self._stopping and self._connection is None:
            self._leave()

    def _leave(self) -> None:
        if self._started:
            self._started = False
            self.broker.unwatch(self._wake)

    def _try_to_connect(self) -> bool:
        try:
            self._connect()
        except Refused as refused:
            self._refused(refused)
            return False
        return True

    def _refused(self, refused: Refused) -> None:
        self._events.unreachable(str(self.site.endpoints[0]), refused.reason, refused.credentials)

    def _lost(self, connection: Connection) -> None:
        self._events.disconnected(connection.reason)
