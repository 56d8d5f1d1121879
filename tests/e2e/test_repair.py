"""A real producer and a real consumer: messages that brokers lose after confirming them are repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.testing import MemoryNetwork
from tests.badinput.tools import site
from tests.e2e.tools import World, numbers, published, take
from tests.patience import STALL_S, wait_for


@pytest.fixture(params=["amqp", "mqtt"])
def network(request: pytest.FixtureRequest) -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", protocol=request.param) as network:
        yield network


@pytest.fixture
def world(tmp_path: Path, network: MemoryNetwork) -> Iterator[World]:
    world = World(tmp_path, "orders", network.sites)
    yield world
    world.close()


def dealt_with(world: World, group: str = "billing") -> None:
    """The producer knows that the group has acknowledged everything."""
    producer = world.open[0]
    wait_for(
        lambda: all(found.behind == 0 for found in producer.status().groups if found.group == group),  # type: ignore[union-attr]
        "the producer knows how far the group is",
        30,
    )


def test_a_lost_tail_arrives_although_nothing_follows(world: World, network: MemoryNetwork) -> None:
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    published(producer, "orders", 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    network["dc1"].lose(10)
    published(producer, "orders", 21, 30)
    assert network["dc1"].lost
    assert numbers(take(consumer, 10)) == list(range(21, 31))
    assert consumer.status().repaired == 10
    dealt_with(world)
    report = world.check()
    assert report.verdict == "complete", report.text()


def test_a_stream_that_is_lost_before_anybody_met_it(world: World, network: MemoryNetwork) -> None:
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    network["dc1"].lose(1000)
    published(producer, "orders", 1, 500)
    assert numbers(take(consumer, 500)) == list(range(1, 501))
    report = world.check()
    assert report.verdict == "complete", report.text()


def test_a_late_joiner_begins_where_the_producer_counts_it(world: World, network: MemoryNetwork) -> None:
    """Its queue, or session, does not exist yet when the first messages are published: an MQTT site's confirms do not
    count then, and the messages wait for the group."""
    producer = world.producer(
        groups=["billing", "audit"], release="consumed", hello_timeout=0.2, confirm="any"
    )
    consumer = world.consumer()
    world.connected(consumer)
    receipts = [producer.publish("orders", b"%d" % number) for number in range(1, 51)]
    assert numbers(take(consumer, 50)) == list(range(1, 51))
    if network.sites[0].protocol == "mqtt":
        assert not any(receipt.done for receipt in receipts)
        assert receipts[0].sites == {"dc1": "unseen"}
    else:
        receipts[-1].wait(timeout=60)
    network["dc1"].wipe()
    late = world.consumer("audit", group="audit")
    assert numbers(take(late, 50)) == list(range(1, 51))
    dealt_with(world, "audit")
    report = world.check()
    assert report.verdict == "complete", report.text()


@pytest.mark.parametrize("restarted", [False, True])
def test_an_inbox_that_was_lost_is_known_to_its_producer(
    world: World, network: MemoryNetwork, restarted: bool
) -> None:
    """Messages that the group had settled, and that the producer still holds, are redelivered with the flag; new ones
    have none."""
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    published(producer, "orders", 1, 50)
    assert numbers(take(consumer, 50)) == list(range(1, 51))
    dealt_with(world)
    consumer.close()
    world.open.remove(consumer)
    (world.directory / "billing.inbox.db").unlink()
    if restarted:
        producer.close()
        world.open.remove(producer)
        producer = world.producer(release="consumed")
    consumer = world.consumer("again")
    world.connected(consumer)
    again = take(consumer, 50)
    assert numbers(again) == list(range(1, 51))
    assert all(message.redelivered for message in again)
    published(producer, "orders", 51, 60)
    new = take(consumer, 10)
    assert numbers(new) == list(range(51, 61))
    assert not any(message.redelivered for message in new)


def test_a_gap_in_the_middle_is_repaired_within_seconds(world: World, network: MemoryNetwork) -> None:
    producer = world.producer(release="consumed")
    consumer = world.consumer(gap_timeout=60.0)
    world.connected(consumer)
    for first in range(1, 501, 10):
        if first in (101, 301):
            network["dc1"].lose(1)
        published(producer, "orders", first, first + 9)
    began = time.monotonic()
    assert numbers(take(consumer, 500)) == list(range(1, 501))
    assert time.monotonic() - began < 10 + STALL_S
    status = consumer.status()
    assert status.repaired == 20
    assert status.asked >= 20
    assert status.producers["p"].heard_s < 60
    report = world.check()
    assert report.verdict == "complete", report.text()


def test_a_producer_that_was_restarted_and_is_silent_repairs_too(
    world: World, network: MemoryNetwork
) -> None:
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    published(producer, "orders", 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    network["dc1"].lose(10)
    published(producer, "orders", 21, 30)
    world.open.remove(producer)
    producer.close()
    world.open.insert(0, world.producer(release="consumed"))
    world.open.pop()
    assert numbers(take(consumer, 10)) == list(range(21, 31))
    report = world.check()
    assert report.verdict == "complete", report.text()


def lost_tail_at_mosquitto(world: World, broker: Mosquitto) -> Consumer:
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    published(producer, world.topic, 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    return consumer


def test_mosquitto_is_killed_with_confirmed_messages(
    tmp_path: Path, unique: str, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    """The group is down when ten messages are confirmed; the broker loses them, and its session."""
    broker = make_mosquitto()
    world = World(tmp_path, unique, [site("dc1", broker.url)])
    consumer = lost_tail_at_mosquitto(world, broker)
    world.open.remove(consumer)
    consumer.close()
    producer = world.open[0]
    published(producer, unique, 21, 30)  # type: ignore[arg-type]
    broker.kill()
    broker.start()
    again = world.consumer()
    assert numbers(take(again, 10)) == list(range(21, 31))
    assert again.status().repaired == 10
    report = world.check()
    assert report.verdict == "complete", report.text()


def test_a_queue_is_purged_at_rabbitmq(tmp_path: Path, unique: str, rabbit: RabbitNode) -> None:
    rabbit.ctl("add_vhost", unique)
    rabbit.ctl("set_permissions", "-p", unique, "guest", ".*", ".*", ".*")
    world = World(tmp_path, unique, [Site("dc1", rabbit.url.replace("%2F", unique), backoff_min=0.05)])
    producer = world.producer(release="consumed")
    consumer = world.consumer()
    world.connected(consumer)
    published(producer, unique, 1, 20)
    assert numbers(take(consumer, 20)) == list(range(1, 21))
    world.open.remove(consumer)
    consumer.close()
    published(producer, unique, 21, 40)
    rabbit.ctl("purge_queue", "-p", unique, f"reliamsg:{unique}:0:billing")
    again = world.consumer()
    assert numbers(take(again, 20)) == list(range(21, 41))
    assert again.status().repaired == 20
    report = world.check()
    assert report.verdict == "complete", report.text()
