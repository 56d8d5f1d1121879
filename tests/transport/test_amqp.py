"""The AMQP transport against a real RabbitMQ."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import struct
import time
from collections.abc import Iterator

import pika
import pytest
from pika import spec

from reliamsg.config import MAX_HEADERS, Site
from reliamsg.errors import ConfigError, TransientError
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp.groups import create_group
from reliamsg.transport.amqp.receiver import AmqpReceiver
from reliamsg.transport.base import Binding, Outcome
from reliamsg.wire.address import EXCHANGE, group_queue, lock_queue
from tests.patience import wait_for
from tests.transport.amqp_tools import plain_channel, receiving, sending, silent_port
from tests.transport.tools import message

SIZE_LIMIT = 300_000
_topics = (f"topic{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with RabbitNode(tmp_path_factory.mktemp("rabbit"), config=[f"max_message_size = {SIZE_LIMIT}"]) as node:
        yield node


@pytest.fixture
def site(node: RabbitNode) -> Site:
    return _site(node.url)


@pytest.fixture
def binding() -> Binding:
    """A topic of the test's own."""
    return Binding(next(_topics), 0, "g")


def _site(url: str, **settings: object) -> Site:
    return Site("dc1", url, backoff_min=0.05, backoff_max=0.5, connect_timeout=5.0, **settings)  # type: ignore[arg-type]


def test_frames_are_confirmed_delivered_and_forgotten_once_acknowledged(site: Site, binding: Binding) -> None:
    topic = binding.topic
    with sending(site, [binding]) as (sender, sent):
        sent.queue += [message(n, topic) for n in range(1, 501)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) == 500, "all confirmed")
        assert sorted(sent.confirms) == list(range(1, 501))
        assert not sent.refusals
    with receiving(site, [binding]) as (receiver, got):
        assert got.up[0][1] is True, "the queue was there already"
        prefetch = site.prefetch
        wait_for(lambda: len(got.deliveries) == prefetch, "a full window")
        assert got.bodies == [b"frame %d" % n for n in range(1, prefetch + 1)]
        first = got.deliveries[0]
        assert (first.address, first.content_type) == (topic, "application/vnd.reliamsg.batch")
        assert (dict(first.headers), first.redelivered, first.damaged) == ({}, False, None)
        assert got.empty == 0
        # Every second one, the newest first; then what is left, some of it twice, some unknown.
        receiver.acknowledge([d.token for d in reversed(got.deliveries[::2])])
        receiver.acknowledge([d.token for d in got.deliveries])
        receiver.acknowledge([got.deliveries[0].token, (0, 1)])
        acknowledged = prefetch
        while acknowledged < 500:
            wait_for(lambda done=acknowledged: len(got.deliveries) > done, "more")
            batch = got.deliveries[acknowledged:]
            receiver.acknowledge([d.token for d in batch])
            acknowledged += len(batch)
        wait_for(lambda: got.empty, "the queue is seen empty")
        assert got.bodies == [b"frame %d" % n for n in range(1, 501)]
    with receiving(site, [binding]) as (_, again):
        wait_for(lambda: again.empty, "the queue is still empty")
        assert not again.deliveries
        assert not got.down[1:]


def test_what_is_not_acknowledged_comes_again_and_old_tokens_are_void(site: Site, binding: Binding) -> None:
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sent.queue += [message(n, binding.topic) for n in range(1, 11)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 10, "ten deliveries")
        old = list(got.deliveries)
        receiver.acknowledge([old[1].token])
        # The acknowledgement is on its way before the connection is cut.
        wait_for(lambda: _acknowledged(receiver, 9), "acknowledgement written")
        got.deliveries.clear()
        receiver.reconnect("asked to")
        wait_for(lambda: len(got.deliveries) == 9, "nine come again")
        assert got.down == ["asked to"]
        assert b"frame 2" not in got.bodies
        assert all(delivery.redelivered for delivery in got.deliveries)
        receiver.acknowledge([d.token for d in old])
        receiver.acknowledge([got.deliveries[0].token])
        wait_for(lambda: _acknowledged(receiver, 8), "acknowledgement written")
        receiver.reconnect("once more")
        wait_for(lambda: len(got.deliveries) == 9 + 8, "what was not acknowledged")


