"""Operators forget streams while brokers, processes and disks fail: judged like everything else."""

from __future__ import annotations

import pytest

from reliamsg.consumer import engine
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

pytestmark = pytest.mark.integrations

FAULTS = (
    "streams_forgotten", "duplicate", "broker_stale", "restart", "crash", "crash_inside", "torn_write", "reset",
    "reorder", "delay", "control_lost", "disk_full", "handler_failed", "session_forgotten",
)  # fmt: skip


def test_forgetting_breaks_no_promise() -> None:
    forgotten = 0
    for seed in range(733_000_000, 733_000_015):
        outcome = run(draw(seed, 60, FAULTS))
        forgotten += outcome.struck.get("streams_forgotten", 0)
        assert not outcome.violations, (
            f"reliamsg lab simulate --seed {seed} --messages 60 --faults {','.join(FAULTS)}: {outcome.violations}"
        )
    assert forgotten > 10


def test_a_stream_that_is_forgotten_without_a_tombstone_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "tombstone_of", lambda saved, below: None)
    kinds: set[str] = set()
    for seed in range(733_000_000, 733_000_030):
        kinds |= {violation.kind for violation in run(draw(seed, 60, FAULTS)).violations}
        if kinds & {"duplicate", "redelivered_after_ack"}:
            break
    assert kinds & {"duplicate", "redelivered_after_ack"}
