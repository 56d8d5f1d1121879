"""The data frame: one batch of one stream, encoded once, then stored and sent unchanged.

::

    offset  bytes
    0       4      b"RMB1": the format of the envelope, independent of the version of the body
    4       2      length of the envelope, big-endian
    6       4      CRC-32 of the envelope
    10      ...    envelope: msgpack array, see Envelope
    ...     ...    body: msgpack, in the version and with the compression that the envelope names

The envelope can be read and verified without the body. It identifies the messages even if the body is damaged or of an
unknown version.

A signed frame (:mod:`reliamsg.keys`) has the key id and the signature in its envelope. The signature covers the topic's
address, the key id, all other fields of the envelope, and the body's bytes. A repair is the same frame at another
address, so its signature is the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from reliamsg.config import (
    MAX_HEADER_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
)
from reliamsg.errors import ConfigError
from reliamsg.keys import MAX_KEY_ID_BYTES, KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.wire.address import is_group, topic_address
from reliamsg.wire.application import check_header_column, check_key_column, signs_in
from reliamsg.wire.limits import (
    MAX_BATCH_MESSAGES,
    MAX_ENVELOPE_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEQ,
    MAX_STORED_HEADERS,
    Count,
    Epoch,
    Incarnation,
    Partition,
    Seq,
)
from reliamsg.wire.names import is_name

__all__ = [
    "CONTENT_TYPE",
    "Envelope",
    "Frame",
    "FrameError",
    "Origin",
    "Records",
    "encode",
    "frames_of",
    "open_frame",
    "piece",
    "split",
    "verify",
]

CONTENT_TYPE = "application/vnd.reliamsg.batch"

MAGIC = b"RMB1"
BODY_VERSION = 1
FLAG_ZSTD = 1
FLAG_MOVED = 2
"""The messages were in another epoch before, in which a copy of their outbox may have published them."""
KNOWN_FLAGS = FLAG_ZSTD | FLAG_MOVED
_HEAD = struct.Struct(">4sHI")


class FrameError(ValueError):
    """An unusable frame. `reason` is one of a few fixed words, for counters and journals."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """The description of a batch, readable without decoding it. New fields are only added at the end."""

    version: int
    flags: int
    producer: str
    topic: str
    partition: Partition
    epoch: Epoch
    incarnation: Incarnation
    seq: Seq
    """Sequence number of the first message."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH_MESSAGES)]
    prev: tuple[Seq, Incarnation, Seq] | None
    """(epoch, incarnation, last sequence number) of the stream's previous non-empty epoch."""
    ts_first: Count
    """Time of publishing of the oldest message, by the producer's clock, in µs since 1970."""
    ts_last: Count
    """Time of publishing of the newest message."""
    body_size: Count
    """Size of the body, as it follows the envelope."""
    body_crc: int
    """CRC-32 of the body, as it follows the envelope."""
    raw_size: Count
    """Size of the body before compression; `body_size` if it is not compressed."""
    key_id: Annotated[str, msgspec.Meta(max_length=MAX_KEY_ID_BYTES)] | None = None
    """The id of the signing key; None for an unsigned frame."""
    signature: bytes | None = None

    @property
    def stream(self) -> Stream:
        return Stream(self.producer, self.topic, self.partition)

    @property
    def last(self) -> int:
        """Sequence number of the last message."""
        return self.seq + self.count - 1

    @property
    def previous(self) -> Prev | None:
        return None if self.prev is None else Prev(*self.prev)

    @property
    def moved(self) -> bool:
        """Whether the messages may have been published before, in another epoch."""
        return bool(self.flags & FLAG_MOVED)


class Origin(msgspec.Struct, frozen=True):
    """The stream and epoch of a batch."""

    stream: Stream
    epoch: int
    incarnation: int
    prev: Prev | None = None
    """The stream's previous non-empty epoch."""
    moved: bool = False
    """Whether the messages may have been published before, in another epoch."""


class Records(msgspec.Struct, array_like=True, frozen=True):
    """The messages of a batch, by column. `keys` and `headers` are None if no message has any."""

    bodies: list[bytes]
    keys: list[str | None] | None = None
    headers: list[dict[str, str] | None] | None = None


class _Columns(msgspec.Struct, array_like=True, frozen=True):
    """The columns of :class:`Records`, not decoded."""

    bodies: msgspec.Raw
    keys: msgspec.Raw = msgspec.Raw(b"\xc0")
    headers: msgspec.Raw = msgspec.Raw(b"\xc0")


