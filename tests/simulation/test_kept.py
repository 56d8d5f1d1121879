"""What is still somewhere when a client ended for good is not lost; everything else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.simulation.kept import tell_kept
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import BEGIN_S, World


@pytest.mark.parametrize("handles", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_durable_was_handed_out_or_is_somewhere(tmp_path: Path, seed: int, handles: bool) -> None:
    """At any time, where nothing fails: in an outbox, at a broker or, if applications do not handle it, in an inbox."""
    world = World(draw(seed, 60, ()), tmp_path)
    world._create_groups()
    for consumer in world.consumers:
        consumer._busy = not handles
    for process in world.processes:
        process.open()
    oracle, found = world.oracle, 0
    for tenth in range(1, 100):
        world.scheduler.run(BEGIN_S + tenth / 10)
        oracle.kept.clear()
        tell_kept(world)
        for group in oracle.groups:
            kept = oracle.kept[""] | oracle.kept[group]
            gone = [message for message in oracle.not_given(group) if message not in kept]
            assert not [message for message in gone if message not in oracle.passages[group]], tenth
            found += len(kept)
    assert found
