"""Idle streams leave memory, and come back when something of them arrives; beyond the limits messages wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reliamsg.consumer import absent, loading
from reliamsg.consumer.quarantine import FAR_EPOCH, TOO_MANY_STREAMS
from reliamsg.errors import TooManyStreams
from reliamsg.message import Message, Prev, Stream
from reliamsg.protocol.horizon import FAR_MS
from reliamsg.store.quarantine import Selection
from reliamsg.wire.address import group_address
from reliamsg.wire.limits import CHALLENGE_BYTES
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_journals import rows
from tests.consumer.tools import GROUP, TOPIC, Bench, body_of, frame, send, seqs
from tests.options import Size

STREAMS = 600
MOST = 60
STREAM = Stream("p", TOPIC, 0)


def publish(bench: Bench, first: int, last: int, site: str = "dc1") -> None:
    """Messages `first` to `last` of every stream, one by one."""
    for number in range(STREAMS):
        for seq in range(first, last + 1):
            send(bench.network[site], seq, seq, producer=f"p{number}")


def drain(bench: Bench, got: dict[str, list[int]]) -> None:
    quiet = 0
    while quiet < 3:
        bench.settle(0.6)
        found = bench.take()
        for message in found:
            assert message.body == body_of(10, message.seq)
            assert not message.redelivered
            got.setdefault(message.producer, []).append(message.seq)
        quiet = 0 if found or sum(bench.queued().values()) else quiet + 1


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", max_streams=MOST)


def test_more_streams_than_memory_bears_are_delivered_once_and_in_order(bench: Bench) -> None:
    got: dict[str, list[int]] = {}
    publish(bench, 1, 2)
    drain(bench, got)
    core = bench.engine.shared.core
    assert len(core.streams) <= MOST
    assert len(core.streams) + core.known_elsewhere == STREAMS
    assert len(bench.engine.shared.buffers.by_stream) <= MOST
    assert len(bench.inbox._ids) <= MOST
    assert bench.inbox.quarantine.some_streams("too-many-streams", 1) == []
    publish(bench, 1, 2, "dc2")  # the other site has what is known already
    publish(bench, 3, 3)
    drain(bench, got)
    assert got == {f"p{number}": [1, 2, 3] for number in range(STREAMS)}
    assert sum(bench.queued().values()) == 0
    assert bench.engine.sites["dc1"].rejected == {}


@pytest.mark.parametrize("clean", [False, True])
def test_a_restart_loads_only_what_is_not_settled(bench: Bench, clean: bool) -> None:
    got: dict[str, list[int]] = {}
    publish(bench, 1, 1)
    drain(bench, got)
    bench.reopen(clean=clean)
    core = bench.engine.shared.core
    assert len(core.streams) <= (0 if clean else MOST)
    assert len(core.streams) + core.known_elsewhere == STREAMS
    publish(bench, 1, 1, "dc2")
    publish(bench, 2, 2)
    quiet = 0
    while quiet < 3:
        bench.settle(0.6)
        found = bench.take()
        for message in found:
            got[message.producer].append(message.seq)
        quiet = 0 if found or sum(bench.queued().values()) else quiet + 1
    assert got == {f"p{number}": [1, 2] for number in range(STREAMS)}


def test_streams_in_use_beyond_the_limit_wait_in_quarantine(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=2)
    for number in range(6):
        send(bench.network["dc1"], 1, 1, producer=f"p{number}")
        bench.settle()
    for number in range(6):
        send(bench.network["dc1"], 2, 2, producer=f"p{number}")
        bench.settle()
    bench.settle(0.5)
    assert bench.queued()["dc1"] == 0
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [TooManyStreams]
    got: dict[str, list[int]] = {}
    drain(bench, got)
    assert got == {f"p{number}": [1, 2] for number in range(6)}


def test_beyond_the_hard_limit_messages_wait_until_it_is_raised(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=100, max_known_streams=5)
    for number in range(8):
        send(bench.network["dc1"], 1, 3, producer=f"p{number}")
    got: dict[str, list[int]] = {}
    drain(bench, got)
    assert len(got) == 5
    assert bench.queued()["dc1"] == 0
    send(bench.network["dc1"], 4, 4, producer="p0")
    drain(bench, got)
    assert got["p0"] == [1, 2, 3, 4]
    bench.rules["max_known_streams"] = 50
    bench.reopen(clean=True)
    drain(bench, got)
    assert sorted(got) == [f"p{number}" for number in range(8)]
    assert all(found[:3] == [1, 2, 3] for found in got.values())


def test_what_is_acknowledged_twice_after_its_stream_left_memory_is_no_matter(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=2)
    send(bench.network["dc1"], 1, 1, producer="first")
    bench.settle()
    (message,) = bench.take()
    for number in range(6):
        send(bench.network["dc1"], 1, 1, producer=f"p{number}")
        bench.settle(1.0)
        bench.take()
    assert "first" not in {stream.producer for stream in bench.engine.shared.core.streams}
    message.ack()
    bench.settle()
    send(bench.network["dc1"], 2, 2, producer="first")
    bench.settle(1.0)
    assert seqs(bench.take()) == [2]


def fill(bench: Bench) -> Message:
    """Have a stream use up the room for streams; returns the message that is not acknowledged yet."""
    send(bench.network["dc1"], 1, 1, producer="busy")
    bench.settle()
    (message,) = bench.take(ack=False)
    return message


def leave(bench: Bench, busy: Message) -> None:
    """Have that stream leave memory."""
    busy.ack()
    bench.settle(0.1)
    assert bench.take() == []
    bench.settle(0.9)


def test_a_gap_does_not_expire_while_what_is_missing_is_in_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=3.0, skip_gaps=True)
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1)
    bench.settle(1.0)
    assert seqs(bench.take()) == [1]
    bench.settle(1.0)
    busy = fill(bench)
    monkeypatch.setattr(loading, "REVIVE_EVERY_S", 20.0)
    for seq in (2, 3):
        send(dc1, seq, seq)
    bench.settle(0.1)
    assert len(bench.inbox.quarantine.select(Selection())) == 2
    leave(bench, busy)
    send(dc1, 5, 5)  # the stream is loaded for this
    bench.settle(10.0)
    assert [stream.producer for stream in bench.engine.shared.core.streams] == ["p"]
    assert bench.take() == []
    bench.settle(12.0)
    assert seqs(bench.take()) == [2, 3]
    assert rows(bench.path, "declared") == []
    bench.settle(4.0)
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(4, 4)]  # nobody has that
    assert seqs(bench.take()) == [5]


@pytest.mark.parametrize("what", ["message", "repair", "status"])
def test_a_stream_begins_with_what_is_in_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=3.0, skip_gaps=True)
    producer = FakeProducer(bench)
    busy = fill(bench)
    monkeypatch.setattr(loading, "REVIVE_EVERY_S", 20.0)
    send(bench.network["dc1"], 1, 3)
    bench.settle(0.1)
    leave(bench, busy)
    if what == "message":
        send(bench.network["dc1"], 4, 5)
    elif what == "repair":
        producer.tell(group_address(GROUP), frame(4, 5))
    else:
        producer.status((4, 5))  # it has let go of the others
    bench.settle(10.0)
    assert bench.engine.shared.core.streams == {}
    assert bench.take() == []
    bench.settle(12.0)
    got = seqs(bench.take())
    assert got[:3] == [1, 2, 3]
    if what != "message":
        send(bench.network["dc2"], 4, 5)
        bench.settle()
        got += seqs(bench.take())
    assert got == [1, 2, 3, 4, 5]
    assert rows(bench.path, "declared", "late") == []


def test_what_arrived_just_before_a_replay_does_not_begin_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until the stream was looked for in the inbox, and what leaves the quarantine waits behind it."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, begin="latest")
    busy = fill(bench)
    monkeypatch.setattr(loading, "REVIVE_EVERY_S", 20.0)
    send(bench.network["dc1"], 1, 3)
    bench.settle(0.1)
    leave(bench, busy)
    send(bench.network["dc1"], 4, 4)
    bench.network.run_pending()
    assert bench.engine.shared.absent.waiting
    monkeypatch.setattr(loading, "REVIVE_EVERY_S", 0.0)
    bench.engine._loader._revive(bench.now)
    bench.settle(2.0)
    assert seqs(bench.take()) == [1, 2, 3, 4]
    assert rows(bench.path, "before_join") == []


def test_no_replay_is_forgotten_however_much_waits_for_streams_to_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "MAX_STATUSES", 2)
    monkeypatch.setattr(absent, "MAX_REPLAYS", 2)
    bench = Bench(tmp_path / "inbox.db", max_streams=2)
    for number in range(6):
        for seq in range(1, 8):
            send(bench.network["dc1"], seq, seq, producer=f"p{number}")
    got: dict[str, list[int]] = {}
    drain(bench, got)
    assert got == {f"p{number}": [1, 2, 3, 4, 5, 6, 7] for number in range(6)}


@pytest.mark.parametrize("what", ["message", "repair", "status"])
def test_what_left_the_quarantine_lets_other_things_in(tmp_path: Path, what: str) -> None:
    # What was taken in stays there until it is safe elsewhere. With the inbox full that takes as long as the gap.
    bench = Bench(tmp_path / "inbox.db", max_streams=2, gap_timeout=30.0)
    bench.settings["max_inbox_bytes"] = 1_000
    bench.reopen()
    producer = FakeProducer(bench)
    busy = fill(bench)
    send(bench.network["dc1"], 1, 1, producer="full")
    bench.settle()
    bench.take()
    for seq in range(3, 30):
        send(bench.network["dc1"], seq, seq, producer="full")
    bench.settle(1.0)
    send(bench.network["dc1"], 4, 5)
    bench.settle(0.1)
    leave(bench, busy)
    bench.settle(2.0)
    assert bench.inbox.quarantine.count(STREAM, TOO_MANY_STREAMS) == 1
    if what == "message":
        send(bench.network["dc1"], 1, 3)
    elif what == "repair":
        producer.repair(1, 3)
    else:
        producer.status((1, 5))
        bench.settle(2.0)
        producer.repair(1, 3)
    bench.settle(2.0)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    assert rows(bench.path, "before_join") == []
    assert bench.engine.sites["dc1"].rejected == {}


def test_what_finds_no_room_again_is_tried_as_soon_as_there_is_some(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=1)
    busy = fill(bench)
    send(bench.network["dc1"], 1, 3)
    bench.settle(0.1)
    with bench.engine.shared.lock:
        bench.engine.shared.quarantine.replay(Selection(reason=TOO_MANY_STREAMS))
    bench.settle(1.0)
    assert bench.take() == []
    leave(bench, busy)
    bench.settle(2.0)
    assert seqs(bench.take()) == [1, 2, 3]


@pytest.mark.parametrize("clean", [False, True])
def test_that_an_epoch_was_vouched_for_survives_leaving_memory(tmp_path: Path, clean: bool) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=2)
    far = 10**6 + FAR_MS
    shared = bench.engine.shared
    with shared.lock:
        assert shared.core.is_far(STREAM, far)
        assert shared.core.vouch(STREAM, far)
    for number in range(3):
        send(bench.network["dc1"], 1, 1, producer=f"p{number}")
        bench.settle(1.0)
        bench.take()
    assert STREAM not in shared.core.streams
    bench.reopen(clean=clean)
    shared = bench.engine.shared
    assert STREAM not in shared.core.streams
    send(bench.network["dc1"], 1, 2, epoch=far)
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    assert rows(bench.path, "quarantined") == []


def test_what_is_too_far_ahead_leaves_the_quarantine_once_its_producer_has_answered(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=1)
    far = 10**6 + FAR_MS
    producer = FakeProducer(bench, epoch=far)
    busy = fill(bench)
    send(bench.network["dc1"], 1, 2)
    bench.settle(0.1)
    send(bench.network["dc1"], 1, 3, epoch=far, prev=Prev(10, 77, 2))
    bench.settle(0.1)
    assert len(bench.inbox.quarantine.select(Selection(reason=TOO_MANY_STREAMS))) == 2
    leave(bench, busy)
    bench.settle(1.0)
    assert seqs(bench.take()) == [1, 2]
    assert seqs(bench.take()) == []
    nonce = [state.nonce for state in producer.states() if len(state.nonce) == CHALLENGE_BYTES][-1]
    producer.status((10, 77, 1, 2), (far, 77, 1, 3), to=group_address(GROUP), nonces=[nonce])
    bench.settle(3.0)
    assert seqs(bench.take()) == [1, 2, 3]
    assert bench.inbox.quarantine.select(Selection()) == []


def test_a_stream_that_is_known_and_not_joined_begins_with_what_is_in_quarantine(tmp_path: Path) -> None:
    """Its producer told of it before; what came first found no room, and what comes next finds some."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, begin="latest")
    FakeProducer(bench).status((1, 1), since={})
    bench.settle(0.1)
    bench.take()
    bench.settle(2.0)
    assert bench.engine.shared.core.known_elsewhere == 1
    busy = fill(bench)
    send(bench.network["dc1"], 1, 3)
    bench.settle(0.6)
    assert [row.reason for row in bench.inbox.quarantine.select(Selection())] == [TOO_MANY_STREAMS]
    busy.ack()
    while bench.engine.shared.core.streams:
        bench.settle(0.002)
        assert bench.take() == []
    send(bench.network["dc1"], 4, 4)
    bench.settle(2.0)
    assert seqs(bench.take()) == [1, 2, 3, 4]
    assert rows(bench.path, "before_join") == []


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("clean", [None, False, True])
def test_what_is_not_too_far_ahead_any_more_waits_for_room(
    tmp_path: Path, clean: bool | None, known: bool
) -> None:
    """The clock was wrong; when it is set, other streams have all the room. `known`: the inbox knows the stream from
    before. `clean`: how it is opened again then, if it is."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=2.0, skip_gaps=True)
    far = 10**6 + FAR_MS
    prev = None
    if known:
        send(bench.network["dc1"], 1, 2)
        bench.settle(1.0)
        assert seqs(bench.take()) == [1, 2]
        prev = Prev(10, 77, 2)
    send(bench.network["dc1"], 1, 3, epoch=far, prev=prev)
    send(bench.network["dc1"], 1, 1, producer="busy")
    bench.settle(1.0)
    messages: list[Message] = []
    while not messages:  # the other stream leaves memory only while the application looks for more
        messages = bench.take(ack=False)
        bench.settle(0.1)
    (busy,) = messages
    assert STREAM not in bench.engine.shared.core.streams
    assert len(bench.inbox.quarantine.select(Selection(reason=FAR_EPOCH))) == 1
    bench.wall_offset_us = far * 1_000
    if clean is not None:
        bench.reopen(clean=clean)
        (busy,) = bench.take(ack=False)
    bench.settle(1.0)
    (row,) = bench.inbox.quarantine.select(Selection())
    assert (row.reason, row.replay) == (TOO_MANY_STREAMS, False)
    producer = FakeProducer(bench, epoch=far)
    leave(bench, busy)
    for _ in range(10):  # what it says must not bring the stream into existence before that
        producer.status(*([(10, 77, 1, 2)] if known else []), (far, 77, 1, 3))
        bench.settle(1.0)
    assert seqs(bench.take()) == [1, 2, 3]
    assert bench.inbox.quarantine.select(Selection()) == []
    assert bench.engine.shared.quarantine.total == 0
    assert rows(bench.path, "declared") == []


@pytest.mark.parametrize("held", [(1, 3), (4, 3)])
@pytest.mark.parametrize("clean", [False, True])
def test_a_stream_of_which_nothing_ever_arrived_leaves_memory_too(
    tmp_path: Path, held: tuple[int, int], clean: bool
) -> None:
    """Its producer told of it; what it told of was passed as a gap, or is held no longer."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=2.0, skip_gaps=True)
    producer = FakeProducer(bench, "told")
    producer.status(held)
    bench.settle(10.0)
    assert bench.take() == []
    send(bench.network["dc1"], 1, 3)
    bench.settle(10.0)
    assert seqs(bench.take()) == [1, 2, 3]
    assert bench.inbox.quarantine.some_streams(TOO_MANY_STREAMS, 1) == []
    bench.settle(10.0)
    if clean:
        bench.reopen()
    send(bench.network["dc1"], 4, 5, producer="told")
    bench.settle(10.0)
    assert seqs(bench.take()) == [4, 5]
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(1, 3)]


