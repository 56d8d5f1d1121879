"""Every decoder of data from the network: functions of bytes, and the errors by which each may refuse.

Those of files are in :mod:`tests.fuzz.files`. If a checksum precedes a decoder, a second target behind it puts its
input into an otherwise valid frame: fuzzing does not find checksums.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any

import msgspec
from pika import frame as pika_frame

from reliamsg.config import MAX_HEADER_BYTES, MAX_HEADER_VALUE_BYTES, MAX_NAME_BYTES
from reliamsg.consumer.intake import Rejected, Unsequenced, examine, examine_repair
from reliamsg.transport.amqp.codec import (
    FRAME_END,
    FRAME_HEAD,
    HEADER,
    MAX_RECEIVED_HEADERS,
    readable_headers,
)
from reliamsg.transport.amqp.frames import Bodies, FrameBuffer
from reliamsg.transport.amqp.pika_connection import Closed, InputListener, Opened, PikaConnection, Violated
from reliamsg.transport.base import Delivery
from reliamsg.transport.mqtt.codec import MalformedPublish, decode_publish
from reliamsg.wire import control, data
from reliamsg.wire.address import parse_address, topic_address
from reliamsg.wire.control import Status, encode_state, encode_status, open_control
from reliamsg.wire.data import CONTENT_TYPE, Frame, FrameError, Origin, Records, encode, open_frame, split
from reliamsg.wire.limits import MAX_FRAME_BYTES, MAX_PARTITION
from reliamsg.wire.plain import _checksum, decode_plain, encode_plain
from tests.fuzz import seeds
from tests.fuzz.target import Target

__all__ = ["NETWORK"]

TOPICS = {"orders~3": ("orders", 3), "t": ("t", 0)}
LIMIT = 1 << 20


# -- batches --------------------------------------------------------------------------------------------------


def open_batch(raw: bytes) -> None:
    """A data frame, and everything that is done with a valid one."""
    check_batch(open_frame(raw, LIMIT))
    found = examine_repair(raw, TOPICS, LIMIT)
    assert isinstance(found, (Frame, Rejected))


def check_batch(frame: Frame) -> None:
    """Invariants of every opened frame: it may be unreadable, and otherwise can be sent again in any form."""
    envelope = frame.envelope
    assert 1 <= envelope.seq <= envelope.last
    assert len(envelope.producer.encode()) <= MAX_NAME_BYTES
    records = frame.records()
    assert len(records.bodies) == envelope.count
    again = [open_frame(part) for part in split(frame, 300)]
    assert [body for part in again for body in part.records().bodies] == records.bodies
    assert all(part.envelope.moved == envelope.moved for part in again)
    for message in encode_plain(frame):
        found = decode_plain(message.body, message.headers)
        assert found.envelope.moved == envelope.moved
        assert found.records().bodies == [message.body]


def open_envelope(packed: bytes) -> None:
    """An envelope whose length and checksum are right."""
    open_batch(sealed(packed))


def sealed(packed: bytes, body: bytes = b"") -> bytes:
    head = struct.pack(">4sHI", data.MAGIC, len(packed) & 0xFFFF, zlib.crc32(packed))
    return head + packed + body


def open_body(raw: bytes) -> None:
    """A batch's body in a matching envelope. The first byte is the number of messages and whether they are compressed,
    the next two the uncompressed size."""
    if len(raw) < 3:
        return
    count, body = raw[0] & 0x7F or 1, raw[3:]
    flags = data.FLAG_ZSTD if raw[0] & 0x80 else 0
    size = int.from_bytes(raw[1:3], "big") if flags else len(body)
    envelope = data.Envelope(
        data.BODY_VERSION, flags, "p", "t", 0, 7, 9, 1, count, None, 5, 6, len(body), zlib.crc32(body), size
    )
    open_batch(sealed(msgspec.msgpack.encode(envelope), body))


# -- the plain format -------------------------------------------------------------------------------------------


def parse_lines(raw: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and body of a message, from the form that :func:`tests.fuzz.seeds.as_lines` gives them."""
    head, _, body = raw.partition(b"\n\n")
    lines = head.decode(errors="replace").split("\n")
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}, body


