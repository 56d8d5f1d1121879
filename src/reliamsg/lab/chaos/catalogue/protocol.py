"""Wrong clocks, brokers that violate the protocol, and TLS impostors: numbers 37 to 40 and 50 of the catalogue."""

from __future__ import annotations

import random
from typing import Literal

from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.chaos.bridges import MqttBridge, bridges
from reliamsg.lab.chaos.certificates import Authority
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.false_confirms import FalseConfirm, FalseConfirmBroker
from reliamsg.lab.chaos.paho_baseline import PahoPair
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, Load, Side, message_count
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.lab.faults.proxy import TcpProxy

_DAY_S = 86_400.0


@register(
    Scenario(
        "wrong-clocks",
        "The producer's wall clock is a day off after each start, the consumer's keeps jumping",
        numbers=(37,), promises="P3 P4", messages=4_000,
    )
)  # fmt: skip
def wrong_clocks(context: Context) -> None:
    load = Load(rate=800, producing={"jumps": [0.0, _DAY_S]}, consuming={"jumps": [-_DAY_S, 0.0, _DAY_S]})
    t = context.traffic(context.sites(), load, start=False)
    wrong_clock(t.producer)
    wrong_clock(t.consumer)
    t.start()
    context.event("a producer publishes, a group consumes")
    for shift in (-_DAY_S, _DAY_S, 0.0):
        t.flows(context.messages // 10)
        t.producer.kill()
        before = t.accepted()
        t.producer.start(shift=shift, jumps=[shift])
        context.event(f"the producer is restarted, its clock {shift / _DAY_S:+g} days off")
        t.accepts(context.messages // 10)
        context.stake(t.accepted() - before, "messages published with a wrong clock")
    t.finish(context.messages)
    opened = t.rows(t.producer, "opened")
    epochs = [row.epoch or 0 for row in opened]
    context.expect(epochs == sorted(set(epochs)), "every epoch is above the previous one")
    steps = [row.detail or {} for row in t.rows(t.producer, "clock_step")]
    back_s = max((step["from_us"] - step["to_us"] for step in steps), default=0) / 1e6
    context.expect(back_s > _DAY_S / 2, "the producer's clock was set back")


@register(
    Scenario(
        "duplicated-reordered",
        "Bridges between producer and group shuffle and duplicate everything",
        numbers=(38,), promises="P3 P4 P5", messages=4_000, needs=frozenset({"mosquitto", "rabbitmq"}),
        own_brokers=True, harm="duplicates",
    )
)  # fmt: skip
def duplicated_reordered(context: Context) -> None:
    node = context.rabbit("dc1")
    near, far = context.mosquitto("dc2"), context.mosquitto("dc2-far")
    vhost = "far"
    node.ctl("add_vhost", vhost)
    node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    beyond = node.url.replace("%2F", vhost)
    both = context.stack.enter_context(
        bridges((node.url, beyond), (near.port, far.port), context.topic, context.rng)
    )
    context.event("a bridge at each of two sites")
    third = MqttBridge(near.port, far.port, context.plain_topic, random.Random(context.rng.random()))
    context.stack.callback(third.finish)
    plain = context.paho(near.url, far.url, rate=200).start()
    config = {"rate": 800, "chunk": 20, "options": {"max_batch_messages": 5}}
    t = context.traffic_between(
        Side([("dc1", node.url, IMPATIENT), ("dc2", near.url, IMPATIENT)], config),
        Side([("dc1", beyond, IMPATIENT), ("dc2", far.url, {**IMPATIENT, "mqtt_version": "5"})]),
        context.messages,
    )
    t.producer.configure(groups=None)  # only the bridges read on the near side
    t.start()
    # Either bridge may lag behind, and the consumer, which needs only one of them, may finish long before.
    wait_for(
        lambda: message_count(t.rows(t.consumer, "duplicate")) > context.messages,
        "there are more duplicates than two sites without bridges would deliver", 60, 0.5,
    )  # fmt: skip
    context.stake(message_count(t.rows(t.consumer, "duplicate")), "duplicates")
    context.stake(min(bridge.shuffler.inversions for bridge in both), "inversions by each bridge")
    t.drained()
    context.expect(min(bridge.forwarded for bridge in both) > 0, "each bridge forwarded messages")
    context.baseline(plain.finish())


def false_confirms(context: Context, kind: Literal["mqtt", "amqp"], *modes: FalseConfirm) -> None:
    """The confirms of dc1 are false in one way after the other; those of dc2 are correct."""
    dc1 = context.rabbit("dc1") if kind == "amqp" else context.mosquitto("dc1")
    dc2 = context.mosquitto("dc2")
    rng = random.Random(context.rng.random())
    broker = context.stack.enter_context(FalseConfirmBroker(kind, dc1.port, rng))
    false_url = broker.url(dc1.url)
    config = {"rate": 400, "chunk": 4, "options": {"max_batch_messages": 10}}
    t = context.traffic_between(
        Side([("dc1", false_url, IMPATIENT), ("dc2", dc2.url, IMPATIENT)], config),
        Side([("dc1", dc1.url, IMPATIENT), ("dc2", dc2.url, IMPATIENT)]),
    )
    t.start()
    plain: PikaPair | PahoPair
    if kind == "amqp":
        plain = context.pika(false_url, reading=dc1.url, rate=100)
    else:
        plain = context.paho(false_url, dc1.url, rate=100)
    plain.start()
    for mode in modes:
        before = broker.false_confirms
        broker.falsify(mode)
        context.event(f"false confirms from dc1: {mode}")
        t.flows(context.messages // (2 * len(modes)))
        context.stake(broker.false_confirms - before, f"false confirms: {mode}")
        broker.falsify("")
        broker.reset()
    context.event("the confirms of dc1 are correct")
    t.finish(context.messages)
    context.baseline(plain.finish())


@register(
    Scenario(
        "puback-lies",
        "PUBACKs are sent early (the message may never arrive), twice, for others, or as failures",
        numbers=(39,), promises="P2 P5", messages=4_000, own_brokers=True, harm="lost",
    )
)  # fmt: skip
def puback_lies(context: Context) -> None:
    false_confirms(context, "mqtt", "early", "twice", "other", "failing")


@register(
    Scenario(
        "confirm-lies",
        "Publisher confirms arrive as nacks, one for several, or out of order",
        numbers=(40,), promises="P2 P5", messages=3_000, needs=frozenset({"mosquitto", "rabbitmq"}),
        own_brokers=True, harm="duplicates",
    )
)  # fmt: skip
def confirm_lies(context: Context) -> None:
    false_confirms(context, "amqp", "nack", "multiple", "shuffled")


@register(
    Scenario(
        "tls-impostor",
        "An impostor in the broker's place, then a broker with an expired certificate",
        numbers=(50,), promises="P2 P9", messages=3_000, needs=frozenset({"mosquitto", "openssl"}), own_brokers=True,
    )
)  # fmt: skip
def tls_impostor(context: Context) -> None:
    ours, theirs = (Authority(context.directory, name) for name in ("ours", "theirs"))
    dc1 = context.mosquitto("dc1", tls=ours.issue("dc1"))
    impostors = {
        "an impostor with a certificate of another authority": Mosquitto(
            context.directory / "brokers" / "impostor", tls=theirs.issue("impostor")
        ),
        "a broker with an expired certificate": Mosquitto(
            context.directory / "brokers" / "expired", tls=ours.issue("expired", expired=True)
        ),
    }
    proxy = TcpProxy("127.0.0.1", port_of(dc1))
    proxy.start()

    def close() -> None:
        proxy.close()  # the last one

    context.stack.callback(close)
    site = ("dc1", f"mqtts://127.0.0.1:{proxy.port}", IMPATIENT)
    direct = ("dc1", dc1.tls_url, IMPATIENT)
    t = context.traffic_between(Side([site], {"rate": 300, "chunk": 6}), Side([direct]))
    for app in (t.producer, t.consumer):
        app.add_environment({"SSL_CERT_FILE": str(ours.certificate)})
    t.start()
    t.flows(context.messages // 10)
    for what, impostor in impostors.items():
        context.stack.enter_context(impostor)
        connected = len(t.rows(t.producer, "connected"))
        proxy.close()
        proxy = TcpProxy("127.0.0.1", port_of(impostor), port=proxy.port)
        proxy.start()
        context.event(f"in the place of dc1: {what}")
        t.accepts(context.messages // 4)
        wait_for(lambda p=proxy: p.bytes_to_broker > 0, "the producer tries to connect")  # type: ignore[misc]
        context.stake(t.under_way, "messages that an impostor must not receive")
        context.expect(len(t.rows(t.producer, "connected")) == connected, f"the producer rejects {what}")
        context.expect(impostor.stored() == 0, f"{what} receives nothing")
        proxy.close()
        proxy = TcpProxy("127.0.0.1", port_of(dc1), port=proxy.port)
        proxy.start()
        context.event("dc1 is back in its place")
        t.catches_up("dc1")
    t.finish(context.messages)


def port_of(broker: Mosquitto) -> int:
    """The port of a broker's TLS listener."""
    return int(broker.tls_url.rpartition(":")[2])