def test_what_a_producer_told_of_takes_effect_before_its_stream_leaves_memory(tmp_path: Path) -> None:
    """Nothing of it ever arrived, and room is short: it would leave each time, and what is lost never be declared."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=2.0, skip_gaps=True)
    core = bench.engine.shared.core
    FakeProducer(bench, "told").status(
        (4, 3), since={GROUP: (10, 1)}
    )  # it let go of all that it counts the group for
    bench.settle(0.1)
    for _ in range(8):
        with bench.engine.shared.lock:
            core.retire(bench.now, 10, 0.0)  # as is done where there is no room
        bench.settle(0.1)
        assert bench.take() == []
    bench.settle(10.0)
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(1, 3)]


@pytest.mark.timeout(1_800)  # at full size some ten minutes of computing
def test_memory_does_not_grow_with_the_streams_that_a_group_has_met(size: Size) -> None:
    """In a process of its own, with the broker in it. At full size with default settings."""
    streams, most = size(6_000, 1_000_000), size(1_000, 10_000)
    command = [sys.executable, "-m", "tests.consumer.many_streams", str(streams), str(most)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found["known"] == streams
    assert found["most_in_memory"] <= most
    assert found["peak_mib"] < 200, found
    if streams < 1_000_000:  # all of them in memory would take more than that
        assert found["peak_mib"] - found["base_mib"] < 40, found


def take_for(bench: Bench, seconds: float) -> list[int]:
    """Be an application that takes messages at once; returns the numbers of those of "p"."""
    got: list[int] = []
    end = bench.now + seconds
    while bench.now < end:
        bench.settle(0.02)
        got += [message.seq for message in bench.take() if message.producer == "p"]
    return got


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_stream_that_only_its_producer_has_is_joined_while_memory_is_full(
    tmp_path: Path, most: int
) -> None:
    """The group is about to join it: it does not leave memory before. Idle ones leave from four fifths on."""
    bench = Bench(tmp_path / "inbox.db", max_streams=most)
    busy = []
    for number in range(most - 1):
        send(bench.network["dc1"], 1, 1, producer=f"busy{number}")
        bench.settle()
        busy += bench.take(ack=False)
    producer = FakeProducer(bench)
    producer.status((1, 3))
    assert take_for(bench, 2.0) == []
    asked = [span for state in producer.states() for one in state.streams for span in one.wanted]
    assert (10, 1, 3) in asked
    producer.repair(1, 3)
    assert take_for(bench, 1.0) == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 2])
def test_a_stream_that_is_not_joined_by_what_is_told_keeps_nobody_out(tmp_path: Path, most: int) -> None:
    """However often its producer says that it holds nothing of it, and does not count the group."""
    bench = Bench(tmp_path / "inbox.db", max_streams=most)
    for number in range(most - 1):
        send(bench.network["dc1"], 1, 1, producer=f"busy{number}")
        bench.settle()
        bench.take(ack=False)
    producer = FakeProducer(bench, "told")
    producer.status((4, 3), since={})
    bench.settle()
    send(bench.network["dc1"], 1, 3)
    bench.settle()
    assert len(bench.inbox.quarantine.select(Selection(reason=TOO_MANY_STREAMS))) == 1
    got: list[int] = []
    for _ in range(20):
        producer.status((4, 3), since={})
        got += take_for(bench, 0.3)
    assert got == [1, 2, 3]


def test_what_found_no_room_in_memory_is_said_again_when_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its producer may take all for settled, and say nothing more by itself."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1)
    busy = fill(bench)
    producer = FakeProducer(bench)
    producer.status((1, 3))
    bench.settle(5.0)
    assert producer.streams() == []
    assert bench.engine.sites["dc1"].rejected[TOO_MANY_STREAMS] == 1
    assert (
        f"site dc1: statuses of streams not taken in, to be asked for again: 1 ({TOO_MANY_STREAMS})"
        in caplog.text
    )
    assert "unusable" not in caplog.text
    leave(bench, busy)
    (nonce,) = {state.nonce for state in producer.states() for _ in state.streams}
    producer.status((1, 3), to=group_address(GROUP), nonces=[nonce])
    bench.settle(3.0)
    assert (10, 1, 3) in [span for one in producer.streams() for span in one.wanted]


@pytest.mark.parametrize("waited", [2.0, 40.0])
def test_a_stream_that_enters_memory_from_the_quarantine_learns_where_it_begins(
    tmp_path: Path, waited: float
) -> None:
    """However often its producer was asked before, and answered while messages in quarantine came first."""
    bench = Bench(tmp_path / "inbox.db", max_streams=1, gap_timeout=5.0)
    busy = fill(bench)
    send(bench.network["dc1"], 1, 1, producer="next")
    send(bench.network["dc1"], 2, 3)
    bench.settle(1.0)
    producer = FakeProducer(bench)

    answered: set[bytes] = set()

    def answer(seconds: float) -> list[tuple[int, int, int]]:
        """Answer every nonce once, as producers do, and return which messages were requested."""
        wanted = []
        for _ in range(round(seconds / 0.5)):
            for state in producer.states():
                wanted += [span for one in state.streams for span in one.wanted]
                if state.nonce not in answered:
                    answered.add(state.nonce)
                    producer.status((1, 3), to=group_address(GROUP), nonces=[state.nonce])
            bench.settle(0.5)
        return wanted

    producer.status((1, 3))
    assert answer(1.0) == []
    leave(bench, busy)  # there is a place for a moment, which the other stream gets
    (following,) = bench.take(ack=False)
    assert following.producer == "next"
    assert answer(waited) == []
    assert bench.inbox.quarantine.count(STREAM, TOO_MANY_STREAMS) == 1
    leave(bench, following)
    assert (10, 1, 1) in answer(3.5)
    producer.repair(1, 1)
    assert take_for(bench, 2.0) == [1, 2, 3]
    assert rows(bench.path, "before_join") == []
