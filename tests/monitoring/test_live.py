"""A real Prometheus scrapes real clients: each fault raises its alerts, and they clear. A broker's restart raises none.
Every query of the dashboard has an answer."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.errors import DeadLetterHalt
from reliamsg.lab import Mosquitto
from reliamsg.prometheus import Collector
from reliamsg.wire.data import CONTENT_TYPE
from tests.consumer.tools import frame, send
from tests.metrics.tools import WAIT, World, fill
from tests.monitoring.server import RULES, Prometheus, minutes_as_seconds
from tests.patience import wait_for

pytestmark = pytest.mark.integrations

Fault = Callable[[World], Iterator[None]]
"""Opens clients; after its first step the fault begins, after its second one it ends."""


def fail(message: Message | None) -> None:
    """Handle a message without success."""
    assert message is not None
    with contextlib.suppress(ZeroDivisionError), message.process():
        1 / 0  # noqa: B018


def no_site(world: World) -> Iterator[None]:
    sender = world.producer()
    yield
    world.broker.down()
    sender.publish("orders", b"x")
    yield
    world.broker.up()
    sender.flush(WAIT)


def outbox_full(world: World) -> Iterator[None]:
    sender = world.producer(max_bytes=20_000, when_full="raise")
    yield
    world.broker.down()
    fill(sender)
    yield
    world.broker.up()
    sender.flush(WAIT)


def hanging_handler(world: World) -> Iterator[None]:
    sender, reader = world.producer(), world.consumer()
    yield
    sender.publish("orders", b"x")
    message = reader.get(WAIT)
    yield
    assert message is not None
    message.ack(durable=True)


def held_stream(world: World) -> Iterator[None]:
    reader = world.consumer(gap_timeout=0.1)
    send(world.broker, 1, 2)
    world.take(reader, 2)
    yield
    send(world.broker, 5, 6)
    yield
    send(world.broker, 3, 4)
    world.take(reader, 4)


def halted_consumer(world: World) -> Iterator[None]:
    sender, reader = world.producer(), world.consumer(max_deliveries=1, on_dead_letter="halt")
    yield
    sender.publish("orders", b"x")
    fail(reader.get(WAIT))
    with pytest.raises(DeadLetterHalt):
        reader.get(WAIT)
    yield
    reader.close()


def lost_messages(world: World) -> Iterator[None]:
    reader = world.consumer(gap_timeout=0.1, on_gap="skip")
    send(world.broker, 1, 2)
    world.take(reader, 2)
    yield
    send(world.broker, 4, 6)
    world.take(reader, 3)
    yield


def two_histories(world: World) -> Iterator[None]:
    reader = world.consumer()
    send(world.broker, 1, 2)
    world.take(reader, 2)
    yield
    world.broker.inject("orders", frame(3, 4, incarnation=78), content_type=CONTENT_TYPE)
    yield


def dead_letter(world: World) -> Iterator[None]:
    sender, reader = world.producer(), world.consumer(max_deliveries=1)
    yield
    sender.publish("orders", b"x")
    fail(reader.get(WAIT))
    wait_for(reader.dead_letters, "there is a dead letter")
    yield
    (letter,) = reader.dead_letters()
    reader.replay(letter.id)
    world.take(reader, 1)


def forged_delivery(world: World) -> Iterator[None]:
    world.consumer()
    yield
    world.broker.inject("orders", b"not ours")
    yield


FAULTS: dict[Fault, set[str]] = {
    no_site: {"ReliamsgOutboxDelayed", "ReliamsgSiteUnavailable"},
    outbox_full: {"ReliamsgOutboxFull"},
    hanging_handler: {"ReliamsgConsumerStuck"},
    held_stream: {"ReliamsgStreamHeld"},
    halted_consumer: {"ReliamsgStreamHeld", "ReliamsgClientFailed"},
    lost_messages: {"ReliamsgMessagesLost"},
    two_histories: {"ReliamsgConflict"},
    dead_letter: {"ReliamsgUndeliverable"},
    forged_delivery: {"ReliamsgUndeliverable"},
}
"""The alerts that each fault raises, at least."""


class Port:
    """Serves the metrics of one instance, until :meth:`close`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._server, _ = start_http_server(0, "127.0.0.1", registry)
        self.number: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Traffic:
    """A producer and a consumer at real brokers, as a context manager."""

    def __init__(self, sites: list[Site], place: Path) -> None:
        self.registry = CollectorRegistry()
        self._consumer = Consumer("billing", sites, topics=["orders"], inbox=place / "inbox.db")
        self._producer = Producer("p", sites, outbox=place / "outbox.db", groups={"orders": ["billing"]})
        Collector(self._producer, self._consumer, registry=self.registry)
        self._over = threading.Event()
        self.published = self.handled = 0
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]

    def _publish(self) -> None:
        while not self._over.wait(0.1):
            self._producer.publish("orders", b"x")
            self.published += 1

    def _consume(self) -> None:
        self._consumer.run(self._handle, batch=100)

    def _handle(self, messages: list[Message]) -> None:
        self.handled += len(messages)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads[0].join(WAIT)
        self._consumer.stop()
        self._threads[1].join(WAIT)
        self._producer.close()
        self._consumer.close()


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """The title of each panel, and its queries, with the variables replaced as Grafana does for `All`."""
    dashboard = json.loads(resources.files("reliamsg.metrics").joinpath("dashboard.json").read_text())
    variables = {"$job": ".+", "$instance": ".+", "$__rate_interval": "20s"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression: str = target["expr"]
            for name, value in variables.items():
                expression = expression.replace(name, value)
            assert "$" not in expression
            yield panel["title"], expression


def both_scales(rules: str) -> str:
    """The rules as they are, and the same with short durations, whose alerts have the label ``short``."""
    short = minutes_as_seconds(rules.partition("groups:\n")[2])
    short = short.replace("name: reliamsg\n", "name: short\n").replace(
        "severity:", 'short: "yes"\n          severity:'
    )
    return rules + short


@contextlib.contextmanager
def worlds(place: Path) -> Iterator[dict[str, tuple[World, Iterator[None]]]]:
    """A world for each fault, with its clients."""
    with contextlib.ExitStack() as stack:
        found = {}
        for fault in FAULTS:
            directory = place / fault.__name__
            directory.mkdir()
            world = World(directory, "dc1")
            stack.callback(world.network.close)
            stack.enter_context(world.opened)
            found[fault.__name__] = world, fault(world)
        yield found


SHORT, USUAL = 'alertstate="firing", short="yes"', 'alertstate="firing", short=""'


def missing(server: Prometheus, start: float, expected: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The expected alerts that have not fired since `start`, by instance."""
    fired = server.fired(start, SHORT)
    return {name: left for name, alerts in expected.items() if (left := alerts - set(fired.get(name, {})))}


def firing(server: Prometheus) -> list[dict[str, Any]]:
    """The alerts with short durations that fire now."""
    return [each for each in server.alerts() if each["state"] == "firing" and "short" in each["labels"]]


def check_texts(alerts: list[dict[str, Any]]) -> bool:
    """Every template has a value: True, or AssertionError."""
    for alert in alerts:
        for text in alert["annotations"].values():
            assert text
            assert not any(wrong in text for wrong in ("{{", "<no value>", "<error")), text
    return True


def check_dashboard(server: Prometheus) -> None:
    for title, expression in dashboard_queries():
        found = server.query(expression)
        assert found, f"{title}: {expression} is empty"


def test_faults_raise_alerts_and_a_restarted_broker_none(
    tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    brokers = [make_mosquitto(persistence=True), make_mosquitto(persistence=True)]
    sites = [Site(f"dc{number}", broker.url) for number, broker in enumerate(brokers, 1)]
    expected = {fault.__name__: alerts for fault, alerts in FAULTS.items()} | {"gone": {"ReliamsgDown"}}
    with (
        Prometheus(tmp_path / "prometheus", both_scales(RULES)) as server,
        Traffic(sites, tmp_path) as calm,
        worlds(tmp_path) as faulty,
    ):
        start = time.time()
        ports = {"calm": Port(calm.registry), "gone": Port(registry_with_version())}
        for name, (world, steps) in faulty.items():
            next(steps)
            ports[name] = Port(world.scrape.registry)
        for name, port in ports.items():
            server.watch(name, port.number)
        # Each at least once, so that counters are seen to grow; a scrape may fail while the machine stalls.
        scraped = "max_over_time(up[5m]) == 1"
        wait_for(lambda: len(server.query(scraped)) == len(ports), "all are scraped", 30, 0.2)

        for _, steps in faulty.values():
            next(steps)
        ports["gone"].close()
        brokers[0].kill()
        brokers[0].start()
        before = calm.handled
        wait_for(
            lambda: check_texts(server.alerts()) and not missing(server, start, expected),
            "every fault raises its alerts",
            60,
            0.5,
        )
        check_dashboard(server)

        for _, steps in faulty.values():
            assert next(steps, None) is None
        server.forget("gone")
        wait_for(lambda: not firing(server), "all alerts clear", 60, 0.2)
        wait_for(lambda: calm.handled > before, "traffic goes on")
        assert "calm" not in server.fired(start, USUAL)
        for port in [port for name, port in ports.items() if name != "gone"]:
            port.close()


def registry_with_version() -> CollectorRegistry:
    """Shows that there is a process, and nothing else."""
    registry = CollectorRegistry()
    Collector(registry=registry)
    return registry
