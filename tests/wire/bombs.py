"""Small frames that claim to be large: a decoder must refuse them before it allocates anything."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import zstandard

from reliamsg.wire import control, data

__all__ = ["Bomb", "bomb_named", "bombs", "control_bombs", "sealed", "squeezed"]

NIL, HEAD = b"\xc0", b"\x93"
CLAIM = b"\xff\xff\xff\xff"
"""A length in 32 bits: four thousand millions."""

_DIFFERENT = b"".join(b"\xa4%04x\xa0" % number for number in range(65536))
"""Headers with empty values."""


@dataclass(frozen=True)
class Bomb:
    """A body, and its envelope's claims about it."""

    name: str
    raw: bytes
    """Before compression."""
    count: int = 1
    widened: int = 0
    """How many bytes of a string a byte of it takes; 0 if no string is built from it."""
    stored: bool = True
    """Whether it is also refused where only memory is bounded."""


def sealed(
    body: bytes, *, count: int = 1, flags: int = 0, raw_size: int | None = None, seq: int = 1
) -> bytes:
    """A body in a frame whose checksums are right."""
    size = len(body) if raw_size is None else raw_size
    envelope = data.Envelope(
        data.BODY_VERSION, flags, "evil", "orders", 0, 10, 7, seq, count, None, 5, 6, len(body), zlib.crc32(body), size
    )  # fmt: skip
    packed = msgspec.msgpack.encode(envelope)
    return struct.pack(">4sHI", data.MAGIC, len(packed), zlib.crc32(packed)) + packed + body


def squeezed(raw: bytes, *, count: int = 1, seq: int = 1) -> bytes:
    """The same, compressed."""
    packed = zstandard.ZstdCompressor(level=3).compress(raw)
    return sealed(packed, count=count, flags=data.FLAG_ZSTD, raw_size=len(raw), seq=seq)


def bombs(size: int) -> Iterator[Bomb]:
    """Bodies of at most `size` bytes, all of them invalid."""
    n = size - 64
    long = struct.pack(">I", n)
    body = b"\x91\xc4\x01x"
    yield Bomb("bodies of 4 G", HEAD + b"\xdd" + CLAIM)
    yield Bomb("a body of 4 G", HEAD + b"\x91\xc6" + CLAIM)
    yield Bomb("keys of 4 G", HEAD + body + b"\xdd" + CLAIM)
    yield Bomb("a key of 4 G", HEAD + body + b"\x91\xdb" + CLAIM)
    yield Bomb("headers of 4 G", HEAD + body + NIL + b"\xdd" + CLAIM)
    yield Bomb("4 G headers", HEAD + body + NIL + b"\x91\xdf" + CLAIM)
    yield Bomb("a map for an array", HEAD + b"\xdf" + CLAIM)
    yield Bomb("an extension for an array", HEAD + b"\xc9" + CLAIM + b"\x01")
    yield Bomb("empty bodies", HEAD + b"\xdd" + struct.pack(">I", n // 2) + b"\xc4\x00" * (n // 2) + NIL * 2)
    yield Bomb("nil keys", HEAD + body + b"\xdd" + long + NIL * n + NIL)
    yield Bomb("empty keys", HEAD + body + b"\xdd" + long + b"\xa0" * n + NIL)
    yield Bomb("empty headers", HEAD + body + NIL + b"\xdd" + long + b"\x80" * n)
    yield Bomb("empty arrays for headers", HEAD + body + NIL + b"\xdd" + long + b"\x90" * n)
    items = (_DIFFERENT * (n // 6 // 65536 + 1))[: n // 6 * 6]
    yield Bomb("many headers", HEAD + body + NIL + b"\x91\xdf" + struct.pack(">I", n // 6) + items)
    yield Bomb("a long key", HEAD + body + b"\x91\xdb" + long + b"k" * n + NIL, widened=1)
    wide = "\U0001f4a3".encode() + b"k" * (n - 4)
    yield Bomb("a long key of wide letters", HEAD + body + b"\x91\xdb" + long + wide + NIL, widened=5)
    value = b"\xdb" + struct.pack(">I", n - 16) + b"v" * (n - 16)
    yield Bomb("a long header", HEAD + body + NIL + b"\x91\x81\xa1a" + value, widened=1, stored=False)
    yield Bomb("nested arrays", b"\x91" * n)
    yield Bomb("nested arrays behind the fields that are read", b"\x94" + body + NIL * 2 + b"\x91" * n)
    yield Bomb("fewer than claimed", HEAD + body + NIL * 2, 65_536)
    yield Bomb("keys for one", HEAD + b"\x92\xc4\x00\xc4\x00\x91" + NIL + NIL, 2)
    yield Bomb("no array at all", b"\xc6" + struct.pack(">I", n) + bytes(n))
    yield Bomb("nothing", b"")


def bomb_named(name: str, size: int) -> Bomb:
    """One of them. Tests are collected with small ones: all large ones together take 100 MB."""
    return next(bomb for bomb in bombs(size) if bomb.name == name)


def _control_frame(kind: int, body: bytes) -> bytes:
    head = struct.pack(">4sBHI", control.MAGIC, kind, len(body), zlib.crc32(body, kind))
    return head + body


def control_bombs() -> Iterator[tuple[str, bytes]]:
    """Control frames of at most 64 KiB, all of them invalid."""
    status = b"\x9d\x01\xa1p\x01\x01\x01\x01\x01\x00\xc3\xaforders"
    fill = 60_000
    wide = b"\xdc\xea\x60"  # an array of 60,000
    place = b"\xa6orders\x00"
    for name, streams in {
        "streams of 4 G": b"\xdd" + CLAIM,
        "empty streams": wide + b"\x90" * fill,
        "a chain of 4 G": b"\x91\x93" + place + b"\xdd" + CLAIM,
        "a long chain": b"\x91\x93" + place + b"\xdc\x2e\xe0" + b"\x94\x01\x01\x01\x01" * 12_000,
        "removed ranges": b"\x91\x94" + place + b"\x90\xdc\x3a\x98" + b"\x93\x01\x01\x01" * 15_000,
        "groups": b"\x91\x95" + place + b"\x90\x90\xdf" + CLAIM,
        "nested": b"\x91" * fill,
    }.items():
        yield f"status: {name}", _control_frame(1, status[:1] + status[1:10] + b"\xa1t" + streams)
    state = b"\x9b\x01\xa1g\xa1i\x01\x01\xa1t\xa1p\xa6active"
    for name, rest in {
        "a nonce of 4 G": b"\xc6" + CLAIM,
        "streams of 4 G": b"\xc4\x00\xdd" + CLAIM,
        "missing ranges": b"\xc4\x00\x91\x96"
        + place
        + b"\x92\x00\x01\x92\x00\x00\x00\xdc\x3a\x98"
        + b"\x93\x01\x01\x01" * 15_000,
    }.items():
        yield f"state: {name}", _control_frame(2, state + rest)
