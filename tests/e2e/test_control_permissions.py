"""Permissions for control addresses at real brokers: a refused name stalls no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.wire.address import producer_address
from tests.patience import patient, wait_for

GROUP, TOPIC = "billing", "orders"
ALLOWED = [
    f"reliamsg:group:{GROUP}",
    f"reliamsg:status:{TOPIC}",
    f"reliamsg:call:{TOPIC}",
    "reliamsg:producer:good",
]


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URLs of an unrestricted account, and of consumers, who may write to the control addresses of one producer."""
    with RabbitNode(tmp_path / "rabbit", plugins=["rabbitmq_mqtt"]) as node:
        node.ctl("add_user", "consumers", "secret")
        node.ctl("set_permissions", "consumers", ".*", ".*", ".*")
        node.ctl("set_topic_permissions", "consumers", "amq.topic", f"^({'|'.join(ALLOWED)})$", ".*")
        yield node.mqtt_url, node.mqtt_url.replace("guest:guest", "consumers:secret")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The same; Mosquitto silently drops what it refuses."""
    access = tmp_path / "access"
    rules = ["user producers", "topic readwrite #", "user consumers", "topic read #"]
    access.write_text("\n".join([*rules, *(f"topic write {address}" for address in ALLOWED)]) + "\n")
    access.chmod(0o600)
    users = {"producers": "secret", "consumers": "secret"}
    with Mosquitto(tmp_path / "mosquitto", users=users, config=[f"acl_file {access}"]) as broker:
        yield broker.url, broker.url.replace("producers:", "consumers:")


@pytest.mark.integrations
@pytest.mark.parametrize("kind", ["rabbit", "mosquitto"])
def test_a_newcomer_whose_name_is_refused(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Consumers may not write to its control address. It is served without answers; others are not affected."""
    everybody, consumers = request.getfixturevalue(kind)
    sites, theirs = [Site("dc1", everybody)], [Site("dc1", consumers)]
    got: dict[str, list[int]] = {}
    lost: list[BaseException] = []

    def handle(message: Message) -> None:
        got.setdefault(message.producer, []).append(message.seq)

    with Consumer(
        GROUP, theirs, topics=[TOPIC], inbox=tmp_path / "i.db", takeover_timeout=6.0, on_error=lost.append
    ) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        thread.start()
        wait_for(lambda: consumer.status().sites["dc1"].state == "connected", "connected", 60.0)
        with (
            Producer(
                "good", sites, outbox=tmp_path / "g.db", groups={TOPIC: [GROUP]}, release="consumed"
            ) as good,
            Producer("newcomer", sites, outbox=tmp_path / "n.db", groups={TOPIC: [GROUP]}) as newcomer,
        ):
            good.publish(TOPIC, b"first").wait(30, until="consumed")
            for number in range(1, 6):
                newcomer.publish(TOPIC, b"%d" % number)
            wait_for(lambda: got.get("newcomer") == [1, 2, 3, 4, 5], "its messages are delivered", 60.0)
            refused = producer_address("newcomer")
            if kind == "rabbit":
                wait_for(
                    lambda: refused in consumer.status().sites["dc1"].refused_addresses, "it is found", 60.0
                )
            for _ in range(20):
                good.publish(TOPIC, b"more").wait(patient(20), until="consumed")
        assert consumer.status().role == "active"
        assert got["good"] == list(range(1, 22))
        assert not lost
        consumer.stop()
        thread.join(patient(20))
