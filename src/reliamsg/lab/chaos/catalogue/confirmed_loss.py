"""Earlier runs in which brokers forget what they confirmed, message by message."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from reliamsg.config import Site
from reliamsg.errors import ConfirmTimeout
from reliamsg.lab.brokers.cluster import ClusterNode
from reliamsg.lab.brokers.haproxy import HaProxy
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.fixtures import PlainLetters
from reliamsg.lab.chaos.scenario import Need, scenario
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.receiving.consumer import Consumer
from reliamsg.sending.producer import Producer
from reliamsg.sending.receipt import Receipt
from reliamsg.wire.address import client_id

_HOME = 3
"""The node that keeps the session: the first that the subscriber's balancer offers."""
_BALANCED: tuple[Need, ...] = ("rabbitmq", "network", "haproxy")


def is_confirmed(receipt: Receipt) -> bool:
    """Whether all sites have it."""
    with contextlib.suppress(ConfirmTimeout):
        receipt.wait(timeout=0.1)
        return True
    return False


class Letters:
    """A producer and a group in this process, one message at a time."""

    def __init__(self, context: Context, out: list[Site], into: list[Site] | None = None) -> None:
        self.context = context
        self.out, self.into = out, into or out
        self.topic = context.topic
        self.place = context.run.directory
        self.published = 0

    def producer(self) -> Producer:
        """Open the producer; a message leaves its outbox when the group has it."""
        return Producer(
            "station", self.out, outbox=self.place / "outbox.db", groups={self.topic: [self.topic]},
            release="consumed", journal=self.place / "journals",
        )  # fmt: skip

    @contextlib.contextmanager
    def consumer(self, *, reading: bool = True) -> Iterator[Consumer]:
        """The group's consumer comes; with `reading` it is waited for until it reads all sites."""
        with Consumer(
            self.topic, self.into, topics=[self.topic], inbox=self.place / "inbox.db", nak_delay=0.5,
            journal=self.place / "journals",
        ) as consumer:  # fmt: skip
            if reading:
                wait_for(
                    lambda: all(site.state == "connected" for site in consumer.status().sites.values()),
                    "all sites are read",
                )
            yield consumer

    def publish(self, producer: Producer, bodies: str, *, confirmed: bool = True) -> None:
        """Publish a message for each character, and wait until all sites have it unless told otherwise."""
        for body in bodies:
            receipt = producer.publish(self.topic, body.encode())
            self.published += 1
            if confirmed:
                wait_for(lambda r=receipt: is_confirmed(r), f"{body} is confirmed")  # type: ignore[misc]
        self.context.event(f"published: {' '.join(bodies)}")

    def take(self, consumer: Consumer, bodies: str) -> None:
        """These must be the next messages, once each, in this order."""
        for body in bodies:
            message = wait_for(lambda: consumer.get(timeout=0.1), f"{body} comes")
            if message.body != body.encode():
                raise Unmet(f"{body} should come, and {message.body.decode()} came")
            message.ack(durable=True)
        self.context.event(f"handed out: {' '.join(bodies)}")


def counted(broker: Mosquitto) -> int:
    """How many messages a broker says that it keeps; its figure is up to a second old."""
    return int(wait_for(broker.stored, "the broker counts what it keeps"))


@scenario("resume-test", promises="P3 P4 P5", messages=6, own_brokers=True,
          earlier=True,
          harm="lost",
          title="A; the reader leaves; B C; a broker dies; the reader returns; D E; the broker returns")  # fmt: skip
