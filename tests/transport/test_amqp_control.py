"""Control frames at a real RabbitMQ."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterator

import pytest

from reliamsg.config import Site
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp import control as amqp_control
from reliamsg.transport.base import CONTROL_BACKLOG_BYTES, Binding
from reliamsg.wire.address import EXCHANGE, group_address, producer_address, status_address
from tests.patience import wait_for
from tests.transport.amqp_tools import (
    forget_address,
    plain_channel,
    receiving,
    sending,
    short_of_memory,
)
from tests.transport.tools import message, replace_addresses, told

SIZE_LIMIT = 300_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with RabbitNode(tmp_path_factory.mktemp("rabbit"), config=[f"max_message_size = {SIZE_LIMIT}"]) as node:
        yield node


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that was closed is opened again soon."""
    monkeypatch.setattr(amqp_control, "REOPEN_SECONDS", (0.05, 0.5))


@pytest.fixture
def site(node: RabbitNode) -> Site:
    return _site(node.url)


@pytest.fixture
def binding(unique: str) -> Binding:
    """A topic and a group of the test's own."""
    return Binding(unique, 0, unique)


def _site(url: str, **settings: object) -> Site:
    return Site("dc1", url, backoff_min=0.05, backoff_max=0.5, connect_timeout=10.0, **settings)  # type: ignore[arg-type]


def _control_queues(node: RabbitNode) -> list[str]:
    return [name for name in node.queues() if name.startswith("reliamsg:control:")]


