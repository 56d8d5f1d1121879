"""Fixtures of the runs over two sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.runs.paths import Paths, paths_to


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.audited)


@pytest.fixture
def paths(rabbit: RabbitNode, shared_mosquitto: Mosquitto) -> Iterator[Paths]:
    """A RabbitMQ and a Mosquitto, with a separate fault proxy for each client in front of each."""
    with paths_to(rabbit, shared_mosquitto) as found:
        yield found
