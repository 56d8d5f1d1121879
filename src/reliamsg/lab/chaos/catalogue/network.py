"""Faults of networks: numbers 19 to 26 of the catalogue."""

from __future__ import annotations

from typing import Any

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Need, Scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, Load, message_count
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.faults.proxy import TcpProxy

_BOTH: frozenset[Need] = frozenset({"mosquitto", "rabbitmq"})
_PATIENT: dict[str, Any] = {"heartbeat": 10.0, "connect_timeout": 10.0}


@register(
    Scenario(
        "packets-dropped",
        "No packet passes to or from any site; connections hang; then it is over",
        numbers=(19,), promises="P1 P3 P4 P5", messages=6_000, needs=_BOTH,
    )
)  # fmt: skip
def packets_dropped(context: Context) -> None:
    paths = context.proxied("mixed")
    t = context.traffic(paths)
    plain = [pair.start() for pair in context.paho_beside(paths)]
    t.flows(context.messages // 12)
    for proxy in paths.of():
        proxy.stall()
    context.event("no packet passes")
    t.accepts(context.messages // 3)
    context.stake(t.under_way, "messages accepted and not delivered")
    paths.heal()
    context.event("packets pass again")
    t.finish(context.messages)
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "confirms-lost",
        "Publishes arrive, confirms do not: messages are indeterminate, and sent again",
        numbers=(20,), promises="P2 P3 P4", messages=6_000, needs=_BOTH,
    )
)  # fmt: skip
def confirms_lost(context: Context) -> None:
    paths = context.proxied("mixed")
    t = context.traffic(paths, Load(site_options={"confirm_timeout": 0.5}))
    plain = [pair.start() for pair in context.paho_beside(paths, rate=200)]
    t.flows(context.messages // 12)
    for _ in range(2):
        for proxy in paths.producer.values():
            proxy.drop_from_broker()
        context.event("no confirm arrives")
        t.accepts(context.messages // 5)
        context.stake(min(map(t.unconfirmed, paths.urls)), "messages sent, whose fate is unknown")
        for proxy in paths.producer.values():
            proxy.reset()
            proxy.heal()
        context.event("connections are reset, and confirms arrive")
        for site in paths.urls:
            t.catches_up(site)
    t.finish(context.messages)
    for site in paths.urls:
        again = message_count(row for row in t.rows(t.consumer, "duplicate") if row.site == site)
        context.expect(again > 0, f"messages were sent again to {site}")
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "reset-mid-frame",
        "Connections are reset in the middle of frames, on both paths, in both directions",
        numbers=(21,), promises="P2 P3 P4", messages=4_000, needs=_BOTH,
    )
)  # fmt: skip
def reset_mid_frame(context: Context) -> None:
    paths = context.proxied("mixed")
    t = context.traffic(paths, Load(size=1_000))
    plain = [pair.start() for pair in context.paho_beside(paths)]
    t.flows(context.messages // 20)
    for number in range(16):
        proxy = paths.of()[number % 4]
        to_broker = proxy in paths.producer.values()
        where = context.rng.randrange(1, 20_000 if to_broker else 60_000)
        if context.rng.random() < 0.3:
            to_broker, where = not to_broker, context.rng.randrange(1, 40)  # the acknowledgements
        proxy.reset_mid_frame(where, "to_broker" if to_broker else "from_broker")
        t.flows(context.messages // 60)
    context.event("16 connections were reset in mid-frame")
    paths.heal()
    resets = [row for app in (t.producer, t.consumer) for row in t.rows(app, "disconnected")]
    context.stake(len(resets), "connections reset under traffic")
    t.finish(context.messages)
    for app in (t.producer, t.consumer):
        sites = {row.site for row in t.rows(app, "disconnected")}
        context.expect(sites == set(paths.urls), "each lost its connections to each site")
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "slow-line",
        "8 kbit/s from the producer to every site: confirms take longer than confirm_timeout",
        numbers=(22,), promises="P2 P3 P7", messages=1_500, needs=_BOTH,
    )
)  # fmt: skip
def slow_line(context: Context) -> None:
    paths = context.proxied("mixed")
    load = Load(
        rate=max(50, context.messages // 8), size=60, producing={"chunk": 20},
        site_options={"confirm_timeout": 1.0, **_PATIENT},
    )  # fmt: skip
    t = context.traffic(paths, load)
    t.flows(context.messages // 5)
    for proxy in paths.producer.values():
        proxy.limit(1_000.0)
    context.event("8 kbit/s")
    t.accepts(context.messages * 2 // 5)
    context.stake(t.under_way, "messages waiting for the line")
    t.flows(60, 60)
    context.event("60 more messages arrived; the line is fast again")
    paths.heal()
    t.finish(context.messages)


@register(
    Scenario(
        "packet-loss",
        "1, 5, then 20 % of all packets to the broker are lost, at random",
        numbers=(23,), promises="P3 P4 P5", messages=3_000, needs=frozenset({"rabbitmq", "network"}), own_brokers=True,
    )
)  # fmt: skip
def packet_loss(context: Context) -> None:
    cluster = context.cluster("ignore", nodes=1, plugins=["rabbitmq_mqtt"])
    options = {**IMPATIENT, **_PATIENT, "confirm_timeout": 10.0}
    context.event("a RabbitMQ in a network of its own: dc1 speaks AMQP, dc2 MQTT")
    sites = [
        ("dc1", cluster.url(1), options),
        ("dc2", cluster.mqtt_url(1), {**options, "mqtt_version": "3.1.1"}),
    ]
    t = context.traffic(sites)
    t.flows(context.messages // 20)
    for part in (0.01, 0.05, 0.20):
        cluster.network.heal(1)
        cluster.network.lose(1, part)
        context.event(f"{part:.0%} of the packets are lost")
        before = t.accepted()
        t.flows(context.messages // 5, 60)
        context.stake(t.accepted() - before, "messages published while packets were lost")
    cluster.network.heal(1)
    context.event("no more packets are lost")
    t.finish(context.messages)


@register(
    Scenario(
        "site-isolated",
        "One site is unreachable while the other is up, then vice versa",
        numbers=(24,), promises="P3 P4 P5", messages=6_000, needs=_BOTH,
    )
)  # fmt: skip
def site_isolated(context: Context) -> None:
    paths = context.proxied("mixed")
    t = context.traffic(paths)
    plain = [pair.start() for pair in context.paho_beside(paths)]
    t.flows(context.messages // 12)
    for site in paths.urls:
        for proxy in paths.of(site):
            proxy.stall()
        context.event(f"{site} is isolated")
        t.flows(context.messages // 4)
        context.stake(t.unconfirmed(site), f"messages that {site} lacks while it is away")
        paths.heal(site)
        context.event(f"{site} is back")
        t.catches_up(site)
    t.finish(context.messages)
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "flapping",
        "Sites come and go every two seconds, in turn",
        numbers=(25,), promises="P3 P4 P5", messages=6_000, needs=_BOTH,
    )
)  # fmt: skip
def flapping(context: Context) -> None:
    paths = context.proxied("mixed")
    names = list(paths.urls)
    t = context.traffic(paths)
    plain = [pair.start() for pair in context.paho_beside(paths)]
    t.flows(context.messages // 24)
    for number in range(6):
        down = names[number % len(names)]
        paths.heal()
        for proxy in paths.of(down):
            proxy.cut()
        context.event(f"{down} goes down, the others come up")
        t.accepts(context.messages // 12)
        context.stake(t.unconfirmed(down), "messages that a site lacks while it is away")
    paths.heal()
    context.event("all sites stay up")
    t.finish(context.messages)
    sites = {row.site for row in t.rows(t.producer, "disconnected")}
    context.expect(sites == set(names), "each site was away")
    for pair in plain:
        context.baseline(pair.finish())


@register(
    Scenario(
        "site-delayed",
        "One site's messages arrive later than the gap timeout, the other's at once",
        numbers=(26,), promises="P3 P5", messages=6_000, needs=_BOTH,
    )
)  # fmt: skip
def site_delayed(context: Context) -> None:
    gap_timeout = 1.0
    paths = context.proxied("mixed")
    load = Load(
        consuming={"options": {"gap_timeout": gap_timeout}},
        site_options={"confirm_timeout": 20.0, "heartbeat": 10.0},
    )
    t = context.traffic(paths, load)
    t.flows(context.messages // 20)
    for site in paths.urls:
        late: TcpProxy = paths.consumer[site]
        late.delay(2 * gap_timeout, "from_broker")
        context.event(f"messages from {site} arrive {2 * gap_timeout:g} s late")
        t.flows(context.messages // 4)
        wait_for(lambda s=site: context.run.queued(s, context.group) > 0, f"{site} is late")  # type: ignore[misc]
        context.stake(context.run.queued(site, context.group), f"messages from {site} that are late")
        late.heal()
        context.event(f"{site} is on time again")
    t.finish(context.messages)
    context.expect(not t.rows(t.consumer, "declared"), "no gap was declared")
