"""AMQP 0-9-1 frames that are encoded here instead of in the client library.

Publishing is the hot path: one broker message is a method frame, a header frame and body frames, and a
general encoder spends most of its time on what never changes. Received headers are not trusted: they are
reduced to strings within limits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from reliamsg.config import MAX_HEADER_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS
from reliamsg.terminal import printable
from reliamsg.transport.base import Outgoing
from reliamsg.wire.address import topic_address

__all__ = ["PublishEncoder", "ack_frame", "control_frames", "readable_headers", "text"]

FRAME_HEAD = struct.Struct(">BHI")
FRAME_END = b"\xce"
FRAME_OVERHEAD = FRAME_HEAD.size + 1
METHOD, HEADER, BODY = 1, 2, 3
CONTENT_HEAD = struct.Struct(">HHQ")
CONFIRM = struct.Struct(">IQB")
BASIC = 60
BASIC_ACK = 60 << 16 | 80
BASIC_NACK = 60 << 16 | 120

_CONTENT_TYPE = 1 << 15
_HEADERS = 1 << 13
_DELIVERY_MODE = 1 << 12
_MESSAGE_ID = 1 << 7
_TIMESTAMP = 1 << 6
_APP_ID = 1 << 3
_PERSISTENT = b"\x02"
_TRANSIENT = b"\x01"
_MANDATORY = b"\x01"

MAX_RECEIVED_HEADERS = MAX_HEADERS + 32
"""The application's headers and those that identify a message, with a margin."""

_MAX_CACHED = 10_000
_MAX_ENTRIES = 100


class PublishEncoder:
    """Encodes ``basic.publish`` for one channel of one connection."""

    def __init__(self, channel: int, frame_max: int, exchange: str, app_id: str) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._exchange = _short(exchange)
        self._app_id = _short(app_id)
        self._methods: dict[tuple[str, int], bytes] = {}
        self._entries: dict[str, tuple[str, bytes]] = {}
        """By a header's name, its latest value and the encoding of both: most values stay the same."""

    def encode(self, message: Outgoing, pieces: list[bytes]) -> int:
        """Append the frames of `message` to `pieces` and return their size in bytes.

        Raises ValueError for what AMQP can't carry, a name over 255 bytes or headers larger than a frame, and
        appends nothing then.
        """
        body = message.body
        head = _frame(HEADER, self._channel, self._properties(message))
        if len(head) > self._frame_max:
            raise ValueError(f"headers of {len(head)} bytes, the broker's frames hold {self._frame_max}")
        method = self._method(message.topic, message.partition)
        pieces += (method, head)
        room = self._frame_max - FRAME_OVERHEAD
        size = len(body)
        for start in range(0, size, room):
            part = body if size <= room else body[start : start + room]
            pieces += (FRAME_HEAD.pack(BODY, self._channel, len(part)), part, FRAME_END)
        return len(method) + len(head) + size

    def _method(self, topic: str, partition: int) -> bytes:
        frame = self._methods.get((topic, partition))
        if frame is None:
            key = _short(topic_address(topic, partition))
            payload = b"".join((b"\x00\x3c\x00\x28\x00\x00", self._exchange, key, _MANDATORY))
            frame = _frame(METHOD, self._channel, payload)
            if len(self._methods) >= _MAX_CACHED:
                self._methods.clear()
            self._methods[topic, partition] = frame
        return frame

    def _properties(self, message: Outgoing) -> bytes:
        flags = _DELIVERY_MODE | _MESSAGE_ID | _TIMESTAMP | _APP_ID
        pieces = []
        if message.content_type is not None:
            flags |= _CONTENT_TYPE
            pieces.append(_short(message.content_type))
        if message.headers:
            flags |= _HEADERS
            pieces.append(self._table(message.headers))
        pieces += (
            _PERSISTENT,
            _short(message.message_id),
            struct.pack(">Q", message.timestamp_us // 1_000_000),
            self._app_id,
        )
        head = CONTENT_HEAD.pack(BASIC, 0, len(message.body)) + struct.pack(">H", flags)
        return head + b"".join(pieces)

    def _table(self, headers: Mapping[str, str]) -> bytes:
        pieces: list[bytes] = []
        known = self._entries
        for name, value in headers.items():
            entry = known.get(name)
            if entry is None or entry[0] != value:
                data = value.encode()
                entry = value, b"%bS%b%b" % (_short(name), len(data).to_bytes(4, "big"), data)
                if len(known) >= _MAX_ENTRIES:
                    known.clear()
                known[name] = entry
            pieces.append(entry[1])
        packed = b"".join(pieces)
        return len(packed).to_bytes(4, "big") + packed


def control_frames(
    channel: int, frame_max: int, exchange: str, address: str, body: bytes, mandatory: bool = False
) -> list[bytes]:
    """The frames of a transient ``basic.publish``. If no queue is bound, it is returned if `mandatory`, and dropped
    silently otherwise."""
    bits = b"\x01" if mandatory else b"\x00"
    method = b"".join((b"\x00\x3c\x00\x28\x00\x00", _short(exchange), _short(address), bits))
    head = CONTENT_HEAD.pack(BASIC, 0, len(body)) + struct.pack(">H", _DELIVERY_MODE) + _TRANSIENT
    frames = [_frame(METHOD, channel, method) + _frame(HEADER, channel, head)]
    room = frame_max - FRAME_OVERHEAD
    frames += [_frame(BODY, channel, body[start : start + room]) for start in range(0, len(body), room)]
    return frames


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """A ``basic.ack`` of one delivery, or with `multiple` of it and all earlier ones."""
    return FRAME_HEAD.pack(METHOD, channel, CONFIRM.size) + CONFIRM.pack(BASIC_ACK, tag, multiple) + FRAME_END


def text(value: object) -> str:
    """A short string as the client library decoded it (bytes if it was not UTF-8), made safe to log and display."""
    return printable(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)


def readable_headers(raw: object) -> tuple[dict[str, str], str | None]:
    """The headers that are strings within the limits, and the reason if none can be read.

    Values of other types and over-long names or values are omitted. If there are too many headers, none are
    returned, since a part of them would look like another message.
    """
    if not raw:
        return {}, None
    if not isinstance(raw, dict):
        return {}, "headers are not a table"
    if len(raw) > MAX_RECEIVED_HEADERS:
        return {}, f"{len(raw)} headers, at most {MAX_RECEIVED_HEADERS} are read"
    found = {}
    for name, value in raw.items():
        key, content = _string(name, MAX_HEADER_BYTES), _string(value, MAX_HEADER_VALUE_BYTES)
        if key is not None and content is not None:
            found[key] = content
    return found, None


def _string(value: Any, limit: int) -> str | None:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if not isinstance(value, str) or len(value) > limit:
        return None
    return value if value.isascii() or len(value.encode()) <= limit else None


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def _short(value: str) -> bytes:
    data = value.encode()
    if len(data) > 255:
        raise ValueError(f"a name of {len(data)} bytes, AMQP's end at 255")
    return bytes((len(data),)) + data
