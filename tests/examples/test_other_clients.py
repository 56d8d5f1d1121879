"""Consumers without reliamsg read the plain format from real brokers: in Node, with `mqtt` and `amqplib`, and
`mosquitto_sub`."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from reliamsg import Producer, Site
from reliamsg.keys import KeyRing
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.process import Child
from reliamsg.message import Prev, Stream
from reliamsg.wire import data
from reliamsg.wire.plain import encode_plain
from tests.children import run_child
from tests.once import made_once
from tests.patience import patient, wait_for

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "examples" / "recipes" / "node"
PAGE = ROOT / "docs" / "how-to" / "other-clients.md"


def documented() -> dict[str, str]:
    """The headers of the page's table, and what it says of each."""
    return dict(re.findall(r"^\| `(rm-[a-z]+)` \| (.*?) \|$", PAGE.read_text(), re.MULTILINE))


def test_the_table_lists_all_headers() -> None:
    """Those of a message that has everything, and which of them others lack."""
    stream = Stream("till", "orders", 3)
    ring = KeyRing({"2026": b"k" * 32}, sign_with="2026")
    everything, little = (
        encode_plain(
            data.open_frame(data.encode(origin, 1, (5, 5), data.make_records([b"body"], [key], [None]))), keys
        )[0]
        for origin, key, keys in (
            (data.Origin(stream, 7, 99, Prev(6, 98, 12), moved=True), "key", ring),
            (data.Origin(stream, 7, 99, None), None, None),
        )
    )
    table = documented()
    assert set(table) == set(everything.headers)
    assert {name for name, text in table.items() if not text.startswith("optional")} == set(little.headers)


@pytest.fixture(scope="session")
def node_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node programs with the packages that they name, from npm."""

    def install(place: Path) -> None:
        assert shutil.which("npm"), "npm is not installed; on Debian: apt-get install nodejs npm"
        for source in NODE.iterdir():
            if source.is_file():
                shutil.copy(source, place)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=patient(120))

    return made_once(tmp_path_factory, "node", install)


class NodeConsumer:
    """A running program; its output is an object for each message."""

    def __init__(self, programs: Path, directory: Path, name: str, *arguments: str) -> None:
        self._output = directory / f"{name}.txt"
        self._child = Child(
            name, ["env", f"--chdir={programs}", "node", name, *arguments], output=self._output
        )
        wait_for(lambda: "ready\n" in self._text(), self._text)

    def _text(self) -> str:
        return self._output.read_text()

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The first `count` messages."""
        wait_for(lambda: len(self._lines()) >= count, self._text)
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        return [
            line
            for line in self._text().splitlines(keepends=True)
            if line.startswith("{") and line.endswith("\n")
        ]

    def stop(self) -> None:
        self._child.terminate(patient(20))
        assert self._child.exit_code == 0, self._text()


def publish(url: str, topic: str, directory: Path, bodies: list[list[str]]) -> None:
    """Each list in an epoch of its own, with plain headers."""
    for epoch in bodies:
        with Producer("till", [Site("dc1", url)], outbox=directory / "outbox.db", wire="plain") as producer:
            for body in epoch:
                headers = {"content-type": "text/plain; charset=utf-8", "account": f"ä {body}"}
                producer.publish(topic, body.encode(), key=f"key {body}", headers=headers)
            producer.flush(patient(30))


def check(messages: list[dict[str, Any]], bodies: list[list[str]], topic: str) -> None:
    """Everything came once, in order, with its headers."""
    assert [message["body"] for message in messages] == [body for epoch in bodies for body in epoch]
    epochs = list(dict.fromkeys(message["headers"]["rm-epoch"] for message in messages))
    numbers = iter(messages)
    for epoch, expected in zip(epochs, bodies, strict=True):
        for seq, body in enumerate(expected, 1):
            message = next(numbers)
            headers = message["headers"]
            assert message["contentType"] == headers["content-type"] == "text/plain; charset=utf-8"
            assert (headers["account"], headers["rm-key"]) == (f"ä {body}", f"key {body}")
            assert (headers["rm-epoch"], headers["rm-seq"]) == (epoch, str(seq))
            assert (headers["rm-v"], headers["rm-producer"], headers["rm-topic"], headers["rm-part"]) == (
                "1", "till", topic, "0"
            )  # fmt: skip


EPOCHS = [[f"order {n}" for n in range(30)], [f"order {n}" for n in range(30, 50)]]


def disorder(items: list[Any]) -> list[Any]:
    """As by several sites, and by brokers that repeat: some out of place, some twice. The first remains the first."""
    chance = random.Random(5)
    tail = [(number + chance.uniform(0, 9), item) for number, item in enumerate(items[1:])]
    again = [(number + chance.uniform(5, 20), item) for number, item in enumerate(items) if number % 3 == 0]
    return items[:1] + [item for _, item in sorted([*tail, *again], key=lambda each: each[0])]


