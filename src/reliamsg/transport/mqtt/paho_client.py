"""paho's client with bounded decoders: the one module that imports paho.

paho is used for packets and keepalive, and nothing else that it offers. A client object lives for one connection: paho
resends unconfirmed messages by itself after a reconnect, and resending is decided above the transport. Whatever it
receives is collected here until it is taken.

Its own decoders give up the connection over headers and reason codes that they do not know, again and again, since the
broker then delivers the message again. The methods and attributes that are overridden or read below are not part of
paho's documented interface: docs/explanation/decisions.md lists them, and a test checks that they exist.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
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
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = ["PACKET_OVERHEAD", "ConnAck", "PahoClient", "PubAck", "SubAck", "Version"]

Version = Literal["5", "3.1.1"]

PACKET_OVERHEAD = 128 * 1024
"""More than topic and properties of any of our messages add to its body, in bytes."""

_NEVER_EXPIRES = 0xFFFFFFFF

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
"""Failing reason codes of a PUBACK. The standard does not allow 0x95 there, but Mosquitto sends it."""


@dataclass(frozen=True, slots=True)
class ConnAck:
    """A CONNACK: the broker's answer to CONNECT."""

    code: int
    reason: str
    session_present: bool
    receive_maximum: int = 65535
    """Most messages that the broker accepts unconfirmed; MQTT 5."""
    maximum_packet_size: int | None = None
    """Largest packet that the broker accepts, if it says so; MQTT 5."""
    maximum_qos: int = 2
    session_expiry: int | None = None
    """Seconds after which the session expires, if the broker uses another value than was asked for; MQTT 5."""
    retain_available: bool = True
    shared_subscriptions: bool = True


@dataclass(frozen=True, slots=True)
class PubAck:
    """A PUBACK: the broker's answer to one message."""

    mid: int
    refusal: str | None
    """The name of the reason code if it is a failing one."""
    unmatched: bool = False
    """Whether the broker says that there is no matching subscriber (reason 16)."""


@dataclass(frozen=True, slots=True)
class SubAck:
    """A SUBACK or UNSUBACK: for each topic the reason code and its name."""

    mid: int
    reasons: Sequence[tuple[int, str]] = ()


class _Packed(Properties):
    """MQTT 5 properties that are packed already: packing with paho takes about 130 µs per message."""

    def __init__(self, packed: bytes) -> None:
        object.__setattr__(self, "_packed", packed)

    def pack(self) -> bytes:
        return cast(bytes, object.__getattribute__(self, "_packed"))

    def __str__(self) -> str:
        return "[packed]"


