"""Traffic between a producer and a group, and fault proxies on the paths from each application to each site."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reliamsg.checker import read_applog
from reliamsg.config import Site
from reliamsg.errors import ReliamsgError
from reliamsg.lab.chaos.liveness import Work, bound
from reliamsg.lab.chaos.processes import App, LineCounter, Run, SiteSpec
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.faults.proxy import TcpProxy
from reliamsg.lab.process import LabError
from reliamsg.store.journal import JournalRow

__all__ = [
    "IMPATIENT",
    "UNTIL_TOLD",
    "Load",
    "Paths",
    "Side",
    "Traffic",
    "make_traffic",
    "message_count",
    "paths_to",
]

IMPATIENT: dict[str, Any] = {
    "heartbeat": 1.0, "confirm_timeout": 2.0, "connect_timeout": 2.0, "backoff_min": 0.05, "backoff_max": 0.5,
}  # fmt: skip
"""Arguments of a Site with which clients detect a fault and recover within seconds instead of minutes."""
UNTIL_TOLD = 1_000_000_000
"""The last number of a producer that publishes until it is told to stop."""


@dataclass(frozen=True)
class Load:
    """What a producer publishes, and how the producer and the group are configured."""

    rate: int | None = None
    """Messages per second; None for a rate at which the run's messages take 20 s."""
    size: int = 100
    """Bytes per message."""
    last: int = 0
    """The last number to publish; 0 to publish until :meth:`Traffic.finish`, so that every fault hits live traffic, no
    matter how long it takes on a busy machine."""
    producing: Mapping[str, Any] = field(default_factory=dict)
    """Additional configuration of the producer's application."""
    consuming: Mapping[str, Any] = field(default_factory=dict)
    """Additional configuration of the consumer's application."""
    site_options: Mapping[str, Any] = field(default_factory=dict)
    """Additional arguments of the producer's sites."""


@dataclass(frozen=True)
class Side:
    """One application of the traffic: its sites, and its configuration."""

    sites: list[SiteSpec]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Paths:
    """The paths from producer and consumer to the sites, each through a proxy of its own."""

    producer: dict[str, TcpProxy]
    consumer: dict[str, TcpProxy]
    urls: dict[str, str]

    def sites(self, proxies: Mapping[str, TcpProxy], **options: Any) -> list[SiteSpec]:
        """The sites as reached through the proxies of one side."""
        return [(name, proxies[name].url(url), {**IMPATIENT, **options}) for name, url in self.urls.items()]

    def of(self, *sites: str) -> list[TcpProxy]:
        """The proxies of all paths to these sites, or to all sites."""
        return [side[name] for name in sites or self.urls for side in (self.producer, self.consumer)]

    def heal(self, *sites: str, reset: bool = False) -> None:
        """End the faults of all paths to these sites, or to all sites; with `reset`, connections are reset first."""
        for proxy in self.of(*sites):
            if reset:
                proxy.reset()
            proxy.heal()


@contextlib.contextmanager
def paths_to(sites: Iterable[SiteSpec]) -> Iterator[Paths]:
    """Start proxies in front of these sites."""
    urls = {name: url for name, url, _ in sites}
    with contextlib.ExitStack() as stack:

        def proxies() -> dict[str, TcpProxy]:
            return {name: stack.enter_context(TcpProxy(*_address(name, url))) for name, url in urls.items()}

        yield Paths(proxies(), proxies(), urls)


def _address(name: str, url: str) -> tuple[str, int]:
    site = Site(name, url)
    if len(site.endpoints) != 1 or site.secure:
        raise LabError(f"site {name}: a fault proxy supports one host per site, without TLS")
    return site.endpoints[0].host, site.endpoints[0].port


def message_count(rows: Iterable[JournalRow]) -> int:
    """The number of messages that these rows cover."""
    return sum(row.last - row.first + 1 for row in rows)


