"""Runs of a few messages in which brokers lose messages that they have confirmed."""

from __future__ import annotations

import time

from reliamsg.config import Site
from reliamsg.lab.brokers.cluster import ClusterNode
from reliamsg.lab.brokers.haproxy import HaProxy
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.fixtures import ClientFixture, PahoFixture
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Need, Scenario
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.producer.api import Producer
from reliamsg.wire.address import client_id

_HOME = 3
"""The node that keeps the session: the first choice of the readers' balancer."""
_BALANCED: frozenset[Need] = frozenset({"rabbitmq", "network", "haproxy"})


def client_fixture(
    context: Context, outbound: list[Site], inbound: list[Site] | None = None
) -> ClientFixture:
    """A producer and a group whose events are those of the scenario."""
    return ClientFixture(context.topic, context.run.directory, outbound, inbound, context.event)


def counted(broker: Mosquitto) -> int:
    """The number of messages that a broker keeps; the figure may be a second old."""
    return int(wait_for(broker.stored, "the broker counts its messages"))


@register(
    Scenario(
        "resume-test",
        "A; the reader leaves; B C; a broker is killed; the reader returns; D E; the broker restarts",
        promises="P3 P4 P5", messages=6, own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def resume_test(context: Context) -> None:
    dc1, dc2 = context.mosquitto("dc1"), context.mosquitto("dc2")
    clients = client_fixture(context, [Site("dc1", dc1.url, backoff_max=0.5), Site("dc2", dc2.url)])
    with clients.producer() as producer:
        with clients.consumer() as consumer:
            clients.publish(producer, "A")
            clients.take(consumer, "A")
        context.event("the reader leaves")
        clients.publish(producer, "BC")
        context.stake(counted(dc1), "messages that dc1 keeps, and loses")
        dc1.kill()
        context.event("SIGKILL to dc1")
        with clients.consumer(reading=False) as consumer:
            clients.publish(producer, "DE", confirmed=False)
            clients.take(consumer, "BCDE")
            dc1.wipe()
            dc1.start()
            context.event("dc1 is back, empty")
            clients.publish(producer, "F")
            clients.take(consumer, "F")
            consumed(producer)
    plain, broker = PahoFixture(f"p-{context.topic}", dc2.url), dc2
    plain.visit("A")
    plain.publish("B", "C")
    broker.kill()
    broker.start()
    plain.publish("D", "E")
    plain.connect()
    context.baseline(plain.baseline())


def consumed(producer: Producer) -> None:
    """Wait until the producer's outbox is empty."""
    wait_for(lambda: not producer.pending(), "everything is consumed", 30)


@register(
    Scenario(
        "lost-tail",
        "The last ten messages are confirmed and lost by the only broker; then silence",
        numbers=(41,), promises="P5 P6", messages=11, own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def lost_tail(context: Context) -> None:
    dc1 = context.mosquitto("dc1", persistence=True)
    clients = client_fixture(context, [Site("dc1", dc1.url, backoff_max=0.2)])
    with clients.producer() as producer:
        with clients.consumer() as consumer:
            clients.publish(producer, "-")
            clients.take(consumer, "-")
        clients.publish(producer, "0123456789")
        context.stake(counted(dc1), "messages that were confirmed and not saved")
        dc1.kill()
        dc1.start()
        context.event(
            "SIGKILL to dc1 before it saves; it restarts without them, and nothing more is published"
        )
        wait_for(
            lambda: producer.status().sites["dc1"].state == "connected", "the producer is connected again"
        )
        with clients.consumer() as consumer:
            since = time.monotonic()
            clients.take(consumer, "0123456789")
            context.event(
                f"the tail was delivered {time.monotonic() - since:.2f} s after the reader had connected"
            )
            consumed(producer)
    plain = PahoFixture(f"p-{context.topic}", dc1.url)
    plain.visit("A")
    plain.publish(*"0123456789")
    dc1.kill()
    dc1.start()
    plain.connect()
    context.baseline(plain.baseline())


def kept(node: ClusterNode, group: str) -> int:
    """The number of messages that a RabbitMQ node keeps for a group that reads over MQTT."""
    return sum(count for name, count in node.queues().items() if client_id(group) in name)


@register(
    Scenario(
        "node-loss-load-balancer",
        "MQTT through HAProxy to a RabbitMQ cluster; the node of the reader's session is killed",
        promises="P3 P4 P5", messages=7, needs=_BALANCED, own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def node_loss(context: Context) -> None:
    cluster = context.cluster("pause_minority", plugins=["rabbitmq_mqtt"])

    def balancer(name: str, *order: int) -> HaProxy:
        servers = {f"node{number}": cluster.node(number).mqtt_address for number in order}
        found = context.stack.enter_context(HaProxy(context.directory / name, servers))
        found.wait_up()
        return found

    readers, writers = balancer("readers", _HOME, 1, 2), balancer("writers", 1, 2, _HOME)
    urls = [f"mqtt://guest:guest@127.0.0.1:{found.port}" for found in (readers, writers)]
    context.event("a cluster of three RabbitMQ nodes behind two HAProxies")
    clients = client_fixture(
        context, [Site("dc1", urls[1], backoff_max=1.0)], [Site("dc1", urls[0], backoff_max=1.0)]
    )
    plain = PahoFixture(f"p-{context.topic}", *urls)
    plain.visit("A")
    plain.publish("B", "C")
    with clients.producer() as producer:
        with clients.consumer() as consumer:
            clients.publish(producer, "A")
            clients.take(consumer, "A")
        context.event("the reader leaves")
        clients.publish(producer, "BC")
        context.stake(kept(cluster.node(_HOME), clients.topic), "messages in the session on its node")
        cluster.node(_HOME).kill()
        readers.wait_down(f"node{_HOME}")
        context.event(f"SIGKILL to node {_HOME}, which has the session")
        plain.connect(subscribed=False)
        plain.publish("D", "E")
        with clients.consumer(reading=False) as consumer:
            clients.publish(producer, "DE")
            clients.take(consumer, "BCDE")
            context.event(f"meanwhile plain paho has received {' '.join(plain.received)}")
            cluster.start(_HOME)
            cluster.wait_whole()
            readers.wait_up(f"node{_HOME}")
            context.event(f"node {_HOME} is back")
            clients.publish(producer, "F")
            clients.take(consumer, "F")
            consumed(producer)
    plain.wait_subscribed()
    context.baseline(plain.baseline())
