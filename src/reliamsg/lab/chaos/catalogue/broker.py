"""Faults of brokers: numbers 27 to 36 of the catalogue, except 29, which is in :mod:`.cluster`."""

from __future__ import annotations

import json
import time
from typing import Any

from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Need, Scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, Load, Traffic, message_count
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.store.journal import JournalRow
from reliamsg.wire.address import EXCHANGE, group_queue

_BOTH: frozenset[Need] = frozenset({"mosquitto", "rabbitmq"})
_RABBIT: frozenset[Need] = frozenset({"rabbitmq"})
_FASTER = 400
"""Messages per second: twice what a slow consumer handles, so that messages queue up."""
_SMALL_BATCHES: dict[str, Any] = {"chunk": 20, "options": {"max_batch_messages": 20}}
"""Brokers keep a number of batches; on a slow machine large batches would contain everything."""


def queues_up(context: Context, t: Traffic, site: str, least: int) -> None:
    """Wait until a site holds at least `least` messages for the group, and record them as at stake."""
    wait_for(
        lambda: context.run.not_stored(site, context.group) >= least,
        f"{least} messages of {site} are not stored by the group yet",
        60,
        0.2,
    )
    at_stake = context.run.not_stored(site, context.group)
    context.stake(at_stake, f"messages confirmed by {site} and not stored by the group")


