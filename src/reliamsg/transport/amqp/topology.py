"""Exchange, queues, bindings and locks of an AMQP site, as scripts.

A script is a generator that yields one request after the other to the connection's script channel and is
sent the broker's answers. A refusal is raised inside the script as :class:`Refused`: it closes the channel,
but the script continues with a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.transport.base import Binding
from reliamsg.wire.address import EXCHANGE, group_queue, lock_queue, topic_address

__all__ = [
    "ACCESS_REFUSED", "STUCK", "STUCK_SECONDS", "Busy", "Refused", "Request", "Script", "ScriptConnection",
    "Unanswered", "ask_binding", "ask_exchange", "ask_queue", "bind_control", "declare", "delete",
    "listen_queue", "queue_arguments", "ready_count", "renew", "take_locks",
]  # fmt: skip

log: Log = Log(__name__)

ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406

CONTROL_QUEUE: dict[str, Any] = {
    "x-queue-type": "classic",
    "x-max-length-bytes": 16 * 1024 * 1024,
    "x-overflow": "drop-head",
    "x-message-ttl": 30_000,
}
"""Control frames that a listener does not fetch in time are worthless."""

RENEWED = "reliamsg-renewed"
"""An argument of a binding. It means nothing to brokers, except that this is another binding."""

MAX_RENEWALS = 1_000
"""How many bindings may be added to a queue's first one: they last as long as the queue. At most one is added for each
partition of a cluster that breaks the queue's path, so there are few."""

STUCK = "site %(site)s: the queue of %(topic)s for group %(group)s can't be reached at the broker: left out for now"
"""A log message."""

STUCK_SECONDS = (5.0, 60.0)
"""How long after that it is declared again: at first, doubling, and at most."""

T = TypeVar("T")
Address = tuple[str, int]
"""An address to bind at, and how often it was bound at before."""
Request = Callable[[Callable[[Any], None]], None]
Script = Generator[Request, Any, T]


class ScriptConnection(Protocol):
    """The part of a connection that scripts use."""

    server_version: tuple[int, ...]

    @property
    def script_channel(self) -> Any:
        """The channel for requests. A refusal replaces it, so every request reads it again."""


class Refused(Exception):
    """The broker closed the script channel over a request."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Unanswered(Exception):
    """The broker did not answer a request in time. The next one uses a new script channel."""


class Busy(Exception):
    """Another connection holds a lock queue of the group."""


def declare(
    connection: ScriptConnection, site: Site, bindings: Iterable[Binding], *, look_first: bool = False,
    stuck: set[Binding] | None = None, streams: set[str] | None = None,
) -> Script[bool | None]:  # fmt: skip
    """Declare exchange, group queues and bindings as ``site.declare`` says.

    With `look_first` the result is True if all queues existed before, False if none did, else None. Bindings in
    `stuck` are left out; those for which the broker does not answer, or whose queue is at a node that is down, are
    added to it. Queues that turn out to be streams are added to `streams`.
    """
    if site.declare == "none":
        return None
    yield from _declare_exchange(connection, site)
    existed: set[bool] = set()
    for binding in dict.fromkeys(bindings):
        if stuck is not None and binding in stuck:
            continue
        try:
            found = yield from _declare_bound(connection, site, binding, look_first, streams)
        except (Unanswered, Refused) as error:
            # With "create", a queue that is not found is at a node that is down.
            away = isinstance(error, Unanswered) or (site.declare == "create" and error.code == NOT_FOUND)
            if stuck is None or not away:
                raise
            stuck.add(binding)
        else:
            existed.add(found)
    return existed.pop() if look_first and len(existed) == 1 else None


def _declare_bound(
    connection: ScriptConnection, site: Site, binding: Binding, look_first: bool, streams: set[str] | None
) -> Script[bool]:
    """Declare a group's queue and bind it; the result is whether it existed, as far as that was checked."""
    queue = group_queue(binding.topic, binding.partition, binding.group)
    found = True
    if site.declare == "passive" or look_first:
        found = yield from _exists(connection, queue)
        if not found and site.declare == "passive":
            raise Refused(NOT_FOUND, f"queue {queue!r} does not exist, and declare='passive'")
    if site.declare == "create":
        yield from _declare_queue(connection, site, queue, streams)
        yield ask_binding(connection, queue, topic_address(binding.topic, binding.partition))
    return found


def renew(connection: ScriptConnection, site: Site, bindings: Iterable[Binding]) -> Script[None]:
    """Bind group queues once more, in case the broker does not use the binding that it lists: declaring that one again
    would do nothing. Only if ``site.declare`` permits it."""
    if site.declare != "create":
        return
    for binding in bindings:
        queue = group_queue(binding.topic, binding.partition, binding.group)
        address = topic_address(binding.topic, binding.partition)
        # Almost never one that is listed already, and as broken as the first; then the next attempt helps. Unbinding it
        # would break the paths of others.
        yield ask_binding(connection, queue, address, random.randint(1, MAX_RENEWALS))


def delete(connection: ScriptConnection, bindings: Iterable[Binding]) -> Script[None]:
    """Delete group queues with their messages; missing ones are skipped."""
    for binding in bindings:
        queue = group_queue(binding.topic, binding.partition, binding.group)
        try:
            yield _delete_queue(connection, queue)
        except Refused as refused:
            if refused.code != NOT_FOUND:
                raise


