"""One MQTT connection, on paho-mqtt; the one module that imports it.

paho does packets and keepalive, and nothing else of what it offers. Its network loop is run from here, on the
I/O thread of the site, so that publishing, confirms and events all happen on that one thread. A client object
lives for one connection: paho sends what is unconfirmed again by itself after a reconnect, and resending is
decided above the transport.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from reliamsg.config import Credentials, Endpoint
from reliamsg.transport.mqtt.codec import MalformedPublish, Publish, decode_publish
from reliamsg.transport.network import Waker, acknowledge_segments
from reliamsg.wire.address import is_created
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = ["Link", "PubAck", "Version"]

log = logging.getLogger(__name__)

Version = Literal["5", "3.1.1"]

_PACKET_OVERHEAD = 128 * 1024
"""More than topic and properties of any message of ours add to its body, in bytes."""

_NEVER_EXPIRES = 0xFFFFFFFF

_GOODBYE_S = 0.5
"""So long, in seconds, a broker may take to close the connection after a DISCONNECT."""

_MOST_READ_AT_ONCE = 256
_MOST_BYTES_READ_AT_ONCE = 4 * 1024 * 1024
"""Packets, and about so many bytes of them, read before events are told and there is a chance to write."""

_CONTROL_PROPERTIES = b"\x05\x02" + (30).to_bytes(4, "big")
"""Message Expiry Interval: a control frame that is not delivered within so many seconds is worth nothing."""

_MOST_AT_ONCE = 100
"""Most addresses in one SUBSCRIBE or UNSUBSCRIBE."""

_NO_MATCHING_SUBSCRIBERS = 0x10

_REFUSALS = {
    0x80: "Unspecified error",
    0x83: "Implementation specific error",
    0x87: "Not authorized",
    0x90: "Topic Name invalid",
    0x91: "Packet identifier in use",
    0x95: "Packet too large",
    0x97: "Quota exceeded",
    0x99: "Payload format invalid",
}
"""Failing reason codes of a PUBACK. 0x95 is none by the standard, and what Mosquitto says."""


@dataclass(frozen=True, slots=True)
class PubAck:
    """A PUBACK: what the broker said to one message."""

    mid: int
    refusal: str | None
    """The reason code's name where it is a failing one."""
    unmatched: bool = False
    """Whether the broker says that nobody subscribes (reason 16)."""


class _Packed(Properties):
    """MQTT 5 properties that are packed already: paho's own take about 130 µs a message."""

    def __init__(self, packed: bytes) -> None:
        object.__setattr__(self, "_packed", packed)

    def pack(self) -> bytes:
        return cast(bytes, object.__getattribute__(self, "_packed"))

    def __str__(self) -> str:
        return "[packed]"


def _properties(packet_type: int, **values: object) -> Properties:
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


