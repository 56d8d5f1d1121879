"""A RabbitMQ node: starting, stopping, killing it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from reliamsg.lab import LabError, RabbitNode, wait_until
from reliamsg.lab.brokers.modules import link_modules
from reliamsg.lab.process import program
from tests.lab.clients import client
from tests.lab.test_mosquitto import write_certificates


@contextlib.contextmanager
def channel_to(url: str, tls: ssl.SSLContext | None = None) -> Iterator[BlockingChannel]:
    parameters = pika.URLParameters(url)
    if tls is not None:
        parameters.ssl_options = pika.SSLOptions(tls, "127.0.0.1")
    connection = pika.BlockingConnection(parameters)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        with contextlib.suppress(AMQPError):
            connection.close()


def put(url: str, queue: str, kind: str, count: int) -> None:
    with channel_to(url) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def processes_of(node: RabbitNode) -> list[int]:
    """All processes that were started with the node's directory in their environment or arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if str(node.directory).encode() in text:
                    found.append(int(entry.name))
    return found


def test_a_shared_node_reports_its_queues(rabbit: RabbitNode, unique: str) -> None:
    put(rabbit.url, unique, "quorum", 3)
    wait_until(lambda: rabbit.queue_depth(unique) == 3, 60, "the queue holds three messages")
    wait_until(lambda: rabbit.queues().get(unique) == 3, 60, "rabbitmqctl reports the same", poll=0.5)
    with pytest.raises(LabError, match="no queue"):
        rabbit.queue_depth(unique + "-other")
    with pytest.raises(LabError, match="no_such_command"):
        rabbit.ctl("no_such_command")


def test_a_node_finds_its_modules_at_the_first_attempt(rabbit: RabbitNode) -> None:
    """Except for those that it loads before it has read which plugins there are."""
    links = str(rabbit.directory / "plugins")
    linked = f'is_list(File) andalso lists:prefix("{links}", File)'
    counts = rabbit.evaluate(
        f"{{Linked, Others}} = lists:partition(fun({{_, File}}) -> {linked} end, code:all_loaded()),"
        " {length(Linked), length(Others)}."
    )
    found, others = (int(number) for number in re.findall(r"\d+", counts))
    assert found > 3 * others


def test_a_plugin_that_is_not_installed_is_left_to_the_node(tmp_path: Path) -> None:
    places = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin")
    server, erl = program("rabbitmq-server", "rabbitmq-server", *places), program("erl", "erlang-base")
    assert link_modules(server, erl, ["rabbitmq_mqtt"], tmp_path / "mqtt")
    assert (tmp_path / "mqtt" / "zz_modules-1" / "ebin" / "rabbit_mqtt.beam").is_file()
    assert link_modules(server, erl, ["no_such_plugin"], tmp_path / "none") == {}
    assert link_modules(str(tmp_path / "elsewhere" / "rabbitmq-server"), erl, [], tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()


@pytest.mark.integrations
def test_sigkill_keeps_durable_messages_and_leaves_no_process(make_rabbit: Callable[..., RabbitNode]) -> None:
    node = make_rabbit()
    for kind in ("quorum", "classic"):
        put(node.url, kind, kind, 10)
    wait_until(lambda: node.has_recorded("quorum"), 60, "the quorum queue is on disk")
    assert not node.has_recorded("no such queue")
    assert processes_of(node)
    node.kill()
    assert not node.alive
    wait_until(lambda: not processes_of(node), 60, "the node's helpers are gone")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", node.port))

    node.start()
    for kind in ("quorum", "classic"):
        wait_until(lambda kind=kind: node.queue_depth(kind) == 10, 60, f"the {kind} queue is back")  # type: ignore[misc]

    for on in (True, False):
        node.memory_alarm(on)
        assert ("memory" in node.evaluate("rabbit_alarm:get_alarms().")) == on
    with pytest.raises(LabError, match="failed"):
        node.evaluate("no:such(function).")

    with pytest.raises(LabError, match="before wiping"):
        node.wipe()
    node.stop()
    wait_until(lambda: not processes_of(node), 60, "the node's helpers are gone")
    node.wipe()
    node.start()
    assert node.queues() == {}


@pytest.mark.integrations
def test_mqtt_plugin_tls_and_pause(make_rabbit: Callable[..., RabbitNode], tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    node = make_rabbit(plugins=["rabbitmq_mqtt", "rabbitmq_stream"], tls=files, config=["heartbeat = 7"])
    with socket.create_connection(("127.0.0.1", node.stream_port), timeout=5):
        pass  # it listens for streams too
    with client(node.mqtt_url) as subscriber, client(node.mqtt_url) as publisher:
        subscriber.subscribe("t")
        publisher.publish("t", [b"over MQTT"])
        assert subscriber.receive(1) == [b"over MQTT"]
        node.pause()
        info = publisher.paho.publish("t", b"later", 1)
        with socket.create_connection(("127.0.0.1", node.port), timeout=0.5) as silent:
            silent.sendall(b"AMQP\x00\x00\x09\x01")
            with pytest.raises(TimeoutError):
                silent.recv(1)
        assert info.mid not in publisher.puback
        node.resume()
        assert subscriber.receive(2)[1] == b"later"
    context = ssl.create_default_context(cafile=str(files.authority))
    with channel_to(node.tls_url, context) as channel:
        assert channel.connection.is_open


@pytest.mark.integrations
def test_two_nodes_with_the_same_name_at_the_same_time(
    make_rabbit: Callable[..., RabbitNode], rabbit: RabbitNode
) -> None:
    other = make_rabbit(name=rabbit.name)
    put(other.url, "only-here", "classic", 1)
    assert "only-here" in other.queues()
    assert "only-here" not in rabbit.queues()
    with pytest.raises(LabError, match="without tls"):
        _ = other.tls_url
    with pytest.raises(LabError, match="rabbitmq_mqtt"):
        _ = other.mqtt_url
    with pytest.raises(LabError, match="rabbitmq_stream"):
        _ = other.stream_port
    # A node listens shortly before it accepts commands. Here that takes as long as the complete start.
    other.ctl("stop_app")
    starting = threading.Thread(target=other.ctl, args=("start_app",))
    starting.start()
    assert "only-here" in other.queues()
    starting.join(60)


def test_quorum_queues_without_a_leader_are_found_in_the_log(tmp_path: Path) -> None:
    node = RabbitNode(tmp_path / "node", "dc1")
    logs = tmp_path / "node" / "log"
    logs.mkdir(parents=True)
    said = "leader call - leader not known. Command will be forwarded once leader is known."
    (logs / "dc1@localhost.log").write_text(
        f"2026-01-02 10:00:00.500000+00:00 [info] <0.455.0> {{'%2F_early',dc1@localhost}}: {said}\n"
        "2026-01-02 10:00:01.000000+00:00 [info] <0.456.0> accepting AMQP connection <0.456.0>\n"
        f"2026-01-02 10:00:02.500000+00:00 [info] <0.455.0> {{'%2F_late:0:spare',dc1@localhost}}: {said}\n"
    )
    assert node.leaderless_queues(datetime(2026, 1, 2, 10, 0, 1, tzinfo=UTC)) == {"%2F_late:0:spare"}
