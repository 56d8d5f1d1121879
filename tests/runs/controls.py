"""Plain pika with confirms at a cluster, beside ours in the same run: what it had confirmed, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from reliamsg.lab import RabbitCluster
from reliamsg.lab.chaos import result
from reliamsg.lab.chaos.pika_baseline import PikaPair

__all__ = ["Control", "control"]


@dataclass
class Control:
    """A publisher at each of some nodes, with a durable mirrored queue of its own."""

    cluster: RabbitCluster
    pairs: dict[int, PikaPair]
    results: dict[int, result.Control] = field(default_factory=dict)

    @property
    def queues(self) -> list[str]:
        return [pair.publisher.queue for pair in self.pairs.values()]

    def accepted(self, number: int) -> int:
        """How many messages have been confirmed to the publisher at a node."""
        return len(self.pairs[number].publisher.accepted)

    def finish(self) -> None:
        """End publishing, and read the queues until they are empty."""
        for pair in self.pairs.values():
            pair.publisher.finish.set()
        for number, pair in self.pairs.items():
            self.results[number] = pair.finish()

    def lost(self, number: int) -> int:
        """How many of those never came."""
        return self.results[number].lost

    def report(self) -> str:
        """A line for each publisher."""
        return "\n".join(f"control at node {number}: {found}" for number, found in self.results.items())


@contextlib.contextmanager
def control(cluster: RabbitCluster, name: str, *numbers: int, rate: float) -> Iterator[Control]:
    """Start a publisher at each of these nodes; what it published is read at node 1 in the end."""
    found = Control(
        cluster,
        {
            number: PikaPair(
                cluster.url(number), f"plain-{name}-{number}", rate=rate, reading=cluster.url(1)
            ).start(consume=False)
            for number in numbers
        },
    )
    try:
        yield found
    finally:
        for pair in found.pairs.values():
            pair.end()
