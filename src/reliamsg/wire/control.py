"""The control frames: a producer's status and a group's state.

Both are snapshots. Losing, repeating or reordering them does no harm, since every value in them only ever rises.

::

    offset  bytes
    0       4      b"RMC1": the form of the head
    4       1      kind: 1 status, 2 state, 3 mark
    5       2      length of the body, big-endian
    7       4      CRC-32 of kind and body
    11      ...    body: msgpack array, Status or State
    ...     ...    nothing, or a signature: length of the key id (1 byte), key id, HMAC-SHA-256 (32 bytes)

Signed are the magic, the kind, the address that the frame is for, the key id, and the body's bytes. What is not
signed rightly is refused before the body is decoded. Frames are at most MAX_CONTROL_BYTES long; what does not fit
goes in several, each with some of the streams, and the same `number`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from reliamsg.keys import MAX_KEY_ID_BYTES, SIGNATURE_BYTES, KeyRing, is_key_id
from reliamsg.wire.address import (
    group_address,
    is_call,
    is_group,
    is_status,
    producer_address,
    status_address,
)
from reliamsg.wire.data import FrameError
from reliamsg.wire.limits import (
    MAX_ANSWERED,
    MAX_CHAIN,
    MAX_CONTROL_BYTES,
    MAX_CONTROL_STREAMS,
    MAX_EPOCH,
    MAX_INCARNATION,
    MAX_NAMED_GROUPS,
    MAX_NONCE_BYTES,
    MAX_PARTITION,
    MAX_SEQ,
    MAX_SPANS,
)
from reliamsg.wire.names import is_name

__all__ = [
    "VERSION",
    "ChainEpoch",
    "Position",
    "Role",
    "Span3",
    "State",
    "Status",
    "StreamState",
    "StreamStatus",
    "encode_mark",
    "encode_state",
    "encode_status",
    "is_control_frame",
    "is_mark",
    "open_control",
]

MAGIC = b"RMC1"
VERSION = 1
"""Of the bodies. Fields are only ever added at their ends; another version is another meaning."""
_HEAD = struct.Struct(">4sBHI")
_STATUS, _STATE, _MARK = 1, 2, 3

MAX_INBOX = 100
"""Characters of an inbox's name."""

Position = tuple[int, int]
"""Epoch and next number."""

Span3 = tuple[int, int, int]
"""Epoch, first and last number, both inclusive."""

Role = Literal["active", "standby", "call"]


# msgspec compares these lengths with the header of an array, before it builds the array.
_Spans = Annotated[list[Span3], msgspec.Meta(max_length=MAX_SPANS)]


class ChainEpoch(msgspec.Struct, array_like=True, frozen=True):
    """One epoch of a stream, as its producer tells it."""

    epoch: int
    incarnation: int
    first: int
    """The lowest number that is still held; `last` + 1 where none is."""
    last: int
    """The highest number given so far."""


class StreamStatus(msgspec.Struct, array_like=True, frozen=True):
    """What a producer says about one stream."""

    topic: str
    partition: int
    chain: Annotated[list[ChainEpoch], msgspec.Meta(max_length=MAX_CHAIN)]
    """Oldest first: all epochs of which anything is held, one before, and back to the slowest named group."""
    removed: _Spans = []
    """Ranges that were removed on purpose and will never come."""
    since: Annotated[dict[str, Position], msgspec.Meta(max_length=MAX_NAMED_GROUPS)] = {}
    """For each named group, from which position on the producer counts it."""
    reached: tuple[Position, Position] | None = None
    """In an answer to one group: the position that it told, and the one before which it may have handed out everything.
    An inbox that never was there takes the place of another one, and learns it here."""


class Status(msgspec.Struct, array_like=True, frozen=True):
    """A producer's status."""

    version: int
    producer: str
    epoch: int
    incarnation: int
    number: int
    """Rises within an incarnation; the frames of one status share it."""
    lsn: int
    """The newest row of the producer's journal that was committed."""
    ts_us: int
    """By the producer's clock, in µs since 1970."""
    interval_ms: int
    """The next status of these streams comes within so long; 0: none is promised."""
    consumed: bool
    """Whether messages are kept until every named group has acknowledged them."""
    to: str
    """The address that it is sent to."""
    streams: Annotated[list[StreamStatus], msgspec.Meta(max_length=MAX_CONTROL_STREAMS)] = []
    heard: tuple[str, int] | None = None
    """In an answer to one group: the inbox of which the latest state or call was heard before, and its number."""
    nonces: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=MAX_NONCE_BYTES)]],
        msgspec.Meta(max_length=MAX_ANSWERED),
    ] = []
    """In an answer to one group: what its inboxes drew and sent with those, of the latest few. No recording has it."""


