"""Brokers that stop, run out of memory, lose queues, and drop confirmed messages."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from reliamsg import Consumer, Producer, Receipt, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.errors import GapError
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos.traffic import message_count
from reliamsg.store.journal import JournalRow
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from reliamsg.wire.address import EXCHANGE, group_queue
from tests.options import Size
from tests.runs.harness import assert_complete, run_in, wait_for, wait_until_reading
from tests.runs.paths import IMPATIENT, Paths, Traffic, paths_to, traffic


@pytest.mark.full  # at small size: test_all_packets_dropped
def test_brokers_stopped(
    tmp_path: Path,
    make_rabbit: Callable[..., RabbitNode],
    make_mosquitto: Callable[..., Mosquitto],
    unique: str,
    size: Size,
) -> None:
    """SIGSTOP of both brokers (at full size of either, too) longer than confirm_timeout and heartbeat; then SIGCONT."""
    rabbit, mosquitto = make_rabbit(name="dc1"), make_mosquitto(name="dc2")
    with paths_to(rabbit, mosquitto) as paths, run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, size(6_000, 60_000))
        rounds: list[list[RabbitNode | Mosquitto]] = [[rabbit], [mosquitto], [rabbit, mosquitto]]
        for stopped in size(rounds[-1:], rounds):
            t.flows(300)
            for broker in stopped:
                broker.pause()
            t.accepts(3_500)  # longer than confirm_timeout and three heartbeats
            for broker in stopped:
                assert t.unconfirmed(broker.name) > 2_000, "the fault did not matter"
                broker.resume()
            for broker in stopped:
                wait_for(lambda s=broker.name: t.unconfirmed(s) < 1_000, 30, f"{broker.name} catches up")
        t.drained()
        for app in (t.producer, t.consumer):
            assert {row.site for row in t.rows(app, "disconnected")} == {"dc1", "dc2"}


@pytest.mark.full  # at small size: test_a_blocked_broker_is_a_state_and_not_a_failure
def test_out_of_memory(
    tmp_path: Path, rabbit: RabbitNode, shared_mosquitto: Mosquitto, paths: Paths, unique: str
) -> None:
    """A memory alarm blocks publishers: status shows it, the other site continues, and everything arrives
    afterwards."""
    # Only a broken connection may look like one here, and no stall.
    specs = paths.sites(paths.producer, heartbeat=60.0)
    sites = [Site(name, url, **options) for name, url, options in specs]
    with run_in(tmp_path / "run") as run:
        consumer = run.consumer(unique, paths.sites(paths.consumer), [unique]).start()
        with Producer("till", sites, outbox=run.directory / "till.outbox.db", groups={unique: [unique]}) as p:
            t = Traffic(run, run.producer("till", [], unique, [], 0), consumer, 0)
            t.reads()
            p.publish(unique, b"before").wait(timeout=120)
            rabbit.ctl("set_vm_memory_high_watermark", "0.0001")
            try:
                # RabbitMQ notifies a connection only when it publishes, and the alarm takes a moment to spread.
                receipts: list[Receipt] = []
                while p.status().sites["dc1"].state != "blocked":
                    receipts.append(p.publish(unique, b"%d" % len(receipts)))
                    assert len(receipts) < 10_000, "dc1 is not blocked"
                    time.sleep(0.01)
                assert "memory" in p.status().sites["dc1"].error
                receipts += [p.publish(unique, b"%d" % (len(receipts) + number)) for number in range(50)]
                wait_for(lambda: t.delivered() > len(receipts), 20, "the other site continues")
                deadline = time.monotonic() + 3 * IMPATIENT["confirm_timeout"]
                while time.monotonic() < deadline:
                    assert p.status().sites["dc1"].state == "blocked", p.status().sites["dc1"]
                    time.sleep(0.1)
                assert not receipts[-1].done
            finally:
                rabbit.ctl("set_vm_memory_high_watermark", "0.4")
            for receipt in receipts:
                receipt.wait(timeout=120)
            assert p.status().sites["dc1"].state == "connected"
            lost = [row for row in t.rows(t.producer, "disconnected") if row.site == "dc1"]
            assert not lost, "a blocked connection is no broken one"
        consumer.stop()
        assert_complete(run.check())


@pytest.mark.integrations
def test_queue_unbound_and_deleted(
    tmp_path: Path, rabbit: RabbitNode, paths: Paths, unique: str, size: Size
) -> None:
    """The group's binding is removed, and later its queue is deleted with messages in it, twice."""
    queue = group_queue(unique, 0, unique)
    with run_in(tmp_path / "run") as run, contextlib.ExitStack() as stack:
        consumer = run.consumer(unique, paths.sites(paths.consumer, prefetch=4), [unique], delay=0.001, batch=20,
                                options={"max_inbox_bytes": 1 << 15})  # fmt: skip
        producer = run.producer(
            "till", paths.sites(paths.producer), unique, [unique], 1_000_000, rate=1_200, chunk=20, size=200
        )  # fmt: skip
        t = Traffic(run, producer, consumer, 0)
        consumer.start()
        t.reads()
        producer.start()
        connection = pika.BlockingConnection(pika.URLParameters(rabbit.url + "?heartbeat=0"))  # mostly idle
        stack.callback(connection.close)
        # First of all: if a queue is deleted, and declared again by several clients at once, RabbitMQ 3.10 may keep a
        # route that can't be removed. And during traffic: otherwise the group checks, and declares missing objects
        # again, possibly before they are missed.
        wait_for(lambda: arrived(t, "dc1") > 100, 20, "the consumer reads dc1")
        returned = len(t.rows(producer, "returned"))
        connection.channel().queue_unbind(queue, EXCHANGE, unique)
        wait_for(lambda: len(t.rows(producer, "returned")) > returned, 20, "batches are returned")
        t.flows(300)
        for _ in range(2):
            t.catches_up("dc1")
            deleted = wait_for(lambda: rabbit.queue_depth(queue), 30, "messages are queued at dc1")
            lost = len(dropped(t))
            connection.channel().queue_delete(queue)
            print(f"{deleted} batches were in the queue")
            wait_for(lambda n=lost: len(dropped(t)) > n, 20, "the consumer notices that its queue is gone")
            t.flows(300)
        producer.stop()
        t.drained()


