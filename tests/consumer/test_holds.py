"""``on_gap="hold"``: a gap holds its stream, and that alone, until it is filled or accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.quarantine import HELD as QUARANTINED
from reliamsg.consumer.status import status_of
from reliamsg.errors import GapHeld, TooManyStreams
from reliamsg.message import Gap, Stream
from reliamsg.store.quarantine import Selection
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_journals import rows
from tests.consumer.tools import TOPIC, Bench, send, seqs

HELD = Stream("held", TOPIC)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0, hold_gaps=True)


def gapped(bench: Bench, last: int = 6) -> Gap:
    """Messages 1, 2 and 5 to `last` of a stream arrive, and their gap's time passes."""
    send(bench.network["dc1"], 1, 2, producer="held")
    send(bench.network["dc1"], 5, last, producer="held")
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    bench.settle(8.0)
    assert bench.take() == [], "what is behind the gap stays there"
    errors = bench.engine.shared.health.take_errors()
    assert [type(error) for error in errors] == [GapHeld]
    (error,) = errors
    assert isinstance(error, GapHeld)
    assert (error.gap.first, error.gap.last) == (3, 4)
    return error.gap


def is_held(bench: Bench) -> bool:
    return status_of(bench.engine).streams[HELD].gap_held


def test_a_held_stream_holds_up_no_other_and_is_reported_once(bench: Bench) -> None:
    gapped(bench)
    for number in range(1, 30):
        send(bench.network["dc1"], number, number, producer="other")
        bench.settle(5.0)
        assert seqs(bench.take()) == [number]
    assert is_held(bench)
    assert bench.engine.shared.health.take_errors() == []
    assert len(rows(bench.path, "gap_held")) == 1


def test_it_goes_on_by_itself_when_the_messages_arrive(bench: Bench) -> None:
    gapped(bench)
    send(bench.network["dc2"], 3, 4, producer="held")
    bench.settle()
    assert seqs(bench.take()) == [3, 4, 5, 6]
    assert not is_held(bench)


def test_what_its_producer_removed_holds_nobody_and_is_declared_at_once(bench: Bench) -> None:
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 2)
    send(bench.network["dc1"], 5, 6)
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    producer.status((5, 6), removed=[(10, 3, 4)])
    bench.settle(1.0)
    assert seqs(bench.take()) == [5, 6]
    assert bench.engine.shared.health.take_errors() == []
    assert [(row.first, row.last, row.reason) for row in rows(bench.path, "declared")] == [(3, 4, "removed")]
    assert rows(bench.path, "gap_held") == []


def test_of_a_gap_that_holds_its_stream_what_its_producer_removes_then_is_declared(bench: Bench) -> None:
    producer = FakeProducer(bench, "held")
    gapped(bench)
    producer.status((5, 6), removed=[(10, 3, 4)])
    bench.settle(1.0)
    assert seqs(bench.take()) == [5, 6]
    assert not is_held(bench)


def test_a_part_that_arrives_leaves_one_episode(bench: Bench) -> None:
    gap = gapped(bench)
    send(bench.network["dc2"], 3, 3, producer="held")
    bench.settle()
    assert seqs(bench.take()) == [3]
    bench.settle(8.0)
    assert is_held(bench)
    assert bench.engine.shared.health.take_errors() == []
    assert bench.engine.deliveries.accept(gap)
    bench.settle()
    assert seqs(bench.take()) == [5, 6]


def test_acceptance_goes_on_and_the_next_gap_is_an_episode_of_its_own(bench: Bench) -> None:
    gap = gapped(bench)
    assert bench.engine.deliveries.accept(gap)
    assert not bench.engine.deliveries.accept(gap)
    send(bench.network["dc1"], 9, 9, producer="held")
    bench.settle()
    assert seqs(bench.take()) == [5, 6]
    bench.settle(8.0)
    (error,) = bench.engine.shared.health.take_errors()
    assert isinstance(error, GapHeld)
    assert (error.gap.first, error.gap.last) == (7, 8)
    declared = [(row.first, row.last) for row in rows(bench.path, "declared")]
    assert declared == [(3, 4)]


@pytest.mark.parametrize("clean", [False, True])
def test_a_hold_outlives_a_restart_and_is_reported_again_by_the_new_process(
    bench: Bench, clean: bool
) -> None:
    gap = gapped(bench)
    bench.reopen(clean=clean)
    bench.settle(0.5)
    (error,) = bench.engine.shared.health.take_errors()
    assert isinstance(error, GapHeld)
    assert error.gap == gap
    assert bench.engine.deliveries.accept(gap)
    bench.settle()
    bench.reopen()
    assert seqs(bench.take()) == [5, 6]


