"""Transports to brokers in memory: the port of :mod:`reliamsg.transport.base` without any network.

They come in two kinds. Threaded ones have an I/O thread each, as the real ones do, and suit an application's
tests. Stepped ones have none: everything happens inside :meth:`MemoryHost.step`, on the caller's thread and in the
same order every time, so that a test decides what happens when, without sleeping.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from reliamsg.config import Site
from reliamsg.transport.base import Binding, Outcome, ReceiverEvents, SenderEvents, Token
from reliamsg.transport.memory_broker import Connection, MemoryBroker, Refused
from reliamsg.transport.mqtt_inflow import Inflow, most_held
from reliamsg.transport.mqtt_packets import AckLedger

__all__ = ["MemoryHost", "MemoryReceiver", "MemorySender"]

REST_SECONDS = 0.01
"""Before a thread connects again after it dropped the connection of itself."""

E = TypeVar("E", SenderEvents, ReceiverEvents)
T = TypeVar("T", bound="MemorySender | MemoryReceiver")


class _MemoryTransport(ABC, Generic[E]):
    """Connecting, disconnecting and the thread; subclasses know what flows.

    A refused attempt to connect is repeated when the broker's state changes, not after a time: in memory,
    nothing else can make it succeed.
    """

    def __init__(self, site: Site, broker: MemoryBroker, events: E, client: str, *, threaded: bool) -> None:
        self.site = site
        self.broker = broker
        self.client = client
        self._events: E = events
        self._connection: Connection | None = None
        self._addresses: tuple[str, ...] = ()
        self._listening = threading.Lock()
        """Held while the broker is told of addresses, so that the newest are told last."""
        self._pending = threading.Event()
        self._resting = False
        """It dropped the connection of itself, and connects again a moment later. Nothing else would end it if whoever
        asks for that does so again and again."""
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
        """Replace the control addresses whose frames are heard."""
        self._addresses = tuple(addresses)
        self._listen()

    def tell(self, address: str, body: bytes) -> bool:
        """Have the broker hand a control frame to whoever listens now; False where it does not."""
        connection = self._connection
        if connection is None or len(body) > self.site.max_frame_bytes:
            return False
        return self.broker.tell(connection, address, body)

    def refused_addresses(self) -> Sequence[str]:
        """None: a broker in memory carries all control frames, or none."""
        return ()

    def _listen(self) -> None:
        with self._listening:
            if self._connection is not None:
                self.broker.listen(self._connection, self._addresses)

    def _hear(self, connection: Connection) -> bool:
        heard = self.broker.control.heard(connection)
        for address, body in heard:
            self._events.heard(address, body)
        return bool(heard)

    def reconnect(self, reason: str) -> None:
        """Drop the connection, if there is one, and connect again."""
        connection = self._connection
        if connection is not None:
            self._resting = True
            self.broker.drop(connection, reason)
        self._wake()

    def rested(self) -> None:
        """It may connect again, though it dropped its connection of itself. Not for threaded transports."""
        if self._resting and not self._paused:
            self._resting = False
            self._wake()

    def close(self, timeout: float) -> None:
        """Disconnect, and end the thread."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        self._wake()
        if self._thread is None:
            self.step()
        elif threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, timeout))

    def kill(self) -> None:
        """End as if the process had died: the connection breaks, and no event is called any more."""
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
        """Do what there is to do now; return whether there was anything. Not for threaded transports."""
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


class MemorySender(_MemoryTransport[SenderEvents]):
    """Publishes to one broker in memory."""

    def __init__(
        self,
        site: Site,
        broker: MemoryBroker,
        producer_id: str,
        bindings: Sequence[Binding],
        events: SenderEvents,
        *,
        threaded: bool,
    ) -> None:
        super().__init__(site, broker, events, producer_id, threaded=threaded)
        self._bindings = tuple(bindings)
        self._told_blocked: str | None = None
        self._asked: object = None
        """The connection and the groups that the broker was asked for, and when that was."""

    def wake(self) -> None:
        """Have ``pull()`` asked soon."""
        self._wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared, and declare them if connected."""
        self._bindings = tuple(bindings)
        if self.connected:
            self._declare()
        self._wake()

    def _connect(self) -> None:
        self._connection = self.broker.connect_sender(self.client, self._wake)
        self._declare()
        self._listen()
        self._told_blocked = None
        self._events.connected(str(self.site.endpoints[0]), self.broker.window)
        self._ask_for_groups()

    def _ask_for_groups(self) -> None:
        """At MQTT sites, whenever a real transport would find out sooner or later that something has changed."""
        bindings = self._bindings
        if self.broker.protocol != "mqtt" or self.site.declare == "none" or not bindings:
            return
        now = self._connection, bindings, self.broker.groups_changed
        if now != self._asked:
            self._asked = now
            self._events.found(self.broker.evidence(bindings))

    def _declare(self) -> None:
        # At MQTT sites only a group's own client can make its session.
        if self.broker.protocol == "amqp" and self.site.declare == "create":
            self.broker.declare(self._bindings)

    def _flow(self, connection: Connection) -> bool:
        blocked = self.broker.blocked_reason()
        if blocked != self._told_blocked:
            self._told_blocked = blocked
            self._events.blocked(blocked)
        heard = self._hear(connection)
        self._ask_for_groups()
        sent = False
        while blocked is None and (outgoing := self._events.pull()):
            self.broker.publish(connection, outgoing, self.site.max_frame_bytes)
            sent = True
        results = self.broker.results(connection)
        self._tell(results)
        return bool(heard or sent or results)

    def _tell(self, results: Sequence[tuple[int, tuple[Outcome, str] | None]]) -> None:
        """Confirms that follow each other go in one call, everything in the broker's order."""
        confirmed: list[int] = []
        for token, refusal in results:
            if refusal is None:
                confirmed.append(token)
                continue
            if confirmed:
                self._events.confirmed(confirmed)
                confirmed = []
            self._events.refused(token, *refusal)
        if confirmed:
            self._events.confirmed(confirmed)


