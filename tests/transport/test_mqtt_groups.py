"""Asking MQTT brokers for groups: real Mosquittos, and brokers that answer as no real one can be made to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.transport.base import Binding, Evidence, Mark
from reliamsg.transport.factory import create_group, delete_group
from reliamsg.transport.mqtt import group_prober
from reliamsg.transport.mqtt.receiver import MqttReceiver
from reliamsg.transport.mqtt.sender import MqttSender
from reliamsg.wire.address import created_address, proof_address
from reliamsg.wire.control import encode_mark, is_mark
from tests.patience import wait_for
from tests.transport.mqtt_fixtures import MakeBroker, make_broker, name, shared, version  # noqa: F401
from tests.transport.mqtt_scripted import Peer, scripted
from tests.transport.mqtt_tools import site
from tests.transport.tools import Receiving, Sending, message, running

# The fixtures' names are arguments below.
# ruff: noqa: F811

B = Binding("orders", 0, "billing")
NOBODY, SOMEBODY = 0x10, None


@contextmanager
def asking(where: Site, *bindings: Binding, messages: int = 0) -> Iterator[tuple[MqttSender, Sending]]:
    events = Sending()
    events.queue.extend(message(number, bindings[0].topic) for number in range(1, messages + 1))
    with running(MqttSender(where, "gateway-7", bindings, events)) as sender:
        yield sender, events


def latest(events: Sending, binding: Binding) -> Evidence | Mark | None:
    return next((found[binding] for found in reversed(events.evidence) if binding in found), None)


def there(events: Sending, binding: Binding, keys: KeyRing | None = None) -> bool:
    shown = latest(events, binding)
    address = created_address(binding.topic, binding.partition, binding.group)
    return shown is Evidence.SUBSCRIBED or (isinstance(shown, bytes) and is_mark(shown, address, keys))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_prober, "AGAIN_SECONDS", (0.1, 0.2))
    monkeypatch.setattr(group_prober, "MARKS_SECONDS", 0.2)
    monkeypatch.setattr(group_prober, "GRACE_SECONDS", 0.2)


class TestMosquitto:
    def test_created_and_deleted_while_the_producer_runs(
        self, shared: Mosquitto, version: str, name: str
    ) -> None:
        where = site(shared.url, mqtt_version=version)
        one, other = Binding(name, 0, f"{name}-1"), Binding(name, 0, f"{name}-2")
        absent = Evidence.NOT_SUBSCRIBED if version == "5" else Evidence.NOT_MARKED
        with asking(where, one, other, messages=1) as (sender, events):
            wait_for(lambda: events.confirms == [1], "confirmed, though nobody has it")
            assert latest(events, one) is latest(events, other) is absent, "and this was known before"
            create_group(where, [one], 10.0)
            wait_for(lambda: there(events, one), "it is found")
            assert latest(events, other) is absent
            delete_group(where, [one], 10.0)
            sender.bind([one])  # asks at once
            wait_for(lambda: latest(events, one) is absent, "it is gone")

    def test_it_is_for_a_topic(self, shared: Mosquitto, version: str, name: str) -> None:
        where = site(shared.url, mqtt_version=version)
        create_group(where, [Binding(f"{name}/other", 0, name)], 10.0)
        with asking(where, Binding(name, 0, name), Binding(f"{name}/other", 0, name)) as (_, events):
            wait_for(lambda: there(events, Binding(f"{name}/other", 0, name)), "found")
            assert not there(events, Binding(name, 0, name))

    def test_a_consumer_makes_it(self, shared: Mosquitto, name: str) -> None:
        where = site(shared.url, mqtt_version="5")
        binding = Binding(name, 0, name)
        with running(MqttReceiver(where, [binding], got := Receiving())):
            wait_for(lambda: got.up, "reads")
        with asking(where, binding) as (_, events):
            wait_for(lambda: there(events, binding), "found, though it is away")

    def test_where_somebody_reads_everything_the_mark_is_looked_at(
        self, make_broker: MakeBroker, name: str
    ) -> None:
        broker = make_broker()
        where = site(broker.url, mqtt_version="5")
        one, other = Binding(name, 0, f"{name}-1"), Binding(name, 0, f"{name}-2")
        create_group(where, [one], 10.0)
        logger = paho.Client(CallbackAPIVersion.VERSION2)
        ready = threading.Event()
        logger.on_subscribe = lambda *_: ready.set()
        logger.connect("localhost", where.endpoints[0].port)
        logger.loop_start()
        logger.subscribe("#")
        assert ready.wait(20.0)
        with asking(where, one, other) as (_, events):
            wait_for(lambda: there(events, one), "found")
            assert isinstance(latest(events, one), bytes)
            assert latest(events, other) is Evidence.NOT_MARKED
        logger.disconnect()
        logger.loop_stop()

    def test_the_mark_is_signed(self, shared: Mosquitto, name: str) -> None:
        where = site(shared.url, mqtt_version="3.1.1")
        ring = KeyRing({"k": b"a secret of thirty-two bytes, ok"}, sign_with="k")
        other = KeyRing({"k": b"another of thirty-two bytes, yes"}, sign_with="k")
        binding = Binding(name, 0, name)
        create_group(where, [binding], 10.0, ring)
        with asking(where, binding) as (_, events):
            wait_for(lambda: isinstance(latest(events, binding), bytes), "found")
            assert there(events, binding, ring)
            assert not there(events, binding, other)

    def test_more_groups_than_are_asked_for_at_once(self, shared: Mosquitto, version: str, name: str) -> None:
        where = site(shared.url, mqtt_version=version)
        bindings = [Binding(name, 0, f"{name}-{number}") for number in range(2 * group_prober.AT_ONCE + 5)]
        create_group(where, bindings[40:41], 10.0)
        with asking(where, *bindings, messages=100) as (_, events):
            wait_for(
                lambda: len(events.confirms) == 100, "all are confirmed: Mosquitto's Receive Maximum is kept"
            )
            wait_for(lambda: events.evidence, "answered")
            assert [binding for binding in bindings if there(events, binding)] == bindings[40:41]


def _packet(peer: Peer) -> tuple[int, bytes]:
    """Kind and contents of the next packet, pings left out."""
    while True:
        first, body = peer.packet()
        if first >> 4 == 14:
            raise ConnectionError("the client said goodbye")
        if first >> 4 != 12:
            return first >> 4, body


def _answering(reason: dict[str, int | None], default: int | None, log: list[str]):  # type: ignore[no-untyped-def]
    """A broker that answers each PUBLISH with a reason by the beginning of its address."""

    def play(peer: Peer) -> None:
        peer.accept()
        while True:
            kind, body = _packet(peer)
            if kind == 3:
                size = int.from_bytes(body[:2], "big")
                address = body[2 : 2 + size].decode()
                log.append(address)
                mid = int.from_bytes(body[2 + size : 4 + size], "big")
                peer.puback(mid, next((r for a, r in reason.items() if address.startswith(a)), default))
            elif kind == 8:
                log.append("subscribe")
                peer.send(0x90, body[:2] + b"\0\0")
            elif kind == 10:
                peer.send(0xB0, body[:2] + b"\0\0")

    return play


PROOF = proof_address(*("orders", 0, "billing"))


class TestScripted:
    def test_messages_wait_until_the_group_is_known(self) -> None:
        log: list[str] = []
        with (
            scripted(_answering({PROOF: SOMEBODY, "orders": SOMEBODY}, NOBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=2) as (_, events),
        ):
            wait_for(lambda: len(events.confirms) == 2, "confirmed")
            assert latest(events, B) is Evidence.SUBSCRIBED
            assert log.index(PROOF) < log.index("orders")
            assert log[0] != PROOF
            assert "subscribe" not in log

    def test_a_broker_that_never_says_so_is_asked_for_marks(self) -> None:
        log: list[str] = []
        with (
            scripted(_answering({}, SOMEBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=1) as (_, events),
        ):
            wait_for(lambda: latest(events, B) is Evidence.NOT_MARKED, "no mark")
            wait_for(lambda: events.confirms == [1], "confirmed")
            assert PROOF not in log, "no probe waits in its session for nothing"

    def test_a_broker_that_says_so_of_everybody(self) -> None:
        log: list[str] = []
        with (
            scripted(_answering({}, NOBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=1) as (_, events),
        ):
            wait_for(lambda: latest(events, B) is Evidence.NOT_SUBSCRIBED, "as it says")
            wait_for(lambda: log.count(PROOF) >= 3, "asked again and again")

    def test_a_broker_that_stops_saying_so_is_not_believed(self) -> None:
        """It answers the first random address with reason 16, and nothing after that."""
        log: list[str] = []
        reasons: dict[str, int | None] = {}

        class Once(dict[str, int | None]):
            def items(self):  # type: ignore[no-untyped-def]
                probes = [address for address in log if address.startswith("reliamsg:proof")]
                return [("reliamsg:proof", NOBODY if len(probes) == 1 else SOMEBODY)]

        with (
            scripted(_answering(Once(reasons), SOMEBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B) as (_, events),
        ):
            wait_for(lambda: latest(events, B) is not None, "answered")
            assert latest(events, B) is Evidence.NOT_MARKED

    def test_a_refused_probe_says_nothing(self) -> None:
        log: list[str] = []
        with (
            scripted(_answering({PROOF: 0x87}, NOBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=1) as (_, events),
        ):
            wait_for(lambda: events.confirms == [1], "confirmed")
            wait_for(lambda: events.evidence, "the round is over")
            assert latest(events, B) is None

    def test_a_message_that_nobody_gets_has_the_groups_looked_for_at_once(self) -> None:
        log: list[str] = []
        answers: dict[str, int | None] = {PROOF: SOMEBODY}
        with (
            scripted(_answering(answers, NOBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5"), B) as (sender, events),
        ):
            wait_for(lambda: latest(events, B) is Evidence.SUBSCRIBED, "found")
            answers[PROOF] = NOBODY  # deleted
            time.sleep(0.3)
            assert len(events.evidence) == 1, "the next look would be in ten minutes"
            events.queue.append(message(1, "orders"))
            sender.wake()
            wait_for(lambda: latest(events, B) is Evidence.NOT_SUBSCRIBED, "missed")

    def test_a_broker_that_does_not_answer_holds_messages_up_for_a_moment_only(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_prober, "HOLD_SECONDS", 0.3)

        def play(peer: Peer) -> None:
            peer.accept()
            probe = peer.published()
            peer.puback(peer.published())
            peer.puback(probe, NOBODY)
            peer.wait_for_close()

        with (
            scripted(play) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=1) as (_, events),
        ):
            wait_for(lambda: events.confirms == [1], "confirmed")

    def test_a_broker_that_ends_connections_over_it_is_left_alone(self) -> None:
        log: list[str] = []

        def play(peer: Peer) -> None:
            peer.accept()
            while True:
                kind, body = _packet(peer)
                if kind != 3 or body[2:].startswith(b"reliamsg:"):
                    return  # the connection is closed
                log.append("message")
                size = int.from_bytes(body[:2], "big")
                peer.puback(int.from_bytes(body[2 + size : 4 + size], "big"))

        with (
            scripted(play) as broker,
            asking(site(broker.url, mqtt_version="5"), B, messages=3) as (_, events),
        ):
            wait_for(lambda: len(events.confirms) == 3, "messages flow")
            assert broker.connections == group_prober.STRIKES + 1
            assert not events.evidence

    def test_nobody_is_asked_for_groups_that_are_vouched_for(self) -> None:
        log: list[str] = []
        with (
            scripted(_answering({}, NOBODY, log)) as broker,
            asking(site(broker.url, mqtt_version="5", declare="none"), B, messages=1) as (_, events),
        ):
            wait_for(lambda: events.confirms == [1], "confirmed")
            assert log == ["orders"]


def test_addresses_are_one_level_below_and_differ() -> None:
    places = [
        ("a", 0, "b"),
        ("a/b", 0, "c"),
        ("a", 1, "b"),
        ("a//b", 0, "c"),
        ("b", 0, "a"),
        ("x" * 100, 0, "y"),
    ]
    places.append(("/".join("é" * 30), 0, "g" * 100))
    for address in (proof_address, created_address):
        made = [address(*place) for place in places]
        assert len(set(made)) == len(made)
        assert all(one.count("/") == 1 and len(one.encode()) <= 255 for one in made)


def test_a_mark_is_for_its_address() -> None:
    ring = KeyRing({"k": b"a secret of thirty-two bytes, ok"}, sign_with="k")
    here, there_ = created_address("orders", 0, "g"), created_address("orders", 0, "h")
    assert is_mark(encode_mark(here, ring), here, ring)
    assert not is_mark(encode_mark(here, ring), there_, ring)
    assert not is_mark(encode_mark(here), here, ring)
    assert is_mark(encode_mark(here), here)
    assert not is_mark(b"", here)
    assert not is_mark(b"anything", here)
