"""Fixtures of the runs over two sites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.runs.paths import Paths, paths_to


@pytest.fixture
def paths(rabbit: RabbitNode, shared_mosquitto: Mosquitto) -> Iterator[Paths]:
    """A RabbitMQ and a Mosquitto, with a fault proxy of each client's own before each."""
    with paths_to(rabbit, shared_mosquitto) as found:
        yield found
