"""Random histories of an outbox that is put back now and then, while its batches are on their way, and of applications
that are in the middle of a run of messages whenever anything arrives.

The journal alone must show that all was given in order, and that what was given and not acknowledged came again, or
was declared, before anything later. A failing seed is printed.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from reliamsg.checker import Expect, check_directory
from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.deliveries import GapItem
from reliamsg.message import Prev
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import read_journal
from tests.chance import examples
from tests.consumer.test_random import History, Place
from tests.consumer.tools import Bench, body_of, send


class Forked(History):
    """See the module."""

    def __init__(self, seed: int, path: Path) -> None:
        super().__init__(seed, path, lossy=False)
        self.path = path
        self.copies: list[tuple[int, int, Prev | None]] = []
        """What the outbox held of the stream at some time: epoch, last number, the epoch before."""
        self.chunk: DeliverySlice | None = None

    def next_epoch(self) -> None:
        """The outbox is opened again, mostly as it is, else as it was."""
        newest = self.epoch
        self.copies.append((self.epoch, self.seq, self.prev))
        if self.random.random() < 0.6:
            self.epoch, self.seq, self.prev = self.random.choice(self.copies)
        if self.seq:
            self.prev = Prev(self.epoch, self.epoch * 7, self.seq)
        self.epoch, self.seq = newest + self.random.choice([1, 5]), 0

    def consume(self, most: int, failures: float) -> None:
        """Go on with the run of messages that is at hand, not always to its end."""
        bench = self.bench
        if self.chunk is not None and self.chunk.buffer not in bench.engine.shared.buffers.slices:
            self.chunk = None  # it went with its process
        for _ in range(6):
            if self.chunk is None:
                item = bench.engine.deliveries.take(1, 64)
                if item is None:
                    bench.settle(0.004)
                    continue
                assert not isinstance(item, GapItem), f"nothing was lost: {item}"
                assert isinstance(item, DeliverySlice)
                self.chunk = item
            while most > 0 and (message := self.chunk.next()) is not None:
                most -= 1
                place = (message.epoch, message.seq)
                assert message.body == body_of(*place)
                self.delivered.append((place, message.redelivered))
                if self.random.random() < failures:
                    self.chunk.buffer.failed(message, RuntimeError("made up"))
                elif failures and self.random.random() < 0.3:
                    return  # the process ends in it, or the application comes back to it
                else:
                    message.ack()
            if most <= 0 and self.random.random() < 0.7:
                break
            bench.engine.deliveries.release(self.chunk)
            self.chunk = None
        bench.settle(self.random.choice([0.001, 0.02, 0.2]))

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.25:
            self.next_epoch()
        elif choice < 0.3:
            self.bench.reopen()
        else:
            super().step()

    def finish(self) -> None:
        self.bench.reopen()  # what was at hand comes again
        super().finish()

    def judge(self) -> None:
        latest: Place = (0, 0)
        for place, redelivered in self.delivered:
            assert redelivered or place > latest, f"{place} after {latest}"
            latest = max(latest, place)
        report = check_directory(self.path.parent, Expect(drained=True))
        assert [str(found) for found in report.findings if found.severity == "violated"] == []


@pytest.mark.parametrize("seed", range(examples(20, full=40)))
def test_random_forks(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    history = Forked(seed, tmp_path / "inbox.db")
    for _ in range(100):
        history.step()
    history.finish()
    history.judge()


def rows(bench: Bench, *kinds: str) -> list[tuple[str, int, int, int]]:
    with closing(open_readonly(bench.path)) as connection:
        return [(r.kind, r.epoch, r.first, r.last) for r in read_journal(connection) if r.kind in kinds]


def take(bench: Bench) -> DeliverySlice:
    item = bench.engine.deliveries.take(1, 64)
    assert isinstance(item, DeliverySlice)
    return item


def give(chunk: DeliverySlice, count: int) -> list[int]:
    """The application takes so many messages, or what there is, and acknowledges them."""
    given = chunk.take(count)
    for message in given:
        message.ack()
    return [message.seq for message in given]


def test_an_epoch_is_not_left_in_the_middle_of_a_run_of_messages(tmp_path: Path) -> None:
    """Else what comes of it afterwards would be declared before the application had been given what came before."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    chunk = take(bench)
    assert give(chunk, 3) == [1, 2, 3]
    send(bench.network["dc1"], 1, 5, epoch=20, incarnation=78, prev=Prev(10, 77, 2))
    bench.settle()
    send(bench.network["dc1"], 11, 12)
    send(bench.network["dc1"], 1, 2, epoch=15, incarnation=79)
    bench.settle(1.0)
    assert give(chunk, 64) == [4, 5, 6, 7, 8, 9, 10]
    bench.engine.deliveries.release(chunk)
    bench.take()
    send(bench.network["dc1"], 13, 14)
    bench.settle()
    bench.close()
    assert rows(bench, "delivered", "declared") == [
        ("delivered", 10, 1, 12), ("delivered", 15, 1, 2), ("delivered", 20, 1, 5), ("declared", 10, 13, 14)
    ]  # fmt: skip


