"""A consumer without keys: what made-up frames cost those whom they don't speak for."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.lease import MAX_OTHERS, Heartbeat, Lease
from reliamsg.consumer.quarantine import MAX_SAMPLE_BYTES, Samples
from reliamsg.store.inbox import MAX_QUARANTINED_FRAME
from reliamsg.wire.address import status_address
from tests.badinput.tools import quarantined
from tests.consumer.control_tools import FakeProducer
from tests.consumer.test_signed import inject
from tests.consumer.tools import TOPIC, Bench, send, seqs


def test_a_flood_at_one_address_pushes_out_no_evidence_from_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    producer = FakeProducer(bench)
    for _ in range(20):
        for _ in range(100):
            inject(bench, b"made up" * 500)
        bench.settle()
    while bench.queued()["dc1"]:
        bench.settle()
    bench.settle(1.0)
    flooded = len(quarantined(bench.path))
    assert 500 < flooded < 2_000
    for opened in range(2):
        producer.tell(status_address(TOPIC), b"RMC1 another %d" % opened, "dc1")
        producer.tell(status_address(TOPIC), b"RMC1 elsewhere %d" % opened, "dc2")
        inject(bench, b"made up" * 500)
        send(bench.network["dc1"], 1 + opened, 1 + opened)
        bench.settle(1.0)
        assert seqs(bench.take()) == [1 + opened]
        bench.settle(1.0)
        kept = {body for _, body in quarantined(bench.path)}
        assert {b"RMC1 another %d" % opened, b"RMC1 elsewhere %d" % opened} <= kept
        assert len(quarantined(bench.path)) <= flooded + 2 * (opened + 1)
        bench.reopen()  # what is there counts again
        producer = FakeProducer(bench)
    bench.close()


def test_addresses_that_are_not_read_count_as_one() -> None:
    quarantine = Samples(frozenset({"orders"}), {("dc1", "made-up"): (10, 100)})
    for number in range(10_000):
        quarantine.admit("dc1", f"made-up-{number}", "malformed", b"x" * 1_000)
    assert quarantine.admit("dc1", "made-up", "malformed", b"x" * 1_000) is None
    kept = quarantine.admit("dc1", "orders", "malformed", b"x" * 2 * MAX_QUARANTINED_FRAME)
    assert kept is not None
    assert len(kept.frame) == MAX_QUARANTINED_FRAME + 1
    assert quarantine._room.total <= MAX_SAMPLE_BYTES


@pytest.mark.parametrize("waits", [True, False])
def test_made_up_inboxes_that_wait_push_out_none_that_reads(waits: bool) -> None:
    lease = Lease("own", b"o" * 8, takeover_timeout=8.0)
    lease.heartbeat_received(Heartbeat("other", b"x" * 8, 1, "active", b"1", False), 100.0)
    for number in range(10 * MAX_OTHERS):
        run = b"%08d" % number
        lease.heartbeat_received(
            Heartbeat("made-up", run, 1, "standby" if waits else "active", b"3", False), 101.0
        )
    assert len(lease.others) <= MAX_OTHERS
    assert lease.rival(102.0) is not None
    assert lease.silent_since() >= 100.0
