"""Inputs from this library's encoders, for each target: the seeds of fuzzing."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from pika import frame as pika_frame
from pika import spec

from reliamsg import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.store.head import Head, encode_head
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch, DeadLetter, EpochRow, GapRow, HeldFrame, History, HistoryRow
from reliamsg.store.inbox_rows import Quarantined as SetAside
from reliamsg.store.journal import Entry
from reliamsg.store.members import Member
from reliamsg.store.outbox import Cursors, NewBatch, Outbox, Parked
from reliamsg.store.segment import Role
from reliamsg.store.segment import encode as encode_segment
from reliamsg.transport.mqtt.codec import encode_properties
from reliamsg.wire import control, data
from reliamsg.wire.address import call_address, group_address, producer_address, status_address
from reliamsg.wire.control import ChainEpoch, State, Status, StreamState, StreamStatus
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode, open_frame
from reliamsg.wire.plain import encode_plain
from tests.checker import histories
from tests.fuzz.target import scratch

RING = KeyRing({"a": b"A" * 16, "b": b"B" * 16}, sign_with="a")
STREAM = Stream("gateway-7", "orders", 3)
TIMES = (1_700_000_000_000_000, 1_700_000_000_500_000)


@cache
def frames(ring: KeyRing | None = None) -> list[bytes]:
    """Batches in their binary form."""
    full = Records([b"one", b"", b"three" * 30], ["k", None, "ü"], [{"a": "b", "é": ""}, None, None])
    return [
        encode(Origin(STREAM, 7, 2**64 - 1, Prev(6, 98, 12)), 1000, TIMES, full, ring=ring),
        encode(Origin(STREAM, 7, 99), 1, TIMES, Records([b"x" * 500] * 3), compress=True, ring=ring),
        encode(Origin(Stream("p", "t"), 2**62, 0), 2**62, (0, 0), Records([b""]), ring=ring),
    ]


def envelopes() -> list[bytes]:
    """The envelopes alone, and one with an unknown field."""
    found = [msgspec.msgpack.encode(open_frame(frame).envelope) for frame in (*frames(), *frames(RING))]
    later = [*msgspec.structs.astuple(open_frame(frames()[0]).envelope), "later"]
    return [*found, msgspec.msgpack.encode(later)]


def bodies() -> list[bytes]:
    """Bodies of batches: a byte that says how many messages and whether they are compressed, two with the size."""
    found = []
    for frame in map(open_frame, frames()):
        envelope = frame.envelope
        body = frame.data[len(frame.data) - envelope.body_size :]
        flag = 0x80 if envelope.flags & data.FLAG_ZSTD else 0
        found.append(bytes([envelope.count | flag]) + struct.pack(">H", envelope.raw_size) + body)
    return found


def as_lines(headers: Mapping[str, str], body: bytes) -> bytes:
    """A message with headers as one run of bytes: a line for each, an empty line, the body."""
    return "".join(f"{name}={value}\n" for name, value in headers.items()).encode() + b"\n" + body


def plain(ring: KeyRing | None = None) -> list[bytes]:
    """Messages in the plain format."""
    found = [message for frame in frames() for message in encode_plain(open_frame(frame), ring)]
    return [as_lines(message.headers, message.body) for message in found]


def statuses() -> list[Status]:
    chain = [ChainEpoch(90, 5, 91, 90), ChainEpoch(100, 2**64 - 1, 40, 60)]
    stream = StreamStatus("orders", 3, chain, [(90, 1, 3)], {"billing": (90, 1)})
    told = Status(1, "gateway-7", 100, 7, 12, 345, 6, 1000, True, status_address("orders", 3), [stream])
    return [
        told,
        msgspec.structs.replace(told, to=group_address("billing"), streams=[stream] * 3),
        msgspec.structs.replace(told, to=producer_address("gateway-7"), streams=[]),
    ]


def states() -> list[State]:
    stream = StreamState("orders", 3, (90, 4), (100, 7), 90, [(100, 5, 9)], [(100, 5, 6)], [(90, 1, 3)])
    to = producer_address("gateway-7")
    told = State(1, "billing", "inbox-1", 9, 8, to, "gateway-7", "active", b"n" * 8, [stream])
    heartbeat = msgspec.structs.replace(told, producer="", to=group_address("billing"), role="standby")
    call = msgspec.structs.replace(
        told, producer="", to=call_address("orders", 3), role="call", streams=[], nonce=b""
    )
    return [told, heartbeat, call]


@cache
def control_frames(ring: KeyRing | None = None) -> list[bytes]:
    """Statuses and states."""
    found = [frame for status in statuses() for frame in control.encode_status(status, ring)]
    return found + [frame for state in states() for frame in control.encode_state(state, ring)]


def control_bodies() -> list[bytes]:
    """Bodies of control frames behind a byte for their kind."""
    return [b"\x01" + msgspec.msgpack.encode(each) for each in statuses()] + [
        b"\x02" + msgspec.msgpack.encode(each) for each in states()
    ]


def amqp_headers() -> list[bytes]:
    """The part of AMQP header frames after the size: which properties exist, and their values."""
    found = []
    for message in encode_plain(open_frame(frames()[0])):
        table: dict[str, Any] = {**message.headers, "n": 7, "deep": {"list": [1, "x", None, {"k": True}]}}
        properties = spec.BasicProperties("text/plain", None, table, 2, 0, None, None, None, "id", 17, None)
        whole = pika_frame.Header(1, 0, properties).marshal()
        found.append(whole[7 + 12 : -1])
    found.append(pika_frame.Header(1, 0, spec.BasicProperties(content_type=CONTENT_TYPE)).marshal()[19:-1])
    return found


def amqp_streams() -> list[bytes]:
    """A broker's output: a delivery with its header and body, confirms, a heartbeat, and a refusal."""
    deliver = pika_frame.Method(1, spec.Basic.Deliver("tag", 7, False, "reliamsg", "orders")).marshal()
    returned = pika_frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "reliamsg", "orders")).marshal()
    body = frames()[0]
    header = pika_frame.Header(1, len(body), spec.BasicProperties(content_type=CONTENT_TYPE)).marshal()
    rest = pika_frame.Body(1, body).marshal()
    ack = pika_frame.Method(1, spec.Basic.Ack(3, True)).marshal()
    nack = pika_frame.Method(1, spec.Basic.Nack(4, False, True)).marshal()
    beat = pika_frame.Heartbeat().marshal()
    closed = pika_frame.Method(0, spec.Connection.Close(320, "bye", 0, 0)).marshal()
    return [deliver + header + rest + ack, beat + nack + ack, returned + header + rest, closed]


