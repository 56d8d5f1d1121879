"""A RabbitMQ cluster of three nodes with mirrored classic queues that is partitioned, or returns in a bad order.

The cluster is the only site. The producers resend messages that it loses after confirming them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import LabError, RabbitCluster
from reliamsg.wire.address import group_address, group_queue
from tests import patience
from tests.options import Size
from tests.producer.tools import journal
from tests.runs.controls import PikaBaseline, pika_baseline
from tests.runs.harness import App, Run, SiteSpec, assert_complete, run_in, wait_for
from tests.transport.amqp_tools import edge

full = pytest.mark.full
QUICK = ["autoheal", "pause_minority"]
SLOW = ["pause_if_all_down", "ignore"]
MODES = [*QUICK, *SLOW]
OPTIONS: dict[str, Any] = {"queue_type": "classic", "backoff_max": 1.0}
GROUPS = ["billing", "audit"]
GAP_TIMEOUT_S = 900.0
"""Longer than a broken cluster is unreachable for a producer. With the usual 30 s, a group with only this site reports
messages as a gap that the producer would resend once it can connect."""


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RabbitCluster]:
    """A cluster of three in the partition mode of the test."""
    with RabbitCluster(tmp_path_factory.mktemp("cluster"), mode=request.param, mirrored=True) as found:
        yield found


@dataclass
class Sides:
    """A producer and a group on either side of the partition: 1 and 2 against 3."""

    run: Run
    cluster: RabbitCluster
    topic: str
    stop_file: Path
    producers: list[App]
    consumers: list[App]

    def __post_init__(self) -> None:
        self.accepted = [self.run.accepted(app) for app in self.producers]
        self.delivered = [self.run.delivered(app) for app in self.consumers]

    def start(self) -> None:
        """The consumers first; returns when every group's queue has its mirrors and traffic flows."""
        for app in (*self.consumers, *self.producers):
            app.start()
        self.flows(2 * len(self.producers))
        for group in GROUPS:
            queue = group_queue(self.topic, 0, self.topic + group)
            mirrors_of(self.cluster, queue)

    def flows(self, more: int) -> None:
        """Wait until each group has received `more` messages."""
        before = [count() for count in self.delivered]
        wait_for(
            lambda: all(count() >= old + more for count, old in zip(self.delivered, before, strict=True)),
            60,
            "traffic flows",
        )

    def enough(self, least: int) -> None:
        """Stop publishing once each producer has published at least this many new messages."""
        for app, count in zip(self.producers, self.accepted, strict=True):
            wait_for(
                lambda count=count: count() >= least, 60 + least / app.config["rate"], "enough is accepted"
            )
        self.stop_file.touch()

    def judge(self) -> None:
        """The cluster is whole again: everything must arrive, at both groups."""
        for app in self.producers:
            wait_for(Path(app.config["ended"]).exists, 60, "publishing ends")
        published = [count() for count in self.accepted]
        for count in self.delivered:
            wait_for(lambda count=count: count() >= sum(published), 120, "all comes")
        for app in (*self.producers, *self.consumers):
            app.stop(60)
        for app in self.consumers:
            outcome = self.run.outcome(app)
            for producer, last in zip(self.producers, published, strict=True):
                numbers = outcome[producer.config["producer"]]
                assert numbers == list(range(1, last + 1)), (
                    f"{app.config['group']}: lost, duplicated or out of order"
                )
        print(f"ours: {published} to each of {len(self.consumers)} groups; sent again: {self.repaired()}")
        assert_complete(self.run.check())

    def repaired(self) -> dict[str, int]:
        """How many messages each group received on its request."""
        return {
            app.config["group"]: sum(
                row.last - row.first + 1
                for row in self.run.rows(app)
                if row.kind == "received" and row.reason == "repair"
            )
            for app in self.consumers
        }


