"""Made-up streams, epochs, numbers and histories: what they cost is bounded, and the genuine ones go on."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from reliamsg.consumer.dead_letters import LateItem
from reliamsg.consumer.deliveries import GapItem
from reliamsg.errors import ProducerConflict, TooManyStreams
from reliamsg.message import Prev
from reliamsg.protocol.receiver.epochs import MAX_EPOCHS_AHEAD
from reliamsg.protocol.receiver.gaps import MAX_CLOSED, ClosedGaps
from reliamsg.store.journal import MAX_TIPS
from reliamsg.store.quarantine import Selection
from tests.consumer.test_journals import rows
from tests.consumer.tools import Bench, body_of, send, seqs

FORGED = 10**8
"""An epoch that is made up, and not too far ahead of the others to be believed."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0)


def inbox_bytes(bench: Bench) -> int:
    return sum(path.stat().st_size for path in bench.path.parent.glob(f"{bench.path.name}*"))


@pytest.mark.integrations
def test_made_up_producers_cost_neither_memory_nor_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_streams=50, max_known_streams=50)
    dc1 = bench.network["dc1"]
    send(dc1, 1, 5, producer="genuine")
    bench.settle()
    assert len(bench.take()) == 5

    def flood(first: int, last: int) -> None:
        for batch in range(first, last, 500):
            for number in range(batch, batch + 500):
                send(dc1, 1, 1, producer=f"made-up-{number}")
            while dc1.queued():
                bench.settle()
                bench.take()

    flood(0, 3_000)
    tracemalloc.start()
    before, on_disk = tracemalloc.get_traced_memory()[0], inbox_bytes(bench)
    flood(3_000, 20_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000 * MAX_TIPS  # what is remembered of journal rows, and a number for each in quarantine
    assert inbox_bytes(bench) - on_disk < 64 * 1024 * 1024
    assert dc1.queued() == 0
    assert len(bench.engine.shared.core.streams) + bench.engine.shared.core.known_elsewhere == 50
    assert bench.engine.sites["dc1"].rejected == {}
    kept = bench.inbox.quarantine.select(Selection(reason="too-many-streams"))
    assert len(kept) == 20_000 - 49
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [TooManyStreams]
    send(dc1, 6, 10, producer="genuine")
    bench.settle()
    assert seqs(bench.take()) == [6, 7, 8, 9, 10]
    bench.reopen()
    send(dc1, 1, 1, producer="late-comer")
    send(dc1, 11, 11, producer="genuine")
    bench.settle()
    assert [(m.producer, m.seq) for m in bench.take()] == [("genuine", 11)]
    assert rows(bench.path, "rejected") == []
    assert len(rows(bench.path, "quarantined")) == 20_000 - 48


def test_epochs_far_ahead_stay_with_the_broker_and_none_is_lost(bench: Bench) -> None:
    """A producer that was restarted again and again, behind a gap in its first epoch."""
    restarts = 3 * MAX_EPOCHS_AHEAD
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1, epoch=10)
    send(dc1, 3, 3, epoch=10)
    for n in range(1, restarts):
        previous = Prev(10, 77, 3) if n == 1 else Prev(10 + n - 1, 77, 2)
        send(dc1, 1, 2, epoch=10 + n, prev=previous)
    bench.settle(1.0)
    assert seqs(bench.take()) == [1]
    (state,) = bench.engine.shared.core.streams.values()
    assert len(state.epochs.live) == MAX_EPOCHS_AHEAD + 1
    assert dc1.queued() == bench.engine.sites["dc1"].pending > 0
    send(bench.network["dc2"], 2, 2, epoch=10)
    bench.settle(0.5)
    expected = [(10, 2), (10, 3)] + [(10 + n, seq) for n in range(1, restarts) for seq in (1, 2)]
    assert [(m.epoch, m.seq) for m in bench.take()] == expected
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}


def test_lower_epochs_are_taken_in_although_many_higher_ones_wait(bench: Bench) -> None:
    dc1, dc2 = bench.network["dc1"], bench.network["dc2"]
    send(dc1, 1, 1, epoch=10)
    bench.settle()
    bench.take()
    for n in range(2, 2 * MAX_EPOCHS_AHEAD):
        send(dc1, 1, 1, epoch=10 + n, prev=Prev(10 + n - 1, 77, 1))
    bench.settle(1.0)
    assert bench.take() == []
    send(dc2, 1, 1, epoch=11, prev=Prev(10, 77, 1))
    bench.settle()
    assert [m.epoch for m in bench.take()] == list(range(11, 10 + 2 * MAX_EPOCHS_AHEAD))


