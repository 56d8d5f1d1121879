"""What brokers may do and real ones can't be made to do, played by a script."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.config import Credentials
from reliamsg.transport.base import Outcome
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.network import Waker
from tests.patience import quickest, wait_for
from tests.transport.mqtt_scripted import Peer, scripted
from tests.transport.mqtt_tools import receiving, sending, site
from tests.transport.tools import message


def test_pubacks_for_unknown_ids_and_repeated_ones_confirm_nothing() -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        # Early: nothing has been sent under any id.
        for mid in range(1, 20):
            peer.puback(mid)
        first = peer.published()
        peer.puback(first + 500)
        peer.puback(first, 0x10)
        peer.puback(first)
        peer.puback(first, 0x87)
        second = peer.published()
        peer.puback(first)
        peer.puback(second)
        peer.wait_for_close()

    with scripted(play) as broker, sending(site(broker.url, mqtt_version="5")) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        sent.queue.append(message(1))
        sender.wake()
        wait_for(lambda: sent.confirms == [1], "confirmed")
        sent.queue.append(message(2))
        sender.wake()
        wait_for(lambda: sent.confirms == [1, 2], "confirmed")
        assert sent.refusals == []
        assert sent.down == []


def test_a_confirm_for_a_message_that_is_still_being_written_is_a_lie() -> None:
    def play(peer: Peer) -> None:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.accept()
        peer._exactly(100)
        for mid in range(1, 10):
            peer.puback(mid)
        peer.wait_for_close()

    def honest(peer: Peer) -> None:
        peer.accept()
        while True:
            peer.puback(peer.published())

    with (
        scripted(play, honest) as broker,
        sending(site(broker.url, mqtt_version="5"), [message(1, body=b"x" * 15_000_000)]) as (sender, sent),
    ):
        wait_for(lambda: sent.down, "given up")
        assert "before it was sent" in sent.down[0]
        assert sent.confirms == []
        sent.queue.append(message(2))
        wait_for(lambda: len(sent.up) == 2, "connected again")
        sender.wake()
        wait_for(lambda: sent.confirms == [2], "confirmed")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0x80, "Unspecified error"),
        (0x87, "Not authorized"),
        (0x95, "Packet too large"),
        (0x97, "Quota exceeded"),
        (0xEE, "reason code 0xee"),
    ],
)
def test_failing_reasons_refuse(code: int, text: str) -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        peer.puback(peer.published(), code)
        peer.puback(peer.published(), 0x00)
        peer.wait_for_close()

    with (
        scripted(play) as broker,
        sending(site(broker.url, mqtt_version="5"), [message(1), message(2)]) as (_, sent),
    ):
        wait_for(lambda: sent.confirms == [2], "confirmed")
        assert sent.refusals == [(1, Outcome.REFUSED, text)]


def test_a_packet_id_that_is_still_in_flight_is_not_used_again(packet_ids: int) -> None:
    count = packet_ids + 65

    def play(peer: Peer) -> None:
        peer.accept()
        held = peer.published()
        for _ in range(count - 1):
            mid = peer.published()
            assert mid != held
            peer.puback(mid)
        peer.puback(held)
        peer.wait_for_close()

    messages = [message(token) for token in range(count)]
    with (
        scripted(play) as broker,
        sending(site(broker.url, mqtt_version="5"), messages, most_open=500) as (_, sent),
    ):
        wait_for(lambda: 0 in sent.confirms, "the first one is confirmed in the end", 90.0)
        assert sent.confirms[-1] == 0
        assert sorted(sent.confirms) == list(range(count))
        assert sent.down == []


def test_receive_maximum_is_never_exceeded() -> None:
    held: list[int] = []

    def play(peer: Peer) -> None:
        peer.accept(b"\x21\x00\x03")
        for _ in range(20):
            mids = [peer.published() for _ in range(3)]
            # The client must now wait: a fourth one would come within this time.
            peer.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                peer.sock.recv(1)
            peer.sock.settimeout(60)
            held.append(len(mids))
            for mid in mids:
                peer.puback(mid)
        peer.wait_for_close()

    messages = [message(token) for token in range(60)]
    with scripted(play) as broker, sending(site(broker.url, mqtt_version="5"), messages) as (_, sent):
        wait_for(lambda: len(sent.confirms) == 60, "confirmed")
        assert sent.up[0][1] == 3
        assert sent.down == []


def test_a_goodbye_gives_its_reason() -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        peer.send(0xE0, b"\x8e\x00")
        peer.wait_for_close()

    with scripted(play) as broker, sending(site(broker.url, mqtt_version="5")) as (_, sent):
        wait_for(lambda: sent.down, "disconnected")
        assert sent.down[0] == "the broker disconnected: Session taken over"


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_garbage_ends_the_connection_and_not_the_thread(version: str) -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        peer.sock.sendall(b"\x3f\xff\xff\xff\xff\xff\xff garbage")
        peer.wait_for_close()

    def truncated(peer: Peer) -> None:
        peer.accept()
        peer.send(0x32, b"\x00\x50abc")
        peer.wait_for_close()

    def fine(peer: Peer) -> None:
        peer.accept()
        peer.puback(peer.published())
        peer.wait_for_close()

    with (
        scripted(play, truncated, fine) as broker,
        sending(site(broker.url, mqtt_version=version)) as (sender, sent),
    ):
        wait_for(lambda: len(sent.up) == 3, "connected again and again")
        sent.queue.append(message(1))
        sender.wake()
        wait_for(lambda: sent.confirms == [1], "confirmed")
        assert len(sent.down) == 2


def old(peer: Peer) -> None:
    """A 3.1.1 broker: refuses MQTT 5, as the 3.1.1 standard has it."""
    if peer.expect(1)[6] == 5:
        peer.send(0x20, b"\0\x01")
        return
    peer.send(0x20, b"\0\0")
    peer.puback(peer.published())
    peer.wait_for_close()


def test_auto_falls_back_where_mqtt_5_is_refused_and_remembers_it() -> None:
    with scripted(old) as broker, sending(site(broker.url), [message(1)]) as (sender, sent):
        wait_for(lambda: sent.confirms == [1], "confirmed")
        assert sent.up[0][1] is None
        assert sent.failed == []
        assert broker.connections == 2
        sender.reconnect("test")
        wait_for(lambda: len(sent.up) == 2, "connected again")
        assert broker.connections == 3


def rude(peer: Peer) -> None:
    """Closes the connection on MQTT 5."""
    if peer.expect(1)[6] == 5:
        return
    peer.send(0x20, b"\0\0")
    peer.wait_for_close()


def test_auto_falls_back_where_mqtt_5_is_dropped() -> None:
    with scripted(rude) as broker, sending(site(broker.url)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        assert sent.failed == []
        sender.reconnect("test")
        wait_for(lambda: len(sent.up) == 2, "connected again")
        # Asked for MQTT 5 again: the broker may just have been going down.
        assert broker.connections == 4


def test_a_dropped_connection_is_no_sign_where_mqtt_5_has_worked() -> None:
    def new(peer: Peer) -> None:
        assert peer.expect(1)[6] == 5
        peer.send(0x20, b"\0\0\0")

    def down(peer: Peer) -> None:
        assert peer.expect(1)[6] == 5

    with scripted(new, down, down, new) as broker, sending(site(broker.url)) as (_, sent):
        wait_for(lambda: len(sent.up) >= 2, "connected again")
        wait_for(lambda: len(sent.failed) >= 2, "dropped")


def test_fixed_versions_do_not_fall_back() -> None:
    with scripted(old) as broker, sending(site(broker.url, mqtt_version="5")) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert "Unsupported protocol version" in sent.failed[0][1]


def stumbling(peer: Peer) -> None:
    """Reads MQTT 5 properties as a client id, and waits for the rest of it."""
    body = peer.expect(1)
    if body[6] != 5:
        peer.send(0x20, b"\0\0")
    elif body[10] == 0:
        peer.send(0x20, b"\0\x01")
        return
    peer.wait_for_close()


def test_auto_finds_out_what_a_silent_broker_speaks() -> None:
    with scripted(stumbling) as broker, receiving(site(broker.url, connect_timeout=2.0)):
        wait_for(lambda: broker.connections == 3, "asked, probed, asked again")
        wait_for(lambda: broker.connections == 4, "3.1.1 at once the next time")


def silent(peer: Peer) -> None:
    peer.expect(1)
    peer.wait_for_close()


@pytest.mark.parametrize("version", ["auto", "5", "3.1.1"])
def test_a_silent_broker_costs_no_more_than_the_budget(version: str) -> None:
    with scripted(silent) as broker:
        where = site(broker.url, mqtt_version=version, connect_timeout=1.0)

        def give_up() -> None:
            with sending(where) as (_, sent):
                wait_for(lambda: sent.failed, "given up", 3.0)
                assert "in time" in sent.failed[0][1]

        assert 0.9 < quickest(give_up, 1.9) < 1.9


def suback(*codes: int) -> Any:
    def play(peer: Peer) -> None:
        peer.accept()
        body = peer.expect(8)
        peer.send(0x90, body[:2] + b"\0" + bytes(codes))
        peer.wait_for_close()

    return play


@pytest.mark.parametrize(
    ("codes", "why"),
    [
        ((1, 0x87), "'b': Not authorized"),
        ((0, 1), "'a' only at QoS 0"),
        ((0x80, 1), "'a': Unspecified error"),
    ],
)
def test_refused_subscriptions_are_told_and_tried_again(codes: tuple[int, int], why: str) -> None:
    where = {"mqtt_version": "5"}
    with (
        scripted(suback(*codes), suback(1, 1)) as broker,
        receiving(site(broker.url, **where), "a", "b") as (_, got),
    ):
        wait_for(lambda: got.up, "connected in the end")
        assert len(got.failed) == 1
        assert why in got.failed[0][1]
        assert not got.failed[0][2]
        assert got.down == []


def test_a_subscription_without_an_answer_is_given_up() -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        peer.wait_for_close()

    where: dict[str, Any] = {"mqtt_version": "5", "connect_timeout": 0.5}
    with scripted(play) as broker, receiving(site(broker.url, **where)) as (_, got):
        wait_for(lambda: got.failed, "given up")
        assert "subscription" in got.failed[0][1]


def test_messages_ahead_of_the_suback_are_delivered() -> None:
    def play(peer: Peer) -> None:
        peer.accept()
        body = peer.expect(8)
        peer.send(0x3A, b"\x00\x06orders\x00\x07\x00early")
        peer.send(0x90, body[:2] + b"\0\1")
        peer.expect(8)  # the proof address
        assert peer.expect(4)[:2] == b"\x00\x07"
        peer.wait_for_close()

    with (
        scripted(play) as broker,
        receiving(site(broker.url, mqtt_version="5"), acknowledge=True) as (_, got),
    ):
        wait_for(lambda: got.deliveries, "delivered")
        assert got.bodies == [b"early"]
        assert got.deliveries[0].redelivered
        assert got.up == [(f"127.0.0.1:{broker.port}", False)]


def test_a_backlog_ahead_of_the_suback_is_taken() -> None:
    """More than the window, from a broker that knows no limit; what of it is not taken: test_mqtt_full_window.py."""
    count = 500

    def play(peer: Peer) -> None:
        peer.accept()
        body = peer.expect(8)
        for mid in range(1, count + 1):
            peer.send(0x32, b"\x00\x06orders" + mid.to_bytes(2, "big") + b"%d" % mid)
        peer.send(0x90, body[:2] + b"\1")
        for mid in range(1, count + 1):
            assert int.from_bytes(peer.expect(4)[:2], "big") == mid
        peer.wait_for_close()

    where = {"mqtt_version": "3.1.1", "prefetch": 2}
    with scripted(play) as broker, receiving(site(broker.url, **where)) as (receiver, got):
        wait_for(lambda: len(got.deliveries) == count, "all of it")
        receiver.acknowledge([delivery.token for delivery in reversed(got.deliveries)])
        assert got.bodies == [b"%d" % mid for mid in range(1, count + 1)]
        assert got.down == []


def test_acknowledgements_go_out_in_the_order_of_receipt() -> None:
    acknowledged: list[int] = []

    def play(peer: Peer) -> None:
        peer.accept()
        body = peer.expect(8)
        peer.send(0x90, body[:2] + b"\0\1")
        for mid in (40, 30, 20, 10):
            peer.send(0x32, b"\x00\x06orders" + mid.to_bytes(2, "big") + b"\x00x")
        peer.expect(8)  # the proof address
        for _ in range(4):
            acknowledged.append(int.from_bytes(peer.expect(4)[:2], "big"))
        peer.wait_for_close()

    with scripted(play) as broker, receiving(site(broker.url, mqtt_version="5")) as (receiver, got):
        wait_for(lambda: len(got.deliveries) == 4, "delivered")
        for place in (2, 3, 1):
            receiver.acknowledge([got.deliveries[place].token])
        assert acknowledged == []
        receiver.acknowledge([got.deliveries[0].token])
        wait_for(lambda: len(acknowledged) == 4, "acknowledged")
    assert acknowledged == [40, 30, 20, 10]


def test_a_broker_without_qos_1_is_of_no_use() -> None:
    def play(peer: Peer) -> None:
        peer.accept(b"\x24\x00")
        peer.wait_for_close()

    with scripted(play) as broker, sending(site(broker.url, mqtt_version="5")) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert "QoS 0" in sent.failed[0][1]


@pytest.mark.parametrize(
    ("code", "credentials"), [(0x86, True), (0x87, True), (0x88, False), (0x89, False), (0x85, False)]
)
def test_refusals_to_connect(code: int, credentials: bool) -> None:
    def play(peer: Peer) -> None:
        peer.expect(1)
        peer.send(0x20, bytes([0, code, 0]))
        peer.wait_for_close()

    with scripted(play) as broker, sending(site(broker.url)) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.failed[0][2] is credentials


@pytest.mark.parametrize(("code", "credentials"), [(2, False), (3, False), (4, True), (5, True)])
def test_refusals_to_connect_at_3_1_1(code: int, credentials: bool) -> None:
    def play(peer: Peer) -> None:
        peer.expect(1)
        peer.send(0x20, bytes([0, code]))
        peer.wait_for_close()

    with scripted(play) as broker, sending(site(broker.url, mqtt_version="3.1.1")) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.failed[0][2] is credentials


def test_credentials_are_asked_for_on_each_connect() -> None:
    seen: list[bytes] = []
    words = iter(["first", "second", "third"])

    def login() -> Credentials:
        return "anna", next(words)

    def play(peer: Peer) -> None:
        body = peer.expect(1)
        seen.append(body)
        peer.send(0x20, b"\0\0\0")

    with scripted(play) as broker:
        where = site(broker.url, mqtt_version="5", credentials=login)
        with sending(where):
            wait_for(lambda: len(seen) >= 2, "connected twice")
        assert seen[0].endswith(b"\x00\x04anna\x00\x05first")
        assert seen[1].endswith(b"\x00\x04anna\x00\x06second")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_goodbye_is_read_by_a_broker_that_is_still_sending(version: str) -> None:
    """A socket that is closed with unread data resets the connection, and takes the last packets with it."""
    ends: list[bytes | None] = []

    def script(peer: Peer) -> None:
        peer.accept()
        done = threading.Event()

        def flood() -> None:
            with contextlib.suppress(OSError):
                while not done.is_set():
                    peer.sock.sendall(b"\xd0\0" * 500)  # answers to pings

        sending = threading.Thread(target=flood)
        sending.start()
        data: bytes | None = b""
        try:
            while got := peer.sock.recv(65536):
                data = (data or b"") + got
        except ConnectionResetError:
            data = None
        finally:
            done.set()
            ends.append(data)
        peer.sock.close()
        sending.join()

    with scripted(script) as broker, sending(site(broker.url, mqtt_version=version), []) as (_, sent):
        wait_for(lambda: sent.up, "connected")
    wait_for(lambda: len(ends) == broker.connections, "all connections have ended")
    assert ends
    assert all(end is not None and end.endswith((b"\xe0\0", b"\xe0\x02\0\0", b"\xe0\x01\0")) for end in ends)


def test_a_connection_that_has_ended_can_be_disconnected() -> None:
    """As when a group is created just as the broker ends the connection."""
    ours, theirs = socket.socketpair()
    waker = Waker()
    with ours, theirs, contextlib.closing(waker):
        connection = MqttConnection(ours, waker, "name", "5", keepalive=60, prefetch=None, persistent=False)
        connection.connect(SimpleNamespace(host="h", port=1), None)  # type: ignore[arg-type]
        theirs.close()
        while connection.turn(1.0):
            pass
        connection.disconnect(time.monotonic() + 1.0)
        connection.close()
