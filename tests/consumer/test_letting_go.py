"""What waits behind a held gap is left to its producer, where that has to keep it, and comes again; where that is not
proven, it is kept here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg.cli import main
from reliamsg.consumer.status import status_of
from reliamsg.errors import GapHeld, QuarantineFull
from reliamsg.message import Gap, Prev, Stream
from reliamsg.store.inbox_view import list_streams, summarize_inbox
from reliamsg.wire.address import group_address
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_hold_room import LAST, PAD, Flow, open_holding
from tests.consumer.test_journals import rows
from tests.consumer.tools import GROUP, TOPIC, Bench, frame, send

HELD = Stream("held", TOPIC)
QUARANTINE = 40_000
"""Bytes. A quarter of it is used before anything is let go of; all that comes would need twice as much."""


class Keeping(FakeProducer):
    """A producer that keeps what it published since number 5, and sends it again to a group that asks."""

    def __init__(self, bench: Bench, last: int = LAST) -> None:
        super().__init__(bench, "held")
        self.last = last
        self.asked: list[tuple[int, int, int]] = []

    def keep(self, first: int = 5, **said: Any) -> None:
        """Say so, in answer to the group."""
        self.keep_epochs((self.epoch, self.incarnation, first, self.last), **said)

    def keep_epochs(self, *chain: tuple[int, int, int, int], **said: Any) -> None:
        lease = self.bench.engine.shared.role.lease
        said = {
            "since": {GROUP: (10, 5)}, "heard": (lease.inbox, 2**60), "interval_ms": 60_000,
            "to": group_address(GROUP), **said,
        }  # fmt: skip
        self.status(*chain, **said)

    def answer(self) -> None:
        """Send what is asked for."""
        for stream in self.streams():
            for epoch, first, last in stream.wanted:
                self.asked.append((epoch, first, last))
                for number in range(max(first, 5), last + 1):
                    self.tell(group_address(GROUP), frame(number, number, producer=self.name, pad=PAD))


def arrive(bench: Bench, first: int = 6, last: int = LAST, **options: Any) -> Flow:
    flow = Flow(bench)
    for number in range(first, last + 1):
        for broker in bench.network.brokers.values():
            send(broker, number, number, producer="held", pad=PAD, **options)
        bench.settle()
        if number % 10 == 0:
            flow.go_on()
    return flow


def let_go(bench: Bench) -> set[int]:
    """The numbers that the journal says were let go of, and of which no copy was kept."""
    gone, kept = (
        {number for row in rows(bench.path, kind) for number in range(row.first, row.last + 1)}
        for kind in ("let_go", "quarantined")
    )
    return gone - kept


def come(flow: Flow, producer: Keeping, expected: list[int]) -> None:
    deadline = flow.bench.now + 120.0
    while flow.got != expected:
        producer.answer()
        flow.bench.settle(0.05)
        flow.got += [message.seq for message in flow.bench.take() if message.producer == "held"]
        assert flow.bench.now < deadline, (flow.got, status_of(flow.bench.engine))


def gap_of(bench: Bench) -> Gap:
    gap = status_of(bench.engine).streams[HELD].gap
    assert gap is not None
    return gap


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("protocol", ["amqp", "mqtt", "mixed"])
def test_what_its_producer_keeps_is_let_go_of_and_comes_again(
    protocol: str, restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, protocol, monkeypatch, max_quarantine_bytes=QUARANTINE)
    producer = Keeping(bench)
    producer.keep()
    flow = arrive(bench)
    assert flow.got == []
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    assert QUARANTINE / 4 <= bench.engine.shared.quarantine.total < QUARANTINE / 4 + 2_000
    gone = let_go(bench)
    assert len(gone) > LAST / 2
    assert gone == set(range(min(gone), LAST + 1))
    producer.answer()
    assert producer.asked == []  # while the stream is held it could not be taken in
    if restarts:
        bench.reopen()
        bench.settle(8.0)
        assert bench.engine.shared.health.take_errors()
    gap = gap_of(bench)
    assert (gap.first, gap.last) == (2, 4)
    assert bench.engine.deliveries.accept(gap)
    if restarts:  # it is known to exist though nobody says so any more
        flow.until_all(list(range(5, min(gone))))
        bench.settle(0.5)
        lacks = gap_of(bench)
        assert (lacks.first, lacks.last) == (min(gone), LAST)
    come(flow, producer, list(range(5, LAST + 1)))
    assert [(row.first, row.last) for row in rows(bench.path, "declared")] == [(2, 4)]
    bench.settle(1.0)
    assert summarize_inbox(bench.path).quarantined == {}


def test_what_was_left_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither what is here, nor what the gap lacks, counts."""
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=QUARANTINE)
    producer = Keeping(bench)
    producer.keep()
    assert not status_of(bench.engine).streams[HELD].left_to_producer
    flow = arrive(bench)
    gone = len(let_go(bench))
    left = {"held": gone, "other": 0}
    assert {info.stream.producer: info.left for info in list_streams(bench.path, -1)} == left
    assert main(["inbox", "ls", str(bench.path)]) == 0
    shown = capsys.readouterr().out
    assert f"{gone} left to the producer" in shown
    assert shown.count("left") == 1
    for reopened in (False, True):
        if reopened:
            bench.reopen()
        status = status_of(bench.engine).streams
        assert status[HELD].left_to_producer
        assert not any(each.left_to_producer for stream, each in status.items() if stream != HELD)
    bench.settle(8.0)
    assert bench.engine.deliveries.accept(gap_of(bench))
    come(flow, producer, list(range(5, LAST + 1)))
    bench.settle(1.0)
    assert not status_of(bench.engine).streams[HELD].left_to_producer
    assert [info.left for info in list_streams(bench.path, -1)] == [0, 0]


