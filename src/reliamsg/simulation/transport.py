"""Transports to simulated brokers: the port of :mod:`reliamsg.transport.base` over simulated connections.

The scheduler calls events in the process that the transport belongs to, and never from within another call of that
process, just as an I/O thread would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from reliamsg.config import Site
from reliamsg.simulation.broker import (
    UNLIMITED,
    Answered,
    Blocked,
    Broker,
    BrokerEvent,
    ControlArrived,
    ControlReturned,
    Delivered,
    Drained,
    Session,
)
from reliamsg.simulation.host import Host
from reliamsg.simulation.mqtt import SECOND, THREAD_S, ControlConnection, Subscriptions
from reliamsg.simulation.network import Connection
from reliamsg.transport.base import (
    Binding,
    Delivery,
    Evidence,
    Mark,
    Outcome,
    Outgoing,
    ReceiverEvents,
    ReceiverTransport,
    SenderEvents,
    SenderTransport,
    Token,
)
from reliamsg.transport.memory.model import Refusal, queue_of
from reliamsg.transport.mqtt.control import CHECK_SECONDS, ControlListener
from reliamsg.transport.mqtt.receive_window import ReceiveWindow, window_of
from reliamsg.wire.address import is_created

__all__ = ["SimulatedReceiver", "SimulatedSender", "SimulatedTransports"]

MISSING = (Evidence.NOT_SUBSCRIBED, Evidence.NOT_MARKED)
HOLD_S = 3.0
"""How long a sender waits at most until an MQTT broker has shown which groups there are."""
ASK_S = (1.0, 15.0, 60.0)
"""When a broker is asked again: while a group is missing, first after this, then doubling up to this; and while none
is."""


class _Transport:
    """Connecting, disconnecting and control frames, the same in both directions."""

    _sends = False
    """Whether the broker may ask it to stop."""

    def __init__(
        self, host: Host, site: Site, broker: Broker, client: str, events: SenderEvents | ReceiverEvents
    ) -> None:
        self.site, self.broker, self.client = site, broker, client
        self.connection: Connection | None = None
        """The one in use; it may be dead at the other end."""
        self._host, self._executor = host, host.executor
        self._call = host.executor.call
        self._events = events
        self._session: Session | None = None
        self._trying: Connection | None = None
        """One whose handshake is not complete."""
        self._path = host.path(site.name)
        self._addresses: tuple[str, ...] = ()
        self._mqtt: _MqttControl | None = None
        if site.protocol == "mqtt":
            self._mqtt = _MqttControl(host, site, broker, client)
        self._closed = False
        self._attempts = 0
        self._failures = 0
        """Failed attempts in a row."""

    # -- the port -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._executor.after(self._executor.uniform(0.0, THREAD_S), self._connect)

    def listen(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        session = self._session
        if self._mqtt is not None:
            self._mqtt.listen(addresses)
        elif session is not None and self.connection is not None:
            self.connection.site.send(session.listen, frozenset(addresses))

    def send_control(self, address: str, body: bytes) -> bool:
        connection = self.connection
        if connection is None or len(body) > self.site.max_frame_bytes:
            return False
        if self._mqtt is not None:
            return self._mqtt.sender.send(address, body)
        if not is_created(address):
            self._host.witness.sent(address, body)
        connection.site.send(self.broker.route_control, self._session, address, body)
        return True

    def refused_addresses(self) -> Sequence[str]:
        return () if self._mqtt is None else self._mqtt.refused

    def reconnect(self, reason: str) -> None:
        if self.connection is not None:
            self._executor.after(0.0, self._drop, self.connection, reason)

    def close(self, timeout: float) -> None:
        self._closed = True
        if self._mqtt is not None:
            self._mqtt.sender.close()
        self._stop_trying()
        if self.connection is not None:
            self.connection.client.close("closed")
            self.connection = self._session = None

    def _stop_trying(self) -> None:
        if self._trying is not None:
            self._trying.client.close("closed")
            self._trying = None

    def wake(self) -> None:
        """Only senders have something to do."""

    # -- the process terminates -----------------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone: the site sees the connection break, and no event is called after this."""
        if self._mqtt is not None:
            self._mqtt.sender.end()
        self.close(0.0)

    @property
    def _prefetch(self) -> int:
        """How many deliveries the broker may send ahead."""
        return 0

    # -- connecting -----------------------------------------------------------------------------------------

    def _endpoint(self) -> str:
        return str(self.site.endpoints[0])

    def _connect(self) -> None:
        if self._closed or self.connection is not None:
            return
        self._attempts += 1
        timeout = self.site.connect_timeout
        self._executor.after(timeout, self._give_up, self._attempts)
        if not self._path.is_cut and self._path.delay <= timeout:
            connection = self._trying = self._path.connect(self.site.heartbeat)
            connection.site.send(self._handshake, connection)

    def _give_up(self, attempt: int) -> None:
        """The attempt timed out."""
        if self.connection is None and not self._closed and attempt == self._attempts:
            self._failed("timed out", False, "")

    def _handshake(self, connection: Connection) -> None:
        """At the site: a client connects."""
        refusal = self.broker.model.login_refusal
        session = Session(
            connection, self.client, lambda event: self._call(self._on_event, connection, event), sends=self._sends,
            prefetch=self._prefetch, can_be_refused=self.site.protocol == "amqp" or self.site.mqtt_version != "3.1.1",
        )  # fmt: skip
        client = connection.client
        attempt = self._attempts
        if refusal is not None:
            client.send(self._call, self._refused, refusal, attempt)
            return
        if self._mqtt is None:
            session.listen(self._addresses)
        self.broker.open(session)
        holder, existed = self._enter(session)
        if holder:
            self.broker.close(session)
            client.send(self._call, self._busy, holder, attempt)
            return
        client.send(self._call, self._up, connection, session, existed, attempt)
        self._entered(session)

    def _enter(self, session: Session) -> tuple[str, bool | None]:
        """At the site: the client that keeps this one from entering, if any, and whether its queues existed."""
        return "", True

    def _entered(self, session: Session) -> None:
        """At the site: the client was notified that it is connected."""

    def _up(self, connection: Connection, session: Session, existed: bool | None, attempt: int) -> None:
        if self._closed or attempt != self._attempts or self.connection is not None:
            connection.client.close("closed")
            return
        self.connection, self._session, self._trying = connection, session, None
        self._failures = 0
        connection.client.when_lost(lambda reason: self._call(self._lost, connection, reason))
        if self._mqtt is not None:
            self._mqtt.begin(connection, session)
        elif frozenset(self._addresses) != session.addresses:
            self.listen(self._addresses)
        if (
            not connection.client.alive
        ):  # it was lost while the process was suspended, and nobody was notified
            self._executor.after(0.0, self._lost, connection, "connection lost")
        self._notify_connected(existed)

    def _notify_connected(self, existed: bool | None) -> None:
        raise NotImplementedError

    def _refused(self, reason: str, attempt: int) -> None:
        if attempt == self._attempts and self.connection is None:
            self._failed(reason, reason == "login refused", "")

    def _busy(self, holder: str, attempt: int) -> None:
        if attempt == self._attempts and self.connection is None:
            self._failed("", False, holder)

    def _failed(self, reason: str, credentials: bool, holder: str) -> None:
        if self._closed:
            return
        self._attempts += 1  # whatever still comes of this attempt is too late
        self._stop_trying()
        if holder:
            self._notify_busy(holder)
        else:
            self._events.unreachable(self._endpoint(), reason, credentials)
        pause = min(self.site.backoff_max, self.site.backoff_min * 2.0**self._failures)
        self._failures = min(self._failures + 1, 20)
        self._executor.after(self._executor.uniform(0.5, 1.5) * pause, self._connect)

    def _notify_disconnected(self, reason: str, renewing: bool) -> None:
        self._events.disconnected(reason)

    def _notify_busy(self, holder: str) -> None:
        raise NotImplementedError

    def _drop(self, connection: Connection, reason: str) -> None:
        if self.connection is connection:
            connection.client.close(reason)
            self._lost(connection, reason, broken=False)

    def _renew(self, connection: Connection, reason: str) -> None:
        if self.connection is connection:
            connection.client.close(reason)
            self._lost(connection, reason, broken=False, renewing=True)

    def _lost(self, connection: Connection, reason: str, broken: bool = True, renewing: bool = False) -> None:
        """The connection is gone; `broken` unless we closed it, `renewing` if it was closed to get a new one."""
        if self.connection is not connection or self._closed:
            return
        if self._mqtt is not None:
            self._mqtt.end(broken)
        self.connection = self._session = None
        self._attempts += 1  # the attempt that led to it must not time out any more
        self._notify_disconnected(reason, renewing)
        self._executor.after(self._executor.uniform(0.0, 2.0) * self.site.backoff_min, self._connect)

    def _on_event(self, connection: Connection, event: BrokerEvent) -> None:
        """The broker sent something."""
        if self.connection is not connection:
            return
        if isinstance(event, ControlReturned):
            if self._events.control_returned(event.address):
                self._executor.after(0.0, self._drop, connection, f"frames for {event.address} are returned")
        elif not isinstance(event, ControlArrived):
            self._on_message_event(connection, event)
        elif event.address in self._addresses:
            self._host.witness.received(event.address, event.body)
            self._events.control_received(event.address, event.body)

    def _on_message_event(self, connection: Connection, event: BrokerEvent) -> None:
        raise NotImplementedError


