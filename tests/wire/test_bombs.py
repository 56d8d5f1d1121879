"""The cost of a frame follows from its size and the limits of messages, never from its claims."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.config import (
    MAX_HEADER_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    _is_unsafe,
)
from reliamsg.consumer.intake import Rejected, examine, examine_repair
from reliamsg.errors import ConfigError, MessageTooLarge
from reliamsg.message import Stream
from reliamsg.transport.base import Delivery
from reliamsg.wire import data
from reliamsg.wire.application import check_bodies, check_headers, check_key
from reliamsg.wire.control import open_control
from reliamsg.wire.data import CONTENT_TYPE, FrameError, Records, frames_of, open_frame
from reliamsg.wire.limits import MAX_FRAME_BYTES
from reliamsg.wire.plain import decode_plain
from tests.wire.bombs import bomb_named, bombs, control_bombs, sealed, squeezed

SIZE, SMALL = 4 << 20, 4 << 10
SLACK = 1_000_000
"""Bytes that any decoding may take."""


def peak_of(work: Callable[[], object]) -> int:
    """Peak memory meanwhile."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def refused(raw: bytes, trusted: bool = False, limit: int = SIZE + 4096) -> None:
    with pytest.raises(FrameError) as caught:
        open_frame(raw, limit).records(trusted=trusted)
    assert caught.value.reason == "undecodable"


CASES = [
    (bomb.name, trusted) for bomb in bombs(SMALL) for trusted in (False, True) if bomb.stored or not trusted
]


@pytest.mark.parametrize("pack", [sealed, squeezed], ids=["plain", "zstd"])
@pytest.mark.parametrize(
    ("name", "trusted"),
    CASES,
    ids=[f"{name}, {'stored' if trusted else 'received'}" for name, trusted in CASES],
)
def test_a_body_that_claims_more_than_it_holds(name: str, pack: Callable[..., bytes], trusted: bool) -> None:
    bomb = bomb_named(name, SIZE)
    raw = pack(bomb.raw, count=bomb.count)
    # The frame, the uncompressed body, and a text of four bytes per character while it is built.
    most = len(raw) + len(bomb.raw) * (1 + bomb.widened) + SLACK
    assert peak_of(lambda: refused(raw, trusted)) < most


def test_a_body_is_not_decompressed_beyond_what_its_messages_can_take() -> None:
    raw = squeezed(bytes(15 << 20), count=1)
    assert len(raw) < 4096
    assert peak_of(lambda: refused(raw, limit=MAX_FRAME_BYTES)) < SLACK


def test_what_zstd_announces_is_bounded() -> None:
    plain = bytes(100)
    packer = zstandard.ZstdCompressor(level=3, write_content_size=False)
    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    for body in (
        packer.compress(bytes(60 << 20)),
        zstandard.ZstdCompressor(level=3).compress(bytes(60 << 20)),
        zstandard.ZstdCompressor(level=3).compress(plain) * 1000,
        zstandard.ZstdCompressor(compression_params=wide).compressobj().compress(bytes(60 << 20)),
        b"\x28\xb5\x2f\xfd" + b"\xff" * 20,
    ):
        raw = sealed(body, flags=data.FLAG_ZSTD, raw_size=100)
        assert peak_of(lambda raw=raw: refused(raw)) < len(raw) + SLACK  # type: ignore[misc]


@pytest.mark.parametrize("name", [bomb.name for bomb in bombs(SMALL)])
def test_every_way_into_a_consumer(name: str) -> None:
    """A bomb in a delivery, in a repair and in a message of the plain format is treated as opaque bytes."""
    bomb = bomb_named(name, SIZE)
    raw = squeezed(bomb.raw, count=bomb.count)
    topics = {"orders": ("orders", 0)}

    def come_in() -> None:
        for found in (
            examine(Delivery(0, "orders", raw, CONTENT_TYPE, {}), topics, SIZE + 4096),
            examine_repair(raw, topics, SIZE + 4096),
        ):
            assert not isinstance(found, Rejected) or found.reason == "malformed"
        with pytest.raises(FrameError):
            decode_plain(raw, {"rm-v": "1", **{f"h{n}": "v" for n in range(500)}})

    assert peak_of(come_in) < 2 * len(raw) + SLACK


