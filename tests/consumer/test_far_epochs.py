"""Epochs far ahead at a whole consumer: kept in the inbox, asked about, and taken in when somebody vouches for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.quarantine import FAR_EPOCH
from reliamsg.errors import FarEpoch, QuarantineFull
from reliamsg.message import Prev
from reliamsg.protocol.horizon import FAR_MS
from reliamsg.store.quarantine import Selection
from reliamsg.wire.address import group_address
from reliamsg.wire.limits import CHALLENGE_BYTES, MAX_EPOCH
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_journals import rows
from tests.consumer.tools import GROUP, Bench, send, seqs

FAR = 10**6 + FAR_MS
"""Far ahead of a bench's clock, which began at 100 seconds."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0, max_streams=1)


def kept(bench: Bench) -> list[tuple[int, int, int]]:
    return [(one.epoch, one.first, one.last) for one in bench.inbox.quarantine.select(Selection())]


def answer(bench: Bench, producer: FakeProducer, *chain: tuple[int, int]) -> bool:
    """The producer answers a challenge, if there is one."""
    nonces = [state.nonce for state in producer.states() if len(state.nonce) == CHALLENGE_BYTES]
    if nonces:
        producer.status(*chain, to=group_address(GROUP), nonces=nonces[-1:])
        bench.settle()
    return bool(nonces)


@pytest.mark.parametrize("epoch", [FAR, 2**62, MAX_EPOCH - 1])
def test_forged_epochs_hold_up_nobody_and_are_acknowledged_only_when_they_are_safe(
    bench: Bench, epoch: int
) -> None:
    producer = FakeProducer(bench)
    send(bench.network["dc1"], 1, 5)
    send(bench.network["dc1"], 1, 1, epoch=epoch, incarnation=5, prev=Prev(10, 77, 5))
    send(bench.network["dc1"], 6, 10)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    assert kept(bench) == [(epoch, 1, 1)]
    assert bench.queued()["dc1"] == 0
    assert answer(bench, producer, (1, 10))  # the genuine one knows nothing of that epoch
    bench.settle(10.0)
    assert kept(bench) == [(epoch, 1, 1)]
    send(bench.network["dc1"], 11, 12)
    bench.settle()
    assert seqs(bench.take()) == [11, 12]
    assert [row.reason for row in rows(bench.path, "quarantined")] == [FAR_EPOCH]
    assert rows(bench.path, "conflict") == []


@pytest.mark.parametrize("epoch", [MAX_EPOCH, 2**63 - 2**32, 2**63 - 1])
def test_epochs_that_no_producer_can_exceed_are_refused(bench: Bench, epoch: int) -> None:
    send(bench.network["dc1"], 1, 1, epoch=epoch)
    bench.settle()
    assert bench.engine.sites["dc1"].rejected == {"malformed": 1}
    assert (kept(bench), bench.queued()["dc1"], bench.engine.shared.core.streams) == ([], 0, {})


def test_what_a_producer_far_ahead_sent_comes_in_order_once_it_has_answered(bench: Bench) -> None:
    producer = FakeProducer(bench, epoch=FAR)
    for first in (11, 1, 21):
        for site in ("dc1", "dc2"):
            send(bench.network[site], first, first + 9, epoch=FAR)
    bench.settle()
    assert bench.take() == []
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    assert answer(bench, producer, (1, 30))
    bench.settle(1.5)
    assert seqs(bench.take()) == list(range(1, 31))
    bench.settle(1.0)
    assert kept(bench) == []
    send(bench.network["dc1"], 31, 35, epoch=FAR)
    bench.reopen()
    assert seqs(bench.take()) == list(range(31, 36))
    send(bench.network["dc1"], 1, 5, epoch=FAR + 1_000_000, prev=Prev(FAR, 77, 35))
    bench.settle(1.5)
    assert seqs(bench.take()) == list(range(1, 6))


def test_what_arrives_a_moment_before_the_answer_comes_with_the_rest(bench: Bench) -> None:
    """It is not stored yet when what is there is marked, and would wait for good: no gap expires of which the
    quarantine holds anything."""
    producer = FakeProducer(bench, epoch=FAR)
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    bench.settle()
    send(bench.network["dc1"], 11, 15, epoch=FAR)
    bench.settle(0.0)
    send(bench.network["dc1"], 6, 10, epoch=FAR)
    bench.network.run_pending()
    assert kept(bench) == [(FAR, 1, 5), (FAR, 11, 15)], "the next commit is not due yet"
    assert answer(bench, producer, (1, 15))
    bench.settle(15.0)
    assert seqs(bench.take()) == list(range(1, 16))
    assert kept(bench) == []


