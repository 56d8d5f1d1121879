"""How much streams that gaps hold may use: others go on however long that lasts, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.quarantine import HELD as QUARANTINED
from reliamsg.consumer.status import status_of
from reliamsg.errors import GapHeld, QuarantineFull
from reliamsg.message import Message, Stream
from reliamsg.store.inbox_view import summarize_inbox
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_full_inbox import open_bench
from tests.consumer.test_journals import rows
from tests.consumer.tools import TOPIC, Bench, send

PAD = 400
INBOX = 8_000
"""Bytes of the inbox; about fifteen messages."""
LAST = 200
"""Of the held stream: ten times the inbox."""


def open_holding(tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Bench:
    bench = open_bench(
        tmp_path, protocol, 2, monkeypatch, gap_timeout=5.0, hold_gaps=True, prefetch=8, max_inbox_bytes=INBOX,
        **settings,
    )  # fmt: skip
    for broker in bench.network.brokers.values():
        send(broker, 1, 1, producer="held", pad=PAD)
        send(broker, 5, 5, producer="held", pad=PAD)
    bench.settle()
    assert [message.seq for message in bench.take()] == [1]
    bench.settle(8.0)
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [GapHeld]
    return bench


class Flow:
    """Another stream goes on, message by message, while the held one comes in; nothing may hold it up."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.number = 0
        self.got: list[int] = []
        """Of the held stream."""

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self.number += 1
            for broker in self.bench.network.brokers.values():
                send(broker, self.number, self.number, producer="other", pad=PAD)
            self.bench.settle(0.1)
            got = self.bench.take()
            assert [each.seq for each in got if each.producer == "other"] == [self.number]
            self._note(got)

    def _note(self, got: list[Message]) -> None:
        self.got += [message.seq for message in got if message.producer == "held"]

    def until_all(self, expected: list[int]) -> None:
        deadline = self.bench.now + 60.0
        while self.got != expected:
            self.bench.settle(0.05)
            self._note(self.bench.take())
            assert self.bench.now < deadline, (self.got, expected)


def hold_long(bench: Bench, restart_at: int = 0) -> Flow:
    flow = Flow(bench)
    for number in range(6, LAST + 1):
        for broker in bench.network.brokers.values():
            send(broker, number, number, producer="held", pad=PAD)
        if number % 4 == 0:
            flow.go_on()
        if number == restart_at:
            bench.reopen()
            bench.settle(8.0)
    flow.go_on(5)
    assert flow.got == []
    stats = summarize_inbox(bench.path)
    assert stats.held_bytes <= INBOX * 3 // 8 + 1_000  # half of what is free, but for what is reserved
    assert stats.quarantined[QUARANTINED][1] > 5 * INBOX
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    status = status_of(bench.engine)
    assert status.stalled == ()
    assert status.streams[Stream("held", TOPIC)].gap_held
    return flow


@pytest.mark.parametrize("restart_at", [0, 100])
@pytest.mark.parametrize("protocol", ["amqp", "mqtt", "mixed"])
def test_a_hold_of_ten_times_the_inbox_stops_nobody_and_ends_in_order(
    protocol: str, restart_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, protocol, monkeypatch)
    flow = hold_long(bench, restart_at)
    for number in (2, 3, 4):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
    flow.until_all(list(range(2, LAST + 1)))
    bench.settle(1.0)
    assert summarize_inbox(bench.path).quarantined == {}
    assert rows(bench.path, "declared") == []


@pytest.mark.parametrize("restart", [False, True])
def test_an_accepted_gap_brings_out_all_that_waited(
    restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "mixed", monkeypatch)
    flow = hold_long(bench)
    gap = status_of(bench.engine).streams[Stream("held", TOPIC)].gap
    assert gap is not None
    assert bench.engine.deliveries.accept(gap)
    bench.engine.shared.durability.want_soon()
    if restart:  # before anything of it came out
        bench.settle(0.0)
        bench.reopen()
        bench.settle(8.0)
    flow.until_all(list(range(5, LAST + 1)))
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(2, 4)]
    bench.settle(1.0)
    assert summarize_inbox(bench.path).quarantined == {}


def test_a_second_gap_in_what_waited_holds_again_and_the_rest_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch)
    for number in [*range(6, 100), *range(103, LAST + 1)]:
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
        bench.settle()
    send(bench.network["dc2"], 2, 4, producer="held", pad=PAD)
    flow = Flow(bench)
    flow.until_all(list(range(2, 100)))
    bench.settle(8.0)
    flow.go_on(20)
    (held,) = bench.engine.shared.health.take_errors()
    assert isinstance(held, GapHeld)
    assert (held.gap.first, held.gap.last) == (100, 102)
    assert summarize_inbox(bench.path).held_bytes < INBOX
    assert bench.engine.deliveries.accept(held.gap)
    flow.until_all([*range(2, 100), *range(103, LAST + 1)])


def test_what_waits_is_not_asked_for_and_what_holds_the_stream_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch)
    for number in range(6, 61):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
    producer = FakeProducer(bench, name="held")
    producer.status((1, 80))
    bench.settle(30.0)
    asked = {span[1:] for stream in producer.streams() for span in stream.wanted}
    assert asked == {(2, 4)}


def test_reading_stops_when_the_quarantine_is_full_too_and_says_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=40_000)
    for number in range(6, LAST + 1):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
        bench.settle()
    errors = [
        error for error in bench.engine.shared.health.take_errors() if isinstance(error, QuarantineFull)
    ]
    assert len(errors) == 1
    assert "held/orders" in str(errors[0])
    assert "reliamsg inbox gaps" in str(errors[0])
    assert bench.queued()["dc1"] > 0


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_what_used_up_the_windows_before_the_hold_began_gives_way(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(
        tmp_path, protocol, 2, monkeypatch, gap_timeout=5.0, hold_gaps=True, prefetch=8, max_inbox_bytes=INBOX
    )
    for number in [1, *range(5, LAST + 1)]:
        for broker in bench.network.brokers.values():
            send(broker, number, number, producer="held", pad=PAD)
    for _ in range(400):
        bench.settle(0.02)
        bench.take()
    assert status_of(bench.engine).streams[Stream("held", TOPIC)].gap_held
    flow = Flow(bench)
    for _ in range(200):
        bench.settle(0.02)
    flow.go_on(20)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    producer = FakeProducer(bench, name="held")
    producer.repair(2, 4)
    flow.until_all(list(range(2, LAST + 1)))
    assert rows(bench.path, "declared") == []


def test_what_lies_in_the_next_gap_is_taken_in_though_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in quarantine, so the gap would not expire; and nothing that is behind it makes room."""
    bench = open_holding(tmp_path, "amqp", monkeypatch)
    for number in [*range(8, 31), 7]:  # 6 is missing
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
        bench.settle()
    assert summarize_inbox(bench.path).quarantined[QUARANTINED][0] > 10
    send(bench.network["dc2"], 2, 4, producer="held", pad=PAD)
    flow = Flow(bench)
    flow.until_all([2, 3, 4, 5])
    flow.go_on(100)
    (held,) = bench.engine.shared.health.take_errors()
    assert isinstance(held, GapHeld)
    assert (held.gap.first, held.gap.last) == (6, 6)
    assert bench.engine.deliveries.accept(held.gap)
    flow.until_all([2, 3, 4, 5, *range(7, 31)])
