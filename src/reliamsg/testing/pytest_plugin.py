"""Pytest fixtures, on request: ``pytest_plugins = ["reliamsg.testing.pytest_plugin"]`` in a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reliamsg.config import Site
from reliamsg.testing import MemoryNetwork

__all__ = ["memory_network", "memory_sites"]


@pytest.fixture
def memory_network() -> Iterator[MemoryNetwork]:
    """Two brokers in memory, ``dc1`` and ``dc2``, that fail on demand: ``memory_network["dc1"].down()``."""
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


@pytest.fixture
def memory_sites(memory_network: MemoryNetwork) -> tuple[Site, ...]:
    """The sites of ``memory_network``, for producers and consumers."""
    return memory_network.sites
