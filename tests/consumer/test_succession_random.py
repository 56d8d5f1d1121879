"""Random faults among several inboxes of a group: never do two of them hand out, and one of them does in the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliamsg.errors import GroupBusy
from tests.consumer.test_succession import KINDS, Group

ROUNDS = 20


class World(Group):
    """What may happen to them. Times are a fraction of ``takeover_timeout``, which is 8 s."""

    def happen(self, rng: random.Random) -> None:
        running = [bench for bench in self.members if bench not in self.stopped]
        what = rng.choice(
            ["stop", "stop", "go on", "go on", "cut", "down", "up", "up", "lose", "kill", "join"]
        )
        broker = self.network[rng.choice(["dc1", "dc2"])]
        if what == "stop" and running:
            self.stop(rng.choice(running))
        elif what == "go on" and self.stopped:
            bench = rng.choice(sorted(self.stopped, key=lambda each: each.path))
            if rng.random() < 0.5:  # after its connections were given up by the brokers
                self.disconnect(bench)
            self.go_on(bench)
        elif what == "cut":
            broker.cut()
        elif what == "down":
            broker.down()
        elif what == "up":
            broker.up()
        elif what == "lose":
            broker.control.lose(rng.randrange(1, 5))
        elif what == "kill" and running:
            self.kill(rng.choice(running))
        elif what == "join" and len(self.members) < 4:
            self.serial += 1
            # One that is no standby would not wait for another that is stopped and may go on.
            self.join(standby=True, name=f"x{self.serial}")
        self.bury()

    serial = 0

    def disconnect(self, bench: object) -> None:
        for site in bench.engine.sites.values():  # type: ignore[attr-defined]
            for link in site.connections.all:
                if link._connection is not None:
                    self.network[site.name].drop(link._connection, "no heartbeat")

    def bury(self) -> None:
        """Those that gave up end."""
        for bench in list(self.members):
            if bench.engine.shared.health.fatal is not None:
                assert isinstance(bench.engine.shared.health.fatal, GroupBusy)
                self.stopped.discard(bench)
                self.kill(bench)

    def calm(self) -> None:
        for bench in list(self.stopped):
            self.go_on(bench)
        for name in ("dc1", "dc2"):
            self.network[name].up()
        if not self.members:
            self.join(standby=True)


@pytest.mark.parametrize("kind", KINDS)
def test_never_two_and_one_in_the_end(tmp_path: Path, kind: str, seeded: random.Random) -> None:
    world = World(tmp_path, kind)
    for _ in range(3):
        world.join(standby=True)
    for _ in range(ROUNDS):
        world.happen(seeded)
        world.settle(seeded.choice([0.1, 0.5, 2.0, 5.0, 10.0]), 0.1)
    world.calm()
    for _ in range(8):
        world.settle(6.0, 0.1)
        world.bury()
    phases = [bench.engine.standby.phase for bench in world.members]
    assert len(world.readers()) == 1, phases
    assert phases.count("active") == 1