def dropped(t: Traffic) -> list[JournalRow]:
    """When the consumer lost its connection to dc1."""
    return [row for row in t.rows(t.consumer, "disconnected") if row.site == "dc1"]


def arrived(t: Traffic, site: str) -> int:
    """How many messages a site delivered, first or second copies."""
    return message_count(row for row in t.rows(t.consumer, "received", "duplicate") if row.site == site)


SMALL_BATCHES = {"rate": 2_000, "chunk": 20, "options": {"max_batch_messages": 20}}
"""On a slow machine batches grow, and the broker's limit in batches would cover everything."""
POLICIES = {
    "drop-head": {"max-length": 5, "overflow": "drop-head"},
    "time-to-live": {"message-ttl": 300},
    "reject-publish": {"max-length": 5, "overflow": "reject-publish"},
}


@pytest.mark.integrations
@pytest.mark.parametrize(
    "policy", ["drop-head", pytest.param("time-to-live", marks=pytest.mark.full), "reject-publish"]
)
def test_a_queue_that_drops(
    policy: str, tmp_path: Path, rabbit: RabbitNode, paths: Paths, unique: str, size: Size
) -> None:
    """An operator's policy drops, or refuses, at one site while the consumer is down; the other site has everything."""
    messages, queue = size(4_000, 40_000), group_queue(unique, 0, unique)
    refuses = policy == "reject-publish"  # which takes the broker a moment: publishing continues until then
    # Before there are messages: one without a time to live would stay in front of those that have one.
    rabbit.ctl("set_policy", unique, f"^{queue}$", json.dumps(POLICIES[policy]), "--apply-to", "queues")
    with contextlib.ExitStack() as stack, run_in(tmp_path / "run") as run:
        stack.callback(rabbit.ctl, "clear_policy", unique)
        t = traffic(run, paths, unique, 1_000_000 if refuses else messages, producing=SMALL_BATCHES)
        t.flows(200)
        t.consumer.stop()
        if refuses:
            wait_for(lambda: t.rows(t.producer, "nacked"), 30, "batches are refused")
            t.accepts(500)
            assert t.unconfirmed("dc1") > 200, "nothing was refused"
            t.last = 0
            t.producer.enough()
        else:
            t.producer.wait_ended(120)
            assert t.unconfirmed("dc1") == 0, "it reported that it has everything"
            waiting = messages - t.delivered()
            wait_for(lambda: rabbit.queue_depth(queue) * 20 < waiting / 4, 20, "most of it is dropped at dc1")
        t.consumer.start()
        t.drained()
        from_dc2 = message_count(row for row in t.rows(t.consumer, "received") if row.site == "dc2")
        assert from_dc2 > 500, "the other site was not needed"


def test_a_session_that_drops(
    tmp_path: Path, rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto], unique: str, size: Size
) -> None:
    """Mosquitto acknowledges, and silently drops messages beyond max_queued_messages; then it is the only site that is
    up."""
    missed = size(2_500, 30_000)
    mosquitto = make_mosquitto(name="dc2", max_queued_messages=10)
    with paths_to(rabbit, mosquitto) as paths, run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, 1_000_000, producing={**SMALL_BATCHES, "close": 60.0})
        t.last = 0  # as many as it publishes until it is stopped
        t.flows(200)
        t.consumer.stop()
        t.accepts(missed)
        t.producer.stop()
        assert t.unconfirmed("dc2") == 0, "it reported that it has everything"
        t.consumer.start()
        t.drained()
        assert t.accepted() - arrived(t, "dc2") > missed / 2, "nothing was dropped"