def _acknowledged(receiver: AmqpReceiver, left: int) -> bool:
    """Whether acknowledgements are written, with so many deliveries left unacknowledged."""
    active = receiver.active
    return active is not None and len(active._held) == left and active.connection.buffered == 0


def test_an_unroutable_message_is_returned_and_not_confirmed(site: Site, binding: Binding) -> None:
    other = Binding(binding.topic + "-unbound", 0, "g")
    with sending(site, [binding]) as (sender, sent):
        sent.queue += [message(1, other.topic), message(2, binding.topic), message(3, other.topic)]
        sender.wake()
        wait_for(lambda: len(sent.refusals) == 2 and sent.confirms, "two returned, one confirmed")
        assert [(token, outcome) for token, outcome, _ in sent.refusals] == [
            (1, Outcome.RETURNED),
            (3, Outcome.RETURNED),
        ]
        assert "NO_ROUTE" in sent.refusals[0][2]
        # Bound from now on: what is pulled after bind() finds the queue.
        sender.bind([binding, other])
        sent.queue.append(message(4, other.topic))
        sender.wake()
        wait_for(lambda: 4 in sent.confirms, "confirmed once bound")
        assert sorted(sent.confirms) == [2, 4]
        assert not sent.down


def test_a_queue_deleted_under_the_producer_is_declared_again(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    with sending(site, [binding]) as (sender, sent):
        with plain_channel(node.port) as channel:
            channel.queue_delete(group_queue(binding.topic, 0, "g"))
        sent.queue.append(message(1, binding.topic))
        sender.wake()
        wait_for(lambda: sent.refusals, "returned")

        def tried_again() -> bool:
            if len(sent.confirms) == 0 and not sent.queue:
                sent.queue.append(message(sent.pulls + 10, binding.topic))
                sender.wake()
            return bool(sent.confirms)

        wait_for(tried_again, "the queue is back")


def test_the_parts_of_a_token_are_confirmed_together_or_refused(site: Site, binding: Binding) -> None:
    topic = binding.topic
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (_, got):
        headers = {"rm-v": "1", "rm-producer": "p", "account": "Ä"}
        for part in range(3):
            sent.queue.append(
                message(
                    1,
                    topic,
                    b"part %d" % part,
                    content_type=None,
                    headers=headers,
                    message_id=f"a{part}",
                    parts_left=2 - part,
                )
            )
        sent.queue.append(message(2, topic, b"a", message_id="b0", parts_left=1))
        sent.queue.append(message(2, "nobody-listens", b"b", message_id="b1"))
        sender.wake()
        wait_for(lambda: sent.confirms and sent.refusals, "one of each")
        assert sent.confirms == [1]
        assert [refusal[:2] for refusal in sent.refusals] == [(2, Outcome.RETURNED)]
        wait_for(lambda: len(got.deliveries) == 4, "what was routed")
        assert got.bodies == [b"part 0", b"part 1", b"part 2", b"a"]
        assert dict(got.deliveries[0].headers) == headers
        assert got.deliveries[0].content_type is None


def test_a_full_queue_that_rejects_is_a_nack(
    site: Site, node: RabbitNode, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    queue = group_queue(binding.topic, 0, "g")
    with plain_channel(node.port) as channel:
        channel.queue_declare(
            queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
    with sending(site, [binding]) as (sender, sent):
        assert f"{queue}" in caplog.text, "a queue that differs is used, with a warning"
        sent.queue += [message(n, binding.topic) for n in range(1, 6)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) + len(sent.refusals) == 5, "all answered")
        assert sent.refusals
        assert {refusal[1] for refusal in sent.refusals} == {Outcome.NACKED}
        assert not set(sent.confirms) & {refusal[0] for refusal in sent.refusals}


def test_a_message_over_the_site_limit_is_not_sent(node: RabbitNode, binding: Binding) -> None:
    with sending(_site(node.url, max_frame_bytes=1024), [binding]) as (sender, sent):
        sent.queue += [
            message(1, binding.topic, b"x" * 1025),
            message(2, binding.topic, b"x" * 1024),
            message(3, binding.topic, b"x", message_id="c0", parts_left=1),
            message(3, binding.topic, b"x" * 1025, message_id="c1"),
        ]
        sender.wake()
        wait_for(lambda: sent.confirms, "the other is confirmed")
        assert [refusal[:2] for refusal in sent.refusals] == [(1, Outcome.REFUSED), (3, Outcome.REFUSED)]
        assert sent.confirms == [2]
        assert not sent.down


def test_a_message_over_the_broker_limit_is_named_and_then_known(site: Site, binding: Binding) -> None:
    with sending(site, [binding]) as (sender, sent):
        sent.queue += [message(n, binding.topic, b"y" * (SIZE_LIMIT + (n == 3))) for n in range(1, 6)]
        sender.wake()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        assert [refusal[:2] for refusal in sent.refusals] == [(3, Outcome.REFUSED)]
        assert len(sent.down) == 1
        sent.queue += [
            message(7, binding.topic, b"y" * (SIZE_LIMIT + 1)),
            message(8, binding.topic, b"y" * SIZE_LIMIT),
        ]
        sender.wake()
        wait_for(lambda: 8 in sent.confirms, "the next is confirmed")
        assert sent.refusals[1][:2] == (7, Outcome.REFUSED)
        assert len(sent.down) == 1, "the limit is known by now"
        assert 3 not in sent.confirms


def test_one_consumer_per_group(site: Site, binding: Binding) -> None:
    more = [Binding(binding.topic, 1, "g"), binding]
    with receiving(site, more) as (_, first):
        with receiving(site, [binding], connect=False) as (_, second):
            wait_for(lambda: len(second.held) >= 2, "told that the group is busy, and tried again")
            assert lock_queue(binding.topic, 0, "g") in second.held[0]
            assert not second.up
            assert not second.failed
        assert len(first.up) == 1
        assert not first.down
        with receiving(site, [Binding(binding.topic, 0, "another")]) as (_, other):
            assert other.up[0][1] is False, "a group of its own, new here"
        third = receiving(site, more, connect=False)
        _, waiting = third.__enter__()
        wait_for(lambda: waiting.held, "busy")
    try:
        wait_for(lambda: waiting.up, "takes over")
    finally:
        third.__exit__(None, None, None)


@pytest.mark.parametrize("what", ["group queue", "lock queue"])
def test_a_queue_deleted_under_the_consumer_makes_it_start_again(
    site: Site, node: RabbitNode, binding: Binding, what: str
) -> None:
    queue = group_queue(binding.topic, 0, "g")
    with receiving(site, [binding]) as (_, got), sending(site, [binding]) as (sender, sent):
        wait_for(lambda: got.empty, "seen empty")
        if what == "group queue":
            with plain_channel(node.port) as channel:
                channel.queue_delete(queue)
        else:
            lock = lock_queue(binding.topic, 0, "g")
            node.ctl(
                "eval",
                f'rabbit_amqqueue:with(rabbit_misc:r(<<"/">>, queue, <<"{lock}">>), '
                'fun(Q) -> rabbit_amqqueue:delete(Q, false, false, <<"test">>) end).',
            )
        wait_for(lambda: len(got.up) == 2, "connected again")
        assert got.up[1][1] is (what == "lock queue")
        assert "queue is gone" in got.down[0]
        sent.queue.append(message(1, binding.topic))
        sender.wake()
        wait_for(lambda: got.deliveries, "delivered")
        wait_for(lambda: sent.confirms == [1], "and confirmed")


def test_a_missing_exchange_is_declared_again(site: Site, node: RabbitNode, binding: Binding) -> None:
    with sending(site, [binding]) as (sender, sent):
        with plain_channel(node.port) as channel:
            channel.exchange_delete(EXCHANGE)
        sent.queue.append(message(1, binding.topic))
        sender.wake()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        assert "NOT_FOUND" in sent.down[0]
        assert not sent.confirms
        assert not sent.refusals
        sent.queue.append(message(1, binding.topic))
        sender.wake()
        wait_for(lambda: sent.confirms == [1], "confirmed")


def test_wrong_credentials_are_told_and_shown_nowhere(
    node: RabbitNode, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = _site(f"amqp://guest:Hunter2@127.0.0.1:{node.port}")
    with sending(site, [binding], connect=False) as (_, sent), receiving(site, [binding], False) as (_, got):
        wait_for(lambda: sent.failed and got.failed, "refused")
        for _, reason, credentials in (sent.failed[0], got.failed[0]):
            assert credentials
            assert "ACCESS_REFUSED" in reason
            assert "Hunter2" not in reason
    with pytest.raises(ConfigError, match="ACCESS_REFUSED"):
        create_group(site, [binding], 10.0)
    assert "Hunter2" not in caplog.text


def test_nothing_of_a_message_or_a_login_is_logged(
    site: Site, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with sending(site, [binding]) as (sender, sent):
        sent.queue.append(message(1, "nobody-listens", b"body-of-the-message", message_id="id-1"))
        sender.wake()
        wait_for(lambda: sent.refusals, "returned")
    assert "pika" in caplog.text
    assert "guest" not in caplog.text
    assert "body-of-the-message" not in caplog.text


def test_applications_own_pika_is_left_alone(node: RabbitNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pika")
    with plain_channel(node.port):
        pass
    assert str(node.port) in caplog.text


def test_an_unknown_virtual_host(node: RabbitNode, binding: Binding) -> None:
    site = _site(f"amqp://guest:guest@127.0.0.1:{node.port}/nowhere")
    with sending(site, [binding], connect=False) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert "530" in sent.failed[0][1]
        assert not sent.failed[0][2], "the login itself was right"


def test_a_blocked_broker_is_a_state_and_not_a_failure(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    with sending(site, [binding]) as (sender, sent):
        node.ctl("set_vm_memory_high_watermark", "0")
        try:
            count = 0

            def told() -> bool:
                # RabbitMQ tells a connection only when it publishes, and the alarm takes a moment to get around.
                nonlocal count
                if not sent.blocks:
                    count += 1
                    sent.queue.append(message(count, binding.topic))
                    sender.wake()
                return bool(sent.blocks)

            wait_for(told, "told to stop")
            pulls = sent.pulls
            sent.queue.append(message(count + 1, binding.topic))
            sender.wake()
            assert sent.blocks[0]
        finally:
            node.ctl("set_vm_memory_high_watermark", "0.4")
        wait_for(lambda: sorted(sent.confirms) == list(range(1, count + 2)), "goes on")
        assert sent.blocks[-1] is None
        assert sent.pulls > pulls
        assert not sent.down


def test_the_first_endpoint_is_dead(node: RabbitNode, binding: Binding) -> None:
    dead = silent_port()
    site = _site(f"amqp://guest:guest@127.0.0.1:{dead},127.0.0.1:{node.port}/")
    with sending(site, [binding]) as (_, sent), receiving(site, [binding]) as (_, got):
        assert [failure[0] for failure in sent.failed] == [f"127.0.0.1:{dead}"]
        assert "refused" in sent.failed[0][1].lower()
        assert not sent.failed[0][2]
        assert sent.up == [(f"127.0.0.1:{node.port}", None)]
        assert got.up[0][0] == sent.up[0][0]
    create_group(site, [binding], 10.0)


def test_create_group_reports_what_is_wrong(node: RabbitNode, binding: Binding) -> None:
    with pytest.raises(TransientError, match=r"(?i)refused"):
        create_group(_site(f"amqp://guest:guest@127.0.0.1:{silent_port()}"), [binding], 2.0)
    with pytest.raises(ConfigError, match="does not exist"):
        create_group(_site(node.url, declare="passive"), [binding], 10.0)
    create_group(_site(node.url), [binding], 10.0)
    create_group(_site(node.url, declare="passive"), [binding], 10.0)
    with plain_channel(node.port) as channel:
        assert (
            channel.queue_declare(group_queue(binding.topic, 0, "g"), passive=True).method.message_count == 0
        )


def test_queues_are_gone_only_if_none_is_left(node: RabbitNode, binding: Binding) -> None:
    """Otherwise what waits in the others would count as lost."""
    site, found = _site(node.url), []
    both = [binding, Binding(f"{binding.topic}-2", 0, binding.group)]
    for bindings in ([binding], both, both):
        with receiving(site, bindings) as (_, got):
            found.append(got.up[0][1])
    assert found == [False, None, True]


def test_passive_declaration_creates_nothing(node: RabbitNode, binding: Binding) -> None:
    site = _site(node.url, declare="passive")
    with sending(site, [binding], connect=False) as (_, sent), receiving(site, [binding], False) as (_, got):
        wait_for(lambda: sent.failed and got.failed, "refused")
        assert "does not exist" in sent.failed[0][1]
        create_group(_site(node.url), [binding], 10.0)
        wait_for(lambda: sent.up and got.up, "both connect once it is there")


def _bomb_headers() -> dict[str, bytes]:
    """Header tables that RabbitMQ passes on and that pika can't decode, or would take for something."""
    nested_array = b"V"
    for _ in range(3000):
        nested_array = b"A" + struct.pack(">I", len(nested_array)) + nested_array
    nested_table = b"V"
    for _ in range(3000):
        nested_table = b"F" + struct.pack(">I", len(nested_table) + 2) + b"\x01k" + nested_table
    return {
        "timestamp": b"\x01tT" + struct.pack(">Q", 2**63),
        "arrays": b"\x01a" + nested_array,
        "tables": b"\x01f" + nested_table,
        "infinity": b"\x01dd" + struct.pack(">d", float("inf")),
        "many": b"".join(b"\x04%04dS\x00\x00\x00\x01v" % n for n in range(MAX_HEADERS + 40)),
    }


class _RawProperties(spec.BasicProperties):
    """Properties whose header table is given as bytes."""

    table = b""

    def encode(self) -> list[bytes]:
        return [struct.pack(">H", self.FLAG_HEADERS), struct.pack(">I", len(self.table)) + self.table]


def test_headers_that_break_the_decoder_arrive_as_damaged(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    bombs = _bomb_headers()
    with receiving(site, [binding]) as (receiver, got):
        taken = []
        for name, table in bombs.items():
            properties = _RawProperties()
            properties.table = table
            # A broker that itself refuses such a header closes this connection, not ours.
            try:
                with plain_channel(node.port) as channel:
                    channel.confirm_delivery()
                    channel.basic_publish(EXCHANGE, binding.topic, name.encode(), properties)
                    taken.append(name.encode())
            except pika.exceptions.AMQPError:
                continue
        assert {b"timestamp", b"arrays", b"tables", b"many"} <= set(taken)
        with plain_channel(node.port) as channel:
            sound = pika.BasicProperties(headers={"good": "yes", "number": 7, "list": ["x"]})
            channel.basic_publish(EXCHANGE, binding.topic, b"good", sound)
        wait_for(lambda: len(got.deliveries) == len(taken) + 1, "all are delivered")
        assert got.bodies == [*taken, b"good"]
        for delivery in got.deliveries[:-1]:
            assert delivery.damaged
            assert not delivery.headers
        assert dict(got.deliveries[-1].headers) == {"good": "yes"}
        assert got.deliveries[-1].damaged is None
        receiver.acknowledge([delivery.token for delivery in got.deliveries])
        wait_for(lambda: got.empty, "none of them comes again")
        assert not got.down


def test_a_message_too_large_to_take_in_arrives_without_its_body(
    site: Site, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliamsg.transport.amqp.pika_connection.MAX_FRAME_BYTES", 200_000)
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (_, got):
        sent.queue += [message(1, binding.topic, b"z" * 200_001), message(2, binding.topic)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 2, "both")
        assert got.bodies == [b"", b"frame 2"]
        assert got.deliveries[0].damaged is not None
        assert "200001 bytes" in got.deliveries[0].damaged


@pytest.mark.parametrize("event", ["confirmed", "pull"])
def test_an_event_handler_that_raises_costs_the_connection_only(
    site: Site, binding: Binding, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    with sending(site, [binding]) as (sender, sent):
        sent.fail_in = event
        sent.queue.append(message(1, binding.topic))
        sender.wake()
        wait_for(lambda: len(sent.up) == 2, "connected again")
        assert "internal error: RuntimeError" in sent.down[0]
        assert "an event handler that fails" in caplog.text
        sent.queue.append(message(2, binding.topic))
        sender.wake()
        wait_for(lambda: 2 in sent.confirms, "goes on")


def test_large_bodies_and_many_of_them(site: Site, binding: Binding) -> None:
    bodies = [bytes([n % 256]) * SIZE_LIMIT for n in range(60)]
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sent.most_at_once = 4
        sent.queue += [message(n + 1, binding.topic, body) for n, body in enumerate(bodies)]
        sender.wake()
        done = 0
        while done < len(bodies):
            wait_for(lambda seen=done: len(got.deliveries) > seen, "more")
            fresh = got.deliveries[done:]  # more may arrive meanwhile
            receiver.acknowledge([delivery.token for delivery in fresh])
            done += len(fresh)
        assert got.bodies == bodies
        wait_for(lambda: len(sent.confirms) == len(bodies), "all confirmed")


def test_a_broker_that_stops_answering_holds_nobody_up(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        node.pause()
        try:
            sender.reconnect("confirm overdue")
            receiver.reconnect("silent")
            wait_for(lambda: sent.down and got.down, "told at once")
            assert sent.down == ["confirm overdue"]
            wait_for(lambda: sent.failed, "an attempt runs into its time limit")
            assert "not connected within 5 s" in sent.failed[0][1]
            began = time.monotonic()
            receiver.close(60.0)
            assert time.monotonic() - began < 30.0
        finally:
            node.resume()
        wait_for(lambda: len(sent.up) == 2, "connected again")


def test_closing_is_quick_and_final(site: Site, binding: Binding) -> None:
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        began = time.monotonic()
        sender.close(60.0)
        receiver.close(60.0)
        assert time.monotonic() - began < 30.0
        assert (sent.down, got.down) == (["closed"], ["closed"])
        sender.wake()
        sender.reconnect("nobody hears this")
        receiver.acknowledge([(1, 1)])
        sender.close(1.0)


@pytest.mark.integrations
def test_a_killed_broker_returns_with_what_it_confirmed(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    with sending(site, [binding]) as (sender, sent):
        sent.queue += [message(n, binding.topic) for n in range(1, 301)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) == 300, "confirmed")
        queue = group_queue(binding.topic, 0, "g")
        wait_for(lambda: node.has_recorded(queue), "the queue itself is on the disk")
        node.kill()
        wait_for(lambda: sent.down and sent.failed, "noticed")
        node.start()
        wait_for(lambda: len(sent.up) == 2, "connected again", 60.0)
        sent.queue.append(message(301, binding.topic))
        sender.wake()
        wait_for(lambda: 301 in sent.confirms, "goes on")
    with receiving(site, [binding]) as (receiver, got):
        done = 0
        while done < 301:
            wait_for(lambda seen=done: len(got.deliveries) > seen, f"more than {done}")
            fresh = got.deliveries[done:]  # more may arrive meanwhile
            receiver.acknowledge([delivery.token for delivery in fresh])
            done += len(fresh)
        assert got.bodies == [b"frame %d" % n for n in range(1, 302)]


def test_connecting_again_and_again_leaves_nothing_open(
    site: Site, node: RabbitNode, binding: Binding
) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    dead = _site(f"amqp://guest:guest@127.0.0.1:{silent_port()}")
    dead = Site(
        "dead", "amqp://" + ",".join(map(str, dead.endpoints * 5)), backoff_min=0.001, backoff_max=0.002
    )
    with sending(site, [binding]) as (sender, sent), sending(dead, [binding], connect=False) as (_, failing):
        wait_for(lambda: len(failing.failed) >= 50, "failures")
        gc.collect()
        before = descriptors()
        for _ in range(20):
            seen = len(sent.up)
            sender.reconnect("again")
            wait_for(lambda seen=seen: len(sent.up) > seen, "connected again")
        wait_for(lambda: len(failing.failed) >= 500, "more failures")
        gc.collect()
        assert descriptors() <= before + 5