class _MqttControl:
    """Sends and receives the control frames of one client of an MQTT site, as
    :class:`~reliamsg.transport.mqtt.session.MqttSession` does."""

    def __init__(self, host: Host, site: Site, broker: Broker, client: str) -> None:
        self.sender = ControlConnection(host, site, broker, f"{client} {SECOND}")
        self._executor, self._broker = host.executor, broker
        self._control = ControlListener(site.name, self._work_soon, host.executor.now)
        self._subscriptions: Subscriptions | None = None
        self._may_send = self._woken = self._checks = False

    @property
    def refused(self) -> Sequence[str]:
        return sorted({*self.sender.refused, *self._control.refused})

    def listen(self, addresses: Sequence[str]) -> None:
        self._control.listen(addresses)

    def begin(self, connection: Connection, session: Session) -> None:
        """The connection stands."""
        self._may_send = False
        self.sender.begin()
        self._subscriptions = Subscriptions(
            connection, session, self._broker, self._executor.call, self._work
        )
        self._control.begin(self._subscriptions)
        self._work_soon()

    def end(self, broken: bool) -> None:
        """The connection is gone; `broken` unless we closed it."""
        self.sender.end()
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            self._control.end(subscriptions, broken)

    def _work_soon(self) -> None:
        if not self._woken:
            self._woken = True
            self._executor.after(self._executor.uniform(0.0, THREAD_S), self._awake)

    def _awake(self) -> None:
        self._woken = False
        self._work()

    def _check(self) -> None:
        self._checks = False
        self._work()

    def _work(self) -> None:
        subscriptions = self._subscriptions
        if subscriptions is None:
            return
        self._control.work(subscriptions)
        # A client that listens to itself would miss what it sends before it is subscribed.
        if not self._may_send and not subscriptions.listening_unanswered:
            self._may_send = True
            self.sender.allow()
        if self._control.waits and not self._checks:
            self._checks = True
            self._executor.after(CHECK_SECONDS, self._check)


