"""Reading an MQTT site for a group. Everything happens on the site's I/O thread."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.errors import ConfigError
from reliamsg.logs import Log
from reliamsg.transport.base import Binding, Delivery, ReceiverEvents, Token
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.fallback_session import FallbackSession
from reliamsg.transport.mqtt.receive_window import ReceiveWindow, window_of
from reliamsg.transport.mqtt.session import MqttSession
from reliamsg.transport.mqtt.topology import proofs_of, subscribe, topics_of
from reliamsg.transport.session import Ended, log_in
from reliamsg.wire.address import client_id, control_id, is_control, substitute_id

__all__ = ["MqttReceiver"]

log: Log = Log(__name__)

STRIKES = 3
"""If this many connections end over the subscription to proof addresses, it is left out."""


class MqttReceiver(MqttSession[ReceiverEvents]):
    """Reads one MQTT site for one group; see :class:`~reliamsg.transport.base.ReceiverTransport`.

    The client id is derived from the group alone, so a second consumer of the group takes the session over and
    the first one is disconnected: both then lose their connections again and again, and ``disconnected``
    gives the broker's reason, if any (MQTT 5: "Session taken over").

    Other subscriptions of the session are left unchanged, and their messages arrive.

    The connection is always read, however much is unacknowledged: see :mod:`~reliamsg.transport.mqtt.receive_window`.

    While a broker does not provide the session, the site is read without it; ``connected`` then passes None.
    """

    def __init__(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> None:
        groups = {binding.group for binding in bindings}
        if len(groups) != 1:
            raise ConfigError("a receiver reads for exactly one group")
        group = groups.pop()
        name = client_id(group)
        # Several consumers of a group may send control frames at a time, to decide which one reads.
        control = control_id(f"{name}:{secrets.token_hex(4)}")
        super().__init__(site, events, f"reliamsg-recv-{site.name}", name, site.prefetch, control)
        others = [self._connector.without_session(substitute_id(group, number)) for number in (1, 2)]
        self._fallback = FallbackSession(site, others)
        self._on_fallback = False
        """Whether the connection is one without the session."""
        self._refused = False
        """Whether the broker was reached in the last attempt, and did not provide what was requested."""
        self._found: tuple[MqttConnection, Endpoint] | None = None
        """The session, requested during the fallback and not read yet."""
        self._found_before = False
        """Whether the connection is that one: the session may be older than this attempt."""
        self._topics = topics_of(bindings)
        self._proofs = proofs_of(bindings)
        self._proving: int | None = None
        """Packet id of the subscription to them."""
        self._strikes = 0
        """How many connections in a row ended before the broker had answered that subscription."""
        self._acknowledged: deque[Sequence[Token]] = deque()
        self._generation = 0
        self._window = ReceiveWindow(self._most)
        self._logged_dropped = False

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Acknowledge to the broker, in the order in which it sent the messages."""
        self._acknowledged.append(tokens)
        self._waker.wake()

    def renew(self, topic: str, partition: int) -> None:
        """Nothing to do: every connect subscribes again, and there is no other way."""

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and end the I/O thread, within `timeout` seconds."""
        super().close(timeout)
        if self._found is not None and not self._thread.is_alive():
            self._found[0].close()

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`SiteSession`."""
        self._drop = None
        found, self._found = self._found, None
        self._on_fallback = False
        connection: MqttConnection | Ended
        self._found_before = found is not None
        if found is not None:
            connection, endpoint = found
        else:
            connection = self._open(endpoint, login, deadline)
        if isinstance(connection, Ended):
            return connection
        if self._on_fallback:
            self._fallback.began()
        else:
            self._fallback.over()
        return self._hold(connection, endpoint)

    def _open(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> MqttConnection | Ended:
        """Connect and subscribe, with the session or, if the broker does not provide it, without it."""
        fallback = self._fallback
        now = time.monotonic()
        connection = self._subscribed(
            self._connector, endpoint, login, (now + deadline) / 2 if fallback.due else deadline
        )
        if isinstance(connection, Ended) and self._refused:
            fallback.refused(connection.reason)
            if fallback.due:
                other = self._subscribed(fallback.connector, endpoint, login, deadline)
                if isinstance(other, MqttConnection):
                    self._on_fallback = True
                    return other
                fallback.fallback_refused()
        return connection

    def _subscribed(
        self, connector: Connector, endpoint: Endpoint, login: Credentials | None, deadline: float
    ) -> MqttConnection | Ended:
        connection = connector.open(endpoint, login, deadline)
        self._refused = connector.turned_away
        if isinstance(connection, Ended):
            return connection
        # Messages stored in the session may arrive ahead of the SUBACK, more of them than fit.
        wrong = subscribe(connection, self._topics, deadline, self.stopping.is_set, self._most)
        if wrong is None:
            return connection
        self._refused = True
        connection.close()
        return Ended(wrong)

    def _check_session(self) -> bool:
        """Request the session during the fallback; return whether it can be read again."""

        def session(endpoint: Endpoint, until: float) -> MqttConnection | Ended:
            login = log_in(self.site)
            if isinstance(login, Ended):
                return login
            return self._subscribed(self._connector, endpoint, login, until)

        self._found = self._fallback.check(session)
        return self._found is not None

    def _leave_fallback(self, connection: MqttConnection) -> Ended:
        """Receive what is still stored in it: what is published from now on arrives in the group's own session."""
        end = time.monotonic() + self.site.heartbeat / 2
        connection.unsubscribe(self._topics)
        busy = alive = True
        while alive and (busy or len(self._window)) and time.monotonic() < end and not self.stopping.is_set():
            alive = connection.turn(0.5)
            busy = bool(connection.arrived)
            self._deliver(connection)
            self._send_acks(connection)
        connection.disconnect(time.monotonic() + 0.5)
        return Ended("the group's session can be read again")

    @property
    def _most(self) -> int:
        return window_of(self.site)

    def _serve(self, connection: MqttConnection, endpoint: Endpoint) -> Ended:
        self._generation += 1
        self._window = ReceiveWindow(self._most)
        self._listener.begin(connection)
        # A separate subscription: if it is refused, producers only know less of this group. Over MQTT 3.1.1 they learn
        # nothing from it, and some brokers close the connection over what they do not permit.
        asks = connection.version == "5" and self._strikes < STRIKES
        self._proving = connection.collect(self._proofs) if asks else None
        connack = connection.connack
        present = None if self._on_fallback or connack is None else connack.session_present
        if self._found_before and not present:
            present = None
        self.gate.connected(str(endpoint), present)
        alive = True
        while alive:
            stopping = self.stopping.is_set()  # read first: acknowledgements made before are sent
            self._deliver(connection)
            self._send_acks(connection)
            self._serve_control(connection, endpoint)
            if stopping:
                self._listener.leave(connection)
                connection.disconnect(self._goodbye_by)
                return Ended("closed")
            if self._drop is not None or connection.refusal is not None:
                return Ended(self._drop or connection.refusal or "")
            if self._on_fallback and self._fallback.check_due and self._check_session():
                return self._leave_fallback(connection)
            if self._window.has_room_again:
                return Ended("there is room again for messages that were not taken", renewing=True)
            alive = connection.turn(1.0)
        self._deliver(connection)
        return Ended(connection.reason)

    def _report_disconnected(self, ended: Ended) -> None:
        self.gate.events.disconnected(ended.reason, ended.renewing)

    def _ended(self, connection: MqttConnection, broken: bool) -> None:
        if self._proving is not None:
            answered = self._proving in connection.answered
            self._strikes = self._strikes + 1 if broken and not answered else 0
            self._proving = None
        super()._ended(connection, broken)

    def _deliver(self, connection: MqttConnection) -> None:
        """Pass on what arrived: control frames always, and messages as far as they are accepted."""
        deliveries = []
        for publish in connection.take_arrived():
            control = is_control(publish.topic)
            if control:
                self._on_control(publish)
            # Control frames at QoS 0 are not counted: they include repairs, for which held messages may wait.
            if control and not publish.qos:
                continue
            number = self._window.receive(publish.mid, len(publish.body))
            if number is None:
                self._warn_dropped()
                continue
            if control or not publish.qos:
                self._window.acknowledge(number)
            if not control:
                token = self._generation, number
                deliveries.append(
                    Delivery(
                        token, publish.topic, publish.body, publish.content_type, publish.headers, publish.dup,
                        publish.retain, publish.damaged,
                    )
                )  # fmt: skip
        if deliveries:
            self.gate.events.received(deliveries)

    def _warn_dropped(self) -> None:
        if not self._logged_dropped:
            self._logged_dropped = True
            log.warning(
                "transport.window_exceeded",
                "site %(site)s: the broker sends more than can be kept while %(unacknowledged)d messages are not"
                " acknowledged: the rest is read again later. Limit what it sends ahead of acknowledgements"
                " (Mosquitto: max_inflight_messages)",
                site=self.site.name,
                unacknowledged=len(self._window),
            )

    def _send_acks(self, connection: MqttConnection) -> None:
        """Send the acknowledgements that are due."""
        while self._acknowledged:
            for token in self._acknowledged.popleft():
                if isinstance(token, tuple) and token[0] == self._generation:
                    self._window.acknowledge(token[1])
        for mid in self._window.release():
            if mid:
                connection.acknowledge(mid)
