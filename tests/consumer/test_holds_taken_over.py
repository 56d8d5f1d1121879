"""A gap that was accepted is accepted also for an inbox that takes over, whatever the first one had not dealt with."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.status import status_of
from reliamsg.errors import GapHeld
from reliamsg.message import Gap, Stream
from tests.consumer.control_tools import FakeProducer, rows
from tests.consumer.test_succession import KINDS, Group
from tests.consumer.tools import TOPIC, Bench, send, seqs

STREAM = Stream("p", TOPIC)
HOLDS = {"hold_gaps": True}


@pytest.fixture(params=KINDS)
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Group:
    return Group(tmp_path, request.param)


def join_both(group: Group) -> tuple[Bench, Bench, FakeProducer]:
    first = group.join(rules=HOLDS)
    group.settle(0.5)
    second = group.join(standby=True, rules=HOLDS)
    group.settle(1.0)
    return first, second, FakeProducer(first)


def gapped(group: Group) -> None:
    """Of messages 1 to 8, 3 and 4 are missing, and 7."""
    for span in ((1, 2), (5, 6), (8, 8)):
        for site in ("dc1", "dc2"):
            send(group.network[site], *span)
    group.settle(1.0)


def accept(bench: Bench, gap: Gap) -> None:
    """As ``Consumer.accept`` does."""
    assert bench.engine.deliveries.accept(gap)
    bench.engine.flush(bench.now)
    bench.engine.announce_accepted(gap.stream)
    bench.network.run_pending()


def take_over(group: Group, first: Bench, second: Bench, producer: FakeProducer) -> list[int]:
    """The first one ends at once; the other gets all but what is lost for good. Returns what it hands out."""
    group.kill(first)
    group.settle(10.0)
    assert group.readers() == [second]
    producer.bench = second
    producer.status((1, 8), interval_ms=60_000)
    group.settle(0.5)
    for span in ((1, 2), (5, 6), (8, 8)):
        producer.repair(*span)
    group.settle(0.5)
    got = seqs(second.take())
    group.settle(8.0)
    return got + seqs(second.take())


def test_what_was_passed_is_not_held_again(group: Group) -> None:
    first, second, producer = join_both(group)
    gapped(group)
    assert seqs(first.take()) == [1, 2]
    group.settle(6.0)
    (held,) = first.engine.shared.health.take_errors()
    assert isinstance(held, GapHeld)
    accept(first, held.gap)
    got = take_over(group, first, second, producer)
    assert got == [5, 6]
    assert [
        error.gap.first for error in second.engine.shared.health.take_errors() if isinstance(error, GapHeld)
    ] == []
    gap = status_of(second.engine).streams[STREAM].gap
    assert gap is not None
    assert gap.first == 7
    send(group.network["dc1"], 3, 4)
    group.settle(1.0)
    assert second.take() == []


@pytest.mark.parametrize("twice", [False, True])
def test_what_was_accepted_behind_unacknowledged_messages_is_accepted(group: Group, twice: bool) -> None:
    first, second, producer = join_both(group)
    gapped(group)
    assert seqs(first.take(ack=False)) == [1, 2]
    gap = status_of(first.engine).streams[STREAM].gap
    assert gap is not None
    accept(first, gap)
    third = group.join(standby=True, rules=HOLDS) if twice else second
    group.settle(1.0)
    assert rows(first, "declared") == []
    if twice:  # it is told on by one that has not passed it either
        group.kill(first)
        group.settle(10.0)
        (first,) = group.readers()
        group.settle(1.0)
        (second,) = {second, third} - {first}
    got = take_over(group, first, second, producer)
    assert got == [1, 2, 5, 6]
    declared = [(row.first, row.last) for row in rows(second, "declared")]
    assert declared == [(3, 4)]
    assert [error for error in second.engine.shared.health.take_errors() if isinstance(error, GapHeld)] == []
