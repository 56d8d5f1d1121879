"""Faults of processes: 1 to 10 of the catalogue."""

from __future__ import annotations

import re
import signal
import time

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.scenario import scenario
from reliamsg.lab.chaos.traffic import sum_of
from reliamsg.lab.chaos.waiting import Unmet, wait_for

_STOPPED_S = 3.5
"""Longer than heartbeats of 1 s are waited for."""
_POISON = 100
"""The handler raises over messages whose number this divides."""


def strike(context: Context, app: App, point: str, nth: int) -> None:
    """Have `app` kill itself when it passes a point for the nth time."""
    mark = context.directory / f"{app.name}.{point}.{nth}"
    app.start(probe=[point, nth, str(mark)])
    wait_for(lambda: not app.running, lambda: f"{point} is passed {nth} times: {app.errors()}", 60)
    if not (app.killed() and mark.exists()):
        raise Unmet(f"{app.name} ended before it was killed: {app.errors()}")
    who = "producer" if "outbox" in app.config else "consumer"
    context.event(f"SIGKILL to the {who} at its point {point!r}, passed {nth} times")


def kill_producer(context: Context, point: str, what: str) -> None:
    """Kill the producer three times at one point of its work, at other instants of its life; then let it finish."""
    t = context.traffic(
        context.sites(), last=context.messages, rate=2_000, producing={"chunk": 20}, start=False
    )
    plain = context.plain_beside(t.consumer.config["sites"], rate=2_000)
    t.consumer.start()
    t.reads()
    for pair in plain:
        pair.start()
    for nth in sorted(context.rng.sample(range(2, 20), 3)):
        strike(context, t.producer, point, nth)
        enqueued = sum_of(t.rows(t.producer, "enqueued"))
        confirmed = t.rows(t.producer, "confirmed")
        sites = [name for name, *_ in t.producer.config["sites"]]
        least = min(sum_of(row for row in confirmed if row.site == site) for site in sites)
        context.stake(enqueued - least, what)
        for pair in plain:
            pair.publisher.kill()
            pair.publisher.start()
    t.producer.start()
    t.drained()
    for pair in plain:
        context.control(pair.finish("handed"))


@scenario("producer-killed-before-send", 1, promises="P1 P3", messages=4_000,
          harm="lost", title="SIGKILL of the producer between the outbox's commit and the send")  # fmt: skip
def producer_killed_before_send(context: Context) -> None:
    kill_producer(context, "committed", "messages committed and not sent when it was killed")


@scenario("producer-killed-before-confirm", 2, promises="P1 P2 P4", messages=4_000,
          title="SIGKILL of the producer between a send and its confirm")  # fmt: skip
def producer_killed_before_confirm(context: Context) -> None:
    kill_producer(context, "sent", "messages sent and not confirmed when it was killed")


@scenario("producer-killed-before-cursor", 3, promises="P1 P4", messages=4_000,
          title="SIGKILL of the producer between a confirm and the commit that notes it")  # fmt: skip
def producer_killed_before_cursor(context: Context) -> None:
    kill_producer(context, "confirmed", "messages whose confirm was not noted when it was killed")


def kill_consumer(context: Context, point: str, what: str, acknowledged: bool) -> None:
    """Kill the consumer three times at one point of its work, while publishing goes on; then let it finish."""
    sites = context.sites()
    t = context.traffic(sites, rate=800, producing={"chunk": 20},
                        consuming={"batch": 20}, start=False)  # fmt: skip
    plain = context.plain_beside(sites, delay=0.002)
    # MQTT sites keep messages for a group that they have seen, and for no other.
    t.consumer.start()
    t.reads()
    t.consumer.stop()
    t.producer.start()
    for pair in plain:
        pair.start()
    for nth in sorted(context.rng.sample(range(2, 12), 3)):
        strike(context, t.consumer, point, nth)
        handed, done = t.delivered(), sum_of(t.rows(t.consumer, "acknowledged"))
        context.stake(done if acknowledged else handed - done, what)
        for pair in plain:
            pair.subscriber.kill()
            pair.subscriber.start()
    t.consumer.start()
    t.finish(context.messages)
    for pair in plain:
        context.control(pair.finish())


@scenario("consumer-killed-before-commit", 4, promises="P4", messages=4_000,
          title="SIGKILL of the consumer after the handler, before its position commits")  # fmt: skip
def consumer_killed_before_commit(context: Context) -> None:
    kill_consumer(context, "handled", "messages handled and not acknowledged when it was killed", False)


@scenario("consumer-killed-before-ack", 5, promises="P4", messages=4_000,
          title="SIGKILL of the consumer after that commit, before the broker's acknowledgement")  # fmt: skip
