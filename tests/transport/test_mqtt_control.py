"""Control frames at MQTT sites: Mosquitto, the embedded broker, RabbitMQ's plugin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reliamsg.config import Site
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.embedded.broker import EmbeddedBroker
from reliamsg.transport.base import CONTROL_BACKLOG_BYTES, Binding
from reliamsg.transport.mqtt import quarantine
from reliamsg.transport.mqtt.receiver import MqttReceiver
from reliamsg.transport.mqtt.sender import MqttSender
from reliamsg.wire.address import client_id, group_address, producer_address, status_address
from tests.patience import wait_for
from tests.transport.mqtt_scripted import Peer, scripted
from tests.transport.mqtt_tools import site as quick_site
from tests.transport.tools import Receiving, Sending, message, replace_addresses, running, told

Where = Callable[..., Site]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with RabbitNode(tmp_path_factory.mktemp("rabbit"), plugins=["rabbitmq_mqtt"]) as node:
        yield node


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("amqtt")) as broker:
        yield broker


@pytest.fixture(params=["mosquitto, MQTT 5", "mosquitto, MQTT 3.1.1", "amqtt", "rabbitmq"])
def where(request: pytest.FixtureRequest) -> Where:
    """A site at each kind of broker."""
    kind = request.param
    if kind.startswith("mosquitto"):
        broker: Mosquitto = request.getfixturevalue("shared_mosquitto")
        return lambda **settings: quick_site(broker.url, mqtt_version=kind.split()[-1], **settings)
    if kind == "amqtt":
        amqtt: EmbeddedBroker = request.getfixturevalue("embedded")
        return lambda **settings: quick_site(amqtt.url, mqtt_version="3.1.1", **settings)
    node: RabbitNode = request.getfixturevalue("plugin")
    return lambda **settings: quick_site(node.mqtt_url, mqtt_version="3.1.1", **settings)


@contextmanager
def producing(site: Site, *addresses: str, connect: bool = True) -> Iterator[tuple[MqttSender, Sending]]:
    events = Sending()
    sender = MqttSender(site, "p", [], events)
    sender.listen(addresses)
    with running(sender):
        if connect:
            wait_for(lambda: events.up, f"the sender is connected; failed: {events.failed}")
        yield sender, events


@contextmanager
def consuming(
    site: Site, name: str, *addresses: str, connect: bool = True
) -> Iterator[tuple[MqttReceiver, Receiving]]:
    events = Receiving()
    receiver = MqttReceiver(site, [Binding(name, 0, name)], events)
    receiver.listen(addresses)
    events.transport = receiver
    with running(receiver):
        if connect:
            wait_for(lambda: events.up, f"the receiver is connected; failed: {events.failed}")
        yield receiver, events


def test_both_directions_hear_at_their_addresses(where: Where, unique: str) -> None:
    status, group, own = status_address(unique), group_address(unique), producer_address(unique)
    with producing(where(), own, connect=False) as (sender, sent):
        early = sender.send_control(status, b"too early")
        assert not early or wait_for(lambda: sent.up, "connected", 1.0)
        wait_for(lambda: sent.up, "connected")
        with consuming(where(), unique, status, group) as (receiver, got):
            told(sender.send_control, status, b"status", got)
            told(receiver.send_control, own, b"state", sent)
            large = bytes(range(256)) * 2000
            bodies = [b"", b"beacon", large, *(b"%d" % number for number in range(90))]
            for body in bodies:
                assert receiver.send_control(group, body)
            sent.queue += [message(n, unique) for n in range(1, 51)]
            sender.wake()
            wait_for(lambda: [b for a, b in got.frames if a == group] == bodies, "all is heard")
            wait_for(lambda: len(got.deliveries) == 50, "the data came")
            assert {address for address, _ in sent.frames} == {own}
            assert {delivery.address for delivery in got.deliveries} == {unique}
        assert not receiver.send_control(own, b"closed")
    assert not sent.down[:-1]
    assert not got.down[:-1]


def test_control_frames_are_heard_while_nothing_is_acknowledged(where: Where, unique: str) -> None:
    """As many as may be held, and more: what is not acknowledged may wait for just them."""
    group = group_address(unique)
    with consuming(where(prefetch=5), unique, group) as (_, got), producing(where()) as (sender, sent):
        got.transport = None
        sent.queue += [message(n, unique) for n in range(1, 6)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 5, "the data came")
        for number in range(60):
            told(sender.send_control, group, b"%d" % number, got)
    assert not got.down[:-1]


def test_told_on_connecting_and_after_a_reconnect(where: Where, unique: str) -> None:
    """Listening begins before `connected`: who tells something then hears it, each time."""
    group = group_address(unique)
    events = Receiving()
    receiver = MqttReceiver(where(), [Binding(unique, 0, unique)], events)
    receiver.listen([group])
    up = events.connected

    def connected(endpoint: str, session_present: bool | None) -> None:
        up(endpoint, session_present)
        assert receiver.send_control(group, b"connected %d" % len(events.up))

    events.connected = connected  # type: ignore[method-assign]
    with running(receiver):
        wait_for(lambda: events.frames == [(group, b"connected 1")], "heard")
        receiver.reconnect("test")
        wait_for(lambda: events.frames[1:] == [(group, b"connected 2")], "heard again")


def test_addresses_are_replaced_while_connected(where: Where, unique: str) -> None:
    with producing(where()) as (sender, sent), consuming(where(), unique) as (receiver, got):
        replace_addresses(sender, receiver, got, unique)
        assert not sent.down
        assert not got.down


def test_nothing_is_kept_for_a_group_that_is_away(where: Where, unique: str) -> None:
    """Its session is, with the messages."""
    status, other = status_address(unique), status_address("something-else")
    away = [b"while away %d" % number for number in range(1, 21)]
    with producing(where()) as (sender, sent), consuming(where(), f"{unique}-witness", status) as (_, heard):
        with consuming(where(), unique, status, other) as (_, got):
            told(sender.send_control, status, b"before", got)
        told(sender.send_control, status, b"left", heard)
        for body in away:
            assert sender.send_control(status, body)
        sent.queue += [message(n, unique) for n in range(1, 21)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) == 20, "confirmed")
        # Frames have a connection of their own, and may come after messages that were sent later.
        wait_for(
            lambda: [body for _, body in heard.frames if body in away] == away, "the broker has them all"
        )
        with consuming(where(), unique, status) as (_, got):
            wait_for(lambda: len(got.deliveries) == 20, "the messages were kept")
            sender.send_control(other, b"of an address that is no longer listened at")
            told(sender.send_control, status, b"after", got)
            assert {body for _, body in got.frames} == {b"after"}


def test_rabbitmq_has_no_queue_full_of_frames(plugin: RabbitNode, unique: str) -> None:
    where = quick_site(plugin.mqtt_url, mqtt_version="3.1.1")
    status = status_address(unique)
    with producing(where) as (sender, _):
        with consuming(where, unique, status) as (_, got):
            told(sender.send_control, status, b"before", got)
        for number in range(100):
            assert sender.send_control(status, b"while away %d" % number)
        with consuming(where, unique, status) as (_, got):
            told(sender.send_control, status, b"after", got)
    mine = {queue: depth for queue, depth in plugin.queues().items() if client_id(unique) in queue}
    assert sum(mine.values()) == 0, mine


def test_the_backlog_is_bounded(tmp_path: Any, unique: str) -> None:
    status = status_address(unique)
    with Mosquitto(tmp_path) as broker, producing(quick_site(broker.url)) as (sender, _):
        broker.pause()
        body, taken = bytes(100_000), 0
        while sender.send_control(status, body):
            taken += 1
            assert taken * len(body) < 100 * CONTROL_BACKLOG_BYTES
        broker.resume()
        with consuming(quick_site(broker.url), unique, status) as (_, got):
            told(sender.send_control, status, b"after", got)


def test_frames_over_the_brokers_limit_are_not_taken(tmp_path: Any, unique: str) -> None:
    status = status_address(unique)
    with Mosquitto(tmp_path, config=["max_packet_size 100000"]) as broker:
        where = quick_site(broker.url, mqtt_version="5")
        with producing(where) as (sender, sent), consuming(where, unique, status) as (_, got):
            assert not sender.send_control(status, bytes(100_000))
            assert sender.send_control(status, bytes(99_000))
            wait_for(lambda: got.frames, "heard")
            assert not sent.down


def test_retained_and_foreign_messages_at_control_addresses(shared_mosquitto: Mosquitto, unique: str) -> None:
    """What anybody published there as if it were a message is acknowledged, and no message."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    status = status_address(unique)
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", shared_mosquitto.port)
    client.loop_start()
    where = quick_site(shared_mosquitto.url, mqtt_version="5")
    try:
        client.publish(status, b"retained", qos=1, retain=True).wait_for_publish(60)
        with consuming(where, unique, status) as (_, got):
            for number in range(300):
                client.publish(status, b"%d" % number, qos=1)
            client.publish(unique, b"data", qos=1).wait_for_publish(60)
            wait_for(lambda: len(got.frames) == 300 and len(got.deliveries) == 1, "all came")
            assert got.bodies == [b"data"]
            assert (status, b"retained") not in got.frames
    finally:
        client.publish(status, b"", qos=1, retain=True).wait_for_publish(60)
        client.disconnect()
        client.loop_stop()


