"""Queues of groups whose bindings a real RabbitMQ lists and does not use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.config import Site
from reliamsg.consumer import site as site_module
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp import receiver as amqp_receiver
from reliamsg.transport.amqp import sender as amqp_sender
from reliamsg.transport.base import Binding, Outcome
from reliamsg.wire.address import EXCHANGE, group_address, group_queue, producer_address
from tests.e2e.tools import World, numbers, published, take
from tests.patience import wait_for
from tests.transport.amqp_tools import forget_address, forget_queue, receiving, sending
from tests.transport.tools import message


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with RabbitNode(tmp_path_factory.mktemp("rabbit")) as node:
        yield node


@pytest.fixture
def site(node: RabbitNode) -> Site:
    return Site("dc1", node.url, backoff_min=0.05, backoff_max=0.5, connect_timeout=10.0)


@pytest.fixture
def binding(unique: str) -> Binding:
    return Binding(unique, 0, unique)


def _bindings(node: RabbitNode, binding: Binding) -> int:
    """How many the broker lists of a group's queue and the exchange."""
    queue = group_queue(binding.topic, binding.partition, binding.group)
    lines = node.ctl("list_bindings", "source_name", "destination_name").splitlines()
    return lines.count(f"{EXCHANGE}\t{queue}")


def test_messages_that_are_returned_find_their_queues_again(
    node: RabbitNode, site: Site, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was returned is sent again; to declare the binding again does not help, to make another one does."""
    monkeypatch.setattr(amqp_sender, "REDECLARE_SECONDS", 0.1)
    tokens = itertools.count(1)
    with receiving(site, [binding]) as (receiver, got), sending(site, [binding]) as (sender, sent):
        got.transport = receiver

        def confirmed() -> bool:
            token = next(tokens)
            answers = len(sent.confirms) + len(sent.refusals)
            sent.queue.append(message(token, binding.topic))
            sender.wake()
            wait_for(lambda: len(sent.confirms) + len(sent.refusals) > answers, "an answer")
            return token in sent.confirms

        assert confirmed()
        for _ in range(3):
            sent.refusals.clear()
            forget_address(node, binding.topic)
            wait_for(confirmed, "it is confirmed again", poll=0.2)
            assert {outcome for _, outcome, _ in sent.refusals} == {Outcome.RETURNED}
        wait_for(lambda: len(got.deliveries) == len(sent.confirms), "all confirmed arrives")
        assert not sent.down
        assert 1 < _bindings(node, binding) <= 11


def test_a_receiver_binds_its_queue_once_more(node: RabbitNode, site: Site, binding: Binding) -> None:
    other = Binding(binding.topic, 0, f"{binding.group}2")
    with (
        receiving(site, [binding]) as (receiver, got),
        receiving(site, [other]) as (_, elsewhere),
        sending(site, [binding]) as (sender, sent),
    ):
        for number in (1, 3, 5):
            forget_queue(node, group_queue(binding.topic, 0, binding.group))
            sent.queue.append(message(number, binding.topic))
            sender.wake()
            wait_for(lambda n=number: n in sent.confirms, "confirmed, since another group has it")
            receiver.renew(binding.topic, binding.partition)
            wait_for(lambda n=number // 2: _bindings(node, binding) > min(n, 1), "it is bound once more")
            arrived = len(got.deliveries)

            def comes(arrived: int = arrived, number: int = number) -> bool:
                sent.queue.append(message(number + 1, binding.topic))
                sender.wake()
                return len(got.deliveries) > arrived

            wait_for(comes, "it is filled again", poll=0.2)
        wait_for(lambda: len(elsewhere.deliveries) == len(sent.confirms), "the other group has all")
        assert _bindings(node, other) == 1


@pytest.mark.parametrize("change", ["set_pid(Q, spawn(fun() -> ok end))", "set_state(Q, crashed)"])
def test_a_queue_that_nobody_leads_keeps_nobody_from_the_others(
    node: RabbitNode, unique: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The broker does not answer about it, or says that it is away. Its stream waits; others flow."""
    monkeypatch.setattr(amqp_sender, "STUCK_SECONDS", (2.0, 4.0))
    monkeypatch.setattr(amqp_receiver, "STUCK_SECONDS", (2.0, 4.0))
    options = {"backoff_min": 0.05, "backoff_max": 0.5, "connect_timeout": 6.0, "queue_type": "classic"}
    site = Site("dc1", node.url, **options)  # type: ignore[arg-type]
    dead, fine = Binding(f"{unique}1", 0, unique), Binding(f"{unique}2", 0, unique)
    own = producer_address(unique)
    with receiving(site, [dead]) as (receiver, got):
        got.transport = receiver
    name = f'{{resource, <<"/">>, queue, <<"{group_queue(dead.topic, 0, unique)}">>}}'
    found = f"{{ok, Q}} = rabbit_amqqueue:lookup({name})"
    node.evaluate(f"{found}, application:set_env(rabbit, kept, Q).")
    node.evaluate(f"{found}, mnesia:dirty_write(rabbit_queue, amqqueue:{change}).")
    with (
        sending(site, [dead, fine], connect=False) as (sender, sent),
        receiving(site, [dead, fine], connect=False) as (receiver, got),
    ):
        sender.listen([own])
        wait_for(lambda: sent.up and got.up, "connected all the same")
        assert sender.queues.stuck == receiver.queues.stuck == {dead}
        got.transport = receiver
        sent.queue += [message(n, fine.topic) for n in range(1, 11)]
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 10 and len(sent.confirms) == 10, "others flow")
        wait_for(
            lambda: receiver.send_control(own, b"state") and sent.frames, "control frames pass", poll=0.2
        )
        assert got.empty == 0, "nobody knows what is in that queue"
        assert sent.down == got.down == []
        node.evaluate("{ok, Q} = application:get_env(rabbit, kept), mnesia:dirty_write(rabbit_queue, Q).")
        wait_for(lambda: not sender.queues.stuck | receiver.queues.stuck, "nothing is left out")
        wait_for(lambda: len(got.up) == 2, "connected anew, to read it")
        sent.queue.append(message(100, dead.topic))
        sender.wake()
        wait_for(lambda: len(got.deliveries) == 11, "it flows too")
        wait_for(lambda: got.empty, "all are seen empty")
        assert sent.down == []


