"""Runs that combine several faults, and an outbox that is restored from a backup: number 17 of the catalogue."""

from __future__ import annotations

from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.files import copy_database, restore_database
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import UNTIL_TOLD, Load
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.wire.address import group_queue

_GROUPS = ("primary", "secondary")
_ACCOUNTS = ("A", "B")
_RATE = 300
"""Messages per second of each account: three times what the groups handle."""


@register(
    Scenario(
        "two-accounts",
        "Two producers, two slow groups, two RabbitMQ sites that are killed and wiped in turn",
        promises="P3 P4 P5", messages=6_000, needs=frozenset({"rabbitmq"}), own_brokers=True, earlier=True, harm="lost",
    )
)  # fmt: skip
def two_accounts(context: Context) -> None:
    run, topic, hurry = context.run, context.topic, context.directory / "hurry"
    nodes = {name: context.rabbit(name) for name in ("dc1", "dc2")}
    # Small windows keep messages queued at the brokers, where a fault can hit them.
    sites = [(name, node.url, {"backoff_max": 1.0, "prefetch": 4}) for name, node in nodes.items()]
    groups = [f"{topic}-{name}" for name in _GROUPS]
    slow = {"delay": 0.01, "hurry": str(hurry), "batch": 20, "options": {"max_inbox_bytes": 1 << 15}}
    consumers = [run.consumer(group, sites, [topic], **slow).start() for group in groups]
    producers = [
        run.producer(account, sites, topic, groups, UNTIL_TOLD, rate=_RATE, chunk=20) for account in _ACCOUNTS
    ]
    for app in producers:
        context.watch(f"published, {app.config['producer']}", run.accepted(app))
        app.start()
    for app, name in zip(consumers, _GROUPS, strict=True):
        context.watch(f"delivered, {name}", run.delivered(app))
    context.event("producers A and B publish, groups primary and secondary consume slowly")
    plain = PikaPair(nodes["dc1"].url, f"plain-{topic}", rate=400, delay=0.05).start()
    context.stack.callback(plain.end)
    for name, node in nodes.items():
        lose_site(context, name, node, groups, context.messages // 12)
    hurry.touch()
    for app in producers:
        accepted = run.accepted(app)
        wait_for(lambda a=accepted: a() >= context.messages, app.errors, 120)  # type: ignore[misc]
        app.enough()
        app.wait_ended(120)
    published = {app.config["producer"]: run.accepted(app)() for app in producers}
    for app in consumers:
        delivered = run.delivered(app)
        wait_for(lambda d=delivered: d() >= sum(published.values()), app.errors, 120)  # type: ignore[misc]
        wait_for(lambda a=app: all_of(run.outcome(a), published), app.errors, 60)  # type: ignore[misc]
        app.stop(60)
    context.baseline(plain.finish())


def all_of(outcome: dict[str, list[int]], published: dict[str, int]) -> bool:
    """Whether a group has received every number of all accounts, once and in order."""
    return all(outcome[account] == list(range(1, last + 1)) for account, last in published.items())


def lose_site(context: Context, name: str, node: RabbitNode, groups: list[str], least: int) -> None:
    """SIGKILL a site when at least `least` messages are queued there for each group; it restarts without its data."""
    wait_for(
        lambda: min(context.run.queued(name, group) for group in groups) >= least,
        f"{least} messages are queued at {name} for each group", 120, 0.2,
    )  # fmt: skip
    for group in groups:
        queue = group_queue(context.topic, 0, group)
        # The fault is a killed node, not a new queue that RabbitMQ has not recorded yet.
        wait_for(lambda q=queue: node.has_recorded(q), f"{name} has recorded {queue}")  # type: ignore[misc]
        context.stake(context.run.queued(name, group), f"messages confirmed by {name} and queued there")
    node.kill()
    node.wipe()
    context.event(f"SIGKILL to {name}, and its data is deleted")
    node.start()
    context.event(f"{name} is back, empty")


@register(
    Scenario(
        "restored-outbox",
        "An outbox is restored from a copy after more was published, and publishes different messages",
        numbers=(17,), promises="P3 P4 P5", messages=500, earlier=True,
    )
)  # fmt: skip
def restored_outbox(context: Context) -> None:
    sites = [(name, url, {**options, "backoff_max": 1.0}) for name, url, options in context.sites()]
    load = Load(
        producing={"linger": True, "options": {"release": "consumed"}},
        consuming={"options": {"gap_timeout": 5.0}},
    )
    t = context.traffic(sites, load, start=False)
    t.consumer.start()
    t.reads()
    first, second, third = (context.messages * part // 5 for part in (1, 3, 5))
    copy = context.directory / "copy"
    publish(context, t.producer, first)
    wait_for(lambda: t.delivered() >= first, t.consumer.errors, 60)
    copy_database(t.producer.database, copy)
    before = t.delivered()
    context.event("the outbox is copied")
    publish(context, t.producer, second)
    wait_for(lambda: t.delivered() >= second, t.consumer.errors, 60)
    restore_database(copy, t.producer.database)
    context.event("the copy is restored: the outbox lacks the messages published since")
    context.stake(t.delivered() - before, "delivered messages whose numbers must not be reused")
    publish(context, t.producer, third)
    wait_for(lambda: t.delivered() >= third, t.consumer.errors, 90)
    t.consumer.stop()
    if t.delivered_numbers() != list(range(1, third + 1)):
        raise Unmet("not every number was delivered once, in order")
    context.expect("two histories" in t.consumer.errors(), "the fork is reported")
    context.expect(t.rows(t.consumer, "conflict"), "the fork is in the journal")


def publish(context: Context, app: App, last: int) -> None:
    """Have the producer publish up to number `last`, and stop it once everything is consumed."""
    ended = context.directory / f"ended-{app.starts}"
    app.start(last=last, ended=str(ended))
    wait_for(ended.exists, app.errors, 120)
    app.stop(120)
    context.event(f"published up to {last}")
