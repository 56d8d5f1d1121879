"""A queue for which a broker confirms nothing: its topic waits, and blocks no other topic at the site."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import RabbitNode
from reliamsg.wire.address import group_queue
from tests.badinput.tools import bodies, take, wait_connected
from tests.patience import patient, wait_for


@contextmanager
def known_to_a_group(name: str, site: Site, topics: tuple[str, str], place: Path) -> Iterator[Producer]:
    """A producer with a message in the first topic, and a group of the same name, which reads both and is away."""
    with Consumer(name, [site], topics=topics, inbox=place / "inbox.db") as consumer:
        wait_connected(consumer)
    groups = {topic: [name] for topic in topics}
    with Producer(name, [site], outbox=place / "outbox.db", groups=groups) as producer:
        producer.publish_many(topics[0], [b"before"]).wait(timeout=patient(30))
        yield producer


@contextmanager
def stopped(node: RabbitNode, queue: str) -> Iterator[None]:
    """Suspend the process of a quorum queue, as if it had no leader."""
    name = f'{{resource, <<"/">>, queue, <<"{queue}">>}}'
    found = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), {{P, _}} = amqqueue:get_pid(Q)"
    node.evaluate(f"{found}, sys:suspend(P).")
    try:
        yield
    finally:
        node.evaluate(f"{found}, sys:resume(P).")


@pytest.mark.integrations
def test_a_queue_that_answers_nothing_holds_up_no_other_topic(
    rabbit: RabbitNode, unique: str, tmp_path: Path
) -> None:
    dead, fine = f"{unique}-dead", f"{unique}-fine"
    site = Site("dc1", rabbit.url, confirm_timeout=1.0, connect_timeout=4.0, window_bytes=1)
    with known_to_a_group(unique, site, (dead, fine), tmp_path) as producer:
        with stopped(rabbit, group_queue(dead, 0, unique)):
            waiting = [producer.publish(dead, b"%d" % number) for number in range(3)]
            for number in range(10):
                producer.publish(fine, b"%d" % number).wait(timeout=patient(60))
            assert not any(receipt.done for receipt in waiting), "the queue confirmed"
            parked = producer.status().sites["dc1"].parked
            assert [stream.topic for stream in parked] in ([], [dead]), "it is tried again now and then"
            wait_for(lambda: producer.status().sites["dc1"].parked, "the topic is reported as parked")
        for receipt in waiting:
            receipt.wait(timeout=patient(60))
    with Consumer(unique, [site], topics=[dead, fine], inbox=tmp_path / "inbox.db") as consumer:
        got = take(consumer, 14)
    assert bodies([each for each in got if each.topic == dead]) == [b"before", b"0", b"1", b"2"]
    assert bodies([each for each in got if each.topic == fine]) == [b"%d" % number for number in range(10)]


@contextmanager
def leaderless(node: RabbitNode, queue: str) -> Iterator[None]:
    """Replace a quorum queue's only member by one that waits for the vote of another, which does not exist. Afterwards
    the queue is gone."""
    name = f'{{resource, <<"/">>, queue, <<"{queue}">>}}'
    found = (
        f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), {{N, _}} = amqqueue:get_pid(Q), Server = {{N, node()}},"
        " ok = ra:force_delete_server(quorum_queues, Server)"
    )
    machine = f"{{module, rabbit_fifo, #{{name => N, queue_resource => {name}}}}}"
    members = "[Server, {N, nobody@nowhere}]"
    node.evaluate(f"{found}, ok = ra:start_server(quorum_queues, N, Server, {machine}, {members}).")
    try:
        yield
    finally:
        node.evaluate(f'{found}, rabbit_amqqueue:internal_delete({name}, <<"test">>).')


@pytest.mark.integrations
def test_a_queue_without_a_leader_which_blocks_its_channel_costs_other_topics_little(
    rabbit: RabbitNode, unique: str, tmp_path: Path
) -> None:
    """RabbitMQ 3.10 confirms nothing that follows a message for such a queue on the same channel."""
    dead, fine = f"{unique}-dead", f"{unique}-fine"
    site = Site("dc1", rabbit.url, confirm_timeout=0.5, connect_timeout=4.0, window_bytes=1)
    with known_to_a_group(unique, site, (dead, fine), tmp_path) as producer:
        with leaderless(rabbit, group_queue(dead, 0, unique)):
            waiting = [producer.publish(dead, b"%d" % number) for number in range(3)]
            begin = time.monotonic()
            for number in range(100):
                producer.publish(fine, b"%d" % number).wait(timeout=patient(60))
            took = time.monotonic() - begin
            assert not any(receipt.done for receipt in waiting), "the queue confirmed"
            wait_for(lambda: producer.status().sites["dc1"].parked, "the topic is reported as parked")
        first, last = waiting[0].id, waiting[-1].id
        assert first is not None
        producer.remove(first, last)
    assert took < patient(30), "100 messages, at most a few of them after a timeout and a new connection"
