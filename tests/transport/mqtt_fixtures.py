"""A Mosquitto for a module's tests, ones that a test may kill, and a scripted broker that is particular."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab.brokers.mosquitto import Mosquitto
from tests.transport.mqtt_picky import Picky
from tests.transport.mqtt_scripted import ScriptedBroker, scripted

MakeBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """One broker for all tests of a module; each test uses topics and groups of its own."""
    # With max_queued_messages 0 Mosquitto 2.0.11 closes the connection after each PUBACK that refuses.
    directory = tmp_path_factory.mktemp("mosquitto")
    with Mosquitto(directory, deny=["denied"], max_queued_messages=1_000_000) as broker:
        yield broker


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Makes brokers that are started already, and ends them."""
    with ExitStack() as stack:
        made = 0

        def make(**settings: Any) -> Mosquitto:
            nonlocal made
            made += 1
            return stack.enter_context(Mosquitto(tmp_path / f"broker-{made}", **settings))

        yield make


@pytest.fixture
def picky() -> Picky:
    return Picky()


@pytest.fixture
def broker(picky: Picky) -> Iterator[ScriptedBroker]:
    with scripted(picky) as broker:
        yield broker


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic, and group, that no other test uses."""
    return "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
