"""Exchange, queues, bindings and locks of an AMQP site, as scripts.

A script is a generator that yields one request after the other to the connection's control channel and is
sent the broker's answer. What the broker refuses is raised inside the script as :class:`Refused`: a refusal
closes the channel, but the script goes on with a new one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from reliamsg.config import Site
from reliamsg.transport.base import Binding
from reliamsg.wire.address import EXCHANGE, group_queue, lock_queue, topic_address

__all__ = [
    "ACCESS_REFUSED", "STUCK", "STUCK_SECONDS", "Busy", "Control", "Refused", "Request", "Script", "Unanswered",
    "bind_control", "declare", "delete", "listen_queue", "ready_count", "renew", "take_locks",
]  # fmt: skip

log = logging.getLogger(__name__)

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
"""Control frames that a listener does not take in time are worth nothing any more."""

RENEWED = "reliamsg-renewed"
"""An argument of a binding, which brokers make nothing of but that it is another binding."""

MAX_RENEWALS = 1_000
"""So many bindings of a group's queue may be added to its first one: they stay as long as the queue. One is added with
each partition of a cluster, at most, that takes the queue's path; so there are a few."""

STUCK = "site %s: the queue of %s for group %s can't be reached at the broker: it is left out for now"
"""A line for the log."""

STUCK_SECONDS = (5.0, 60.0)
"""So long after that it is declared again: at first, doubling, and at most."""

T = TypeVar("T")
Address = tuple[str, int]
"""To bind at, and how often it was bound at before."""
Request = Callable[[Callable[[Any], None]], None]
Script = Generator[Request, Any, T]


class Control(Protocol):
    """The part of a connection that scripts use."""

    server_version: tuple[int, ...]

    @property
    def control(self) -> Any:
        """The control channel. A refusal replaces it, so it is asked for anew by every request."""


class Refused(Exception):
    """The broker closed the control channel over a request."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Unanswered(Exception):
    """The broker did not answer a request in time. The next one goes through a new control channel."""


class Busy(Exception):
    """Another connection holds a lock queue of the group."""


def declare(
    link: Control, site: Site, bindings: Iterable[Binding], *, look_first: bool = False,
    stuck: set[Binding] | None = None, streams: set[str] | None = None,
) -> Script[bool | None]:  # fmt: skip
    """Declare exchange, group queues and bindings as ``site.declare`` says.

    With `look_first` the result is whether all queues existed before, else None. What is in `stuck` is left out, and
    what the broker does not answer about, or keeps at a node that is away, is added to it. Queues that turn out to be
    streams are added to `streams`.
    """
    if site.declare == "none":
        return None
    yield from _declare_exchange(link, site)
    existed = True
    for binding in dict.fromkeys(bindings):
        if stuck is not None and binding in stuck:
            continue
        try:
            found = yield from _declare_bound(link, site, binding, look_first, streams)
        except (Unanswered, Refused) as error:
            # With "create" a queue that is not found has its home at a node that is away.
            away = isinstance(error, Unanswered) or (site.declare == "create" and error.code == NOT_FOUND)
            if stuck is None or not away:
                raise
            stuck.add(binding)
        else:
            existed = existed and found
    return existed if look_first else None


def _declare_bound(
    link: Control, site: Site, binding: Binding, look_first: bool, streams: set[str] | None
) -> Script[bool]:
    """Declare a group's queue and bind it; the result is whether it existed, as far as anybody looked."""
    queue = group_queue(binding.topic, binding.partition, binding.group)
    found = True
    if site.declare == "passive" or look_first:
        found = yield from _exists(link, queue)
        if not found and site.declare == "passive":
            raise Refused(NOT_FOUND, f"queue {queue!r} does not exist, and declare='passive'")
    if site.declare == "create":
        yield from _declare_queue(link, site, queue, streams)
        yield _bind(link, queue, topic_address(binding.topic, binding.partition))
    return found


def renew(link: Control, site: Site, bindings: Iterable[Binding]) -> Script[None]:
    """Bind group queues once more, where the broker may not be using the binding that it lists: declaring that again
    would do nothing. Only where ``site.declare`` lets us."""
    if site.declare != "create":
        return
    for binding in bindings:
        queue = group_queue(binding.topic, binding.partition, binding.group)
        address = topic_address(binding.topic, binding.partition)
        # Hardly ever one that is listed already, and may be as useless as the first: then the next attempt helps. To
        # unbind that would take the paths of others.
        yield _bind(link, queue, address, random.randint(1, MAX_RENEWALS))


def delete(link: Control, bindings: Iterable[Binding]) -> Script[None]:
    """Delete group queues, with what is in them; those that do not exist are left out."""
    for binding in bindings:
        queue = group_queue(binding.topic, binding.partition, binding.group)
        try:
            yield _delete_queue(link, queue)
        except Refused as refused:
            if refused.code != NOT_FOUND:
                raise