def test_what_was_given_before_a_crash_comes_again_before_an_epoch_that_does_not_know_of_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take(ack=False)[0].ack()
    bench.settle(0.02)  # with what was given: nothing of it is in the inbox
    bench.network["dc1"].down()
    bench.reopen()
    send(bench.network["dc2"], 1, 5, epoch=20, incarnation=78, prev=Prev(10, 77, 1))
    bench.settle(1.0)
    assert bench.take() == []
    bench.network["dc1"].up()
    bench.settle(1.0)
    again = [(message.epoch, message.seq, message.redelivered) for message in bench.take()]
    assert again == [(10, n, True) for n in range(2, 11)] + [(20, n, False) for n in range(1, 6)]


def test_what_was_given_before_a_crash_and_is_gone_is_a_gap_before_an_epoch_that_does_not_know_of_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take(ack=False)[0].ack()
    bench.settle(0.02)  # see above
    bench.network["dc1"].down()
    bench.reopen()
    send(bench.network["dc2"], 1, 5, epoch=20, incarnation=78, prev=Prev(10, 77, 4))
    bench.settle(6.0)
    item = bench.engine.deliveries.take(1, 64)
    assert isinstance(item, GapItem)
    assert (item.gap.epoch, item.gap.first, item.gap.last) == (10, 2, 10)
    assert bench.engine.deliveries.accept(item.gap)
    assert [(message.epoch, message.seq) for message in bench.take()] == [(20, n) for n in range(1, 6)]


def test_an_epoch_that_was_declared_is_not_entered_after_a_restart(tmp_path: Path) -> None:
    """Nor is any other that lies below one that had been entered."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 3)
    bench.settle()
    bench.take(ack=False)
    send(bench.network["dc1"], 1, 3, epoch=20, incarnation=78)
    bench.settle()
    assert [message.epoch for message in bench.take(ack=False)] == [20] * 3
    send(bench.network["dc1"], 1, 2, epoch=15, incarnation=79)
    bench.settle(1.0)
    for _ in range(2):
        bench.reopen()
        send(bench.network["dc2"], 3, 4, epoch=15, incarnation=79)
        send(bench.network["dc2"], 1, 1, epoch=16, incarnation=80)
        bench.settle(1.0)
    assert [(message.epoch, message.seq) for message in bench.take()] == [
        (epoch, n) for epoch in (10, 20) for n in (1, 2, 3)
    ]
    bench.close()
    assert rows(bench, "declared") == [("declared", 15, 1, 2), ("declared", 15, 3, 4), ("declared", 16, 1, 1)]


def test_what_came_too_late_for_an_epoch_that_is_not_settled_is_let_go(tmp_path: Path) -> None:
    """Of all copies, once it is on disk what became of it."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 3)
    bench.settle()
    bench.take(ack=False)
    send(bench.network["dc1"], 1, 3, epoch=20, incarnation=78)
    bench.settle()
    bench.take()
    for _ in range(2):
        for broker in bench.network.brokers.values():
            send(broker, 4, 6)
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
