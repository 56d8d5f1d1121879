"""Publishing to an MQTT site.

No more than the broker's Receive Maximum is in flight. Everything happens on the site's I/O thread.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from reliamsg.config import Endpoint, Site
from reliamsg.transport.base import Binding, Evidence, Mark, Outcome, Outgoing, SenderEvents
from reliamsg.transport.mqtt.codec import encode_properties, forbidden
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.group_prober import GroupProber
from reliamsg.transport.mqtt.paho_client import Version
from reliamsg.transport.mqtt.session import MqttSession
from reliamsg.transport.session import Ended
from reliamsg.wire.address import control_id, topic_address

__all__ = ["MqttSender"]

_MOST_IN_FLIGHT = 32_000
"""Most messages unconfirmed at once, well below the 65,535 packet ids: a free one is always close."""

_MOST_CACHED = 10_000


@dataclass(slots=True)
class _Batch:
    """A token whose messages are being sent."""

    token: int
    unconfirmed: int
    refused: bool = False


class _Unsendable(Exception):
    """A message that this site can't accept, with the reason."""


class MqttSender(MqttSession[SenderEvents]):
    """Publishes to one MQTT site; see :class:`~reliamsg.transport.base.SenderTransport`."""

    def __init__(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> None:
        # A unique name for each transport: a stale one must not compete for the connection.
        name = f"reliamsg-p:{producer_id}:{secrets.token_hex(4)}"
        super().__init__(site, events, f"reliamsg-send-{site.name}", name, None, control_id(name))
        self._groups = GroupProber(site, self._waker, bindings, self._found)
        self._types: dict[str, bytes] = {}
        self._addresses: dict[tuple[str, int], str] = {}
        """By topic and partition, those that brokers accept."""
        self._forget()

    def wake(self) -> None:
        """Have ``pull()`` called soon."""
        self._waker.wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Probe for these groups: a group's session stores its messages, and only the group can create it."""
        self._groups.bind(bindings)

    def _found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        self.gate.events.found(evidence)

    def _forget(self) -> None:
        self._queue: deque[tuple[_Batch, str, bytes, bytes]] = deque()
        self._in_flight: dict[int, _Batch] = {}
        self._most_in_flight = _MOST_IN_FLIGHT
        self._largest_packet: int | None = None

    def _serve(self, connection: MqttConnection, endpoint: Endpoint) -> Ended:
        self._forget()
        window: int | None = None
        connack = connection.connack
        if connection.version == "5" and connack is not None:
            window = connack.receive_maximum
            self._most_in_flight = min(window, _MOST_IN_FLIGHT)
            self._largest_packet = connack.maximum_packet_size
        self._listener.begin(connection)
        self._groups.begin(connection)
        self.gate.connected(str(endpoint), window)
        alive = True
        while alive:
            self._serve_control(connection, endpoint)
            if self.stopping.is_set():
                self._listener.leave(connection)
                connection.disconnect(self._goodbye_by)
                return Ended("closed")
            if self._drop is not None:
                return Ended(self._drop)
            self._groups.work(connection, self._room)
            busy = not self._groups.holds and self._send(connection)
            alive = connection.turn(0.0 if busy else self._groups.wait(1.0))
            self._settle(connection)
            for publish in connection.take_arrived():
                if not self._groups.take_mark(publish):
                    self._on_control(publish)
        return Ended(connection.reason)

    def _ended(self, connection: MqttConnection, broken: bool) -> None:
        self._groups.end(connection, broken)
        super()._ended(connection, broken)

    @property
    def _room(self) -> int:
        """How many messages more may be unconfirmed."""
        return self._most_in_flight - len(self._in_flight) - self._groups.outstanding

    def _send(self, connection: MqttConnection) -> bool:
        """Publish what the windows and the socket accept; return whether there may be more to do at once."""
        pulled, room = False, self._room
        if not self._queue and room > 0 and connection.can_write:
            outgoing = self.gate.events.pull()
            pulled = bool(outgoing)
            for token, parts in groupby(outgoing, key=lambda part: part.token):
                self._enqueue(token, list(parts), connection.version)
        while self._queue and room > 0 and connection.can_write:
            batch, topic, body, properties = self._queue.popleft()
            if batch.refused:
                continue
            mid = connection.publish(topic, body, properties)
            if mid is None:
                return False
            self._in_flight[mid] = batch
            room -= 1
        return pulled

    def _enqueue(self, token: int, parts: list[Outgoing], version: Version) -> None:
        batch = _Batch(token, len(parts))
        try:
            ready = [(batch, *self._prepare(part, version)) for part in parts]
        except _Unsendable as error:
            self.gate.events.refused(token, Outcome.REFUSED, str(error))
            return
        self._queue.extend(ready)

    def _prepare(self, part: Outgoing, version: Version) -> tuple[str, bytes, bytes]:
        """Topic, body and packed properties of a message, or :class:`_Unsendable`."""
        limit = self.site.max_frame_bytes
        if len(part.body) > limit:
            raise _Unsendable(f"{len(part.body)} bytes are over the site's max_frame_bytes of {limit}")
        topic = self._addresses.get((part.topic, part.partition)) or self._address(part.topic, part.partition)
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

    def _address(self, topic: str, partition: int) -> str:
        address = topic_address(topic, partition)
        if forbidden(address):
            raise _Unsendable(f"topic {address!a} holds characters that MQTT brokers refuse")
        if len(self._addresses) >= _MOST_CACHED:
            self._addresses.clear()
        self._addresses[topic, partition] = address
        return address

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

    def _settle(self, connection: MqttConnection) -> None:
        """Report what the broker has answered. A PUBACK for a packet id that is not in flight is ignored."""
        confirmed = []
        for puback in connection.take_pubacks():
            if self._groups.settle(puback):
                continue
            if puback.unmatched:
                self._groups.on_unmatched()
            batch = self._in_flight.pop(puback.mid, None)
            if batch is None or batch.refused:
                continue
            if puback.refusal is not None:
                batch.refused = True
                self.gate.events.refused(batch.token, Outcome.REFUSED, puback.refusal)
                continue
            batch.unconfirmed -= 1
            if not batch.unconfirmed:
                confirmed.append(batch.token)
        if confirmed:
            self.gate.events.confirmed(confirmed)
