"""PUBLISH packets, and the order of acknowledgements."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.transport.mqtt.codec import (
    MalformedPublish,
    decode_publish,
    encode_properties,
    forbidden,
)
from reliamsg.transport.mqtt.receive_window import ReceiveWindow
from tests.patience import quickest

QOS1 = 0x32


def packet(properties: bytes, body: bytes = b"body", topic: bytes = b"orders", mid: int = 7) -> bytes:
    return len(topic).to_bytes(2, "big") + topic + mid.to_bytes(2, "big") + properties + body


def user(name: bytes, value: bytes) -> bytes:
    return b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


def packed(raw: bytes) -> bytes:
    length, out = len(raw), bytearray()
    while True:
        length, low = length >> 7, length & 0x7F
        out.append(low | 0x80 if length else low)
        if not length:
            return bytes(out) + raw


texts = st.text(max_size=80).filter(lambda text: not forbidden(text) and len(text.encode()) <= 255)


@given(
    st.none() | texts,
    st.dictionaries(texts, texts, max_size=40),
    st.binary(max_size=300),
    st.booleans(),
    st.booleans(),
)
def test_what_is_encoded_is_decoded(
    kind: str | None, headers: dict[str, str], body: bytes, dup: bool, retain: bool
) -> None:
    command = QOS1 | dup << 3 | retain
    found = decode_publish(command, packet(encode_properties(kind, headers), body), True)
    assert (found.topic, found.mid, found.qos) == ("orders", 7, 1)
    assert (found.dup, found.retain) == (dup, retain)
    assert (found.content_type, dict(found.headers), found.body) == (kind, headers, body)
    assert found.damaged is None


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_message_or_malformed(raw: bytes, v5: bool) -> None:
    try:
        found = decode_publish(QOS1, raw, v5)
    except MalformedPublish:
        return
    assert len(found.body) <= len(raw)


def test_3_1_1_has_no_properties() -> None:
    found = decode_publish(QOS1, packet(b"", b"\x05body"), False)
    assert (found.body, found.damaged, dict(found.headers)) == (b"\x05body", None, {})


def test_qos_0_has_no_packet_id() -> None:
    found = decode_publish(0x30, b"\x00\x01t" + b"\x00" + b"x", True)
    assert (found.mid, found.qos, found.body) == (0, 0, b"x")


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (packed(user(b"a", b"\xff")), "UTF-8"),
        (packed(user(b"a", b"x" * 8_193)), "8192"),
        (packed(user(b"a" * 256, b"x")), "255 bytes"),
        (packed(b"".join(user(b"h%d" % i, b"v") for i in range(97))), "more than 96"),
        (packed(user(b"rm-seq", b"1") + user(b"rm-seq", b"2")), "twice"),
        (packed(b"\x26\x00\x05a"), "past the end"),
        (packed(b"\x7f"), "unknown property 127"),
        (packed(b"\x03\x00"), "past the end"),
    ],
)
def test_bad_headers_leave_the_body_as_it_is(properties: bytes, why: str) -> None:
    found = decode_publish(QOS1, packet(properties), True)
    assert found.damaged is not None
    assert why in found.damaged
    assert (found.body, dict(found.headers), found.topic, found.mid) == (b"body", {}, "orders", 7)


def test_properties_that_never_end() -> None:
    for properties in (b"\xff\xff\xff\xff\xff", b"\xff\x7f"):
        found = decode_publish(QOS1, packet(properties), True)
        assert found.damaged is not None


def test_a_topic_that_is_not_utf8_is_damaged() -> None:
    found = decode_publish(QOS1, packet(b"\0", topic=b"or\xffders"), True)
    assert found.damaged == "the topic is not UTF-8"


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x05ab", b"\x00\x01t\x00", b"\x00\x01t\x00\x00\x00"])
def test_packets_without_topic_or_id_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedPublish):
        decode_publish(QOS1, raw, True)


def test_a_header_bomb_costs_no_more_than_its_size() -> None:
    raw = packet(packed(user(b"a", b"b") * 200_000), b"x" * 1_000_000)

    def decode() -> None:
        found = decode_publish(QOS1, raw, True)
        assert found.damaged is not None
        assert len(found.body) == 1_000_000

    assert quickest(decode, 1.0) < 1.0


@pytest.mark.parametrize("text", ["a\0", "a\n", "\x85", "\ud800", "\ufdd0", "\uffff", "\U0001fffe"])
def test_what_brokers_refuse_is_not_sent(text: str) -> None:
    with pytest.raises(ValueError, match="refuse"):
        encode_properties(None, {"name": text})
    with pytest.raises(ValueError, match="refuse"):
        encode_properties(None, {text: "value"})


def test_the_reason_does_not_show_the_value() -> None:
    with pytest.raises(ValueError, match="token") as caught:
        encode_properties(None, {"token": "secret\0"})
    assert "secret" not in str(caught.value)


def test_long_text_is_refused() -> None:
    with pytest.raises(ValueError, match="65535"):
        encode_properties(None, {"name": "x" * 70_000})


def received(order: ReceiveWindow, packet: int) -> int:
    """Its number in a window that has room."""
    number = order.receive(packet)
    assert number is not None
    return number


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_acknowledgements_go_out_in_order_of_receipt(count: int, seed: int) -> None:
    order = ReceiveWindow(60)
    numbers = [received(order, 1000 + i) for i in range(count)]
    shuffled = random.Random(seed).sample(numbers, count)
    out: list[int] = []
    done: set[int] = set()
    for number in shuffled:
        order.acknowledge(number)
        order.acknowledge(number)
        done.add(number)
        out += order.release()
        first_open = next((n for n in numbers if n not in done), numbers[-1] + 1)
        assert out == [1000 + n for n in range(first_open)]
        assert len(order) == count - len(out)
    assert out == [1000 + i for i in range(count)]


def test_unknown_acknowledgements_change_nothing() -> None:
    order = ReceiveWindow(60)
    order.acknowledge(0)
    order.acknowledge(-1)
    first = received(order, 5)
    assert order.release() == []
    order.acknowledge(first + 1)
    second = received(order, 6)
    order.acknowledge(first)
    assert order.release() == [5]
    order.acknowledge(first)
    order.acknowledge(second)
    assert order.release() == [6]
