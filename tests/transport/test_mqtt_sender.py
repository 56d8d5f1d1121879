"""Publishing to a real Mosquitto, with MQTT 5 and 3.1.1."""

from __future__ import annotations

import itertools
import logging
import threading
import time

import pytest

from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.transport.base import Outcome
from reliamsg.transport.mqtt.sender import MqttSender
from tests.patience import STALL_S, quickest, wait_for
from tests.transport.mqtt_fixtures import MakeBroker, make_broker, name, shared, version  # noqa: F401
from tests.transport.mqtt_tools import receiving, sending, site
from tests.transport.tools import Sending, message

# The fixtures' names are arguments below.
# ruff: noqa: F811


def test_confirms_in_any_number_on_one_thread(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "receiver connected")
        messages = [message(token, name) for token in range(1000)]
        with sending(where, messages) as (_, sent):
            wait_for(lambda: len(sent.confirms) == 1000, "all confirmed")
            wait_for(lambda: len(got.deliveries) == 1000, "all delivered")
            assert sorted(sent.confirms) == list(range(1000))
            assert sent.up[0][1] == (20 if version == "5" else None)
        assert got.bodies == [m.body for m in messages]
        assert sent.down == ["closed"]
        assert not sent.refusals
        assert not sent.failed
        assert len(sent.threads) == 1
        assert threading.get_ident() not in sent.threads
        first = got.deliveries[0]
        assert (first.address, first.redelivered, first.retained, first.damaged) == (name, False, False, None)
        assert first.content_type == ("application/vnd.reliamsg.batch" if version == "5" else None)


def test_a_message_that_nobody_reads_is_confirmed(shared: Mosquitto, version: str, name: str) -> None:
    with sending(site(shared.url, mqtt_version=version), [message(1, name)]) as (_, sent):
        wait_for(lambda: sent.confirms == [1], "confirmed")


def test_partitions_have_addresses_of_their_own(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "receiver connected")
        with sending(where, [message(1, name, partition=3), message(2, name)]) as (_, sent):
            wait_for(lambda: len(sent.confirms) == 2, "both confirmed")
            wait_for(lambda: got.deliveries, "delivered")
        assert got.bodies == [b"frame 2"]