class MemoryReceiver(_MemoryTransport[ReceiverEvents]):
    """Reads one broker in memory for a group."""

    def __init__(
        self,
        site: Site,
        broker: MemoryBroker,
        bindings: Sequence[Binding],
        events: ReceiverEvents,
        *,
        threaded: bool,
    ) -> None:
        super().__init__(site, broker, events, bindings[0].group, threaded=threaded)
        self._bindings = tuple(bindings)
        self._acknowledged: deque[Sequence[Token]] = deque()
        self._hold_none()

    def _hold_none(self) -> None:
        self._ledger = AckLedger()
        self._inflow = Inflow(most_held(self.site), self._ledger)
        self._numbers: dict[Token, int] = {}

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Let the broker forget these messages."""
        connection = self._connection
        if connection is not None:
            if self.broker.protocol == "mqtt":
                self._acknowledged.append(tokens)
            self.broker.acknowledge(connection, tokens)
            self._wake()

    def renew(self, topic: str, partition: int) -> None:
        """Nothing: this broker uses the bindings that it has."""

    def _connect(self) -> None:
        self._connection, existed = self.broker.connect_receiver(self.client, self._wake, self._bindings)
        self._hold_none()
        self._listen()
        self._events.connected(str(self.site.endpoints[0]), existed)

    def _lost(self, connection: Connection) -> None:
        self._events.disconnected(connection.reason, renewing=self._resting)

    def _refused(self, refused: Refused) -> None:
        if refused.busy:
            self._events.busy(refused.reason)
        else:
            super()._refused(refused)

    def _flow(self, connection: Connection) -> bool:
        heard = self._hear(connection)
        if self.broker.protocol == "mqtt":
            return self._flow_mqtt(connection) or heard
        deliveries = self.broker.fetch(connection, self.site.prefetch)
        if deliveries:
            self._events.received(deliveries)
        elif self.broker.turned_empty(connection):
            self._events.drained()
        return bool(heard or deliveries)

    def _flow_mqtt(self, connection: Connection) -> bool:
        """Read whatever the broker sends, and keep as much of it as the real transport does."""
        while self._acknowledged:
            for token in self._acknowledged.popleft():
                if (number := self._numbers.pop(token, None)) is not None:
                    self._ledger.acknowledge(number)
        self._ledger.release()
        if self._inflow.has_room_again:
            self.reconnect("there is room again for messages that were not taken")
            return True
        sent = self.broker.fetch(connection, self.broker.max_inflight or self.site.prefetch)
        taken = [delivery for delivery in sent if self._inflow.admits(len(delivery.body))]
        for delivery in taken:
            self._numbers[delivery.token] = self._ledger.received(0, len(delivery.body))
        if taken:
            self._events.received(taken)
        return bool(sent)


class MemoryHost:
    """One broker in memory, and the transports to it."""

    def __init__(self, broker: MemoryBroker, *, threaded: bool = True) -> None:
        self.broker = broker
        self._threaded = threaded
        self._transports: list[MemorySender | MemoryReceiver] = []
        """Those that were opened here and not closed since, in that order."""

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> MemorySender:
        """A transport that publishes to this broker; not started yet."""
        return self._opened(
            MemorySender(site, self.broker, producer_id, bindings, events, threaded=self._threaded)
        )

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents
    ) -> MemoryReceiver:
        """A transport that reads this broker for the one group that `bindings` name; not started yet."""
        return self._opened(MemoryReceiver(site, self.broker, bindings, events, threaded=self._threaded))

    def rested(self) -> None:
        """Let stepped transports that dropped their connection themselves connect again."""
        for transport in list(self._transports):
            transport.rested()

    def step(self) -> bool:
        """Give each stepped transport one turn; return whether any had something to do."""
        # A list, not any(): everybody has a turn.
        return any([transport.step() for transport in list(self._transports)])  # noqa: C419

    def close(self, timeout: float) -> None:
        """Close every transport that was opened here."""
        for transport in list(self._transports):
            transport.close(timeout)

    def _opened(self, transport: T) -> T:
        self._transports = [other for other in self._transports if not other.stopping]
        self._transports.append(transport)
        return transport
