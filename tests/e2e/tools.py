"""A producer and consumers that find each other over real or in-memory sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reliamsg import Consumer, Producer, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.checker.report import Report
from tests.badinput.tools import all_connected, take
from tests.patience import wait_for

__all__ = ["World", "numbers", "published", "take"]


class World:
    """Clients of one topic, whose files are side by side, so that all journals can be checked at the end."""

    def __init__(self, directory: Path, topic: str, sites: Sequence[Site]) -> None:
        self.directory = directory
        self.topic = topic
        self.sites = tuple(sites)
        self.open: list[Producer | Consumer] = []

    def producer(self, name: str = "p", *, groups: Iterable[str] = ("billing",), **options: Any) -> Producer:
        options = {"groups": {self.topic: list(groups)}, **options}
        made = Producer(name, self.sites, outbox=self.directory / f"{name}.outbox.db", **options)
        self.open.append(made)
        return made

    def consumer(self, name: str = "billing", *, group: str = "billing", **options: Any) -> Consumer:
        options = {"topics": [self.topic], "takeover_timeout": 8.0, **options}
        made = Consumer(group, self.sites, inbox=self.directory / f"{name}.inbox.db", **options)
        self.open.append(made)
        return made

    def connected(self, client: Producer | Consumer) -> None:
        wait_for(lambda: all_connected(client), "all sites are connected", 30)

    def close(self) -> None:
        for client in self.open:
            client.close()
        self.open.clear()

    def check(self) -> Report:
        """Close everything, and have the journals checked."""
        self.close()
        return check_directory(self.directory, Expect(drained=True))


def published(producer: Producer, topic: str, first: int, last: int) -> None:
    """Numbered messages, confirmed by the sites."""
    producer.publish_many(topic, [b"%d" % n for n in range(first, last + 1)]).wait(timeout=120)


def numbers(bodies: Iterable[Any]) -> list[int]:
    return [int(message.body) for message in bodies]
