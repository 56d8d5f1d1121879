"""Fixtures that give tests real brokers, stopped in any case.

A missing program is a failure that names its package, not a skipped test: `make test` installs them all.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab import EmbeddedBroker, Mosquitto, RabbitNode, TcpProxy
from reliamsg.lab import free_port as unused_port

_START_SECONDS = 100.0
"""RabbitMQ starts in 4 to 20 s; on a busy machine it may take longer."""


@pytest.fixture
def free_port() -> int:
    """A TCP port at 127.0.0.1 without a listener."""
    return unused_port()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A unique name, for topics, producers and groups at a shared broker."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:40].strip("-")
    return f"{test}-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A running RabbitMQ node that all tests share: use `unique` names, and neither stop nor pause it."""
    directory = tmp_path_factory.mktemp("rabbit")
    with RabbitNode(directory, "shared", start_timeout=_START_SECONDS) as node:
        yield node
    node.wipe()


def own_vhost(rabbit: RabbitNode, vhost: str) -> str:
    """The URL of a new virtual host: for programs with names of their own."""
    rabbit.ctl("add_vhost", vhost)
    rabbit.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    return f"amqp://guest:guest@127.0.0.1:{rabbit.port}/{vhost}"


@pytest.fixture
def make_rabbit(tmp_path: Path) -> Iterator[Callable[..., RabbitNode]]:
    """Starts separate RabbitMQ nodes, for any use: ``make_rabbit(plugins=["rabbitmq_mqtt"])``."""
    numbers = itertools.count(1)
    made: list[RabbitNode] = []

    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> RabbitNode:
            name = options.pop("name", f"rabbit{next(numbers)}")
            options.setdefault("start_timeout", _START_SECONDS)
            node = RabbitNode(tmp_path / name, name, **options)
            made.append(node)
            return stack.enter_context(node)

        yield make
    for node in made:
        node.wipe()


@pytest.fixture(scope="session")
def shared_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A running Mosquitto that all tests share: use `unique` names, and neither stop nor pause it."""
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "shared") as broker:
        yield broker


@pytest.fixture
def make_mosquitto(tmp_path: Path) -> Iterator[Callable[..., Mosquitto]]:
    """Starts separate Mosquitto brokers: ``make_mosquitto(persistence=True)``."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Mosquitto:
            name = options.pop("name", f"mosquitto{next(numbers)}")
            return stack.enter_context(Mosquitto(tmp_path / name, name, **options))

        yield make


@pytest.fixture
def mosquitto(make_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    """A separate running Mosquitto, without persistence."""
    return make_mosquitto()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A separate running in-memory MQTT broker."""
    with EmbeddedBroker(tmp_path / "embedded") as broker:
        yield broker


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], TcpProxy]]:
    """Starts fault proxies in front of local ports: ``make_proxy(broker.port)``."""
    with contextlib.ExitStack() as stack:

        def make(port: int) -> TcpProxy:
            return stack.enter_context(TcpProxy("127.0.0.1", port))

        yield make
