"""Proofs that an inbox is the one that reads, and the clock by which they grow old."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer
from reliamsg.consumer.lease import Heartbeat, Lease, make_nonce, parse_nonce
from reliamsg.runtime.clock import elapsed_clock
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import Bench, send, seqs
from tests.patience import wait_for

OWN, OTHER = b"o" * 8, b"x" * 8


def heartbeat(run: bytes, number: int) -> Heartbeat:
    return Heartbeat("own" if run == OWN else "other", run, number, "active", b"1", False)


@pytest.fixture
def lease() -> Lease:
    """Proved at 100.0, with the group's heartbeat number 1."""
    made = Lease("own", OWN, takeover_timeout=8.0)
    made.sent(1, 100.0)
    assert made.came_back(heartbeat(OWN, 1), 100.1)
    assert made.until == 104.0
    return made


def test_a_proof_is_as_old_as_the_heartbeat(lease: Lease) -> None:
    lease.sent(2, 103.0)
    assert lease.came_back(heartbeat(OWN, 2), 110.0)
    assert lease.until == 107.0


def test_a_proof_renews_what_has_lapsed_while_nobody_else_reads(lease: Lease) -> None:
    lease.sent(2, 200.0)
    assert lease.lapsed(200.0)
    assert lease.came_back(heartbeat(OWN, 2), 200.1)
    assert not lease.lapsed(200.1)


def test_what_has_lapsed_is_not_renewed_while_another_says_that_it_reads(lease: Lease) -> None:
    lease.heartbeat_received(heartbeat(OTHER, 1), 199.0)
    lease.sent(2, 200.0)
    assert not lease.came_back(heartbeat(OWN, 2), 200.1)
    assert lease.lapsed(200.1)
    lease.sent(3, 208.0)
    assert lease.came_back(heartbeat(OWN, 3), 208.1), "the other has fallen silent"


@pytest.mark.parametrize(("told", "lasts"), [(0.0, 8.0), (2.0, 8.0), (30.0, 30.0), (1e9, 600.0)])
def test_another_reads_for_as_long_as_either_says_and_no_longer_than_ten_minutes(
    lease: Lease, told: float, lasts: float
) -> None:
    other = parse_nonce("other", 1, "active", make_nonce(OTHER, b"1", False), told)
    lease.heartbeat_received(other, 100.0)
    assert lease.taken_until() == 100.0 + lasts
    assert lease.rival(99.9 + lasts) is not None
    assert lease.rival(100.1 + lasts) is None


def test_a_young_lease_is_renewed_although_another_reads(lease: Lease) -> None:
    """Of two that read, ranks decide which one yields; that is not the lease's business."""
    lease.heartbeat_received(heartbeat(OTHER, 1), 101.0)
    lease.sent(2, 102.0)
    assert lease.came_back(heartbeat(OWN, 2), 102.1)


def test_what_has_lapsed_claims_least(lease: Lease) -> None:
    lease.claim = b"1"
    assert lease.claim_now(103.9) == b"1"
    assert lease.claim_now(104.0) > b"9"
    lease.demand()
    assert lease.claim_now(104.0) == b"1", (
        "it has looked whether another reads, and waits for its first proof"
    )


def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {7: 5_000.0}.__getitem__)
    assert elapsed_clock()() == 5_000.0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert elapsed_clock() is time.monotonic


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_consumer_that_was_suspended_hands_out_nothing_before_it_has_a_new_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    slept = 0.0
    real: Callable[[int], float] = time.clock_gettime
    # The machine's monotonic clock stands still meanwhile.
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + slept)
    with (
        MemoryNetwork("dc1", protocol=protocol) as network,  # type: ignore[arg-type]
        Consumer("billing", network.sites, topics=["orders"], inbox=tmp_path / "i.db") as consumer,
    ):
        shared = consumer._engine.shared
        wait_for(lambda: shared.role.holds and shared.role.lease.until < float("inf"), "it has a proof", 60)
        with shared.lock:  # nothing comes in
            slept = 3_600.0
            assert not shared.role.holds
            assert consumer._engine.deliveries.take(1, 10) is None
        wait_for(lambda: shared.role.holds, "it has a new proof", 60)


def test_what_waits_is_not_handed_out_by_one_that_wakes_up_before_it_has_a_new_proof(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db")
    bench.settle(5.0)
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert seqs(bench.take(3)) == [1, 2, 3], "it reads, and the rest is there"
    assert bench.engine.shared.role.lease.until < bench.now + 60.0
    bench.now += 3_600.0
    assert bench.engine.deliveries.take(1, 10) is None
    bench.settle(5.0)
    assert seqs(bench.take()) == [4, 5, 6, 7, 8, 9, 10]