def resume_test(context: Context) -> None:
    dc1, dc2 = context.mosquitto("dc1"), context.mosquitto("dc2")
    letters = Letters(context, [Site("dc1", dc1.url, backoff_max=0.5), Site("dc2", dc2.url)])
    with letters.producer() as producer:
        with letters.consumer() as consumer:
            letters.publish(producer, "A")
            letters.take(consumer, "A")
        context.event("the reader leaves")
        letters.publish(producer, "BC")
        context.stake(counted(dc1), "messages that dc1 keeps, and forgets")
        dc1.kill()
        context.event("SIGKILL to dc1")
        with letters.consumer(reading=False) as consumer:
            letters.publish(producer, "DE", confirmed=False)
            letters.take(consumer, "BCDE")
            dc1.wipe()
            dc1.start()
            context.event("dc1 is back, empty")
            letters.publish(producer, "F")
            letters.take(consumer, "F")
            consumed(producer)
    plain, broker = PlainLetters(f"p-{context.topic}", dc2.url), dc2
    plain.visit("A")
    plain.publish("B", "C")
    broker.kill()
    broker.start()
    plain.publish("D", "E")
    plain.arrive()
    context.control(plain.control())


def consumed(producer: Producer) -> None:
    """Wait until nothing is left to do for a producer."""
    wait_for(lambda: not producer.pending(), "all is consumed", 30)


@scenario("lost-tail", 41, promises="P5 P6", messages=11, own_brokers=True,
          earlier=True,
          harm="lost",
          title="The last ten messages are confirmed and lost by the only broker; then silence")  # fmt: skip
def lost_tail(context: Context) -> None:
    dc1 = context.mosquitto("dc1", persistence=True)
    letters = Letters(context, [Site("dc1", dc1.url, backoff_max=0.2)])
    with letters.producer() as producer:
        with letters.consumer() as consumer:
            letters.publish(producer, "-")
            letters.take(consumer, "-")
        letters.publish(producer, "0123456789")
        context.stake(counted(dc1), "messages that were confirmed and not saved")
        dc1.kill()
        dc1.start()
        context.event(
            "SIGKILL to dc1 before it saves; it is back without them, and nothing more is published"
        )
        wait_for(lambda: producer.status().sites["dc1"].state == "connected", "the producer is back")
        with letters.consumer() as consumer:
            since = time.monotonic()
            letters.take(consumer, "0123456789")
            context.event(f"the tail came {time.monotonic() - since:.2f} s after the reader could read")
            consumed(producer)
    plain = PlainLetters(f"p-{context.topic}", dc1.url)
    plain.visit("A")
    plain.publish(*"0123456789")
    dc1.kill()
    dc1.start()
    plain.arrive()
    context.control(plain.control())


def kept(node: ClusterNode, group: str) -> int:
    """How many messages a RabbitMQ node keeps for a group that reads over MQTT."""
    return sum(count for name, count in node.queues().items() if client_id(group) in name)


@scenario("node-loss-load-balancer", promises="P3 P4 P5", messages=7, needs=_BALANCED, own_brokers=True,
          earlier=True,
          harm="lost",
          title="MQTT through HAProxy to a RabbitMQ cluster; the node of the reader's session is killed")  # fmt: skip
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
    letters = Letters(
        context, [Site("dc1", urls[1], backoff_max=1.0)], [Site("dc1", urls[0], backoff_max=1.0)]
    )
    plain = PlainLetters(f"p-{context.topic}", *urls)
    plain.visit("A")
    plain.publish("B", "C")
    with letters.producer() as producer:
        with letters.consumer() as consumer:
            letters.publish(producer, "A")
            letters.take(consumer, "A")
        context.event("the reader leaves")
        letters.publish(producer, "BC")
        context.stake(kept(cluster.node(_HOME), letters.topic), "messages that the session keeps at its node")
        cluster.node(_HOME).kill()
        readers.wait_down(f"node{_HOME}")
        context.event(f"SIGKILL to node {_HOME}, where the session is")
        plain.arrive(subscribed=False)
        plain.publish("D", "E")
        with letters.consumer(reading=False) as consumer:
            letters.publish(producer, "DE")
            letters.take(consumer, "BCDE")
            context.event(f"meanwhile plain paho has {' '.join(plain.received)}")
            cluster.start(_HOME)
            cluster.wait_whole()
            readers.wait_up(f"node{_HOME}")
            context.event(f"node {_HOME} is back")
            letters.publish(producer, "F")
            letters.take(consumer, "F")
            consumed(producer)
    plain.subscribed()
    context.control(plain.control())