@contextlib.contextmanager
def both_sides(
    directory: Path, cluster: RabbitCluster, topic: str, rate: int, size: int = 100
) -> Iterator[Sides]:
    orders = {"north": (1, 2, 3), "south": (3, 2, 1)}
    sites: dict[str, list[SiteSpec]] = {
        side: [("dc1", cluster.url(*order), OPTIONS)] for side, order in orders.items()
    }
    groups = [topic + group for group in GROUPS]
    enough = directory / "enough"
    with run_in(directory) as run:
        producers = [
            run.producer(
                side, sites[side], topic, groups, 1_000_000_000,
                rate=rate, chunk=max(1, rate // 10), size=size, linger=True, confirm=False, close=60.0,
                enough=str(enough),
                ended=str(directory / f"{side}.ended"),
                options={"release": "consumed"},
            )
            for side in orders
        ]  # fmt: skip
        consumers = [
            run.consumer(group, sites[side], [topic], options={"gap_timeout": GAP_TIMEOUT_S})
            for group, side in zip(groups, orders, strict=True)
        ]
        yield Sides(run, cluster, topic, enough, producers, consumers)


def cut(cluster: RabbitCluster, seconds: float, plain: PikaBaseline | None = None) -> None:
    """Isolate node 3 for `seconds`, in ``autoheal`` at least until `plain` has something to lose; returns when the
    cluster is whole again."""
    since = time.monotonic()
    cluster.isolate(3)
    if cluster.mode.startswith("pause"):
        cluster.wait_paused(3)
    else:
        cluster.wait_partitioned(3)
    print(f"{cluster.mode}: the cut is noticed after {time.monotonic() - since:.1f} s")
    if plain is not None and cluster.mode == "autoheal":
        for number in plain.pairs:
            before = plain.accepted(number)
            wait_for(lambda n=number, b=before: plain.accepted(n) >= b + 50, 60, f"node {number} confirms")
    time.sleep(max(0.0, since + seconds - time.monotonic()))  # this is the fault, not a wait
    cluster.heal()
    if cluster.mode == "ignore":
        cluster.node(3).stop()
        cluster.node(3).start()
    # Autoheal sometimes waits forever, and nodes of a busy machine separate by themselves: an operator would restart
    # the nodes that are unusable. A starting node waits for the others, so they start together.
    for number in (3, 2):
        try:
            cluster.wait_whole(60)
        except LabError as error:
            idle = [node.number for node in cluster.nodes if not node.serving()] or [number]
            print(f"restarted are {idle}: {error}")
            for each in idle:
                cluster.node(each).stop()
            cluster.start(*idle)
        else:
            break
    cluster.wait_whole()
    if restarted := cluster.revive_queues():
        print(f"queues were left without a leader: restarted {restarted}")
    print(f"whole again after {time.monotonic() - since:.1f} s")


def assert_it_mattered(plain: PikaBaseline) -> None:
    plain.finish()
    print(plain.report())
    if plain.cluster.mode == "autoheal":
        assert sum(plain.lost(number) for number in plain.pairs) > 0, "the cluster lost nothing"


@pytest.mark.integrations
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "cluster", [*QUICK, *(pytest.param(mode, marks=full) for mode in SLOW)], indirect=True
)
def test_partitioned(tmp_path: Path, cluster: RabbitCluster, unique: str, size: Size) -> None:
    """Partition 2 | 1 during traffic on both sides, and heal."""
    messages, rate, seconds = size((2_000, 100, 8.0), (60_000, 1_000, 25.0))
    with both_sides(tmp_path / "run", cluster, unique, rate) as sides:
        sides.start()
        with pika_baseline(cluster, unique, 1, 3, rate=size(50, 100)) as plain:
            for queue in plain.queues:
                mirrors_of(cluster, queue)
            sides.flows(size(500, 10_000))
            cut(cluster, seconds, plain)
            sides.flows(1)
            sides.enough(messages)
            assert_it_mattered(plain)
        sides.judge()