def mqtt_packets() -> list[bytes]:
    """PUBLISH packets of either version, behind a byte for the version and their first one."""
    found = []
    for version, body in ((5, b"body"), (4, b"body"), (5, b"")):
        message = encode_plain(open_frame(frames()[0]))[0]
        properties = encode_properties(CONTENT_TYPE, message.headers) if version == 5 else b""
        for command in (0x32, 0x3B, 0x30):
            mid = b"\x00\x07" if command & 6 else b""
            found.append(bytes([version, command]) + b"\x00\x06orders" + mid + properties + body)
    return found


@cache
def segments() -> list[bytes]:
    """Segments of correct histories of producers and groups."""
    found = []
    for seed in range(3):
        for chain in histories.make(seed, size=12, boots=2).chains():
            for boot in chain.boots:
                found.append(encode_segment(chain.role, chain.client, boot.rows, None).data)
    return sorted(found, key=len)[:8]


def heads() -> list[bytes]:
    """Heads of a producer and a group."""
    owners: list[tuple[Role, str]] = [("producer", "p"), ("group", "a/b")]
    return [
        encode_head(
            Head(
                role=role,
                client=client,
                boot="0" * 16,
                lsn=7,
                digest="ab" * 32,
                wall_us=1_700_000_000_000_000,
            )
        )
        for role, client in owners
    ]


@cache
def applogs() -> list[bytes]:
    """Applications' own logs."""
    encode_line = msgspec.json.Encoder().encode
    return [
        b"".join(encode_line(record) + b"\n" for record in log.records[:8])
        for log in histories.make(1, size=12, boots=2).applogs()
    ]


