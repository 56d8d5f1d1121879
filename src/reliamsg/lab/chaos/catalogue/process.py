"""Faults of processes: numbers 1 to 10 of the catalogue."""

from __future__ import annotations

import re
import signal
import time

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import Load, message_count
from reliamsg.lab.chaos.waiting import Unmet, wait_for

_STOPPED_S = 3.5
"""Longer than clients wait for heartbeats of 1 s."""
_POISON = 100
"""The handler raises on messages whose number is a multiple of this."""


def kill_at(context: Context, app: App, point: str, nth: int) -> None:
    """Have `app` kill itself when it passes a point in its code for the nth time."""
    mark = context.directory / f"{app.name}.{point}.{nth}"
    app.start(probe=[point, nth, str(mark)])
    wait_for(lambda: not app.running, lambda: f"{point} is passed {nth} times: {app.errors()}", 60)
    if not (app.killed() and mark.exists()):
        raise Unmet(f"{app.name} exited before it was killed: {app.errors()}")
    who = "producer" if "outbox" in app.config else "consumer"
    context.event(f"SIGKILL to the {who} at point {point!r}, passed {nth} times")


def kill_producer(context: Context, point: str, what: str) -> None:
    """Kill the producer three times at the same point, after different numbers of passes; then let it finish."""
    load = Load(last=context.messages, rate=2_000, producing={"chunk": 20})
    t = context.traffic(context.sites(), load, start=False)
    plain = context.paho_beside(t.consumer.config["sites"], rate=2_000)
    t.consumer.start()
    t.reads()
    for pair in plain:
        pair.start()
    for nth in sorted(context.rng.sample(range(2, 20), 3)):
        kill_at(context, t.producer, point, nth)
        enqueued = message_count(t.rows(t.producer, "enqueued"))
        confirmed = t.rows(t.producer, "confirmed")
        sites = [name for name, *_ in t.producer.config["sites"]]
        least = min(message_count(row for row in confirmed if row.site == site) for site in sites)
        context.stake(enqueued - least, what)
        for pair in plain:
            pair.publisher.kill()
            pair.publisher.start()
    t.producer.start()
    t.drained()
    for pair in plain:
        context.baseline(pair.finish("handed"))


@register(
    Scenario(
        "producer-killed-before-send",
        "SIGKILL of the producer between the outbox's commit and the send",
        numbers=(1,), promises="P1 P3", messages=4_000, harm="lost",
    )
)  # fmt: skip
def producer_killed_before_send(context: Context) -> None:
    kill_producer(context, "committed", "messages committed and not sent when it was killed")


@register(
    Scenario(
        "producer-killed-before-confirm",
        "SIGKILL of the producer between a send and its confirm",
        numbers=(2,), promises="P1 P2 P4", messages=4_000,
    )
)  # fmt: skip
def producer_killed_before_confirm(context: Context) -> None:
    kill_producer(context, "sent", "messages sent and not confirmed when it was killed")


@register(
    Scenario(
        "producer-killed-before-cursor",
        "SIGKILL of the producer between a confirm and the commit that records it",
        numbers=(3,), promises="P1 P4", messages=4_000,
    )
)  # fmt: skip
def producer_killed_before_cursor(context: Context) -> None:
    kill_producer(context, "confirmed", "messages whose confirm was not recorded when it was killed")


def kill_consumer(context: Context, point: str, what: str, acknowledged: bool) -> None:
    """Kill the consumer three times at the same point, while publishing continues; then let it finish."""
    sites = context.sites()
    t = context.traffic(sites, Load(rate=800, producing={"chunk": 20}, consuming={"batch": 20}), start=False)
    plain = context.paho_beside(sites, delay=0.002)
    # MQTT sites keep messages only for a group that they know.
    t.consumer.start()
    t.reads()
    t.consumer.stop()
    t.producer.start()
    for pair in plain:
        pair.start()
    for nth in sorted(context.rng.sample(range(2, 12), 3)):
        kill_at(context, t.consumer, point, nth)
        delivered, acknowledged_count = t.delivered(), message_count(t.rows(t.consumer, "acknowledged"))
        context.stake(acknowledged_count if acknowledged else delivered - acknowledged_count, what)
        for pair in plain:
            pair.subscriber.kill()
            pair.subscriber.start()
    t.consumer.start()
    t.finish(context.messages)
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "consumer-killed-before-commit",
        "SIGKILL of the consumer after the handler, before its position commits",
        numbers=(4,), promises="P4", messages=4_000,
    )
)  # fmt: skip
def consumer_killed_before_commit(context: Context) -> None:
    kill_consumer(context, "handled", "messages handled and not acknowledged when it was killed", False)


@register(
    Scenario(
        "consumer-killed-before-ack",
        "SIGKILL of the consumer after that commit, before the broker's acknowledgement",
        numbers=(5,), promises="P4", messages=4_000,
    )
)  # fmt: skip
def consumer_killed_before_ack(context: Context) -> None:
    kill_consumer(context, "position", "messages acknowledged on disk when it was killed", True)


