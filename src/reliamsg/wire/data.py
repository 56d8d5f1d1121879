"""The data frame: one batch of one stream, encoded once, stored and sent as it is.

::

    offset  bytes
    0       4      b"RMB1": the form of the envelope, which does not change with versions of the body
    4       2      length of the envelope, big-endian
    6       4      CRC-32 of the envelope
    10      ...    envelope: msgpack array, see Envelope
    ...     ...    body: msgpack, in the version that the envelope names, compressed if it says so

The envelope can be read and verified without touching the body; a body that is damaged or of an unknown
version still tells which messages it would have held.

A signed frame (:mod:`reliamsg.keys`) has the key's id and the signature in its envelope. Signed are the topic's
address, the key id, all other fields of the envelope, and the body's bytes. A repair is the same frame at another
address, so its signature is the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from reliamsg.config import check_name
from reliamsg.errors import ConfigError
from reliamsg.keys import MAX_KEY_ID_BYTES, KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.wire.address import is_group, topic_address
from reliamsg.wire.limits import (
    MAX_BATCH_MESSAGES,
    MAX_ENVELOPE_BYTES,
    MAX_FRAME_BYTES,
    MAX_INCARNATION,
    MAX_PARTITION,
    MAX_SEQ,
)

__all__ = [
    "CONTENT_TYPE",
    "Envelope",
    "Frame",
    "FrameError",
    "Records",
    "encode",
    "frames_of",
    "open_frame",
    "split",
    "verify",
]

CONTENT_TYPE = "application/vnd.reliamsg.batch"

MAGIC = b"RMB1"
BODY_VERSION = 1
FLAG_ZSTD = 1
_KNOWN_FLAGS = FLAG_ZSTD
_HEAD = struct.Struct(">4sHI")


class FrameError(ValueError):
    """A frame that can't be used. `reason` is one of a few fixed words, for counting and for journals."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a batch without decoding it. Fields are only ever added at the end."""

    version: int
    flags: int
    producer: str
    topic: str
    partition: int
    epoch: int
    incarnation: int
    seq: int
    """Sequence number of the first message."""
    count: int
    prev: tuple[int, int, int] | None
    """(epoch, incarnation, last sequence number) of the stream's previous non-empty epoch."""
    ts_first: int
    """When the oldest message of the batch was published, by the producer's clock, in µs since 1970."""
    ts_last: int
    """The same for the newest."""
    body_size: int
    """Bytes that follow the envelope."""
    body_crc: int
    """CRC-32 of those bytes."""
    raw_size: int
    """Size of the body before compression; `body_size` where it is not compressed."""
    key_id: str | None = None
    """The key that the frame is signed with; None for an unsigned one."""
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


class Records(msgspec.Struct, array_like=True, frozen=True):
    """The messages of a batch, by column. `keys` and `headers` are None when no message has any."""

    bodies: list[bytes]
    keys: list[str | None] | None = None
    headers: list[dict[str, str] | None] | None = None


_SIGNED_FIELDS = Envelope.__struct_fields__.index("key_id")
"""The fields before the key id and the signature. One that is added behind them is not signed, and must not matter."""
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_records = msgspec.msgpack.Decoder(Records).decode


