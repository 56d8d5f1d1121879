"""The permission sets of docs/how-to/permissions.md, taken from that page: enough for what clients do, and no more."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import paho.mqtt.client as mqtt
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from reliamsg import Consumer, KeyRing, Producer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from tests.docs.permissions import GROUP, PRODUCER, SECTIONS, TOPIC, Declare, recipe
from tests.e2e.tools import numbers, take
from tests.lab.clients import MqttClient

pytestmark = pytest.mark.integrations

BINDING = Binding(TOPIC, 0, GROUP)
KEYS = KeyRing({"k": b"K" * 32}, sign_with="k")
"""With keys a group asks the producer about its new messages: frames must pass in both directions."""


class Vhost:
    """A virtual host with the accounts of one recipe."""

    def __init__(self, node: RabbitNode, name: str, declare: Declare) -> None:
        self.node, self.name, self.declare = node, name, declare
        node.ctl("add_vhost", name)
        node.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        for line in recipe(SECTIONS[declare]).splitlines():
            program, *words = shlex.split(line)
            assert [program, *words[1:3]] == ["rabbitmqctl", "-p", "/"], line
            node.ctl(words[0], "-p", name, *words[3:])

    def site(self, user: str, declare: Declare | None = None) -> Site:
        url = f"amqp://{user}@127.0.0.1:{self.node.port}/{self.name}"
        return Site("dc1", url, declare=declare or self.declare, backoff_max=1.0)

    @contextlib.contextmanager
    def channel(self, user: str) -> Iterator[BlockingChannel]:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            self.node.port,
            self.name,
            pika.PlainCredentials(user, "guest" if user == "guest" else "secret"),
        )
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            yield connection.channel()


@pytest.fixture(scope="module")
def make_vhost(rabbit: RabbitNode) -> Iterator[Callable[[Declare], Vhost]]:
    numbers = itertools.count(1)
    users = (PRODUCER, GROUP)
    for user in users:
        rabbit.ctl("add_user", user, "secret")
    yield lambda declare: Vhost(rabbit, f"permissions-{next(numbers)}", declare)
    for user in users:
        rabbit.ctl("delete_user", user)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test makes the library log a warning."""
    with caplog.at_level(logging.WARNING, logger="reliamsg"):
        yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("reliamsg")] == []


def exchange(place: Path, producers: Site, consumers: Site) -> None:
    """Everything that clients do with each other: before the group's consumer runs, with it, and after a takeover."""
    lost: list[BaseException] = []
    with Producer(
        PRODUCER, [producers], outbox=place / "o.db", groups={TOPIC: [GROUP]}, release="consumed", keys=KEYS
    ) as producer:
        producer.publish(TOPIC, b"1").wait(30)  # nothing is confirmed for a group that is not seen
        with Consumer(
            GROUP,
            [consumers],
            topics=[TOPIC],
            inbox=place / "i.db",
            keys=KEYS,
            on_error=lost.append,
            gap_timeout=60,
        ) as consumer:
            first = take(consumer, 1)
            last = producer.publish(TOPIC, b"2")
            both = [*first, *take(consumer, 1)]
            assert numbers(both) == [1, 2]
            # The producer has told the group that they are new; without its answer both would be flagged.
            assert [message.redelivered for message in both] == [False, False]
            last.wait(30, until="consumed")
            for client in (producer, consumer):
                at = client.status().sites["dc1"]
                assert at.state == "connected"
                assert at.refused_addresses == ()
            assert producer.status().sites["dc1"].unseen == ()
        with Consumer(
            GROUP, [consumers], topics=[TOPIC], inbox=place / "i.db", keys=KEYS, on_error=lost.append
        ) as consumer:
            producer.publish(TOPIC, b"3")
            assert numbers(take(consumer, 1)) == [3]
    assert lost == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("declare", ["create", "passive", "none"])
def test_rabbitmq(declare: Declare, make_vhost: Callable[[Declare], Vhost], tmp_path: Path) -> None:
    vhost = make_vhost(declare)
    if declare != "create":
        create_group(vhost.site("guest:guest", "create"), [BINDING], 30.0, None)
    exchange(tmp_path, vhost.site(f"{PRODUCER}:secret"), vhost.site(f"{GROUP}:secret"))


def _declare(queue: str, exclusive: bool = False) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.queue_declare(queue, durable=not exclusive, exclusive=exclusive)


def _consume(queue: str) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.basic_get(queue)


