"""The plain format: ordinary messages that still carry the whole identity."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given

from reliamsg.message import MessageId, Prev, Stream
from reliamsg.wire import data, limits
from reliamsg.wire.plain import PlainMessage, decode_plain, encode_plain, is_plain
from tests.wire import strategies

STREAM = Stream("gateway-7", "orders", 3)


def sample() -> PlainMessage:
    records = data.make_records([b"body"], ["key"], [{"account": "A", "traceparent": "00-1-2-3"}])
    raw = data.encode(data.Origin(STREAM, 7, 99, Prev(6, 98, 12)), 1000, (5, 5), records)
    return encode_plain(data.open_frame(raw))[0]


def resealed(**changes: str | None) -> dict[str, str]:
    """The sample's headers with others in place (None: left out) and a matching checksum."""
    headers = dict(sample().headers)
    for name, value in changes.items():
        full = "rm-" + name
        headers.pop(full, None)
        if value is not None:
            headers[full] = value
    return seal(headers, b"body")


def seal(headers: dict[str, str], body: bytes) -> dict[str, str]:
    from reliamsg.wire.plain import _checksum

    own = {name: value for name, value in headers.items() if name.startswith("rm-")}
    application = {name: value for name, value in headers.items() if not name.startswith("rm-")}
    return headers | {"rm-sum": _checksum(own, application, body)}


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(data.FrameError) as caught:
        call()
    return caught.value.reason


@given(strategies.frames())
def test_round_trip(raw: bytes) -> None:
    frame = data.open_frame(raw)
    records = frame.records()
    messages = encode_plain(frame)
    assert len(messages) == frame.envelope.count
    for i, message in enumerate(messages):
        back = decode_plain(message.body, message.headers)
        envelope = back.envelope
        assert message.body == records.bodies[i]
        assert back.records().bodies == [records.bodies[i]]
        assert (back.records().keys or [None])[0] == (records.keys[i] if records.keys else None)
        expected = records.headers[i] if records.headers else None
        assert (back.records().headers or [None])[0] == (expected or None)
        assert envelope.seq == message.seq == frame.envelope.seq + i
        assert envelope.count == 1
        assert envelope.stream == frame.envelope.stream
        assert envelope.previous == frame.envelope.previous
        assert (envelope.epoch, envelope.incarnation) == (frame.envelope.epoch, frame.envelope.incarnation)
        assert envelope.ts_first == envelope.ts_last == message.timestamp_us
        producer, topic, partition = envelope.stream
        assert message.message_id == str(MessageId(producer, envelope.epoch, topic, partition, envelope.seq))


def test_headers_are_the_published_names() -> None:
    message = sample()
    checksum = message.headers["rm-sum"]
    assert message.headers == {
        "rm-v": "1",
        "rm-producer": "gateway-7",
        "rm-epoch": "7",
        "rm-inc": "99",
        "rm-topic": "orders",
        "rm-part": "3",
        "rm-seq": "1000",
        "rm-prev": "6:98:12",
        "rm-ts": "5",
        "rm-key": "key",
        "rm-sum": checksum,
        "account": "A",
        "traceparent": "00-1-2-3",
    }
    assert message.message_id == "gateway-7/7/orders/3/1000"
    assert is_plain(message.headers)
    assert not is_plain({"account": "A"})


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"content-type": "application/json"}, "application/json"),
        ({"content-type": "x" * 255}, "x" * 255),
        ({"content-type": "x" * 254 + "ä"}, None),
        ({"content-type": data.CONTENT_TYPE}, None),
        ({"Content-Type": "application/json"}, None),
        ({"account": "A"}, None),
        ({}, None),
    ],
)
def test_the_content_type_is_that_of_the_application(headers: dict[str, str], found: str | None) -> None:
    records = data.make_records([b"body"], [None], [headers])
    (message,) = encode_plain(data.open_frame(data.encode(data.Origin(STREAM, 7, 99), 1, (5, 5), records)))
    assert message.content_type == found
    assert headers.items() <= message.headers.items()
    assert decode_plain(b"body", message.headers).records().headers in ([headers], None)


def test_the_checksum_does_not_change_between_releases() -> None:
    assert sample().headers["rm-sum"] == "97eb499b"


def test_times_of_a_batch() -> None:
    raw = data.encode(data.Origin(STREAM, 1, 1), 1, (5, 9), data.Records([b"", b"", b""]))
    assert [m.timestamp_us for m in encode_plain(data.open_frame(raw))] == [5, 9, 9]


def test_an_undecodable_batch_can_not_be_sent_plain() -> None:
    raw = data.encode(data.Origin(STREAM, 1, 1), 1, (5, 9), data.Records([b"abc"]))
    assert reason(lambda: encode_plain(data.open_frame(raw[:-1]))) == "undecodable"


