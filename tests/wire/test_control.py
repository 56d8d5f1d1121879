"""Control frames: encoding and decoding are inverse, anything else is refused, and nothing of it costs much."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg import KeyRing
from reliamsg.wire import control, limits
from reliamsg.wire.address import (
    call_address,
    group_address,
    is_call,
    is_control,
    is_group,
    is_status,
    parse_address,
    producer_address,
    status_address,
)
from reliamsg.wire.control import ChainEpoch, State, Status, StreamState, StreamStatus, open_control
from reliamsg.wire.data import FrameError
from reliamsg.wire.limits import MAX_ANSWERED, MAX_EPOCH, MAX_NONCE_BYTES, MAX_PARTITION, MAX_SEQ
from tests.chance import examples
from tests.wire import strategies

RING = KeyRing({"a": b"A" * 16, "b": b"B" * 16}, sign_with="a")
OTHERS = KeyRing({"a": b"C" * 16, "c": b"C" * 16}, sign_with="a")


def a_status(**changes: object) -> Status:
    chain = [ChainEpoch(90, 5, 91, 90), ChainEpoch(100, 2**64 - 1, 40, 60)]
    stream = StreamStatus("orders", 3, chain, [(90, 1, 3)], {"billing": (90, 1)}, ((91, 4), (92, 7)))
    to = status_address("orders", 3)
    plain = Status(
        1, "gateway-7", 100, 7, 12, 345, 6, 1000, True, to, [stream], ("inbox-1", 9), [b"n" * 4], 350
    )
    return msgspec.structs.replace(plain, **changes)


def a_state(**changes: object) -> State:
    stream = StreamState("orders", 3, (90, 4), (100, 7), 90, [(100, 5, 9)], [(100, 5, 6)], [(90, 1, 3)])
    to = producer_address("gateway-7")
    plain = State(1, "billing", "inbox-1", 9, 8, to, "gateway-7", "active", b"n" * 8, [stream], 0, (5, 70))
    return msgspec.structs.replace(plain, **changes)


def one(frame: Status | State, ring: KeyRing | None = None) -> bytes:
    """The only frame that it accepts."""
    parts = (
        control.encode_status(frame, ring) if isinstance(frame, Status) else control.encode_state(frame, ring)
    )
    assert len(parts) == 1
    return parts[0]


def forge(body: bytes, kind: int = 1, magic: bytes = b"RMC1") -> bytes:
    """A frame with a valid head and any body."""
    return struct.pack(">4sBHI", magic, kind, len(body), zlib.crc32(body, kind)) + body


def reason(data: bytes, address: str, ring: KeyRing | None = None) -> str:
    with pytest.raises(FrameError) as raised:
        open_control(data, address, ring)
    return raised.value.reason


class TestRoundTrip:
    @given(strategies.statuses(), st.sampled_from([None, RING]))
    def test_a_status_survives_a_round_trip(self, status: Status, ring: KeyRing | None) -> None:
        assert open_control(one(status, ring), status.to, ring) == status

    @given(strategies.states(), st.sampled_from([None, RING]))
    def test_a_state_survives_a_round_trip(self, state: State, ring: KeyRing | None) -> None:
        assert open_control(one(state, ring), state.to, ring) == state

    def test_a_frame_without_the_fields_that_were_added_last(self) -> None:
        body = bytearray(one(a_status())[11:])
        body[0] = 0x9B
        del body[-len(b"\x91\xc4\x04nnnn\xcd\x01\x5e") :]
        body[body.index(b"\x96\xa6orders")] = 0x95
        del body[-len(b"\x92\xa7inbox-1\x09") - 7 :]
        opened = open_control(forge(bytes(body)), a_status().to)
        assert isinstance(opened, Status)
        assert opened.heard is None
        assert opened.nonces == []
        assert opened.committed == 0
        assert opened.streams[0] == msgspec.structs.replace(a_status().streams[0], reached=None)

    def test_the_form_does_not_change_between_releases(self) -> None:
        assert one(a_status()).hex() == (
            "524d4331010079e9bf4cf09e01a9676174657761792d3764070ccd015906cd03e8c3b872656c69616d73673a737461747573"
            "3a6f72646572737e339196a66f72646572730392945a055b5a9464cfffffffffffffffff283c91935a010381a762696c6c69"
            "6e67925a0192925b04925c0792a7696e626f782d310991c4046e6e6e6ecd015e"
        )

    def test_who_has_no_keys_reads_signed_frames(self) -> None:
        assert open_control(one(a_status(), RING), a_status().to) == a_status()

    def test_fields_that_a_later_release_adds_are_ignored(self) -> None:
        fields = list(msgspec.structs.astuple(a_state()))
        assert (
            open_control(forge(msgspec.msgpack.encode([*fields, {"new": [1]}]), 2), a_state().to) == a_state()
        )


class TestSplitting:
    def test_many_streams_go_in_several_frames(self) -> None:
        streams = [
            StreamStatus(f"topic-{i}", 0, [ChainEpoch(e, 2**63, 1, 10**9) for e in range(1, 5)])
            for i in range(5000)
        ]
        status = a_status(to=group_address("billing"), streams=streams)
        for ring in (None, RING):
            parts = control.encode_status(status, ring)
            assert len(parts) > 4
            assert max(map(len, parts)) <= limits.MAX_CONTROL_BYTES
            opened = [open_control(part, status.to, ring) for part in parts]
            assert [stream for part in opened for stream in part.streams] == streams
            assert {part.number for part in opened} == {status.number}

    def test_streams_of_a_frame_are_bounded_in_number_too(self) -> None:
        streams = [StreamState("t", i, (0, 1), (0, 0), 0) for i in range(2500)]
        parts = control.encode_state(a_state(streams=streams))
        assert [len(open_control(part, a_state().to).streams) for part in parts] == [1000, 1000, 500]

    def test_without_streams_there_is_one_frame(self) -> None:
        assert open_control(one(a_status(streams=[])), a_status().to).streams == []

    def test_one_stream_at_all_limits_fits(self) -> None:
        name = "ü" * 50
        chain = [ChainEpoch(2**62 + i, 2**64 - 1, 2**62, 2**62) for i in range(limits.MAX_CHAIN)]
        span = [(2**62, 2**62, 2**62)] * limits.MAX_SPANS
        since = {f"{'g' * 96}{i:4}": (2**62, 2**62) for i in range(limits.MAX_NAMED_GROUPS)}
        status = a_status(
            producer=name,
            to=status_address(name, 65535),
            streams=[StreamStatus(name, 65535, chain, span, since)],
        )
        ring = KeyRing({"k" * 64: b"A" * 16}, sign_with="k" * 64)
        assert open_control(one(status, ring), status.to, ring) == status
        state = a_state(
            streams=[StreamState(name, 65535, (2**62, 1), (2**62, 2**64 - 1), 1, span, span, span, span)]
        )
        assert open_control(one(state, ring), state.to, ring) == state

    def test_a_longer_chain_is_sent_as_its_newest_epochs_and_their_predecessor(self) -> None:
        chain = [ChainEpoch(e, e, 1, 10) for e in range(1, limits.MAX_CHAIN + 6)]
        opened = open_control(one(a_status(streams=[StreamStatus("orders", 3, chain)])), a_status().to)
        assert isinstance(opened, Status)
        found = opened.streams[0].chain
        assert len(found) == limits.MAX_CHAIN
        assert found[0] == ChainEpoch(6, 6, 11, 10)
        assert found[1:] == chain[6:]

    def test_more_removed_ranges_go_in_further_entries(self) -> None:
        removed = [(90, 2 * i, 2 * i) for i in range(1, 1001)]
        stream = msgspec.structs.replace(a_status().streams[0], removed=removed)
        opened = open_control(one(a_status(streams=[stream])), a_status().to)
        assert isinstance(opened, Status)
        assert len(opened.streams) == 4
        assert [span for part in opened.streams for span in part.removed] == removed
        assert {len(part.chain) for part in opened.streams} == {2}

    def test_of_too_many_ranges_of_a_state_the_useful_ones_go(self) -> None:
        many = [(90, 2 * i, 2 * i) for i in range(1, 1001)]
        stream = StreamState("orders", 3, (90, 1), (90, 5), 1, many, many, many, many)
        opened = open_control(one(a_state(streams=[stream])), a_state().to)
        assert isinstance(opened, State)
        assert opened.streams[0].missing == opened.streams[0].wanted == many[: limits.MAX_SPANS]
        assert opened.streams[0].accepted == many[: limits.MAX_SPANS]
        assert opened.streams[0].declared == many[-limits.MAX_SPANS :]

    def test_more_named_groups_than_fit_are_refused(self) -> None:
        since = {f"g{i}": (1, 1) for i in range(limits.MAX_NAMED_GROUPS + 1)}
        with pytest.raises(ValueError, match="the limit is 100"):
            control.encode_status(a_status(streams=[StreamStatus("orders", 3, [], [], since)]))


class TestRefused:
    def test_a_frame_of_another_kind_of_beginning(self) -> None:
        to = a_status().to
        assert reason(b"", to) == "malformed"
        assert reason(b"RMC1", to) == "malformed"
        assert reason(b"hello, world" * 9, to) == "malformed"
        assert reason(b"RMB1" + one(a_status())[4:], to) == "malformed"
        assert reason(b"RMC2" + one(a_status())[4:], to) == "unknown-version"

    def test_one_that_is_too_large_is_not_looked_at(self) -> None:
        assert reason(b"RMC1" + b"\0" * limits.MAX_CONTROL_BYTES, a_status().to) == "oversized"

    def test_every_truncated_one(self) -> None:
        whole = one(a_status())
        for size in range(len(whole)):
            assert reason(whole[:size], a_status().to) == "malformed"

    def test_every_flipped_bit(self) -> None:
        whole = one(a_status())
        for at in range(len(whole) * 8):
            data = bytearray(whole)
            data[at // 8] ^= 1 << at % 8
            assert reason(bytes(data), a_status().to) in {"malformed", "corrupt", "unknown-version"}

    def test_an_unknown_kind_or_version(self) -> None:
        body = msgspec.msgpack.encode(a_status())
        assert reason(forge(body, kind=3), a_status().to) == "unknown-version"
        assert reason(one(a_status(version=2)), a_status().to) == "unknown-version"
        assert (
            reason(forge(msgspec.msgpack.encode([2, "other", {}] + [[]] * 7)), a_status().to)
            == "unknown-version"
        )
        assert (
            reason(forge(msgspec.msgpack.encode([1, "other", {}] + [[]] * 7)), a_status().to) == "malformed"
        )

    def test_a_status_is_no_state(self) -> None:
        assert reason(forge(msgspec.msgpack.encode(a_status()), kind=2), a_status().to) == "malformed"

    @pytest.mark.parametrize(
        "changes",
        [
            {"producer": ""}, {"producer": "a:b"}, {"producer": "a" * 101}, {"epoch": 0}, {"epoch": MAX_EPOCH},
            {"nonces": [b""] * (MAX_ANSWERED + 1)}, {"nonces": [b"n" * (MAX_NONCE_BYTES + 1)]},
            {"incarnation": -1}, {"number": -1}, {"lsn": -1}, {"ts_us": MAX_SEQ + 1}, {"interval_ms": -5},
        ],
        ids=repr,
    )  # fmt: skip
    def test_a_status_with_a_field_out_of_its_range(self, changes: dict[str, object]) -> None:
        status = a_status(**changes, to=group_address("billing"))
        assert reason(one(status), status.to) == "malformed"

    @pytest.mark.parametrize(
        "stream",
        [
            StreamStatus("a#", 0, []),
            StreamStatus("t", -1, []),
            StreamStatus("t", 0, [], [], {}, ((1, 1), (1, 0))),
            StreamStatus("t", 0, [], [], {}, ((-1, 1), (1, 1))),
            StreamStatus("t", MAX_PARTITION + 1, []),
            StreamStatus("t", 0, [ChainEpoch(0, 0, 1, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, 0, 1, 1), ChainEpoch(5, 0, 1, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, 0, 1, 1), ChainEpoch(4, 0, 1, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, -1, 1, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, 0, 0, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, 0, 3, 1)]),
            StreamStatus("t", 0, [ChainEpoch(5, 0, 1, MAX_SEQ + 1)]),
            StreamStatus("t", 0, [ChainEpoch(MAX_EPOCH, 0, 1, 1)]),
            StreamStatus("t", 0, [], [(0, 1, 1)]),
            StreamStatus("t", 0, [], [(1, 2, 1)]),
            StreamStatus("t", 0, [], [(1, 0, 1)]),
            StreamStatus("t", 0, [], [(1, 1, MAX_SEQ + 1)]),
            StreamStatus("t", 0, [], [], {"a~": (1, 1)}),
            StreamStatus("t", 0, [], [], {"a": (-1, 1)}),
            StreamStatus("t", 0, [], [], {"a": (1, 0)}),
            StreamStatus("t", 0, [], [], {"a": (1, MAX_SEQ + 2)}),
        ],
        ids=repr,
    )
    def test_a_stream_with_a_field_out_of_its_range(self, stream: StreamStatus) -> None:
        status = a_status(to=group_address("billing"), streams=[stream])
        assert reason(one(status), status.to) == "malformed"

    @pytest.mark.parametrize(
        "changes",
        [
            {"group": "a/#"}, {"inbox": "i" * 101}, {"number": -1}, {"ts_us": -1}, {"nonce": b"n" * 33},
            {"streams": [StreamState("t", 0, (0, 0), (0, 0), 0)]}, {"streams": [StreamState("", 0, (0, 1), (0, 0), 0)]},
            {"streams": [StreamState("t", 0, (0, 1), (-1, 0), 0)]},
            {"streams": [StreamState("t", 0, (0, 1), (1, -1), 0)]},
            {"streams": [StreamState("t", 0, (0, 1), (0, 0), -1)]},
            {"streams": [StreamState("t", 0, (0, 1), (0, 0), 0, [(1, 2, 1)])]},
            {"streams": [StreamState("t", 0, (0, 1), (0, 0), 0, [], [(1, 2, 1)])]},
            {"streams": [StreamState("t", 0, (0, 1), (0, 0), 0, [], [], [(1, 2, 1)])]},
        ],
        ids=repr,
    )  # fmt: skip
    def test_a_state_with_a_field_out_of_its_range(self, changes: dict[str, object]) -> None:
        assert reason(one(a_state(**changes)), a_state().to) == "malformed"

    def test_a_producer_that_can_have_no_address(self) -> None:
        state = a_state(producer="a:b", to=group_address("billing"))
        assert reason(one(state), state.to) == "malformed"

    def test_a_role_that_is_none(self) -> None:
        assert reason(one(a_state(role="king")), a_state().to) == "malformed"

    @pytest.mark.parametrize("kind", [1, 2])
    @pytest.mark.parametrize("where", ["streams", "chain", "spans", "since"])
    def test_counts_over_their_limits(self, kind: int, where: str) -> None:
        many: list[object] = [(1, 1, 1)] * (limits.MAX_SPANS + 1)
        stream: list[object] = ["t", 0, [], [], {}] if kind == 1 else ["t", 0, (0, 1), (0, 0), 0, [], [], []]
        streams: list[object] = [stream]
        if where == "streams":
            streams = [stream] * (limits.MAX_CONTROL_STREAMS + 1)
        elif where == "chain" and kind == 1:
            stream[2] = [(e, 0, 1, 1) for e in range(1, limits.MAX_CHAIN + 2)]
        elif where == "since" and kind == 1:
            stream[4] = {f"g{i}": (1, 1) for i in range(limits.MAX_NAMED_GROUPS + 1)}
        else:
            stream[3 if kind == 1 else 7] = many
        fields = msgspec.structs.astuple(a_status() if kind == 1 else a_state())
        to = group_address("billing")
        body = [*fields[:-2], to, streams] if kind == 1 else [*fields[:5], to, *fields[6:-1], streams]
        assert reason(forge(msgspec.msgpack.encode(body), kind), to) == "malformed"


class TestAddress:
    def test_a_frame_for_another_address_is_refused(self) -> None:
        assert reason(one(a_status()), group_address("billing")) == "misaddressed"
        assert reason(one(a_state()), producer_address("other")) == "misaddressed"

    @pytest.mark.parametrize(
        "frame",
        [
            a_status(to=status_address("other")),  # streams of a topic other than the address's
            a_status(to=status_address("orders", 4)),
            a_status(to=producer_address("other")),
            a_status(to=call_address("orders", 3)),
            a_status(to="orders", streams=[]),
            a_state(to=producer_address("other")),
            a_state(to=group_address("other")),
            a_state(to=status_address("orders")),
            a_state(role="call"),
            a_state(role="call", producer="", to=call_address("orders")),  # a call announces no streams
            a_state(role="call", producer="", to=group_address("billing"), streams=[]),
            a_state(producer="", to=group_address("other"), streams=[]),
            a_state(producer="", to=producer_address("gateway-7"), streams=[]),
        ],
        ids=lambda frame: f"{type(frame).__name__} {frame.to}",
    )
    def test_a_kind_of_frame_where_it_does_not_belong_is_refused(self, frame: Status | State) -> None:
        assert reason(one(frame), frame.to) == "misaddressed"
        assert reason(one(frame, RING), frame.to, RING) == "misaddressed"

    def test_no_control_address_is_a_topic_or_another_control_address(self) -> None:
        found = [
            status_address("a"),
            status_address("a", 1),
            call_address("a"),
            producer_address("a"),
            group_address("a"),
        ]
        assert len(set(found)) == len(found)
        for address in found:
            assert parse_address(address) is None
            assert is_control(address)
        assert [is_status(a) for a in found] == [True, True, False, False, False]
        assert [is_call(a) for a in found] == [False, False, True, False, False]
        assert [is_group(a) for a in found] == [False, False, False, False, True]
        assert not is_control("reliamsg")

    def test_the_longest_names_fit_an_amqp_routing_key(self) -> None:
        name = "n" * 100
        for address in (status_address(name, MAX_PARTITION), producer_address(name), group_address(name)):
            assert len(address.encode()) <= 255


class TestSignatures:
    def test_unsigned_frames_are_refused(self) -> None:
        assert reason(one(a_status()), a_status().to, RING) == "unsigned"
        assert reason(one(a_state()), a_state().to, RING) == "unsigned"

    def test_frames_of_another_with_the_same_key_id_or_an_unknown_key_are_refused(self) -> None:
        assert reason(one(a_status(), OTHERS), a_status().to, RING) == "forged"
        strange = KeyRing({"zzz": b"A" * 16}, sign_with="zzz")
        assert reason(one(a_status(), strange), a_status().to, RING) == "forged"

    @pytest.mark.parametrize("frame", [a_status(), a_state()], ids=["status", "state"])
    def test_every_altered_byte_is_refused(self, frame: Status | State) -> None:
        whole = one(frame, RING)
        for at in range(len(whole)):
            data = bytearray(whole)
            data[at] ^= 0xFF
            assert reason(bytes(data), frame.to, RING) in {
                "malformed",
                "corrupt",
                "forged",
                "unknown-version",
            }

    @pytest.mark.parametrize(
        ("frame", "field"),
        [(a_status(), f) for f in Status.__struct_fields__]
        + [(a_state(), f) for f in State.__struct_fields__],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_every_altered_field_is_refused_though_the_checksum_is_right(
        self, frame: Status | State, field: str
    ) -> None:
        old = getattr(frame, field)
        changed: dict[type, Callable[[], object]] = {
            int: lambda: old + 1,
            str: lambda: old + "x",
            bool: lambda: not old,
            bytes: lambda: old + b"x",
            list: lambda: [],
            tuple: lambda: None,
        }
        altered = msgspec.structs.replace(frame, **{field: changed[type(old)]()})
        trailer = one(frame, RING)[len(one(frame)) :]
        assert len(trailer) == 1 + len("a") + 32
        assert reason(one(altered) + trailer, altered.to, RING) == "forged"

    def test_a_signature_does_not_hold_for_another_kind_or_address(self) -> None:
        whole = one(a_status(), RING)
        body = whole[11 : len(one(a_status()))]
        assert reason(forge(body, kind=2) + whole[11 + len(body) :], a_status().to, RING) == "forged"
        assert reason(whole, status_address("orders", 4), RING) == "forged"

    def test_a_signature_of_another_frame_of_the_same_key_is_refused(self) -> None:
        trailer = one(a_status(number=13), RING)[len(one(a_status(number=13))) :]
        assert reason(one(a_status()) + trailer, a_status().to, RING) == "forged"

    @pytest.mark.parametrize(
        "trailer",
        [b"\0", b"\xff", b"\x01a", b"\x01a" + b"\0" * 31, b"\x01a" + b"\0" * 33, b"\x01\xff" + b"\0" * 32],
    )
    def test_what_is_no_signature_is_refused(self, trailer: bytes) -> None:
        assert reason(one(a_status()) + trailer, a_status().to, RING) == "forged"

    def test_nothing_is_decoded_before_it_is_authenticated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def decode(kind: int, body: bytes) -> Status | State:
            raise AssertionError("decoded")

        frame, forged = one(a_status()), one(a_status(), OTHERS)
        monkeypatch.setattr(control, "_decode", decode)
        assert reason(frame, a_status().to, RING) == "unsigned"
        assert reason(forged, a_status().to, RING) == "forged"


class TestBombs:
    """Frames that are made to cost much."""

    @pytest.mark.parametrize(
        "body",
        [
            b"\xdd\xff\xff\xff\xff" * 100,
            b"\xdc\xff\xff" * 1000,
            b"\x91" * 60_000,
            b"\xdf\xff\xff\xff\xff" * 1000,
            b"\xc6\xff\xff\xff\xff" + b"x" * 1000,
            b"\xdb\xff\xff\xff\xff" + b"x" * 1000,
            msgspec.msgpack.encode(list(msgspec.structs.astuple(a_status()))[:-1])[:-1]
            + b"\xdd\xff\xff\xff\xff",
            bytes([0x9C]) + msgspec.msgpack.encode(a_status())[1:] + b"\x91" * 50_000,
            bytes([0x9C]) + msgspec.msgpack.encode(a_status())[1:] + b"\x81\x01" * 25_000,
        ],
        ids=range(9),
    )
    @pytest.mark.parametrize("kind", [1, 2])
    def test_nested_and_announced_sizes_cost_nothing(self, body: bytes, kind: int) -> None:
        data = forge(body, kind)
        tracemalloc.start()
        try:
            assert reason(data, a_status().to) == "malformed"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * limits.MAX_CONTROL_BYTES

    @settings(max_examples=examples(300))
    @given(st.binary(max_size=300), st.integers(0, 4))
    def test_anything_else_is_a_frame_error(self, body: bytes, kind: int) -> None:
        for data in (body, forge(body, kind), b"RMC1" + body):
            for ring in (None, RING):
                with pytest.raises(FrameError):
                    open_control(data, a_status().to, ring)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.text(max_size=5)
            | st.binary(max_size=5),
            lambda inner: st.lists(inner, max_size=5),
            max_leaves=30,
        )
    )
    def test_any_values_in_any_place_are_a_frame_error_or_a_sound_frame(self, value: object) -> None:
        fields = list(msgspec.structs.astuple(a_state()))
        for at in range(len(fields)):
            body = msgspec.msgpack.encode([*fields[:at], value, *fields[at + 1 :]])
            try:
                frame = open_control(forge(body, 2), a_state().to)
            except FrameError:
                continue
            assert frame.to == a_state().to
