"""MQTT 5 and 3.1.1 sites.

Nothing is published before the broker's CONNACK, and no more than the broker's Receive Maximum is in flight.
Everything happens on the site's I/O thread.

What MQTT 3.1.1 can't tell: why a broker closed a connection, and that it refused a message. Mosquitto confirms
to a 3.1.1 client what its access rules or its size limit then drop; with MQTT 5 it says so. Neither version
tells a publisher whether anybody subscribes.

Client ids are longer than the 23 characters that a 3.1.1 broker has to allow; one that stops there refuses
the connection with that reason.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.errors import ConfigError, TransientError
from reliamsg.transport.base import (
    Binding,
    Delivery,
    Outcome,
    Outgoing,
    ReceiverEvents,
    SenderEvents,
    Token,
)
from reliamsg.transport.mqtt_connect import Connector
from reliamsg.transport.mqtt_control import MqttControl
from reliamsg.transport.mqtt_link import Link, Version
from reliamsg.transport.mqtt_packets import AckLedger, encode_properties, forbidden
from reliamsg.transport.mqtt_substitute import Substitute
from reliamsg.transport.network import Waker
from reliamsg.transport.session import E, Ended, SiteSession
from reliamsg.wire.address import client_id, is_control, substitute_id, topic_address

__all__ = ["MqttReceiver", "MqttSender", "create_group"]

_MOST_IN_FLIGHT = 32_000
"""Most messages unconfirmed at once, well below the 65,535 packet ids: a free one is always near."""

_HELD_PER_PREFETCH = 4
"""At brokers without a limit of their own reading pauses at this many times ``Site.prefetch`` messages."""


class _MqttSession(SiteSession[E]):
    """What both directions share: being woken, dropping a connection on demand, saying goodbye."""

    def __init__(self, site: Site, events: E, thread: str, name: str, prefetch: int | None) -> None:
        # Its events are E itself; mypy tries each of the two that E stands for.
        super().__init__(site, events, thread)  # type: ignore[arg-type]
        self._waker = Waker()
        self._connector = Connector(site, name, self._waker, self.stopping.is_set, prefetch=prefetch)
        self._control = MqttControl(site, self._waker, self._heard)
        self._drop: str | None = None
        self._goodbye_by = 0.0

    def interrupt(self) -> None:
        """Part of :class:`SiteSession`."""
        self._waker.wake()

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are heard."""
        self._control.listen(addresses)

    def tell(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it."""
        return self._control.tell(address, body)

    def reconnect(self, reason: str) -> None:
        """Drop the connection and connect again; nothing where there is none."""
        if self.up:
            self._drop = reason
            self._waker.wake()

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and end the I/O thread, within `timeout` seconds."""
        if not self.stopping.is_set():
            self._goodbye_by = time.monotonic() + timeout * 0.8
        super().close(timeout)
        if not self._thread.is_alive():
            self._waker.close()

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Part of :class:`SiteSession`."""
        self._drop = None
        link = self._connector.open(endpoint, login, deadline)
        return link if isinstance(link, Ended) else self._hold(link, endpoint)

    def _hold(self, link: Link, endpoint: Endpoint) -> Ended:
        try:
            return self._serve(link, endpoint)
        finally:
            self._control.end(link, broken=self._drop is None and not self.stopping.is_set())
            link.close()

    def _heard(self, address: str, body: bytes) -> None:
        self.events.heard(address, body)  # whose they are may change

    def _serve(self, link: Link, endpoint: Endpoint) -> Ended:
        raise NotImplementedError


@dataclass(slots=True)
class _Batch:
    """A token whose messages are being sent."""

    token: int
    unconfirmed: int
    refused: bool = False


class _Unsendable(Exception):
    """A message that this site can't take, with the reason."""


class MqttSender(_MqttSession[SenderEvents]):
    """Publishes to one MQTT site; see :class:`~reliamsg.transport.base.SenderTransport`."""

    def __init__(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> None:
        # A name of its own for each owner of a connection: a stale one must not fight over it.
        name = f"reliamsg-p:{producer_id}:{secrets.token_hex(4)}"
        super().__init__(site, events, f"reliamsg-send-{site.name}", name, None)
        self._types: dict[str, bytes] = {}
        self._forget()

    def wake(self) -> None:
        """Have ``pull()`` asked soon."""
        self._waker.wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Nothing: at MQTT sites a group's session collects its messages, and only the group makes one."""

    def _forget(self) -> None:
        self._queue: deque[tuple[_Batch, str, bytes, bytes]] = deque()
        self._in_flight: dict[int, _Batch] = {}
        self._most_in_flight = _MOST_IN_FLIGHT
        self._largest_packet: int | None = None

    def _serve(self, link: Link, endpoint: Endpoint) -> Ended:
        self._forget()
        window: int | None = None
        if link.version == "5":
            window = link.receive_maximum
            self._most_in_flight = min(window, _MOST_IN_FLIGHT)
            self._largest_packet = link.maximum_packet_size
        self._control.begin(link)
        self.up = True
        self.events.connected(str(endpoint), window)
        alive = True
        while alive:
            self._control.work(link)
            if self.stopping.is_set():
                self._control.leave(link)
                link.disconnect(self._goodbye_by)
                return Ended("closed")
            if self._drop is not None:
                return Ended(self._drop)
            busy = self._send(link)
            alive = link.turn(0.0 if busy else 1.0)
            self._settle(link)
            arrived, link.arrived = link.arrived, []
            for publish in arrived:
                self._control.hear(publish)
        return Ended(link.reason)

    def _send(self, link: Link) -> bool:
        """Publish what the windows and the socket take; returns whether there may be more to do at once."""
        pulled = False
        if not self._queue and len(self._in_flight) < self._most_in_flight and link.can_write:
            outgoing = self.events.pull()
            pulled = bool(outgoing)
            for token, parts in groupby(outgoing, key=lambda part: part.token):
                self._enqueue(token, list(parts), link.version)
        while self._queue and len(self._in_flight) < self._most_in_flight and link.can_write:
            batch, topic, body, properties = self._queue.popleft()
            if batch.refused:
                continue
            mid = link.publish(topic, body, properties)
            if mid is None:
                return False
            self._in_flight[mid] = batch
        return pulled

    def _enqueue(self, token: int, parts: list[Outgoing], version: Version) -> None:
        batch = _Batch(token, len(parts))
        try:
            ready = [(batch, *self._prepare(part, version)) for part in parts]
        except _Unsendable as error:
            self.events.refused(token, Outcome.REFUSED, str(error))
            return
        self._queue.extend(ready)

    def _prepare(self, part: Outgoing, version: Version) -> tuple[str, bytes, bytes]:
        """Topic, body and packed properties of a message, or :class:`_Unsendable`."""
        limit = self.site.max_frame_bytes
        if len(part.body) > limit:
            raise _Unsendable(f"{len(part.body)} bytes are over the site's max_frame_bytes of {limit}")
        topic = topic_address(part.topic, part.partition)
        if forbidden(topic):
            raise _Unsendable(f"topic {topic!a} holds characters that MQTT brokers refuse")
        properties = b"\0"
        if version == "5":
            properties = self._pack(part)
        elif part.headers is not None:
            raise _Unsendable("the plain form needs MQTT 5, and this site speaks 3.1.1")
        # Fixed header, topic, packet id.
        size = 5 + 2 + len(topic.encode()) + 2 + len(properties) + len(part.body)
        if self._largest_packet and size > self._largest_packet:
            raise _Unsendable(
                f"{size} bytes are over the broker's Maximum Packet Size of {self._largest_packet}"
            )
        return topic, part.body, properties

    def _pack(self, part: Outgoing) -> bytes:
        try:
            if part.headers is not None:
                return encode_properties(part.content_type, part.headers)
            kind = part.content_type or ""
            if kind not in self._types:
                self._types[kind] = encode_properties(part.content_type, None)
            return self._types[kind]
        except ValueError as error:
            raise _Unsendable(str(error)) from None

    def _settle(self, link: Link) -> None:
        """Tell what the broker has answered. A PUBACK for a packet id that is not in flight says nothing."""
        pubacks, link.pubacks = link.pubacks, []
        confirmed = []
        for puback in pubacks:
            batch = self._in_flight.pop(puback.mid, None)
            if batch is None or batch.refused:
                continue
            if puback.refusal is not None:
                batch.refused = True
                self.events.refused(batch.token, Outcome.REFUSED, puback.refusal)
                continue
            batch.unconfirmed -= 1
            if not batch.unconfirmed:
                confirmed.append(batch.token)
        if confirmed:
            self.events.confirmed(confirmed)


class MqttReceiver(_MqttSession[ReceiverEvents]):
    """Reads one MQTT site for one group; see :class:`~reliamsg.transport.base.ReceiverTransport`.

    The client id is made from the group alone, so a second consumer of the group takes the session over and
    the first one is disconnected: both then see their connection end again and again, and ``disconnected``
    gives the broker's reason where it has one (MQTT 5: "Session taken over").

    Subscriptions of the session that this consumer does not name stay as they are, and their messages arrive.

    While a broker does not give the session out, the site is read without it; ``connected`` says None then.
    """

    def __init__(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> None:
        groups = {binding.group for binding in bindings}
        if len(groups) != 1:
            raise ConfigError("a receiver reads for exactly one group")
        group = groups.pop()
        super().__init__(site, events, f"reliamsg-recv-{site.name}", client_id(group), site.prefetch)
        others = [self._connector.without_session(substitute_id(group, number)) for number in (1, 2)]
        self._substitute = Substitute(site, others)
        self._substituting = False
        """Whether the connection is one without the session."""
        self._refused = False
        """Whether the broker was reached the last time, and did not give out what was asked for."""
        self._found: tuple[Link, Endpoint] | None = None
        """The session, asked for while it was replaced, and not read yet."""
        self._topics = _topics(bindings)
        self._acknowledged: deque[Sequence[Token]] = deque()
        self._generation = 0
        self._ledger = AckLedger()

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """The messages are safe here; the broker is told in the order in which it sent them."""
        self._acknowledged.append(tokens)
        self._waker.wake()

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
        wrong = _subscribe(link, self._topics, deadline, self.stopping.is_set, self._most)
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
            alive = link.turn(0.5, self._most - len(self._ledger))
            busy = bool(link.arrived)
            self._hand_over(link)
            self._pass_on(link)
        link.disconnect(time.monotonic() + 0.5)
        return Ended("the group's session can be read again")

    @property
    def _most(self) -> int:
        return self.site.prefetch * _HELD_PER_PREFETCH

    def _serve(self, link: Link, endpoint: Endpoint) -> Ended:
        self._generation += 1
        self._ledger = AckLedger()
        self._control.begin(link)
        self.up = True
        self.events.connected(str(endpoint), None if self._substituting else link.session_present)
        alive = True
        while alive:
            self._hand_over(link)
            self._pass_on(link)
            self._control.work(link)
            if self.stopping.is_set():
                self._control.leave(link)
                link.disconnect(self._goodbye_by)
                return Ended("closed")
            if self._drop is not None or link.refusal is not None:
                return Ended(self._drop or link.refusal or "")
            if self._substituting and self._substitute.look_due and self._look():
                return self._leave_substitute(link)
            alive = link.turn(1.0, self._most - len(self._ledger))
        self._hand_over(link)
        return Ended(link.reason)

    def _hand_over(self, link: Link) -> None:
        arrived, link.arrived = link.arrived, []
        if not arrived:
            return
        deliveries = []
        for publish in arrived:
            control = is_control(publish.topic)
            number = self._ledger.received(publish.mid)
            if control or not publish.qos:
                self._ledger.acknowledge(number)
            if control:
                self._control.hear(publish)
                continue
            deliveries.append(
                Delivery(
                    (self._generation, number),
                    publish.topic,
                    publish.body,
                    publish.content_type,
                    publish.headers,
                    publish.dup,
                    publish.retain,
                    publish.damaged,
                )
            )
        if deliveries:
            self.events.received(deliveries)

    def _pass_on(self, link: Link) -> None:
        """Send the acknowledgements that are due."""
        while self._acknowledged:
            for token in self._acknowledged.popleft():
                if isinstance(token, tuple) and token[0] == self._generation:
                    self._ledger.acknowledge(token[1])
        for mid in self._ledger.release():
            if mid:
                link.acknowledge(mid)


def create_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Make the persistent sessions of the groups in `bindings`, so that `site` collects for them from now on.

    Connects as each group, subscribes, and disconnects, within `timeout` seconds over all. A group whose
    consumer is connected at the time is interrupted: it loses its connection to this call and reconnects,
    and what it had not acknowledged is delivered to it again.

    Raises :class:`ConfigError` for a refused login, :class:`TransientError` for a site that can't be reached
    or refuses the subscription.
    """
    deadline = time.monotonic() + timeout
    waker = Waker()
    try:
        for group in sorted({binding.group for binding in bindings}):
            topics = _topics([binding for binding in bindings if binding.group == group])
            connector = Connector(site, client_id(group), waker, lambda: False, prefetch=site.prefetch)
            ended = Ended("no time left")
            for number, endpoint in enumerate(site.endpoints):
                now = time.monotonic()
                share = (deadline - now) / (len(site.endpoints) - number)
                until = now + min(site.connect_timeout, share)
                ended_or_none = _subscribe_once(connector, endpoint, site, topics, until)
                if ended_or_none is None:
                    break
                ended = ended_or_none
            else:
                error = ConfigError if ended.credentials else TransientError
                raise error(f"site {site.name}: group {group!r} could not be created: {ended.reason}")
    finally:
        waker.close()


def _subscribe_once(
    connector: Connector, endpoint: Endpoint, site: Site, topics: Sequence[str], deadline: float
) -> Ended | None:
    link = connector.open(endpoint, site.login(), deadline)
    if isinstance(link, Ended):
        return link
    try:
        most = site.prefetch * _HELD_PER_PREFETCH
        wrong = _subscribe(link, topics, deadline, lambda: False, most)
        if wrong is not None:
            return Ended(wrong)
        link.disconnect(deadline)
        return None
    finally:
        link.close()


def _subscribe(
    link: Link, topics: Sequence[str], deadline: float, stopping: Callable[[], bool], most: int
) -> str | None:
    """Subscribe, and wait for the answer or for `most` messages; returns what is wrong, if anything is."""
    link.subscribe(topics)
    while not link.subscribed and len(link.arrived) < most:
        left = deadline - time.monotonic()
        if stopping():
            return "closed"
        if left <= 0:
            return "the broker did not answer the subscription in time"
        if not link.turn(left, most - len(link.arrived)) and not link.subscribed:
            return f"while subscribing: {link.reason}"
    return link.refusal


def _topics(bindings: Sequence[Binding]) -> list[str]:
    return sorted({topic_address(binding.topic, binding.partition) for binding in bindings})