class StreamState(msgspec.Struct, array_like=True, frozen=True):
    """What a group says about one stream. All of it is committed."""

    topic: str
    partition: int
    position: Position
    """Everything before is settled; (0, 1) for a stream that was not joined yet."""
    entered: tuple[int, int]
    """The highest epoch entered, and its incarnation; (0, 0) for none."""
    high_water: int
    """Numbers of the entered epoch below this may have been handed out."""
    missing: _Spans = []
    """Ranges that are known to exist and have not arrived, lowest first."""
    wanted: _Spans = []
    """Which of them are to be sent again now."""
    declared: _Spans = []
    """Ranges that were passed without having arrived, latest last."""
    accepted: _Spans = []
    """Ranges that were accepted as lost and not passed yet, lowest first. A standby that takes over goes by them."""


class State(msgspec.Struct, array_like=True, frozen=True):
    """A group's state, as one of its inboxes tells it."""

    version: int
    group: str
    inbox: str
    number: int
    """Rises within a run of the consumer; the frames of one state share it."""
    ts_us: int
    """By the consumer's clock, in µs since 1970."""
    to: str
    """The address that it is sent to."""
    producer: str
    """Whom it is for; "" in calls and heartbeats."""
    role: Role
    nonce: Annotated[bytes, msgspec.Meta(max_length=MAX_NONCE_BYTES)]
    """In states for producers and in calls: CHALLENGE_BYTES random bytes, drawn when the inbox began to read. An answer
    names them."""
    streams: Annotated[list[StreamState], msgspec.Meta(max_length=MAX_CONTROL_STREAMS)] = []
    takeover_ms: int = 0
    """In heartbeats: the inbox's ``takeover_timeout``; 0 where it does not say."""


_encode = msgspec.msgpack.Encoder().encode
_decode_status = msgspec.msgpack.Decoder(Status).decode
_decode_state = msgspec.msgpack.Decoder(State).decode
_Streams = TypeVar("_Streams", StreamStatus, StreamState)


def is_control_frame(data: bytes) -> bool:
    """Whether `data` says that it is a control frame, of whatever version."""
    return data[:3] == MAGIC[:3]


# -- out ------------------------------------------------------------------------------------------------------


def encode_status(status: Status, ring: KeyRing | None = None) -> list[bytes]:
    """The frames of a status, signed if a ring is given, to be sent to ``status.to``.

    Of a chain over its limit the newest epochs go, the oldest of these as one of which nothing is held: a chain always
    begins with what came before. Removed ranges over their limit go in further entries of the stream.
    Raises ValueError for a stream with over MAX_NAMED_GROUPS groups in `since`.
    """
    streams = [part for stream in status.streams for part in _parts_of_status(stream)]
    return [
        _seal(_STATUS, _encode(msgspec.structs.replace(status, streams=some)), status.to, ring)
        for some in _portions(streams, len(_encode(msgspec.structs.replace(status, streams=[]))))
    ]


def encode_state(state: State, ring: KeyRing | None = None) -> list[bytes]:
    """The frames of a state, signed if a ring is given, to be sent to ``state.to``.

    Of ranges over their limit, the lowest of `missing`, `wanted` and `accepted` go, and the latest of `declared`.
    """
    streams = [_cut_state(stream) for stream in state.streams]
    return [
        _seal(_STATE, _encode(msgspec.structs.replace(state, streams=some)), state.to, ring)
        for some in _portions(streams, len(_encode(msgspec.structs.replace(state, streams=[]))))
    ]


def _parts_of_status(stream: StreamStatus) -> list[StreamStatus]:
    if len(stream.since) > MAX_NAMED_GROUPS:
        raise ValueError(f"{len(stream.since)} groups of a stream; at most {MAX_NAMED_GROUPS} can be told")
    if len(stream.chain) <= MAX_CHAIN and len(stream.removed) <= MAX_SPANS:
        return [stream]
    chain = stream.chain
    if len(chain) > MAX_CHAIN:
        before = chain[-MAX_CHAIN]
        chain = [msgspec.structs.replace(before, first=before.last + 1), *chain[1 - MAX_CHAIN :]]
    return [
        msgspec.structs.replace(stream, chain=chain, removed=stream.removed[at : at + MAX_SPANS])
        for at in range(0, max(1, len(stream.removed)), MAX_SPANS)
    ]


