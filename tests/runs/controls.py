"""Plain pika with confirms at a cluster, beside ours in the same run: what it had confirmed, and what came of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from reliamsg.lab import RabbitCluster
from tests.runs.plain import PikaConsumer, PikaPublisher

__all__ = ["Control", "control"]


@dataclass
class Control:
    """A publisher at each of some nodes, with a durable mirrored queue of its own."""

    cluster: RabbitCluster
    publishers: dict[int, PikaPublisher]
    received: dict[int, list[int]] = field(default_factory=dict)

    @property
    def queues(self) -> list[str]:
        return [publisher.queue for publisher in self.publishers.values()]

    def accepted(self, number: int) -> int:
        """How many messages have been confirmed to the publisher at a node."""
        return len(self.publishers[number].accepted)

    def finish(self) -> None:
        """End publishing, and read the queues until they are empty."""
        for publisher in self.publishers.values():
            publisher.finish.set()
        for number, publisher in self.publishers.items():
            publisher.join(60)
            consumer = PikaConsumer(self.cluster.url(1), publisher.queue, delay=0.0)
            consumer.start()
            consumer.drain(quiet=3.0, deadline=300.0)
            self.received[number] = consumer.received

    def lost(self, number: int) -> int:
        """How many of those never came."""
        return len(set(self.publishers[number].accepted) - set(self.received[number]))

    def report(self) -> str:
        """A line for each publisher."""
        lines = []
        for number in self.publishers:
            came = self.received[number]
            unordered = sum(later < earlier for earlier, later in itertools.pairwise(came))
            lines.append(
                f"control at node {number}: {self.accepted(number)} confirmed, {self.lost(number)} lost,"
                f" {len(came) - len(set(came))} doubled, {unordered} times out of order"
            )
        return "\n".join(lines)


@contextlib.contextmanager
def control(cluster: RabbitCluster, name: str, *numbers: int, rate: float) -> Iterator[Control]:
    """Start a publisher at each of these nodes."""
    found = Control(
        cluster,
        {n: PikaPublisher(cluster.url(n), f"plain-{name}-{n}", confirms=True, rate=rate) for n in numbers},
    )
    for publisher in found.publishers.values():
        publisher.start()
    try:
        yield found
    finally:
        for publisher in found.publishers.values():
            publisher.finish.set()