@pytest.mark.parametrize(("name", "raw"), list(control_bombs()), ids=[name for name, _ in control_bombs()])
def test_control_frames(name: str, raw: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(FrameError):
            open_control(raw, "orders")

    assert peak_of(refuse) < len(raw) * 2 + SLACK


@given(
    st.lists(
        st.sampled_from(
            [
                b"\xc0", b"\xa0", b"\x80", b"\x90", b"\x91", b"\x93", b"\x81", b"\xa1a", b"\xc4\x00",
                b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff",
                b"\xde\xff\xff", b"\xdb\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xff", b"\xc0" * 5000, b"\x80" * 5000, b"\x91" * 5000, b"\xc4\x00" * 5000,
            ]
        ),
        max_size=40,
    ),
    st.integers(1, 65_536),
)  # fmt: skip
def test_any_sequence_of_heads(pieces: list[bytes], count: int) -> None:
    raw = b"\x93" + b"".join(pieces)
    frame = open_frame(squeezed(raw, count=count))

    def decode() -> None:
        with contextlib.suppress(FrameError):
            frame.records()

    assert peak_of(decode) < 2 * len(raw) + 72 * count + SLACK


@pytest.mark.parametrize(("count", "size"), [(1, 300_000), (50, 6_000)])
def test_compressed_batches_arrive_where_frames_are_small(count: int, size: int) -> None:
    """A batch that is over a site's limit before compression, but not after it."""
    limit = 100_000
    raw = data.encode(
        data.Origin(Stream("p", "orders"), 1, 1), 1, (1, 1), Records([bytes(size)] * count), compress=True
    )
    assert len(raw) < limit < open_frame(raw).envelope.raw_size
    got = [open_frame(part, limit).records().bodies for part in frames_of(raw, limit)]
    assert [body for bodies in got for body in bodies] == [bytes(size)] * count


# -- messages that publish() would have refused ------------------------------------------------------------------

odd_text = st.text(max_size=300) | st.sampled_from(
    ["", "rm-seq", "RM-x", "a\x00b", "a\r\nb", "\x9b2J", "x" * MAX_HEADER_BYTES, "x" * (MAX_HEADER_BYTES + 1),
     "x" * MAX_HEADER_VALUE_BYTES, "x" * (MAX_HEADER_VALUE_BYTES + 1), "ü" * MAX_HEADER_VALUE_BYTES,
     "ü" * MAX_KEY_BYTES, "\ufdd0", "k" * (MAX_KEY_BYTES + 1)]
)  # fmt: skip
odd_headers = st.dictionaries(odd_text, odd_text, max_size=3) | st.sampled_from(
    [{f"h{n}": "v" for n in range(most)} for most in (MAX_HEADERS, MAX_HEADERS + 1, 500)]
    + [{f"h{n}": "v" * MAX_HEADER_VALUE_BYTES for n in range(most)} for most in (7, 8)]
)


def publishable(records: Records) -> bool:
    try:
        check_bodies(records.bodies)
        for key in records.keys or ():
            check_key(key)
        for headers in records.headers or ():
            check_headers(headers)
    except (ConfigError, MessageTooLarge):
        return False
    return True


@given(
    st.lists(
        st.tuples(st.binary(max_size=20), st.none() | odd_text, st.none() | odd_headers),
        min_size=1,
        max_size=4,
    )
)
def test_decoded_batches_could_have_been_published(
    rows: list[tuple[bytes, str | None, dict[str, str] | None]],
) -> None:
    records = Records([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
    frame = open_frame(sealed(msgspec.msgpack.encode(records), count=len(rows)))
    try:
        found = frame.records()
    except FrameError:
        assert not publishable(records)
    else:
        assert publishable(records)
        assert found == records


def column_of(text: str, place: str, others: int) -> Records:
    """A batch with `text` as the key, a header's name or its value of one message in the middle of ordinary ones."""
    n = 2 * others + 1
    headers: list[dict[str, str] | None] = [{"account": "Zoë", "trace": "0" * 55}] * n
    keys: list[str | None] = ["k"] * n
    if place == "key":
        keys[others] = text
    else:
        headers[others] = {"account": text} if place == "value" else {text: "A"}
    return Records([b"x"] * n, keys, headers)


def decodes(records: Records) -> bool:
    frame = open_frame(sealed(msgspec.msgpack.encode(records), count=len(records.bodies)), MAX_FRAME_BYTES)
    try:
        return frame.records() == records
    except FrameError:
        return False


@pytest.mark.parametrize("place", ["key", "name", "value"])
def test_one_among_many(place: str) -> None:
    """Columns are cleared as a whole: no message in them can hide behind the others."""
    texts = [chr(code) for code in range(0x110000) if _is_unsafe(code)]
    assert len(texts) == 32 + 33 + 32 + 34
    texts += [
        "",
        "rm-x",
        "Rm-x",
        "rM-",
        "RM",
        "é",
        "°",
        "，",
        "\U0001f4a3",
        "ж\u0660",
        "a b",
        "\u00a0",
        "\ue000",
        "\u07ff",
    ]
    texts += [
        letter * n for letter in "aéж\U0001f4a3" for n in (31, 32, 63, 64, 127, 128, 194, 239, 240, 255, 256)
    ]
    if place == "value":
        texts += [
            letter * (n // len(letter.encode())) for letter in "aé\U0001f4a3" for n in (8_188, 8_192, 8_196)
        ]
    for text in texts:
        records = column_of(text, place, 10)
        assert decodes(records) == publishable(records), text
    for text in ("\x00", "\x9f", "\ufffe", "a" * 8_193):  # in a column of several slices
        assert not decodes(column_of(text, place, 5_000))


def test_names_beyond_those_that_are_remembered() -> None:
    for base in (0, 3_000, 0):
        records = Records([b"x"] * 3_000, None, [{f"h{base + n}": "v"} for n in range(3_000)])
        assert decodes(records)
    assert not decodes(
        Records([b"x"] * 3_000, None, [{f"h{n}" if n < 2_999 else "rm-h": "v"} for n in range(3_000)])
    )


def test_frames_that_end_as_if_they_were_bodies_alone() -> None:
    """The two bytes of a batch without keys and headers may be the end of something else."""
    pack = msgspec.msgpack.encode
    for fields, count in (
        ([[b"\xc0\xc0"], None, None], 1),
        ([[b"x"], [None], None], 1),
        ([[b"x", b"y"], ["k", None], None], 2),
        ([[b"x", b"y"], [None, None], [None, None]], 2),
        ([[b"x"]], 1),
        ([[b"\xc0\xc0"]], 1),
        ([[b"x"], None, None, None], 1),
    ):
        found = open_frame(sealed(pack(fields), count=count)).records()
        assert found == Records(*fields[:3])
        assert open_frame(sealed(pack(fields), count=count)).records(trusted=True) == found
        refused(sealed(pack(fields), count=count + 1))
    for wrong in (
        b"",
        b"\x93",
        b"\xc0\xc0",
        b"\x93\xc0\xc0",
        b"\x93\x91\xc0\xc0",
        b"\x93\x91\xc4\x01\xc0\xc0",
        b"\x93\xdc\xc0\xc0",
    ):
        refused(sealed(wrong))


@pytest.mark.parametrize(
    "records",
    [Records([b"x"], None, [{"RM-x": "1"}]), Records([b"x"], None, [{"a": "\x1b[2J"}]), Records([b"x"], ["a\x1bb"])],
    ids=["a reserved header", "an escape in a header", "an escape in a key"],
)  # fmt: skip
def test_what_publish_refuses_is_refused(records: Records) -> None:
    frame = open_frame(sealed(msgspec.msgpack.encode(records)))
    with pytest.raises(FrameError):
        frame.records()
    assert frame.records(trusted=True) == records


def test_a_body_over_the_limit_of_one_message() -> None:
    for size, fits in ((MAX_MESSAGE_BYTES, True), (MAX_MESSAGE_BYTES + 1, False)):
        frame = open_frame(sealed(msgspec.msgpack.encode(Records([bytes(size)]))))
        if fits:
            assert len(frame.records().bodies[0]) == size
        else:
            with pytest.raises(FrameError):
                frame.records()
            assert len(frame.records(trusted=True).bodies[0]) == size


@pytest.mark.parametrize(
    "headers",
    [{"RM-x": "1"}, {"a\r\nSet-Cookie: x": "1"}, {"a": "\x1b[2J"}, {"": "1"},
     {f"h{n}": "v" for n in range(MAX_HEADERS + 1)}],
    ids=["reserved", "line break", "escape", "no name", "many"],
)  # fmt: skip
def test_headers_of_the_plain_form(headers: dict[str, str]) -> None:
    from reliamsg.wire.plain import _checksum, encode_plain

    (message,) = encode_plain(
        open_frame(data.encode(data.Origin(Stream("p", "orders"), 1, 1), 1, (1, 1), Records([b"x"])))
    )
    own = message.headers | headers
    application = {name: value for name, value in own.items() if not name.startswith("rm-")}
    own["rm-sum"] = _checksum(own, application, message.body)
    with pytest.raises(FrameError) as caught:
        decode_plain(message.body, own)
    assert caught.value.reason == "malformed"
