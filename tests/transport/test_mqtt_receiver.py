"""Reading from a real Mosquitto through a group's persistent session, with MQTT 5 and 3.1.1."""

from __future__ import annotations

import time

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from reliamsg.config import Site
from reliamsg.errors import ConfigError
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.transport.base import Binding
from reliamsg.transport.mqtt import receive_window
from reliamsg.transport.mqtt.receiver import MqttReceiver
from tests.patience import wait_for
from tests.transport.mqtt_fixtures import MakeBroker, make_broker, name, shared, version  # noqa: F401
from tests.transport.mqtt_tools import receiving, sending, site
from tests.transport.tools import Receiving, message

# The fixtures' names are arguments below.
# ruff: noqa: F811


def publish(where: Site, topic: str, first: int, last: int) -> None:
    """Have the broker confirm messages `first` to `last`, both included."""
    messages = [message(token, topic) for token in range(first, last + 1)]
    with sending(where, messages) as (_, sent):
        wait_for(lambda: len(sent.confirms) == len(messages), "confirmed")


def bodies(first: int, last: int) -> list[bytes]:
    return [b"frame %d" % token for token in range(first, last + 1)]


def foreign(broker: Mosquitto, topic: str, body: bytes, **more: object) -> None:
    """Publish as somebody else would."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        client.publish(topic, body, **more).wait_for_publish(10.0)  # type: ignore[arg-type]
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_session_collects_while_its_group_is_away(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        assert got.up[0][1] is False
        publish(where, name, 1, 3)
        wait_for(lambda: len(got.deliveries) == 3, "delivered")
    publish(where, name, 4, 300)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: len(got.deliveries) >= 297, "delivered")
        assert got.up[0][1] is True
        assert got.bodies[-297:] == bodies(4, 300)
        assert got.down == []
        assert len(got.threads) == 1


def test_what_is_not_acknowledged_comes_again(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        publish(where, name, 0, 4)
        wait_for(lambda: len(got.deliveries) == 5, "delivered")
        tokens = [delivery.token for delivery in got.deliveries]
        assert not any(delivery.redelivered for delivery in got.deliveries)
        # Out of order: nothing may be passed on before the first one is.
        receiver.acknowledge([tokens[4], tokens[2]])
        receiver.acknowledge([tokens[1], tokens[1]])
        receiver.reconnect("test")
        wait_for(lambda: len(got.deliveries) == 10, "delivered again")
        assert got.bodies[5:] == bodies(0, 4)
        assert all(delivery.redelivered for delivery in got.deliveries[5:])
        # Tokens of the connection that is gone are void.
        receiver.acknowledge(tokens)
        again = [delivery.token for delivery in got.deliveries[5:]]
        assert not set(tokens) & set(again)
        receiver.acknowledge([again[1], again[0], again[3]])
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        # 0 and 1 were acknowledged before close(), 3 was held back behind 2.
        wait_for(lambda: len(got.deliveries) == 3, "delivered")
        assert got.bodies == bodies(2, 4)


def test_odd_tokens_are_ignored(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        receiver.acknowledge([object(), (1, 99), (7, 0)])
        publish(where, name, 1, 1)
        wait_for(lambda: got.deliveries, "delivered")
        assert got.down == []


def test_what_is_held_unacknowledged_is_bounded(
    shared: Mosquitto, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Mosquitto 2.0.11 starts with Receive Maximum messages and then sends as many again for each PUBACK.
    monkeypatch.setattr(receive_window, "HELD_BYTES", 0)
    where = site(shared.url, mqtt_version="5", prefetch=5)
    with receiving(where, name, group=name) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        publish(where, name, 1, 100)
        wait_for(lambda: len(got.deliveries) == 5, "the window is full")
        seen = 0
        while got.bodies[-1:] != bodies(100, 100):
            wait_for(lambda seen=seen: len(got.deliveries) > seen, "the next one")
            assert len(receiver._window) <= 20, "four times the prefetch"
            receiver.acknowledge([got.deliveries[seen].token])
            seen += 1
        # What came again was in order, too.
        assert list(dict.fromkeys(got.bodies)) == bodies(1, 100)


def test_a_broker_without_a_limit_is_read_all_the_time(make_broker: MakeBroker, name: str) -> None:
    broker = make_broker(config=["max_inflight_messages 0"])
    where = site(broker.url, mqtt_version="3.1.1", prefetch=5, heartbeat=2.0)
    with receiving(where, name, group=name) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        publish(where, name, 1, 2000)
        wait_for(lambda: len(got.deliveries) == 2000, "all of it fits")
        # Longer than broker and client wait for each other: pings are answered all the time.
        quiet_until = time.monotonic() + 7.0
        wait_for(lambda: got.down or time.monotonic() > quiet_until, "three heartbeats and a half")
        assert got.down == []
        got.transport = receiver
        receiver.acknowledge([delivery.token for delivery in got.deliveries])
        publish(where, name, 2001, 2010)
        wait_for(lambda: len(got.deliveries) == 2010, "the rest")
        assert got.bodies == bodies(1, 2010)
        assert got.down == []


def test_a_receiver_with_a_full_window_notices_that_the_broker_died(
    make_broker: MakeBroker, name: str
) -> None:
    broker = make_broker(config=["max_inflight_messages 0"])
    where = site(broker.url, mqtt_version="3.1.1", prefetch=5)
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.up, "connected")
        publish(where, name, 1, 2000)
        wait_for(lambda: len(got.deliveries) >= 20, "four times the prefetch")
        broker.kill()
        wait_for(lambda: got.down, "disconnected")


def test_a_killed_broker_lost_the_session_and_says_so(
    make_broker: MakeBroker, version: str, name: str
) -> None:
    broker = make_broker()
    where = site(broker.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        broker.kill()
        wait_for(lambda: got.down and got.failed, "disconnected, unreachable")
        broker.start()
        wait_for(lambda: len(got.up) == 2, "connected again")
        assert [present for _, present in got.up] == [False, False]
        # The subscription is made anew on every connect.
        publish(where, name, 1, 1)
        wait_for(lambda: got.bodies == bodies(1, 1), "delivered")


def test_the_session_survives_an_orderly_restart(make_broker: MakeBroker, version: str, name: str) -> None:
    broker = make_broker(persistence=True)
    where = site(broker.url, mqtt_version=version)
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.up, "connected")
        publish(where, name, 1, 2)
        wait_for(lambda: len(got.deliveries) == 2, "delivered")
        broker.stop()
        broker.start()
        wait_for(lambda: len(got.up) == 2, "connected again")
        assert got.up[1][1] is True
        wait_for(lambda: got.bodies == [*bodies(1, 2), *bodies(1, 2)], "delivered again")


def test_topics_and_partitions_of_one_group(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    events = Receiving()
    bindings = [Binding(name, 0, name), Binding(name, 2, name), Binding(name + "-b", 0, name)]
    receiver = MqttReceiver(where, bindings, events)
    events.transport = receiver
    receiver.start()
    try:
        wait_for(lambda: events.up, "connected")
        messages = [
            message(1, name),
            message(2, name, partition=2),
            message(3, name + "-b"),
            message(4, name + "-c"),
        ]
        with sending(where, messages) as (_, sent):
            wait_for(lambda: len(sent.confirms) == 4, "confirmed")
        wait_for(lambda: len(events.deliveries) == 3, "delivered")
        assert sorted(d.address for d in events.deliveries) == [name, name + "-b", name + "~2"]
    finally:
        receiver.close(5.0)


def test_groups_do_not_mix(shared: Mosquitto) -> None:
    bindings = [Binding("orders", 0, "a"), Binding("orders", 0, "b")]
    with pytest.raises(ConfigError):
        MqttReceiver(site(shared.url), bindings, Receiving())


def test_a_handler_that_raises_costs_the_connection_and_no_message(
    shared: Mosquitto, version: str, name: str
) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        got.fail_in = "received"
        publish(where, name, 1, 3)
        wait_for(lambda: len(got.up) == 2, "connected again")
        wait_for(lambda: got.bodies[-1:] == bodies(3, 3), "delivered")
        assert sorted(set(got.bodies)) == bodies(1, 3)


def test_retained_messages_are_marked(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    foreign(shared, name, b"old", qos=1, retain=True)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        foreign(shared, name, b"new", qos=1, retain=True)
        foreign(shared, name, b"last", qos=1)
        wait_for(lambda: got.bodies[-1:] == [b"last"], "delivered")
        flags = [(delivery.body, delivery.retained) for delivery in got.deliveries]
        if version == "5":
            assert flags == [(b"new", True), (b"last", False)]
        else:
            # 3.1.1 can't ask for less, and marks only what was retained before.
            assert flags == [(b"old", True), (b"new", False), (b"last", False)]


def test_qos_0_messages_hold_nothing_up(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        foreign(shared, name, b"unsafe", qos=0)
        wait_for(lambda: got.bodies == [b"unsafe"], "delivered")
        publish(where, name, 1, 1)
        wait_for(lambda: len(got.deliveries) == 2, "delivered")
        # Of the QoS 0 message no acknowledgement comes, and that of the other is passed on all the same.
        receiver.acknowledge([got.deliveries[1].token])
    publish(where, name, 2, 2)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.deliveries, "delivered")
        assert got.bodies == bodies(2, 2)


def user_properties(*pairs: tuple[str, str]) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    object.__setattr__(properties, "UserProperty", list(pairs))
    return properties


@pytest.mark.parametrize(
    ("pairs", "damaged"),
    [
        # paho's decoder gives up the connection over U+FEFF, which MQTT allows.
        ([("mark", "\ufeff")], False),
        ([(f"h{i}", "v") for i in range(5000)], True),
        ([("long", "x" * 60_000)], True),
        ([("rm-seq", "1"), ("rm-seq", "2")], True),
        ([("twice", "1"), ("twice", "2")], False),
    ],
)
def test_hostile_headers_come_through(
    shared: Mosquitto, name: str, pairs: list[tuple[str, str]], damaged: bool
) -> None:
    where = site(shared.url, mqtt_version="5")
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        foreign(shared, name, b"bomb", qos=1, properties=user_properties(*pairs))
        foreign(shared, name, b"after", qos=1)
        wait_for(lambda: got.bodies[-1:] == [b"after"], "delivered")
        assert got.bodies == [b"bomb", b"after"]
        assert (got.deliveries[0].damaged is not None) is damaged
        assert got.deliveries[0].headers == ({} if damaged else dict(pairs))
        assert got.down == []


def test_a_second_consumer_takes_the_session_over(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with (
        receiving(where, name, group=name) as (_, first),
        receiving(where, name, group=name) as (_, second),
    ):
        wait_for(lambda: first.down and second.down, "each disconnects the other")
