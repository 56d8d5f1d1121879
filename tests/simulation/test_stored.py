"""Messages that are still stored somewhere when a client terminates for good are not lost; all others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.simulation.clock import START_S
from reliamsg.simulation.consumer import ConsumerProcess
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World


@pytest.mark.parametrize("handles", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_durable_messages_were_delivered_or_are_stored_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, handles: bool
) -> None:
    """At any time without faults: in an outbox, at a broker or, if applications do not handle it, in an inbox."""
    world = World(draw(seed, 60, ()), tmp_path)
    world.create_groups()
    if not handles:
        monkeypatch.setattr(ConsumerProcess, "_handle", lambda process: None)
    for process in world.processes:
        process.open()
    oracle, found = world.oracle, 0
    for tenth in range(1, 100):
        world.scheduler.run(START_S + tenth / 10)
        stored = world.stored()
        for group in oracle.groups:
            there = stored[""] | stored[group]
            gone = [message for message in oracle.not_delivered(group) if message not in there]
            assert not [message for message in gone if message not in oracle.declarations[group]], tenth
            found += len(there)
    assert found