class Frame(msgspec.Struct, frozen=True):
    """An envelope that was verified, and the bytes it came in."""

    envelope: Envelope
    data: bytes

    def intact(self) -> bool:
        """Whether the body is what the producer encoded."""
        body = self._body()
        return len(body) == self.envelope.body_size and zlib.crc32(body) == self.envelope.body_crc

    def records(self) -> Records:
        """The messages, or :class:`FrameError` (``undecodable``)."""
        envelope = self.envelope
        if envelope.version != BODY_VERSION or envelope.flags & ~_KNOWN_FLAGS:
            raise FrameError("undecodable", f"body version {envelope.version}, flags {envelope.flags}")
        if not self.intact():
            raise FrameError("undecodable", "the body's checksum does not match")
        body: bytes | memoryview = self._body()
        if envelope.flags & FLAG_ZSTD:
            body = _decompress(bytes(body), envelope.raw_size)
        try:
            records = _decode_records(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError("undecodable", str(error)) from None
        columns = (records.bodies, records.keys, records.headers)
        if any(column is not None and len(column) != envelope.count for column in columns):
            raise FrameError("undecodable", "the body does not hold as many messages as the envelope says")
        return records

    def _body(self) -> memoryview:
        _, size, _ = _HEAD.unpack_from(self.data)
        return memoryview(self.data)[_HEAD.size + size :]


def encode(
    stream: Stream,
    epoch: int,
    incarnation: int,
    seq: int,
    prev: Prev | None,
    timestamps: tuple[int, int],
    records: Records,
    *,
    compress: bool = False,
    ring: KeyRing | None = None,
) -> bytes:
    """Encode one batch. `seq` is the number of its first message, `timestamps` (first, last) in µs. With a `ring` it
    is signed."""
    raw = _encode_msgpack(records)
    body, flags = raw, 0
    if compress:
        packed = _compress(raw)
        if len(packed) < len(raw):
            body, flags = packed, FLAG_ZSTD
    envelope = Envelope(
        BODY_VERSION, flags, stream.producer, stream.topic, stream.partition, epoch, incarnation, seq,
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
    """What is signed. The fields are encoded again, so that no two ways to write the same number matter."""
    fields = msgspec.structs.astuple(envelope)[:_SIGNED_FIELDS]
    address = topic_address(envelope.topic, envelope.partition)
    return b"reliamsg data", MAGIC, address.encode(), key_id.encode(), _encode_msgpack(fields), body


def frames_of(data: bytes, limit: int, ring: KeyRing | None = None) -> list[bytes]:
    """A stored frame as it may go to a site: in frames of at most `limit` bytes (see :func:`split`), and signed if a
    ring is given, also where it was stored before there were keys. Raises :class:`FrameError` for no sound frame."""
    if ring is not None:
        frame = open_frame(data)
        if frame.envelope.key_id is None:
            data = _seal(frame.envelope, frame._body(), ring)
    return [data] if len(data) <= limit else split(open_frame(data), limit, ring)


def verify(frame: Frame, address: str, ring: KeyRing) -> None:
    """Raise :class:`FrameError` unless the frame is signed with a key of the ring, for the address that it came in at.

    That is its topic's, or, for a repair, a group's own; whether it is the right group is the caller's to know.
    Reasons: ``unsigned``, ``forged``, ``misaddressed``.
    """
    envelope = frame.envelope
    if envelope.key_id is None or envelope.signature is None:
        raise FrameError("unsigned")
    if not ring.verifies(
        envelope.key_id, envelope.signature, _canonical(envelope, envelope.key_id, frame._body())
    ):
        raise FrameError("forged", f"not signed with a trusted key {envelope.key_id!r}")
    if address != topic_address(envelope.topic, envelope.partition) and not is_group(address):
        raise FrameError("misaddressed", f"came in at {address!r}")


def open_frame(data: bytes, limit: int = MAX_FRAME_BYTES) -> Frame:
    """Verify the envelope of `data` and give it back, without looking at the body.

    Raises :class:`FrameError` with reason ``oversized``, ``malformed``, ``corrupt`` (a checksum) or
    ``unknown-version``.
    """
    if len(data) > limit:
        raise FrameError("oversized", f"{len(data)} bytes, limit {limit}")
    if len(data) < _HEAD.size:
        raise FrameError("malformed", "shorter than a frame's head")
    magic, size, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise FrameError("unknown-version" if magic[:3] == MAGIC[:3] else "malformed", "not a data frame")
    if size > MAX_ENVELOPE_BYTES or _HEAD.size + size > len(data):
        raise FrameError("malformed", "truncated, or an envelope over its limit")
    packed = memoryview(data)[_HEAD.size : _HEAD.size + size]
    if zlib.crc32(packed) != crc:
        raise FrameError("corrupt", "the envelope's checksum does not match")
    try:
        envelope = _decode_envelope(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError("malformed", str(error)) from None
    check_envelope(envelope, limit)
    return Frame(envelope, data)


def check_envelope(envelope: Envelope, limit: int = MAX_FRAME_BYTES) -> None:
    """Raise :class:`FrameError` (``malformed``) unless every field is within its range."""
    try:
        check_name("producer", envelope.producer)
        check_name("topic", envelope.topic)
    except ConfigError as error:
        raise FrameError("malformed", str(error)) from None
    prev = envelope.prev
    within = (
        0 <= envelope.partition <= MAX_PARTITION
        and 1 <= envelope.epoch <= MAX_SEQ
        and 0 <= envelope.incarnation <= MAX_INCARNATION
        and 1 <= envelope.seq <= MAX_SEQ
        and 1 <= envelope.count <= MAX_BATCH_MESSAGES
        and envelope.last <= MAX_SEQ
        and 0 <= envelope.ts_first <= MAX_SEQ
        and 0 <= envelope.ts_last <= MAX_SEQ
        and 0 <= envelope.body_size <= limit
        and 0 <= envelope.raw_size <= limit
    )
    if envelope.key_id is not None:
        within = within and len(envelope.key_id) <= MAX_KEY_ID_BYTES
    if within and prev is not None:
        within = 1 <= prev[0] < envelope.epoch and 0 <= prev[1] <= MAX_INCARNATION and 1 <= prev[2] <= MAX_SEQ
    if not within:
        raise FrameError("malformed", "a number is out of its range")


def split(frame: Frame, limit: int, ring: KeyRing | None = None) -> list[bytes]:
    """The same messages as several frames of at most `limit` bytes, cut between messages and signed if a ring is given.

    A single message over the limit stays a frame of its own, over the limit; the site will refuse it.
    """
    if len(frame.data) <= limit or frame.envelope.count == 1:
        return [frame.data]
    records, envelope = frame.records(), frame.envelope
    half = envelope.count // 2
    parts = []
    for start, stop in ((0, half), (half, envelope.count)):
        piece = encode(
            envelope.stream,
            envelope.epoch,
            envelope.incarnation,
            envelope.seq + start,
            envelope.previous,
            (envelope.ts_first, envelope.ts_last),
            Records(
                records.bodies[start:stop],
                None if records.keys is None else records.keys[start:stop],
                None if records.headers is None else records.headers[start:stop],
            ),
            compress=bool(envelope.flags & FLAG_ZSTD),
            ring=ring,
        )
        parts += split(open_frame(piece), limit, ring)
    return parts


def make_records(
    bodies: Sequence[bytes],
    keys: Sequence[str | None],
    headers: Sequence[Mapping[str, str] | None],
) -> Records:
    """Columns for :func:`encode`; a column without any value is left out."""
    return Records(
        list(bodies),
        list(keys) if any(key is not None for key in keys) else None,
        [dict(h) if h else None for h in headers] if any(headers) else None,
    )


def _compress(raw: bytes) -> bytes:
    import zstandard  # an extra: only producers that ask for compression need it

    return zstandard.ZstdCompressor(level=3).compress(raw)


def _decompress(packed: bytes, raw_size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise FrameError("undecodable", "compressed with zstd: install reliamsg[zstd]") from None
    try:
        # zstandard allocates what the compressed data announces, whatever max_output_size says.
        announced = zstandard.get_frame_parameters(packed).content_size
        if announced not in (raw_size, zstandard.CONTENTSIZE_UNKNOWN):
            raise FrameError("undecodable", "not as large as the envelope says")
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=raw_size)
    except zstandard.ZstdError as error:
        raise FrameError("undecodable", str(error)) from None
    if len(raw) != raw_size:
        raise FrameError("undecodable", "not as large as the envelope says")
    return raw