class SimulatedSender(_Transport):
    """Publishes to a simulated broker."""

    _events: SenderEvents
    _sends = True

    def __init__(
        self,
        host: Host,
        site: Site,
        broker: Broker,
        client: str,
        bindings: Sequence[Binding],
        events: SenderEvents,
    ) -> None:
        super().__init__(host, site, broker, client, events)
        self._bindings = tuple(bindings)
        self._woken = False
        self._blocked = False
        self._held = False
        """It waits until the broker has shown which groups there are."""
        self._pause = ASK_S[0]

    def wake(self) -> None:
        if not self._woken and not self._closed:
            self._woken = True
            self._executor.after(self._executor.uniform(0.0, THREAD_S), self._pull)

    def bind(self, bindings: Sequence[Binding]) -> None:
        self._bindings = tuple(bindings)
        if self.connection is not None:
            self.connection.site.send(self.broker.model.declare, self._bindings)
            self._ask(self.connection)

    def _enter(self, session: Session) -> tuple[str, bool | None]:
        self.broker.model.declare(self._bindings)
        return "", True

    def _entered(self, session: Session) -> None:
        if self.broker.model.blocked is not None:
            session.post(Blocked(self.broker.model.blocked))

    def _notify_connected(self, existed: bool | None) -> None:
        self._blocked = False
        self._events.connected(self._endpoint(), None)
        assert self.connection is not None  # it was just connected
        self._pause = ASK_S[0]
        self._held = self._asks
        if self._held:
            self._ask(self.connection)
            self._executor.after(HOLD_S, self._release, self.connection)
        self.wake()

    @property
    def _asks(self) -> bool:
        return self.broker.protocol == "mqtt" and bool(self._bindings)

    def _ask(self, connection: Connection) -> None:
        """Have the broker show which groups there are."""
        if self.connection is connection and self._asks:
            bindings = self._bindings

            def answer() -> None:
                connection.client.send(self._call, self._found, connection, self.broker.evidence(bindings))

            connection.site.send(answer)

    def _found(self, connection: Connection, evidence: dict[Binding, Evidence | Mark]) -> None:
        if self.connection is not connection:
            return
        missing = any(isinstance(shown, Evidence) and shown in MISSING for shown in evidence.values())
        self._events.found(evidence)
        self._release(connection)
        self._executor.after(self._pause if missing else ASK_S[2], self._ask, connection)
        self._pause = min(2 * self._pause, ASK_S[1]) if missing else ASK_S[0]

    def _release(self, connection: Connection) -> None:
        if self.connection is connection and self._held:
            self._held = False
            self.wake()

    def _on_message_event(self, connection: Connection, event: BrokerEvent) -> None:
        if isinstance(event, Answered):
            self._answer(connection, event.token, event.refusal)
        elif isinstance(event, Blocked):
            self._blocked = event.reason is not None
            self._events.blocked(event.reason)
            self.wake()

    def _pull(self) -> None:
        self._woken = False
        connection, session = self.connection, self._session
        while connection is not None and connection is self.connection and not (self._blocked or self._held):
            outgoing = self._events.pull()
            if not outgoing:
                break
            assert session is not None  # there is a connection
            for message in outgoing:
                self._publish(connection, session, message)

    def _publish(self, connection: Connection, session: Session, message: Outgoing) -> None:
        if len(message.body) > self.site.max_frame_bytes:
            refusal = Outcome.REFUSED, f"{len(message.body)} bytes are more than the site takes"
            self._executor.after(0.0, self._answer, connection, message.token, refusal)
            return
        connection.site.send(self.broker.publish, session, message)

    def _answer(self, connection: Connection, token: int, refusal: Refusal | None) -> None:
        if self.connection is not connection:
            return
        if refusal is None:
            self._events.confirmed([token])
        else:
            self._events.refused(token, *refusal)
        self.wake()


