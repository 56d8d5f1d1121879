"""Signed batches and signed messages in the plain format: any change is refused."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.wire import data
from reliamsg.wire.address import group_address, topic_address
from reliamsg.wire.data import Envelope, Frame, FrameError, open_frame, verify
from reliamsg.wire.plain import decode_plain, encode_plain
from tests.wire import strategies

RING = KeyRing({"a": b"A" * 16, "b": b"B" * 16}, sign_with="a")
OTHERS = KeyRing({"a": b"C" * 16}, sign_with="a")
STREAM = Stream("gateway-7", "orders", 3)
ADDRESS = topic_address("orders", 3)


def sample(ring: KeyRing | None = RING, compress: bool = False, count: int = 3, size: int = 10) -> bytes:
    bodies = [bytes([65 + i % 26]) * size for i in range(count)]
    records = data.make_records(bodies, ["k", *[None] * (count - 1)], [None] * (count - 1) + [{"a": "b"}])
    return data.encode(
        data.Origin(STREAM, 7, 99, Prev(6, 98, 12)), 1000, (5, 6), records, compress=compress, ring=ring
    )


def body_of(frame: Frame) -> bytes:
    return frame.data[len(frame.data) - frame.envelope.body_size :]


def forge(envelope: Envelope, body: bytes) -> bytes:
    """A frame with a valid checksum, and any envelope and body."""
    packed = msgspec.msgpack.encode(envelope)
    return struct.pack(">4sHI", b"RMB1", len(packed), zlib.crc32(packed)) + packed + body


def reason(raw: bytes, address: str = ADDRESS, ring: KeyRing = RING) -> str:
    with pytest.raises(FrameError) as raised:
        verify(open_frame(raw), address, ring)
    return raised.value.reason


class TestBatches:
    @pytest.mark.parametrize("compress", [False, True])
    def test_a_signed_batch_is_taken_at_its_topic_and_at_a_groups_own_address(self, compress: bool) -> None:
        frame = open_frame(sample(compress=compress, size=200))
        assert (frame.envelope.key_id, len(frame.envelope.signature or b"")) == ("a", 32)
        verify(frame, ADDRESS, RING)
        verify(frame, group_address("billing"), RING)
        assert frame.records() == open_frame(sample(None, compress, size=200)).records()

    def test_it_is_refused_anywhere_else(self) -> None:
        assert reason(sample(), "orders") == "misaddressed"
        assert reason(sample(), "reliamsg:status:orders~3") == "misaddressed"

    def test_unsigned_and_half_signed_ones_are_refused(self) -> None:
        assert reason(sample(None)) == "unsigned"
        signed = open_frame(sample())
        for field in ("key_id", "signature"):
            half = msgspec.structs.replace(signed.envelope, **{field: None})
            assert reason(forge(half, body_of(signed))) == "unsigned"

    def test_ones_of_another_key_are_refused(self) -> None:
        assert reason(sample(OTHERS)) == "forged"
        assert reason(sample(), ring=KeyRing({"b": b"B" * 16})) == "forged"

    @pytest.mark.parametrize("field", Envelope.__struct_fields__)
    def test_every_altered_field_is_refused_though_the_checksum_is_right(self, field: str) -> None:
        frame = open_frame(sample(count=20))
        old = getattr(frame.envelope, field)
        new: object
        if isinstance(old, int):
            new = old + 1
        elif isinstance(old, str):
            new = "b" if field == "key_id" else old + "x"
        elif isinstance(old, bytes):
            new = bytes([old[0] ^ 1]) + old[1:]
        else:
            new = None
        altered = forge(msgspec.structs.replace(frame.envelope, **{field: new}), body_of(frame))
        envelope = open_frame(altered).envelope
        assert reason(altered, topic_address(envelope.topic, envelope.partition)) == "forged"

    def test_every_altered_byte_of_the_body_is_refused_though_all_checksums_are_right(self) -> None:
        frame = open_frame(sample())
        body = body_of(frame)
        for at in range(len(body)):
            other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            envelope = msgspec.structs.replace(frame.envelope, body_crc=zlib.crc32(other))
            altered = open_frame(forge(envelope, other))
            assert altered.intact()
            assert reason(altered.data) == "forged"

    @pytest.mark.parametrize("signature", [b"", b"\0" * 31, b"\0" * 33, b"\0" * 64])
    def test_what_is_no_signature_is_refused(self, signature: bytes) -> None:
        frame = open_frame(sample())
        odd = msgspec.structs.replace(frame.envelope, signature=signature)
        assert reason(forge(odd, body_of(frame))) == "forged"

    def test_a_key_id_over_its_limit_is_malformed(self) -> None:
        frame = open_frame(sample())
        odd = msgspec.structs.replace(frame.envelope, key_id="k" * 65)
        with pytest.raises(FrameError, match="malformed"):
            open_frame(forge(odd, body_of(frame)))

    def test_who_has_no_keys_reads_signed_batches_and_a_release_without_signatures_does_too(self) -> None:
        signed, unsigned = open_frame(sample()), open_frame(sample(None))
        assert signed.records() == unsigned.records()
        before = Envelope.__struct_fields__[:-2]
        assert [getattr(signed.envelope, f) for f in before] == [
            getattr(unsigned.envelope, f) for f in before
        ]
        assert (
            msgspec.msgpack.decode(sample(None)[10 : -unsigned.envelope.body_size])[-1]
            == unsigned.envelope.raw_size
        )

    @given(strategies.frames())
    def test_any_batch_can_be_signed_later_and_says_the_same(self, raw: bytes) -> None:
        (signed,) = data.frames_of(raw, 10**6, RING)
        frame, before = open_frame(signed), open_frame(raw)
        verify(frame, topic_address(frame.envelope.topic, frame.envelope.partition), RING)
        assert frame.records() == before.records()
        assert msgspec.structs.replace(frame.envelope, key_id=None, signature=None) == before.envelope

    def test_signed_messages_are_not_signed_again(self) -> None:
        rotated = KeyRing({"a": b"A" * 16, "b": b"B" * 16}, sign_with="b")
        assert data.frames_of(sample(), 10**6, rotated) == [sample()]

    def test_parts_of_a_batch_are_signed_each(self) -> None:
        whole = sample(None, count=50, size=100)
        parts = [open_frame(part) for part in data.frames_of(whole, 1_000, RING)]
        assert len(parts) > 5
        assert max(len(part.data) for part in parts) <= 1_000
        for part in parts:
            verify(part, ADDRESS, RING)
        found = [body for part in parts for body in part.records().bodies]
        assert found == open_frame(whole).records().bodies

    def test_a_batch_that_only_its_signature_makes_too_large_is_split(self) -> None:
        whole = sample(None, count=20, size=100)
        limit = len(whole)
        parts = data.frames_of(whole, limit, RING)
        assert len(parts) > 1
        assert max(map(len, parts)) <= limit


class TestPlain:
    def messages(self, ring: KeyRing | None = RING) -> list[tuple[bytes, dict[str, str]]]:
        return [(m.body, m.headers) for m in encode_plain(open_frame(sample(None)), ring)]

    def refused(self, body: bytes, headers: dict[str, str], ring: KeyRing | None = RING) -> str:
        with pytest.raises(FrameError) as raised:
            decode_plain(body, headers, ring=ring)
        return raised.value.reason

    @given(strategies.frames(max_count=4))
    def test_signed_messages_are_accepted(self, raw: bytes) -> None:
        frame = open_frame(raw)
        for i, message in enumerate(encode_plain(frame, RING)):
            found = decode_plain(message.body, message.headers, ring=RING)
            assert found.records().bodies == [frame.records().bodies[i]]
            assert found.envelope.seq == frame.envelope.seq + i
            assert all(len(value.encode()) < 256 for value in message.headers.values())

    def test_headers_that_a_broker_adds_do_not_matter(self) -> None:
        body, headers = self.messages()[0]
        decode_plain(body, headers | {"x-death": "1", "rm-later": "1"}, ring=RING)

    def test_unsigned_ones_and_ones_of_another_key_are_refused(self) -> None:
        assert self.refused(*self.messages(None)[0]) == "unsigned"
        assert self.refused(*self.messages(OTHERS)[0]) == "forged"
        decode_plain(*self.messages(OTHERS)[0])

    def test_everything_altered_is_refused_though_the_checksum_is_right(self) -> None:
        from reliamsg.wire.plain import _checksum

        for body, headers in self.messages():
            application = {n: v for n, v in headers.items() if not n.startswith("rm-")}
            for name in [n for n in headers if n not in ("rm-v", "rm-sum", "rm-sig")]:
                changed = headers | {name: headers[name] + "1"}
                mine = {n: v for n, v in changed.items() if n in application}
                changed["rm-sum"] = _checksum(changed, mine, body)
                assert self.refused(body, changed) in {"forged", "malformed"}, name
            more = application | {"x-more": "1"}
            added = headers | more | {"rm-sum": _checksum(headers, more, body)}
            assert self.refused(body, added) == "forged"
            other = body + b"!"
            assert (
                self.refused(other, headers | {"rm-sum": _checksum(headers, application, other)}) == "forged"
            )

    def test_a_signature_of_another_message_is_refused(self) -> None:
        (body, headers), (_, others), _ = self.messages()
        assert self.refused(body, headers | {"rm-sig": others["rm-sig"]}) == "forged"

    @pytest.mark.parametrize(
        "text", ["", ":", "a", "a:", "a:zz", "a:" + "0" * 64, ":" + "0" * 64, "\udc80:00"]
    )
    def test_what_is_no_signature_is_refused(self, text: str) -> None:
        body, headers = self.messages()[0]
        assert self.refused(body, headers | {"rm-sig": text}) == "forged"

    @given(st.text(max_size=100))
    def test_any_text_is_a_frame_error(self, text: str) -> None:
        body, headers = self.messages()[0]
        assert self.refused(body, headers | {"rm-sig": text}) == "forged"

    def test_a_batchs_signature_is_none_for_the_plain_form(self) -> None:
        """The two forms are signed separately: one can't be passed off as the other."""
        signature = open_frame(sample()).envelope.signature
        assert signature is not None
        body, headers = self.messages()[0]
        assert self.refused(body, headers | {"rm-sig": f"a:{signature.hex()}"}) == "forged"