def test_what_was_accepted_behind_unacknowledged_messages_outlives_a_crash(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 2, producer="held")
    send(bench.network["dc1"], 5, 6, producer="held")
    bench.settle()
    assert seqs(bench.take(ack=False)) == [1, 2]
    open_gap = status_of(bench.engine).streams[HELD].gap
    assert open_gap is not None
    assert bench.engine.deliveries.accept(open_gap)
    bench.engine.shared.durability.want_soon()
    bench.settle()
    assert rows(bench.path, "declared") == []
    bench.reopen()
    assert seqs(bench.take()) == [1, 2, 5, 6]
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(3, 4)]


def test_two_forged_messages_stop_nobody_else(bench: Bench) -> None:
    for number in range(50):
        send(bench.network["dc1"], 1, 1, producer=f"evil-{number}")
        send(bench.network["dc1"], 3, 3, producer=f"evil-{number}")
    bench.settle()
    assert len(bench.take()) == 50
    bench.settle(8.0)
    assert len(bench.engine.shared.health.take_errors()) == 50
    for number in range(1, 10):
        send(bench.network["dc1"], number, number, producer="honest")
        bench.settle()
        assert seqs(bench.take()) == [number]


def _held_with(bench: Bench, producer: str) -> None:
    send(bench.network["dc1"], 1, 1, producer=producer)
    send(bench.network["dc1"], 3, 3, producer=producer)
    bench.settle()
    assert seqs(bench.take()) == [1]
    bench.settle(8.0)
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [GapHeld]


def test_held_streams_have_places_of_their_own_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, hold_gaps=True, max_streams=2)
    _held_with(bench, "held-1")
    _held_with(bench, "held-2")
    for number in range(1, 4):
        for name in ("one", "two", "three"):
            send(bench.network["dc1"], number, number, producer=name)
            bench.settle(1.0)
            assert seqs(bench.take()) == [number]
    assert bench.engine.shared.health.take_errors() == []
    # Beyond as many as there are for others, they count like these.
    _held_with(bench, "held-3")
    _held_with(bench, "held-4")
    send(bench.network["dc1"], 4, 4, producer="one")
    bench.settle(1.0)
    assert bench.take() == []
    (error,) = bench.engine.shared.health.take_errors()
    assert isinstance(error, TooManyStreams)
    assert "4 are in use, of which gaps hold 4" in str(error)
    assert bench.engine.deliveries.accept(Gap(Stream("held-1", TOPIC), 10, 2, 2, "expired"))
    bench.settle(2.0)
    assert seqs(bench.take()) == [3]
    bench.settle(2.0)
    assert seqs(bench.take()) == [4]


def test_what_waits_in_quarantine_within_a_gap_does_not_keep_the_rest_of_it_from_expiring(
    tmp_path: Path,
) -> None:
    """What was quarantined while a gap held the stream finds no room when the stream goes on: the inbox is full of
    what came behind it. So what is missing before that is all that can be waited for."""
    bench = Bench(tmp_path / "inbox.db", gap_timeout=2.0, hold_gaps=True)
    bench.settings = {"max_inbox_bytes": 8_000}
    bench.reopen(clean=True)
    bench.settle(1.0)
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1, producer="held", pad=500)
    bench.settle(0.1)
    assert seqs(bench.take()) == [1]
    for number in (3, 4, 5, 6):
        send(dc1, number, number, producer="held")
    bench.settle(4.0)
    (gap,) = [error.gap for error in bench.engine.shared.health.take_errors() if isinstance(error, GapHeld)]
    for number in (*range(20, 24), *range(30, 36)):
        send(dc1, number, number, producer="held", pad=500)
        bench.settle(0.2)
    assert len(bench.inbox.quarantine.select(Selection(reason=QUARANTINED))) > 3
    assert bench.engine.deliveries.accept(gap)
    for number in range(60, 90):  # before the application goes on
        send(dc1, number, number, producer="held", pad=500)
    bench.settle(1.0)
    got, accepted = list[int](), list[tuple[int, int | None]]()
    for _ in range(60):
        got += seqs(bench.take())
        bench.settle(1.0)
        for error in bench.engine.shared.health.take_errors():
            if isinstance(error, GapHeld) and bench.engine.deliveries.accept(error.gap):
                accepted.append((error.gap.first, error.gap.last))
    assert got == [*range(3, 7), *range(20, 24), *range(30, 36), *range(60, 90)]
    assert accepted == [(7, 19), (24, 29), (36, 59)]
    assert bench.inbox.quarantine.select(Selection()) == []
