"""A queue for which a broker confirms nothing: its topic waits, and blocks no other topic at the site."""

from __future__ import annotations

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
def stopped(node: RabbitNode, queue: str) -> Iterator[None]:
    """Suspend the process of a quorum queue, as if it had no leader."""
    name = f'{{resource, <<"/">>, queue, <<"{queue}">>}}'
    found = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), {{P, _}} = amqqueue:get_pid(Q)"
    node.ctl("eval", f"{found}, sys:suspend(P).")
    try:
        yield
    finally:
        node.ctl("eval", f"{found}, sys:resume(P).")


@pytest.mark.integrations
def test_a_queue_that_answers_nothing_holds_up_no_other_topic(
    rabbit: RabbitNode, unique: str, tmp_path: Path
) -> None:
    dead, fine = f"{unique}-dead", f"{unique}-fine"
    site = Site("dc1", rabbit.url, confirm_timeout=1.0, connect_timeout=4.0, window_bytes=1)
    with Consumer(unique, [site], topics=[dead, fine], inbox=tmp_path / "inbox.db") as consumer:
        wait_connected(consumer)
    with Producer(
        unique, [site], outbox=tmp_path / "outbox.db", groups={dead: [unique], fine: [unique]}
    ) as producer:
        producer.publish_many(dead, [b"before"]).wait(timeout=patient(30))
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