# msgspec checks the lengths of arrays, maps and byte strings before it builds them. It builds a text first, which takes
# at most four times its encoded size, and checks its length in characters; bytes are checked later.
_HeaderName = Annotated[str, msgspec.Meta(max_length=MAX_HEADER_BYTES)]
_HeaderValue = Annotated[str, msgspec.Meta(max_length=MAX_HEADER_VALUE_BYTES)]
_Headers = Annotated[dict[_HeaderName, _HeaderValue], msgspec.Meta(max_length=MAX_HEADERS)]
_Key = Annotated[str, msgspec.Meta(max_length=MAX_KEY_BYTES)]
_Body = Annotated[bytes, msgspec.Meta(max_length=MAX_MESSAGE_BYTES)]
_StoredHeaders = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_STORED_HEADERS)]

MAX_RECORD_BYTES = MAX_MESSAGE_BYTES + MAX_KEY_BYTES + MAX_HEADERS_BYTES + MAX_HEADERS * 6 + 64
"""The maximum size of one message with key and headers in a body."""

_SIGNED_FIELDS = Envelope.__struct_fields__.index("key_id")
"""The fields before the key id and the signature. Fields added behind them are not signed and must not be relied on."""
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode
_decode_bodies = msgspec.msgpack.Decoder(list[_Body]).decode
_decode_keys = msgspec.msgpack.Decoder(list[_Key | None]).decode
_decode_headers = msgspec.msgpack.Decoder(list[_Headers | None]).decode
_decode_short_headers = msgspec.msgpack.Decoder(list[dict[str, str] | None]).decode
_decode_stored_bodies = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_stored_headers = msgspec.msgpack.Decoder(list[_StoredHeaders | None]).decode
_NIL = b"\xc0"
_THREE_COLUMNS = b"\x93"
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Every zstd decoder must support windows of this size (RFC 8878, section 3.1.1.1.2)."""


class Frame(msgspec.Struct, frozen=True):
    """A verified envelope, and the bytes of its frame."""

    envelope: Envelope
    data: bytes
    start: int
    """Where the body begins."""

    def intact(self) -> bool:
        """Whether the body's checksum matches."""
        body = memoryview(self.data)[self.start :]
        return len(body) == self.envelope.body_size and zlib.crc32(body) == self.envelope.body_crc

    def records(self, *, trusted: bool = False) -> Records:
        """Decode the messages. Raises :class:`FrameError` (``undecodable``).

        Sizes are compared with `count` and the limits for one message before memory is allocated. Messages from a
        network must also obey the rules of ``publish``. `trusted` means that the frame was created locally or delivered
        before, possibly with other limits: then only memory is bounded.
        """
        envelope = self.envelope
        count = envelope.count
        if envelope.version != BODY_VERSION or envelope.flags & ~KNOWN_FLAGS:
            raise FrameError("undecodable", f"body version {envelope.version}, flags {envelope.flags}")
        if not self.intact():
            raise FrameError("undecodable", "the body's checksum does not match")
        body: bytes | memoryview = memoryview(self.data)[self.start :]
        compressed = envelope.flags & FLAG_ZSTD
        if not trusted and max(len(body), envelope.raw_size) > envelope.count * MAX_RECORD_BYTES:
            raise FrameError("undecodable", f"larger than the limit for {envelope.count} messages")
        if compressed:
            body = _decompress(bytes(body), envelope.raw_size)
        # No message is larger than the whole body.
        decode_bodies = _decode_stored_bodies if trusted or len(body) <= MAX_MESSAGE_BYTES else _decode_bodies
        try:
            alone = _bodies_alone(body, count, decode_bodies)
            if alone is not None:
                return Records(alone)
            bodies, keys, headers = _columns(body, count)
            return Records(
                decode_bodies(bodies),
                None if keys is None else (_decode_keys if trusted else _published_keys)(keys),
                None
                if headers is None
                else (_decode_stored_headers if trusted else _published_headers)(headers),
            )
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
            raise FrameError("undecodable", str(error)) from None


def _published_keys(column: msgspec.Raw) -> list[str | None]:
    keys = _decode_keys(column)
    check_key_column(keys, signs_in(column))
    return keys


def _published_headers(column: msgspec.Raw) -> list[dict[str, str] | None]:
    signs = signs_in(column)
    headers = (_decode_headers if signs.long else _decode_short_headers)(column)
    check_header_column(headers, signs)
    return headers


def _bodies_alone(
    body: bytes | memoryview, count: int, decode: Callable[[memoryview], list[bytes]]
) -> list[bytes] | None:
    """The bodies of a batch without keys and headers, as most are, without splitting the columns first. None for other
    batches, or if this can't be decided."""
    if len(body) < 4:
        return None
    column = memoryview(body)[1:-2]
    if body[:1] != _THREE_COLUMNS or bytes(body[-2:]) != _NIL + _NIL or _items(column) != count:
        return None
    try:
        return decode(column)  # raises unless the column is exactly one array
    except msgspec.MsgspecError:
        return None