def _cut_state(stream: StreamState) -> StreamState:
    if max(map(len, (stream.missing, stream.wanted, stream.declared, stream.accepted))) <= MAX_SPANS:
        return stream
    return msgspec.structs.replace(
        stream,
        missing=stream.missing[:MAX_SPANS],
        wanted=stream.wanted[:MAX_SPANS],
        declared=stream.declared[-MAX_SPANS:],
        accepted=stream.accepted[:MAX_SPANS],
    )


def _portions(streams: Sequence[_Streams], taken: int) -> Iterator[list[_Streams]]:
    """The streams, in portions that fit into a frame of which `taken` bytes are used."""
    room = MAX_CONTROL_BYTES - _HEAD.size - 1 - MAX_KEY_ID_BYTES - SIGNATURE_BYTES - taken - 4
    some: list[_Streams] = []
    left = room
    for stream in streams:
        size = len(_encode(stream))
        if some and (size > left or len(some) >= MAX_CONTROL_STREAMS):
            yield some
            some, left = [], room
        some.append(stream)
        left -= size
    if some or not streams:
        yield some


def _seal(kind: int, body: bytes, to: str, ring: KeyRing | None) -> bytes:
    head = _HEAD.pack(MAGIC, kind, len(body), _checksum(kind, body))
    if ring is None:
        return head + body
    key_id = ring.sign_with or ""
    signature = ring.sign(_canonical(kind, to, key_id, body))
    return b"".join((head, body, bytes([len(key_id)]), key_id.encode(), signature))


def _checksum(kind: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, kind)


def _canonical(kind: int, to: str, key_id: str, body: bytes) -> tuple[bytes, ...]:
    return (b"reliamsg control", MAGIC, bytes([kind]), to.encode(), key_id.encode(), body)


# -- in -------------------------------------------------------------------------------------------------------


def encode_mark(address: str, ring: KeyRing | None = None) -> bytes:
    """The mark that a group leaves at an address of :func:`~reliamsg.wire.address.created_address`."""
    return _seal(_MARK, b"", address, ring)


def is_mark(data: bytes, address: str, ring: KeyRing | None = None) -> bool:
    """Whether what was found at an address is a mark that belongs there; with a ring, one that it has signed."""
    head = _HEAD.pack(MAGIC, _MARK, 0, _checksum(_MARK, b""))
    if data[: len(head)] != head or len(data) > MAX_CONTROL_BYTES:
        return False
    if ring is not None:
        try:
            _authenticate(_MARK, address, b"", data[len(head) :], ring)
        except FrameError:
            return False
    return True


def open_control(data: bytes, address: str, ring: KeyRing | None = None) -> Status | State:
    """Verify a frame that came in at `address` and decode it.

    With a ring, only what is signed with one of its keys is taken. Raises :class:`FrameError` with reason
    ``oversized``, ``malformed``, ``corrupt`` (the checksum), ``unsigned``, ``forged``, ``unknown-version`` or
    ``misaddressed`` (it is for another address).
    """
    if len(data) > MAX_CONTROL_BYTES:
        raise FrameError("oversized", f"{len(data)} bytes, limit {MAX_CONTROL_BYTES}")
    if len(data) < _HEAD.size:
        raise FrameError("malformed", "shorter than a frame's head")
    magic, kind, size, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise FrameError("unknown-version" if is_control_frame(data) else "malformed", "not a control frame")
    body = data[_HEAD.size : _HEAD.size + size]
    if len(body) != size:
        raise FrameError("malformed", "truncated")
    if _checksum(kind, body) != crc:
        raise FrameError("corrupt", "the checksum does not match")
    if ring is not None:
        _authenticate(kind, address, body, data[_HEAD.size + size :], ring)
    frame = _decode(kind, body)
    if frame.to != address or not (_is_for(frame) if isinstance(frame, State) else _may_be_at(frame)):
        raise FrameError("misaddressed", f"for {frame.to!r}, came in at {address!r}")
    return frame


def _authenticate(kind: int, address: str, body: bytes, trailer: bytes, ring: KeyRing) -> None:
    if not trailer:
        raise FrameError("unsigned")
    key_id = trailer[1 : 1 + trailer[0]].decode("ascii", "replace")
    signature = trailer[1 + trailer[0] :]
    if len(signature) != SIGNATURE_BYTES or not is_key_id(key_id):
        raise FrameError("forged", "what follows the body is no signature")
    if not ring.verifies(key_id, signature, _canonical(kind, address, key_id, body)):
        raise FrameError("forged", f"not signed with a trusted key {key_id!r} for this address")