@pytest.mark.integrations
def test_amqplib(node_programs: Path, tmp_path: Path, rabbit: RabbitNode, unique: str) -> None:
    """Messages are first read from another queue, and reach the program out of order and repeatedly."""
    with pika.BlockingConnection(pika.URLParameters(rabbit.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("reliamsg", "topic", durable=True)
        channel.queue_declare(f"{unique}-raw")
        channel.queue_bind(f"{unique}-raw", "reliamsg", unique)
        publish(rabbit.url, unique, tmp_path, EPOCHS)
        raw: list[Any] = []
        while len(raw) < 50:
            method, properties, body = channel.basic_get(f"{unique}-raw", auto_ack=True)
            if method is not None:
                raw.append((properties, body))
        channel.queue_delete(f"{unique}-raw")
        for properties, _ in raw:
            assert properties.message_id == "till/{rm-epoch}/{rm-topic}/{rm-part}/{rm-seq}".format(
                **properties.headers
            )
            assert (properties.app_id, properties.delivery_mode) == ("till", 2)
        consumer = NodeConsumer(
            node_programs, tmp_path, "amqp_consumer.mjs", rabbit.url, unique, f"{unique}-node"
        )
        for properties, body in disorder(raw):
            channel.basic_publish("reliamsg", unique, body, properties)
        check(consumer.messages(50), EPOCHS, unique)

        # Including what is delivered but not acknowledged.
        wait_for(
            lambda: f"{unique}-node\t0" in rabbit.ctl("list_queues", "name", "messages").splitlines(),
            "everything is acknowledged, duplicates too",
        )
        consumer.stop()
        channel.queue_delete(f"{unique}-node")


@pytest.fixture
def listen(mosquitto: Mosquitto) -> Iterator[Callable[[str], list[Any]]]:
    """Subscribes paho to a topic; returns the list of messages that it receives."""
    clients = []

    def start(topic: str) -> list[Any]:
        received: list[Any] = []
        subscribed: list[Any] = []
        client = connected(mosquitto)
        client.on_message = lambda _client, _data, message: received.append(message)
        client.on_subscribe = lambda *_: subscribed.append(True)
        client.subscribe(topic, qos=1)
        clients.append(client)
        wait_for(lambda: subscribed, "paho has subscribed")
        return received

    yield start
    for client in clients:
        client.disconnect()
        client.loop_stop()


def connected(broker: Mosquitto) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    return client


@pytest.mark.integrations
def test_mqtt_js(
    node_programs: Path, tmp_path: Path, mosquitto: Mosquitto, listen: Callable[[str], list[Any]]
) -> None:
    """The same with MQTT."""
    raw = listen("orders")
    publish(mosquitto.url, "orders", tmp_path, EPOCHS)
    wait_for(lambda: len(raw) >= 50, "paho receives everything")
    consumer = NodeConsumer(node_programs, tmp_path, "mqtt_consumer.mjs", mosquitto.url, "copies", "node")
    sender = connected(mosquitto)
    for message in disorder(raw[:50]):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = message.properties.UserProperty
        properties.ContentType = message.properties.ContentType
        sender.publish("copies", message.payload, 1, properties=properties).wait_for_publish(patient(30))
    check(consumer.messages(50), EPOCHS, "orders")
    consumer.stop()
    sender.disconnect()
    sender.loop_stop()


@pytest.mark.integrations
def test_gaps_are_reported(node_programs: Path) -> None:
    """After the time-out, what follows is delivered; what comes later is a duplicate."""
    code = """
        import { Streams } from "./streams.mjs";
        const log = [];
        const streams = new Streams(({ body }) => log.push(body), (gap) => log.push(gap), 20);
        const receive = (epoch, seq, prev) => streams.receive(
            { "rm-producer": "p", "rm-topic": "t", "rm-part": "0", "rm-epoch": epoch, "rm-seq": seq, "rm-prev": prev },
            `${epoch}/${seq}`, undefined, () => {});
        for (const seq of ["1", "2", "4", "5"]) receive("7", seq);
        receive("18446744073709551615", "1", "7:99:6");
        setTimeout(() => { receive("7", "3"); console.log(JSON.stringify(log)); }, 1000);
    """
    done = run_child(
        ["node", "--input-type=module", "--eval", code], cwd=node_programs, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        "7/1", "7/2", "p/t/0: missing between 7/2 and 7/4", "7/4", "7/5",
        "p/t/0: missing between 7/5 and 18446744073709551615/1", "18446744073709551615/1",
    ]  # fmt: skip


@pytest.mark.integrations
def test_mosquitto_sub(tmp_path: Path, mosquitto: Mosquitto) -> None:
    """The command of the page prints headers and bodies."""
    command = next(line[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ mosquitto_sub"))
    words = command.replace("localhost", "127.0.0.1").replace("'", "").split()
    output = tmp_path / "output"
    # Prints nothing when it has subscribed; retained messages arrive after that.
    sender = connected(mosquitto)
    sender.publish("ready", b"ready", 1, retain=True).wait_for_publish(patient(30))
    extra = ["-p", str(mosquitto.port), "-t", "ready"]
    child = Child("mosquitto_sub", [*words, *extra], output=output)
    wait_for(lambda: "ready" in output.read_text(), output.read_text)
    publish(mosquitto.url, "orders", tmp_path, [["one", "two"]])
    wait_for(lambda: "|two" in output.read_text(), output.read_text)
    child.kill()
    sender.disconnect()
    sender.loop_stop()
    first, second = [line for line in output.read_text().splitlines() if "|ready" not in line]
    for line, body, seq in ((first, "one", 1), (second, "two", 2)):
        content_type, properties, found = line.split("|")
        assert (content_type, found) == ("text/plain; charset=utf-8", body)
        assert f"rm-seq:{seq}" in properties
        assert f"account:ä {body}" in properties