def _columns(
    body: bytes | memoryview, count: int
) -> tuple[msgspec.Raw, msgspec.Raw | None, msgspec.Raw | None]:
    """The columns of a body, each of which declares `count` items."""
    found = _decode_columns(body)
    bodies, keys, headers = found.bodies, found.keys, found.headers
    own_keys = None if len(keys) == 1 and bytes(keys) == _NIL else keys
    own_headers = None if len(headers) == 1 and bytes(headers) == _NIL else headers
    if any(column is not None and _items(column) != count for column in (bodies, own_keys, own_headers)):
        raise FrameError("undecodable", "the body and the envelope differ in the number of messages")
    return bodies, own_keys, own_headers


def _items(column: msgspec.Raw | memoryview) -> int:
    """The number of items that a msgpack array declares; -1 if it is not an array."""
    head = memoryview(column)[:5]
    if head[0] & 0xF0 == 0x90:
        return head[0] & 0x0F
    if head[0] == 0xDC:
        return int.from_bytes(head[1:3], "big")
    return int.from_bytes(head[1:5], "big") if head[0] == 0xDD else -1


def encode(
    origin: Origin,
    seq: int,
    timestamps: tuple[int, int],
    records: Records,
    *,
    compress: bool = False,
    ring: KeyRing | None = None,
) -> bytes:
    """Encode a batch, signed if a ring is given. `seq` is the number of its first message, `timestamps` are the times
    of publishing of its first and last message, in µs since 1970."""
    stream, prev = origin.stream, origin.prev
    raw = _encode_msgpack(records)
    body, flags = raw, FLAG_MOVED if origin.moved else 0
    if compress:
        packed = _compress(raw)
        if len(packed) < len(raw):
            body, flags = packed, flags | FLAG_ZSTD
    envelope = Envelope(
        BODY_VERSION, flags, stream.producer, stream.topic, stream.partition, origin.epoch, origin.incarnation, seq,
        len(records.bodies), None if prev is None else (prev.epoch, prev.incarnation, prev.last),
        timestamps[0], timestamps[1], len(body), zlib.crc32(body), len(raw),
    )  # fmt: skip
    return _seal(envelope, body, ring)


def _seal(envelope: Envelope, body: bytes | memoryview, ring: KeyRing | None) -> bytes:
    fields: tuple[object, ...] = msgspec.structs.astuple(envelope)[:_SIGNED_FIELDS]
    if ring is not None:
        fields += (ring.sign_with, ring.sign(_canonical(envelope, ring.sign_with or "", body)))
    packed_envelope = _encode_msgpack(fields)
    return b"".join(
        (_HEAD.pack(MAGIC, len(packed_envelope), zlib.crc32(packed_envelope)), packed_envelope, body)
    )