def _decode(kind: int, body: bytes) -> Status | State:
    decode: Callable[[bytes], Status | State]
    if kind == _STATUS:
        decode = _decode_status
    elif kind == _STATE:
        decode = _decode_state
    else:
        raise FrameError("unknown-version", f"kind {kind}")
    try:
        frame = decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(_why_not(body), str(error)) from None
    if frame.version != VERSION:
        raise FrameError("unknown-version", f"version {frame.version}")
    if not (_sound_status(frame) if isinstance(frame, Status) else _sound_state(frame)):
        raise FrameError("malformed", "a name, number or count is out of its range")
    return frame


def _why_not(body: bytes) -> str:
    """The reason for a body that can't be decoded: a later version need not have the same fields."""
    # The version is the first of over 8 and under 16 fields: one byte for the array, one for a small number.
    later = len(body) > 1 and body[0] & 0xF0 == 0x90 and VERSION < body[1] < 0x80
    return "unknown-version" if later else "malformed"


def _may_be_at(status: Status) -> bool:
    """Whether a status may be at its address: a group's, its producer's own, or that of all its streams' topic."""
    to = status.to
    if is_group(to) or to == producer_address(status.producer):
        return True
    return all(to == status_address(s.topic, s.partition) for s in status.streams) and is_status(to)


def _is_for(state: State) -> bool:
    """Whether a state's address is the one that its kind goes to."""
    if state.producer:  # the group's other inboxes may be told as well
        return state.role != "call" and state.to in (
            producer_address(state.producer),
            group_address(state.group),
        )
    if state.role == "call":
        return not state.streams and is_call(state.to)
    return state.to == group_address(state.group)


# -- ranges ---------------------------------------------------------------------------------------------------


def _sound_status(status: Status) -> bool:
    return (
        is_name(status.producer)
        and 1 <= status.epoch < MAX_EPOCH
        and 0 <= status.incarnation <= MAX_INCARNATION
        and _counts(status.number, status.lsn, status.ts_us, status.interval_ms)
        and len(status.streams) <= MAX_CONTROL_STREAMS
        and (status.heard is None or (len(status.heard[0]) <= MAX_INBOX and _counts(status.heard[1])))
        and all(map(_sound_stream_status, status.streams))
    )


def _sound_stream_status(stream: StreamStatus) -> bool:
    return (
        _sound_place(stream)
        and len(stream.chain) <= MAX_CHAIN
        and len(stream.since) <= MAX_NAMED_GROUPS
        and _sound_chain(stream.chain)
        and _sound_spans(stream.removed)
        and all(is_name(group) for group in stream.since)
        and all(map(_sound_position, stream.since.values()))
        and (stream.reached is None or all(map(_sound_position, stream.reached)))
    )


def _sound_chain(chain: list[ChainEpoch]) -> bool:
    before = 0
    for link in chain:
        if not (
            before < link.epoch < MAX_EPOCH
            and 0 <= link.incarnation <= MAX_INCARNATION
            and 0 <= link.last <= MAX_SEQ
            and 1 <= link.first <= link.last + 1
        ):
            return False
        before = link.epoch
    return True


def _sound_state(state: State) -> bool:
    return (
        is_name(state.group)
        and len(state.inbox) <= MAX_INBOX
        and _counts(state.number, state.ts_us)
        and (not state.producer or is_name(state.producer))
        and len(state.nonce) <= MAX_NONCE_BYTES
        and len(state.streams) <= MAX_CONTROL_STREAMS
        and all(map(_sound_stream_state, state.streams))
    )


def _sound_stream_state(stream: StreamState) -> bool:
    epoch, incarnation = stream.entered
    return (
        _sound_place(stream)
        and _sound_position(stream.position)
        and 0 <= epoch <= MAX_SEQ
        and 0 <= incarnation <= MAX_INCARNATION
        and 0 <= stream.high_water <= MAX_SEQ + 1
        and all(map(_sound_spans, (stream.missing, stream.wanted, stream.declared, stream.accepted)))
    )


def _sound_place(stream: StreamStatus | StreamState) -> bool:
    return is_name(stream.topic) and 0 <= stream.partition <= MAX_PARTITION


def _sound_position(position: Position) -> bool:
    return 0 <= position[0] <= MAX_SEQ and 1 <= position[1] <= MAX_SEQ + 1


def _sound_spans(spans: list[Span3]) -> bool:
    return not spans or (
        len(spans) <= MAX_SPANS
        and all(1 <= epoch <= MAX_SEQ and 1 <= first <= last <= MAX_SEQ for epoch, first, last in spans)
    )


def _counts(*numbers: int) -> bool:
    return min(numbers) >= 0 and max(numbers) <= MAX_SEQ