def test_control_frames_that_rabbitmq_permits_for_some_addresses_only(
    plugin: RabbitNode, unique: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ's plugin closes the connection over what its topic permissions forbid, to publish as to subscribe."""
    monkeypatch.setattr(quarantine, "QUARANTINE_SECONDS", (1.0, 2.0))
    group, status, good = group_address(unique), status_address(unique), producer_address("good")
    odd, private = producer_address("newcomer"), status_address("private")
    mine = f"^({unique}|{group}|{status}|{good})$"
    plugin.ctl("add_user", unique, "secret")
    plugin.ctl("set_permissions", unique, ".*", ".*", ".*")
    plugin.ctl("set_topic_permissions", unique, "amq.topic", mine, mine)
    url = plugin.mqtt_url.replace("guest:guest", f"{unique}:secret")
    everybody = quick_site(plugin.mqtt_url, mqtt_version="3.1.1")
    with (
        producing(everybody, good) as (sender, sent),
        consuming(quick_site(url, mqtt_version="3.1.1"), unique, group, status, private) as (receiver, got),
    ):
        wait_for(lambda: receiver.refused_addresses() == [private], "what may not be heard is found", 60.0)
        up, began = len(got.up), time.monotonic()
        frames = 0

        def tell_all() -> bool:
            nonlocal frames
            frames += 1
            receiver.send_control(odd, b"state")
            receiver.send_control(good, b"%d" % frames)
            return odd in receiver.refused_addresses()

        wait_for(tell_all, "what may not be told is found", 60.0, poll=0.05)
        told(receiver.send_control, good, b"still heard", sent)
        told(receiver.send_control, group, b"beacon", got)
        told(sender.send_control, status, b"status", got)
        sent.queue += [message(n, unique) for n in range(1, 51)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) >= 50, "the messages came")
        plugin.ctl("clear_topic_permissions", unique)
        tries = 1 + (time.monotonic() - began) / 2
        wait_for(lambda: not tell_all() and not receiver.refused_addresses(), "tried again", 60.0, poll=0.05)
        told(sender.send_control, private, b"permitted, too", got)
        assert len(got.up) - up <= 1 + tries, (
            "only trying to listen again, after 1 second and then every 2, may end the connection that is read with"
        )
    said = [r.getMessage() for r in caplog.records if "control frames can't be" in r.getMessage()]
    assert len(said) == 2
    assert any(odd in text for text in said)
    assert any(private in text for text in said)


