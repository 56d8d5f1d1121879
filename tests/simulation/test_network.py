"""Simulated networks."""

from __future__ import annotations

import random

from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.network import Path


def test_messages_held_by_a_partition_arrive_before_later_ones() -> None:
    """Even if it is still in flight when the partition ends."""
    for seed in range(100):
        scheduler = Scheduler(0.0)
        path = Path(scheduler, random.Random(seed))
        end = path.connect(3.0).site
        came: list[int] = []
        for number in range(20):
            scheduler.after(0.005 * number, end.send, came.append, number)
        scheduler.after(0.05, path.set_cut, "up", True)
        scheduler.after(0.08, path.set_cut, "up", False)
        scheduler.run(1.0)
        assert came == list(range(20)), seed