def consumer_killed_before_ack(context: Context) -> None:
    kill_consumer(context, "position", "messages acknowledged on disk when it was killed", True)


@scenario("processes-stopped", 6, promises="P3 P4 P5", messages=4_000,
          title="SIGSTOP of either process for longer than heartbeats and gap timeout, then SIGCONT")  # fmt: skip
def processes_stopped(context: Context) -> None:
    t = context.traffic(context.sites(), consuming={"options": {"gap_timeout": 2.0}})
    for app in (t.consumer, t.producer):
        t.flows(context.messages // 20)
        app.signal(signal.SIGSTOP)
        context.event(f"SIGSTOP to {'consumer' if app is t.consumer else 'producer'}")
        time.sleep(_STOPPED_S)  # the fault itself
        before, waiting = t.accepted(), t.under_way
        app.signal(signal.SIGCONT)
        context.event("SIGCONT")
        if app is t.consumer:
            context.stake(waiting, "messages waiting for the consumer when it was continued")
        else:
            t.accepts(context.messages // 20)
            context.stake(t.accepted() - before, "messages published by the producer that was continued")
    t.finish(context.messages)
    for app in (t.producer, t.consumer):
        context.expect(t.rows(app, "disconnected"), "each lost its connections")
    context.expect(not t.rows(t.consumer, "declared"), "no gap was declared")


@scenario("two-processes", 7, promises="P3 P4", messages=4_000,
          title="A second process opens the outbox, and another the inbox, while their owners work")  # fmt: skip
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
    context.stake(t.accepted() - before, "messages published after a second process came")


@scenario("fork", 8, promises="P3 P4", messages=600,
          title="fork() of a process with an open producer and consumer; the child uses both")  # fmt: skip
def forked(context: Context) -> None:
    config = {
        "sites": context.sites(), "topic": context.topic, "last": context.messages,
        "outbox": str(context.run.directory / "outbox.db"), "inbox": str(context.run.directory / "inbox.db"),
        "published": str(context.run.directory / "parent.pub.ndjson"),
        "log": str(context.run.directory / "parent.sub.ndjson"), "journal": str(context.run.journals),
    }  # fmt: skip
    app = App("reliamsg.lab.chaos.forking", config)
    context.run.apps.append(app)
    app.start()
    context.event("a process publishes, consumes, forks in the middle, and goes on")
    app.ended(60)
    under_way = re.search(r"forks with (\d+) messages under way", app.errors())
    context.stake(int(under_way[1]) if under_way else 0, "messages under way when it forked")
    context.expect("the child was refused 4 times" in app.errors(), "all that the child tried was refused")


@scenario("poison", 9, promises="P3 P4", messages=2_000, harm="lost",
          title="A handler that raises: over some messages twice, over others always (they are parked)")  # fmt: skip
def poison(context: Context) -> None:
    tries = 3
    t = context.traffic(
        context.sites(), start=False, rate=200,
        consuming={"poison": _POISON, "failures": tries - 1, "batch": 1, "options": {"max_deliveries": tries}},
    )  # fmt: skip
    plain = context.plain_beside(t.consumer.config["sites"], rate=100, poison=_POISON)
    t.begin()
    for pair in plain:
        pair.start()
    t.flows(context.messages // 3)
    t.consumer.stop()
    context.event("from here on the handler never takes every hundredth message")
    raised = [number for number in t.handed_out() if number % _POISON == 0]
    context.stake(len(raised), "messages over which the handler raised, and which it took in the end")
    t.consumer.start(failures=tries)
    t.flows(context.messages // 3)
    t.enough(context.messages)
    wait_for(  # the last message may be poison, too: handed out is not yet parked
        lambda: sum_of(t.rows(t.consumer, "acknowledged", "dead_lettered")) >= t.accepted(),
        "every message is acknowledged or parked", 60, 0.2,
    )  # fmt: skip
    t.drained()
    parked = sum_of(t.rows(t.consumer, "dead_lettered"))
    context.stake(parked, "messages over which the handler always raised")
    context.event(f"{parked} messages are parked in the dead letters, and the others went on")
    for pair in plain:
        context.control(pair.finish())


@scenario("memory-limit", 10, promises="P7", messages=2_000,
          title="Both processes may use 64 MB more than at their start, and several times that is waiting")  # fmt: skip
def memory_limit(context: Context) -> None:
    size, headroom = 100_000, 64
    paths = context.proxied()
    t = context.traffic(
        paths, size=size, rate=400, producing={"chunk": 5, "headroom_mb": headroom},
        consuming={"headroom_mb": headroom, "batch": 5, "options": {"max_inbox_bytes": 8 << 20}},
        heartbeat=10.0, confirm_timeout=20.0,
    )  # fmt: skip
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
