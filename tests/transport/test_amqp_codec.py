"""The AMQP transport without a broker: frames, and what is in flight."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame as pika_frame

from reliamsg.transport.amqp.codec import MAX_RECEIVED_HEADERS, PublishEncoder, ack_frame, readable_headers
from reliamsg.transport.amqp.in_flight import InFlight
from tests.transport.tools import message

_names = st.text(min_size=1, max_size=60)


def _decode(data: bytes) -> list[Any]:
    frames = []
    while data:
        used, frame = pika_frame.decode_frame(data)
        assert used
        frames.append(frame)
        data = data[used:]
    return frames


@given(
    topic=_names,
    partition=st.integers(0, 65535),
    body=st.binary(max_size=400),
    content_type=st.none() | _names,
    headers=st.none() | st.dictionaries(_names, _names, max_size=5),
)
def test_what_is_encoded_here_is_what_pika_decodes(
    topic: str, partition: int, body: bytes, content_type: str | None, headers: dict[str, str] | None
) -> None:
    pieces: list[bytes] = []
    outgoing = message(
        7, topic, body, partition=partition, content_type=content_type, headers=headers, message_id="id/ü"
    )
    PublishEncoder(3, 4096, "reliamsg", "gateway").encode(outgoing, pieces)
    method, head, *bodies = _decode(b"".join(pieces))
    assert {frame.channel_number for frame in (method, head, *bodies)} == {3}
    assert method.method.NAME == "Basic.Publish"
    assert method.method.exchange == "reliamsg"
    assert method.method.routing_key == (f"{topic}~{partition}" if partition else topic)
    assert method.method.mandatory
    assert not method.method.immediate
    assert head.body_size == len(body)
    properties = head.properties
    assert properties.content_type == content_type
    assert (properties.headers or {}) == (headers or {})
    assert (properties.delivery_mode, properties.message_id, properties.app_id) == (2, "id/ü", "gateway")
    assert properties.timestamp == 1_700_000_000
    assert b"".join(frame.fragment for frame in bodies) == body


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 3 * 4088, 3 * 4088 + 1])
def test_bodies_are_cut_to_the_frame_size(size: int) -> None:
    pieces: list[bytes] = []
    body = random.Random(size).randbytes(size)
    PublishEncoder(1, 4096, "e", "p").encode(message(1, "t", body), pieces)
    _, _, *bodies = _decode(b"".join(pieces))
    assert [len(frame.fragment) for frame in bodies] == [4088] * (size // 4088) + [size % 4088] * bool(
        size % 4088
    )
    assert b"".join(frame.fragment for frame in bodies) == body


def test_what_amqp_can_not_carry_is_refused_before_anything_is_written() -> None:
    encoder = PublishEncoder(1, 4096, "e", "p")
    pieces: list[bytes] = []
    for outgoing in (
        message(1, "t" * 256),
        message(1, "t", message_id="i" * 256),
        message(1, "t", headers={f"h{n}": "v" * 255 for n in range(20)}),
    ):
        with pytest.raises(ValueError, match="bytes"):
            encoder.encode(outgoing, pieces)
    assert not pieces


def test_acknowledgements() -> None:
    (frame,) = _decode(ack_frame(5, 2**40, multiple=True))
    assert (frame.channel_number, frame.method.NAME) == (5, "Basic.Ack")
    assert (frame.method.delivery_tag, frame.method.multiple) == (2**40, True)


def test_only_strings_within_limits_are_read() -> None:
    raw = {
        "a": "x",
        "n": 1,
        "l": ["x"],
        "b": b"bytes",
        "bad": b"\xff",
        "long": "v" * 8_193,
        b"\xff": "x",
        "u": "ü" * 5_000,
    }
    assert readable_headers(raw) == ({"a": "x", "b": "bytes"}, None)
    assert readable_headers(None) == ({}, None)
    found, why = readable_headers({f"h{n}": "v" for n in range(MAX_RECEIVED_HEADERS + 1)})
    assert not found
    assert why is not None
    assert "headers" in why


class _Broker:
    """Publishes random batches and answers as a broker may; keeps the truth by brute force."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.flight = InFlight()
        self.tags: list[tuple[int, str]] = []
        self.open: list[int] = []
        self.refused: set[int] = set()
        self.told_confirmed: list[int] = []
        self.told_refused: list[int] = []

    def publish(self, token: int) -> None:
        parts = self.chance.choice([1, 1, 1, 2, 5])
        for part in range(parts):
            name = f"{token}/{part}" if self.chance.random() < 0.8 else "twin"
            self.flight.add(message(token, "t", message_id=name, parts_left=parts - part - 1))
            self.tags.append((token, name))
            self.open.append(len(self.tags))

    def answer(self) -> None:
        tag = self.chance.choice(self.open)
        multiple = self.chance.random() < 0.3
        covered = [t for t in self.open if t <= tag] if multiple else [tag]
        self.open = [t for t in self.open if t not in covered]
        if self.chance.random() < 0.1:
            self.refused |= {self.tags[t - 1][0] for t in covered}
            self.told_refused += self.flight.nacked(tag, multiple)
            return
        for t in covered:
            # Only the oldest of several equal ids can be told from the others.
            twins = [o for o in sorted([*covered, *self.open]) if self.tags[o - 1][1] == self.tags[t - 1][1]]
            if self.chance.random() < 0.1 and twins == [t]:
                self.refused.add(self.tags[t - 1][0])
                found = self.flight.returned(self.tags[t - 1][1])
                if found is not None:
                    self.told_refused.append(found)
        self.told_confirmed += self.flight.acked(tag, multiple)


@pytest.mark.parametrize("seed", range(30))
def test_every_token_is_told_once_and_never_confirmed_when_refused(seed: int) -> None:
    broker = _Broker(random.Random(seed))
    token = 0
    while token < 200 or broker.open:
        if token < 200 and broker.chance.random() < 0.5:
            token += 1
            broker.publish(token)
        elif broker.open:
            broker.answer()
    assert sorted(broker.told_refused) == sorted(broker.refused), f"seed {seed}"
    assert sorted(broker.told_confirmed) == sorted(set(range(1, 201)) - broker.refused), f"seed {seed}"
    assert len(broker.flight) == 0
    assert not broker.flight._parts
    assert not broker.flight._refused
    assert not broker.flight._tags
    assert not broker.flight._returned


def test_answers_for_unknown_tags_change_nothing() -> None:
    flight = InFlight()
    flight.add(message(1, "t"))
    assert flight.acked(9, multiple=False) == []
    assert flight.returned("nobody's") is None
    assert flight.acked(99, multiple=True) == [1]
    flight.add(message(2, "t"))
    assert flight.acked(0, multiple=True) == [2]


def test_a_token_given_up_half_way_is_not_confirmed() -> None:
    flight = InFlight()
    flight.add(message(1, "t", message_id="a", parts_left=2))
    flight.give_up(message(1, "t", message_id="b", parts_left=1))
    assert flight.acked(1, multiple=False) == []
    assert not flight._parts
    assert not flight._refused
