"""Idle streams leave memory, and come back when something of them arrives; beyond the limits messages wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.errors import TooManyStreams
from tests.receiving.tools import Bench, body_of, send, seqs

STREAMS = 600
MOST = 60


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
    assert len(bench.engine.shared.lanes) <= MOST
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
    assert [type(error) for error in bench.engine.take_errors()] == [TooManyStreams]
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
