"""The network between applications and sites, with faults on demand: a proxy for each path from one to the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reliamsg.lab import Mosquitto, RabbitNode, TcpProxy
from reliamsg.store.journal import JournalRow
from reliamsg.verify import read_applog
from tests.runs.harness import App, Run, SiteSpec, assert_complete, wait_for

IMPATIENT: dict[str, Any] = {
    "heartbeat": 1.0, "confirm_timeout": 2.0, "connect_timeout": 2.0, "backoff_min": 0.05, "backoff_max": 0.5,
}  # fmt: skip
"""Arguments of a Site that notice and mend within seconds what otherwise takes minutes."""


@dataclass(frozen=True)
class Paths:
    """dc1 is RabbitMQ, dc2 Mosquitto; producer and consumer reach each through a proxy of their own."""

    producer: dict[str, TcpProxy]
    consumer: dict[str, TcpProxy]
    urls: dict[str, str]

    def sites(self, proxies: dict[str, TcpProxy], **options: Any) -> list[SiteSpec]:
        return [(name, proxies[name].url(url), {**IMPATIENT, **options}) for name, url in self.urls.items()]

    def of(self, *sites: str) -> list[TcpProxy]:
        """All paths to these sites, or to all."""
        return [way[name] for name in sites or self.urls for way in (self.producer, self.consumer)]


@contextlib.contextmanager
def paths_to(rabbit: RabbitNode, mosquitto: Mosquitto) -> Iterator[Paths]:
    ports = {"dc1": rabbit.port, "dc2": mosquitto.port}
    with contextlib.ExitStack() as stack:
        both = [
            {name: stack.enter_context(TcpProxy("127.0.0.1", port)) for name, port in ports.items()}
            for _ in range(2)
        ]
        yield Paths(both[0], both[1], {"dc1": rabbit.url, "dc2": mosquitto.url})


@dataclass
class Traffic:
    """A producer and a consumer at work."""

    run: Run
    producer: App
    consumer: App
    last: int
    """The last number that the producer publishes; 0 where it is stopped before."""

    def __post_init__(self) -> None:
        self.accepted = self.run.accepted(self.producer)
        self.delivered = self.run.delivered(self.consumer)

    def flows(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages are handed out."""
        before = self.delivered()
        wait_for(
            lambda: self.delivered() >= before + more,
            seconds,
            f"{more} more messages come through (after {before} of {self.accepted()} accepted);"
            f" {self.producer.errors()} {self.consumer.errors()}",
        )

    def accepts(self, more: int, seconds: float = 30.0) -> None:
        """Wait until `more` messages are published: durable here, wherever the sites are."""
        before = self.accepted()
        wait_for(
            lambda: self.accepted() >= before + more, seconds, f"publishing goes on: {self.producer.errors()}"
        )

    @property
    def under_way(self) -> int:
        """Messages that are published and not handed out."""
        return self.accepted() - self.delivered()

    def unconfirmed(self, site: str) -> int:
        """Messages that `site` has not confirmed."""
        confirmed = sum(
            row.last - row.first + 1 for row in self.rows(self.producer, "confirmed") if row.site == site
        )
        return self.accepted() - confirmed

    def rows(self, app: App, kind: str) -> list[JournalRow]:
        """What an application's journal says of one kind."""
        return [row for row in self.run.rows(app) if row.kind == kind]

    def drained(self, seconds: float = 30.0) -> None:
        """All faults are over: everything must come, once, in order, within a bound; then the checker's verdict.

        A producer that was killed leaves numbers of which nobody knows: not accepted, and handed out or not.
        """
        to_publish = max(0, (self.last or 0) - self.accepted()) / (self.producer.config.get("rate") or 2_000)
        self.producer.ended(seconds + 2 * to_publish)
        wait_for(
            lambda: self.delivered() >= self.accepted(),
            seconds,
            f"everything drains, {self.accepted()} messages; {self.consumer.errors()}",
        )
        wait_for(self._all_handed_out, seconds, f"all that was accepted comes; {self.consumer.errors()}")
        self.consumer.stop()
        numbers = self.handed_out()
        assert numbers == sorted(set(numbers)), "doubled or out of order"
        if self.producer.starts == 1 and self.last:
            assert numbers == list(range(1, self.last + 1))
        assert_complete(self.run.check())

    def _all_handed_out(self) -> bool:
        known = read_applog(self.producer.log).records
        accepted = {record.n for record in known if record.op == "publish" and record.outcome == "ok"}
        return accepted <= set(self.handed_out())

    def handed_out(self) -> list[int]:
        """The numbers that the application was given, in order; what came again only once."""
        return self.run.outcome(self.consumer)[self.producer.config["producer"]]


def traffic(
    run: Run,
    paths: Paths,
    topic: str,
    messages: int,
    *,
    rate: int = 1_000,
    size: int = 200,
    producing: dict[str, Any] | None = None,
    consuming: dict[str, Any] | None = None,
    module: Callable[[App], None] | None = None,
    **options: Any,
) -> Traffic:
    """Start a consumer, and when it reads both sites a producer; `options` are further arguments of its sites."""
    consumer = run.consumer(topic, paths.sites(paths.consumer), [topic], **(consuming or {}))
    producer = run.producer(
        "till", paths.sites(paths.producer, **options), topic, [topic], messages,
        **{"rate": rate, "chunk": max(1, rate // 50), "size": size, **(producing or {})},
    )  # fmt: skip
    if module is not None:
        module(producer)
        module(consumer)
    found = Traffic(run, producer, consumer, messages)
    consumer.start()
    wait_until_it_reads(found)
    producer.start()
    return found


def wait_until_it_reads(found: Traffic) -> None:
    """From then on an MQTT site keeps messages for the group."""
    from reliamsg.errors import ReliamsgError

    def reading() -> bool:
        with contextlib.suppress(ReliamsgError):
            return {row.site for row in found.rows(found.consumer, "connected")} == {"dc1", "dc2"}
        return False

    wait_for(reading, 20, f"the consumer reads both sites: {found.consumer.errors()}")