def test_both_directions_hear_at_their_addresses(node: RabbitNode, site: Site, binding: Binding) -> None:
    status, group = status_address(binding.topic), group_address(binding.group)
    own = producer_address(binding.topic)
    with sending(site, [binding], connect=False) as (sender, sent):
        assert not sender.send_control(status, b"too early")
        sender.listen([own])
        wait_for(lambda: sent.up, "connected")
        assert sender.send_control(status, b"nobody is there")
        with receiving(site, [binding], connect=False) as (receiver, got):
            assert not receiver.send_control(own, b"too early")
            receiver.listen([status, group])
            wait_for(lambda: got.up, "connected")
            told(sender.send_control, status, b"status", got)
            told(receiver.send_control, own, b"state", sent)
            # In order, its own among them, empty and as large as a repair; and beside it the data.
            large = bytes(range(256)) * (SIZE_LIMIT // 256)
            bodies = [b"", b"beacon", large, *(b"%d" % number for number in range(500))]
            for body in bodies:
                assert receiver.send_control(group, body)
            sent.queue += [message(n, binding.topic) for n in range(1, 51)]
            sender.wake()
            wait_for(lambda: [b for a, b in got.frames if a == group] == bodies, "all is heard")
            wait_for(lambda: len(got.deliveries) == 50, "the data came")
            assert b"nobody is there" not in [body for _, body in got.frames]
            assert {address for address, _ in sent.frames} == {own}
            assert len(_control_queues(node)) == 2
        assert not receiver.send_control(own, b"closed")
        wait_for(lambda: len(_control_queues(node)) == 1, "a queue goes with its connection", poll=0.5)
    assert not sent.failed
    assert not got.failed


def test_told_on_connecting_and_after_a_reconnect(site: Site, binding: Binding) -> None:
    """Listening begins before `connected`: who tells something then hears it, each time."""
    group = group_address(binding.group)
    with receiving(site, [binding], connect=False) as (receiver, got):
        receiver.listen([group])
        up = got.connected

        def connected(endpoint: str, session_present: bool | None) -> None:
            up(endpoint, session_present)
            assert receiver.send_control(group, b"connected %d" % len(got.up))

        got.connected = connected  # type: ignore[method-assign]
        wait_for(lambda: got.frames == [(group, b"connected 1")], "heard")
        receiver.reconnect("test")
        wait_for(lambda: got.frames[1:] == [(group, b"connected 2")], "heard again")
    assert got.down == ["test", "closed"]


def test_addresses_are_replaced_while_connected(site: Site, binding: Binding) -> None:
    with sending(site, [binding]) as (sender, _), receiving(site, [binding]) as (receiver, got):
        assert sender.send_control("nowhere", b"x")
        replace_addresses(sender, receiver, got, binding.topic)


@pytest.mark.usefixtures("quick")
def test_a_queue_that_is_deleted_is_declared_again(node: RabbitNode, site: Site, binding: Binding) -> None:
    status = status_address(binding.topic)
    with sending(site, [binding]) as (sender, _), receiving(site, [binding]) as (receiver, got):
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        for queue in _control_queues(node):
            node.ctl("delete_queue", queue)
        told(sender.send_control, status, b"after", got)
        assert not got.down


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners soon find out that they hear nothing."""
    monkeypatch.setattr(amqp_control, "CHECK_SECONDS", 0.3)
    monkeypatch.setattr(amqp_control, "PROBE_SECONDS", 0.5)


@pytest.mark.usefixtures("watchful")
def test_bindings_that_were_taken_away_are_made_anew(node: RabbitNode, site: Site, binding: Binding) -> None:
    status = status_address(binding.topic)
    with sending(site, [binding]) as (sender, _), receiving(site, [binding]) as (receiver, got):
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        with plain_channel(node.port) as channel:
            channel.exchange_delete(EXCHANGE)
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
        told(sender.send_control, status, b"after", got)
        assert not got.down


@pytest.mark.usefixtures("watchful")
def test_bindings_that_the_broker_lists_and_does_not_use(
    node: RabbitNode, site: Site, binding: Binding
) -> None:
    """To declare such a binding again does nothing. All who listen at the address are deaf."""
    status, own = status_address(binding.topic), producer_address(binding.topic)
    second = Binding(binding.topic, 0, f"{binding.group}2")
    with (
        sending(site, [binding]) as (sender, sent),
        receiving(site, [binding]) as (receiver, got),
        receiving(site, [second]) as (another, heard),
    ):
        sender.listen([own])
        receiver.listen([status])
        another.listen([status])
        for round_ in (b"1", b"2"):  # what heals it must not be listed by then either
            told(sender.send_control, status, b"before" + round_, got)
            told(sender.send_control, status, b"before" + round_, heard)
            told(receiver.send_control, own, b"before" + round_, sent)
            for address in (status, own):
                forget_address(node, address)
            told(sender.send_control, status, b"after" + round_, got)
            told(sender.send_control, status, b"after" + round_, heard)
            told(receiver.send_control, own, b"after" + round_, sent)
        # Given up, it is given up, however often it was bound.
        receiver.listen([group_address(binding.group)])
        told(sender.send_control, group_address(binding.group), b"elsewhere", got)
        queues = node.ctl("list_bindings", "source_name", "destination_name", "routing_key").splitlines()
        listening = [line.split("\t")[1] for line in queues if line.split("\t")[-1] == status]
        assert len(set(listening)) == 1, "one group is left"
        assert not [a for recorded in (got, heard, sent) for a, body in recorded.frames if b"probe" in body]
        assert not got.down + heard.down + sent.down


@pytest.mark.usefixtures("watchful")
def test_where_no_binding_helps_a_new_connection_must(
    node: RabbitNode, site: Site, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_effect(*_: object) -> Generator[None, None, dict[str, str]]:
        return {}
        yield

    own = producer_address(binding.topic)
    with (
        sending(site, [binding], connect=False) as (sender, sent),
        receiving(site, [binding]) as (receiver, _),
    ):
        sender.listen([own])
        wait_for(lambda: sent.up, "connected")
        told(receiver.send_control, own, b"before", sent)
        monkeypatch.setattr(amqp_control, "bind_control", without_effect)
        forget_address(node, own)
        wait_for(lambda: sent.down, "it connects anew")
        assert sent.down[0].startswith(f"nothing arrives at {own}")
        told(receiver.send_control, own, b"after", sent)


@pytest.mark.usefixtures("watchful")
def test_where_listeners_may_not_probe(node: RabbitNode, binding: Binding) -> None:
    """A group that may not write where producers do finds out nothing, and loses nothing by it."""
    status, own = status_address(binding.topic), producer_address(binding.topic)
    node.ctl("add_user", binding.topic, "secret")
    node.ctl("set_permissions", binding.topic, ".*", ".*", ".*")
    node.ctl("set_topic_permissions", binding.topic, EXCHANGE, "^reliamsg:producer:", ".*")
    restricted = _site(node.url.replace("guest:guest", f"{binding.topic}:secret"))
    with (
        sending(_site(node.url), [binding]) as (sender, sent),
        receiving(restricted, [binding]) as (receiver, got),
    ):
        sender.listen([own])
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        refusals = "access to topic '" + status
        log = node.directory / "log"
        wait_for(
            lambda: any(refusals in path.read_text() for path in log.glob("*.log")), "the probe was refused"
        )
        told(receiver.send_control, own, b"state", sent)
        with plain_channel(node.port) as channel:
            channel.exchange_delete(EXCHANGE)
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
        told(sender.send_control, status, b"after", got)
        assert not got.down


@pytest.mark.usefixtures("quick")
def test_a_frame_that_the_broker_refuses_ends_nothing_else(
    node: RabbitNode, site: Site, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    status, own = status_address(binding.topic), producer_address(binding.topic)
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sender.listen([own])
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        assert sender.send_control(status, bytes(SIZE_LIMIT + 1)), (
            "the transport does not know the broker's limit"
        )
        sent.queue += [message(n, binding.topic) for n in range(1, 51)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) == 50, "data is confirmed")
        told(sender.send_control, status, b"after", got)
        told(receiver.send_control, own, b"heard again", sent)
        assert not sent.down
        assert not sender.send_control(status, bytes(site.max_frame_bytes + 1))
    assert "control frames" in caplog.text


def test_the_backlog_is_bounded(node: RabbitNode, site: Site, binding: Binding) -> None:
    """A broker that stands still takes nothing; what is told then is dropped, in the end, and never waits."""
    status = status_address(binding.topic)
    with sending(site, [binding]) as (sender, _), receiving(site, [binding]) as (receiver, got):
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        node.pause()
        try:
            body = bytes(100_000)
            taken = 0
            while sender.send_control(status, body):
                taken += 1
                assert taken * len(body) < 100 * CONTROL_BACKLOG_BYTES
        finally:
            node.resume()
        told(sender.send_control, status, b"after", got)


def test_a_site_that_permits_nothing_of_it(
    node: RabbitNode, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; data flows."""
    permitted = f"^(reliamsg:(lock:)?{binding.topic}:.*|reliamsg)$"
    node.ctl("add_user", binding.topic, "secret")
    node.ctl("set_permissions", binding.topic, permitted, permitted, permitted)
    site = _site(node.url.replace("guest:guest", f"{binding.topic}:secret"))
    caplog.set_level(logging.WARNING, "reliamsg")
    with sending(site, [binding], connect=False) as (sender, sent):
        sender.listen([producer_address("p")])
        wait_for(lambda: sent.up, "connected")
        with receiving(site, [binding]) as (receiver, got):
            receiver.listen([status_address(binding.topic)])
            sent.queue += [message(n, binding.topic) for n in range(1, 11)]
            sender.wake()
            wait_for(lambda: len(got.deliveries) == 10, "data flows")
            sender.reconnect("test")
            wait_for(lambda: len(sent.up) == 2, "connected again")
    said = [record for record in caplog.records if "control frames" in record.getMessage()]
    assert len(said) == 2, "once for each transport"
    assert sent.down == ["test", "closed"]


def test_an_address_that_is_not_permitted_ends_neither_data_nor_listening(
    node: RabbitNode, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ's topic permissions close the channel over one frame; nothing more is told for a while then."""
    monkeypatch.setattr(amqp_control, "REOPEN_SECONDS", (0.05, 0.5))
    own, status = producer_address(binding.topic), status_address(binding.topic)
    node.ctl("add_user", binding.topic, "secret")
    node.ctl("set_permissions", binding.topic, ".*", ".*", ".*")
    node.ctl("set_topic_permissions", binding.topic, EXCHANGE, f"^{binding.topic}$", ".*")
    restricted = _site(node.url.replace("guest:guest", f"{binding.topic}:secret"))
    with (
        sending(restricted, [binding]) as (sender, sent),
        receiving(_site(node.url), [binding]) as (receiver, got),
    ):
        sender.listen([own])
        receiver.listen([status])
        told(receiver.send_control, own, b"heard", sent)
        sender.send_control(status, b"forbidden")
        wait_for(lambda: not sender.send_control(status, b"forbidden"), "nothing more is taken")
        sent.queue += [message(n, binding.topic) for n in range(1, 11)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 10, "data flows")
        told(receiver.send_control, own, b"heard again", sent)
        assert not sender.send_control(status, b"forbidden")
        assert not sent.down
        assert not got.frames


@pytest.mark.parametrize("declare", ["passive", "none"])
def test_sites_where_nothing_may_be_declared(
    site: Site, node: RabbitNode, binding: Binding, declare: str
) -> None:
    """What an operator makes is the topology; the queue for control frames is the connection's own."""
    with receiving(site, [binding]):
        pass
    status = status_address(binding.topic)
    site = _site(node.url, declare=declare)
    with sending(site, [binding]) as (sender, _), receiving(site, [binding]) as (receiver, got):
        receiver.listen([status])
        told(sender.send_control, status, b"status", got)


def test_a_blocked_connection_takes_nothing(node: RabbitNode, site: Site, binding: Binding) -> None:
    status, own = status_address(binding.topic), producer_address(binding.topic)
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sender.listen([own])
        receiver.listen([status])
        told(sender.send_control, status, b"before", got)
        with short_of_memory(node):
            sent.queue.append(message(1, binding.topic))
            sender.wake()
            wait_for(lambda: sent.blocks, "blocked")
            assert not sender.send_control(status, b"blocked")
        wait_for(lambda: sent.blocks[-1] is None, "no longer blocked")
        told(sender.send_control, status, b"after", got)
        assert (status, b"blocked") not in got.frames


def test_telling_does_not_keep_a_group_from_acknowledging(node: RabbitNode, binding: Binding) -> None:
    """A broker that is short of memory stops reading from whoever publishes: a group's acknowledgements must not
    wait for that, since they are what frees the memory."""
    site = _site(node.url, prefetch=10)
    group = group_address(binding.group)
    with contextlib.ExitStack() as stack, sending(site, [binding]) as (sender, sent):
        sent.queue += [message(n, binding.topic) for n in range(1, 101)]
        sender.wake()
        wait_for(lambda: len(sent.confirms) == 100, "confirmed")
        stack.enter_context(short_of_memory(node))
        with receiving(site, [binding]) as (receiver, got):
            receiver.listen([group])
            wait_for(lambda: len(got.deliveries) == 10, "a window")
            wait_for(lambda: not receiver.send_control(group, b"beacon"), "telling is blocked", poll=0.05)
            got.transport = receiver
            receiver.acknowledge([delivery.token for delivery in got.deliveries])
            wait_for(lambda: len(got.deliveries) == 100, "all came, though the broker is short of memory")
            got.frames.clear()
            stack.close()
            told(receiver.send_control, group, b"no longer blocked", got)
            assert not got.down


@pytest.mark.usefixtures("quick")
def test_the_connection_that_a_group_tells_through_comes_back(
    node: RabbitNode, site: Site, binding: Binding
) -> None:
    """Both are to be found at the broker; the end of the one for telling does not touch the other."""
    group = group_address(binding.group)
    with receiving(site, [binding]) as (receiver, got):
        receiver.listen([group])
        told(receiver.send_control, group, b"before", got)
        mine = _connections(node, binding)
        assert len(mine) == 2
        consuming = {pid for pid, channels in mine.items() if channels > 2}
        (telling,) = set(mine) - consuming
        node.ctl("close_connection", telling, "test")
        wait_for(lambda: telling not in _connections(node, binding), "closed", poll=1.0)
        told(receiver.send_control, group, b"after", got)
        assert not got.down
        receiver.reconnect("test")
        wait_for(lambda: len(got.up) == 2, "connected again")
        told(receiver.send_control, group, b"after a reconnect", got)
        wait_for(lambda: len(_connections(node, binding)) == 2, "the old ones are gone", poll=1.0)
    wait_for(lambda: not _connections(node, binding), "all are gone", poll=1.0)


def test_frames_for_one_client_are_returned_while_it_does_not_listen(
    node: RabbitNode, site: Site, binding: Binding
) -> None:
    """Those for whoever is interested in a topic are not."""
    own, group = producer_address(binding.topic), group_address(binding.group)
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sender.send_control(status_address(binding.topic), b"anybody?")
        sender.send_control(group, b"repair")
        receiver.send_control(own, b"state")
        wait_for(lambda: sent.returned and got.returned, "the frames are returned")
        receiver.listen([group])
        told(sender.send_control, group, b"now", got)
        assert (set(sent.returned), set(got.returned)) == ({group}, {own})
        assert not sent.down + got.down


@pytest.mark.usefixtures("quick")
def test_a_peer_that_is_not_reached_is_tried_through_another_endpoint(
    node: RabbitNode, binding: Binding
) -> None:
    """The connection that a group reads with is not concerned."""
    site = _site(f"{node.url.rpartition('@')[0]}@127.0.0.1:{node.port},localhost:{node.port}/%2F")
    assert len(site.endpoints) == 2
    own, group = producer_address(binding.topic), group_address(binding.group)
    with sending(site, [binding]) as (sender, sent), receiving(site, [binding]) as (receiver, got):
        sent.elsewhere = got.elsewhere = True
        sender.send_control(group, b"repair")
        wait_for(lambda: len(sent.up) == 2, "the producer is connected again")
        assert "another node may reach it" in sent.down[0]
        assert str(sent.up[0]) != str(sent.up[1])
        before = _connections(node, binding)
        receiver.send_control(own, b"state")
        wait_for(lambda: got.returned, "the state is returned")
        wait_for(lambda: len(set(_connections(node, binding)) - set(before)) == 1, "one is new", poll=0.5)
        sent.elsewhere = got.elsewhere = False
        sender.listen([own])
        receiver.listen([group])
        told(sender.send_control, group, b"repair", got)
        told(receiver.send_control, own, b"state", sent)
        assert not got.down


def _connections(node: RabbitNode, binding: Binding) -> dict[str, int]:
    """How many channels each of the group's connections has."""
    table = node.ctl("list_connections", "pid", "channels", "client_properties")
    rows = [line.split("\t") for line in table.splitlines() if f"reliamsg group {binding.group}" in line]
    return {pid: int(channels) for pid, channels, _ in rows}