def take_locks(connection: ScriptConnection, bindings: Sequence[Binding]) -> Script[list[str]]:
    """Declare the exclusive lock queue of each binding, in order, and return their names.

    Raises :class:`Busy` if another connection holds one; those already taken are deleted with the connection, which
    the caller ends. The order is the same for every client, so that of two newcomers one gets them all.
    """
    taken = []
    for binding in sorted(set(bindings), key=lambda b: (b.topic, b.partition)):
        queue = lock_queue(binding.topic, binding.partition, binding.group)
        try:
            yield ask_queue(connection, queue, durable=False, exclusive=True)
        except Refused as refused:
            if refused.code == RESOURCE_LOCKED:
                raise Busy(f"another connection holds {queue}") from None
            raise
        taken.append(queue)
    return taken


def ready_count(connection: ScriptConnection, bindings: Iterable[Binding]) -> Script[int]:
    """Count the messages that wait in the queues of `bindings`, without those already delivered."""
    total = 0
    for binding in dict.fromkeys(bindings):
        queue = group_queue(binding.topic, binding.partition, binding.group)
        answer = yield ask_queue(connection, queue, passive=True)
        total += answer.method.message_count
    return total


def listen_queue(
    connection: ScriptConnection, queue: str, addresses: Iterable[Address]
) -> Script[dict[str, Refused]]:
    """Declare this connection's own queue for control frames; it is deleted with the channel that consumes it.

    ``site.declare`` does not apply: an operator cannot create such a queue in advance. The result is as with
    :func:`bind_control`.
    """
    yield ask_queue(connection, queue, exclusive=True, auto_delete=True, arguments=CONTROL_QUEUE)
    return (yield from bind_control(connection, queue, addresses))


def bind_control(
    connection: ScriptConnection, queue: str, addresses: Iterable[Address], drop: Iterable[Address] = ()
) -> Script[dict[str, Refused]]:
    """Bind the queue at `addresses`, even if it is bound already, and unbind it from those in `drop`.

    An address that is not permitted does not prevent binding the others; the result maps such addresses to reasons.
    """
    forbidden: dict[str, Refused] = {}
    for address, renewed in drop:
        yield _unbind(connection, queue, address, renewed)
    for address, renewed in addresses:
        try:
            yield ask_binding(connection, queue, address, renewed)
        except Refused as refused:
            if refused.code != ACCESS_REFUSED:
                raise
            forbidden[address] = refused
    return forbidden


def _declare_exchange(connection: ScriptConnection, site: Site) -> Script[None]:
    if site.declare == "create":
        try:
            yield ask_exchange(connection, passive=False)
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            log.warning(
                "transport.exchange_differs",
                "site %(site)s: exchange %(exchange)s exists, but differs; it is used as it is: %(reason)s",
                site=site.name, exchange=EXCHANGE, reason=refused.reason,
            )  # fmt: skip
        else:
            return
    yield ask_exchange(connection, passive=True)


def _declare_queue(
    connection: ScriptConnection, site: Site, queue: str, streams: set[str] | None
) -> Script[None]:
    arguments = queue_arguments(site, connection.server_version)
    try:
        yield ask_queue(connection, queue, durable=True, arguments=arguments)
    except Refused as refused:
        if refused.code != PRECONDITION_FAILED:
            raise
        if streams is not None and "current is 'stream'" in refused.reason:
            streams.add(queue)
        log.warning(
            "transport.queue_differs", "site %(site)s: a queue exists, but differs; it is used as it is: %(reason)s",
            site=site.name, queue=queue, reason=refused.reason,
        )  # fmt: skip
        yield ask_queue(connection, queue, passive=True)


def queue_arguments(site: Site, server_version: tuple[int, ...]) -> dict[str, Any]:
    """The arguments with which clients declare the queues of groups."""
    arguments: dict[str, Any] = {"x-queue-type": site.queue_type}
    if site.queue_type == "quorum" and server_version >= (4, 0):
        # From 4.0 on a message is dropped after 20 redeliveries unless this disables it: twenty crashes of a
        # consumer would lose it. Older servers refuse the value.
        arguments["x-delivery-limit"] = -1
    return arguments


def _exists(connection: ScriptConnection, queue: str) -> Script[bool]:
    try:
        yield ask_queue(connection, queue, passive=True)
    except Refused as refused:
        if refused.code == NOT_FOUND:
            return False
        raise
    return True


def ask_exchange(connection: ScriptConnection, *, passive: bool) -> Request:
    """Declare the exchange, or with `passive` only check that it exists."""
    return lambda done: connection.script_channel.exchange_declare(
        EXCHANGE, "topic", passive=passive, durable=True, callback=done
    )


def ask_queue(connection: ScriptConnection, queue: str, **options: Any) -> Request:
    """Declare a queue with pika's options."""
    return lambda done: connection.script_channel.queue_declare(queue, callback=done, **options)


def _delete_queue(connection: ScriptConnection, queue: str) -> Request:
    return lambda done: connection.script_channel.queue_delete(queue, callback=done)


def ask_binding(connection: ScriptConnection, queue: str, key: str, renewed: int = 0) -> Request:
    """Bind a queue to the exchange."""
    arguments = _arguments(renewed)
    return lambda done: connection.script_channel.queue_bind(
        queue, EXCHANGE, key, arguments=arguments, callback=done
    )


def _unbind(connection: ScriptConnection, queue: str, key: str, renewed: int = 0) -> Request:
    arguments = _arguments(renewed)
    return lambda done: connection.script_channel.queue_unbind(
        queue, EXCHANGE, key, arguments=arguments, callback=done
    )


def _arguments(renewed: int) -> dict[str, int] | None:
    return {RENEWED: renewed} if renewed else None
