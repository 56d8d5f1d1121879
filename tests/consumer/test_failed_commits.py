"""Commits of an inbox that fail for want of room: nothing counts as stored, and the next one holds all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.errors import (
    DeadLetterHalt,
    FatalError,
    GapError,
    InboxIndeterminate,
    InboxWriteError,
    StoreCorrupt,
)
from reliamsg.message import Gap
from reliamsg.store.inbox_view import read_dead_letters
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_journals import rows
from tests.consumer.tools import GROUP, Bench, send, seqs


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db")


class Full:
    """In place of an inbox's commits."""

    def __init__(self, bench: Bench) -> None:
        self._commit = bench.inbox.commit
        self.failed = 0
        self.full = True
        bench.inbox.commit = self  # type: ignore[assignment, method-assign]

    def __call__(self, *arguments: object) -> object:
        if not self.full:
            return self._commit(*arguments)  # type: ignore[arg-type]
        self.failed += 1
        raise InboxWriteError("the disk is full")


def test_what_a_failed_commit_should_have_held_stays_at_its_broker(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    messages = bench.take(ack=False)
    disk = Full(bench)
    for message in messages:
        message.ack()
    bench.settle(2.0)
    assert disk.failed > 1
    assert bench.queued()["dc1"] == 1, "the broker keeps it"
    disk.full = False
    bench.settle(2.0)
    assert bench.queued()["dc1"] == 0
    bench.reopen()
    send(bench.network["dc2"], 1, 6)
    bench.settle()
    assert seqs(bench.take()) == [6]


def test_what_is_to_be_durable_while_a_commit_is_written_is_so_with_the_next(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 2)
    bench.settle()
    first, second = bench.take(ack=False)
    write = bench.inbox.commit
    wanted: list[int] = []
    durable: list[list[bool]] = []

    def commit(*arguments: object) -> object:
        durable.append([bench.engine.shared.durability.is_durable(number) for number in wanted])
        left = write(*arguments)  # type: ignore[arg-type]
        if len(wanted) == 1:
            second.ack()
            wanted.append(bench.engine.shared.durability.want_soon())
        return left

    bench.inbox.commit = commit  # type: ignore[assignment, method-assign]
    first.ack()
    wanted.append(bench.engine.shared.durability.want_soon())
    bench.settle()
    assert durable[:2] == [[False], [True, False]]
    assert [bench.engine.shared.durability.is_durable(number) for number in wanted] == [True, True]


def test_a_dead_letter_that_a_failed_commit_should_have_held_is_in_the_next(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 3)
    bench.settle()
    first, *others = bench.take(ack=False)
    disk = Full(bench)
    first.reject("not for us")
    for message in others:
        message.ack()
    bench.settle(2.0)
    assert disk.failed > 1
    disk.full = False
    bench.settle(2.0)
    assert bench.queued()["dc1"] == 0
    assert [letter.seq for letter in read_dead_letters(bench.path)] == [1]


def test_the_journal_has_what_happened_before_a_commit_that_failed(bench: Bench) -> None:
    disk = Full(bench)
    send(bench.network["dc1"], 1, 5)
    bench.settle(2.0)
    assert disk.failed > 1
    disk.full = False
    bench.settle(2.0)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    bench.settle(1.0)
    assert [(row.first, row.last, row.site) for row in rows(bench.path, "received")] == [(1, 5, "dc1")]


def test_what_could_not_be_read_back_is_read_when_there_is_room_though_nothing_is_to_be_written(
    bench: Bench,
) -> None:
    send(bench.network["dc1"], 2, 5)
    bench.settle(0.5)
    bench.reopen()
    page, failed = bench.inbox.page, []

    def full(*arguments: object) -> object:
        failed.append(bench.now)
        raise InboxWriteError("the disk is full")

    bench.inbox.page = full  # type: ignore[assignment, method-assign]
    send(bench.network["dc1"], 1, 1)
    bench.settle()
    assert seqs(bench.take()) == [1]
    bench.settle(3.0)
    assert bench.take() == []
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [InboxWriteError]
    assert 3 <= len(failed) <= 10, "twice a second"
    bench.inbox.page = page  # type: ignore[method-assign]
    bench.settle(1.0)
    assert bench.engine.shared.durability.write_error is None
    assert seqs(bench.take()) == [2, 3, 4, 5]


def test_a_commit_that_failed_and_of_which_nothing_is_left_to_write_holds_nothing_up(bench: Bench) -> None:
    """An application still had messages of which the journal knew all that there was to say."""
    send(bench.network["dc1"], 1, 3)
    bench.settle()
    chunk = bench.engine.deliveries.take(1, 10)
    assert isinstance(chunk, DeliverySlice)
    while (message := chunk.next()) is not None:
        message.ack()
    bench.settle(5.0)
    disk = Full(bench)
    bench.settle(5.0)
    assert disk.failed > 0
    bench.engine.deliveries.release(chunk)
    disk.full = False
    bench.settle(2.0)
    assert bench.engine.shared.durability.write_error is None
    send(bench.network["dc1"], 4, 5)
    bench.settle()
    assert seqs(bench.take()) == [4, 5]


@pytest.mark.parametrize("error", [InboxIndeterminate, StoreCorrupt])
def test_after_a_commit_that_may_have_been_written_or_not_nothing_is_written_whatever_ended_the_consumer(
    tmp_path: Path, error: type[FatalError]
) -> None:
    """What it should have held must not be missing in one that would come after it."""
    bench = Bench(tmp_path / "inbox.db", max_deliveries=1, halt=True)
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    *done, failing = bench.take(ack=False)
    for message in done:
        message.ack()
    (lane,) = bench.engine.shared.buffers.by_stream.values()
    bench.engine.deliveries.failed(lane, failing, RuntimeError("as tested"))
    assert isinstance(bench.engine.shared.health.fatal, DeadLetterHalt)
    write = bench.inbox.commit

    def fail_once(*_: object) -> object:
        bench.inbox.commit = write  # type: ignore[method-assign]
        raise error("an fsync failed")

    bench.inbox.commit = fail_once  # type: ignore[assignment, method-assign]
    bench.engine.flush(bench.now)
    assert isinstance(bench.engine.shared.health.fatal, error)
    bench.engine.flush(bench.now, closing=True)
    bench.reopen()
    send(bench.network["dc2"], 1, 5)
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]