@pytest.mark.integrations
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", ["pause_minority"], indirect=True)
def test_repairs_get_past_a_node_that_lost_the_route_to_their_group(
    tmp_path: Path, cluster: RabbitCluster, unique: str
) -> None:
    """The state that a healed partition has left behind: the producer's node, and no other, does not know that the
    group listens for repairs. Messages that the group would skip are lost from its queue."""
    body, published = b"." * 4_000, 45
    sites = {
        order: Site("dc1", cluster.url(*order), queue_type="classic", prefetch=4)
        for order in ((3, 2, 1), (1, 2, 3))
    }
    with (
        Consumer(
            unique, [sites[1, 2, 3]], topics=[unique], inbox=tmp_path / "i.db", begin="earliest",
            max_inbox_bytes=8_192, gap_timeout=30.0, on_gap="skip",
        ) as consumer,
        Producer(
            "p", [sites[3, 2, 1]], outbox=tmp_path / "o.db", groups={unique: [unique]}, release="consumed"
        ) as producer,
    ):  # fmt: skip
        receipts = [producer.publish(unique, b"%d" % n + body) for n in range(published)]
        for receipt in receipts:
            receipt.wait(60)
        forget_locally(cluster, 3, group_address(unique))
        queue = group_queue(unique, 0, unique)
        lost = cluster.node(1).queue_depth(queue)
        cluster.node(1).ctl("purge_queue", queue)
        assert lost >= published // 2, "nothing was at stake"
        for n in range(published):
            message = consumer.get(timeout=120)
            assert message is not None
            assert message.body == b"%d" % n + body
            message.ack()
        wait_for(lambda: producer.status().pending == 0, 60, "the producer learns of it")
        assert producer.status().sites["dc1"].endpoint != f"{cluster.node(3).host}:5672"
    assert {row.kind for row in journal(tmp_path / "i.db")}.isdisjoint({"declared", "gap"})


def forget_locally(cluster: RabbitCluster, number: int, address: str) -> None:
    """What is published at `address` through this node reaches no queue any more; other nodes know the way."""
    found = f"length(ets:lookup(rabbit_topic_trie_edge, {edge(address)}))."
    assert [node.evaluate(found) for node in cluster.nodes] == ["1"] * len(cluster.nodes)
    cluster.node(number).evaluate(f"ets:delete(rabbit_topic_trie_edge, {edge(address)}).")
    assert [node.evaluate(found) for node in cluster.nodes] == [
        "0" if node.number == number else "1" for node in cluster.nodes
    ]


def mirrors_of(cluster: RabbitCluster, queue: str) -> None:
    """Wait until a queue has all its mirrors."""

    def complete() -> bool:
        with contextlib.suppress(LabError):  # it may not exist yet
            return cluster.mirrors(queue) == 2
        return False

    patience.wait_for(complete, f"{queue} has mirrors", 60, poll=1.0)


@full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cluster", MODES, indirect=True)
def test_partitioned_with_large_messages(tmp_path: Path, cluster: RabbitCluster, unique: str) -> None:
    """The same with messages of half a megabyte, ten a second."""
    with both_sides(tmp_path / "run", cluster, unique, 10, size=500_000) as sides:
        sides.start()
        sides.flows(100)
        cut(cluster, 25.0)
        sides.enough(500)
        sides.judge()


@full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cluster", ["pause_minority"], indirect=True)
def test_stale_node_first(tmp_path: Path, cluster: RabbitCluster, unique: str) -> None:
    """Node 3 is isolated, then 1, so that all pause; then they return in the order 3, 2, 1, the stalest first."""
    with both_sides(tmp_path / "run", cluster, unique, 500) as sides:
        sides.start()
        with pika_baseline(cluster, unique, 1, 3, rate=100) as plain:
            sides.flows(3_000)
            cluster.isolate(3)
            cluster.wait_paused(3)
            sides.flows(2_000)
            cluster.isolate(1)
            cluster.isolate(2)
            for number in (1, 2):
                cluster.wait_paused(number)
            for number in (3, 2, 1):
                cluster.heal(number)
                if number == 2:
                    wait_for(
                        lambda: cluster.node(2).serving() and cluster.node(3).serving(), 120, "2 and 3 go on"
                    )
            cluster.wait_whole()
            sides.enough(20_000)
            plain.finish()
            print(plain.report())
        sides.judge()
