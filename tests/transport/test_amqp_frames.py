"""What comes in over AMQP costs time and memory in proportion to its bytes, and is bounded from the first byte on."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame as pika_frame
from pika import spec

from reliamsg.config import Endpoint, Site
from reliamsg.transport.amqp.codec import BODY, FRAME_END, FRAME_HEAD, HEADER, METHOD
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.frames import (
    FRAME_MIN_SIZE,
    MAX_HANDSHAKE_BYTES,
    Bodies,
    FrameBuffer,
    ProtocolViolation,
)
from tests.fuzz.targets import Connection

HEARTBEAT = pika_frame.Heartbeat().marshal()


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def after_tune(limit: int = 131_072) -> FrameBuffer:
    buffer = FrameBuffer()
    buffer.limit, buffer.handshake_left = limit, None
    return buffer


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


class Counting(bytearray):
    """Counts the bytes that are moved into it, out of it and within it."""

    moved = 0

    def __iadd__(self, other: bytes) -> Counting:  # type: ignore[override]
        Counting.moved += len(other)
        super().__iadd__(other)
        return self

    def __add__(self, other: bytes) -> Counting:  # type: ignore[override]
        Counting.moved += len(self) + len(other)
        return Counting(super().__add__(other))

    def extend(self, other: bytes) -> None:  # type: ignore[override]
        Counting.moved += len(other)
        super().extend(other)

    def __bytes__(self) -> bytes:
        Counting.moved += len(self)
        return memoryview(self).tobytes()

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        Counting.moved += len(found) if isinstance(found, bytearray) else 1
        return found

    def __delitem__(self, item: object) -> None:
        Counting.moved += len(self)
        super().__delitem__(item)  # type: ignore[arg-type]


def moved(frames: Sequence[bytes], chunk: int) -> int:
    buffer = after_tune(64 << 20)
    buffer._rest = Counting()
    Counting.moved = 0
    stream = b"".join(frames)
    assert [found for piece in cut(stream, chunk) for _, _, found in buffer.feed(piece)] == list(frames)
    return Counting.moved


@pytest.mark.parametrize("chunk", [1, 7, 1448, 65_536])
@pytest.mark.parametrize("kind", ["one large frame", "full frames", "small frames"])
def test_twice_the_bytes_are_twice_the_work(kind: str, chunk: int) -> None:
    size = 100_000 if chunk < 100 else 8 << 20

    def frames(size: int) -> list[bytes]:
        if kind == "one large frame":
            return [frame(BODY, bytes(size))]
        length = 131_064 if kind == "full frames" else 100
        return [frame(BODY, bytes(length))] * (size // length + 1)

    once, twice = moved(frames(size), chunk), moved(frames(2 * size), chunk)
    assert twice <= 2.1 * once + 2 * 131_072
    assert once <= 3 * size + 2 * 131_072


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 65535), st.binary(max_size=300)), max_size=20
    ),
    st.lists(st.integers(1, 400), min_size=1, max_size=20),
)
def test_frames_are_the_same_however_they_are_cut(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frame(kind, payload, channel) for kind, channel, payload in frames)
    buffer, found, at, turn = after_tune(), [], 0, 0
    while at < len(stream):
        piece = stream[at : at + cuts[turn % len(cuts)]]
        found += list(buffer.feed(piece))
        at, turn = at + len(piece), turn + 1
    assert found == [(kind, channel, frame(kind, payload, channel)) for kind, channel, payload in frames]


def feed(buffer: FrameBuffer, data: bytes) -> list[tuple[int, int, bytes]]:
    return list(buffer.feed(data))


def test_limits_before_and_after_tune() -> None:
    assert feed(FrameBuffer(), frame(METHOD, bytes(FRAME_MIN_SIZE)))
    for size in (FRAME_MIN_SIZE + 1, 60 << 20, 2**32 - 1):
        with pytest.raises(ProtocolViolation, match="limit is 4096"):
            feed(FrameBuffer(), FRAME_HEAD.pack(METHOD, 0, size))
    with pytest.raises(ProtocolViolation, match="limit is 131072"):
        feed(after_tune(), FRAME_HEAD.pack(METHOD, 0, 131_073))
    with pytest.raises(ProtocolViolation, match="does not speak AMQP"):
        feed(FrameBuffer(), b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ProtocolViolation, match="does not speak AMQP"):
        feed(FrameBuffer(), b"AMQP\x00\x00\x09\x01")
    with pytest.raises(ProtocolViolation, match="without its end"):
        feed(FrameBuffer(), frame(METHOD, b"x")[:-1] + b"\x00")


@pytest.mark.parametrize("chunk", [1, 13, 4096, 1 << 20])
def test_a_handshake_without_end(chunk: int) -> None:
    """Each frame is small; together they are bounded."""
    buffer, taken = FrameBuffer(), 0
    with contextlib.suppress(ProtocolViolation):
        for piece in cut(HEARTBEAT * 200_000, chunk):
            taken += len(piece)
            feed(buffer, piece)
    assert taken <= MAX_HANDSHAKE_BYTES + chunk + len(HEARTBEAT)


class TestBodies:
    @given(st.lists(st.binary(max_size=50), min_size=1, max_size=20).filter(any))
    def test_parts_make_the_whole(self, parts: list[bytes]) -> None:
        bodies, whole = Bodies(), b"".join(parts)
        bodies.expect(1, len(whole))
        found = []
        for part in parts:
            if bodies.expects(1):
                found.append(bodies.add(1, frame(BODY, part)))
            else:
                assert not part
        assert [body for body in found if body is not None] == [whole]
        assert not bodies.expects(1)

    def test_more_than_was_said(self) -> None:
        bodies = Bodies()
        bodies.expect(1, 3)
        with pytest.raises(ProtocolViolation, match="longer than its header"):
            bodies.add(1, frame(BODY, b"four"))


def header(size: int) -> bytes:
    return pika_frame.Header(1, size, spec.BasicProperties()).marshal()


@pytest.mark.parametrize(
    ("part", "count"),
    [(b"", 20_000), (b"x", 20_000), (b"xy" * 50, 20_000)],
    ids=["none", "one byte", "small"],
)
def test_a_message_in_countless_parts_takes_no_more_memory_than_its_bytes(part: bytes, count: int) -> None:
    connection = Connection()
    connection._on_data_available(header(64 << 20))
    stream = frame(BODY, part) * 1000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count // 1000):
            connection._on_data_available(stream)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert connection.dropped == 0
    assert grown < 1.3 * count * len(part) + 100_000
    assert len(connection.frames) == 1


def test_a_connection_that_broke_a_rule_is_not_read_on() -> None:
    connection = Connection()
    connection._on_data_available(FRAME_HEAD.pack(HEADER, 1, 60 << 20))
    for _ in range(100):
        connection._on_data_available(bytes(65_536))
    assert connection.dropped == 1
    assert len(connection._input._rest) < 100


# -- an endpoint that is not a broker -------------------------------------------------------------------------


def start() -> bytes:
    return pika_frame.Method(
        0, spec.Connection.Start(0, 9, {"product": "evil", "version": "1"}, "PLAIN", "en_US")
    ).marshal()


def tune(frame_max: int) -> bytes:
    return pika_frame.Method(0, spec.Connection.Tune(10, frame_max, 60)).marshal()


OPEN = pika_frame.Method(0, spec.Connection.OpenOk()).marshal()
CLAIM = FRAME_HEAD.pack(METHOD, 0, 60 << 20)
SCRIPTS: dict[str, tuple[bytes, bytes, str]] = {
    "a frame that claims 60 MiB": (CLAIM, bytes(1400), "frame of 62914560 bytes; the limit is 4096"),
    "heartbeats for ever": (b"", HEARTBEAT * 100, "before the handshake"),
    "frames for ever": (start(), frame(METHOD, struct.pack(">I", 10 << 16 | 20) + bytes(40), 7), "handshake"),
    "tiny frames agreed on": (start() + tune(100), b"", "frames of 100 bytes"),
    "a frame over what was agreed": (
        start() + tune(8192) + OPEN,
        FRAME_HEAD.pack(METHOD, 1, 8193),
        "limit is 8192",
    ),
    "a frame over our limit": (
        start() + tune(0) + OPEN,
        FRAME_HEAD.pack(METHOD, 1, 131_073),
        "limit is 131072",
    ),
    "a server of something else": (b"SSH-2.0-OpenSSH_9.2\r\n", b"", "does not speak AMQP 0-9-1"),
    "another version": (b"AMQP\x03\x01\x00\x00", b"", "does not speak AMQP 0-9-1"),
}


@contextlib.contextmanager
def hostile(first: bytes, then: bytes) -> Iterator[int]:
    """A server that says `first`, and then `then` again and again, at this port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client:
                    client.recv(8)
                    client.sendall(first)
                    while then:
                        client.sendall(then)
                    client.settimeout(20)
                    while client.recv(65_536):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(("first", "then", "reason"), SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_hostile_endpoint_is_left_at_once(first: bytes, then: bytes, reason: str) -> None:
    with hostile(first, then) as port:
        site = Site("evil", f"amqp://127.0.0.1:{port}", connect_timeout=30)
        connection = AmqpConnection(
            site, Endpoint("127.0.0.1", port), ("u", "p"), time.monotonic() + 30, "test"
        )
        ended = connection.run(lambda: None)
    assert reason in str(ended.reason)
