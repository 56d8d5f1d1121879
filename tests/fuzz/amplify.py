"""Decoders with small inputs that grow: their memory is asserted, not only observed.

An input is a short program: each three bytes name a piece and its number of repetitions, up to the limit of a frame. So
inputs of a few bytes reach everything that an attacker can write into a frame of any size.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import msgspec
import zstandard

from reliamsg.config import MAX_HEADERS
from reliamsg.transport.amqp.codec import BODY, FRAME_END, FRAME_HEAD, HEADER
from reliamsg.wire import control, data
from reliamsg.wire.control import open_control
from reliamsg.wire.data import FrameError, open_frame
from reliamsg.wire.limits import MAX_BATCH_MESSAGES, MAX_CONTROL_BYTES
from tests.fuzz.target import Target

__all__ = ["AMPLIFIED", "grown", "within"]

LIMIT = 16 << 20
"""Bytes of the largest frame, the default of sites."""
SLACK = 1_000_000
_MESSAGE_BYTES = 400 + 130 * MAX_HEADERS
"""The memory of the smallest message when it is decoded, with as many headers as it may have."""

PIECES = (
    b"\xc0", b"\xa0", b"\x80", b"\x90", b"\x91", b"\x92", b"\x93", b"\x81", b"\xa1a", b"\xa1b\xa1c", b"\xc4\x00",
    b"\xc4\x01x", b"\x81\xa1a\xa1b", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdd\x00\x01\x00\x00", b"\xdc\x00\x02",
    b"\xdf\xff\xff\xff\xff", b"\xde\x00\x40", b"\xdb\xff\xff\xff\xff", b"\xda\x20\x00", b"\xd9\xff",
    b"\xc6\xff\xff\xff\xff",     b"\xc6\x00\x40\x00\x00", b"\xc9\xff\xff\xff\xff\x01", b"k",
    b"\xf0\x9f\x92\xa3", b"\x01", b"\xcf" + b"\xff" * 8,
    b"\x93\x01\x01\x01", b"\x94\x01\x01\x01\x01", b"\x96\xa1t\x00\x92\x00\x01\x92\x00\x00\x00\x90",
)  # fmt: skip
"""Heads and small values of msgpack."""


def grown(program: bytes, most: int) -> bytes:
    """The output of a program: for each three bytes, a piece, repeated as often as the square of the other two."""
    found = bytearray()
    for at in range(0, len(program) - 2, 3):
        piece = PIECES[program[at] % len(PIECES)]
        times = (program[at + 1] + 1) * (program[at + 2] + 1) if program[at] < 0x80 else program[at + 1] + 1
        found += piece * min(times, (most - len(found)) // len(piece))
    return bytes(found)


def within(ceiling: int, work: Callable[[], object]) -> None:
    """Fails if `work` holds more bytes at once than that. It may raise for inputs that it refuses."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        with contextlib.suppress(FrameError):
            work()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
    assert peak < ceiling, f"{peak} bytes at once, at most {ceiling} are allowed"


def open_grown_batch(raw: bytes) -> None:
    """A body up to the limit of a frame. The first two bytes are the number of messages, the third whether it is
    compressed, and whether it is read as a stored one."""
    if len(raw) < 3:
        return
    count = (int.from_bytes(raw[:2], "big") % MAX_BATCH_MESSAGES) + 1
    body = grown(raw[3:], LIMIT - 4096)
    packed = zstandard.ZstdCompressor(level=1).compress(body) if raw[2] & 1 else body
    flags = data.FLAG_ZSTD if raw[2] & 1 else 0
    envelope = data.Envelope(
        data.BODY_VERSION,
        flags,
        "p",
        "t",
        0,
        7,
        9,
        1,
        count,
        None,
        5,
        6,
        len(packed),
        zlib.crc32(packed),
        len(body),
    )
    head = msgspec.msgpack.encode(envelope)
    frame = struct.pack(">4sHI", data.MAGIC, len(head), zlib.crc32(head)) + head + packed
    # As much of a body as its messages can take is decompressed, and columns of that size are built: an empty body
    # takes two bytes on the way and 8 in a list, a header two, and with its dict some thirty times that.
    possible = min(len(body), count * data.MAX_RECORD_BYTES)
    built = min(29 * possible, count * _MESSAGE_BYTES)
    within(
        3 * possible + built + 80 * count + SLACK,
        lambda: open_frame(frame, LIMIT).records(trusted=bool(raw[2] & 2)),
    )