def names_of_files() -> list[bytes]:
    """Paths of segments."""
    found = []
    for chain in histories.make(0, size=8, boots=1).chains():
        found.append(
            encode_segment(chain.role, f"{chain.client}/ü %", chain.boots[0].rows, None).path.encode()
        )
    return found


@cache
def outbox_file() -> bytes:
    """An outbox with two topics, a parked stream, named groups, and at least one row of every other table."""
    with _nothing_random(), _fresh("seed-outbox.db") as path:
        _fill_outbox(path)
        return path.read_bytes()


def _fill_outbox(path: Path) -> None:
    outbox = Outbox(path, "p", 5_000_000, 0, "b" * 16)
    for topic, some in (("orders", [b"a", b"b"]), ("other", [b"c"]), ("orders", [b"d"])):
        stream = outbox.stream(topic, 0)
        frame = encode(
            Origin(stream.stream, outbox.epoch, outbox.incarnation), stream.next_seq, TIMES, Records(some)
        )
        last = stream.next_seq + len(some) - 1
        entry = Entry(
            "enqueued", stream.stream, outbox.epoch, outbox.incarnation, stream.next_seq, last, digest=5,
            latency={3: 2}, detail={"x": 1},
        )  # fmt: skip
        outbox.append([NewBatch(stream, stream.next_seq, len(some), frame)], [entry], 7_000, 0)
    parked = Parked(2, 2, 3, "returned")
    outbox.progress({"dc1": Cursors(2, [parked]), "dc2": Cursors(3, [])}, 2, [], 8_000, 0)
    outbox.name_groups(
        {(1, "billing"): Member((5_000, 1), (5_000, 2))}, [], 8_000, 0, {"release": "consumed"}
    )
    outbox.close()


@cache
def inbox_file() -> bytes:
    """An inbox with a stream behind a gap, held and late batches, dead letters, and quarantined deliveries."""
    with _nothing_random(), _fresh("seed-inbox.db") as path:
        _fill_inbox(path)
        return path.read_bytes()


def _fill_inbox(path: Path) -> None:
    inbox = Inbox(path, "billing")
    stream = Stream("p", "orders")
    frame = encode(Origin(stream, 10, 77), 20, TIMES, Records([b"x", b"y"]))
    held = HeldFrame(stream, 10, 20, 21, "dc1", 1, frame)
    batch = Batch(
        streams=[HistoryRow(stream, (9, 3), History([(8, 5, 7)], 3, [(4, [(1, 2)])], [(10, 5, 6)], (1, 2)))],
        epochs=[EpochRow(stream, 10, 77, Prev(9, 2**64 - 2, 5), 15, 60, [(17, 18)], None, True)],
        gaps=[GapRow(stream, 10, 15, 16, 1.5)],
        attempts=[(stream, 10, 21, 2)],
        held=[held],
        late=[HeldFrame(stream, 10, 5, 6, "dc2", 1, encode(Origin(stream, 10, 77), 5, TIMES, Records([b"l", b"m"])))],
        dead=[DeadLetter(0, stream, 10, 77, 5, "k", {"a": "ü"}, b"\0body", "poison", 5, 7)],
        quarantine=[SetAside("dc1", "orders", "malformed", b"x" * 50)],
        entries=[Entry("delivered", stream, 10, 77, 1, 14, digest=5, latency={3: 2}), Entry("rejected", site="dc1")],
    )  # fmt: skip
    inbox.commit(batch, 1, 1)
    inbox.close()


def edits() -> list[bytes]:
    """Changes to a file, for :func:`tests.fuzz.target.edited`."""
    return [b"", bytes(range(4, 24)), bytes(range(200, 232)), b"\x00\x00\x10\x00" * 2]


@contextlib.contextmanager
def _fresh(name: str) -> Iterator[Path]:
    path = scratch() / name
    yield path
    for suffix in ("", "-wal", "-shm", ".lock"):
        path.with_name(name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _nothing_random() -> Iterator[None]:
    """The same file whenever it is created, so that an input that changes its bytes keeps its meaning."""
    with (
        patch("os.urandom", lambda size: bytes(range(1, size + 1))),
        patch("secrets.token_hex", lambda n: "5e" * n),
    ):
        yield
