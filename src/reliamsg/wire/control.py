"""The control frames: a producer's status and a group's state.

Both are snapshots whose values only increase, so that lost, repeated and reordered frames are harmless.

::

    offset  bytes
    0       4      b"RMC1": the format of the head
    4       1      kind: 1 status, 2 state, 3 mark
    5       2      length of the body, big-endian
    7       4      CRC-32 of kind and body
    11      ...    body: msgpack array, Status or State
    ...     ...    nothing, or a signature: length of the key id (1 byte), key id, HMAC-SHA-256 (32 bytes)

The signature covers the magic, the kind, the destination address, the key id, and the body's bytes. A frame without a
valid signature is rejected before the body is decoded. Frames are at most MAX_CONTROL_BYTES long; a larger snapshot is
sent in several frames with the same `number`, each with some of the streams.
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
    MAX_NAMED_GROUPS,
    MAX_NONCE_BYTES,
    MAX_SEQ,
    MAX_SPANS,
    Count,
    Epoch,
    Incarnation,
    Next,
    Partition,
    Seq,
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
"""The version of the bodies. New fields are only added at the end; any other change requires a new version."""
_HEAD = struct.Struct(">4sBHI")
_STATUS, _STATE, _MARK = 1, 2, 3

MAX_INBOX = 100
"""The maximum length of an inbox's name, in characters."""

Position = tuple[Count, Next]
"""Epoch and next number."""

Span3 = tuple[Seq, Seq, Seq]
"""Epoch, first and last number, both inclusive."""

Role = Literal["active", "standby", "call"]


# msgspec checks lengths before it builds an array.
_Inbox = Annotated[str, msgspec.Meta(max_length=MAX_INBOX)]
_Spans = Annotated[list[Span3], msgspec.Meta(max_length=MAX_SPANS)]


class ChainEpoch(msgspec.Struct, array_like=True, frozen=True):
    """An epoch of a stream, as its producer announces it."""

    epoch: Epoch
    incarnation: Incarnation
    first: Next
    """The lowest number that is still stored; `last` + 1 if none is."""
    last: Count
    """The highest number assigned so far."""


class StreamStatus(msgspec.Struct, array_like=True, frozen=True):
    """A producer's announcement about one stream."""

    topic: str
    partition: Partition
    chain: Annotated[list[ChainEpoch], msgspec.Meta(max_length=MAX_CHAIN)]
    """Oldest first: all epochs with stored messages, the one before, and all back to the slowest named group."""
    removed: _Spans = []
    """Ranges that were removed on demand and will never arrive."""
    since: Annotated[dict[str, Position], msgspec.Meta(max_length=MAX_NAMED_GROUPS)] = {}
    """For each named group, the position from which it counts."""
    reached: tuple[Position, Position] | None = None
    """In an answer to one group: its announced position, and the position up to which it may have delivered messages.
    An inbox that takes over from a lost one learns them here."""


class Status(msgspec.Struct, array_like=True, frozen=True):
    """A producer's status."""

    version: int
    producer: str
    epoch: Epoch
    incarnation: Incarnation
    number: Count
    """Increases within an incarnation; the frames of one status share it."""
    lsn: Count
    """The newest committed row of the producer's journal."""
    ts_us: Count
    """By the producer's clock, in µs since 1970."""
    interval_ms: Count
    """The next status of these streams is sent within this time; 0 if none is promised."""
    consumed: bool
    """Whether messages are retained until every named group has acknowledged them."""
    to: str
    """The address that it is sent to."""
    streams: Annotated[list[StreamStatus], msgspec.Meta(max_length=MAX_CONTROL_STREAMS)] = []
    heard: tuple[_Inbox, Count] | None = None
    """In an answer to one group: the inbox that sent the latest state or call received before, and its number."""
    nonces: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=MAX_NONCE_BYTES)]],
        msgspec.Meta(max_length=MAX_ANSWERED),
    ] = []
    """In an answer to one group: the random nonces of its latest states and calls. No recorded status contains them."""
    committed: Count = 0
    """The newest committed row of the producer's journal, which may be later than `lsn`: everything that the status
    says is journalled by then. 0 from versions that do not name it."""


