"""One MQTT connection.

paho's network loop is run from here, on the I/O thread of the site, so that publishing, confirms and events all happen
on that one thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Sequence

from reliamsg.config import Credentials, Endpoint
from reliamsg.logs import Log
from reliamsg.transport.mqtt.codec import Publish
from reliamsg.transport.mqtt.paho_client import PACKET_OVERHEAD, ConnAck, PahoClient, PubAck, SubAck, Version
from reliamsg.transport.network import Waker, acknowledge_segments
from reliamsg.wire.address import is_created
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = ["MqttConnection"]

log: Log = Log(__name__)

_GOODBYE_SECONDS = 0.5
"""How long a broker may take to close the connection after a DISCONNECT."""

_MOST_READ_AT_ONCE = 256
_MOST_BYTES_READ_AT_ONCE = 4 * 1024 * 1024
"""Packets, and about how many bytes of them, that are read before events are called and there is a chance to write."""

_NO_PROPERTIES = b"\0"
_CONTROL_PROPERTIES = b"\x05\x02" + (30).to_bytes(4, "big")
"""Message Expiry Interval in seconds: a control frame that is not delivered by then is worthless."""

_MOST_AT_ONCE = 100
"""Most addresses in one SUBSCRIBE or UNSUBSCRIBE."""


class MqttConnection:
    """One connection: a paho client and what it has received since the last call.

    With `prefetch` it is for a group, which holds at most that many messages unacknowledged; without, for a client that
    only publishes. A session that is not `persistent` begins and ends with the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        waker: Waker,
        name: str,
        version: Version,
        *,
        keepalive: float,
        prefetch: int | None,
        persistent: bool,
    ) -> None:
        self.version = version
        self.subscribed: bool = False
        """Whether the broker has answered the subscription."""
        self.refusal: str | None = None
        """The problem with its answer, if there is one."""
        self.answered: set[int] = set()
        """Packet ids of :meth:`show_retained`, :meth:`hide_retained` and :meth:`collect` that the broker answered."""
        self.denied: set[int] = set()
        """Those that it refused, in part or as a whole."""
        self._asked: set[int] = set()
        self._topics: Sequence[str] = ()
        self._listening: frozenset[str] = frozenset()
        self._listening_refused: dict[str, str] = {}
        self._unanswered: dict[int, Sequence[str]] = {}
        """Control addresses by the packet id of a SUBSCRIBE that the broker has not answered."""
        self._sock = sock
        self._waker = waker
        self._fault = ""
        self._keepalive = max(1, round(keepalive))
        self._prefetch = prefetch
        self._client = PahoClient(sock, name, version, persistent)

    def connect(self, endpoint: Endpoint, login: Credentials | None) -> None:
        """Send CONNECT; the answer comes as :attr:`connack`."""
        self._client.begin(endpoint, login, self._keepalive, self._prefetch)

    @property
    def connack(self) -> ConnAck | None:
        """The broker's answer to CONNECT, once it is there."""
        return self._client.connack

    def turn(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the socket or a ``wake()``, then read, write and keep alive.

        Returns False once the connection is gone; :attr:`reason` says why.
        """
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        client = self._client
        try:
            readable, writable = self._waker.wait(
                self._sock,
                read=True,
                write=client.want_write(),
                timeout=0.0 if pending else min(timeout, self._keepalive / 4),
            )
            if readable or pending:
                self._read()
                acknowledge_segments(self._sock)
            if writable:
                client.loop_write()
            client.loop_misc()
        except Exception as error:
            # paho raises whatever its decoders happen to raise. The connection is lost then, the thread is not.
            log.warning(
                "transport.mqtt_failed", "MQTT connection given up: %(error)s",
                error=type(error).__name__, exc_info=True,
            )  # fmt: skip
            self._fault = f"paho-mqtt: {type(error).__name__}"
        for suback in client.take_subacks():
            self._on_suback(suback)
        return not (self._fault or client.violation) and client.socket() is not None

    @property
    def can_write(self) -> bool:
        """Whether the connection is open and everything published has been written to the socket."""
        return self._client.socket() is not None and not self._client.want_write()

    @property
    def reason(self) -> str:
        """Why the connection is gone."""
        return self._client.violation or self._fault or self._client.goodbye or "connection lost"

    def _read(self) -> None:
        client = self._client
        before, last = -1, len(client.arrived) + len(client.pubacks) + _MOST_READ_AT_ONCE
        enough = client.arrived_bytes + _MOST_BYTES_READ_AT_ONCE
        # paho does not say whether it found a packet, but the client counts them.
        while (
            client.packets != before
            and len(client.arrived) + len(client.pubacks) < last
            and client.arrived_bytes < enough
        ):
            before = client.packets
            client.loop_read()
        if client.incoming_bytes > MAX_FRAME_BYTES + PACKET_OVERHEAD:
            # A client that only listens has not told the broker its limit; 3.1.1 has no way to.
            self._fault = "connection given up: a packet over the limit"

    @property
    def arrived(self) -> Sequence[Publish]:
        """Messages that wait for :meth:`take_arrived`."""
        return self._client.arrived

    def take_arrived(self) -> list[Publish]:
        """The messages that arrived since the last call."""
        return self._client.take_arrived()

    def take_pubacks(self) -> list[PubAck]:
        """The PUBACKs that arrived since the last call."""
        return self._client.take_pubacks()

    def publish(self, topic: str, body: bytes, properties: bytes, retain: bool = False) -> int | None:
        """Publish at QoS 1; returns the packet id, or None if the connection is gone."""
        return self._client.publish_packed(topic, body, 1, retain, properties)

    def send_control(self, address: str, body: bytes) -> None:
        """Publish a control frame at QoS 0, which the broker does not answer. See :meth:`ping`."""
        retain = is_created(address)  # a mark, for producers that connect later
        self._client.publish_packed(
            address, body, 0, retain, _NO_PROPERTIES if retain else _CONTROL_PROPERTIES
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to `topics` at QoS 1; the answer comes as :attr:`subscribed` or :attr:`refusal`."""
        self._topics = topics
        self._client.subscribe_to(topics, 1)

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Stop the delivery of these topics, except for messages in flight."""
        self._client.unsubscribe_from(topics)

    def show_retained(self, addresses: Sequence[str]) -> int | None:
        """Have retained messages at these addresses delivered; :attr:`answered` has the packet id when it begins."""
        return self._note_asked(self._client.subscribe_to(addresses, 0, retained=True))

    def hide_retained(self, addresses: Sequence[str]) -> int | None:
        """End :meth:`show_retained`."""
        return self._note_asked(self._client.unsubscribe_from(addresses))

    def collect(self, addresses: Sequence[str]) -> int | None:
        """Have the session store messages that are published at these addresses as well. A refusal is harmless."""
        return self._note_asked(self._client.subscribe_to(addresses, 1))

    def _note_asked(self, mid: int | None) -> int | None:
        if mid is not None:
            self._asked.add(mid)
        return mid

    def listen(self, addresses: Sequence[str]) -> None:
        """Subscribe to control addresses at QoS 0, and unsubscribe from all others."""
        dropped = sorted(self._listening.difference(addresses))
        for start in range(0, len(dropped), _MOST_AT_ONCE):
            self._client.unsubscribe_from(dropped[start : start + _MOST_AT_ONCE])
        added = [address for address in addresses if address not in self._listening]
        self._listening = frozenset(addresses)
        for start in range(0, len(added), _MOST_AT_ONCE):
            part = added[start : start + _MOST_AT_ONCE]
            mid = self._client.subscribe_to(part, 0)
            if mid is not None:
                self._unanswered[mid] = part

    @property
    def listening_unanswered(self) -> list[str]:
        """Control addresses to which the broker has yet to answer a subscription."""
        return [address for part in self._unanswered.values() for address in part]

    def take_listening_refused(self) -> dict[str, str]:
        """Control addresses to which the broker has refused a subscription since the last call, with its reasons."""
        refused, self._listening_refused = self._listening_refused, {}
        return refused

    def _on_suback(self, suback: SubAck) -> None:
        mid, reasons = suback.mid, suback.reasons
        if mid in self._asked:
            self._asked.remove(mid)
            if any(code >= 0x80 for code, _ in reasons):
                self.denied.add(mid)
            self.answered.add(mid)
        elif (addresses := self._unanswered.pop(mid, None)) is not None:
            for address, (code, name) in zip(addresses, reasons, strict=False):
                if code >= 0x80:
                    self._listening_refused[address] = name
                    self._listening -= {address}
        elif reasons:
            self.subscribed = True
            for topic, (code, name) in zip(self._topics, reasons, strict=False):
                if code >= 0x80:
                    self.refusal = f"the broker refuses the subscription to {topic!r}: {name}"
                elif code < 1:
                    self.refusal = f"the broker grants {topic!r} only at QoS 0, which loses messages"

    def ping(self) -> int:
        """Check that the connection survives everything sent so far: it does once :attr:`pongs` has reached the number
        that is returned."""
        self._client.ping()
        return self._client.pings

    @property
    def pongs(self) -> int:
        """How many pings the broker has answered."""
        return self._client.pongs

    def acknowledge(self, mid: int) -> None:
        """Send the PUBACK for a message that arrived."""
        self._client.ack(mid, 1)

    def disconnect(self, deadline: float) -> None:
        """Send DISCONNECT, so that the broker ends the connection in good order; the session remains."""
        if self._client.socket() is None:  # it has ended already
            return
        # paho closes its socket with the last byte that it writes; a second handle keeps the connection.
        with contextlib.closing(socket.socket(fileno=os.dup(self._sock.fileno()))) as kept:
            self._client.disconnect()
            while self._client.socket() is not None and self._client.want_write():
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if self._waker.wait(self._sock, read=False, write=True, timeout=left)[1]:
                    self._client.loop_write()
            _await_end(kept, min(deadline, time.monotonic() + _GOODBYE_SECONDS))

    def close(self) -> None:
        """Close the socket, whatever the state of the connection."""
        self._sock.close()


def _await_end(sock: socket.socket, deadline: float) -> None:
    """Read and discard what still arrives until the broker closes the connection, or `deadline`.

    A socket that is closed with unread data resets the connection, and a broker that sees the reset first discards
    what it has not read yet: the last acknowledgements.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv(65536):
                return