def open_plain(raw: bytes) -> None:
    """A message in the plain format; if its checksum is wrong, also with the right one."""
    headers, body = parse_lines(raw)
    try:
        frame = decode_plain(body, headers, LIMIT)
    except FrameError as error:
        if error.reason != "corrupt":
            raise
        own = {name: value for name, value in headers.items() if not name.startswith("rm-")}
        frame = decode_plain(body, headers | {"rm-sum": _checksum(headers, own, body)}, LIMIT)
    check_batch(frame)


# -- a consumer's input from a broker -------------------------------------------------------------------------


def deliver(raw: bytes) -> None:
    """A delivery as a transport passes it on: headers and body, at a topic's address."""
    headers, body = parse_lines(raw)
    content_type = CONTENT_TYPE if body[:3] == data.MAGIC[:3] else None
    for ring in (None, seeds.RING):
        found = examine(Delivery(0, "orders~3", body, content_type, headers), TOPICS, LIMIT, ring)
        assert isinstance(found, (Frame, Rejected, Unsequenced))
        if ring is not None and isinstance(found, Frame):
            assert says(found) in genuine(), "something unsigned was believed"


def says(frame: Frame) -> object:
    """The content of a frame, whatever its bytes and its signature."""
    envelope, records = frame.envelope, frame.records()
    return envelope.stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.prev, records


@cache
def _genuine() -> list[object]:
    batches = [open_frame(frame) for frame in seeds.frames(seeds.RING)]
    single = [decode_plain(body, headers) for headers, body in map(parse_lines, seeds.plain(seeds.RING))]
    return [says(frame) for frame in (*batches, *single)]


def genuine() -> list[object]:
    """The content that was signed: nothing else may be believed."""
    return _genuine()


def delivered_seeds() -> list[bytes]:
    batches = [seeds.as_lines({"a": "b"}, frame) for frame in (*seeds.frames(), *seeds.frames(seeds.RING))]
    return [*batches, *seeds.plain(), *seeds.plain(seeds.RING)]


# -- control frames -------------------------------------------------------------------------------------------


def open_control_frame(raw: bytes) -> None:
    """A control frame at each address of the genuine ones, with and without keys."""
    for address in addresses():
        try:
            found = open_control(raw, address)
        except FrameError:
            pass
        else:
            check_control(found)
        try:
            signed: object = open_control(raw, address, seeds.RING)
        except FrameError:
            continue
        assert signed in (*seeds.statuses(), *seeds.states()), "something unsigned was believed"


def open_control_body(raw: bytes) -> None:
    """The body of a control frame, behind a byte for its kind, at the address that it names."""
    if not raw:
        return
    kind, body = raw[0], raw[1:]
    frame = struct.pack(">4sBHI", control.MAGIC, kind, len(body) & 0xFFFF, zlib.crc32(body, kind)) + body
    try:
        fields = msgspec.msgpack.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        fields = None
    named = [field for field in fields if isinstance(field, str)] if isinstance(fields, list) else []
    for address in [*named, "orders"]:
        try:
            found = open_control(frame, address)
        except FrameError:
            continue
        check_control(found)


def check_control(found: control.Status | control.State) -> None:
    """Announcements can be forwarded: encoded again, they are the same."""
    frames = encode_status(found) if isinstance(found, Status) else encode_state(found)
    assert [open_control(frame, found.to) for frame in frames] == [found]


@cache
def addresses() -> list[str]:
    return sorted({each.to for each in seeds.statuses()} | {each.to for each in seeds.states()})


def read_address(raw: bytes) -> None:
    """The address at which a frame arrived."""
    address = raw.decode(errors="surrogateescape")
    found = parse_address(address)
    if found is not None:
        assert 0 <= found[1] <= MAX_PARTITION
        assert topic_address(*found) == address