def _canonical(envelope: Envelope, key_id: str, body: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """The signed parts. The fields are encoded again, so that the signature does not depend on how numbers were
    encoded."""
    fields = msgspec.structs.astuple(envelope)[:_SIGNED_FIELDS]
    address = topic_address(envelope.topic, envelope.partition)
    return b"reliamsg data", MAGIC, address.encode(), key_id.encode(), _encode_msgpack(fields), body


def frames_of(data: bytes, limit: int, ring: KeyRing | None = None) -> list[bytes]:
    """A stored frame, prepared for a site: split into frames of at most `limit` bytes (see :func:`split`), and signed
    if a ring is given, even if it was stored unsigned. Raises :class:`FrameError` for a damaged frame."""
    frame = open_frame(data)
    if ring is not None and frame.envelope.key_id is None:
        frame = open_frame(_seal(frame.envelope, memoryview(data)[frame.start :], ring))
    return split(frame, limit, ring)


def verify(frame: Frame, address: str, ring: KeyRing) -> None:
    """Raise :class:`FrameError` unless the frame is signed with a key of the ring, for the address at which it arrived.

    This is its topic's address or, for a repair, a group's; the caller has to check that it is the right group.
    Reasons: ``unsigned``, ``forged``, ``misaddressed``.
    """
    envelope = frame.envelope
    if envelope.key_id is None or envelope.signature is None:
        raise FrameError("unsigned")
    if not ring.verifies(
        envelope.key_id,
        envelope.signature,
        _canonical(envelope, envelope.key_id, memoryview(frame.data)[frame.start :]),
    ):
        raise FrameError("forged", f"not signed with a trusted key {envelope.key_id!r}")
    if address != topic_address(envelope.topic, envelope.partition) and not is_group(address):
        raise FrameError("misaddressed", f"arrived at {address!r}")


def open_frame(data: bytes, limit: int = MAX_FRAME_BYTES) -> Frame:
    """Verify the envelope of a frame, without the body.

    Raises :class:`FrameError` with reason ``oversized``, ``malformed``, ``corrupt`` (a checksum) or
    ``unknown-version``.
    """
    if len(data) > limit:
        raise FrameError("oversized", f"{len(data)} bytes, limit {limit}")
    if len(data) < _HEAD.size:
        raise FrameError("malformed", "shorter than the head of a frame")
    magic, size, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise FrameError("unknown-version" if magic[:3] == MAGIC[:3] else "malformed", "not a data frame")
    if size > MAX_ENVELOPE_BYTES or _HEAD.size + size > len(data):
        raise FrameError("malformed", "truncated, or the envelope is too large")
    packed = memoryview(data)[_HEAD.size : _HEAD.size + size]
    if zlib.crc32(packed) != crc:
        raise FrameError("corrupt", "the envelope's checksum does not match")
    try:
        envelope = _decode_envelope(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError("malformed", str(error)) from None
    if not (is_name(envelope.producer) and is_name(envelope.topic)):
        raise FrameError("malformed", "not the names of a producer and a topic")
    if (
        envelope.seq + envelope.count - 1 > MAX_SEQ
        or envelope.body_size > limit
        # The limit also applies before compression, but a single message may have the maximum size.
        or envelope.raw_size > max(limit, MAX_RECORD_BYTES)
        or (envelope.prev is not None and envelope.prev[0] >= envelope.epoch)
    ):
        raise FrameError("malformed", "a number is out of range")
    return Frame(envelope, data, _HEAD.size + size)


def split(frame: Frame, limit: int, ring: KeyRing | None = None) -> list[bytes]:
    """Split a frame between messages into frames of at most `limit` bytes, also before compression, signed if a ring is
    given.

    A single message over the limit becomes a frame over the limit, which the site will refuse.
    """
    envelope = frame.envelope
    # A site's limit also applies before compression, see :func:`open_frame`.
    if (len(frame.data) <= limit and envelope.raw_size <= limit) or envelope.count == 1:
        return [frame.data]
    records = frame.records(trusted=True)
    half = envelope.seq + envelope.count // 2
    parts = []
    for first, last in ((envelope.seq, half - 1), (half, envelope.last)):
        parts += split(open_frame(piece(envelope, records, first, last, ring)), limit, ring)
    return parts


def piece(envelope: Envelope, records: Records, first: int, last: int, ring: KeyRing | None = None) -> bytes:
    """Encode the messages `first` to `last` of a frame as a frame, signed if a ring is given. `records` are all
    messages of the frame."""
    start, stop = first - envelope.seq, last - envelope.seq + 1
    return encode(
        Origin(envelope.stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.moved),
        first,
        (envelope.ts_first, envelope.ts_last),
        Records(
            records.bodies[start:stop],
            None if records.keys is None else records.keys[start:stop],
            None if records.headers is None else records.headers[start:stop],
        ),
        compress=bool(envelope.flags & FLAG_ZSTD),
        ring=ring,
    )


def make_records(
    bodies: Sequence[bytes],
    keys: Sequence[str | None],
    headers: Sequence[Mapping[str, str] | None],
) -> Records:
    """Columns for :func:`encode`; a column without values is None."""
    return Records(
        list(bodies),
        list(keys) if any(key is not None for key in keys) else None,
        [dict(h) if h else None for h in headers] if any(headers) else None,
    )


def _compress(raw: bytes) -> bytes:
    import zstandard  # an optional dependency, for producers that compress

    return zstandard.ZstdCompressor(level=3).compress(raw)


def _decompress(packed: bytes, raw_size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise FrameError("undecodable", "compressed with zstd: install reliamsg[zstd]") from None
    try:
        # zstandard allocates the size that the compressed data declares, regardless of max_output_size.
        declared = zstandard.get_frame_parameters(packed).content_size
        if declared not in (raw_size, zstandard.CONTENTSIZE_UNKNOWN):
            raise FrameError("undecodable", "the size differs from the envelope")
        window = max(_ZSTD_WINDOW_BYTES, 1 << raw_size.bit_length())
        raw = zstandard.ZstdDecompressor(max_window_size=window).decompress(packed, max_output_size=raw_size)
    except zstandard.ZstdError as error:
        raise FrameError("undecodable", str(error)) from None
    if len(raw) != raw_size:
        raise FrameError("undecodable", "the size differs from the envelope")
    return raw