@register(
    Scenario(
        "processes-stopped",
        "SIGSTOP of each process for longer than heartbeats and gap timeout, then SIGCONT",
        numbers=(6,), promises="P3 P4 P5", messages=4_000,
    )
)  # fmt: skip
def processes_stopped(context: Context) -> None:
    t = context.traffic(context.sites(), Load(consuming={"options": {"gap_timeout": 2.0}}))
    for app in (t.consumer, t.producer):
        t.flows(context.messages // 20)
        app.signal(signal.SIGSTOP)
        context.event(f"SIGSTOP to {'consumer' if app is t.consumer else 'producer'}")
        time.sleep(_STOPPED_S)  # the fault itself
        before, waiting = t.accepted(), t.under_way
        app.signal(signal.SIGCONT)
        context.event("SIGCONT")
        if app is t.consumer:
            context.stake(waiting, "messages waiting for the consumer when it continued")
        else:
            t.accepts(context.messages // 20)
            context.stake(t.accepted() - before, "messages published by the producer after it continued")
    t.finish(context.messages)
    for app in (t.producer, t.consumer):
        context.expect(t.rows(app, "disconnected"), "each lost its connections")
    context.expect(not t.rows(t.consumer, "declared"), "no gap was declared")


@register(
    Scenario(
        "two-processes",
        "A second process opens the outbox, and another the inbox, while their owners work",
        numbers=(7,), promises="P3 P4", messages=4_000,
    )
)  # fmt: skip
def two_processes(context: Context) -> None:
    t = context.traffic(context.sites())
    t.flows(context.messages // 10)
    before = t.accepted()
    place = context.directory / "intruders"
    place.mkdir()
    for app, error in ((t.producer, "OutboxLocked"), (t.consumer, "InboxLocked")):
        intruder = App(app.module, {**app.config, "log": str(place / app.log.name)})
        context.stack.callback(intruder.kill)
        intruder.start()
        context.event(f"a second process opens {app.database.name}")
        wait_for(lambda i=intruder: not i.running, "it is refused")  # type: ignore[misc]
        context.expect(error in intruder.errors(), f"it is refused with {error}")
    t.finish(context.messages)
    context.stake(t.accepted() - before, "messages published after a second process started")


@register(
    Scenario(
        "fork",
        "fork() of a process with an open producer and consumer; the child uses both",
        numbers=(8,), promises="P3 P4", messages=600,
    )
)  # fmt: skip
def forked(context: Context) -> None:
    config = {
        "sites": context.sites(), "topic": context.topic, "last": context.messages,
        "outbox": str(context.run.directory / "outbox.db"), "inbox": str(context.run.directory / "inbox.db"),
        "published": str(context.run.directory / "parent.pub.ndjson"),
        "log": str(context.run.directory / "parent.sub.ndjson"), "journal": str(context.run.journals),
    }  # fmt: skip
    app = context.run.add("reliamsg.lab.chaos.forking", config).start()
    context.event("a process publishes, consumes, forks meanwhile, and continues")
    app.wait_ended(60)
    under_way = re.search(r"forks with (\d+) messages under way", app.errors())
    context.stake(int(under_way[1]) if under_way else 0, "messages under way when it forked")
    context.expect(
        "the child was refused 4 times" in app.errors(), "everything that the child tried was refused"
    )


@register(
    Scenario(
        "poison",
        "A handler raises: on some messages twice, on others always (they become dead letters)",
        numbers=(9,), promises="P3 P4", messages=2_000, harm="lost",
    )
)  # fmt: skip
def poison(context: Context) -> None:
    tries = 3
    poisoned = {"poison": _POISON, "failures": tries - 1, "batch": 1, "options": {"max_deliveries": tries}}
    t = context.traffic(context.sites(), Load(rate=200, consuming=poisoned), start=False)
    plain = context.paho_beside(t.consumer.config["sites"], rate=100, poison=_POISON)
    t.start()
    for pair in plain:
        pair.start()
    t.flows(context.messages // 3)
    t.consumer.stop()
    context.event("from here on, the handler always raises on every hundredth message")
    raised = [number for number in t.delivered_numbers() if number % _POISON == 0]
    context.stake(len(raised), "messages on which the handler raised before it accepted them")
    t.consumer.start(failures=tries)
    t.flows(context.messages // 3)
    t.publish_enough(context.messages)
    wait_for(  # the last message may be poison too: a delivered message is not a dead letter yet
        lambda: message_count(t.rows(t.consumer, "acknowledged", "dead_lettered")) >= t.accepted(),
        "every message is acknowledged or a dead letter", 60, 0.2,
    )  # fmt: skip
    t.drained()
    dead = message_count(t.rows(t.consumer, "dead_lettered"))
    context.stake(dead, "messages on which the handler always raised")
    context.event(f"{dead} messages are dead letters, and the others were handled")
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "memory-limit",
        "Each process is limited to 64 MB more than at its start, and several times as much waits",
        numbers=(10,), promises="P7", messages=2_000,
    )
)  # fmt: skip
def memory_limit(context: Context) -> None:
    size, headroom = 100_000, 64
    paths = context.proxied()
    load = Load(
        rate=400, size=size, producing={"chunk": 5, "headroom_mb": headroom},
        consuming={"headroom_mb": headroom, "batch": 5, "options": {"max_inbox_bytes": 8 << 20}},
        site_options={"heartbeat": 10.0, "confirm_timeout": 20.0},
    )  # fmt: skip
    t = context.traffic(paths, load)
    t.flows(20)
    for proxy in paths.of():
        proxy.cut()
    context.event("no site can be reached")
    waiting = max(2 * headroom * 1_000_000 // size, context.messages // 2)
    wait_for(lambda: t.under_way >= waiting, "the outbox grows", 60)
    context.stake(
        max(0, t.under_way - headroom * 1_000_000 // size), "messages waiting beyond what fits in memory"
    )
    context.event(f"{t.under_way * size // 1_000_000} MB wait; all sites are back")
    paths.heal()
    t.finish(context.messages)
