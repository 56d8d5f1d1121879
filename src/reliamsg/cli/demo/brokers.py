"""The brokers of a run: two sites, and one for the plain clients."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg.cli.demo.plan import GROUPS, SITES, TOPIC, Kind
from reliamsg.config import Site
from reliamsg.lab import Broker, EmbeddedBroker, LabError, Mosquitto, RabbitNode
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group

__all__ = ["Brokers", "start_brokers"]

_CREATE_SECONDS = 20.0
_START_SECONDS = 100.0


@dataclass(frozen=True)
class Brokers:
    """All brokers of a run, started."""

    sites: dict[str, Broker]
    plain: Broker
    plain_kind: str

    @property
    def urls(self) -> dict[str, str]:
        return {name: broker.url for name, broker in self.sites.items()}

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Further arguments of each site. amqtt does not answer MQTT 5 clients, which takes a while to detect."""
        return {
            name: {"mqtt_version": "3.1.1"} if isinstance(broker, EmbeddedBroker) else {}
            for name, broker in self.sites.items()
        }


@contextmanager
def start_brokers(kind: Kind, directory: Path) -> Iterator[Brokers]:
    """Start the brokers of a `kind` in parallel, and create the groups; stop them at the end of the block.

    Raises LabError if a program is missing or a broker does not start.
    """
    with ExitStack() as stack:
        sites = dict(zip(SITES, _make_sites(kind, directory), strict=True))
        plain, plain_kind = _make_plain(kind, directory / "control-broker")
        brokers = Brokers(sites, plain, plain_kind)
        for broker in (*sites.values(), plain):
            stack.callback(broker.kill)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda broker: broker.start(), (*sites.values(), plain)))
        for name, url in brokers.urls.items():
            # One by one: at MQTT sites each group is a separate session.
            for group in GROUPS:
                create_group(
                    Site(name, url, **brokers.options[name]), [Binding(TOPIC, 0, group)], _CREATE_SECONDS
                )
        yield brokers


def _make_sites(kind: Kind, directory: Path) -> tuple[Broker, Broker]:
    first, second = (directory / name for name in SITES)
    if kind == "embedded":
        return EmbeddedBroker(first, "dc1"), EmbeddedBroker(second, "dc2")
    if kind == "mosquitto":
        return Mosquitto(first, "dc1"), Mosquitto(second, "dc2")
    if kind == "rabbitmq":
        return _rabbit(first, "dc1"), _rabbit(second, "dc2")
    return _rabbit(first, "dc1"), Mosquitto(second, "dc2")


def _rabbit(directory: Path, name: str) -> RabbitNode:
    return RabbitNode(directory, name, start_timeout=_START_SECONDS)


def _make_plain(kind: Kind, directory: Path) -> tuple[Broker, str]:
    """A broker for plain paho, of the sites' kind if that supports MQTT."""
    if kind == "embedded":
        return EmbeddedBroker(directory, "control"), "embedded broker"
    try:
        return Mosquitto(directory, "control"), "Mosquitto"
    except LabError:
        if kind != "rabbitmq":
            raise
        return EmbeddedBroker(directory, "control"), "embedded broker"
