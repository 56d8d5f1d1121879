"""Sites and clients of real brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Site
from reliamsg.lab import Mosquitto, RabbitNode
from tests.badinput.tools import Clients, site


@pytest.fixture
def sites(rabbit: RabbitNode, shared_mosquitto: Mosquitto) -> list[Site]:
    """RabbitMQ and Mosquitto."""
    return [site("dc1", rabbit.url), site("dc2", shared_mosquitto.url)]


@pytest.fixture
def clients(tmp_path: Path, unique: str) -> Iterator[Clients]:
    """Producers and consumers of this test's own topic and group."""
    with contextlib.ExitStack() as stack:
        yield Clients(stack, tmp_path, unique)
