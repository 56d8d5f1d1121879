"""What a scenario is given: seeded chance, brokers and clients that end with it, and a place to note what was done."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from reliamsg.lab.brokers.cluster import PartitionMode, RabbitCluster
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.paho_baseline import PlainPair, plain_pair
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.processes import App, Run, SiteSpec
from reliamsg.lab.chaos.result import Control, Result
from reliamsg.lab.chaos.scenario import Lacking, Scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, Paths, Traffic, begin, paths_to
from reliamsg.lab.faults.disk import small_disk

__all__ = ["Context"]

_SAMPLE_S = 0.2
_PUBLISHING_S = 20


class Context:
    """A context manager: leaving it ends all brokers and clients that were started through it."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        seed: int,
        messages: int,
        sites: Sequence[tuple[str, str]] = (),
        on_event: Callable[[str], object] = lambda text: None,
    ) -> None:
        """`directory`: new or empty. `messages`: how many to publish. `sites`: a user's, in place of brokers of our
        own. `on_event`: told what is done, when it is."""
        self.scenario = scenario
        self.directory = directory
        self.messages = messages
        self.rng = random.Random(seed)
        self.result = Result(scenario, seed)
        self.stack = contextlib.ExitStack()
        """What must end with the scenario."""
        self.run = Run(directory / "run")
        self.paths: Paths | None = None
        """The proxies of :meth:`proxied`."""
        self._given = list(sites)
        self._on_event = on_event
        self._started = time.monotonic()
        self._counters: dict[str, Callable[[], int]] = {}
        self._finish = threading.Event()
        self.brokers: dict[str, Mosquitto | RabbitNode] = {}
        # A user's brokers keep what earlier runs left, under other names.
        self.topic = f"chaos-{scenario.name}-{seed:08x}"
        self.group = self.topic

    # What is noted.

    def event(self, what: str) -> None:
        """Something was done now."""
        self.result.events.append((time.monotonic() - self._started, what))
        self._on_event(what)

    def stake(self, count: int, what: str) -> None:
        """So many messages could have been lost, or done wrong, by what was done: of none, the run proves nothing."""
        self.result.stakes.append((count, what))

    def expect(self, holds: object, what: str) -> None:
        """`what` must hold; else the run is not ok, and goes on."""
        if not holds:
            self.result.problems.append(f"not so: {what}")

    def verdicts(self, *expected: str) -> None:
        """What the checker is to say, where that is not ``complete``."""
        self.result.expected = expected

    def unproven(self, *findings: str) -> None:
        """The checker must say ``unknown``, for these reasons, in its own words, and no others."""
        self.result.expected, self.result.unproven = ("unknown",), findings

    def control(self, control: Control) -> None:
        """What plain clients got of the same."""
        self.result.controls.append(control)

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

    def cluster(self, mode: PartitionMode, **options: Any) -> RabbitCluster:
        """Start a cluster of RabbitMQ nodes."""
        found = RabbitCluster(self.directory / "brokers" / "cluster", mode=mode, **options)
        return self.stack.enter_context(found)

    def sites(self, kind: Literal["mosquitto", "mixed"] = "mosquitto", **options: Any) -> list[SiteSpec]:
        """Two sites, dc1 and dc2, of brokers of our own (``mixed``: dc1 is RabbitMQ), or the user's; `options` are
        further arguments of each site."""
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
        self.paths = self.stack.enter_context(paths_to(self.sites(kind)))
        return self.paths

    def some_url(self, protocol: str = "") -> str:
        """The first site's URL, or of those that speak `protocol`, for plain clients; Lacking where there is none."""
        urls = [url for _, url in self._given] or [broker.url for broker in self.brokers.values()]
        for url in urls:
            if url.startswith(protocol):
                return url
        raise Lacking(f"a site that speaks {protocol}://")

    def disk(self, name: str, size: str) -> Path:
        """A small file system, such as ``1m``, for outboxes and inboxes; what is on it in the end stays as evidence.
        Needs root."""
        disk = self.stack.enter_context(small_disk(self.directory / name, size))

        def save() -> None:
            for file in disk.glob("*.db*"):
                shutil.copy(file, self.run.directory)

        self.stack.callback(save)
        return disk

    # Clients.

    def traffic(
        self,
        sites: list[SiteSpec] | Paths,
        *,
        last: int = 0,
        rate: int | None = None,
        size: int = 100,
        producing: Mapping[str, Any] | None = None,
        consuming: Mapping[str, Any] | None = None,
        module: Callable[[App], None] | None = None,
        start: bool = True,
        **options: Any,
    ) -> Traffic:
        """A producer and a consumer between which messages flow (unless `start` is false: then they are started with
        :meth:`Traffic.begin`). They flow until :meth:`Traffic.finish`, so that faults have something to hit however
        long they take on a busy machine, or up to number `last`. `rate`: messages a second; unless given, publishing
        what the run is to publish takes 20 s. `producing`, `consuming`: their further configuration. `options`: further
        arguments of the producer's sites."""
        rate = rate or max(100, self.messages // _PUBLISHING_S)
        if isinstance(sites, Paths):
            outwards, inwards = sites.sites(sites.producer, **options), sites.sites(sites.consumer)
        else:
            inwards = sites
            outwards = [(name, url, {**given, **options}) for name, url, given in sites]
        config = {"rate": rate, "chunk": max(1, rate // 50), "size": size, **(producing or {})}
        found = begin(
            self.run, self.topic, (outwards, config),
            (inwards, consuming or {}), last, module=module, start=False,
        )  # fmt: skip
        self.watch("published", self.run.accepted(found.producer))
        self.watch("handed out", self.run.delivered(found.consumer))
        if start:
            found.begin()
            self.event("a producer publishes, a group consumes")
        return found

    def slow(self, delay: float = 0.005) -> dict[str, Any]:
        """Configuration of a consumer that spends `delay` seconds on a message, and has a small inbox: what it has not
        handled stays at the sites, until :meth:`hurry`."""
        return {
            "delay": delay, "batch": 20, "options": {"max_inbox_bytes": 1 << 15},
            "hurry": str(self.directory / "hurry"),
        }  # fmt: skip

    def hurry(self) -> None:
        """From now on handling takes a slow consumer no time."""
        (self.directory / "hurry").touch()

    def plain(self, url: str, reading: str = "", **options: Any) -> PlainPair:
        """A plain paho publisher and subscriber at one site, not started. `reading`: the subscriber's URL, if it is
        another one. `options`: of :func:`~reliamsg.lab.chaos.paho_baseline.plain_pair`."""
        pair = plain_pair(self.directory / "control", url, reading or url, self.plain_topic, **options)
        self.stack.callback(pair.end)
        self.watch("plain published", pair.counter("confirmed"))
        self.watch("plain received", pair.counter("received"))
        return pair

    def plain_beside(self, sites: list[SiteSpec] | Paths, **options: Any) -> list[PlainPair]:
        """The same at the first of these sites that speaks MQTT; none where none does, as a user's may not, unless the
        run would prove nothing without it: then Lacking."""
        if isinstance(sites, Paths):
            ways = zip(sites.sites(sites.producer), sites.sites(sites.consumer), strict=True)
            urls = [(out[1], into[1]) for out, into in ways]
        else:
            urls = [(url, url) for _, url, _ in sites]
        if self.scenario.harm is not None and not any(url.startswith("mqtt://") for url, _ in urls):
            raise Lacking("a site that speaks mqtt://")
        return [self.plain(*both, **options) for both in urls if both[0].startswith("mqtt://")][:1]

    @property
    def plain_topic(self) -> str:
        """The topic of plain paho, and the queue of plain pika."""
        return f"plain-{self.topic}"

    def plain_pika(self, url: str, **options: Any) -> PikaPair:
        """A plain pika publisher and consumer at one site, not started; `options`: of PikaPair."""
        pair = PikaPair(url, self.plain_topic, **options)
        self.stack.callback(pair.end)
        return pair

    def watch(self, name: str, counter: Callable[[], int]) -> None:
        """Draw what `counter` says over the run."""
        self._counters[name] = counter

    # Its life.

    def _sample(self) -> None:
        while not self._finish.wait(_SAMPLE_S):
            # A copy: scenarios add counters meanwhile.
            counts = {name: counter() for name, counter in list(self._counters.items())}
            if counts:
                self.result.samples.append((time.monotonic() - self._started, counts))

    def __enter__(self) -> Self:
        self.run.directory.mkdir(parents=True)
        if self._given:
            self.event(f"sites: {', '.join(name for name, _ in self._given)}")
        sampler = threading.Thread(target=self._sample, name="reliamsg-chaos-sampler", daemon=True)
        sampler.start()
        self.stack.callback(sampler.join)
        self.stack.callback(self._finish.set)
        self.stack.callback(self.run.end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.result.seconds = time.monotonic() - self._started
        self.stack.close()
