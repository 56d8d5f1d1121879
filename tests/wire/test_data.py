"""The data frame: encoding and decoding are inverse, and anything else is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.message import Prev, Stream
from reliamsg.wire import data, limits
from tests.wire import strategies

STREAM = Stream("gateway-7", "orders", 3)


def sample(compress: bool = False, count: int = 3, size: int = 10) -> bytes:
    bodies = [bytes([65 + i % 26]) * size for i in range(count)]
    return data.encode(
        data.Origin(STREAM, 7, 99, Prev(6, 98, 12)),
        1000,
        (5, 6),
        data.make_records(bodies, ["k", *[None] * (count - 1)], [None] * (count - 1) + [{"a": "b"}]),
        compress=compress,
    )


def envelope_fields(**changes: object) -> dict[str, object]:
    frame = data.open_frame(sample())
    return msgspec.structs.asdict(frame.envelope) | changes


def forge(body: bytes = b"", magic: bytes = b"RMB1", **changes: object) -> bytes:
    """A frame with valid checksums and arbitrary fields."""
    fields = envelope_fields(body_size=len(body), body_crc=zlib.crc32(body), raw_size=len(body)) | changes
    packed = msgspec.msgpack.encode(list(fields.values()))
    return struct.pack(">4sHI", magic, len(packed), zlib.crc32(packed)) + packed + body


def reason(raw: bytes) -> str:
    with pytest.raises(data.FrameError) as caught:
        data.open_frame(raw).records()
    return caught.value.reason


class TestRoundTrip:
    @given(strategies.frames())
    def test_encoding_and_decoding_are_inverse(self, raw: bytes) -> None:
        frame = data.open_frame(raw)
        envelope, records = frame.envelope, frame.records()
        again = data.encode(
            data.Origin(
                envelope.stream, envelope.epoch, envelope.incarnation, envelope.previous, moved=envelope.moved
            ),
            envelope.seq,
            (envelope.ts_first, envelope.ts_last),
            records,
            compress=bool(envelope.flags & data.FLAG_ZSTD),
        )
        assert again == raw

    @pytest.mark.parametrize("compress", [False, True])
    def test_fields(self, compress: bool) -> None:
        frame = data.open_frame(sample(compress, count=100, size=100))
        envelope = frame.envelope
        assert envelope.stream == STREAM
        assert (envelope.epoch, envelope.incarnation) == (7, 99)
        assert (envelope.seq, envelope.count, envelope.last) == (1000, 100, 1099)
        assert envelope.previous == Prev(6, 98, 12)
        assert (envelope.ts_first, envelope.ts_last) == (5, 6)
        assert bool(envelope.flags & data.FLAG_ZSTD) == compress
        records = frame.records()
        assert records.bodies[1] == b"B" * 100
        assert records.keys is not None
        assert records.keys[:2] == ["k", None]
        assert records.headers is not None
        assert records.headers[-1] == {"a": "b"}

    def test_the_form_does_not_change_between_releases(self) -> None:
        assert sample().hex() == (
            "524d42310028d96c24f99f0100a9676174657761792d37a66f7264657273030763cd03e8039306620c050633ce"
            "c94f775d339393c40a41414141414141414141c40a42424242424242424242c40a4343434343434343434393a1"
            "6bc0c093c0c081a161a162"
        )

    def test_absent_columns_cost_nothing(self) -> None:
        records = data.make_records([b"a", b"b"], [None, None], [None, {}])
        assert records.keys is None
        assert records.headers is None

    def test_compression_that_does_not_help_is_left_out(self) -> None:
        raw = data.encode(data.Origin(STREAM, 1, 1), 1, (0, 0), data.Records([b"x"]), compress=True)
        assert data.open_frame(raw).envelope.flags == 0


class TestDamage:
    @pytest.mark.parametrize("compress", [False, True])
    def test_truncated_anywhere(self, compress: bool) -> None:
        raw = sample(compress, count=50)
        for size in range(len(raw)):
            assert reason(raw[:size]) in {"malformed", "undecodable"}, size

    @pytest.mark.parametrize("compress", [False, True])
    def test_every_single_bit_flipped(self, compress: bool) -> None:
        raw = sample(compress, count=50)
        for i in range(len(raw) * 8):
            flipped = bytearray(raw)
            flipped[i // 8] ^= 1 << i % 8
            assert reason(bytes(flipped)), i

    def test_trailing_bytes(self) -> None:
        assert reason(sample() + b"\0") == "undecodable"

    def test_damaged_body_still_tells_which_messages_it_held(self) -> None:
        raw = sample()
        frame = data.open_frame(raw[:-1] + bytes([raw[-1] ^ 1]))
        assert not frame.intact()
        assert (frame.envelope.seq, frame.envelope.last) == (1000, 1002)
        assert data.open_frame(raw).intact()

    @given(st.binary(max_size=300))
    def test_anything_at_all(self, raw: bytes) -> None:
        assert reason(raw) in {"malformed", "unknown-version"}

    @given(st.binary(max_size=300))
    def test_anything_at_all_as_envelope(self, packed: bytes) -> None:
        assert reason(struct.pack(">4sHI", b"RMB1", len(packed), zlib.crc32(packed)) + packed) == "malformed"

    @given(st.binary(max_size=300))
    def test_anything_at_all_as_body(self, body: bytes) -> None:
        assert reason(forge(body)) == "undecodable"


class TestLimits:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("producer", ""),
            ("producer", "p" * 101),
            ("topic", "a/#"),
            ("topic", "a~1"),
            ("partition", -1),
            ("partition", limits.MAX_PARTITION + 1),
            ("epoch", 0),
            ("epoch", limits.MAX_EPOCH),
            ("incarnation", -1),
            ("seq", 0),
            ("seq", 2**63),
            ("seq", limits.MAX_SEQ),  # the third message would be beyond
            ("count", 0),
            ("count", limits.MAX_BATCH_MESSAGES + 1),
            ("count", 2**63),
            ("prev", (7, 1, 1)),  # not before this epoch
            ("prev", (0, 1, 1)),
            ("prev", (6, 1, 0)),
            ("prev", (6, 1)),
            ("ts_first", -1),
            ("body_size", limits.MAX_FRAME_BYTES + 1),
            ("raw_size", limits.MAX_FRAME_BYTES + 1),
            ("epoch", "7"),
            ("producer", 7),
            ("producer", None),
        ],
    )
    def test_a_field_out_of_range(self, field: str, value: object) -> None:
        changes: dict[str, Any] = {field: value}
        with pytest.raises(data.FrameError) as caught:
            data.open_frame(forge(**changes))
        assert caught.value.reason == "malformed"

    def test_highest_numbers(self) -> None:
        records = data.Records([b""])
        raw = data.encode(
            data.Origin(
                STREAM,
                limits.MAX_EPOCH - 1,
                limits.MAX_INCARNATION,
                Prev(limits.MAX_EPOCH - 2, limits.MAX_INCARNATION, limits.MAX_SEQ),
            ),
            limits.MAX_SEQ,
            (limits.MAX_SEQ, limits.MAX_SEQ),
            records,
        )
        assert data.open_frame(raw).envelope.last == limits.MAX_SEQ

    def test_oversized(self) -> None:
        with pytest.raises(data.FrameError) as caught:
            data.open_frame(sample(), limit=20)
        assert caught.value.reason == "oversized"

    def test_envelope_over_its_limit(self) -> None:
        packed = b"\xc6" + struct.pack(">I", 60_000) + bytes(60_000)
        assert reason(struct.pack(">4sHI", b"RMB1", len(packed), zlib.crc32(packed)) + packed) == "malformed"

    def test_unknown_version_of_the_envelope(self) -> None:
        assert reason(forge(magic=b"RMB2")) == "unknown-version"

    def test_unknown_version_of_the_body(self) -> None:
        raw = forge(version=2)
        assert data.open_frame(raw).envelope.count == 3
        assert reason(raw) == "undecodable"

    def test_unknown_flag(self) -> None:
        assert reason(forge(flags=4)) == "undecodable"

    def test_fields_that_a_later_version_adds_are_ignored(self) -> None:
        fields = [*envelope_fields().values(), "something new"]
        packed = msgspec.msgpack.encode(fields)
        raw = struct.pack(">4sHI", b"RMB1", len(packed), zlib.crc32(packed)) + packed
        assert data.open_frame(raw).envelope.stream == STREAM

    @pytest.mark.parametrize("column", ["bodies", "keys", "headers"])
    def test_a_column_of_another_length(self, column: str) -> None:
        columns: dict[str, list[Any]] = {"bodies": [b"a"] * 3, "keys": ["k"] * 3, "headers": [{"a": "b"}] * 3}
        columns[column] = columns[column][:2]
        assert reason(forge(msgspec.msgpack.encode(list(columns.values())))) == "undecodable"

    def test_deeply_nested_body(self) -> None:
        assert reason(forge(b"\x91" * 100_000 + b"\xc0")) == "undecodable"

    def test_array_that_claims_four_billion_elements(self) -> None:
        assert reason(forge(b"\x91\xdd\xff\xff\xff\xff")) == "undecodable"


class TestCompressedBomb:
    """Decompression is bounded by the envelope, whatever the compressed bytes claim."""

    @pytest.mark.parametrize("announced", [True, False])
    def test_more_than_the_envelope_says(self, announced: bool) -> None:
        size = 256 * 1024 * 1024
        maker = zstandard.ZstdCompressor(write_content_size=announced).compressobj(
            size=size if announced else -1
        )
        bomb = b"".join([*(maker.compress(bytes(1 << 20)) for _ in range(size >> 20)), maker.flush()])
        raw = forge(bomb, flags=data.FLAG_ZSTD, raw_size=1000)
        tracemalloc.start()
        assert reason(raw) == "undecodable"
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000_000

    def test_claims_more_than_memory_holds(self) -> None:
        # Frame header: magic, descriptor "8-byte content size, single segment", the size; then nothing.
        body = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", 2**50)
        assert reason(forge(body, flags=data.FLAG_ZSTD, raw_size=1000)) == "undecodable"

    def test_less_than_the_envelope_says(self) -> None:
        body = zstandard.compress(b"\x91\x90")
        assert reason(forge(body, flags=data.FLAG_ZSTD, raw_size=1000)) == "undecodable"

    def test_nothing(self) -> None:
        assert reason(forge(zstandard.compress(b""), flags=data.FLAG_ZSTD, raw_size=0)) == "undecodable"


class TestSplit:
    @given(strategies.frames(max_count=40), st.integers(100, 2000))
    def test_the_same_messages_in_smaller_frames(self, raw: bytes, limit: int) -> None:
        whole = data.open_frame(raw)
        parts = [data.open_frame(part) for part in data.split(whole, limit)]
        expected = whole.envelope.seq
        bodies: list[bytes] = []
        content: list[tuple[object, object]] = []
        for part in parts:
            assert len(part.data) <= limit or part.envelope.count == 1
            assert part.envelope.seq == expected
            assert part.envelope.stream == whole.envelope.stream
            assert part.envelope.previous == whole.envelope.previous
            expected = part.envelope.last + 1
            bodies += part.records().bodies
            content += columns(part)
        assert expected == whole.envelope.last + 1
        assert bodies == whole.records().bodies
        assert content == columns(whole)

    def test_a_message_over_the_limit_stays_whole(self) -> None:
        raw = sample(count=2, size=5000)
        parts = data.split(data.open_frame(raw), 1000)
        assert [data.open_frame(part).envelope.seq for part in parts] == [1000, 1001]

    def test_within_the_limit_nothing_is_encoded_again(self) -> None:
        raw = sample()
        assert data.split(data.open_frame(raw), len(raw))[0] is raw


def columns(frame: data.Frame) -> list[tuple[object, object]]:
    records, count = frame.records(), frame.envelope.count
    return list(zip(records.keys or [None] * count, records.headers or [None] * count, strict=True))