@pytest.mark.parametrize("answered", [True, False])
def test_what_finds_no_room_waits_at_its_broker_for_an_answer(tmp_path: Path, answered: bool) -> None:
    """A new group that boots in 1970, in front of a backlog, goes on by itself if producers answer in time."""
    bench = Bench(tmp_path / "inbox.db")
    bench.settings["max_quarantine_bytes"] = 8_000
    bench.reopen()
    producer = FakeProducer(bench, epoch=FAR)
    for seq in range(1, 41):
        send(bench.network["dc1"], seq, seq, epoch=FAR)
    bench.settle(3.0)
    assert 0 < len(kept(bench)) < 40
    assert bench.queued()["dc1"] == 40 - len(kept(bench))
    if answered:
        assert answer(bench, producer, (1, 40))
        bench.settle(2.0)
        assert seqs(bench.take()) == list(range(1, 41))
        bench.settle(2.0)
        assert (kept(bench), bench.queued()["dc1"]) == ([], 0)
    else:
        assert bench.engine.shared.health.fatal is None
        bench.settle(6.0)
        assert isinstance(bench.engine.shared.health.fatal, QuarantineFull)


def test_what_nobody_answers_for_is_reported_once(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 1, epoch=FAR)
    send(bench.network["dc1"], 2, 2, epoch=FAR)
    bench.settle(1.5)
    assert bench.engine.shared.health.take_errors() == []
    bench.settle(300.0)
    (error,) = bench.engine.shared.health.take_errors()
    assert isinstance(error, FarEpoch)
    assert f"p/orders: messages of epoch {FAR} are in quarantine" in str(error)


def test_a_challenge_goes_on_after_a_restart(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    bench.settle()
    bench.reopen()
    producer = FakeProducer(bench, epoch=FAR)
    bench.settle(3.0)
    assert answer(bench, producer, (1, 5))
    bench.settle(1.5)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("takes_over", [False, True], ids=["a restart", "a takeover"])
def test_an_answer_to_what_was_asked_before_proves_nothing(bench: Bench, takes_over: bool) -> None:
    producer = FakeProducer(bench, epoch=FAR)
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    bench.settle()
    nonces = [state.nonce for state in producer.states()]
    bench.engine.control.took_over() if takes_over else bench.reopen()
    producer.status((1, 5), to=group_address(GROUP), nonces=nonces)
    bench.settle(2.0)
    assert (bench.take(), kept(bench)) == ([], [(FAR, 1, 5)])
    assert bench.engine.statuses.by_producer == {}
    assert bench.engine.sites["dc1"].rejected["far-epoch"] >= 1


def test_every_challenge_can_be_answered_anew(bench: Bench) -> None:
    """The answer to one may be lost, and a producer answers no nonce twice."""
    producer = FakeProducer(bench, epoch=FAR)
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    bench.settle(8.0)
    nonces = [state.nonce for state in producer.states()]
    assert len(set(nonces)) == 4
    producer.status((1, 5), to=group_address(GROUP), nonces=nonces[1:2])
    bench.settle(1.5)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]


def test_an_operator_accepts(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    send(bench.network["dc1"], 1, 5, epoch=3 * FAR)
    bench.settle()
    bench.engine.shared.quarantine.replay(Selection(reason=FAR_EPOCH, up_to_epoch=FAR))
    bench.settle(1.5)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    assert kept(bench) == [(3 * FAR, 1, 5)]


def test_a_clock_that_is_set_right_lets_in_what_it_held_back(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 5, epoch=FAR)
    bench.settle()
    assert bench.take() == []
    bench.wall_offset_us = FAR * 1000
    bench.settle(11.0)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    # It says 1970 again at the next start: what it once said is remembered.
    bench.wall_offset_us = 0
    bench.reopen(clean=True)
    send(bench.network["dc1"], 1, 5, epoch=FAR + 1, prev=Prev(FAR, 77, 5))
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]


def test_repairs_of_far_epochs_are_dropped_and_come_again(bench: Bench) -> None:
    producer = FakeProducer(bench, epoch=FAR)
    producer.repair(1, 5)
    bench.settle()
    assert kept(bench) == []
    assert answer(bench, producer, (1, 5))
    bench.settle(2.0)
    producer.repair(1, 5)
    bench.settle(1.0)
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