def test_a_subscription_that_is_refused_is_said_once(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker says so, and keeps the connection."""

    def script(peer: Peer) -> None:
        peer.accept()
        body = peer.expect(8)
        peer.send(0x90, body[:2] + b"\x80")
        peer.puback(peer.published())
        peer.wait_for_close()

    with scripted(script) as broker:
        where = quick_site(f"mqtt://127.0.0.1:{broker.port}", mqtt_version="3.1.1")
        with producing(where, status_address(unique)) as (sender, sent):
            sent.queue.append(message(1, unique))
            sender.wake()
            wait_for(lambda: sent.confirms == [1], "confirmed")
            wait_for(lambda: "can't be received at" in caplog.text, "said")
            assert not sent.down


def test_a_frame_over_the_limit_is_not_read(unique: str) -> None:
    """Who only listens has not told the broker how much it takes."""
    hung_up = threading.Event()

    def script(peer: Peer) -> None:
        peer.accept()
        peer.expect(8)
        peer.sock.sendall(b"\x30\xff\xff\xff\x7f" + bytes(1000))
        peer.wait_for_close()
        hung_up.set()

    with scripted(script) as broker:
        where = quick_site(f"mqtt://127.0.0.1:{broker.port}", mqtt_version="3.1.1")
        with producing(where, status_address(unique)) as (_, sent):
            assert hung_up.wait(60)
            wait_for(lambda: sent.down, "given up")
            assert "over the limit" in sent.down[0]