def test_where_nothing_may_be_declared_nothing_is(node: RabbitNode, site: Site, binding: Binding) -> None:
    with receiving(site, [binding]):
        pass
    passive = Site("dc1", node.url, declare="passive")
    with receiving(passive, [binding]) as (receiver, got):
        receiver.renew(binding.topic, binding.partition)
        receiver.listen([group_address(binding.group)])  # which is done after that
        wait_for(
            lambda: receiver.send_control(group_address(binding.group), b"beacon") and got.frames,
            "heard",
            poll=0.1,
        )
    assert _bindings(node, binding) == 1


def test_a_group_that_gets_repairs_only_gets_its_queue_back(
    tmp_path: Path, node: RabbitNode, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two groups one is forgotten. It loses nothing, and in the end its queue is filled again."""
    monkeypatch.setattr(site_module, "SILENT_S", 1.0)
    monkeypatch.setattr(amqp_receiver, "CHECK_AGAIN_SECONDS", 1.0)
    world = World(tmp_path, unique, [Site("dc1", node.url)])
    try:
        producer = world.producer(f"{unique}p", groups=[f"{unique}a", f"{unique}b"], release="consumed")
        groups = [world.consumer(name, group=f"{unique}{name}") for name in "ab"]
        published(producer, unique, 1, 10)
        for consumer in groups:
            assert numbers(take(consumer, 10)) == list(range(1, 11))
        forget_queue(node, group_queue(unique, 0, f"{unique}a"))
        first = 11
        queued = groups[0].status().sites["dc1"].received

        def filled() -> bool:
            nonlocal first
            published(producer, unique, first, first + 9)
            for consumer in groups:
                assert numbers(take(consumer, 10)) == list(range(first, first + 10))
            first += 10
            return groups[0].status().sites["dc1"].received > queued

        wait_for(filled, "something comes out of its queue again", poll=0.2)
        assert groups[0].status().repaired > 0
        assert groups[1].status().repaired == 0
        report = world.check()
        assert report.verdict == "complete", report.text()
    finally:
        world.close()