def take_locks(link: Control, bindings: Sequence[Binding]) -> Script[list[str]]:
    """Declare the exclusive lock queue of each binding, in order, and return their names.

    Raises :class:`Busy` when another connection holds one; those already taken go with the connection, which
    the caller ends. The order is the same for everybody, so that of two newcomers one gets them all.
    """
    taken = []
    for binding in sorted(set(bindings), key=lambda b: (b.topic, b.partition)):
        queue = lock_queue(binding.topic, binding.partition, binding.group)
        try:
            yield _queue(link, queue, durable=False, exclusive=True)
        except Refused as refused:
            if refused.code == RESOURCE_LOCKED:
                raise Busy(f"another connection holds {queue}") from None
            raise
        taken.append(queue)
    return taken


def ready_count(link: Control, bindings: Iterable[Binding]) -> Script[int]:
    """How many messages wait in the queues of `bindings`, not counting those delivered already."""
    total = 0
    for binding in dict.fromkeys(bindings):
        queue = group_queue(binding.topic, binding.partition, binding.group)
        answer = yield _queue(link, queue, passive=True)
        total += answer.method.message_count
    return total


def listen_queue(link: Control, queue: str, addresses: Iterable[Address]) -> Script[dict[str, Refused]]:
    """Declare this connection's own queue for control frames; it goes with the channel that consumes it.

    ``site.declare`` has no say in it: such a queue is nothing that an operator could have made before. The
    result is as with :func:`bind_control`.
    """
    yield _queue(link, queue, exclusive=True, auto_delete=True, arguments=CONTROL_QUEUE)
    return (yield from bind_control(link, queue, addresses))


def bind_control(
    link: Control, queue: str, addresses: Iterable[Address], drop: Iterable[Address] = ()
) -> Script[dict[str, Refused]]:
    """Bind the queue at `addresses`, also where it is bound already, and no longer at those in `drop`.

    An address that is not permitted does not keep the others from being bound; the result is which, and why.
    """
    forbidden: dict[str, Refused] = {}
    for address, renewed in drop:
        yield _unbind(link, queue, address, renewed)
    for address, renewed in addresses:
        try:
            yield _bind(link, queue, address, renewed)
        except Refused as refused:
            if refused.code != ACCESS_REFUSED:
                raise
            forbidden[address] = refused
    return forbidden


def _declare_exchange(link: Control, site: Site) -> Script[None]:
    if site.declare == "create":
        try:
            yield _exchange(link, passive=False)
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            log.warning("site %s: exchange %s exists, but differs: %s", site.name, EXCHANGE, refused.reason)
        else:
            return
    yield _exchange(link, passive=True)


def _declare_queue(link: Control, site: Site, queue: str, streams: set[str] | None) -> Script[None]:
    arguments: dict[str, Any] = {"x-queue-type": site.queue_type}
    if site.queue_type == "quorum" and link.server_version >= (4, 0):
        # From 4.0 a message is dropped after 20 redeliveries unless this says otherwise: twenty crashes of a
        # consumer would be a loss. Older servers refuse the value.
        arguments["x-delivery-limit"] = -1
    try:
        yield _queue(link, queue, durable=True, arguments=arguments)
    except Refused as refused:
        if refused.code != PRECONDITION_FAILED:
            raise
        if streams is not None and "current is 'stream'" in refused.reason:
            streams.add(queue)
        log.warning(
            "site %s: a queue exists, but differs; it is used as it is: %s", site.name, refused.reason
        )
        yield _queue(link, queue, passive=True)


def _exists(link: Control, queue: str) -> Script[bool]:
    try:
        yield _queue(link, queue, passive=True)
    except Refused as refused:
        if refused.code == NOT_FOUND:
            return False
        raise
    return True


def _exchange(link: Control, *, passive: bool) -> Request:
    return lambda done: link.control.exchange_declare(
        EXCHANGE, "topic", passive=passive, durable=True, callback=done
    )


def _queue(link: Control, queue: str, **options: Any) -> Request:
    return lambda done: link.control.queue_declare(queue, callback=done, **options)


def _delete_queue(link: Control, queue: str) -> Request:
    return lambda done: link.control.queue_delete(queue, callback=done)


def _bind(link: Control, queue: str, key: str, renewed: int = 0) -> Request:
    arguments = _arguments(renewed)
    return lambda done: link.control.queue_bind(queue, EXCHANGE, key, arguments=arguments, callback=done)


def _unbind(link: Control, queue: str, key: str, renewed: int = 0) -> Request:
    arguments = _arguments(renewed)
    return lambda done: link.control.queue_unbind(queue, EXCHANGE, key, arguments=arguments, callback=done)


def _arguments(renewed: int) -> dict[str, int] | None:
    return {RENEWED: renewed} if renewed else None
