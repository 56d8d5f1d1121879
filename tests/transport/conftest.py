"""What tests of several transports ask for."""

from __future__ import annotations

import paho.mqtt.client as paho
import pytest


@pytest.fixture
def packet_ids(full: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many packet ids MQTT has: 65,535 at full size, else so few that they are soon used up."""
    if full:
        return 65_535
    few = 2_000

    def generate(client: paho.Client) -> int:
        client._last_mid = client._last_mid % few + 1
        return client._last_mid

    monkeypatch.setattr(paho.Client, "_mid_generate", generate)
    return few