def test_losses_at_both_sites_are_reported(
    tmp_path: Path, rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto], unique: str
) -> None:
    """Both brokers lose confirmed messages, a range in the middle and then a whole epoch: never silently."""
    mosquitto = make_mosquitto(name="dc2")
    sites = [Site("dc1", rabbit.url, **IMPATIENT), Site("dc2", mosquitto.url, **IMPATIENT)]

    def publish(lost: int, kept: int) -> None:
        with Producer("till", sites, outbox=tmp_path / "outbox.db", groups={unique: [unique]}) as producer:
            for count in (lost, kept):
                if count:
                    producer.publish_many(unique, [b"%d" % n for n in range(count)]).wait(timeout=120)
                if lost and count == lost:
                    forget()

    def forget() -> None:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbit.url))) as connection:
            connection.channel().queue_purge(group_queue(unique, 0, unique))
        mosquitto.kill()
        mosquitto.start()
        create_group(sites[1], [Binding(unique, 0, unique)], 60.0)  # otherwise a confirm does not count

    def arrive() -> Consumer:
        return Consumer(
            unique, sites, topics=[unique], inbox=tmp_path / "inbox.db", gap_timeout=0.5, on_gap="raise"
        )

    def take(consumer: Consumer, count: int) -> None:
        for number in range(count):
            message = consumer.get(timeout=120)
            assert message is not None
            assert message.body == b"%d" % number
            message.ack()

    def pass_gap(consumer: Consumer) -> tuple[int, int | None, str]:
        with pytest.raises(GapError) as raised:
            consumer.get(timeout=120)
        gap = raised.value.gap
        assert consumer.accept(gap)
        return gap.first, gap.last, gap.reason

    with arrive() as consumer:
        wait_until_reading(consumer)
        publish(0, 5)
        take(consumer, 5)
    publish(10, 20)
    with arrive() as consumer:
        assert pass_gap(consumer) == (1, 10, "expired")
        take(consumer, 20)
    publish(7, 0)
    publish(0, 3)
    with arrive() as consumer:
        assert pass_gap(consumer)[1:] == (None, "extent unknown")
        take(consumer, 3)
    report = check_directory(tmp_path, Expect(drained=True))
    counts = report.as_dict()["messages"]
    assert (report.verdict, counts["declared_gaps"], counts["lost"]) == ("lost", 17, 0), report.text()


@pytest.mark.full  # at small size: tests/transport/test_amqp_bindings.py
def test_only_the_groups_know_their_queues(
    tmp_path: Path, rabbit: RabbitNode, paths: Paths, unique: str, size: Size
) -> None:
    """The producer names no groups. One queue's binding is removed while the other's stays, then the exchange."""
    messages, groups = size(8_000, 30_000), [f"{unique}-1", f"{unique}-2"]
    with run_in(tmp_path / "run") as run, contextlib.ExitStack() as stack:
        producer = run.producer("till", paths.sites(paths.producer), unique, [], messages, rate=600, chunk=20)
        both = [
            Traffic(run, producer, run.consumer(group, paths.sites(paths.consumer), [unique]), messages)
            for group in groups
        ]
        for t in both:
            t.consumer.start()
            t.reads()
        producer.start()
        for t in both:
            t.flows(200)
        connection = pika.BlockingConnection(pika.URLParameters(rabbit.url + "?heartbeat=0"))  # mostly idle
        stack.callback(connection.close)

        def from_dc1(t: Traffic) -> int:
            rows = t.rows(t.consumer, "received") + t.rows(t.consumer, "duplicate")
            return sum(row.last - row.first + 1 for row in rows if row.site == "dc1")

        def comes_back(what: str) -> None:
            for t in both:
                before = from_dc1(t)
                wait_for(lambda t=t, b=before: from_dc1(t) > b + 100, 10, f"{what}: dc1 delivers again")

        connection.channel().queue_unbind(group_queue(unique, 0, groups[0]), EXCHANGE, unique)
        comes_back("a binding was gone")
        connection.channel().exchange_delete(EXCHANGE)
        wait_for(
            lambda: [row for row in t.rows(producer, "disconnected") if row.site == "dc1"],
            20,
            "it is noticed",
        )
        comes_back("the exchange was gone")
        producer.wait_ended(120)
        for t in both:
            wait_for(lambda t=t: t.delivered() >= messages, 30, "everything drains")
            t.consumer.stop()
        for t in both:
            t.drained()