def _joined_at_5(tmp_path: Path) -> tuple[Bench, FakeProducer]:
    """A group that has no messages before 5, as far as it knows."""
    bench = Bench(tmp_path / "inbox.db", gap_timeout=1.0)
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 5, 8)
    bench.settle(2.0)
    assert seqs(bench.take()) == [5, 6, 7, 8]
    return bench, producer


def _say_that_the_group_joined_at_1(producer: FakeProducer) -> None:
    producer.status((1, 8), since={GROUP: (10, 1)})


def _gaps(bench: Bench) -> list[Gap]:
    errors = bench.engine.shared.health.take_errors()
    return [error.gap for error in errors if isinstance(error, GapError)]


def test_a_gap_that_was_missed_is_reported_once_that_is_durable(tmp_path: Path) -> None:
    """Otherwise a consumer that terminates in the meantime could deliver messages that it had reported as lost."""
    bench, producer = _joined_at_5(tmp_path)
    disk = Full(bench)
    _say_that_the_group_joined_at_1(producer)
    bench.settle(3.0)
    health = bench.engine.shared.health
    assert disk.failed > 1
    assert [type(error) for error in health.take_errors()] == [InboxWriteError]
    disk.full = False
    bench.settle(2.0)
    missed = _gaps(bench)
    assert [(gap.epoch, gap.first, gap.last, gap.reason) for gap in missed] == [(10, 1, 4, "joined late")]
    (row,) = rows(bench.path, "declared")
    assert (row.first, row.last) == (1, 4)


def test_a_gap_that_was_missed_is_reported_again_if_the_process_ended_before_that(tmp_path: Path) -> None:
    """It is declared then, and nothing declares it a second time."""
    bench, producer = _joined_at_5(tmp_path)
    _say_that_the_group_joined_at_1(producer)

    class Killed(BaseException):
        pass

    def killed(_: object) -> None:
        raise Killed

    told = bench.engine.shared.events.committed
    bench.engine.shared.events.committed = killed  # type: ignore[assignment, method-assign]
    with pytest.raises(Killed):
        bench.settle(3.0)
    bench.engine.shared.events.committed = told  # type: ignore[method-assign]
    assert not bench.engine.shared.health.take_errors()
    for times in (1, 0, 0):  # once it was reported, it is not reported again
        bench.reopen()
        bench.settle(3.0)
        assert [(gap.first, gap.last, gap.reason) for gap in _gaps(bench)] == [(1, 4, "joined late")] * times
    assert len(rows(bench.path, "declared")) == 1
