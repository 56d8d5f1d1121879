"""Plain pika with confirms at a cluster, in the same run as reliamsg, for comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from reliamsg.lab import RabbitCluster
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.result import Baseline

__all__ = ["PikaBaseline", "pika_baseline"]


@dataclass
class PikaBaseline:
    """A publisher at each of some nodes, each with its own durable mirrored queue."""

    cluster: RabbitCluster
    pairs: dict[int, PikaPair]
    results: dict[int, Baseline] = field(default_factory=dict)

    @property
    def queues(self) -> list[str]:
        return [pair.publisher.queue for pair in self.pairs.values()]

    def accepted(self, number: int) -> int:
        """The number of messages that have been confirmed to the publisher at a node."""
        return len(self.pairs[number].publisher.accepted)

    def finish(self) -> None:
        """Stop publishing, and read the queues until they are empty."""
        for pair in self.pairs.values():
            pair.publisher.finish.set()
        for number, pair in self.pairs.items():
            self.results[number] = pair.finish()

    def lost(self, number: int) -> int:
        """How many of these never arrived."""
        return self.results[number].lost

    def report(self) -> str:
        """A line for each publisher."""
        return "\n".join(f"plain pika at node {number}: {found}" for number, found in self.results.items())


@contextlib.contextmanager
def pika_baseline(cluster: RabbitCluster, name: str, *numbers: int, rate: float) -> Iterator[PikaBaseline]:
    """Start a publisher at each of these nodes; the queues are read at node 1 at the end."""
    found = PikaBaseline(
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
