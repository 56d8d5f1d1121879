"""A full inbox: it drains when the application goes on, deposes nobody meanwhile, and says what it is full of.

Heartbeats flow through the same in-memory connections as messages, as real clients would hear them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from reliamsg.consumer.status import ConsumerStatus, status_of
from reliamsg.errors import InboxFull
from reliamsg.message import Message, Stream
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.mqtt import receive_window
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_succession import Group
from tests.consumer.tools import GROUP, TOPIC, Bench, send, seqs

PAD = 400
"""Bytes that each message is filled up with."""
TINY = {"prefetch": 2, "max_inbox_bytes": 4_000}
BOUND_S = 60.0
"""Everything that is deliverable is delivered within so many seconds of the last obstacle's end."""


def open_bench(
    path: Path, protocol: str, sites: int, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Bench:
    """A consumer at brokers of one kind; `mixed` has one of each."""
    prefetch = settings.pop("prefetch", 64)
    names = [f"dc{number + 1}" for number in range(sites)]
    kinds: dict[str, Literal["amqp", "mqtt"]] = {
        name: "amqp" if protocol == "amqp" or (protocol == "mixed" and name == "dc1") else "mqtt"
        for name in names
    }
    network = MemoryNetwork(*names, protocol=kinds, threaded=False)
    network.sites = tuple(replace(site, prefetch=prefetch) for site in network.sites)
    for broker in network.brokers.values():
        if protocol == "mqtt3":
            # Mosquitto without a limit: everything is sent at once, and far more than can be held.
            broker.max_inflight = 1_000_000
    monkeypatch.setattr(receive_window, "HELD_BYTES", 8_000)
    rules = {
        "gap_timeout": settings.pop("gap_timeout", 1000.0),
        "hold_gaps": settings.pop("hold_gaps", False),
    }
    bench = Bench(path / "inbox.db", network=network, **rules)
    bench.settle(8.0)
    bench.settings = {"takeover_timeout": 8.0, **settings}
    bench.reopen(clean=True)
    bench.settle(8.0)  # probes, and the first proofs
    return bench


def look(bench: Bench) -> ConsumerStatus:
    return status_of(bench.engine)


class Taken:
    """What the application got, in order of each stream."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seqs: dict[str, list[int]] = {}
        self.errors: list[BaseException] = []
        self.named: set[tuple[str, str]] = set()
        """(producer, cause) that ``status()`` named."""

    def take(self, most: int = 1) -> int:
        got: list[Message] = self.bench.take(most)
        for message in got:
            self.seqs.setdefault(message.producer, []).append(message.seq)
        return len(got)

    def pass_time(self, seconds: float) -> None:
        """Nothing is taken meanwhile; nobody may be deposed."""
        for _ in range(round(seconds / 0.5)):
            self.bench.settle(0.5)
            status = look(self.bench)
            assert status.role == "active", "a full inbox is no reason to stop reading"
            assert all(site.state == "connected" for site in status.sites.values())
            self.errors += self.bench.engine.shared.health.take_errors()
            self.named |= {(each.stream.producer, each.cause) for each in status.stalled}

    def take_all(self, expected: dict[str, list[int]], pause: float = 0.05) -> None:
        """Everything is delivered once, in order, within the bound of the last that was."""
        last = self.bench.now
        while self.seqs != expected:
            if self.take():
                last = self.bench.now
            self.bench.settle(pause)
            status = look(self.bench)
            if status.role != "active":
                raise AssertionError(f"deposed after {self.bench.now - last:.1f} s: {status}")
            assert self.bench.now - last < BOUND_S, f"stuck at {self.seqs} of {expected}: {status}"
        self.errors += self.bench.engine.shared.health.take_errors()

    def take_what_is_buried(self, expected: dict[str, list[int]]) -> None:
        """What is missing is behind more than inbox and window can hold: that is said, and a repair is let in."""
        self.take_all({"p": [1], "q": expected["q"]})
        self.pass_time(5.0)
        assert ("p", "gap") in self.named
        producer = FakeProducer(self.bench)
        producer.repair(2, 3)
        self.bench.settle(0.1)
        producer.repair(4, 4)
        self.take_all(expected)


Workload = Callable[[Bench], dict[str, list[int]]]


def one_stream(bench: Bench) -> dict[str, list[int]]:
    for number in range(1, 61):
        for broker in bench.network.brokers.values():
            send(broker, number, number, pad=PAD)
    return {"p": list(range(1, 61))}


def many_streams(bench: Bench) -> dict[str, list[int]]:
    names = [f"p{number:02}" for number in range(12)]
    for number in range(1, 6):
        for name in names:
            for broker in bench.network.brokers.values():
                send(broker, number, number, producer=name, pad=PAD)
    return {name: list(range(1, 6)) for name in names}


def gap_behind(bench: Bench) -> dict[str, list[int]]:
    """What one stream lacks waits behind another stream, which is at the head of the queue."""
    first, last = next(iter(bench.network.brokers.values())), list(bench.network.brokers.values())[-1]
    send(first, 1, 1, producer="p")
    send(last, 1, 1, producer="p")
    for number in range(1, 21):
        send(last, number, number, producer="q", pad=PAD)
    for number in range(5, 25):
        send(first, number, number, producer="p", pad=PAD)
    for number in range(2, 5):
        send(last, number, number, producer="p", pad=PAD)
    return {"p": list(range(1, 25)), "q": list(range(1, 21))}


PROTOCOLS = ["amqp", "mqtt5", "mqtt3", "mixed"]
WORKLOADS = {"one stream": one_stream, "many streams": many_streams, "gap behind another stream": gap_behind}


@pytest.mark.integrations
@pytest.mark.parametrize("tight", ["prefetch", "both"])
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestMatrix:
    """Every kind of broker, load and limit."""

    @staticmethod
    def bench(path: Path, protocol: str, sites: int, tight: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
        limits = {"prefetch": TINY["prefetch"]} if tight == "prefetch" else TINY
        return open_bench(path, protocol, sites, monkeypatch, **limits)

    @staticmethod
    def is_buried(bench: Bench, workload: str) -> bool:
        limits = [site.prefetch == TINY["prefetch"] for site in bench.network.sites]
        tiny = all(limits) and len(bench.network.sites) == 1 and "max_inbox_bytes" in bench.settings
        return tiny and workload == "gap behind another stream"

    def test_a_slow_handler(
        self,
        tmp_path: Path,
        protocol: str,
        sites: int,
        workload: str,
        tight: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        bench = self.bench(tmp_path, protocol, sites, tight, monkeypatch)
        expected = WORKLOADS[workload](bench)
        if self.is_buried(bench, workload):
            Taken(bench).take_what_is_buried(expected)
        else:
            Taken(bench).take_all(expected, pause=0.2)

    def test_a_handler_that_stops_and_goes_on(
        self,
        tmp_path: Path,
        protocol: str,
        sites: int,
        workload: str,
        tight: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """For many leases, and takeovers."""
        bench = self.bench(tmp_path, protocol, sites, tight, monkeypatch)
        expected = WORKLOADS[workload](bench)
        taken = Taken(bench)
        taken.pass_time(20.0)
        full = [error for error in taken.errors if isinstance(error, InboxFull)]
        if "max_inbox_bytes" in bench.settings:
            assert len(full) == 1, "told once"
            assert (full[0].stream.producer, full[0].cause) in taken.named
            assert full[0].stream.producer in expected
            assert full[0].cause in ("handler", "gap")
        else:
            assert not full
            assert not taken.named
        if self.is_buried(bench, workload):
            taken.take_what_is_buried(expected)
        else:
            taken.take_all(expected)
        bench.settle(10.0)
        assert look(bench).stalled == ()
        assert not any(bench.queued().values())
        assert bench.inbox.held_bytes == 0


@pytest.mark.parametrize("kind", ["amqp", "mqtt", "mixed"])
def test_a_standby_does_not_take_over_from_one_that_is_only_full(tmp_path: Path, kind: str) -> None:
    group = Group(tmp_path, kind)
    group.network.sites = tuple(replace(site, prefetch=2) for site in group.network.sites)
    first = group.join(max_inbox_bytes=4_000)
    group.settle(3.0)
    second = group.join(standby=True, max_inbox_bytes=4_000)
    for number in range(1, 41):
        for broker in group.network.brokers.values():
            send(broker, number, number, pad=PAD)
    for _ in range(12):  # three takeovers' time
        group.settle(2.0)
        assert look(first).role == "active"
        assert look(second).role == "standby"
    assert [each.cause for each in look(first).stalled] == ["handler"]
    got: list[int] = []
    while len(got) < 40:
        fresh = seqs(first.take(1))
        got += fresh
        group.settle(0.1)
        assert look(first).role == "active"
    assert got == list(range(1, 41))


def full_of(bench: Bench, cause: str) -> InboxFull:
    """Wait for the error, and compare it with what ``status()`` says."""
    bench.settle(3.0)
    (error,) = [each for each in bench.engine.shared.health.take_errors() if isinstance(each, InboxFull)]
    assert error.cause == cause
    stalled = look(bench).stalled
    assert [each.cause for each in stalled][:1] == [cause]
    assert stalled[0].stream == error.stream
    assert str(error.stream) in str(error)
    assert str(stalled[0]) in str(error)
    return error


def test_a_handler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(tmp_path, "amqp", 1, monkeypatch, **TINY)
    one_stream(bench)
    bench.settle(0.1)
    (message,) = bench.take(1, ack=False)
    message._settler.failed(message, RuntimeError("as planned"))
    full_of(bench, "failing")


def test_a_gap_is_named_and_told_of_once_for_each_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(tmp_path, "amqp", 2, monkeypatch, **TINY)
    first, second = bench.network.brokers.values()
    for base in (0, 40):
        send(first, base + 1, base + 1)
        bench.settle(0.1)
        assert seqs(bench.take()) == [base + 1]
        for number in range(base + 4, base + 41):
            send(first, number, number, pad=PAD)
        full_of(bench, "gap")
        bench.settle(10.0)
        assert not [each for each in bench.engine.shared.health.take_errors() if isinstance(each, InboxFull)]
        send(second, base + 2, base + 3)
        got: list[int] = []
        for _ in range(100):
            got += seqs(bench.take(1))
            bench.settle(0.1)
        assert got == list(range(base + 2, base + 41))
        bench.settle(6.0)
        assert look(bench).stalled == ()


def test_an_inbox_that_was_full_for_a_moment_keeps_its_thread_busy_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(tmp_path, "amqp", 1, monkeypatch, **TINY)
    expected = one_stream(bench)
    bench.settle(0.5)
    taken = Taken(bench)
    taken.take_all(expected, pause=0.001)
    bench.settle(10.0)  # which looks at how often it is called
    assert not [each for each in taken.errors if isinstance(each, InboxFull)]


def test_no_gap_expires_while_the_application_keeps_the_inbox_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing waits at the broker behind what can't be taken in: it is not lost."""
    bench = open_bench(tmp_path, "amqp", 1, monkeypatch, gap_timeout=5.0, **TINY)
    (broker,) = bench.network.brokers.values()
    send(broker, 1, 1, producer="p")
    bench.settle(0.1)
    assert seqs(bench.take()) == [1]
    send(broker, 3, 3, producer="p")
    for number in range(1, 30):
        send(broker, number, number, producer="q", pad=PAD)
    send(broker, 2, 2, producer="p")
    bench.settle(20.0)
    status = look(bench)
    assert {each.stream.producer: each.cause for each in status.stalled} == {"q": "handler", "p": "gap"}
    assert status.streams[Stream("p", TOPIC, 0)].gap_elapsed_s < 3.0, "but for what passed before it was full"
    taken = Taken(bench)
    taken.take_all({"p": [2, 3], "q": list(range(1, 30))})


def test_what_an_earlier_opening_held_keeps_nothing_out_of_a_full_inbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(tmp_path, "amqp", 1, monkeypatch, gap_timeout=5.0, hold_gaps=True, **TINY)
    (broker,) = bench.network.brokers.values()
    earlier = FakeProducer(bench)
    send(broker, 1, 1)
    earlier.status((1, 1))
    bench.settle(0.1)
    assert seqs(bench.take()) == [1]
    for number in range(9, 41):
        send(broker, number, number, pad=PAD)
    bench.settle(8.0)
    assert [each.cause for each in look(bench).stalled] == ["gap"]
    later = FakeProducer(bench, epoch=11, incarnation=78)
    later.status((earlier.epoch, earlier.incarnation, 5, 40), since={GROUP: (earlier.epoch, 1)})
    bench.settle(0.5)
    earlier.repair(5, 6)
    bench.settle(0.5)
    gap = look(bench).streams[Stream("p", TOPIC, 0)].gap
    assert gap is not None
    assert (gap.first, gap.last) == (2, 4)


@pytest.mark.parametrize("holds", [True, False])
def test_a_full_inbox_takes_in_what_is_left_of_a_gap_though_the_gap_begins_with_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    """Nobody can fill the gap from its beginning, so whoever passes it must not give up what its producer sends."""
    bench = open_bench(tmp_path, "amqp", 1, monkeypatch, gap_timeout=5.0, hold_gaps=holds, **TINY)
    (broker,) = bench.network.brokers.values()
    send(broker, 1, 1)
    bench.settle(0.1)
    assert seqs(bench.take()) == [1]
    for number in range(9, 41):
        send(broker, number, number, pad=PAD)
    bench.settle(8.0 if holds else 2.0)
    assert [each.cause for each in look(bench).stalled] == ["gap"]
    producer = FakeProducer(bench)
    producer.status((5, 40))
    bench.settle(0.5)
    producer.repair(7, 8)  # it is not the lowest that is held
    bench.settle(0.5)
    producer.repair(5, 6)
    bench.settle(0.5)
    gap = look(bench).streams[Stream("p", TOPIC, 0)].gap
    assert gap is not None
    assert (gap.first, gap.last) == (2, 4)
    for _ in range(40):
        bench.settle(0.5)
        if bench.engine.deliveries.accept(gap):
            break
    bench.settle(0.5)
    assert seqs(bench.take()) == [5, 6]
    producer.repair(7, 8)
    got: list[int] = []
    for _ in range(100):
        bench.settle(0.1)
        got += seqs(bench.take(1))
    assert got == list(range(7, 41))
