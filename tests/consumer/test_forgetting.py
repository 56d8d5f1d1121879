"""Forgotten streams: what is known comes no second time, what is new goes on, through crashes and with little room."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.forgetting import MAX_REMEMBERED, Forgetting
from reliamsg.message import Prev, Stream
from reliamsg.wire.address import group_address
from reliamsg.wire.limits import MAX_EPOCH
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_journals import rows
from tests.consumer.tools import GROUP, TOPIC, Bench, frame, send, seqs

STREAM = Stream("p", TOPIC, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=3.0, skip_gaps=True)


def forget(bench: Bench, *streams: Stream, **options: int) -> int:
    found = bench.engine.forget(Forgetting(streams or (STREAM,), **options), bench.now)
    bench.settle()
    return found


def known(bench: Bench) -> int:
    core = bench.engine.shared.core
    assert bench.inbox.stream_count == core.known_elsewhere + sum(
        bench.inbox.knows(stream) for stream in core.streams
    )
    return len(core.streams) + core.known_elsewhere


@pytest.mark.parametrize("restart", ["", "clean", "crash"])
def test_what_comes_again_of_a_forgotten_stream_is_known_and_what_is_new_is_delivered(
    bench: Bench, restart: str
) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    assert forget(bench) == 1
    assert (known(bench), bench.inbox.tombstone_count) == (0, 1)
    if restart:
        bench.reopen(clean=restart == "clean")
    send(bench.network["dc2"], 1, 3)
    bench.settle(5.0)
    assert bench.take() == []
    assert (known(bench), bench.inbox.tombstone_count) == (0, 1)  # what is known brings nothing back
    send(bench.network["dc2"], 4, 7)
    send(bench.network["dc1"], 6, 7)
    bench.settle()
    assert seqs(bench.take()) == [6, 7]
    assert (known(bench), bench.inbox.tombstone_count) == (1, 0)
    assert sum(bench.queued().values()) == 0
    assert [(row.epoch, row.first) for row in rows(bench.path, "forgotten")] == [(10, 6)]
    assert rows(bench.path, "declared", "late", "conflict", "redelivered") == []
    assert {row.reason for row in rows(bench.path, "duplicate") if row.last == 3} == {"forgotten"}


def test_a_higher_epoch_of_a_forgotten_stream_follows_on_the_one_that_is_remembered(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    bench.take()
    assert forget(bench) == 1
    send(bench.network["dc1"], 1, 2, epoch=20, incarnation=8, prev=Prev(10, 77, 6))
    bench.settle()
    assert bench.take() == []
    send(bench.network["dc2"], 5, 6)
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(10, 6), (20, 1), (20, 2)]
    assert forget(bench) == 1
    for site, (first, last), options in (
        ("dc1", (1, 6), {}),
        ("dc2", (1, 2), {"epoch": 20, "incarnation": 8, "prev": Prev(10, 77, 6)}),
    ):
        send(bench.network[site], first, last, **options)  # type: ignore[arg-type]
    bench.settle(5.0)
    assert bench.take() == []
    assert rows(bench.path, "declared", "late", "conflict") == []


def test_another_incarnation_of_a_forgotten_epoch_is_a_conflict(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    bench.take()
    assert forget(bench) == 1
    send(bench.network["dc1"], 1, 7, incarnation=78)
    bench.settle(5.0)
    assert bench.take() == []
    assert [row.kind for row in rows(bench.path, "conflict")] == ["conflict"]


def test_a_forgotten_stream_whose_producer_tells_of_it_goes_on_where_it_was(bench: Bench) -> None:
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    bench.take()
    assert forget(bench) == 1
    producer.states()
    producer.status((1, 8))
    bench.settle(2.0)
    (state,) = [stream for state in producer.states() for stream in state.streams][-1:]
    assert state.position == (10, 6)
    producer.tell(group_address(GROUP), frame(5, 8))
    bench.settle()
    assert seqs(bench.take()) == [6, 7, 8]


@pytest.mark.parametrize("why", ["handed out", "held", "gap", "dead letter"])
def test_a_stream_that_is_not_settled_is_kept(tmp_path: Path, why: str) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=3.0, hold_gaps=True)
    send(bench.network["dc1"], 1, 2)
    bench.settle()
    (first, second) = bench.take(ack=False)
    first.ack()
    if why == "dead letter":
        second.reject("as tested")
    elif why != "handed out":
        second.ack()
    if why == "held":
        send(bench.network["dc1"], 4, 5)
        bench.settle()
    if why == "gap":
        send(bench.network["dc1"], 4, 5)
        bench.settle(5.0)
    bench.settle()
    assert forget(bench) == 0
    assert (known(bench), bench.inbox.tombstone_count) == (1, 0)
    bench.reopen()
    assert forget(bench) == 0
    send(bench.network["dc1"], 3, 5)
    bench.settle()
    got = seqs(bench.take())
    assert got[-3:] == [3, 4, 5]
    assert rows(bench.path, "forgotten") == []


def test_what_was_late_when_its_stream_was_forgotten_is_late_when_it_comes_again(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 2)
    send(bench.network["dc1"], 5, 6)
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    bench.settle(5.0)
    assert seqs(bench.take()) == [5, 6]
    assert forget(bench) == 1
    send(bench.network["dc2"], 1, 6)
    bench.settle()
    assert bench.take() == []
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(3, 4)]
    assert [(row.first, row.last) for row in rows(bench.path, "late")] == [(3, 4)]


def test_what_may_have_been_handed_out_before_a_crash_is_flagged_after_forgetting(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 2)
    bench.settle()
    bench.take()
    bench.reopen()
    send(bench.network["dc1"], 3, 3)
    bench.settle()
    assert [(m.seq, m.redelivered) for m in bench.take()] == [(3, True)]
    assert forget(bench) == 1
    send(bench.network["dc1"], 4, 4)
    bench.settle()
    assert [(m.seq, m.redelivered) for m in bench.take()] == [(4, True)]


def test_only_idle_streams_are_forgotten(bench: Bench) -> None:
    for producer in ("old", "new"):
        send(bench.network["dc1"], 1, 1, producer=producer)
        bench.settle(100.0)
        bench.take()
    streams = [Stream(name, TOPIC, 0) for name in ("old", "new", "unknown")]
    since = int((bench.now - 50) * 1e6)
    assert forget(bench, *streams, unused_since_us=since) == 1
    assert [row.producer for row in rows(bench.path, "forgotten")] == ["old"]


def test_forgetting_makes_room_and_is_bounded_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=2, max_known_streams=4)
    for number in range(6):
        send(bench.network["dc1"], 1, 2, producer=f"p{number}")
        bench.settle(1.0)
        bench.take()
    got = known(bench)
    assert got == 4
    streams = [Stream(f"p{number}", TOPIC, 0) for number in range(6)]
    bench.settle(1.0)
    bench.take()
    assert forget(bench, *streams) == 4
    bench.settle(3.0)
    assert sorted({message.producer for message in bench.take()}) == ["p4", "p5"]
    bench.settle(1.0)
    assert forget(bench, *streams) == 0  # no more than so many are remembered
    for number in range(6):
        send(bench.network["dc2"], 1, 2, producer=f"p{number}")
    bench.settle(5.0)
    assert bench.take() == []
    assert bench.engine.shared.quarantine.total == 0


def test_a_tombstone_tells_the_newest_epochs_exactly_and_the_others_by_a_bound(bench: Bench) -> None:
    prev = None
    count = 3 * MAX_REMEMBERED
    for epoch in range(10, 10 + count):
        send(bench.network["dc1"], 1, 2, epoch=epoch, prev=prev)
        prev = Prev(epoch, 77, 2)
    bench.settle()
    assert len(bench.take()) == 2 * count
    assert forget(bench) == 1
    prev = None
    for epoch in range(10, 10 + count):
        send(bench.network["dc2"], 1, 2, epoch=epoch, prev=prev)
        prev = Prev(epoch, 77, 2)
    bench.settle(5.0)
    assert bench.take() == []
    assert rows(bench.path, "declared", "late", "conflict") == []
    assert sum(bench.queued().values()) == 0


@pytest.mark.parametrize("epoch", [1_000_000, MAX_EPOCH - 1])
def test_a_forged_epoch_is_not_remembered(bench: Bench, epoch: int) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    bench.take()
    shared = bench.engine.shared
    with shared.lock:
        shared.core.vouch(STREAM, epoch)  # an operator was wrong
    send(bench.network["dc1"], 1, 1, epoch=epoch, incarnation=5, prev=Prev(10, 77, 5))
    bench.settle()
    bench.take()
    send(bench.network["dc1"], 6, 7)  # behind the stream, and so lost
    bench.settle()
    assert bench.take() == []
    options = {} if epoch == MAX_EPOCH - 1 else {"below": 1_000_000}
    assert forget(bench, **options) == 1
    for site in ("dc1", "dc2"):
        send(bench.network[site], 1, 9)
    bench.settle()
    assert seqs(bench.take()) == [8, 9]
    assert [(row.first, row.last, row.reason) for row in rows(bench.path, "declared")] == [
        (6, 7, "superseded")
    ]
    (row,) = rows(bench.path, "forgotten")
    assert (row.epoch, row.first, row.reason, row.detail) == (10, 8, "forged", {"dropped_epoch": epoch})