class _Client(paho.Client):
    """paho's client, given its socket, decoders for what comes often, and ears for why a connection broke.

    paho's own decoders give up the connection over headers and reason codes that they don't know, again and
    again, since the broker delivers the message again, or is sent it again. The overridden methods are not
    part of paho's documented interface; a test holds that they exist.
    """

    def __init__(
        self,
        sock: socket.socket,
        arrived: Callable[[Publish], None],
        confirmed: Callable[[PubAck], None],
        **settings: Any,
    ) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, reconnect_on_failure=False, **settings)
        self._given = sock
        self._arrived = arrived
        self._confirmed = confirmed
        self.trouble = ""
        self.pings = self.pongs = 0
        """PINGREQs sent and PINGRESPs received."""

    def ping(self) -> None:
        self._send_pingreq()

    def _send_pingreq(self) -> MQTTErrorCode:
        self.pings += 1
        return super()._send_pingreq()

    def _handle_pingresp(self) -> MQTTErrorCode:
        self.pongs += 1
        return super()._handle_pingresp()

    def _create_socket_connection(self) -> socket.socket:
        return self._given

    @property
    def incoming_bytes(self) -> int:
        """Of the packet that is being read, as it says itself."""
        return int(self._in_packet["remaining_length"])

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet
        try:
            publish = decode_publish(
                packet["command"], packet["packet"], self._protocol == MQTTProtocolVersion.MQTTv5
            )
        except MalformedPublish as error:
            self.trouble = str(error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if publish.qos > 1:
            self.trouble = "a message at QoS 2, though the subscription is at QoS 1"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._arrived(publish)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if cmd != "PUBACK" or len(packet) < 2:
            self.trouble = f"an unexpected {cmd}"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        mid = int.from_bytes(packet[:2], "big")
        # One for a packet id that is not in flight, or not any more, says nothing.
        if self._out_messages.pop(mid, None) is not None:
            code = packet[2] if len(packet) > 2 else 0
            refusal = None
            if code >= 0x80:
                refusal = _REFUSALS.get(code, f"reason code 0x{code:02x}")
            self._confirmed(PubAck(mid, refusal, code == _NO_MATCHING_SUBSCRIBERS))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _easy_log(self, level: LogLevel, fmt: str, *args: Any) -> None:
        # Formats errors alone: paho's own shows every packet's properties as text first.
        if level == LogLevel.MQTT_LOG_ERR:
            self.trouble = (fmt % args)[:300]


class Link:
    """One connection: a paho client and what it has received since it was last asked.

    With `prefetch` it is for a group, which holds at most so many messages unacknowledged; without, for one that
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
        self.arrived: list[Publish] = []
        self.pubacks: list[PubAck] = []
        self.connack: ReasonCode | None = None
        self.session_present = False
        self.receive_maximum = 65535
        """Most messages that the broker takes unconfirmed; MQTT 5."""
        self.maximum_packet_size: int | None = None
        """Largest packet that the broker takes, if it says so; MQTT 5."""
        self.maximum_qos = 2
        self.subscribed = False
        """Whether the broker has answered the subscription."""
        self.refusal: str | None = None
        """What is wrong with its answer, if anything is."""
        self.listening_refused: dict[str, str] = {}
        """Control addresses to which the broker refuses a subscription, and its reasons. The caller takes them out."""
        self._listening: frozenset[str] = frozenset()
        self._unanswered: dict[int, Sequence[str]] = {}
        """Control addresses by the packet id of a SUBSCRIBE that the broker has not answered."""
        self.answered: set[int] = set()
        """Packet ids of :meth:`look`, :meth:`look_away` and :meth:`collect` that the broker has answered."""
        self.denied: set[int] = set()
        """Those that it refused, in part or as a whole."""
        self._asked: set[int] = set()
        self._topics: Sequence[str] = ()
        self._sock = sock
        self._waker = waker
        self._goodbye = ""
        self._fault = ""
        self._packets = 0
        self._unwritten: int | None = None
        self._arrived_bytes = 0
        self._keepalive = max(1, round(keepalive))
        self._prefetch = prefetch
        self._persistent = persistent
        settings: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5}
        if version == "3.1.1":
            settings = {"protocol": MQTTProtocolVersion.MQTTv311, "clean_session": not persistent}
        self._client = _Client(sock, self._on_publish, self._on_puback, client_id=name, **settings)
        # 0 is no limit: with one, paho looks through everything in flight at each PUBACK.
        self._client.max_inflight_messages_set(0)
        self._client.manual_ack_set(True)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_suback
        self._client.on_unsubscribe = self._on_unsuback

    def connect(self, endpoint: Endpoint, login: Credentials | None) -> None:
        """Send CONNECT; the answer comes as :attr:`connack`."""
        if login is not None:
            self._client.username_pw_set(*login)
        if self.version == "3.1.1":
            self._client.connect(endpoint.host, endpoint.port, self._keepalive)
            return
        properties = None
        if self._prefetch is not None:
            properties = _properties(
                PacketTypes.CONNECT,
                SessionExpiryInterval=_NEVER_EXPIRES if self._persistent else 0,
                ReceiveMaximum=self._prefetch,
                # A larger message is one that nobody here would look at; brokers drop it, and don't send it.
                MaximumPacketSize=MAX_FRAME_BYTES + _PACKET_OVERHEAD,
            )
        self._client.connect(
            endpoint.host,
            endpoint.port,
            self._keepalive,
            clean_start=not self._persistent,
            properties=properties,
        )

    def turn(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the socket or a ``wake()``, then read, write and keep alive.

        Returns False once the connection is gone; :attr:`reason` says why.
        """
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        try:
            readable, writable = self._waker.wait(
                self._sock,
                read=True,
                write=self._client.want_write(),
                timeout=0.0 if pending else min(timeout, self._keepalive / 4),
            )
            if readable or pending:
                self._read()
                acknowledge_segments(self._sock)
            if writable:
                self._client.loop_write()
            self._client.loop_misc()
        except Exception as error:
            # paho raises what its decoders happen to raise; the connection is of no use then, the thread is.
            log.warning("MQTT connection given up: %s", type(error).__name__, exc_info=True)
            self._fault = f"paho-mqtt: {type(error).__name__}"
        return not self._fault and self._client.socket() is not None

    @property
    def can_write(self) -> bool:
        """Whether the connection stands and all that was published has been written to the socket."""
        return self._client.socket() is not None and not self._client.want_write()

    @property
    def reason(self) -> str:
        """Why the connection is gone."""
        return self._fault or self._goodbye or "connection lost"

    def _read(self) -> None:
        before, last = -1, len(self.arrived) + len(self.pubacks) + _MOST_READ_AT_ONCE
        self._arrived_bytes = 0
        # paho does not say whether it found a packet, but the callbacks count them.
        while (
            self._packets != before
            and len(self.arrived) + len(self.pubacks) < last
            and self._arrived_bytes < _MOST_BYTES_READ_AT_ONCE
        ):
            before = self._packets
            self._client.loop_read()
        if self._client.incoming_bytes > MAX_FRAME_BYTES + _PACKET_OVERHEAD:
            # Those who only listen have not told the broker how much they take; 3.1.1 knows no way to.
            self._fault = "connection given up: a packet over the limit"

    def publish(self, topic: str, body: bytes, properties: bytes, retain: bool = False) -> int | None:
        """Publish at QoS 1; returns the packet id, or None where the connection is gone."""
        packed = _Packed(properties) if self.version == "5" else None
        while True:
            info = self._client.publish(topic, body, qos=1, retain=retain, properties=packed)
            # The next packet id may still be in flight, after 65,535 messages; then the one after it.
            if info.rc != MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                break
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return None
        self._unwritten = info.mid if self._client.want_write() else None
        return info.mid

    def subscribe(self, topics: Sequence[str]) -> None:
        """Ask for `topics` at QoS 1; the answer comes as :attr:`subscribed` or :attr:`refusal`."""
        self._topics = topics
        self._client.subscribe(self._wishes(topics, 1))

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Have nothing more of these topics come, but for what is on its way."""
        self._client.unsubscribe(list(topics))

    def _wishes(self, topics: Sequence[str], qos: int, retained: bool = False) -> list[tuple[str, Any]]:
        if self.version != "5":
            return [(topic, qos) for topic in topics]
        # Retained messages are never ours, but for marks: not sent now, and marked as such when they are published.
        handling = (
            SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE if retained else SubscribeOptions.RETAIN_DO_NOT_SEND
        )
        options = SubscribeOptions(qos=qos, retainAsPublished=True, retainHandling=handling)
        return [(topic, options) for topic in topics]

    def look(self, addresses: Sequence[str]) -> int | None:
        """Have what is retained at these addresses sent; :attr:`answered` has the packet id when it begins."""
        return self._note_asked(self._client.subscribe(self._wishes(addresses, 0, retained=True))[1])

    def look_away(self, addresses: Sequence[str]) -> int | None:
        """End :meth:`look`."""
        return self._note_asked(self._client.unsubscribe(list(addresses))[1])

    def collect(self, addresses: Sequence[str]) -> int | None:
        """Have the session keep what comes at these addresses as well. A refusal does no harm."""
        return self._note_asked(self._client.subscribe(self._wishes(addresses, 1))[1])

    def _note_asked(self, mid: int | None) -> int | None:
        if mid is not None:
            self._asked.add(mid)
        return mid

    def _is_answer(self, mid: int, reasons: Sequence[ReasonCode] = ()) -> bool:
        """Whether a packet id is of one of these; it is answered."""
        if mid not in self._asked:
            return False
        self._asked.remove(mid)
        if any(code.value >= 0x80 for code in reasons):
            self.denied.add(mid)
        self.answered.add(mid)
        return True

    def listen(self, addresses: Sequence[str]) -> None:
        """Subscribe to control addresses at QoS 0, and to no others any more."""
        dropped = sorted(self._listening.difference(addresses))
        for start in range(0, len(dropped), _MOST_AT_ONCE):
            self._client.unsubscribe(dropped[start : start + _MOST_AT_ONCE])
        added = [address for address in addresses if address not in self._listening]
        self._listening = frozenset(addresses)
        for start in range(0, len(added), _MOST_AT_ONCE):
            part = added[start : start + _MOST_AT_ONCE]
            mid = self._client.subscribe(self._wishes(part, 0))[1]
            if mid is not None:
                self._unanswered[mid] = part

    @property
    def listening_unanswered(self) -> list[str]:
        """Control addresses to which the broker has yet to answer a subscription."""
        return [address for part in self._unanswered.values() for address in part]

    def tell(self, address: str, body: bytes) -> None:
        """Publish a control frame at QoS 0, which the broker does not answer. See :meth:`ping`."""
        retain = is_created(address)  # a mark, for those who come later
        packed = _Packed(b"\0" if retain else _CONTROL_PROPERTIES) if self.version == "5" else None
        self._client.publish(address, body, qos=0, retain=retain, properties=packed)

    def ping(self) -> int:
        """Ask whether the connection stands after all that was sent so far; answered when :attr:`pongs` has reached the
        number that is returned."""
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
        """Say goodbye, so that the broker ends the connection in good order; the session stays."""
        # paho closes its socket with the last byte that it writes; a second handle keeps the connection.
        with contextlib.closing(socket.socket(fileno=os.dup(self._sock.fileno()))) as kept:
            self._client.disconnect()
            while self._client.socket() is not None and self._client.want_write():
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if self._waker.wait(self._sock, read=False, write=True, timeout=left)[1]:
                    self._client.loop_write()
            _await_end(kept, min(deadline, time.monotonic() + _GOODBYE_S))

    def close(self) -> None:
        """Close the socket, however the connection stands."""
        self._sock.close()

    # Callbacks of paho. They only note what came, so they can't raise into its loop.

    def _on_connect(
        self,
        _client: paho.Client,
        _data: Any,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._packets += 1
        self.connack, self.session_present = reason, flags.session_present
        self.receive_maximum = getattr(properties, "ReceiveMaximum", 65535)
        self.maximum_packet_size = getattr(properties, "MaximumPacketSize", None)
        self.maximum_qos = getattr(properties, "MaximumQoS", 2)

    def _on_disconnect(
        self,
        _client: paho.Client,
        _data: Any,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._goodbye = f"the broker disconnected: {reason.getName()}"
        elif reason.getName() == "Keep alive timeout":
            self._goodbye = "the broker did not answer within the keepalive"
        elif self._client.trouble:
            self._goodbye = f"connection lost: {self._client.trouble}"
        elif reason.getName() == "Protocol error":
            self._goodbye = "connection given up: the broker sent something that is no MQTT"

    def _on_puback(self, puback: PubAck) -> None:
        self._packets += 1
        if puback.mid == self._unwritten and self._client.want_write():
            self._fault = "the broker confirmed a message before it was sent"
        else:
            self.pubacks.append(puback)

    def _on_suback(
        self,
        _client: paho.Client,
        _data: Any,
        mid: int,
        reasons: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        self._packets += 1
        if self._is_answer(mid, reasons):
            return
        addresses = self._unanswered.pop(mid, None)
        if addresses is not None:
            for address, code in zip(addresses, reasons, strict=False):
                if code.value >= 0x80:
                    self.listening_refused[address] = code.getName()
                    self._listening -= {address}
            return
        self.subscribed = True
        for topic, code in zip(self._topics, reasons, strict=False):
            if code.value >= 0x80:
                self.refusal = f"the broker refuses the subscription to {topic!r}: {code.getName()}"
            elif code.value < 1:
                self.refusal = f"the broker grants {topic!r} only at QoS 0, which loses messages"

    def _on_unsuback(self, _client: paho.Client, _data: Any, mid: int, *_: object) -> None:
        self._packets += 1
        self._is_answer(mid)

    def _on_publish(self, publish: Publish) -> None:
        self._packets += 1
        self._arrived_bytes += len(publish.body)
        self.arrived.append(publish)


def _await_end(sock: socket.socket, deadline: float) -> None:
    """Read and drop what still comes until the broker closes the connection, or `deadline`.

    A socket that is closed with unread data resets the connection, and a broker that sees the reset first throws away
    what it has not read yet: the last acknowledgements.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv(65536):
                return