def open_grown_control(raw: bytes) -> None:
    """The body of a control frame, up to its limit, behind a byte for its kind and its valid beginning."""
    if len(raw) < 2:
        return
    kind = 1 + (raw[0] & 1)
    begun = (
        b"\x9d\x01\xa1p\x01\x01\x01\x01\x01\x00\xc3\xa1t"
        if kind == 1
        else b"\x9b\x01\xa1g\xa1i\x01\x01\xa1t\xa1p\xa4call\xc4\x00"
    )
    body = begun[: len(begun) - raw[1] % 4] + grown(raw[2:], MAX_CONTROL_BYTES - 64)
    size = min(len(body), 0xFFFF)
    frame = struct.pack(">4sBHI", control.MAGIC, kind, size, zlib.crc32(body[:size], kind)) + body[:size]
    within(40 * len(frame) + SLACK, lambda: open_control(frame, "t"))


def read_grown_amqp(raw: bytes) -> None:
    """A message whose body arrives in many frames of one size, which the first two bytes determine."""
    from tests.fuzz.targets import Connection

    if len(raw) < 2:
        return
    part = FRAME_HEAD.pack(BODY, 1, raw[0]) + bytes(raw[0]) + FRAME_END
    header = struct.pack(">HHQH", 60, 0, 1 + (raw[1] << 18), 0)
    connection = Connection()
    begin = FRAME_HEAD.pack(HEADER, 1, len(header)) + header + FRAME_END
    stream = part * min(2_000, 65_536 // len(part))

    def read() -> None:
        connection._on_data_available(begin)
        for byte in raw[2:34]:
            connection._on_data_available(stream[: len(stream) - byte])

    within(4 * 34 * len(stream) + SLACK, read)


def _programs() -> list[bytes]:
    """Seeds: nearly valid batches, and inputs with the most memory for their size."""
    body = bytes([6, 0, 0x80, 4, 0, 0x80, 11, 0, 0])
    return [
        b"\x00\x00\x01" + bytes([6, 0, 0, 4, 0, 0, 11, 0, 0, 0, 0, 0, 13, 0, 0, 2, 255, 255]),
        b"\x00\x00\x00" + bytes([6, 0, 0, 4, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0]),
        b"\xff\xff\x01" + bytes([6, 0, 0, 15, 0, 0, 10, 255, 255, 0, 0, 0, 15, 0, 0, 2, 255, 255]),
        b"\xff\xff\x03" + bytes([6, 0, 0, 15, 0, 0, 10, 255, 255, 0, 0, 0, 15, 0, 0, 12, 255, 255]),
        b"\x00\x00\x01" + body,
        # One message, in columns that claim to hold 65,536, all or one; and more than it can take.
        b"\x00\x00\x00" + bytes([6, 0, 0, 4, 0, 0, 10, 0, 0, 0, 0, 0, 15, 0, 0, 12, 255, 255]),
        b"\x00\x00\x00" + bytes([6, 0, 0, 15, 0, 0, 10, 255, 255, 0, 0, 0, 15, 0, 0, 12, 255, 255]),
        b"\x00\x00\x01" + bytes([6, 0, 0, 15, 0, 0, 10, 255, 255, 0, 0, 0, 15, 0, 0, 12, 255, 255]),
        b"\x00\x00\x01" + bytes([6, 0, 0, *[26, 255, 255] * 60]),
    ]


AMPLIFIED = (
    Target("batch-grown", open_grown_batch, (), _programs),
    Target("control-grown", open_grown_control, (), lambda: [b"\x00\x00" + p[3:] for p in _programs()]),
    Target(
        "amqp-grown",
        read_grown_amqp,
        (),
        lambda: [b"\x00\x01" + bytes(8), b"\x01\xff" + bytes(8), b"\xff\x01\x00"],
    ),
)