def nothing_said(producer: Keeping) -> None:
    pass


def kept_until_confirmed(producer: Keeping) -> None:
    producer.keep(consumed=False)


def not_for_this_group(producer: Keeping) -> None:
    producer.keep(since={"another": (producer.epoch, 5)})


def named_later(producer: Keeping) -> None:
    producer.keep(since={GROUP: (producer.epoch, LAST + 1)})


def released(producer: Keeping) -> None:
    producer.keep(first=LAST + 1)


def long_ago(producer: Keeping) -> None:
    producer.keep(interval_ms=1_000)
    producer.bench.settle(5.0)


def not_an_answer(producer: Keeping) -> None:
    producer.keep(heard=None)


def another_incarnation(producer: Keeping) -> None:
    producer.incarnation = 78
    producer.keep()


def an_earlier_opening(producer: Keeping) -> None:
    """Its outbox was opened again since, and what it holds now nobody has said."""
    producer.keep()
    bench = producer.bench
    send(bench.network["dc1"], 1, 1, producer="held", pad=PAD, epoch=20, prev=Prev(10, 77, LAST))
    bench.settle()


def restored_since(producer: Keeping) -> None:
    """It is a copy from before most of this was published."""
    producer.keep()
    producer.epoch, producer.incarnation = 20, 88
    producer.keep_epochs((10, 77, 5, 6))


@pytest.mark.parametrize(
    "says",
    [
        nothing_said, kept_until_confirmed, not_for_this_group, named_later, released, long_ago, not_an_answer,
        another_incarnation, an_earlier_opening, restored_since,
    ],
)  # fmt: skip
def test_what_is_not_proven_to_be_kept_is_kept_here(
    says: Callable[[Keeping], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=QUARANTINE)
    producer = Keeping(bench)
    says(producer)
    for number in range(6, LAST + 1):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
        bench.settle(0.01)
    assert let_go(bench) == set()
    assert any(isinstance(error, QuarantineFull) for error in bench.engine.shared.health.take_errors())
    assert bench.engine.shared.quarantine.total > QUARANTINE / 4 + 2_000


def test_what_went_with_its_producers_disk_after_it_was_let_go_of_is_declared_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=QUARANTINE)
    producer = Keeping(bench)
    producer.keep()
    flow = arrive(bench)
    gone = let_go(bench)
    bench.reopen()
    bench.settle(8.0)
    bench.engine.shared.health.take_errors()
    # The copy knows of what was published up to 10, and goes on from there.
    producer.epoch, producer.incarnation = 20, 88
    producer.status((10, 77, 5, 10), (20, 88, 1, 3), since={GROUP: (10, 5)})
    for broker in bench.network.brokers.values():
        send(broker, 1, 3, producer="held", epoch=20, incarnation=88, prev=Prev(10, 77, 10))
    assert bench.engine.deliveries.accept(gap_of(bench))
    flow.until_all(list(range(5, min(gone))))
    bench.settle(8.0)
    (held,) = [error for error in bench.engine.shared.health.take_errors() if isinstance(error, GapHeld)]
    assert (held.gap.epoch, held.gap.first, held.gap.last) == (10, min(gone), LAST)
    assert bench.engine.deliveries.accept(held.gap)
    flow.until_all([*range(5, min(gone)), 1, 2, 3])
    declared = [(row.epoch, row.first, row.last) for row in rows(bench.path, "declared")]
    assert declared == [(10, 2, 4), (10, min(gone), LAST)]


def test_a_new_epoch_behind_the_gap_is_let_go_of_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=QUARANTINE)
    producer = Keeping(bench)
    producer.keep()
    flow = arrive(bench, 6, 60)
    begun = let_go(bench)
    assert begun
    producer.epoch, producer.incarnation = 20, 88
    later: dict[str, Any] = {"epoch": 20, "incarnation": 88, "prev": Prev(10, 77, 60)}
    producer.keep_epochs((10, 77, 5, 60), (20, 88, 1, 50))
    for number in range(1, 51):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD, **later)
        bench.settle()
    assert {row.epoch for row in rows(bench.path, "let_go")} == {10, 20}
    bench.reopen()
    bench.settle(8.0)
    producer.keep_epochs((10, 77, 5, 60), (20, 88, 1, 50))
    bench.settle(1.0)
    assert bench.engine.deliveries.accept(gap_of(bench))
    deadline = bench.now + 120.0
    got: list[tuple[int, int]] = []
    while len(got) < 56 + 50:
        for stream in producer.streams():
            for epoch, first, last in stream.wanted:
                for number in range(first, last + 1):
                    of = later if epoch == 20 else {"epoch": 10}
                    producer.tell(group_address(GROUP), frame(number, number, producer="held", **of))
        bench.settle(0.05)
        got += [(message.epoch, message.seq) for message in bench.take() if message.producer == "held"]
        assert bench.now < deadline, got
    assert got == [*((10, n) for n in range(5, 61)), *((20, n) for n in range(1, 51))]
    assert flow.got == []


def test_a_full_quarantine_stops_nobody_whose_producer_keeps_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word comes when most of it is used up."""
    bench = open_holding(tmp_path, "amqp", monkeypatch, max_quarantine_bytes=QUARANTINE)
    arrive(bench, 6, 28)
    assert let_go(bench) == set()
    assert bench.engine.shared.quarantine.total > QUARANTINE / 4
    producer = Keeping(bench)
    producer.keep()
    for number in range(29, LAST + 1):
        send(bench.network["dc1"], number, number, producer="held", pad=PAD)
        bench.settle()
    flow = Flow(bench)
    assert let_go(bench) == set(range(29, LAST + 1))
    bench.engine.deliveries.accept(gap_of(bench))
    come(flow, producer, list(range(5, LAST + 1)))
