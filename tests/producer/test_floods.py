"""A producer without keys: what made-up frames cost those whom they don't speak for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.producer.control_queue import MAX_BYTES, MAX_FRAMES, ControlFrame, ControlQueue
from reliamsg.producer.engine import ProducerEngine
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.wire.address import producer_address
from reliamsg.wire.control import VERSION, State
from tests.producer.control_tools import Bench, settled, state

GROUPS = {"t": ["g", "h"]}
STREAMS_OF_A_LARGE_STATE = 500


def frame(group: str, number: int, size: int = 100) -> ControlFrame:
    to = producer_address("p")
    return ControlFrame(to, State(VERSION, group, "inbox", number, 0, to, "p", "active", b"n", []), size)


class TestControlQueue:
    def test_frames_of_a_source_stay_in_order_and_sources_have_turns(self) -> None:
        queue = ControlQueue(None)
        for number in range(3):
            for group in "ab":
                assert queue.put(group, frame(group, number))
        assert queue.put("c", frame("c", 0))
        taken = [queue.take().content for _ in range(queue.count)]
        assert [(each.group, each.number) for each in taken if isinstance(each, State)] == [
            ("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2),
        ]  # fmt: skip
        assert queue.count == 0

    @pytest.mark.parametrize("size", [100, 60_000])
    def test_a_flood_leaves_room_for_others(self, size: int) -> None:
        queue = ControlQueue(None)
        for number in range(2 * MAX_FRAMES):
            queue.put("made-up", frame("made-up", number, size))
        assert queue.count <= MAX_FRAMES / 2
        assert queue.count * size <= MAX_BYTES / 2
        assert queue.put("g", frame("g", 1, size))
        queue.take()
        taken = queue.take().content
        assert isinstance(taken, State)
        assert taken.group == "g"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "outqueue.db")
    yield found
    for engine in list(found.engines):
        found.close(engine)


def published(bench: Bench, count: int = 20) -> ProducerEngine:
    engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
    bench.publish(engine, "t", *[b"x"] * count)
    return engine


@pytest.mark.parametrize("who", ["made-up", "g"])
def test_states_by_the_thousand_keep_no_other_groups_state_out(bench: Bench, who: str) -> None:
    """All of them wait for the writer at once."""
    engine = published(bench)
    forger = bench.group(who)
    for _ in range(3 * MAX_FRAMES):
        forger.tell(state())
    if who != "g":
        bench.group("g").tell(settled(engine, "t", 20))
    bench.group("h").tell(settled(engine, "t", 20))
    bench.run(1.0)
    behind = {group.group: group.behind for group in engine.status().groups}
    assert behind["h"] == 0
    assert (inspect_outbox(bench.path).messages == 0) == (who != "g")


def test_a_made_up_number_of_a_state_does_not_end_requests(bench: Bench) -> None:
    engine = published(bench)
    group, epoch = bench.group("g"), engine._outbox.epoch
    wanted = state(missing=[(epoch, 1, 20)], wanted=[(epoch, 1, 20)])
    group.tell(state(), number=2**62)
    for _ in range(8):
        group.tell(wanted)
        bench.run(1.0)
    assert set(group.repaired()) == set(range(1, 21))


def test_made_up_groups_that_ask_for_what_is_gone_keep_no_named_one_waiting(bench: Bench) -> None:
    """Each of them is answered with a status: behind the answers to groups that are named, and few at a time."""
    engine = bench.open(GROUPS, hello_timeout=0, retain_seconds=0.0)
    bench.publish(engine, "t", *[b"x"] * 20)
    bench.run(2.0)
    assert inspect_outbox(bench.path).messages == 0, "it was let go"
    epoch = engine._outbox.epoch
    wanted = state(missing=[(epoch, 1, 20)], wanted=[(epoch, 1, 20)])
    forger, named = bench.group("made-up"), bench.group("g")
    bench.run(2.0)
    for number in range(1_500):
        forger.name = f"made-up-{number}"
        forger.tell(wanted)
        if number % 100 == 0:
            bench.run()
    before, told = len(named.statuses), engine.announcements._number
    named.tell(wanted)
    bench.run(0.3)
    assert any(address.endswith("group:g") for _, address, _ in named.statuses[before:])
    assert engine.announcements._number - told <= 100
