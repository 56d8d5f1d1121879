"""A RabbitMQ cluster of three nodes is partitioned, or restarts in a bad order: number 29 of the catalogue.

The cluster is the only site. The producers repair messages that it loses after it has confirmed them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.lab.brokers.cluster import PartitionMode, RabbitCluster
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.processes import App, LineCounter, SiteSpec
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Need, Scenario
from reliamsg.lab.chaos.traffic import UNTIL_TOLD, message_count
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.process import LabError
from reliamsg.wire.address import group_queue

_NEEDS: frozenset[Need] = frozenset({"rabbitmq", "network"})
_OPTIONS: dict[str, Any] = {"queue_type": "classic", "backoff_max": 1.0}
_ORDERS = {"north": (1, 2, 3), "south": (3, 2, 1)}
_RATE = 400
_PARTITION_S = 25.0
_GAP_TIMEOUT_S = 900.0
"""Longer than a broken cluster is unreachable. With the default of 30 s, a group without any other site would declare
messages as lost that the producer repairs once it can connect again."""


@dataclass
class Sides:
    """A producer and a group on either side of a partition of 1 and 2 from 3, and plain pika at nodes 1 and 3."""

    context: Context
    cluster: RabbitCluster
    producers: list[App] = field(default_factory=list)
    consumers: list[App] = field(default_factory=list)
    plain: list[PikaPair] = field(default_factory=list)

    def __post_init__(self) -> None:
        context, run = self.context, self.context.run
        sites: dict[str, list[SiteSpec]] = {
            side: [("dc1", self.cluster.url(*order), _OPTIONS)] for side, order in _ORDERS.items()
        }
        groups = [f"{context.topic}-{side}" for side in _ORDERS]
        self.enough: Path = context.directory / "enough"
        for side, group in zip(_ORDERS, groups, strict=True):
            self.consumers.append(
                run.consumer(group, sites[side], [context.topic], options={"gap_timeout": _GAP_TIMEOUT_S})
            )
            self.producers.append(
                run.producer(
                    side, sites[side], context.topic, groups, UNTIL_TOLD, rate=_RATE, chunk=_RATE // 20,
                    linger=True, confirm=False, close=60.0, enough=str(self.enough),
                    ended=str(context.directory / f"{side}.ended"), options={"release": "consumed"},
                )
            )  # fmt: skip
        self.accepted: list[LineCounter] = [run.accepted(app) for app in self.producers]
        self.delivered: list[LineCounter] = [run.delivered(app) for app in self.consumers]
        for app in self.producers:
            context.watch(f"published, {app.config['producer']}", run.accepted(app))
        for app, side in zip(self.consumers, _ORDERS, strict=True):
            context.watch(f"delivered, {side}", run.delivered(app))

    def start(self) -> None:
        """Start the consumers, then the producers; returns when messages flow and every queue has its mirrors."""
        for app in (*self.consumers, *self.producers):
            app.start()
        self.flows(2 * len(self.producers))
        for node in (1, 3):
            pair = PikaPair(
                self.cluster.url(node),
                f"plain-{self.context.topic}-{node}",
                rate=100,
                reading=self.cluster.url(1),
            )
            self.context.stack.callback(pair.end)
            self.plain.append(pair.start(consume=False))
        queues = [group_queue(self.context.topic, 0, app.config["group"]) for app in self.consumers]
        for queue in (*queues, *(pair.publisher.queue for pair in self.plain)):
            wait_for(lambda queue=queue: self._mirrored(queue), f"{queue} has mirrors", 60)  # type: ignore[misc]
        self.context.event("producers and groups on both sides; all queues are mirrored")

    def _mirrored(self, queue: str) -> bool:
        with contextlib.suppress(LabError):
            return self.cluster.mirrors(queue) == 2
        return False

    def flows(self, more: int) -> None:
        """Wait until each group has received `more` messages."""
        before = [count() for count in self.delivered]

        def flowing() -> bool:
            return all(count() >= old + more for count, old in zip(self.delivered, before, strict=True))

        wait_for(
            flowing, lambda: f"messages flow: {' '.join(app.errors() for app in self.context.run.apps)}", 60
        )

    def publish_on(self, least: int) -> None:
        """Stop publishing once each producer has published at least `least` messages; repairs continue."""
        for app, count in zip(self.producers, self.accepted, strict=True):
            wait_for(_reached(count, least), app.errors, 60 + least / _RATE)
        self.enough.touch()

    def finish(self) -> None:
        """Wait until both groups have received everything, now that the cluster is whole again."""
        for pair in self.plain:
            self.context.baseline(pair.finish())
        for app in self.producers:
            wait_for(Path(app.config["ended"]).exists, lambda a=app: f"publishing ends; {a.errors()}", 60)  # type: ignore[misc]
        published = [count() for count in self.accepted]
        for app, count in zip(self.consumers, self.delivered, strict=True):
            wait_for(_reached(count, sum(published)), app.errors, 120)
        for app in (*self.producers, *self.consumers):
            app.stop(60)
        for app in self.consumers:
            outcome = self.context.run.outcome(app)
            for producer, last in zip(self.producers, published, strict=True):
                if outcome[producer.config["producer"]] != list(range(1, last + 1)):
                    raise Unmet(f"{app.config['group']}: messages lost, duplicated or out of order")
            repaired = message_count(
                row for row in self.context.run.rows(app) if row.kind == "received" and row.reason == "repair"
            )
            self.context.event(f"{repaired} messages reached a group through repairs")


def _reached(count: Callable[[], int], least: int) -> Callable[[], bool]:
    return lambda: count() >= least


def partition(context: Context, mode: PartitionMode) -> None:
    """Partition the cluster 2 | 1 during traffic on both sides, and heal it."""
    cluster = context.cluster(mode, mirrored=True)
    sides = Sides(context, cluster)
    sides.start()
    sides.flows(context.messages // 10)
    since, before = time.monotonic(), [count() for count in sides.accepted]
    cluster.isolate(3)
    context.event("node 3 is isolated from 1 and 2; clients reach all nodes")
    if mode == "pause_minority":
        cluster.wait_paused(3)
    else:
        cluster.wait_partitioned(3)
    context.event("the nodes have detected it")
    time.sleep(max(0.0, since + _PARTITION_S - time.monotonic()))  # the fault itself
    published = sum(count() - old for count, old in zip(sides.accepted, before, strict=True))
    context.stake(published, "messages published during the partition")
    cluster.heal()
    context.event("the partition is healed")
    if mode == "ignore":
        restart(context, cluster, 3)
    try:
        cluster.wait_whole(60)
    except LabError:
        # On a busy machine autoheal can wait forever; an operator would restart the node of the losing side.
        restart(context, cluster, 3)
        cluster.wait_whole()
    revive(context, cluster)
    sides.flows(1)
    sides.publish_on(context.messages)
    sides.finish()


def revive(context: Context, cluster: RabbitCluster) -> None:
    """Make sure that the queues are usable, now that the nodes run together again."""
    if restarted := cluster.revive_queues():
        context.event(f"queues had no leader: restarted nodes {restarted}")
    context.event("the cluster is whole again")


def restart(context: Context, cluster: RabbitCluster, number: int) -> None:
    """Restart a node that does not recover by itself, as an operator would."""
    cluster.node(number).stop()
    cluster.node(number).start()
    context.event(f"node {number} is restarted")


@register(
    Scenario(
        "cluster-autoheal",
        "A mirrored cluster is split 2 | 1 for 25 s; autoheal discards one side's messages",
        numbers=(29,), promises="P5 P6", messages=10_000, needs=_NEEDS, own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def cluster_autoheal(context: Context) -> None:
    partition(context, "autoheal")


@register(
    Scenario(
        "cluster-pause-minority",
        "A mirrored cluster is split 2 | 1 for 25 s; the minority pauses",
        numbers=(29,), promises="P5 P6", messages=10_000, needs=_NEEDS, own_brokers=True, earlier=True,
    )
)  # fmt: skip
def cluster_pause_minority(context: Context) -> None:
    partition(context, "pause_minority")


@register(
    Scenario(
        "cluster-ignore",
        "A mirrored cluster is split 2 | 1 for 25 s; both sides continue; node 3 is restarted",
        numbers=(29,), promises="P5 P6", messages=10_000, needs=_NEEDS, own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def cluster_ignore(context: Context) -> None:
    partition(context, "ignore")


@register(
    Scenario(
        "stale-node-first",
        "Node 3 is isolated, then 1 and 2, so all pause; the stalest node recovers first",
        numbers=(29,), promises="P5 P6", messages=10_000, needs=_NEEDS, own_brokers=True, earlier=True,
    )
)  # fmt: skip
def stale_node_first(context: Context) -> None:
    cluster = context.cluster("pause_minority", mirrored=True)
    sides = Sides(context, cluster)
    sides.start()
    sides.flows(context.messages // 10)
    before = [count() for count in sides.accepted]
    cluster.isolate(3)
    cluster.wait_paused(3)
    context.event("node 3 is isolated, and pauses")
    sides.flows(context.messages // 10)
    cluster.isolate(1)
    cluster.isolate(2)
    for number in (1, 2):
        cluster.wait_paused(number)
    context.event("nodes 1 and 2 are isolated, and pause")
    published = sum(count() - old for count, old in zip(sides.accepted, before, strict=True))
    context.stake(published, "messages that node 3 lacks when it recovers")
    for number in (3, 2, 1):
        cluster.heal(number)
        context.event(f"node {number} is reachable again")
        if number == 2:
            wait_for(
                lambda: cluster.node(2).serving() and cluster.node(3).serving(),
                "nodes 2 and 3 serve clients",
                120,
            )
    cluster.wait_whole()
    revive(context, cluster)
    sides.publish_on(context.messages)
    sides.finish()
