"""Simulated transports: events that a suspended process does not see at once."""

from __future__ import annotations

from pathlib import Path

from reliamsg.simulation.runner import quiet
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World


def test_a_connection_that_is_lost_while_its_process_is_stopped_is_made_again(tmp_path: Path) -> None:
    world = World(draw(4, 10, ()), tmp_path)
    consumer, scheduler = world.consumers[0], world.scheduler
    paths = [world.network.path(consumer.name, site.name) for site in world.scenario.sites]
    with quiet():
        consumer.open()
        while not all(path.connections for path in paths):
            scheduler.run(scheduler.now + 0.0001)
        consumer.executor.suspend()  # during the handshakes
        scheduler.run(scheduler.now + 1.0)
        for path in paths:
            for connection in list(path.connections):
                connection.reset("connection reset")
        scheduler.run(scheduler.now + 1.0)
        consumer.resume(consumer.executor.life)
        scheduler.run(scheduler.now + 5.0)
    transports = consumer.transports._open
    assert len(transports) >= len(paths)
    for transport in transports:
        assert transport.connection is not None
        assert transport.connection.client.alive
