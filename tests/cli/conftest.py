"""Sites for the commands. A group has one session at a broker, so two sites are two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.cli.commands import Sites


@pytest.fixture(scope="session")
def second_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto2"), "second") as broker:
        yield broker


@pytest.fixture
def mqtt(shared_mosquitto: Mosquitto, second_mosquitto: Mosquitto, tmp_path: Path) -> Sites:
    """Two Mosquitto sites."""
    return Sites(["--site", f"dc1={shared_mosquitto.url}", "--site", f"dc2={second_mosquitto.url}"], tmp_path)


@pytest.fixture
def mixed(rabbit: RabbitNode, second_mosquitto: Mosquitto, tmp_path: Path) -> Sites:
    """RabbitMQ and Mosquitto."""
    return Sites(["--site", f"dc1={rabbit.url}", "--site", f"dc2={second_mosquitto.url}"], tmp_path)


@pytest.fixture
def nowhere(free_port: int, tmp_path: Path) -> Sites:
    """A site without a listener, with a password in its URL."""
    return Sites(["--site", f"dc1=mqtt://user:secret-word@127.0.0.1:{free_port}"], tmp_path)
