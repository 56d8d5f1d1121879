"""What tests of metrics share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from reliamsg import Consumer, Message, OutboxFull, Producer
from reliamsg.prometheus import Collector
from reliamsg.testing import MemoryNetwork
from tests.patience import patient, wait_for

__all__ = ["WAIT", "Scrape", "Scraper", "World", "consumer", "fill", "producer"]

WAIT = patient(20)


def producer(network: MemoryNetwork, outbox: Path, **options: Any) -> Producer:
    options.setdefault("groups", {"orders": ["billing"]})
    options.setdefault("hello_timeout", 0.0)
    return Producer(options.pop("producer_id", "p"), network.sites, outbox=outbox, **options)


def consumer(network: MemoryNetwork, inbox: Path, **options: Any) -> Consumer:
    return Consumer("billing", network.sites, topics=["orders"], inbox=inbox, **options)


class Scrape:
    """The values of one scrape, read by Prometheus' own parser."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        self.types = {family.name: family.type for family in families}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one sample; KeyError if there is none. `name` without ``reliamsg_``."""
        return float(self.samples[f"reliamsg_{name}", tuple(sorted(labels.items()))])

    def labels(self) -> set[tuple[str, str]]:
        """All names and values of labels."""
        return {pair for _, labels in self.samples for pair in labels}


class Scraper:
    """Scrapes a collector of some clients."""

    def __init__(self, *clients: object) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.collector = Collector(*clients, registry=self.registry)

    def __call__(self) -> Scrape:
        text: bytes = generate_latest(self.registry)  # type: ignore[no-untyped-call]
        return Scrape(text.decode())

    def until(self, condition: Callable[[Scrape], bool], what: str) -> Scrape:
        """Scrape until a condition holds."""
        found: list[Scrape] = []

        def holds() -> bool:
            found.append(self())
            return condition(found[-1])

        wait_for(holds, what)
        return found[-1]


class World:
    """A network, and clients that are observed and closed after the test."""

    def __init__(self, place: Path, *sites: str) -> None:
        self.place = place
        self.network = MemoryNetwork(*sites)
        self.broker = self.network[sites[0]]
        self.scrape = Scraper()
        self.opened = contextlib.ExitStack()

    def producer(self, **options: Any) -> Producer:
        found = producer(self.network, self.place / "outbox.db", **options)
        self.scrape.collector.observe(found)
        self.opened.callback(found.close, 0.0)
        return found

    def consumer(self, **options: Any) -> Consumer:
        found = consumer(self.network, self.place / "inbox.db", **options)
        self.scrape.collector.observe(found)
        self.opened.callback(found.close)
        wait_for(
            lambda: all(s.state == "connected" for s in found.status().sites.values()), "it is connected"
        )
        return found

    def take(self, consumer: Consumer, number: int) -> list[Message]:
        """Acknowledges so many messages durably."""
        taken = []
        for _ in range(number):
            message = consumer.get(WAIT)
            assert message is not None
            message.ack(durable=True)
            taken.append(message)
        return taken


def fill(sender: Producer) -> int:
    """Publishes until the outbox is full; returns how many messages fit."""
    stored = 0
    with contextlib.suppress(OutboxFull):
        while True:
            sender.publish("orders", bytes(1_000))
            stored += 1
    return stored