def test_every_bit_of_the_body_and_of_every_header_counts() -> None:
    message = sample()
    for i in range(len(message.body) * 8):
        body = bytearray(message.body)
        body[i // 8] ^= 1 << i % 8
        assert reason(lambda body=bytes(body): decode_plain(body, message.headers)) == "corrupt"  # type: ignore[misc]
    for name, value in message.headers.items():
        for changed in (value + "0", value[:-1], value[:-1] + chr(ord(value[-1]) ^ 1)):
            headers = message.headers | {name: changed}
            found = reason(lambda headers=headers: decode_plain(message.body, headers))  # type: ignore[misc]
            assert found in {"corrupt", "unknown-version"}, name
        without = {other: v for other, v in message.headers.items() if other != name}
        assert reason(lambda without=without: decode_plain(message.body, without)) in {"corrupt", "malformed"}  # type: ignore[misc]


def test_moving_text_between_headers_is_noticed() -> None:
    message = sample()
    headers = {name: value for name, value in message.headers.items() if name not in {"account"}}
    assert reason(lambda: decode_plain(message.body, headers | {"accoun": "tA"})) == "corrupt"


def test_headers_that_brokers_add() -> None:
    message = sample()
    added = {"x-shovelled": "yes", "rm-sig": "later", "rm-new": "later still"}
    assert decode_plain(message.body, message.headers | added).records().headers == [
        {"account": "A", "traceparent": "00-1-2-3"}
    ]
    headers = seal(message.headers | {"x-mine": "1"}, message.body)
    assert (decode_plain(message.body, headers).records().headers or [None])[0] == {
        "account": "A",
        "traceparent": "00-1-2-3",
        "x-mine": "1",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"producer": ""},
        {"producer": None},
        {"producer": "p" * 60_000},
        {"topic": "a/#"},
        {"topic": "t" * 101},
        {"epoch": "0"},
        {"epoch": "-1"},
        {"epoch": "٣"},
        {"epoch": "1" * 100_000},
        {"epoch": None},
        {"inc": str(2**64)},
        {"part": "65536"},
        {"seq": "0"},
        {"seq": str(2**63)},
        {"seq": "1e3"},
        {"seq": " 1"},
        {"prev": ""},
        {"prev": "1:2"},
        {"prev": "1:2:3:4"},
        {"prev": "7:1:1"},
        {"prev": "1:2:x"},
        {"ts": str(2**63)},
        {"ts": None},
        {"key": "k" * 256},
    ],
)
def test_a_header_out_of_range(change: dict[str, str | None]) -> None:
    assert reason(lambda: decode_plain(b"body", resealed(**change))) == "malformed"


def test_application_headers_over_their_limits() -> None:
    many = {f"h{i}": "" for i in range(65)}
    for extra in (many, {"n" * 256: ""}, {"n": "é" * 4_097}, {f"h{i}": "v" * 8_191 for i in range(8)}):
        headers = seal(sample().headers | extra, b"body")
        assert reason(lambda headers=headers: decode_plain(b"body", headers)) == "malformed"  # type: ignore[misc]


def test_text_that_is_no_unicode() -> None:
    for name in ("rm-producer", "rm-key", "account", "\ud800"):
        headers = sample().headers | {name: "\ud800"}
        assert reason(lambda headers=headers: decode_plain(b"body", headers)) == "malformed"  # type: ignore[misc]


def test_versions_and_size() -> None:
    assert reason(lambda: decode_plain(b"body", resealed(v="2"))) == "unknown-version"
    assert reason(lambda: decode_plain(b"body", {})) == "malformed"
    assert reason(lambda: decode_plain(bytes(101), sample().headers, limit=100)) == "oversized"
    # The identity does not count against the limit: a body that just fits has passed.
    raw = data.encode(data.Origin(STREAM, 1, 1), 1, (5, 9), data.Records([bytes(2000)]))
    message = encode_plain(data.open_frame(raw))[0]
    assert decode_plain(message.body, message.headers, limit=2000).envelope.count == 1


def test_random_headers_never_raise_anything_else(seeded: random.Random) -> None:
    rng = seeded
    values = [
        "",
        "1",
        "0",
        "-1",
        "x",
        str(limits.MAX_SEQ),
        str(2**64),
        "1:2:3",
        "é" * 300,
        "\ud800",
        "a/b",
        "a:b",
    ]
    for _ in range(5000):
        headers = {name: rng.choice(values) for name in sample().headers if rng.random() < 0.9} | {
            "rm-v": "1"
        }
        with suppress(data.FrameError):
            decode_plain(b"body", seal(headers, b"body"))
