"""Reading an MQTT site for a group. Everything happens on the site's I/O thread."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.errors import ConfigError
from reliamsg.transport.base import (
    Binding,
    Delivery,
    ReceiverEvents,
    Token,
)
from reliamsg.transport.mqtt.codec import Publish
from reliamsg.transport.mqtt.connection import Link
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.fallback_session import Substitute
from reliamsg.transport.mqtt.receive_window import AckLedger, Inflow, most_held
from reliamsg.transport.mqtt.session import MqttSession
from reliamsg.transport.mqtt.topology import proofs_of, subscribe, topics_of
from reliamsg.transport.session import Ended
from reliamsg.wire.address import client_id, control_id, is_control, substitute_id

__all__ = ["MqttReceiver"]

log = logging.getLogger(__name__)

STRIKES = 3
"""So many connections that end over the subscription to proof addresses are no coincidence: it is left out then."""


class MqttReceiver(MqttSession[ReceiverEvents]):
    """Reads one MQTT site for one group; see :class:`~reliamsg.transport.base.ReceiverTransport`.

    The client id is made from the group alone, so a second consumer of the group takes the session over and
    the first one is disconnected: both then see their connection end again and again, and ``disconnected``
    gives the broker's reason where it has one (MQTT 5: "Session taken over").

    Subscriptions of the session that this consumer does not name stay as they are, and their messages arrive.

    The connection is always read, however much is unacknowledged: see :mod:`~reliamsg.transport.mqtt.receive_window`.

    While a broker does not give the session out, the site is read without it; ``connected`` says None then.
    """

    def __init__(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> None:
        groups = {binding.group for binding in bindings}
        if len(groups) != 1:
            raise ConfigError("a receiver reads for exactly one group")
        group = groups.pop()
        name = client_id(group)
        # Control frames may be sent by several inboxes of a group at a time, which decide by them who reads.
        control = control_id(f"{name}:{secrets.token_hex(4)}")
        super().__init__(site, events, f"reliamsg-recv-{site.name}", name, site.prefetch, control)
        others = [self._connector.without_session(substitute_id(group, number)) for number in (1, 2)]
        self._substitute = Substitute(site, others)
        self._substituting = False
        """Whether the connection is one without the session."""
        self._refused = False
        """Whether the broker was reached the last time, and did not give out what was asked for."""
        self._found: tuple[Link, Endpoint] | None = None
        """The session, asked for while it was replaced, and not read yet."""
        self._topics = topics_of(bindings)
        self._proofs = proofs_of(bindings)
        self._proving: int | None = None
        """Packet id of the subscription to them."""
        self._strikes = 0
        """So many connections, one after the other, ended before the broker had answered to that."""
        self._acknowledged: deque[Sequence[Token]] = deque()
        self._generation = 0
        self._ledger = AckLedger()
        self._inflow = Inflow(self._most, self._ledger)
        self._said_dropped = False

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """The messages are safe here; the broker is told in the order in which it sent them."""
        self._acknowledged.append(tokens)
        self._waker.wake()

    def renew(self, topic: str, partition: int) -> None:
        """Nothing: subscriptions are made anew on every connect, and there is no other way."""

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and end the I/O thread, within `timeout` seconds."""
        super().close(timeout)
        if self._found is not None and not self._thread.is_alive():
            self._found[0].close()

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`SiteSession`."""
        self._drop = None
        found, self._found = self._found, None
        self._substituting = False
        link: Link | Ended
        if found is not None:
            link, endpoint = found
        else:
            link = self._open(endpoint, login, deadline)
        if isinstance(link, Ended):
            return link
        if self._substituting:
            self._substitute.began()
        else:
            self._substitute.over()
        return self._hold(link, endpoint)

    def _open(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Link | Ended:
        """Connect and subscribe, with the session or, where the broker does not give it out, without it."""
        substitute = self._substitute
        now = time.monotonic()
        link = self._subscribed(
            self._connector, endpoint, login, (now + deadline) / 2 if substitute.due else deadline
        )
        if isinstance(link, Ended) and self._refused:
            substitute.refused(link.reason)
            if substitute.due:
                other = self._subscribed(substitute.connector, endpoint, login, deadline)
                if isinstance(other, Link):
                    self._substituting = True
                    return other
                substitute.refused_too()
        return link

    def _subscribed(
        self, connector: Connector, endpoint: Endpoint, login: Credentials | None, deadline: float
    ) -> Link | Ended:
        link = connector.open(endpoint, login, deadline)
        self._refused = connector.turned_away
        if isinstance(link, Ended):
            return link
        # What waits in the session may come ahead of the SUBACK, and more of it than fits.
        wrong = subscribe(link, self._topics, deadline, self.stopping.is_set, self._most)
        if wrong is None:
            return link
        self._refused = True
        link.close()
        return Ended(wrong)

    def _look(self) -> bool:
        """Whether the session was asked for, while the site is read without it, and can be read again."""

        def session(endpoint: Endpoint, until: float) -> Link | Ended:
            try:
                login = self.site.login()
            except Exception as error:  # noqa: BLE001 - the application's callable may raise anything
                return Ended(type(error).__name__, credentials=True)
            return self._subscribed(self._connector, endpoint, login, until)

        self._found = self._substitute.look(session)
        return self._found is not None

    def _leave_substitute(self, link: Link) -> Ended:
        """Take what waits in it still: what is published from now on comes through the group's own session."""
        end = time.monotonic() + self.site.heartbeat / 2
        link.unsubscribe(self._topics)
        busy = alive = True
        while alive and (busy or len(self._ledger)) and time.monotonic() < end and not self.stopping.is_set():
            alive = link.turn(0.5)
            busy = bool(link.arrived)
            self._hand_over(link)
            self._pass_on(link)
        link.disconnect(time.monotonic() + 0.5)
        return Ended("the group's session can be read again")

    @property
    def _most(self) -> int:
        return most_held(self.site)

    def _serve(self, link: Link, endpoint: Endpoint) -> Ended:
        self._generation += 1
        self._ledger = AckLedger()
        self._inflow = Inflow(self._most, self._ledger)
        self._control.begin(link)
        # Apart from the rest: where it is refused, producers only know less of this group. Over MQTT 3.1.1 they learn
        # nothing by it, and some brokers close the connection over what they do not permit.
        asks = link.version == "5" and self._strikes < STRIKES
        self._proving = link.collect(self._proofs) if asks else None
        self.up = True
        self.events.connected(str(endpoint), None if self._substituting else link.session_present)
        alive = True
        while alive:
            stopping = self.stopping.is_set()  # looked at first: what was acknowledged before is passed on
            self._hand_over(link)
            self._pass_on(link)
            self._attend(link, endpoint)
            if stopping:
                self._control.leave(link)
                link.disconnect(self._goodbye_by)
                return Ended("closed")
            if self._drop is not None or link.refusal is not None:
                return Ended(self._drop or link.refusal or "")
            if self._substituting and self._substitute.look_due and self._look():
                return self._leave_substitute(link)
            if self._inflow.has_room_again:
                return Ended("there is room again for messages that were not taken", renewing=True)
            alive = link.turn(1.0)
        self._hand_over(link)
        return Ended(link.reason)

    def _tell_disconnected(self, ended: Ended) -> None:
        self.events.disconnected(ended.reason, ended.renewing)

    def _ended(self, link: Link, broken: bool) -> None:
        if self._proving is not None:
            answered = self._proving in link.answered
            self._strikes = self._strikes + 1 if broken and not answered else 0
            self._proving = None
        super()._ended(link, broken)

    def _hand_over(self, link: Link) -> None:
        """Give the events what arrived: control frames always, and messages as far as they are taken."""
        arrived, link.arrived = link.arrived, []
        deliveries = []
        for publish in arrived:
            control = is_control(publish.topic)
            if control:
                self._control.hear(publish)
            # Control frames at QoS 0 are not counted: repairs, which what is held may wait for, are among them.
            if (control and not publish.qos) or not self._admits(publish):
                continue
            number = self._ledger.received(publish.mid, len(publish.body))
            if control or not publish.qos:
                self._ledger.acknowledge(number)
            if not control:
                deliveries.append(self._delivery(publish, number))
        if deliveries:
            self.events.received(deliveries)

    def _admits(self, publish: Publish) -> bool:
        admitted = self._inflow.admits(len(publish.body))
        if not admitted and not self._said_dropped:
            self._said_dropped = True
            log.warning(
                "site %s: the broker sends more than can be kept while %d messages are not acknowledged: the rest is"
                " read again later. Limit what it sends ahead of acknowledgements (Mosquitto: max_inflight_messages)",
                self.site.name,
                len(self._ledger),
            )
        return admitted

    def _delivery(self, publish: Publish, number: int) -> Delivery:
        return Delivery(
            (self._generation, number),
            publish.topic,
            publish.body,
            publish.content_type,
            publish.headers,
            publish.dup,
            publish.retain,
            publish.damaged,
        )

    def _pass_on(self, link: Link) -> None:
        """Send the acknowledgements that are due."""
        while self._acknowledged:
            for token in self._acknowledged.popleft():
                if isinstance(token, tuple) and token[0] == self._generation:
                    self._ledger.acknowledge(token[1])
        for mid in self._ledger.release():
            if mid:
                link.acknowledge(mid)
