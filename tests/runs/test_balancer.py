"""MQTT through a load balancer to a RabbitMQ cluster, and the node that keeps the subscriber's session is killed.

A; the subscriber leaves; B, C; its node is killed; the subscriber returns; D, E; the node returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.lab import HaProxy, RabbitCluster
from reliamsg.lab.chaos.fixtures import PahoFixture
from tests.runs.collected import keep
from tests.runs.harness import assert_complete, wait_for, wait_until_reading
from tests.runs.test_tail import take

HOME = 3
"""The node that keeps the session: the first choice of the subscriber's balancer."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with RabbitCluster(directory, mode="pause_minority", plugins=["rabbitmq_mqtt"]) as found:
        yield found


@pytest.fixture
def balancers(cluster: RabbitCluster, tmp_path: Path) -> Iterator[tuple[HaProxy, HaProxy]]:
    """One balancer for the subscriber, which prefers its home, and one for the publisher, which does not."""

    def make(name: str, *order: int) -> HaProxy:
        servers = {f"node{number}": cluster.node(number).mqtt_address for number in order}
        return HaProxy(tmp_path / name, servers)

    with make("subscriber", HOME, 1, 2) as one, make("publisher", 1, 2, HOME) as two:
        one.wait_up()
        two.wait_up()
        yield one, two


def url(balancer: HaProxy) -> str:
    return f"mqtt://guest:guest@127.0.0.1:{balancer.port}"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_home_of_a_session_is_lost(
    tmp_path: Path, cluster: RabbitCluster, balancers: tuple[HaProxy, HaProxy], unique: str
) -> None:
    subscriber, publisher = balancers
    there = [Site("dc1", url(subscriber), backoff_max=1.0)]
    producer = Producer(
        "station", [Site("dc1", url(publisher), backoff_max=1.0)], outbox=tmp_path / "outbox.db",
        groups={unique: [unique]}, release="consumed", journal=tmp_path / "journals",
    )  # fmt: skip

    def arrive() -> Consumer:
        return Consumer(
            unique, there, topics=[unique], inbox=tmp_path / "inbox.db", journal=tmp_path / "journals"
        )

    with producer:
        with arrive() as consumer:
            wait_until_reading(consumer)
            producer.publish(unique, b"A").wait(timeout=120)
            assert take(consumer, 1) == [b"A"]
        for body in (b"B", b"C"):
            producer.publish(unique, body).wait(timeout=120)
        cluster.node(HOME).kill()
        subscriber.wait_down(f"node{HOME}")
        with arrive() as consumer:
            for body in (b"D", b"E"):
                producer.publish(unique, body).wait(timeout=120)
            assert take(consumer, 4) == [b"B", b"C", b"D", b"E"], "while the session's home is away"
            cluster.start(HOME)
            cluster.wait_whole()
            subscriber.wait_up(f"node{HOME}")
            producer.publish(unique, b"F").wait(timeout=120)
            assert take(consumer, 1) == [b"F"], "what the session still held is a duplicate"
            wait_for(lambda: not producer.pending(), 60, "all is consumed")
        with arrive() as consumer:
            wait_until_reading(consumer)
            producer.publish(unique, b"G").wait(timeout=120)
            assert take(consumer, 1) == [b"G"]
    assert_complete(check_directory(tmp_path, Expect(drained=True)))
    keep(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_plain_subscriber_loses_messages(
    cluster: RabbitCluster, balancers: tuple[HaProxy, HaProxy], unique: str
) -> None:
    """The control: a persistent session at QoS 1, which subscribes on every connect, and the messages that it
    misses."""
    subscriber, publisher = balancers
    plain = PahoFixture(unique, url(subscriber), url(publisher))
    plain.visit("A")
    plain.publish("B", "C")
    cluster.node(HOME).kill()
    subscriber.wait_down(f"node{HOME}")
    plain.connect(subscribed=False)
    plain.publish("D", "E")
    before = list(plain.received)
    cluster.start(HOME)
    cluster.wait_whole()
    plain.wait_subscribed()
    bodies = plain.finish()
    print(f"control: {before} while the node was away, in all {bodies}")
    assert bodies != ["A", "B", "C", "D", "E"], "the fault did not matter"