@register(
    Scenario(
        "broker-killed",
        "SIGKILL of a Mosquitto with messages queued; it restarts without them",
        numbers=(27,), promises="P4 P5", messages=6_000, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def broker_killed(context: Context) -> None:
    dc1, _ = context.mosquitto("dc1"), context.mosquitto("dc2")
    t = context.traffic(context.sites(prefetch=4), Load(rate=_FASTER, consuming=context.slow()))
    plain = context.paho(dc1.url, rate=300, delay=0.01).start()
    received, confirmed = plain.counter("received"), plain.counter("confirmed")
    queues_up(context, t, "dc1", context.messages // 12)
    wait_for(lambda: confirmed() - received() > 50, "plain paho has messages queued too")
    dc1.kill()
    context.event("SIGKILL to dc1")
    t.accepts(context.messages // 12)
    dc1.start()
    context.event("dc1 is back, empty")
    context.hurry()
    t.finish(context.messages)
    context.baseline(plain.finish())


@register(
    Scenario(
        "broker-stopped",
        "SIGSTOP of both brokers for longer than confirm_timeout, then SIGCONT",
        numbers=(28,), promises="P2 P4", messages=6_000, needs=_BOTH, own_brokers=True,
    )
)  # fmt: skip
def broker_stopped(context: Context) -> None:
    t = context.traffic(context.sites("mixed"))
    t.flows(context.messages // 20)
    for broker in context.brokers.values():
        broker.pause()
    context.event("SIGSTOP to both brokers")
    t.accepts(context.messages // 2)
    for name, broker in context.brokers.items():
        context.stake(t.unconfirmed(name), "messages sent or waiting, whose fate is unknown")
        broker.resume()
    context.event("SIGCONT to both brokers")
    for name in context.brokers:
        t.catches_up(name)
    t.finish(context.messages)
    for app in (t.producer, t.consumer):
        context.expect(t.rows(app, "disconnected"), "confirm timeouts and heartbeats closed connections")


@register(
    Scenario(
        "data-wiped",
        "A RabbitMQ is killed with messages queued, and its data directory is wiped",
        numbers=(30,), promises="P5", messages=6_000, needs=_BOTH, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def data_wiped(context: Context) -> None:
    node = context.rabbit("dc1")
    context.mosquitto("dc2")
    t = context.traffic(context.sites(prefetch=4), Load(rate=_FASTER, consuming=context.slow()))
    plain = context.pika(node.url, rate=300, delay=0.01).start()
    queues_up(context, t, "dc1", context.messages // 12)
    wait_for(
        lambda: len(plain.publisher.accepted) - len(plain.consumer.received) > 50,
        "plain pika has messages queued too",
    )
    node.kill()
    node.wipe()
    context.event("SIGKILL to dc1, and its data is deleted")
    node.start()
    context.event("dc1 is back, empty")
    context.hurry()
    t.finish(context.messages)
    context.baseline(plain.finish())


@register(
    Scenario(
        "queue-deleted",
        "The group's queue is deleted with messages in it, and later its binding",
        numbers=(31,), promises="P5", messages=6_000, needs=_BOTH, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def queue_deleted(context: Context) -> None:
    node, queue = context.rabbit("dc1"), group_queue(context.topic, 0, context.group)
    context.mosquitto("dc2")
    load = Load(rate=_FASTER, producing={"chunk": 20}, consuming=context.slow())
    t = context.traffic(context.sites(prefetch=4), load)
    plain = context.pika(node.url, rate=200, delay=0.02).start()
    queues_up(context, t, "dc1", context.messages // 12)
    with node.channel() as channel:
        before = len(disconnections(t, "dc1"))
        for each in (queue, plain.publisher.queue):
            channel.queue_delete(each)
        context.event("the group's queue at dc1 is deleted")
        wait_for(lambda: len(disconnections(t, "dc1")) > before, "the consumer detects it")
        t.flows(context.messages // 20)
        returned = len(t.rows(t.producer, "returned"))
        context.event("its binding is deleted")

        def returns() -> bool:
            # Repeatedly: a client that connects just then binds it again before anything is returned.
            channel.queue_unbind(queue, EXCHANGE, context.topic)
            return len(t.rows(t.producer, "returned")) > returned

        wait_for(returns, "batches are returned", poll=0.5)
    context.stake(
        message_count(t.rows(t.producer, "returned")),
        "messages that the broker confirmed after returning them",
    )
    t.flows(context.messages // 20)
    context.hurry()
    t.finish(context.messages)
    context.baseline(plain.finish())


def disconnections(t: Traffic, site: str) -> list[JournalRow]:
    """The journal rows about the consumer's lost connections to a site."""
    return [row for row in t.rows(t.consumer, "disconnected") if row.site == site]


@register(
    Scenario(
        "overflow-drops",
        "Both sites drop confirmed messages: max-length with drop-head, and max_queued_messages",
        numbers=(32,), promises="P5", messages=4_000, needs=_BOTH, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def overflow_drops(context: Context) -> None:
    node, queue = context.rabbit("dc1"), group_queue(context.topic, 0, context.group)
    dc2 = context.mosquitto("dc2", max_queued_messages=10)
    policy = {"max-length": 5, "overflow": "drop-head"}
    node.ctl("set_policy", "drops", f"^{queue}$", json.dumps(policy), "--apply-to", "queues")
    # Only the producer has all messages.
    options = {**_SMALL_BATCHES["options"], "release": "consumed"}
    producing = {**_SMALL_BATCHES, "options": options, "linger": True}
    t = context.traffic(context.sites(), Load(last=context.messages, producing=producing))
    plain = context.paho(dc2.url, rate=500).start()
    t.flows(context.messages // 20)
    t.consumer.stop()
    plain.subscriber.stop()
    context.event("the consumers disconnect; both sites keep only a few messages")
    wait_for(lambda: t.accepted() >= context.messages, "everything is published", 60)
    for site in ("dc1", "dc2"):
        wait_for(lambda s=site: t.unconfirmed(s) == 0, f"{site} confirms everything", 60)  # type: ignore[misc]
    context.stake(t.under_way, "messages confirmed by both sites, of which each kept a few")
    t.consumer.start()
    plain.subscriber.start()
    context.event("the consumers are back")
    t.repaired()
    context.baseline(plain.finish())


@register(
    Scenario(
        "memory-alarm",
        "A RabbitMQ runs out of memory and blocks its publishers; the other site continues",
        numbers=(33,), promises="P2 P7", messages=4_000, needs=_BOTH, own_brokers=True,
    )
)  # fmt: skip
def memory_alarm(context: Context) -> None:
    node = context.rabbit("dc1")
    context.mosquitto("dc2")
    t = context.traffic(context.sites(heartbeat=60.0))
    t.flows(context.messages // 20)
    node.memory_alarm(True)
    context.event("a memory alarm at dc1")
    t.flows(context.messages // 4)
    wait_for(lambda: t.unconfirmed("dc1") > context.messages // 10, "dc1 blocks publishers")
    context.stake(t.unconfirmed("dc1"), "messages that dc1 did not accept")
    node.memory_alarm(False)
    context.event("dc1 has memory again")
    t.finish(context.messages)
    lost = [row for row in t.rows(t.producer, "disconnected") if row.site == "dc1" and row.reason != "closed"]
    context.expect(not lost, "a blocked connection is not closed")


@register(
    Scenario(
        "majority-gone",
        "Two of the three nodes of a quorum queue are killed, and restarted",
        numbers=(34,), promises="P2 P5", messages=4_000, needs=_BOTH | {"network"}, own_brokers=True,
    )
)  # fmt: skip
def majority_gone(context: Context) -> None:
    cluster = context.cluster("ignore")
    dc2 = context.mosquitto("dc2")
    options = {**IMPATIENT, "backoff_max": 1.0}
    context.event("dc1 is a cluster of three RabbitMQ nodes, dc2 a Mosquitto")
    t = context.traffic([("dc1", cluster.url(), options), ("dc2", dc2.url, options)])
    t.flows(context.messages // 20)
    cluster.node(2).kill()
    cluster.node(3).kill()
    context.event("SIGKILL to nodes 2 and 3: the queue has no majority")
    t.flows(context.messages // 4, 60)
    context.stake(t.unconfirmed("dc1"), "messages that dc1 can't confirm")
    cluster.start(2, 3)
    context.event("nodes 2 and 3 are back")
    t.catches_up("dc1")
    t.finish(context.messages)


@register(
    Scenario(
        "expired-queue",
        "While the consumer is away, messages expire, then its queue; there is only one site",
        numbers=(35,), promises="P5 P6", messages=2_000, needs=_RABBIT, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def expired_queue(context: Context) -> None:
    node, queue = context.rabbit("dc1"), group_queue(context.topic, 0, context.group)
    options = {**_SMALL_BATCHES["options"], "release": "consumed"}
    producing = {**_SMALL_BATCHES, "options": options, "linger": True}
    t = context.traffic(context.sites(), Load(rate=400, producing=producing), start=False)
    plain = context.pika(node.url, rate=200)
    for policy in ({"message-ttl": 300}, {"expires": 1_000}):
        # Before there are messages: one without a time to live at the head would keep the others.
        pattern = f"^({queue}|plain-.*)$"
        node.ctl("set_policy", "short", pattern, json.dumps(policy), "--apply-to", "queues")
        if not t.producer.starts:
            t.start()
            plain.start(consume=False)
        t.flows(context.messages // 20)
        t.consumer.stop()
        context.event(f"the consumer is away, and dc1 has the policy {policy}")
        before = t.accepted()
        t.accepts(context.messages // 4)
        wait_for(lambda: depth(node, queue) < 5, "dc1 keeps almost nothing", 30, 0.5)
        context.stake(t.accepted() - before, "messages published to a queue that expires")
        node.ctl("clear_policy", "short")
        t.consumer.start()
        context.event("the consumer is back, and the policy is cleared")
    wait_for(lambda: t.accepted() >= context.messages, "enough messages are published", 60)
    t.producer.enough()
    t.repaired()
    context.baseline(plain.finish())


def depth(node: RabbitNode, queue: str) -> int:
    """The number of messages in a queue; 0 if it does not exist."""
    return node.queues().get(queue, 0)


@register(
    Scenario(
        "consumer-timeout",
        "A handler takes longer than RabbitMQ's consumer_timeout",
        numbers=(36,), promises="P4 P7", messages=1_500, needs=_RABBIT, own_brokers=True,
    )
)  # fmt: skip
def consumer_timeout(context: Context) -> None:
    seconds = 5
    node = context.rabbit("dc1")
    for name, value in (("consumer_timeout", seconds * 1000), ("channel_tick_interval", 1000)):
        node.evaluate(f"application:set_env(rabbit, {name}, {value}).")
    t = context.traffic(
        context.sites(), Load(rate=300, consuming={**context.slow(0.4), "batch": 50, "options": {}})
    )
    plain = context.pika(node.url, rate=100, delay=0.1).start()
    t.accepts(context.messages // 2)
    context.event(f"each batch takes 20 s; RabbitMQ's consumer_timeout is {seconds} s")
    time.sleep(3 * seconds)  # the fault itself
    context.stake(t.under_way, "messages waiting behind a slow handler")
    context.hurry()
    t.finish(context.messages)
    broken = [row for row in t.rows(t.consumer, "disconnected") if row.reason != "closed"]
    context.expect(not broken, "RabbitMQ closed no channel")
    context.baseline(plain.finish())
