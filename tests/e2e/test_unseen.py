"""A group that is created only after messages were published for it, at a real MQTT broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.errors import ConfirmTimeout
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from tests.patience import wait_for


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_confirmed_for_a_missing_group_arrive(tmp_path: Path, version: str) -> None:
    with Mosquitto(tmp_path / "broker") as broker:
        site = Site("dc1", broker.url, mqtt_version=version)  # type: ignore[arg-type]
        groups = {"orders": ["there", "late"]}
        create_group(site, [Binding("orders", 0, "there")], 10.0)
        with Producer("p", [site], outbox=tmp_path / "p.db", groups=groups, hello_timeout=0.0) as producer:
            receipts = [producer.publish("orders", b"%d" % number) for number in range(20)]
            wait_for(lambda: receipts[-1].sites == {"dc1": "unseen"}, "the broker confirmed all of it")
            with pytest.raises(ConfirmTimeout, match="group late is unseen at dc1"):
                receipts[0].wait(timeout=0.1)
            create_group(site, [Binding("orders", 0, "late")], 10.0)
            producer.flush(timeout=60.0)
        for group in ("there", "late"):
            with Consumer(group, [site], topics=["orders"], inbox=tmp_path / f"{group}.db") as consumer:
                for number in range(20):
                    message = consumer.get(timeout=60.0)
                    assert message is not None
                    assert message.body == b"%d" % number
                    message.ack()