def test_wake_is_seen_soon_from_any_thread(shared: Mosquitto, version: str, name: str) -> None:
    with sending(site(shared.url, mqtt_version=version)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")

        def publish(first: int) -> None:
            for token in range(first, first + 50):
                sent.queue.append(message(token, name))
                sender.wake()

        threads = [threading.Thread(target=publish, args=(1000 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: len(sent.confirms) == 200, "all confirmed", 2.0)
        tokens = itertools.count(10_000)

        def one() -> None:
            token = next(tokens)
            sent.queue.append(message(token, name))
            sender.wake()
            wait_for(lambda: token in sent.confirms, "confirmed")

        # One at a time, so that each needs a wake() of its own out of a long wait.
        for _ in range(10):
            assert quickest(one, 0.9) < 0.9


def test_a_killed_broker_leaves_nothing_that_is_sent_by_itself(
    make_broker: MakeBroker, version: str, name: str
) -> None:
    broker = make_broker()
    where = site(broker.url, mqtt_version=version)
    with sending(where) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        broker.pause()
        sent.queue.extend(message(token, name) for token in range(10))
        sender.wake()
        wait_for(lambda: len(sent.open) == 10, "handed out")
        assert sent.confirms == []
        broker.kill()
        wait_for(lambda: sent.down, "disconnected")
        wait_for(lambda: sent.failed, "unreachable meanwhile")
        assert not sent.failed[0][2]
        broker.start()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        with receiving(where, name, group=name, acknowledge=True) as (_, got):
            wait_for(lambda: got.up, "receiver connected")
            sent.queue.append(message(99, name))
            sender.wake()
            wait_for(lambda: got.deliveries, "delivered")
            # The ten were in flight when the broker died. Sending them again is not the transport's to do.
            assert got.bodies == [b"frame 99"]
        assert sent.confirms == [99]


def test_backlog_is_not_sent_again_after_reconnect(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "receiver connected")
        with sending(where, [message(1, name)]) as (sender, sent):
            wait_for(lambda: sent.confirms == [1], "confirmed")
            sender.reconnect("because")
            wait_for(lambda: len(sent.up) == 2, "connected again")
            assert sent.down == ["because"]
            sent.queue.append(message(2, name))
            sender.wake()
            wait_for(lambda: len(got.deliveries) >= 2, "delivered")
        assert got.bodies == [b"frame 1", b"frame 2"]


def test_a_refusing_puback_is_refused(shared: Mosquitto, name: str) -> None:
    messages = [message(1, name), message(2, "denied"), message(3, name)]
    with sending(site(shared.url, mqtt_version="5"), messages) as (_, sent):
        wait_for(lambda: len(sent.confirms) == 2 and sent.refusals, "all answered")
        assert sorted(sent.confirms) == [1, 3]
        assert sent.refusals == [(2, Outcome.REFUSED, "Not authorized")]
        assert sent.down == []


def test_3_1_1_brokers_confirm_what_they_refuse(shared: Mosquitto) -> None:
    # The trap that the documentation warns of: there is no word for "no" in a 3.1.1 PUBACK.
    with sending(site(shared.url, mqtt_version="3.1.1"), [message(1, "denied")]) as (_, sent):
        wait_for(lambda: sent.confirms == [1], "confirmed")


def test_sizes_over_the_sites_limit_are_refused_unsent(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version, max_frame_bytes=2000)
    messages = [message(1, name, b"x" * 2001), message(2, name, b"x" * 2000)]
    with sending(where, messages) as (_, sent):
        wait_for(lambda: sent.confirms == [2] and sent.refusals, "answered")
        token, outcome, reason = sent.refusals[0]
        assert (token, outcome) == (1, Outcome.REFUSED)
        assert "max_frame_bytes" in reason


def test_maximum_packet_size_is_respected(make_broker: MakeBroker, name: str) -> None:
    broker = make_broker(config=["max_packet_size 5000"])
    messages = [message(1, name, b"x" * 6000), message(2, name, b"x" * 4900)]
    with sending(site(broker.url, mqtt_version="5"), messages) as (_, sent):
        wait_for(lambda: sent.confirms == [2] and sent.refusals, "answered")
        assert "Maximum Packet Size of 5000" in sent.refusals[0][2]
        assert sent.down == []


def test_too_large_for_a_3_1_1_broker_ends_the_connection(make_broker: MakeBroker, name: str) -> None:
    broker = make_broker(config=["max_packet_size 5000"])
    with sending(site(broker.url, mqtt_version="3.1.1"), [message(1, name, b"x" * 6000)]) as (sender, sent):
        wait_for(lambda: sent.down, "disconnected")
        sent.queue.append(message(2, name))
        wait_for(lambda: len(sent.up) == 2, "connected again")
        sender.wake()
        wait_for(lambda: sent.confirms == [2], "the next is confirmed")


def test_a_size_the_broker_refuses_is_refused(make_broker: MakeBroker, name: str) -> None:
    broker = make_broker(message_size_limit=1000, max_queued_messages=1_000_000)
    messages = [message(1, name, b"x" * 2000), message(2, name)]
    with sending(site(broker.url, mqtt_version="5"), messages) as (_, sent):
        wait_for(lambda: sent.confirms == [2] and sent.refusals, "answered")
        assert sent.refusals == [(1, Outcome.REFUSED, "Packet too large")]


def test_large_frames_get_through(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    bodies = [bytes([i]) * 3_000_000 for i in range(5)]
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "receiver connected")
        messages = [message(i, name, body) for i, body in enumerate(bodies)]
        with sending(where, messages) as (_, sent):
            wait_for(lambda: len(sent.confirms) == 5, "confirmed")
            wait_for(lambda: len(got.deliveries) == 5, "delivered")
        assert got.bodies == bodies


def test_the_plain_form_travels_as_user_properties(shared: Mosquitto, name: str) -> None:
    where = site(shared.url, mqtt_version="5")
    headers = {"rm-seq": "1", "account": "Ä", "empty": ""}
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "receiver connected")
        parts = [message(1, name, b"1", content_type=None, headers=headers)]
        with sending(where, parts) as (_, sent):
            wait_for(lambda: sent.confirms == [1], "confirmed")
            wait_for(lambda: got.deliveries, "delivered")
        assert got.deliveries[0].headers == headers
        assert got.deliveries[0].content_type is None
        assert got.deliveries[0].damaged is None


def test_the_plain_form_is_refused_at_3_1_1(shared: Mosquitto, name: str) -> None:
    parts = [message(1, name, content_type=None, headers={"rm-seq": "1"}), message(2, name)]
    with sending(site(shared.url, mqtt_version="3.1.1"), parts) as (_, sent):
        wait_for(lambda: sent.confirms == [2] and sent.refusals, "answered")
        assert "plain form needs MQTT 5" in sent.refusals[0][2]


def plain_parts(token: int, topic: str, count: int, **headers: str) -> list:  # type: ignore[type-arg]
    return [
        message(token, topic, b"%d" % i, content_type=None, headers={**headers}, parts_left=count - 1 - i)
        for i in range(count)
    ]


def test_a_token_of_many_messages_comes_back_once(shared: Mosquitto, name: str) -> None:
    # 100 messages are five times the broker's Receive Maximum, which closes a connection that exceeds it.
    where = site(shared.url, mqtt_version="5")
    parts = plain_parts(1, name, 100) + plain_parts(2, "denied", 100) + plain_parts(3, name, 1)
    with sending(where, parts) as (_, sent):
        wait_for(lambda: len(sent.confirms) == 2 and sent.refusals, "answered")
        sent.queue.append(message(4, name))
        sent_again = wait_for(lambda: 4 in sent.confirms, "the next is confirmed")
        assert sent_again
        assert sent.confirms == [1, 3, 4]
        assert [token for token, _, _ in sent.refusals] == [2]
        assert sent.down == []


@pytest.mark.parametrize("bad", ["nul\0", "line\n", "surrogate\ud800"])
def test_headers_that_brokers_refuse_do_not_cost_the_connection(
    shared: Mosquitto, name: str, bad: str
) -> None:
    parts = plain_parts(1, name, 2) + plain_parts(2, name, 2, h=bad) + plain_parts(3, name, 2)
    with sending(site(shared.url, mqtt_version="5"), parts) as (_, sent):
        wait_for(lambda: len(sent.confirms) == 2 and sent.refusals, "answered")
        assert sent.confirms == [1, 3]
        assert [token for token, _, _ in sent.refusals] == [2]
        assert sent.down == []


def test_more_messages_than_there_are_packet_ids(shared: Mosquitto, name: str, packet_ids: int) -> None:
    count, most_open = packet_ids + 465, min(5_000, packet_ids // 2)
    messages = [message(token, name) for token in range(count)]
    with sending(site(shared.url, mqtt_version="3.1.1"), messages, most_open=most_open) as (_, sent):
        wait_for(lambda: len(sent.confirms) >= count, "all confirmed", 60.0)
        assert sorted(sent.confirms) == list(range(count))
        assert sent.down == []


def test_an_overdue_confirm_forces_a_reconnect(make_broker: MakeBroker, version: str, name: str) -> None:
    broker = make_broker()
    with sending(site(broker.url, mqtt_version=version, connect_timeout=0.5)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        broker.pause()
        sent.queue.append(message(1, name))
        sender.wake()
        wait_for(lambda: sent.open, "handed out")
        sender.reconnect("confirm overdue")
        wait_for(lambda: sent.down == ["confirm overdue"], "disconnected", 2.0)
        # Nothing to drop while there is no connection.
        sender.reconnect("again")
        broker.resume()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        sent.queue.append(message(2, name))
        sender.wake()
        wait_for(lambda: 2 in sent.confirms, "confirmed")
        assert sent.down == ["confirm overdue"]


def test_a_silent_broker_is_noticed_by_the_keepalive(make_broker: MakeBroker, version: str) -> None:
    broker = make_broker()
    with sending(site(broker.url, mqtt_version=version, heartbeat=1.0)) as (_, sent):
        wait_for(lambda: sent.up, "connected")
        broker.pause()
        wait_for(lambda: sent.down, "disconnected", 10.0)
        assert "keepalive" in sent.down[0]


def test_a_producer_that_raises_loses_the_connection_only(shared: Mosquitto, version: str, name: str) -> None:
    with sending(site(shared.url, mqtt_version=version)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        sent.fail_in = "pull"
        sender.wake()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        sent.queue.append(message(1, name))
        sender.wake()
        wait_for(lambda: sent.confirms == [1], "confirmed")


def test_close_is_quick_and_the_last_word(shared: Mosquitto, version: str, name: str) -> None:
    with sending(site(shared.url, mqtt_version=version), [message(1, name)]) as (sender, sent):
        wait_for(lambda: sent.confirms, "confirmed")
        began = time.monotonic()
        sender.close(60.0)
        sender.close(60.0)
        assert time.monotonic() - began < 30.0
        assert sent.down == ["closed"]
        sender.wake()
        sender.reconnect("late")
        sender.bind([])
        assert sent.down == ["closed"]


def test_close_does_not_wait_for_a_stopped_broker(make_broker: MakeBroker, version: str, name: str) -> None:
    broker = make_broker()
    with sending(site(broker.url, mqtt_version=version)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        broker.pause()
        sent.queue.extend(message(token, name, b"x" * 1_000_000) for token in range(20))
        sender.wake()
        wait_for(lambda: sent.open, "handed out")
        began = time.monotonic()
        sender.close(2.0)
        assert time.monotonic() - began < 2.0 + STALL_S
        assert sent.confirms == []


def test_a_transport_that_never_started_can_be_closed(shared: Mosquitto) -> None:
    MqttSender(site(shared.url), "gateway-7", [], Sending()).close(1.0)


def test_nothing_secret_is_logged(
    make_broker: MakeBroker, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(users={"anna": "s3cret-word"})
    wrong = broker.url.replace("s3cret-word", "wr0ng-word")
    with caplog.at_level(logging.DEBUG):
        with sending(site(broker.url, mqtt_version=version)) as (sender, sent):
            wait_for(lambda: sent.up, "connected")
            assert "s3cret" not in repr(sender)
        with sending(site(wrong, mqtt_version=version)) as (_, sent):
            wait_for(lambda: sent.failed, "refused")
            assert sent.failed[0][2]
            assert "wr0ng" not in sent.failed[0][1]
    assert "s3cret" not in caplog.text
    assert "wr0ng" not in caplog.text
