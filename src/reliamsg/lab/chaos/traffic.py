"""Traffic between a producer and a group over some sites, and the network between, with faults on demand: a proxy for
each path from an application to a site."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.checker import read_applog
from reliamsg.config import Site
from reliamsg.errors import ReliamsgError
from reliamsg.lab.chaos.liveness import Work, bound
from reliamsg.lab.chaos.processes import App, Run, SiteSpec
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.process import LabError
from reliamsg.lab.proxy import TcpProxy
from reliamsg.store.journal import JournalRow

__all__ = ["IMPATIENT", "UNTIL_ENOUGH", "Paths", "Traffic", "begin", "paths_to", "sum_of"]

IMPATIENT: dict[str, Any] = {
    "heartbeat": 1.0, "confirm_timeout": 2.0, "connect_timeout": 2.0, "backoff_min": 0.05, "backoff_max": 0.5,
}  # fmt: skip
"""Arguments of a Site that notice and mend within seconds what otherwise takes minutes."""
UNTIL_ENOUGH = 1_000_000_000
"""The last number of a producer that publishes until it is told that it is enough."""


@dataclass(frozen=True)
class Paths:
    """Producer and consumer reach each site through a proxy of their own."""

    producer: dict[str, TcpProxy]
    consumer: dict[str, TcpProxy]
    urls: dict[str, str]

    def sites(self, proxies: Mapping[str, TcpProxy], **options: Any) -> list[SiteSpec]:
        """The sites as seen through the proxies of one side."""
        return [(name, proxies[name].url(url), {**IMPATIENT, **options}) for name, url in self.urls.items()]

    def of(self, *sites: str) -> list[TcpProxy]:
        """All paths to these sites, or to all."""
        return [way[name] for name in sites or self.urls for way in (self.producer, self.consumer)]

    def heal(self, *sites: str, reset: bool = False) -> None:
        """End the faults of all paths to these sites, or to all; with `reset` connections are made anew."""
        for proxy in self.of(*sites):
            if reset:
                proxy.reset()
            proxy.heal()


@contextlib.contextmanager
def paths_to(sites: Iterable[SiteSpec]) -> Iterator[Paths]:
    """Proxies before these sites."""
    urls = {name: url for name, url, _ in sites}
    with contextlib.ExitStack() as stack:

        def ways() -> dict[str, TcpProxy]:
            return {name: stack.enter_context(TcpProxy(*_address(name, url))) for name, url in urls.items()}

        yield Paths(ways(), ways(), urls)


def _address(name: str, url: str) -> tuple[str, int]:
    site = Site(name, url)
    if len(site.endpoints) != 1 or site.secure:
        raise LabError(f"site {name}: a fault proxy can stand before one host, without TLS")
    return site.endpoints[0].host, site.endpoints[0].port


def sum_of(rows: Iterable[JournalRow]) -> int:
    """How many messages these rows are about."""
    return sum(row.last - row.first + 1 for row in rows)


@dataclass
class Traffic:
    """A producer and a consumer at work."""

    run: Run
    producer: App
    consumer: App
    last: int
    """The last number that the producer publishes; 0 where it publishes until it is told that it is enough."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.accepted = self.run.accepted(self.producer)
        self.delivered = self.run.delivered(self.consumer)

    def flows(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages are handed out."""
        before = self.delivered()
        wait_for(
            lambda: self.delivered() >= before + more,
            lambda: (
                f"{more} more messages come through (after {before} of {self.accepted()} accepted);"
                f" {self.producer.errors()} {self.consumer.errors()}"
            ),
            seconds,
        )

    def accepts(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages are published: durable here, wherever the sites are."""
        before = self.accepted()
        wait_for(
            lambda: self.accepted() >= before + more,
            lambda: f"publishing goes on: {self.producer.errors()}",
            seconds,
        )

    @property
    def under_way(self) -> int:
        """Messages that are published and not handed out."""
        return self.accepted() - self.delivered()

    def unconfirmed(self, site: str) -> int:
        """Messages that `site` has not confirmed."""
        return self.accepted() - sum_of(
            row for row in self.rows(self.producer, "confirmed") if row.site == site
        )

    def catches_up(self, site: str, least: int = 500) -> None:
        """Wait until `site` has confirmed all but `least`."""
        wait_for(lambda: self.unconfirmed(site) < least, f"{site} catches up", 30)

    def rows(self, app: App, *kinds: str) -> list[JournalRow]:
        """What an application's journal says of some kinds."""
        return [row for row in self.run.rows(app) if row.kind in kinds]

    def within(self) -> float:
        """Within how many seconds what is under way must come once all faults are over, by the settings of both."""
        producing, consuming = self.producer.config, self.consumer.config
        sites = [options for config in (producing, consuming) for _, _, options in config["sites"]]
        work = Work(max(0, self.under_way), producing.get("size", 100), time.monotonic() - self._began)
        return bound(sites, [producing.get("options", {})], [consuming.get("options", {})], work)

    def drained(self) -> None:
        """All faults are over: everything must come, once, in order, within the bound that follows from the settings;
        then both end cleanly. Any stall is a violation, whatever is said of it: these producers and groups keep to
        policies that lose nothing.

        A producer that was killed leaves numbers of which nobody knows: not accepted, and handed out or not.
        """
        seconds = self.within()
        to_publish = max(0, (self.last or 0) - self.accepted()) / (self.producer.config.get("rate") or 2_000)
        self.producer.ended(seconds + 2 * to_publish)
        wait_for(
            lambda: self.delivered() >= self.accepted() and self._all_handed_out(),
            lambda: (
                f"all {self.accepted()} messages come, and {self.delivered()} came; {self.consumer.errors()}"
            ),
            seconds,
        )
        self.consumer.stop()
        numbers = self.handed_out()
        if numbers != sorted(set(numbers)):
            raise Unmet("the application was handed something twice, or out of order")
        if self.producer.starts == 1 and self.last and numbers != list(range(1, self.last + 1)):
            raise Unmet("the application was not handed every number once")

    def finish(self, messages: int) -> None:
        """Publish so many altogether, at least, then stop, and see that everything comes."""
        self.enough(messages)
        self.drained()

    def enough(self, messages: int) -> None:
        """Publish so many altogether, at least, and have the producer end when all sites have them."""
        rate = self.producer.config.get("rate") or 1_000
        wait_for(
            lambda: self.accepted() >= messages,
            lambda: f"enough is published; {self.producer.errors()}",
            30 + 2 * messages / rate,
        )
        self.producer.enough()
        self.producer.ended(self.within())

    def comes(self) -> None:
        """What brokers lost comes to the group because it asks its producer, which lingers; then both end cleanly."""
        wait_for(
            lambda: self.delivered() >= self.accepted() and self._all_handed_out() and self._all_settled(),
            lambda: f"all that was lost comes; {self.producer.errors()} {self.consumer.errors()}",
            self.within(),
            0.2,
        )
        self.producer.stop(60)
        self.drained()

    def _all_settled(self) -> bool:
        """Also what a producer had stored when it was killed, and never said."""
        settled = self.rows(self.consumer, "acknowledged", "dead_lettered")
        return sum_of(settled) >= sum_of(self.rows(self.producer, "enqueued"))

    def _all_handed_out(self) -> bool:
        known = read_applog(self.producer.log).records
        accepted = {record.n for record in known if record.op == "publish" and record.outcome == "ok"}
        return accepted <= set(self.handed_out())

    def handed_out(self) -> list[int]:
        """The numbers that the application was given, in order; what came again only once."""
        return self.run.outcome(self.consumer)[self.producer.config["producer"]]

    def begin(self) -> None:
        """Start the consumer, and when it reads all sites the producer: from then on an MQTT site keeps messages."""
        self.consumer.start()
        self.reads()
        self.producer.start()

    def reads(self) -> None:
        """Wait until the consumer has read every site of its own."""
        wanted = {name for name, *_ in self.consumer.config["sites"]}

        def reading() -> bool:
            with contextlib.suppress(ReliamsgError):
                return {row.site for row in self.rows(self.consumer, "connected")} >= wanted
            return False

        wait_for(reading, lambda: f"the consumer reads all sites: {self.consumer.errors()}")


def begin(
    run: Run,
    topic: str,
    producing: tuple[list[SiteSpec], Mapping[str, Any]],
    consuming: tuple[list[SiteSpec], Mapping[str, Any]],
    last: int = 0,
    *,
    module: Callable[[App], None] | None = None,
    start: bool = True,
) -> Traffic:
    """Traffic of one producer and one group, both named after `topic`; each side's sites and configuration. `last`: 0
    for as many as until :meth:`Traffic.finish`."""
    consumer = run.consumer(topic, consuming[0], [topic], **consuming[1])
    producer = run.producer(topic, producing[0], topic, [topic], last or UNTIL_ENOUGH, **producing[1])
    if module is not None:
        module(producer)
        module(consumer)
    found = Traffic(run, producer, consumer, last)
    if start:
        found.begin()
    return found
