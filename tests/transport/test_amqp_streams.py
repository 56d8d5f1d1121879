"""A group's queue that an operator declared as a stream: read from its start on each connection, and delivered once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.config import Site
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp import receiver as amqp_receiver
from reliamsg.wire.address import EXCHANGE, group_queue
from tests.e2e.tools import World, numbers, published, take
from tests.patience import wait_for

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with RabbitNode(tmp_path_factory.mktemp("rabbit")) as node:
        yield node


@pytest.mark.parametrize("kind", ["stream", "quorum", "classic"])
@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_what_was_published_before_a_group_came_is_delivered_once(
    node: RabbitNode,
    tmp_path: Path,
    unique: str,
    kind: str,
    begin: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(amqp_receiver, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(amqp_receiver, "CHECK_AGAIN_SECONDS", 0.5)
    queue = group_queue(unique, 0, "billing")
    with node.channel() as channel:
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        channel.queue_bind(queue, EXCHANGE, unique)
    site = Site("dc1", node.url, backoff_min=0.05, backoff_max=0.5, prefetch=8)
    world = World(tmp_path, unique, [site])
    producer = world.producer(retain_seconds=0)
    for first in range(1, 1_001, 20):
        published(producer, unique, first, first + 19)
    producer.close()  # nobody could send anything again
    consumer = world.consumer(begin=begin, gap_timeout=2.0)
    assert numbers(take(consumer, 1_000, seconds=60)) == list(range(1, 1_001))
    consumer.close()
    again = world.consumer(begin=begin, gap_timeout=2.0)
    world.connected(again)
    other = world.producer("q")
    published(other, unique, 1_001, 1_100)
    assert numbers(take(again, 100, seconds=60)) == list(range(1_001, 1_101))
    assert again.get(timeout=2) is None, "what was settled does not come again"
    # What a stream holds is no sign that its broker does not deliver: the connection stays.
    caplog.clear()
    assert again.get(timeout=3) is None
    assert "disconnected" not in caplog.text
    after = again.status().sites["dc1"]
    assert after.state == "connected"
    if kind == "stream":
        assert after.duplicates >= 1_000
        wait_for(lambda: again.status().sites["dc1"].pending == 0, "all of it is acknowledged")
    report = world.check()
    assert report.verdict == "complete", report.text()