class StreamState(msgspec.Struct, array_like=True, frozen=True):
    """A group's committed state of one stream."""

    topic: str
    partition: Partition
    position: Position
    """Everything before is settled; (0, 1) for a stream that was not joined yet."""
    entered: tuple[Count, Incarnation]
    """The highest epoch entered, and its incarnation; (0, 0) for none."""
    high_water: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ + 1)]
    """Numbers of the entered epoch below this may have been delivered."""
    missing: _Spans = []
    """Ranges that are known to exist and have not arrived, lowest first."""
    wanted: _Spans = []
    """The missing ranges that are to be resent now."""
    declared: _Spans = []
    """Ranges that were declared lost and passed, latest last."""
    accepted: _Spans = []
    """Ranges that were accepted as lost and not passed yet, lowest first, for a standby that takes over."""


class State(msgspec.Struct, array_like=True, frozen=True):
    """A group's state, as one of its inboxes announces it."""

    version: int
    group: str
    inbox: _Inbox
    number: Count
    """Increases within a run of the consumer; the frames of one state share it."""
    ts_us: Count
    """By the consumer's clock, in µs since 1970."""
    to: str
    """The address that it is sent to."""
    producer: str
    """The receiving producer; "" in calls and heartbeats."""
    role: Role
    nonce: Annotated[bytes, msgspec.Meta(max_length=MAX_NONCE_BYTES)]
    """In states for producers and in calls: CHALLENGE_BYTES random bytes, chosen when the inbox started to consume. An
    answer repeats them."""
    streams: Annotated[list[StreamState], msgspec.Meta(max_length=MAX_CONTROL_STREAMS)] = []
    takeover_ms: int = 0
    """In heartbeats: the inbox's ``takeover_timeout``; 0 if unknown."""
    journal: tuple[Incarnation, Count] | None = None
    """In states for producers: the opening of the inbox, and the newest committed row of its journal. The journal has
    settled everything before the positions by then. None from versions that do not name it."""


_encode = msgspec.msgpack.Encoder().encode
_decode_status = msgspec.msgpack.Decoder(Status).decode
_decode_state = msgspec.msgpack.Decoder(State).decode
_Streams = TypeVar("_Streams", StreamStatus, StreamState)


def is_control_frame(data: bytes) -> bool:
    """Whether `data` is a control frame, of any version."""
    return data[:3] == MAGIC[:3]


# -- encoding ------------------------------------------------------------------------------------------------------


def encode_status(status: Status, ring: KeyRing | None = None) -> list[bytes]:
    """The frames of a status, signed if a ring is given, to be sent to ``status.to``.

    A chain over its limit is reduced to its newest epochs, the first of them without stored messages, because a chain
    always begins with the epoch before. Removed ranges over their limit are sent in further entries of the stream.
    Raises ValueError for a stream with more than MAX_NAMED_GROUPS groups in `since`.
    """
    return _frames(
        _STATUS, status, [part for stream in status.streams for part in _parts_of_status(stream)], ring
    )


def encode_state(state: State, ring: KeyRing | None = None) -> list[bytes]:
    """The frames of a state, signed if a ring is given, to be sent to ``state.to``.

    Ranges over their limit are reduced to the lowest of `missing`, `wanted` and `accepted`, and the latest of
    `declared`.
    """
    return _frames(_STATE, state, [_cut_state(stream) for stream in state.streams], ring)


def _frames(
    kind: int, snapshot: Status | State, streams: Sequence[_Streams], ring: KeyRing | None
) -> list[bytes]:
    empty = len(_encode(msgspec.structs.replace(snapshot, streams=[])))
    return [
        _seal(kind, _encode(msgspec.structs.replace(snapshot, streams=some)), snapshot.to, ring)
        for some in _portions(streams, empty)
    ]