def test_deferred_batches_come_again_after_a_disconnect(bench: Bench) -> None:
    dc1 = bench.network["dc1"]
    send(dc1, 2, 2, epoch=10)
    for n in range(1, 2 * MAX_EPOCHS_AHEAD):
        send(dc1, 1, 1, epoch=10 + n, prev=Prev(10 + n - 1, 77, 2 if n == 1 else 1))
    bench.settle(0.5)
    assert bench.engine.sites["dc1"].pending > 0
    bench.reopen()
    bench.settle(6.0)  # the group joins at 2
    got = [(m.epoch, m.seq) for m in bench.take()]
    assert got == [(10, 2)] + [(10 + n, 1) for n in range(1, 2 * MAX_EPOCHS_AHEAD)]
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}


def test_a_forged_identity_first_and_the_genuine_one_second(bench: Bench) -> None:
    """Without keys nobody can tell which of two equal identities is genuine: the first stays."""
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1, pad=7)
    send(dc1, 1, 2)
    bench.settle()
    got = bench.take()
    assert seqs(got) == [1, 2]
    assert [m.body for m in got] == [body_of(10, 1) + b"." * 7, body_of(10, 2)]
    assert dc1.queued() == 0


def test_a_forged_higher_epoch_is_reported_and_what_is_genuine_is_declared(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    bench.settings["keep_late"] = True
    bench.reopen(clean=True)
    dc1 = bench.network["dc1"]
    send(dc1, 1, 10)
    bench.settle()
    assert len(bench.take()) == 10
    send(dc1, 1, 1, epoch=FORGED, incarnation=666)
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(FORGED, 1)]
    assert [type(error) for error in bench.engine.shared.health.take_errors()] == [ProducerConflict]
    # The genuine producer goes on, and is opened again.
    send(dc1, 11, 20)
    send(bench.network["dc2"], 11, 20)
    send(dc1, 1, 5, epoch=11, prev=Prev(10, 77, 20))
    bench.settle()
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, LateItem)
    assert [(m.epoch, m.seq) for m in item.messages] == [(10, seq) for seq in range(11, 21)]
    assert bench.engine.deliveries.take(1, 10) is None
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    found = [(r.epoch, r.first, r.last, r.reason) for r in rows(bench.path, "declared")]
    assert found == [(10, 11, 20, "superseded"), (11, 1, 5, "superseded")]


def test_a_forged_jump_holds_up_what_is_genuine_only_as_a_gap(bench: Bench) -> None:
    dc1 = bench.network["dc1"]
    send(dc1, 1, 10)
    send(dc1, 2**62, 2**62)
    send(dc1, 11, 20)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 21))
    bench.settle(6.0)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert (item.gap.first, item.gap.last) == (21, 2**62 - 1)
    send(dc1, 21, 30)  # until the gap is accepted, the genuine stream goes on
    bench.settle()
    assert seqs(bench.take()) == list(range(21, 31))


def test_a_flood_of_conflicts_is_journalled_in_a_few_rows(bench: Bench) -> None:
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1)
    bench.settle()
    bench.take()
    for n in range(400):
        send(dc1, 2 + n, 2 + n, incarnation=666)
        send(dc1, 1, 1, incarnation=1_000 + n)
        if n % 20 == 0:
            bench.settle()
    bench.settle(3.0)
    assert dc1.queued() == 0
    assert bench.engine.sites["dc1"].rejected == {"conflict": 800}
    assert len(rows(bench.path, "conflict")) <= 100
    assert len(bench.engine.shared.health.take_errors()) <= 100


def test_late_numbers_one_by_one_do_not_split_closed_gaps_without_end() -> None:
    closed = ClosedGaps()
    closed.add(10, 1, 2**62)
    for seq in range(2, 10 * MAX_CLOSED, 2):
        closed.arrived(10, seq, seq)
    assert len(closed.spans()) <= MAX_CLOSED
    assert closed.may_have_forgotten(10, 1)
