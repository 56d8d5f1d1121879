"""Operators have dead letters delivered again while processes, disks and connections fail."""

from __future__ import annotations

import pytest

from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

pytestmark = pytest.mark.integrations

FAULTS = (
    "dead_letters_replayed", "rejected", "handler_failed", "crash", "crash_inside", "crash_after_commit", "restart",
    "torn_write", "disk_full", "reset",
)  # fmt: skip


def test_replaying_breaks_no_promise() -> None:
    replayed = 0
    for seed in range(20):
        outcome = run(draw(seed, 60, FAULTS))
        replayed += outcome.struck.get("dead_letters_replayed", 0)
        assert not outcome.violations, (
            f"reliamsg lab simulate --seed {seed} --messages 60 --faults {','.join(FAULTS)}: {outcome.violations}"
        )
    assert replayed > 10
