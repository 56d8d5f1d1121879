"""Fixtures for producers in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Producer
from reliamsg.testing import MemoryNetwork
from tests.lockorder import lock_order
from tests.producer import tools
from tests.producer.control_tools import Bench


@pytest.fixture(autouse=True)
def locks() -> Iterator[None]:
    """Whatever a test does, locks are taken in the right order."""
    with lock_order():
        yield


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def make(network: MemoryNetwork, path: Path) -> Iterator[Callable[..., Producer]]:
    """Opens producers on one outbox, and closes what the test leaves open."""
    made: list[Producer] = []

    def open_one(**options: Any) -> Producer:
        made.append(tools.producer(options.pop("network", network), options.pop("path", path), **options))
        return made[-1]

    yield open_one
    for one in made:
        one.close(0.0)


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    """A producer's engine on simulated time."""
    found = Bench(path)
    yield found
    for engine in list(found.engines):
        found.close(engine)