def _publish(key: str, exchange_name: str = "reliamsg") -> Callable[[BlockingChannel], object]:
    def publish(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        with contextlib.suppress(pika.exceptions.UnroutableError):
            channel.basic_publish(exchange_name, key, b"")

    return publish


def _listen(key: str) -> Callable[[BlockingChannel], object]:
    def listen(channel: BlockingChannel) -> None:
        channel.queue_declare("reliamsg:control:mine", exclusive=True)
        channel.queue_bind("reliamsg:control:mine", "reliamsg", key)

    return listen


COMMON: dict[str, Callable[[BlockingChannel], object]] = {
    "another group's messages": _consume("reliamsg:orders:0:stock"),
    "another group's lock": _declare("reliamsg:lock:orders:0:stock", exclusive=True),
    "another topic's queue": _declare("reliamsg:returns:0:billing"),
    "a queue of one's own": _declare("mine"),
    "deleting another group's queue": lambda channel: channel.queue_delete("reliamsg:orders:0:stock"),
    "deleting the exchange of others": lambda channel: channel.exchange_delete("amq.topic"),
    "publishing to another topic": _publish("returns"),
    "publishing beside the exchange": _publish("reliamsg:orders:0:stock", ""),
    "reading another topic": _listen("returns"),
    "reading everything": _listen("#"),
    "answers to another group": _listen("reliamsg:group:stock"),
}
FORBIDDEN: dict[str, dict[str, Callable[[BlockingChannel], object]]] = {
    PRODUCER: COMMON
    | {
        "a group's messages": _consume("reliamsg:orders:0:billing"),
        "a group's lock": _declare("reliamsg:lock:orders:0:billing", exclusive=True),
        "frames for a group": _listen("reliamsg:group:billing"),
        "another producer's answers": _publish("reliamsg:producer:other"),
    },
    GROUP: COMMON
    | {
        "publishing messages": _publish("orders"),
        "speaking for producers": _publish("reliamsg:status:orders"),
        "speaking for another group": _publish("reliamsg:group:stock"),
        "frames for a producer": _listen("reliamsg:producer:till"),
    },
}
"""By account, with either set."""
OPERATORS: dict[str, Callable[[BlockingChannel], object]] = {
    "reading along": _listen("orders"),
    "deleting the group's queue": lambda channel: channel.queue_delete("reliamsg:orders:0:billing"),
    "deleting the exchange": lambda channel: channel.exchange_delete("reliamsg"),
}
"""With the set for queues that an operator declared only."""


def _refused(attempt: Callable[[BlockingChannel], object], channel: BlockingChannel) -> int | None:
    try:
        attempt(channel)
    except pika.exceptions.ChannelClosedByBroker as error:
        return int(error.reply_code)
    return None


@pytest.mark.parametrize("declare", ["create", "passive"])
def test_rabbitmq_refuses_the_rest(declare: Declare, make_vhost: Callable[[Declare], Vhost]) -> None:
    vhost = make_vhost(declare)
    queues = [BINDING, Binding(TOPIC, 0, "stock")]
    create_group(vhost.site("guest:guest", "create"), queues, 30.0, None)
    for user, attempts in FORBIDDEN.items():
        for name, attempt in (attempts | (OPERATORS if declare == "passive" else {})).items():
            with vhost.channel(user) as channel:
                assert _refused(attempt, channel) == 403, (user, name)
    with vhost.channel("guest") as channel:
        for binding in queues:
            queue = f"reliamsg:{binding.topic}:{binding.partition}:{binding.group}"
            assert channel.queue_declare(queue, passive=True).method.message_count == 0


@pytest.fixture
def mosquitto_with_rules(tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    access = tmp_path / "access"
    # An account of no recipe, for observation.
    access.write_text(recipe("Mosquitto") + "\nuser root\ntopic readwrite #\n")
    access.chmod(0o600)
    users = dict.fromkeys((PRODUCER, GROUP, "root"), "secret")
    return make_mosquitto(users=users, config=[f"acl_file {access}"])


def _mqtt(broker: Mosquitto, user: str, version: Literal["5", "3.1.1"]) -> Site:
    return Site("dc1", f"mqtt://{user}:secret@127.0.0.1:{broker.port}", mqtt_version=version, backoff_max=1.0)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_mosquitto(version: Literal["5", "3.1.1"], mosquitto_with_rules: Mosquitto, tmp_path: Path) -> None:
    producers, consumers = (_mqtt(mosquitto_with_rules, user, version) for user in (PRODUCER, GROUP))
    create_group(consumers, [BINDING], 30.0, KEYS)
    exchange(tmp_path, producers, consumers)


READABLE = {PRODUCER: "reliamsg:call:orders", GROUP: TOPIC}


def test_mosquitto_refuses_the_rest(mosquitto_with_rules: Mosquitto) -> None:
    """A publish that the broker nevertheless confirms, as with MQTT 3.1.1, reaches no client."""
    written = {
        GROUP: [TOPIC, "reliamsg:status:orders", "reliamsg:group:stock", "reliamsg:proof:/orders:stock"],
        PRODUCER: [
            "returns",
            "reliamsg:producer:other",
            "reliamsg:call:orders",
            "reliamsg:created:/orders:billing",
        ],
    }
    with contextlib.ExitStack() as stack:

        def client(user: str, version: int) -> MqttClient:
            url = f"mqtt://{user}:secret@127.0.0.1:{mosquitto_with_rules.port}"
            return stack.enter_context(contextlib.closing(MqttClient(url, version=version)))

        everything = client("root", mqtt.MQTTv5)
        everything.subscribe("#")
        for user, topics in written.items():
            for topic in topics:
                (code,) = client(user, mqtt.MQTTv5).publish(topic, [b"new"])
                assert code.value == 0x87, (user, topic)  # not authorized
                (code,) = client(user, mqtt.MQTTv311).publish(topic, [b"old"])
                assert code.value == 0, (user, topic)
        everything.publish("end", [b"end"])
        assert everything.receive(1) == [b"end"]


@pytest.mark.parametrize("user", [PRODUCER, GROUP])
def test_mosquitto_shows_nothing_else(user: str, mosquitto_with_rules: Mosquitto) -> None:
    hidden = {
        GROUP: ["returns", "reliamsg:producer:till", "reliamsg:group:stock", "reliamsg:call:orders"],
        PRODUCER: [TOPIC, "reliamsg:group:billing", "reliamsg:status:orders", "reliamsg:producer:other"],
    }
    port = mosquitto_with_rules.port
    with (
        contextlib.closing(MqttClient(f"mqtt://{user}:secret@127.0.0.1:{port}")) as reader,
        contextlib.closing(MqttClient(f"mqtt://root:secret@127.0.0.1:{port}")) as writer,
    ):
        reader.subscribe("#")
        for topic in hidden[user]:
            reader.subscribe(topic)
            writer.publish(topic, [b"hidden"])
        writer.publish(READABLE[user], [b"seen"])
        assert reader.receive(1) == [b"seen"]
