"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reliamsg.transport.memory import registry

pytest_plugins = ["tests.options", "tests.chance", "tests.brokers", "tests.audited", "tests.spark"]


@pytest.fixture(autouse=True)
def networks_in_memory_are_forgotten() -> Iterator[None]:
    """Else everything that a test connected to one stays in memory, with its files open: clients of brokers that use
    ``select()`` fail as soon as there are a thousand."""
    before = set(registry._hosts)
    yield
    registry.unregister(sorted(registry._hosts.keys() - before))
