"""What the AMQP transport's tests share: connections that are recorded, and other clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pika

from reliamsg.config import Site
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp.receiver import AmqpReceiver
from reliamsg.transport.amqp.sender import AmqpSender
from reliamsg.transport.amqp.topology import Refused, Script
from reliamsg.transport.base import Binding
from reliamsg.wire.address import EXCHANGE
from tests.patience import wait_for
from tests.transport.tools import Receiving, Sending, running


def silent_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def perform(script: Script[Any], channel: Any) -> Any:
    """Run a script without a broker: ``channel.answer(name, *arguments, **options)`` answers its requests."""
    try:
        request = next(script)
        while True:
            asked: list[Any] = []
            request(asked.append)
            (name, arguments, options) = asked[0]
            try:
                answer = channel.answer(name, *arguments, **options)
            except Refused as refused:
                request = script.throw(refused)
            else:
                request = script.send(answer)
    except StopIteration as ended:
        return ended.value


class Asked:
    """A channel that hands each request to its callback, for :func:`perform`."""

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any, callback: Any, **options: Any) -> None:
            callback((name, arguments, options))

        return ask


@contextmanager
def sending(
    site: Site, bindings: Sequence[Binding], connect: bool = True
) -> Iterator[tuple[AmqpSender, Sending]]:
    events = Sending()
    with running(AmqpSender(site, "p", bindings, events)) as sender:
        if connect:
            wait_for(lambda: events.up, f"the sender is connected; failed: {events.failed}")
            # A busy broker may take longer over a queue than a sender waits for it. That one goes on without; the tests
            # want their queues.
            wait_for(lambda: not sender.queues.stuck, "all queues are declared")
        yield sender, events
    assert {window for _, window in events.up} <= {None}, "AMQP sets no window"


@contextmanager
def receiving(
    site: Site, bindings: Sequence[Binding], connect: bool = True
) -> Iterator[tuple[AmqpReceiver, Receiving]]:
    events = Receiving()
    with running(AmqpReceiver(site, bindings, events)) as receiver:
        if connect:
            wait_for(lambda: events.up, f"the receiver is connected; failed: {events.failed}")
        yield receiver, events


@contextmanager
def short_of_memory(node: RabbitNode) -> Iterator[None]:
    """The node's memory alarm is on: it reads nothing more from connections that publish."""
    node.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        yield
    finally:
        node.ctl("set_vm_memory_high_watermark", "0.4")


@contextmanager
def plain_channel(port: int) -> Iterator[Any]:
    """A channel of plain pika, as any other client would have it."""
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, credentials=pika.PlainCredentials("guest", "guest"))
    )
    try:
        yield connection.channel()
    finally:
        connection.close()


# What was seen at the nodes of a cluster after partitions: bindings are listed, and nothing goes through them.


def edge(address: str) -> str:
    """The key, in Erlang, of the row of ``rabbit_topic_trie_edge`` that leads to an address."""
    return f'{{trie_edge, {{resource, <<"/">>, exchange, <<"{EXCHANGE}">>}}, root, "{address}"}}'


def forget_address(node: RabbitNode, address: str) -> None:
    """Nothing that is published at `address` reaches a queue any more."""
    assert node.evaluate(f"mnesia:dirty_delete(rabbit_topic_trie_edge, {edge(address)}).") == "ok"


def forget_queue(node: RabbitNode, queue: str) -> None:
    """What is published reaches other queues, and this one no more."""
    name = f'{{resource, <<"/">>, queue, <<"{queue}">>}}'
    rows = f"[K || {{_, K, _}} <- ets:tab2list(rabbit_topic_trie_binding), element(4, K) =:= {name}]"
    node.evaluate(f"[ok = mnesia:dirty_delete(rabbit_topic_trie_binding, K) || K <- {rows}].")
