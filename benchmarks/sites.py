"""Brokers that a benchmark starts and stops: two RabbitMQ nodes, or two Mosquittos, with a queue for each run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.measured import WORK
from reliamsg import Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from reliamsg.wire.address import client_id, group_queue

__all__ = ["GROUP", "mosquittos", "queue", "rabbits", "session", "work_directory"]

GROUP = "bench"


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A new directory, which is removed at the end."""
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as name:
        yield Path(name)


@contextlib.contextmanager
def rabbits(streams: bool = False) -> Iterator[list[RabbitNode]]:
    """Two nodes; with `streams` the first has the plugin for streams."""
    with work_directory() as directory, contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                RabbitNode(directory / name, name, plugins=["rabbitmq_stream"] if first and streams else [])
            )
            for name, first in (("dc1", True), ("dc2", False))
        ]


@contextlib.contextmanager
def mosquittos() -> Iterator[list[Mosquitto]]:
    """Two brokers that allow clients a thousand messages in flight."""
    with work_directory() as directory, contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Mosquitto(directory / name, name, config=["max_inflight_messages 1000"]))
            for name in ("dc1", "dc2")
        ]


@contextlib.contextmanager
def queue(nodes: list[RabbitNode], topic: str) -> Iterator[None]:
    """The group's quorum queue for a topic at each node: the same for ours and peers, so that confirms require the same
    work. Deleted at the end, so that no run finds messages of an earlier one."""
    for node in nodes:
        create_group(Site("bench", node.url), [Binding(topic, 0, GROUP)], timeout=30.0)
    try:
        yield
    finally:
        for node in nodes:
            with node.channel() as channel:
                channel.queue_delete(group_queue(topic, 0, GROUP))


@contextlib.contextmanager
def session(brokers: list[Mosquitto], topic: str) -> Iterator[None]:
    """The group's persistent session at each broker, subscribed with QoS 1 and disconnected; deleted at the end."""
    for broker in brokers:
        create_group(Site("bench", broker.url), [Binding(topic, 0, GROUP)], timeout=30.0)
    try:
        yield
    finally:
        for broker in brokers:
            client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id(GROUP), clean_session=True)
            client.on_connect = lambda client, *_: client.disconnect()
            client.connect("127.0.0.1", broker.port)
            client.loop_forever(retry_first_connection=False)