def _parts_of_status(stream: StreamStatus) -> list[StreamStatus]:
    if len(stream.since) > MAX_NAMED_GROUPS:
        raise ValueError(f"{len(stream.since)} groups of a stream; the limit is {MAX_NAMED_GROUPS}")
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
    """The streams, in portions that fit into a frame of which `taken` bytes are in use."""
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


# -- decoding -------------------------------------------------------------------------------------------------------


def encode_mark(address: str, ring: KeyRing | None = None) -> bytes:
    """The mark of a group for an address of :func:`~reliamsg.wire.address.created_address`."""
    return _seal(_MARK, b"", address, ring)


def is_mark(data: bytes, address: str, ring: KeyRing | None = None) -> bool:
    """Whether `data` is a valid mark for its address; with a ring, one that is signed with one of its keys."""
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
    """Verify and decode a frame that arrived at `address`.

    With a ring, the frame must be signed with one of its keys. Raises :class:`FrameError` with reason
    ``oversized``, ``malformed``, ``corrupt`` (the checksum), ``unsigned``, ``forged``, ``unknown-version`` or
    ``misaddressed`` (for another address).
    """
    if len(data) > MAX_CONTROL_BYTES:
        raise FrameError("oversized", f"{len(data)} bytes, limit {MAX_CONTROL_BYTES}")
    if len(data) < _HEAD.size:
        raise FrameError("malformed", "shorter than the head of a frame")
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
        raise FrameError("misaddressed", f"for {frame.to!r}, arrived at {address!r}")
    return frame


def _authenticate(kind: int, address: str, body: bytes, trailer: bytes, ring: KeyRing) -> None:
    if not trailer:
        raise FrameError("unsigned")
    key_id = trailer[1 : 1 + trailer[0]].decode("ascii", "replace")
    signature = trailer[1 + trailer[0] :]
    if len(signature) != SIGNATURE_BYTES or not is_key_id(key_id):
        raise FrameError("forged", "the data behind the body is not a signature")
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
        raise FrameError("malformed", "a name, number or count is out of range")
    return frame


def _why_not(body: bytes) -> str:
    """The reason for a body that can't be decoded: a later version may have other fields."""
    # The version is the first of 9 to 15 fields: one byte for the array, one for a small number.
    later = len(body) > 1 and body[0] & 0xF0 == 0x90 and VERSION < body[1] < 0x80
    return "unknown-version" if later else "malformed"


def _may_be_at(status: Status) -> bool:
    """Whether a status may be sent to its address: a group's, its producer's, or the status address of all its
    streams."""
    to = status.to
    if is_group(to) or to == producer_address(status.producer):
        return True
    return all(to == status_address(s.topic, s.partition) for s in status.streams) and is_status(to)


def _is_for(state: State) -> bool:
    """Whether a state's address is that of its kind."""
    if state.producer:  # may be sent to the group's other inboxes too
        return state.role != "call" and state.to in (
            producer_address(state.producer),
            group_address(state.group),
        )
    if state.role == "call":
        return not state.streams and is_call(state.to)
    return state.to == group_address(state.group)


# -- validation ---------------------------------------------------------------------------------------------------
#
# Only names and the order of numbers: msgspec has checked all ranges and lengths.


def _sound_status(status: Status) -> bool:
    return is_name(status.producer) and all(
        is_name(stream.topic)
        and all(map(is_name, stream.since))
        and _sound_chain(stream.chain)
        and _sound_spans(stream.removed)
        for stream in status.streams
    )


def _sound_chain(chain: list[ChainEpoch]) -> bool:
    before = 0
    for link in chain:
        if not before < link.epoch or link.first > link.last + 1:
            return False
        before = link.epoch
    return True


def _sound_state(state: State) -> bool:
    return (
        is_name(state.group)
        and (not state.producer or is_name(state.producer))
        and all(
            is_name(stream.topic)
            and all(map(_sound_spans, (stream.missing, stream.wanted, stream.declared, stream.accepted)))
            for stream in state.streams
        )
    )


def _sound_spans(spans: list[Span3]) -> bool:
    return all(first <= last for _, first, last in spans)