# -- AMQP and MQTT --------------------------------------------------------------------------------------------


class Listener(InputListener):
    """Checks the confirms that a connection reports."""

    def on_confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        assert 0 <= tag < 2**64


class Connection(PikaConnection):
    """The connection's decoders, without a connection."""

    def __init__(self) -> None:
        self.dropped = 0
        self._listener = Listener()
        self._on_event = self._count
        self._skip: dict[int, int] = {}
        self._channels: Any = range(0x10000)
        self._input = FrameBuffer()
        self._input.end_handshake(131_072)
        self._bodies = Bodies()
        self._broken = False
        self.bytes_received = 0
        self.frames: list[Any] = []

    def _count(self, event: Opened | Violated | Closed) -> None:
        self.dropped += isinstance(event, Violated)

    def _process_frame(self, frame_value: Any) -> None:
        self.frames.append(frame_value)


def read_amqp_header(raw: bytes) -> None:
    """The properties of a message: whatever they contain, the connection survives, and headers are within limits."""
    payload = struct.pack(">HHQ", 60, 0, 5) + raw
    whole = FRAME_HEAD.pack(HEADER, 1, len(payload)) + payload + FRAME_END
    connection = Connection()
    connection._on_data_available(whole)
    assert connection.dropped == 0
    (frame,) = connection.frames
    assert frame.body_size == 5
    headers, _ = readable_headers(frame.properties.headers)
    assert len(headers) <= MAX_RECEIVED_HEADERS
    for name, value in headers.items():
        assert len(name.encode()) <= MAX_HEADER_BYTES
        assert len(value.encode()) <= MAX_HEADER_VALUE_BYTES


def read_amqp_stream(raw: bytes) -> None:
    """Whatever a broker sends: frames, or the end of the connection, never an error in the reading thread."""
    connection = Connection()
    for start in range(0, len(raw), 50):
        connection._on_data_available(raw[start : start + 50])
        if connection.dropped:
            return
    for frame in connection.frames:
        if isinstance(frame, pika_frame.Header):
            assert frame.body_size <= MAX_FRAME_BYTES


def read_mqtt_publish(raw: bytes) -> None:
    """A PUBLISH packet, behind a byte for the version and its first one."""
    if len(raw) < 2:
        return
    found = decode_publish(raw[1], raw[2:], raw[0] == 5)
    assert found.qos in (0, 1, 2)
    assert bool(found.mid) == bool(found.qos)
    assert len(found.body) <= len(raw)
    for name, value in found.headers.items():
        assert len(name.encode()) <= MAX_HEADER_BYTES
        assert len(value.encode()) <= MAX_HEADER_VALUE_BYTES
    examine(Delivery(0, found.topic, found.body, found.content_type, found.headers), TOPICS, LIMIT)


def _frames() -> list[bytes]:
    return [
        *seeds.frames(),
        *seeds.frames(seeds.RING),
        encode(Origin(seeds.STREAM, 1, 1), 1, (0, 0), Records([b""])),
    ]


def _control_frames() -> list[bytes]:
    return [*seeds.control_frames(), *seeds.control_frames(seeds.RING)]


NETWORK = (
    Target("batch", open_batch, (FrameError,), _frames),
    Target("batch-envelope", open_envelope, (FrameError,), seeds.envelopes),
    Target("batch-body", open_body, (FrameError,), seeds.bodies),
    Target("plain", open_plain, (FrameError,), seeds.plain),
    Target("delivery", deliver, (), delivered_seeds),
    Target("control", open_control_frame, (), _control_frames),
    Target("control-body", open_control_body, (), seeds.control_bodies),
    Target("address", read_address, (), lambda: [b"orders", b"a/b~17", b"t~0", "ü~65535".encode()]),
    Target("amqp-header", read_amqp_header, (), seeds.amqp_headers),
    Target("amqp-stream", read_amqp_stream, (), seeds.amqp_streams),
    Target("mqtt-publish", read_mqtt_publish, (MalformedPublish,), seeds.mqtt_packets),
)
