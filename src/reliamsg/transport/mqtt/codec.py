"""Encodes and decodes MQTT PUBLISH packets, where the client library is too slow or too trusting.

Anyone may have published what arrives. A message whose headers can't be read must be passed on as damaged and
not break the connection: the broker would deliver it again to the next one. And its cost must be proportional to its
size, however many headers it has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from reliamsg.config import MAX_HEADER_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS

__all__ = ["MalformedPublish", "Publish", "decode_publish", "encode_properties", "forbidden"]

_MOST_PROPERTIES = MAX_HEADERS + 32
"""The application's headers and our own."""

_CONTENT_TYPE, _USER_PROPERTY, _SUBSCRIPTION_ID = 0x03, 0x26, 0x0B
_FIXED_SIZES = {0x01: 1, 0x02: 4, 0x23: 2}
"""Payload format indicator, message expiry interval, topic alias."""
_STRINGS = frozenset((0x03, 0x08, 0x09))
"""Content type, response topic, correlation data: two bytes of length, then that many bytes."""

_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_uint16 = struct.Struct("!H")


class MalformedPublish(ValueError):
    """A packet whose topic and packet id can't be told apart: the connection can't be used any more."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A PUBLISH that arrived."""

    topic: str
    mid: int
    """Packet identifier; 0 at QoS 0."""
    qos: int
    dup: bool
    retain: bool
    body: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    damaged: str | None = None


def decode_publish(command: int, packet: bytes | bytearray, v5: bool) -> Publish:
    """Decode what follows a PUBLISH packet's fixed header, whose first byte is `command`."""
    qos = command >> 1 & 3
    try:
        (size,) = _uint16.unpack_from(packet, 0)
        at = 2 + size
        if at > len(packet):
            raise MalformedPublish("PUBLISH shorter than its topic")
        name = bytes(packet[2:at])
        mid = 0
        if qos:
            (mid,) = _uint16.unpack_from(packet, at)
            at += 2
    except struct.error:
        raise MalformedPublish("PUBLISH without topic or packet id") from None
    if qos == 3 or (qos and not mid):
        raise MalformedPublish("PUBLISH with an impossible QoS or packet id")
    damaged: str | None = None
    content_type: str | None = None
    headers: dict[str, str] = {}
    try:
        topic = name.decode()
    except UnicodeDecodeError:
        topic, damaged = name.decode(errors="replace"), "the topic is not UTF-8"
    if v5:
        try:
            length, at = _varint(packet, at, len(packet))
            if at + length > len(packet):
                raise ValueError("properties longer than the packet")
            start, at = at, at + length
            content_type, headers = _properties(packet, start, at)
        except (ValueError, struct.error) as error:
            damaged = damaged or f"unreadable MQTT properties: {_reason(error)}"
    return Publish(
        topic,
        mid,
        qos,
        bool(command & 8),
        bool(command & 1),
        bytes(packet[at:]),
        content_type,
        headers,
        damaged,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    return "cut short" if isinstance(error, struct.error) else str(error)


def _varint(packet: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            break
        byte = packet[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a length without an end")


def _properties(packet: bytes | bytearray, at: int, end: int) -> tuple[str | None, dict[str, str]]:
    content_type: str | None = None
    headers: dict[str, str] = {}
    seen = 0
    while at < end:
        kind = packet[at]
        at += 1
        if kind == _USER_PROPERTY:
            seen += 1
            if seen > _MOST_PROPERTIES:
                raise ValueError(f"more than {_MOST_PROPERTIES} headers")
            name, at = _text(packet, at, end)
            value, at = _text(packet, at, end, MAX_HEADER_VALUE_BYTES)
            if name in headers and name.startswith("rm-"):
                raise ValueError("one of our headers comes twice")
            headers[name] = value
        elif kind == _CONTENT_TYPE:
            content_type, at = _text(packet, at, end)
        elif kind in _STRINGS:
            (size,) = _uint16.unpack_from(packet, at)
            at += 2 + size
        elif kind in _FIXED_SIZES:
            at += _FIXED_SIZES[kind]
        elif kind == _SUBSCRIPTION_ID:
            _, at = _varint(packet, at, end)
        else:
            raise ValueError(f"unknown property {kind}")
    if at != end:
        raise ValueError("a property reaches past the end")
    return content_type, headers


def _text(packet: bytes | bytearray, at: int, end: int, limit: int = MAX_HEADER_BYTES) -> tuple[str, int]:
    (size,) = _uint16.unpack_from(packet, at)
    at += 2
    if at + size > end:
        raise ValueError("a property reaches past the end")
    if size > limit:
        raise ValueError(f"a header of more than {limit} bytes")
    return packet[at : at + size].decode(), at + size


def forbidden(text: str) -> bool:
    """Whether `text` holds characters for which a broker may close the connection (MQTT-1.5.4): control
    characters, surrogates and non-characters."""
    return _FORBIDDEN.search(text) is not None


def encode_properties(content_type: str | None, headers: Mapping[str, str] | None) -> bytes:
    """The properties of a PUBLISH, with their length in front.

    Raises ValueError for what MQTT can't carry; the text contains the header's name, but not its value.
    """
    out = bytearray()
    if content_type is not None:
        out += b"\x03" + _string("the content type", content_type)
    for name, value in (headers or {}).items():
        out += (
            b"\x26" + _string(f"header name {name!a}", name) + _string(f"the value of header {name!a}", value)
        )
    length = bytearray()
    size = len(out)
    while True:
        size, byte = size >> 7, size & 0x7F
        length.append(byte | 0x80 if size else byte)
        if not size:
            return bytes(length + out)


def _string(what: str, text: str) -> bytes:
    if forbidden(text):
        raise ValueError(f"{what} holds characters that MQTT brokers refuse")
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(f"{what} is longer than 65535 bytes")
    return _uint16.pack(len(data)) + data