class PahoClient(paho.Client):
    """A paho client for one connection, on a socket that is connected already."""

    def __init__(self, sock: socket.socket, name: str, version: Version, persistent: bool) -> None:
        settings: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5}
        if version == "3.1.1":
            settings = {"protocol": MQTTProtocolVersion.MQTTv311, "clean_session": not persistent}
        super().__init__(CallbackAPIVersion.VERSION2, name, reconnect_on_failure=False, **settings)
        self.connack: ConnAck | None = None
        self.goodbye: str = ""
        """Why the connection ended, as far as the broker or paho said."""
        self.violation: str = ""
        """Why it has to be given up."""
        self.packets: int = 0
        """Received, except pings."""
        self.pings: int = 0
        self.pongs: int = 0
        """PINGREQs sent and PINGRESPs received."""
        self.arrived: list[Publish] = []
        self.arrived_bytes: int = 0
        self.pubacks: list[PubAck] = []
        self.subacks: list[SubAck] = []
        self._version = version
        self._persistent = persistent
        self._connected_socket = sock
        self._trouble = ""
        self._unwritten: int | None = None
        # 0 means no limit: with one, paho scans everything in flight at each PUBACK.
        self.max_inflight_messages_set(0)
        self.manual_ack_set(True)
        self.connect_callback()(self._note_connack)
        self.disconnect_callback()(self._note_disconnect)
        self.subscribe_callback()(self._note_suback)
        self.unsubscribe_callback()(self._note_unsuback)

    def begin(
        self, endpoint: Endpoint, login: Credentials | None, keepalive: int, prefetch: int | None
    ) -> None:
        """Send CONNECT; the answer comes as :attr:`connack`."""
        if login is not None:
            self.username_pw_set(*login)
        if self._version == "3.1.1":
            self.connect(endpoint.host, endpoint.port, keepalive)
            return
        properties = None
        if prefetch is not None:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = _NEVER_EXPIRES if self._persistent else 0
            properties.ReceiveMaximum = prefetch
            # A larger message would be ignored here; brokers drop it instead of sending it.
            properties.MaximumPacketSize = MAX_FRAME_BYTES + PACKET_OVERHEAD
        self.connect(
            endpoint.host, endpoint.port, keepalive, clean_start=not self._persistent, properties=properties
        )

    def ping(self) -> None:
        """Send a PINGREQ."""
        self._send_pingreq()

    def publish_packed(
        self, topic: str, body: bytes, qos: int, retain: bool, properties: bytes
    ) -> int | None:
        """Publish; return the packet id, or None if the connection is gone. `properties` are left out in 3.1.1."""
        packed = _Packed(properties) if self._version == "5" else None
        while True:
            info = self.publish(topic, body, qos=qos, retain=retain, properties=packed)
            # The next packet id may still be in flight, after 65,535 messages; then the one after it.
            if info.rc != MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                break
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return None
        if qos:
            self._unwritten = info.mid if self.want_write() else None
        return info.mid

    def subscribe_to(self, topics: Sequence[str], qos: int, retained: bool = False) -> int | None:
        """Subscribe to `topics`, with `retained` to have what is retained there delivered now; return the packet id."""
        if self._version != "5":
            return self.subscribe([(topic, qos) for topic in topics])[1]
        # Retained messages are never ours, except marks: not delivered now, and flagged as such when published.
        handling = (
            SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE if retained else SubscribeOptions.RETAIN_DO_NOT_SEND
        )
        options = SubscribeOptions(qos=qos, retainAsPublished=True, retainHandling=handling)
        return self.subscribe([(topic, options) for topic in topics])[1]

    def unsubscribe_from(self, topics: Sequence[str]) -> int | None:
        """Unsubscribe; return the packet id."""
        return self.unsubscribe(list(topics))[1]

    def take_arrived(self) -> list[Publish]:
        """The messages that arrived since the last call."""
        arrived, self.arrived, self.arrived_bytes = self.arrived, [], 0
        return arrived

    def take_pubacks(self) -> list[PubAck]:
        """The PUBACKs that arrived since the last call."""
        pubacks, self.pubacks = self.pubacks, []
        return pubacks

    def take_subacks(self) -> list[SubAck]:
        """The SUBACKs and UNSUBACKs that arrived since the last call."""
        subacks, self.subacks = self.subacks, []
        return subacks

    # Callbacks of paho. They only collect, so they cannot raise into its loop.

    def _note_connack(
        self, _client: Any, _data: Any, flags: paho.ConnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        self.packets += 1
        self.connack = ConnAck(
            reason.value,
            reason.getName(),
            flags.session_present,
            getattr(properties, "ReceiveMaximum", 65535),
            getattr(properties, "MaximumPacketSize", None),
            getattr(properties, "MaximumQoS", 2),
            getattr(properties, "SessionExpiryInterval", None),
            bool(getattr(properties, "RetainAvailable", 1)),
            bool(getattr(properties, "SharedSubscriptionAvailable", 1)),
        )

    def _note_disconnect(
        self, _client: Any, _data: Any, flags: paho.DisconnectFlags, reason: ReasonCode, _properties: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self.goodbye = f"the broker disconnected: {reason.getName()}"
        elif reason.getName() == "Keep alive timeout":
            self.goodbye = "the broker did not answer within the keepalive"
        elif self._trouble:
            self.goodbye = f"connection lost: {self._trouble}"
        elif reason.getName() == "Protocol error":
            self.goodbye = "connection given up: the broker sent something that is no MQTT"

    def _note_suback(
        self, _client: Any, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        self.packets += 1
        self.subacks.append(SubAck(mid, [(reason.value, reason.getName()) for reason in reasons]))

    def _note_unsuback(self, _client: Any, _data: Any, mid: int, *_: object) -> None:
        self.packets += 1
        self.subacks.append(SubAck(mid))

    # Private parts of paho

    @property
    def incoming_bytes(self) -> int:
        """Size of the packet that is being read, as it says itself."""
        return int(self._in_packet["remaining_length"])

    def _create_socket_connection(self) -> socket.socket:
        return self._connected_socket

    def _send_pingreq(self) -> MQTTErrorCode:
        self.pings += 1
        return super()._send_pingreq()

    def _handle_pingresp(self) -> MQTTErrorCode:
        self.pongs += 1
        return super()._handle_pingresp()

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet
        try:
            publish = decode_publish(packet["command"], packet["packet"], self._version == "5")
        except MalformedPublish as error:
            self._trouble = str(error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if publish.qos > 1:
            self._trouble = "a message at QoS 2, though the subscription is at QoS 1"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.packets += 1
        self.arrived_bytes += len(publish.body)
        self.arrived.append(publish)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if cmd != "PUBACK" or len(packet) < 2:
            self._trouble = f"an unexpected {cmd}"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        mid = int.from_bytes(packet[:2], "big")
        # A PUBACK for a packet id that is not, or no longer, in flight is ignored.
        if self._out_messages.pop(mid, None) is not None:
            self.packets += 1
            if mid == self._unwritten and self.want_write():
                self.violation = "the broker confirmed a message before it was sent"
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            code = packet[2] if len(packet) > 2 else 0
            refusal = None
            if code >= 0x80:
                refusal = _REFUSALS.get(code, f"reason code 0x{code:02x}")
            self.pubacks.append(PubAck(mid, refusal, code == _NO_MATCHING_SUBSCRIBERS))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _easy_log(self, level: LogLevel, fmt: str, *args: Any) -> None:
        # Formats only errors: paho's own method formats every packet's properties first.
        if level == LogLevel.MQTT_LOG_ERR:
            self._trouble = (fmt % args)[:300]