class SimulatedReceiver(_Transport):
    """Reads a simulated broker for a group."""

    _events: ReceiverEvents

    def __init__(
        self,
        host: Host,
        site: Site,
        broker: Broker,
        client: str,
        bindings: Sequence[Binding],
        events: ReceiverEvents,
    ) -> None:
        super().__init__(host, site, broker, client, events)
        self._queues = tuple(map(queue_of, bindings))
        self._window = ReceiveWindow(window_of(site))

    @property
    def _prefetch(self) -> int:
        """How many deliveries the broker may send ahead. MQTT 3.1.1 has no way to tell it."""
        if self.site.protocol == "mqtt" and self.site.mqtt_version == "3.1.1":
            return UNLIMITED
        return self.site.prefetch

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        connection = self.connection
        if connection is None:
            return
        mine = [token[1] for token in tokens if isinstance(token, tuple) and token[0] is self._session]
        if self._mqtt is not None:
            for number in mine:
                self._window.acknowledge(number)
            mine = self._window.release()
            self._executor.after(0.0, self._check_room, connection)
        connection.site.send(self.broker.acknowledge, self._session, mine)

    def _check_room(self, connection: Connection) -> None:
        """MQTT: there may be room again."""
        if self.connection is connection:
            connection.client.read(self._reads)
            if self._window.has_room_again:
                self._renew(connection, "there is room again for messages that were not taken")

    @property
    def _reads(self) -> bool:
        """MQTT: whether the connection is read. Control frames come behind messages: a client that stopped reading
        while it can't accept messages would miss its own heartbeats, and the repairs that these may wait for."""
        return True

    def renew(self, topic: str, partition: int) -> None:
        """The model's queues keep their bindings: there is nothing to renew."""

    def _enter(self, session: Session) -> tuple[str, bool | None]:
        found = self.broker.read(session, self._queues)
        return (found, False) if isinstance(found, str) else ("", found)

    def _entered(self, session: Session) -> None:
        self.broker.feed()

    def _notify_connected(self, existed: bool | None) -> None:
        self._window = ReceiveWindow(window_of(self.site), self._host.held_bytes)
        self._events.connected(self._endpoint(), existed)

    def _notify_disconnected(self, reason: str, renewing: bool) -> None:
        self._events.disconnected(reason, renewing)

    def _notify_busy(self, holder: str) -> None:
        self._events.busy(holder)

    def _on_message_event(self, connection: Connection, event: BrokerEvent) -> None:
        if isinstance(event, Delivered):
            self._on_deliveries(connection, event.deliveries)
        elif isinstance(event, Drained):
            self._events.drained()

    def _on_deliveries(self, connection: Connection, deliveries: Sequence[Delivery]) -> None:
        if self._mqtt is not None:
            deliveries = self._accept(deliveries)
            connection.client.read(self._reads)
        if deliveries:
            self._events.received(deliveries)

    def _accept(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """MQTT: drop what there is no room for, as :class:`~reliamsg.transport.mqtt.receiver.MqttReceiver` does."""
        found = []
        for delivery in deliveries:
            size = len(delivery.body)
            assert isinstance(delivery.token, tuple)  # the broker's
            number = self._window.receive(delivery.token[1], size)
            if number is None:
                self._host.note("drops a message: it holds too many")
            else:
                found.append(msgspec.structs.replace(delivery, token=(self._session, number)))
        return found


class SimulatedTransports:
    """The transports of one process."""

    def __init__(self, host: Host, brokers: Mapping[str, Broker]) -> None:
        self._host = host
        self._brokers = brokers
        self._open: list[SimulatedSender | SimulatedReceiver] = []

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents, /
    ) -> SenderTransport:
        """A transport that publishes to `site`, not started yet."""
        made = SimulatedSender(
            self._host, site, self._brokers[site.name], f"{self._host.name}: {producer_id}", bindings, events
        )
        self._open.append(made)
        return made

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents, /
    ) -> ReceiverTransport:
        """A transport that reads `site` for the one group that `bindings` name, not started yet."""
        made = SimulatedReceiver(
            self._host, site, self._brokers[site.name], self._host.name, bindings, events
        )
        self._open.append(made)
        return made

    def kill(self) -> None:
        """The process is gone: no event is called after this."""
        for transport in self._open:
            transport.kill()
        self._open.clear()

    @property
    def connected(self) -> bool:
        """Whether any of them has a connection."""
        # A loop, because any() is slower and this is called after every call in the process.
        for transport in self._open:  # noqa: SIM110
            if transport.connection is not None:
                return True
        return False
