"""A wrong clock, and brokers that don't keep to the protocol: 37 to 40 of the catalogue, and TLS peers that are not who
they say, 50."""

from __future__ import annotations

import random
from typing import Literal

from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.chaos.bridges import MqttBridge, bridges
from reliamsg.lab.chaos.certificates import Authority
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.false_confirms import Lie, LyingProxy
from reliamsg.lab.chaos.paho_baseline import PlainPair
from reliamsg.lab.chaos.pika_baseline import PikaPair
from reliamsg.lab.chaos.scenario import scenario
from reliamsg.lab.chaos.traffic import IMPATIENT, begin, sum_of
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.lab.faults.proxy import TcpProxy

_DAY_S = 86_400.0


@scenario("wrong-clocks", 37, promises="P3 P4", messages=4_000,
          title="The producer's wall clock is a day off at each start, the consumer's jumps all the time")  # fmt: skip
def wrong_clocks(context: Context) -> None:
    t = context.traffic(
        context.sites(), rate=800, module=wrong_clock, consuming={"jumps": [-_DAY_S, 0.0, _DAY_S]},
        producing={"jumps": [0.0, _DAY_S]},
    )  # fmt: skip
    for shift in (-_DAY_S, _DAY_S, 0.0):
        t.flows(context.messages // 10)
        t.producer.kill()
        before = t.accepted()
        t.producer.start(shift=shift, jumps=[shift])
        context.event(f"the producer starts again, its clock {shift / _DAY_S:+g} days off")
        t.accepts(context.messages // 10)
        context.stake(t.accepted() - before, "messages published after the clock was put wrong")
    t.finish(context.messages)
    opened = t.rows(t.producer, "opened")
    epochs = [row.epoch or 0 for row in opened]
    context.expect(epochs == sorted(set(epochs)), "every epoch is above the one before")
    walls = [row.wall_us / 1e6 for row in opened]
    context.expect(max(walls) - min(walls) > _DAY_S / 2, "the clocks were wrong")


@scenario("duplicated-reordered", 38, promises="P3 P4 P5", messages=4_000, needs=("mosquitto", "rabbitmq"),
          own_brokers=True, harm="duplicates",
          title="Between producer and group, bridges shuffle and repeat everything")  # fmt: skip
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
    plain = context.plain(near.url, far.url, rate=200).start()
    producing = {"rate": 800, "chunk": 20, "options": {"max_batch_messages": 5}}
    t = begin(
        context.run, context.topic, ([("dc1", node.url, IMPATIENT), ("dc2", near.url, IMPATIENT)], producing),
        ([("dc1", beyond, IMPATIENT), ("dc2", far.url, {**IMPATIENT, "mqtt_version": "5"})], {}), context.messages,
        start=False,
    )  # fmt: skip
    t.producer.config["groups"] = None  # nobody reads on the near side but the bridges
    t.begin()
    context.watch("published", context.run.accepted(t.producer))
    context.watch("handed out", context.run.delivered(t.consumer))
    # Either may lag behind, and the consumer, which needs only one of them, be done long before.
    wait_for(
        lambda: sum_of(t.rows(t.consumer, "duplicate")) > context.messages,
        "more comes again than two sites without bridges would bring", 60, 0.5,
    )  # fmt: skip
    context.stake(sum_of(t.rows(t.consumer, "duplicate")), "messages that came again")
    context.stake(
        min(bridge.shuffler.inversions for bridge in both), "times that each bridge sent a later one first"
    )
    t.drained()
    context.expect(min(bridge.passed for bridge in both) > 0, "each bridge passed something on")
    context.control(plain.finish())


def lied_to(context: Context, kind: Literal["mqtt", "amqp"], *lies: Lie) -> None:
    """The producer's way to dc1 leads through a liar; dc2 is honest."""
    dc1 = context.rabbit("dc1") if kind == "amqp" else context.mosquitto("dc1")
    dc2 = context.mosquitto("dc2")
    liar = context.stack.enter_context(LyingProxy(kind, dc1.port, random.Random(context.rng.random())))
    to_liar = liar.url(dc1.url)
    producing = {"rate": 400, "chunk": 4, "options": {"max_batch_messages": 10}}
    t = begin(
        context.run, context.topic,
        ([("dc1", to_liar, IMPATIENT), ("dc2", dc2.url, IMPATIENT)], producing),
        ([("dc1", dc1.url, IMPATIENT), ("dc2", dc2.url, IMPATIENT)], {}),
    )  # fmt: skip
    context.watch("published", context.run.accepted(t.producer))
    context.watch("handed out", context.run.delivered(t.consumer))
    plain: PikaPair | PlainPair
    if kind == "amqp":
        plain = context.plain_pika(to_liar, reading=dc1.url, rate=100)
    else:
        plain = context.plain(to_liar, dc1.url, rate=100)
    plain.start()
    for lie in lies:
        before = liar.told
        liar.lie = lie
        context.event(f"dc1's confirms are {lie}")
        t.flows(context.messages // (2 * len(lies)))
        context.stake(liar.told - before, f"confirms that were {lie}")
        liar.lie = ""
        liar.reset()
    context.event("dc1 says the truth")
    t.finish(context.messages)
    context.control(plain.finish())


@scenario("puback-lies", 39, promises="P2 P5", messages=4_000, own_brokers=True,
          harm="lost",
          title="PUBACKs come early (the message may never arrive), twice, for others, or as failures")  # fmt: skip
def puback_lies(context: Context) -> None:
    lied_to(context, "mqtt", "early", "twice", "other", "failing")


@scenario("confirm-lies", 40, promises="P2 P5", messages=3_000, needs=("mosquitto", "rabbitmq"), own_brokers=True,
          harm="duplicates",
          title="Publisher confirms come as nacks, one for several, or out of order")  # fmt: skip
def confirm_lies(context: Context) -> None:
    lied_to(context, "amqp", "nack", "multiple", "shuffled")


@scenario("tls-impostor", 50, promises="P2 P9", messages=3_000, needs=("mosquitto", "openssl"), own_brokers=True,
          title="Another TLS peer in the broker's place, then one with an expired certificate")  # fmt: skip
def tls_impostor(context: Context) -> None:
    ours, theirs = (Authority(context.directory, name) for name in ("ours", "theirs"))
    dc1 = context.mosquitto("dc1", tls=ours.issue("dc1"))
    impostors = {
        "somebody with a certificate of another authority": Mosquitto(
            context.directory / "brokers" / "impostor", tls=theirs.issue("impostor")
        ),
        "a broker whose certificate has expired": Mosquitto(
            context.directory / "brokers" / "expired", tls=ours.issue("expired", expired=True)
        ),
    }
    proxy = TcpProxy("127.0.0.1", port_of(dc1))
    proxy.start()

    def close() -> None:
        proxy.close()  # whichever stands there in the end

    context.stack.callback(close)
    site = ("dc1", f"mqtts://127.0.0.1:{proxy.port}", IMPATIENT)
    direct = ("dc1", dc1.tls_url, IMPATIENT)
    t = begin(
        context.run, context.topic, ([site], {"rate": 300, "chunk": 6}), ([direct], {}),
        start=False,
    )  # fmt: skip
    context.watch("published", context.run.accepted(t.producer))
    context.watch("handed out", context.run.delivered(t.consumer))
    for app in (t.producer, t.consumer):
        app.environment = {"SSL_CERT_FILE": str(ours.certificate)}
    t.begin()
    t.flows(context.messages // 10)
    for what, impostor in impostors.items():
        context.stack.enter_context(impostor)
        connected = len(t.rows(t.producer, "connected"))
        proxy.close()
        proxy = TcpProxy("127.0.0.1", port_of(impostor), port=proxy.port)
        proxy.start()
        context.event(f"in the place of dc1: {what}")
        t.accepts(context.messages // 4)
        wait_for(lambda p=proxy: p.bytes_to_broker > 0, "the producer tries")  # type: ignore[misc]
        context.stake(t.under_way, "messages that nobody else may get")
        context.expect(len(t.rows(t.producer, "connected")) == connected, f"the producer refuses {what}")
        context.expect(impostor.stored() == 0, f"{what} gets nothing")
        proxy.close()
        proxy = TcpProxy("127.0.0.1", port_of(dc1), port=proxy.port)
        proxy.start()
        context.event("dc1 is back in its place")
        t.catches_up("dc1")
    t.finish(context.messages)


def port_of(broker: Mosquitto) -> int:
    """The port of a broker's TLS listener."""
    return int(broker.tls_url.rpartition(":")[2])
