"""Finding out what a client may do at an AMQP site, and what is there, without changing anything.

Requests that would change something, or take messages, are made with an argument that RabbitMQ rejects after it has
checked the permission: ``PRECONDITION_FAILED`` then means that the request is permitted, and ``ACCESS_REFUSED`` that it
is not. See ``handle_method`` in RabbitMQ's rabbit_channel.erl: the permissions of ``basic.publish`` are checked before
the user id and the expiration, those of ``queue.declare`` and ``basic.consume`` before their arguments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reliamsg.config import Endpoint, Site
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.pika_connection import properties
from reliamsg.transport.amqp.topology import (
    ACCESS_REFUSED,
    CONTROL_QUEUE,
    Refused,
    Request,
    Script,
    ScriptConnection,
    ask_binding,
    ask_exchange,
    ask_queue,
    queue_arguments,
)
from reliamsg.transport.base import Binding
from reliamsg.transport.session import Ended
from reliamsg.wire.address import EXCHANGE, control_queue, group_queue, lock_queue

__all__ = ["Answer", "Examined", "Questions", "QueueAnswers", "examine"]

NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 404, 405, 406


@dataclass(frozen=True)
class Answer:
    """How the broker answered a request."""

    code: int = 0
    """0 if it was carried out; otherwise the code of the refusal."""
    reason: str = ""
    messages: int = 0
    consumers: int = 0

    @property
    def done(self) -> bool:
        return not self.code

    @property
    def missing(self) -> bool:
        return self.code == NOT_FOUND

    @property
    def forbidden(self) -> bool:
        return self.code == ACCESS_REFUSED

    @property
    def permitted(self) -> bool:
        """Whether a request with an invalid argument was refused for that alone."""
        return self.code in (PRECONDITION_FAILED, RESOURCE_LOCKED)


@dataclass(frozen=True)
class Questions:
    """What one client does at the site."""

    publishes: Sequence[str]
    """The addresses that it publishes to, control addresses included."""
    listens: Sequence[str]
    """The control addresses that it listens at."""
    queues: Sequence[Binding]
    """The groups whose queues it declares."""
    reads: bool
    """Whether it reads these queues."""


@dataclass(frozen=True)
class QueueAnswers:
    """A group's queue."""

    exists: Answer
    declared: Answer
    """Declaring it as a client would, if it exists; otherwise whether it may be declared."""
    read: Answer | None = None
    lock: Answer | None = None


@dataclass
class Examined:
    """The answers of a site."""

    version: tuple[int, ...] = (0,)
    exchange: Answer = Answer()
    exchange_declared: Answer | None = None
    """Declaring it as clients do, if it exists."""
    control_queue: Answer = Answer()
    listens: dict[str, Answer] = field(default_factory=dict)
    publishes: dict[str, Answer] = field(default_factory=dict)
    queues: dict[Binding, QueueAnswers] = field(default_factory=dict)


def examine(site: Site, endpoint: Endpoint, deadline: float, questions: Questions) -> Examined | Ended:
    """Connect to one endpoint and ask; the reason if that was not possible by the deadline (``time.monotonic()``).

    Declares an exclusive queue of its own, which ends with the connection, and binds it to the control addresses.
    Creates, changes and consumes nothing else.
    """
    connection = AmqpConnection(site, endpoint, site.login(), deadline, "reliamsg doctor")
    found: list[Examined] = []
    failed: list[Ended] = []

    def begin() -> None:
        connection.perform(_script(connection, site, questions), done, refused)

    def done(result: Examined) -> None:
        found.append(result)
        connection.close(1.0)

    def refused(error: Refused) -> None:
        failed.append(Ended(f"the broker refuses: {error}"))
        connection.close(1.0)

    ended = connection.run(begin)
    return found[0] if found else failed[0] if failed else ended


def _script(connection: AmqpConnection, site: Site, questions: Questions) -> Script[Examined]:
    found = Examined(connection.server_version)
    found.exchange = yield from _ask(ask_exchange(connection, passive=True))
    if not found.exchange.done:
        return found
    if site.declare == "create":
        found.exchange_declared = yield from _ask(ask_exchange(connection, passive=False))
    yield from _ask_control(connection, questions.listens, found)
    for address in questions.publishes:
        found.publishes[address] = yield from _ask(_publish(connection, address))
    for binding in questions.queues:
        found.queues[binding] = yield from _ask_queue(connection, site, binding, questions.reads)
    return found


def _ask_control(connection: ScriptConnection, addresses: Iterable[str], found: Examined) -> Script[None]:
    queue = control_queue(f"doctor-{secrets.token_hex(4)}")
    declare = ask_queue(connection, queue, exclusive=True, auto_delete=True, arguments=CONTROL_QUEUE)
    found.control_queue = yield from _ask(declare)
    if found.control_queue.done:
        for address in addresses:
            found.listens[address] = yield from _ask(ask_binding(connection, queue, address))


def _ask_queue(
    connection: ScriptConnection, site: Site, binding: Binding, reads: bool
) -> Script[QueueAnswers]:
    queue = group_queue(binding.topic, binding.partition, binding.group)
    exists = yield from _ask(ask_queue(connection, queue, passive=True))
    if exists.done:
        arguments = queue_arguments(site, connection.server_version)
        declared = yield from _ask(ask_queue(connection, queue, durable=True, arguments=arguments))
    else:
        declared = yield from _ask(_invalid_queue(connection, queue, durable=True))
    read = lock = None
    if reads:
        if exists.done:
            read = yield from _ask(_invalid_consume(connection, queue))
        name = lock_queue(binding.topic, binding.partition, binding.group)
        lock = yield from _ask(_invalid_queue(connection, name, exclusive=True))
    return QueueAnswers(exists, declared, read, lock)


def _ask(request: Request) -> Script[Answer]:
    try:
        answer = yield request
    except Refused as refused:
        return Answer(refused.code, refused.reason)
    method = getattr(answer, "method", None)
    return Answer(
        messages=getattr(method, "message_count", 0), consumers=getattr(method, "consumer_count", 0)
    )


def _publish(connection: ScriptConnection, address: str) -> Request:
    """A message that is not routed: its expiration is no number, and its user id is nobody's."""

    def request(done: Callable[[Any], None]) -> None:
        channel = connection.script_channel
        invalid = properties(expiration="never", user_id=f"nobody-{secrets.token_hex(8)}")
        channel.basic_publish(EXCHANGE, address, b"", invalid)
        # Answered only if the broker has not closed the channel.
        channel.exchange_declare(EXCHANGE, "topic", passive=True, callback=done)

    return request


def _invalid_queue(connection: ScriptConnection, queue: str, **options: Any) -> Request:
    arguments: Mapping[str, Any] = {"x-expires": "never"}
    return ask_queue(connection, queue, arguments=arguments, **options)


def _invalid_consume(connection: ScriptConnection, queue: str) -> Request:
    return lambda done: connection.script_channel.basic_consume(
        queue, lambda *_: None, arguments={"x-priority": "none"}, callback=done
    )
