"""Reading without the group's session while the broker does not give it out, and with it when it does again."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from reliamsg.transport.base import Binding
from reliamsg.transport.mqtt import fallback_session
from reliamsg.transport.mqtt.receiver import MqttReceiver
from reliamsg.wire.address import client_id, group_address, substitute_id
from tests.patience import wait_for
from tests.transport.mqtt_scripted import Peer, scripted
from tests.transport.mqtt_tools import receiving, site
from tests.transport.tools import Receiving, running

SESSION, FALLBACK, OTHER = client_id("billing"), substitute_id("billing", 1), substitute_id("billing", 2)
DATA = b"\0\x06orders"


class Node:
    """Part of a broker's cluster; another part, where the group's session lives, is away until `back` is set."""

    def __init__(self, mqtt: int = 4) -> None:
        self.back = threading.Event()
        self.refuse_all = False
        self.refused: set[str] = set()
        self.connects: list[tuple[str, bool]] = []
        """Client ids, and whether their session was not to be kept."""
        self.mqtt = mqtt
        self.peers: dict[str, Peer] = {}
        self.acknowledged: list[tuple[str, int]] = []
        self.unsubscribed: list[str] = []

    def __call__(self, peer: Peer) -> None:
        body = peer.expect(1)
        at = 10 + (0 if body[6] == 4 else 1 + body[10])
        name = body[at + 2 : at + 2 + int.from_bytes(body[at : at + 2], "big")].decode()
        self.connects.append((name, bool(body[7] & 2)))
        session = b"\1" if name == SESSION else b"\0"
        peer.send(0x20, session + b"\0" + (b"\0" if body[6] == 5 else b""))
        if name.endswith(":ctl"):
            self.take_control_frames(peer)
            return
        body = peer.expect(8)
        if self.refuse_all or name in self.refused or (name == SESSION and not self.back.is_set()):
            return
        v5 = self.mqtt == 5
        self.peers[name] = peer
        peer.send(0x90, body[:2] + (b"\0" if v5 else b"") + b"\1")
        if name == SESSION:
            self.deliver(SESSION, 1, b"waited in the session")
        while True:
            first, body = peer.packet()
            if first >> 4 == 4:
                self.acknowledged.append((name, int.from_bytes(body[:2], "big")))
            elif first >> 4 == 8:
                peer.send(0x90, body[:2] + (b"\0" if v5 else b"") + b"\0")
            elif first >> 4 == 10:
                if DATA in body:
                    self.unsubscribed.append(name)
                    self.deliver(name, 99, b"on its way")
                peer.send(0xB0, body[:2] + (b"\0\0" if v5 else b""))
            elif first >> 4 == 12:
                peer.send(0xD0, b"")
            elif first >> 4 == 14:
                return

    def take_control_frames(self, peer: Peer) -> None:
        while True:
            first, _ = peer.packet()
            if first >> 4 == 12:
                peer.send(0xD0, b"")
            elif first >> 4 == 14:
                return

    def deliver(self, name: str, mid: int, body: bytes) -> None:
        v5 = b"\0" if self.mqtt == 5 else b""
        self.peers[name].send(0x32, DATA + mid.to_bytes(2, "big") + v5 + body)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_session, "CHECK_SECONDS", (0.2, 0.4))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_session_whose_node_is_away(version: str, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(5 if version == "5" else 4)
    with scripted(node) as broker, receiving(site(broker.url, mqtt_version=version)) as (receiver, got):
        receiver.listen([group_address("billing")])
        wait_for(lambda: got.up, "connected")
        assert [present for _, present in got.up] == [None], "whether it is there can't be told"
        assert node.connects[:3] == [(SESSION, False)] * 3
        assert node.connects[3] == (FALLBACK, True)
        assert len(got.failed) == 2
        node.deliver(FALLBACK, 1, b"live")
        wait_for(lambda: got.bodies == [b"live"], "live messages come")
        receiver.acknowledge([delivery.token for delivery in got.deliveries])
        wait_for(lambda: node.acknowledged == [(FALLBACK, 1)], "acknowledged")
        assert receiver.send_control(group_address("billing"), b"beacon")
        # The session is asked for again and again, without harm to what is read meanwhile.
        wait_for(lambda: node.connects.count((SESSION, False)) >= 6, "asked for")
        node.deliver(FALLBACK, 2, b"still live")
        wait_for(lambda: got.bodies[1:] == [b"still live"], "live messages come")
        assert not got.down
        got.transport = receiver
        receiver.acknowledge([delivery.token for delivery in got.deliveries])
        node.back.set()
        wait_for(lambda: len(got.up) == 2, "the session is read")
        wait_for(
            lambda: got.bodies[2:] == [b"on its way", b"waited in the session"], "nothing is left behind"
        )
        assert got.up[1][1] is True
        assert got.down == ["the group's session can be read again"]
        assert node.unsubscribed == [FALLBACK]
        wait_for(lambda: node.acknowledged[-2:] == [(FALLBACK, 99), (SESSION, 1)], "all acknowledged")
    said = [record for record in caplog.records if "session can't be read" in record.getMessage()]
    assert len(said) == 1


def test_one_refusal_is_none() -> None:
    """A connection that ends while subscribing may have ended over anything."""
    node = Node()

    def once(peer: Peer) -> None:
        node(peer)
        node.back.set()

    with scripted(once) as broker, receiving(site(broker.url, mqtt_version="3.1.1")) as (_, got):
        wait_for(lambda: got.up, "connected")
        assert node.connects == [(SESSION, False)] * 2
        assert got.up[0][1] is True


def test_a_broker_that_gives_out_nothing_at_all() -> None:
    """Then the reason is that for which the session was refused, and both are tried again and again."""
    node = Node()
    node.refuse_all = True
    with scripted(node) as broker, receiving(site(broker.url, mqtt_version="3.1.1")) as (_, got):
        wait_for(lambda: len(got.failed) >= 6, "tried again")
        assert {reason for _, reason, _ in got.failed} == {"while subscribing: connection lost"}
        assert not got.up
        node.back.set()
        node.refuse_all = False
        wait_for(lambda: got.up, "connected")
        assert got.up[0][1] is True, "the session comes first"


def test_a_fallback_session_that_is_held_back_too() -> None:
    """Its node may go away like that of the session."""
    node = Node()
    node.refused = {FALLBACK}
    with scripted(node) as broker, receiving(site(broker.url, mqtt_version="3.1.1")) as (_, got):
        wait_for(lambda: got.up, "connected")
        assert [name for name, _ in node.connects] == [SESSION] * 3 + [FALLBACK, SESSION, OTHER]


@pytest.mark.usefixtures("quick")
def test_a_fallback_session_that_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    with scripted(node) as broker, receiving(site(broker.url, mqtt_version="3.1.1")) as (_, got):
        wait_for(lambda: got.up, "connected")
        node.peers[FALLBACK].sock.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: len(got.up) == 2, "connected again")
        assert got.up[1][1] is None
        node.back.set()
        wait_for(lambda: len(got.up) == 3, "the session is read")
    assert caplog.text.count("session can't be read") == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("moment", ["reading without it", "between the two"])
def test_closing_leaves_no_connection_behind(moment: str) -> None:
    node = Node()
    played: list[Peer] = []

    def script(peer: Peer) -> None:
        try:
            node(peer)
        finally:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)
            peer.wait_for_close()
            played.append(peer)

    events = Receiving()
    with scripted(script) as broker:
        receiver = MqttReceiver(
            site(broker.url, mqtt_version="3.1.1"), [Binding("orders", 0, "billing")], events
        )
        with running(receiver):
            wait_for(lambda: events.up, "connected")
            if moment == "between the two":
                closing = threading.Thread(target=receiver.close, args=(60.0,))
                events.disconnected = _on_call(closing.start)  # type: ignore[method-assign]
                node.back.set()
                wait_for(lambda: closing.ident is not None, "closing")
                closing.join(60)
        wait_for(lambda: len(played) == broker.connections, "all connections are closed")


def _on_call(function: Callable[[], None]) -> Callable[..., None]:
    return lambda *_: function()