@dataclass
class Traffic:
    """A producer and a consumer, and the messages between them."""

    run: Run
    producer: App
    consumer: App
    last: int
    """The last number that the producer publishes; 0 if it publishes until it is told to stop."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.accepted: LineCounter = self.run.accepted(self.producer)
        self.delivered: LineCounter = self.run.delivered(self.consumer)

    def flows(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages have been delivered."""
        before = self.delivered()
        wait_for(
            lambda: self.delivered() >= before + more,
            lambda: (
                f"{more} more messages are delivered (after {before} of {self.accepted()} accepted);"
                f" {self.producer.errors()} {self.consumer.errors()}"
            ),
            seconds,
        )

    def accepts(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages have been published: durable in the outbox, wherever the sites are."""
        before = self.accepted()
        wait_for(
            lambda: self.accepted() >= before + more,
            lambda: f"publishing continues: {self.producer.errors()}",
            seconds,
        )

    @property
    def under_way(self) -> int:
        """Messages that have been published and not yet delivered."""
        return self.accepted() - self.delivered()

    def unconfirmed(self, site: str) -> int:
        """Messages that `site` has not confirmed."""
        return self.accepted() - message_count(
            row for row in self.rows(self.producer, "confirmed") if row.site == site
        )

    def catches_up(self, site: str, limit: int = 500) -> None:
        """Wait until fewer than `limit` messages are unconfirmed by `site`."""
        wait_for(lambda: self.unconfirmed(site) < limit, f"{site} catches up", 30)

    def rows(self, app: App, *kinds: str) -> list[JournalRow]:
        """The rows of these kinds in an application's journal."""
        return [row for row in self.run.rows(app) if row.kind in kinds]

    def within(self) -> float:
        """The bound, in seconds, for all outstanding messages to arrive once all faults are over."""
        producing, consuming = self.producer.config, self.consumer.config
        sites = [options for config in (producing, consuming) for _, _, options in config["sites"]]
        work = Work(max(0, self.under_way), producing.get("size", 100), time.monotonic() - self._began)
        return bound(sites, [producing.get("options", {})], [consuming.get("options", {})], work)

    def drained(self) -> None:
        """Once all faults are over: wait until everything has been delivered, once and in order, within the bound that
        follows from the settings, and both applications have exited cleanly.

        Every stall is a violation here, since these producers and groups use policies that lose nothing. A producer
        that was killed leaves numbers that were not accepted; they may have been delivered or not.
        """
        seconds = self.within()
        to_publish = max(0, (self.last or 0) - self.accepted()) / (self.producer.config.get("rate") or 2_000)
        self.producer.wait_ended(seconds + 2 * to_publish)
        wait_for(
            lambda: self.delivered() >= self.accepted() and self._all_accepted_are_delivered(),
            lambda: (
                f"all {self.accepted()} messages are delivered, and {self.delivered()} were;"
                f" {self.consumer.errors()}"
            ),
            seconds,
        )
        self.consumer.stop()
        numbers = self.delivered_numbers()
        if numbers != sorted(set(numbers)):
            raise Unmet("the application received duplicates, or messages out of order")
        if self.producer.starts == 1 and self.last and numbers != list(range(1, self.last + 1)):
            raise Unmet("the application did not receive every number once")

    def finish(self, messages: int) -> None:
        """Publish at least `messages` in total, then stop, and wait until everything has been delivered."""
        self.publish_enough(messages)
        self.drained()

    def publish_enough(self, messages: int) -> None:
        """Publish at least `messages` in total, and have the producer exit when all sites have confirmed them."""
        rate = self.producer.config.get("rate") or 1_000
        wait_for(
            lambda: self.accepted() >= messages,
            lambda: f"{messages} messages are published; {self.producer.errors()}",
            30 + 2 * messages / rate,
        )
        self.producer.enough()
        self.producer.wait_ended(self.within())

    def repaired(self) -> None:
        """Wait until the group has received everything that brokers lost, by asking its producer, which keeps running
        for that; then both exit cleanly."""
        wait_for(
            lambda: (
                self.delivered() >= self.accepted()
                and self._all_accepted_are_delivered()
                and self._all_settled()
            ),
            lambda: (
                f"everything that was lost is repaired; {self.producer.errors()} {self.consumer.errors()}"
            ),
            self.within(),
            0.2,
        )
        self.producer.stop(60)
        self.drained()

    def _all_settled(self) -> bool:
        """Includes messages that a producer had stored when it was killed, without returning from publish()."""
        settled = self.rows(self.consumer, "acknowledged", "dead_lettered")
        return message_count(settled) >= message_count(self.rows(self.producer, "enqueued"))

    def _all_accepted_are_delivered(self) -> bool:
        known = read_applog(self.producer.log).records
        accepted = {record.n for record in known if record.op == "publish" and record.outcome == "ok"}
        return accepted <= set(self.delivered_numbers())

    def delivered_numbers(self) -> list[int]:
        """The numbers that the application received, in order; redeliveries are left out."""
        return self.run.outcome(self.consumer)[self.producer.config["producer"]]

    def start(self) -> None:
        """Start the consumer, and then the producer: MQTT sites keep messages only for a group that they know."""
        self.consumer.start()
        self.reads()
        self.producer.start()

    def reads(self) -> None:
        """Wait until the consumer has connected to each of its sites."""
        wanted = {name for name, *_ in self.consumer.config["sites"]}

        def reading() -> bool:
            with contextlib.suppress(ReliamsgError):
                return {row.site for row in self.rows(self.consumer, "connected")} >= wanted
            return False

        wait_for(reading, lambda: f"the consumer reads all sites: {self.consumer.errors()}")


def make_traffic(run: Run, topic: str, producing: Side, consuming: Side, last: int = 0) -> Traffic:
    """One producer and one group, both named after `topic`, not started yet. `last`: as in :class:`Load`."""
    consumer = run.consumer(topic, consuming.sites, [topic], **consuming.config)
    producer = run.producer(topic, producing.sites, topic, [topic], last or UNTIL_TOLD, **producing.config)
    return Traffic(run, producer, consumer, last)
