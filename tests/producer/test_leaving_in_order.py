"""Batches of a stream leave its outbox in order, so that what is held of it is its end, as its status says.

A status names the lowest number that is held. A group that lacks what left behind it would ask for that for ever, and
wait.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.message import Stream
from reliamsg.producer.encoding import cut
from reliamsg.producer.retention import Excess, Retention
from reliamsg.store.members import RemovedRange
from reliamsg.store.outbox import NewBatch, Outbox
from reliamsg.store.rows import Row
from reliamsg.wire.data import Origin, Records, encode

NOTHING = Excess(0, 0)
EVERYTHING = Excess(0, 1 << 30)
LATER_US = 60_000_000


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "outbox.db", "p", 5_000_000, 0, "boot")
    yield opened
    opened.close()


def put(outbox: Outbox, topic: str, count: int = 1) -> Row:
    stream = outbox.stream(topic, 0)
    seq = stream.next_seq
    frame = encode(
        Origin(Stream("p", topic), outbox.epoch, outbox.incarnation),
        seq,
        (7_000, 7_000),
        Records([b"x"] * count),
    )
    (row,) = outbox.append([NewBatch(stream, seq, count, frame)], [], 7_000, 0)
    return row


def release(outbox: Outbox, everywhere: list[int], partly: list[int], excess: Excess) -> list[int]:
    retention = Retention(1 << 20, 0.0, 0)
    left, _ = retention.release(
        outbox,
        [(n, n) for n in everywhere],
        [(n, n) for n in partly],
        lambda row: ["dc2"],
        excess,
        LATER_US,
        0,
    )
    return left


def held(outbox: Outbox, topic: str) -> list[tuple[int, int]]:
    rows = outbox.rows(0, 2**62, 1_000)
    return sorted((row.epoch, row.seq) for row in rows if row.stream.topic == topic)


def test_what_is_confirmed_ahead_of_an_earlier_batch_stays_with_it(outbox: Outbox) -> None:
    for topic in ("orders", "orders", "orders", "bills"):
        put(outbox, topic)
    assert release(outbox, [2, 3, 4], [1], NOTHING) == [4], "another stream's goes"
    assert release(outbox, [1, 2, 3], [], NOTHING) == [1, 2, 3]


def test_where_room_is_needed_the_first_goes_before_those_behind_it(outbox: Outbox) -> None:
    for _ in range(3):
        put(outbox, "orders")
    assert release(outbox, [2, 3], [1], EVERYTHING) == [1]
    assert release(outbox, [2, 3], [], EVERYTHING) == [2, 3]


def test_what_is_not_published_keeps_what_is_behind_it(outbox: Outbox) -> None:
    for _ in range(3):
        put(outbox, "orders")
    assert release(outbox, [2, 3], [], EVERYTHING) == []


def test_what_is_left_behind_a_removed_range_counts_where_its_numbers_are(outbox: Outbox) -> None:
    """It has the highest row, and numbers in the middle."""
    put(outbox, "orders", 3)
    put(outbox, "orders")
    stream_id = outbox.stream("orders", 0).id
    outbox.take_out(
        stream_id, RemovedRange(outbox.epoch, 2, 2), cut, lambda taken: (taken.spans, []), 7_000, 0
    )
    assert release(outbox, [1, 2], [], NOTHING) == [1]
    assert release(outbox, [2, 3], [], NOTHING) == [3]
    assert release(outbox, [2], [], NOTHING) == [2]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_held_of_a_stream_is_its_end(outbox: Outbox, seed: int) -> None:
    chance = random.Random(seed)
    confirmed: set[int] = set()
    partly: set[int] = set()
    stored: dict[str, list[tuple[int, int]]] = {"orders": [], "bills": [], "parcels": []}
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            topic = chance.choice(list(stored))
            row = put(outbox, topic, chance.randrange(1, 4))
            stored[topic].append((row.epoch, row.seq))
            partly.add(row.id)
        for number in list(partly):
            if chance.random() < 0.2:
                partly.remove(number)
                confirmed.add(number)
        there = {row.id for row in outbox.rows(0, 2**62, 1_000)}
        published = {number for number in partly if chance.random() < 0.7}
        need = chance.choice([NOTHING, Excess(0, 300), EVERYTHING])
        release(outbox, sorted(confirmed & there), sorted(published & there), need)
        for topic, all_of_it in stored.items():
            some = held(outbox, topic)
            assert some == all_of_it[len(all_of_it) - len(some) :]
    partly |= confirmed
    for _ in range(5):
        release(outbox, sorted(partly), [], NOTHING)
    assert not outbox.rows(0, 2**62, 1_000), "nothing is kept back for good"
