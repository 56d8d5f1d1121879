"""The context that a scenario runs in: seeded random choices, brokers and clients that end with it, and the record."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from reliamsg.lab.brokers.cluster import PartitionMode, RabbitCluster
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.options import RunOptions
from reliamsg.lab.chaos.paho_baseline import PahoPair, paho_pair
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.processes import Run, SiteSpec
from reliamsg.lab.chaos.record import Record
from reliamsg.lab.chaos.requirements import MissingRequirement
from reliamsg.lab.chaos.result import Baseline
from reliamsg.lab.chaos.sampler import Sampler
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, Load, Paths, Side, Traffic, make_traffic, paths_to
from reliamsg.lab.faults.disk import small_disk

__all__ = ["Context"]

_PUBLISHING_S = 20


class Context:
    """A context manager: leaving it stops all brokers and clients that were started through it."""

    def __init__(self, scenario: Scenario, options: RunOptions, record: Record) -> None:
        self.scenario = scenario
        self.record = record
        self.directory: Path = options.directory
        self.messages: int = options.messages or scenario.messages
        """How many messages to publish."""
        self.rng: random.Random = random.Random(options.seed)
        self.stack: contextlib.ExitStack[bool | None] = contextlib.ExitStack()
        """Everything that must end with the scenario."""
        self.run: Run = Run(options.directory / "run")
        self.brokers: dict[str, Mosquitto | RabbitNode] = {}
        # A user's brokers keep what earlier runs left there, under other names.
        self.topic: str = f"chaos-{scenario.name}-{options.seed:08x}"
        self.group: str = self.topic
        self._given = options.sites
        self._sampler = Sampler(record.add_sample)

    # Recording.

    def event(self, what: str) -> None:
        """Something happened now."""
        self.record.add_event(what)

    def stake(self, count: int, what: str) -> None:
        """A fault could have lost, duplicated or reordered `count` messages. If none, the run proves nothing."""
        self.record.add_stake(count, what)

    def expect(self, holds: object, what: str) -> None:
        """Continue if `what` does not hold, but the run is not ok then."""
        if not holds:
            self.record.add_problem(f"does not hold: {what}")

    def baseline(self, baseline: Baseline) -> None:
        """How plain clients fared under the same fault."""
        self.record.add_baseline(baseline)

    def watch(self, name: str, counter: Callable[[], int]) -> None:
        """Draw the values of `counter` over time."""
        self._sampler.watch(name, counter)

    # Brokers.

    def mosquitto(self, name: str, **options: Any) -> Mosquitto:
        """Start a Mosquitto."""
        broker = self.stack.enter_context(Mosquitto(self.directory / "brokers" / name, name, **options))
        self.brokers[name] = broker
        return broker

    def rabbit(self, name: str, **options: Any) -> RabbitNode:
        """Start a RabbitMQ node."""
        node = RabbitNode(self.directory / "brokers" / name, name, **options)
        self.stack.callback(lambda: None if node.alive else node.wipe())
        self.brokers[name] = self.stack.enter_context(node)
        return node

    def share_rabbit(self, name: str, node: RabbitNode) -> None:
        """Use a running RabbitMQ node that outlives the scenario."""
        self.brokers[name] = node

    def cluster(self, mode: PartitionMode, **options: Any) -> RabbitCluster:
        """Start a cluster of RabbitMQ nodes."""
        found = RabbitCluster(self.directory / "brokers" / "cluster", mode=mode, **options)
        return self.stack.enter_context(found)

    def sites(self, kind: Literal["mosquitto", "mixed"] = "mosquitto", **options: Any) -> list[SiteSpec]:
        """Two sites, dc1 and dc2, whose brokers are started if necessary (``mixed``: dc1 is RabbitMQ), or the user's
        sites; `options` are additional arguments of each site."""
        options = {**IMPATIENT, **options}
        if self._given:
            return [(name, url, options) for name, url in self._given]
        if not self.brokers:
            if kind == "mixed":
                self.rabbit("dc1")
            else:
                self.mosquitto("dc1")
            self.mosquitto("dc2")
            self.event(f"brokers started: {', '.join(self.brokers)}")
        return [(name, broker.url, options) for name, broker in self.brokers.items()]

    def proxied(self, kind: Literal["mosquitto", "mixed"] = "mosquitto") -> Paths:
        """The same sites, with a fault proxy on each path to them."""
        return self.stack.enter_context(paths_to(self.sites(kind)))

    def some_url(self, protocol: str = "") -> str:
        """The URL of the first site that speaks `protocol`, or of the first site, for plain clients."""
        urls = [url for _, url in self._given] or [broker.url for broker in self.brokers.values()]
        for url in urls:
            if url.startswith(protocol):
                return url
        raise MissingRequirement(f"a site that speaks {protocol}://")

    def disk(self, name: str, size: str) -> Path:
        """A small file system, such as ``1m``, for outboxes and inboxes; at the end its databases are copied to the
        clients' files as evidence. Requires root."""
        disk = self.stack.enter_context(small_disk(self.directory / name, size))

        def save() -> None:
            for file in disk.glob("*.db*"):
                shutil.copy(file, self.run.directory)

        self.stack.callback(save)
        return disk

    # Clients.

    def traffic(
        self, sites: list[SiteSpec] | Paths, load: Load | None = None, *, start: bool = True
    ) -> Traffic:
        """A producer, a consumer, and messages between them. With ``start=False``, call :meth:`Traffic.start`."""
        load = load or Load()
        rate = load.rate or max(100, self.messages // _PUBLISHING_S)
        if isinstance(sites, Paths):
            outbound, inbound = sites.sites(sites.producer, **load.site_options), sites.sites(sites.consumer)
        else:
            inbound = sites
            outbound = [(name, url, {**given, **load.site_options}) for name, url, given in sites]
        config = {"rate": rate, "chunk": max(1, rate // 50), "size": load.size, **load.producing}
        found = self.traffic_between(Side(outbound, config), Side(inbound, load.consuming), load.last)
        if start:
            found.start()
            self.event("a producer publishes, a group consumes")
        return found

    def traffic_between(self, producing: Side, consuming: Side, last: int = 0) -> Traffic:
        """A producer and a consumer whose sites and configuration differ, not started."""
        found = make_traffic(self.run, self.topic, producing, consuming, last)
        self.watch("published", self.run.accepted(found.producer))
        self.watch("delivered", self.run.delivered(found.consumer))
        return found

    def slow(self, delay: float = 0.005) -> dict[str, Any]:
        """Configuration of a consumer that spends `delay` seconds on each message and has a small inbox, so that most
        messages wait at the sites, until :meth:`hurry`."""
        return {
            "delay": delay, "batch": 20, "options": {"max_inbox_bytes": 1 << 15},
            "hurry": str(self.directory / "hurry"),
        }  # fmt: skip

    def hurry(self) -> None:
        """From now on, a slow consumer handles messages without delay."""
        (self.directory / "hurry").touch()

    @property
    def plain_topic(self) -> str:
        """The topic of plain paho, and the queue of plain pika."""
        return f"plain-{self.topic}"

    def paho(self, url: str, reading: str = "", **options: Any) -> PahoPair:
        """A plain paho publisher and subscriber at one site, not started. `reading`: the subscriber's URL, if it is
        a different one. `options`: of :func:`~reliamsg.lab.chaos.paho_baseline.paho_pair`."""
        pair = paho_pair(self.directory / "control", url, reading or url, self.plain_topic, **options)
        self.stack.callback(pair.end)
        self.watch("plain published", pair.counter("confirmed"))
        self.watch("plain received", pair.counter("received"))
        return pair

    def paho_beside(self, sites: list[SiteSpec] | Paths, **options: Any) -> list[PahoPair]:
        """The same at the first of these sites that speaks MQTT. A user may have no such site: then there are none,
        unless the run would prove nothing without them."""
        if isinstance(sites, Paths):
            sides = zip(sites.sites(sites.producer), sites.sites(sites.consumer), strict=True)
            urls = [(outbound[1], inbound[1]) for outbound, inbound in sides]
        else:
            urls = [(url, url) for _, url, _ in sites]
        found = [both for both in urls if both[0].startswith("mqtt://")]
        if self.scenario.harm is not None and not found:
            raise MissingRequirement("a site that speaks mqtt://")
        return [self.paho(*both, **options) for both in found[:1]]

    def pika(self, url: str, **options: Any) -> PikaPair:
        """A plain pika publisher and consumer at one site, not started; `options`: of PikaPair."""
        pair = PikaPair(url, self.plain_topic, **options)
        self.stack.callback(pair.end)
        return pair

    # Starting and stopping.

    def __enter__(self) -> Self:
        self.run.directory.mkdir(parents=True)
        if self._given:
            self.event(f"sites: {', '.join(name for name, _ in self._given)}")
        self._sampler.start()
        self.stack.callback(self._sampler.close)
        self.stack.callback(self.run.end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.record.end()
        self.stack.close()
