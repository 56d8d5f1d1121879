"""A broker in memory, with faults on demand: what stands behind the in-memory transports.

It models what matters to a client: topics that fan out to a durable queue per group, confirms, deliveries
that stay the broker's until they are acknowledged, one active reader per group. With ``protocol="amqp"`` an
unroutable message is returned and a queue can be seen empty; with ``"mqtt"`` it is confirmed and gone, unless
somebody has made the group (:meth:`MemoryBroker.create_group`, or a consumer that reads), and acknowledgements count in
receive order.

Nothing here runs by itself. Methods may be called from any thread and never wait; every random choice comes
from one seeded generator, so that one thread makes one history.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing
from reliamsg.transport.memory.control import MemoryControl
from reliamsg.wire.address import created_address, is_created, topic_address
from reliamsg.wire.control import encode_mark

__all__ = ["Connection", "MemoryBroker", "Refused"]

Refusal = tuple[Outcome, str]
Queue = tuple[str, int, str]
"""Topic, partition and group."""

_IGNORED: Refusal = (Outcome.REFUSED, "no answer at all")


class Refused(Exception):
    """The broker takes no connection now."""

    def __init__(self, reason: str, *, credentials: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.credentials = credentials
        self.busy = busy


@dataclass(slots=True)
class _Held:
    """A delivery that is not acknowledged yet."""

    queue: Queue
    message: Delivery
    acknowledged: bool = False


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection, as the broker sees it. Clients read `alive` and `reason`, nothing else."""

    wake: Callable[[], None]
    alive: bool = True
    reason: str = ""
    client: str = ""
    results: list[tuple[int, Refusal | None]] = field(default_factory=list)
    """Tokens with their outcome, not told to the client yet."""
    partial: dict[int, Refusal | None] = field(default_factory=dict)
    """Tokens whose last message is still to come."""
    queues: list[Queue] = field(default_factory=list)
    unacknowledged: dict[int, _Held] = field(default_factory=dict)
    seen_empty: bool = False
    """The client knows that its queues are empty."""


class MemoryBroker:
    """A broker at one site. Its faults are methods; all can be called at any time, on any thread.

    ``lost`` counts the messages that it confirmed and then did not keep, once per queue (or once, where none
    was bound): a test shows with it that a fault mattered.
    """

    def __init__(
        self,
        name: str,
        *,
        protocol: Literal["amqp", "mqtt"] = "amqp",
        seed: int = 0,
        max_frame_bytes: int | None = None,
        window: int | None = None,
    ) -> None:
        self.name = name
        self.protocol = protocol
        self.max_frame_bytes = max_frame_bytes
        """Messages with a larger body are refused."""
        self.window = window
        """What it tells senders about its own limit of unconfirmed messages."""
        self.max_inflight: int | None = None
        """MQTT: how many messages it sends ahead of acknowledgements, as a broker does that its client can't tell its
        own limit (3.1.1); None: as many as the client asks for."""
        self.lost = 0
        self.tells_subscribers = True
        """MQTT: whether it says so where nobody subscribes, as MQTT 5 brokers can; others only keep a group's mark."""
        self.groups_changed = 0
        """How often groups came or went, or what it says of them changed."""
        self._marks: dict[str, bytes] = {}
        """By address."""
        self._mistaken = False
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._watchers: list[Callable[[], None]] = []
        self._connections: list[Connection] = []
        self._queues: dict[Queue, deque[Delivery]] = {}
        self._owners: dict[Queue, Connection] = {}
        self._up = True
        self._login_refused = False
        self._blocked: str | None = None
        self._hold_confirms = self._hold_deliveries = self._shuffle_confirms = False
        self._refusals: dict[str, Refusal] = {}
        self._lose = self._ignore = self._duplicate = self._damage = 0
        self._reorder_window = 1
        self._numbers = 0
        self.control = MemoryControl(self._lock, self._random)
        """Its control frames, with faults of their own."""

    # Faults of the whole broker

    def down(self) -> None:
        """Drop every connection and take no new one."""
        with self._lock:
            self._up = False
            self._drop_all("connection lost")

    def up(self, *, lose: bool = False) -> None:
        """Take connections again; with ``lose``, as a broker whose data directory was wiped."""
        with self._lock:
            if lose:
                self._forget()
            self._up = True
            self._wake_all()

    def cut(self) -> None:
        """Drop every connection; clients may connect again at once."""
        with self._lock:
            self._drop_all("connection reset")

    def wipe(self) -> None:
        """Lose all queues, with what is in them, and every connection."""
        with self._lock:
            self._drop_all("connection lost")  # first: it puts back what was not acknowledged
            self._forget()

    def block(self, reason: str = "low on memory") -> None:
        """Ask senders to stop sending, until ``unblock()``."""
        with self._lock:
            self._blocked = reason
            self._wake_all()

    def unblock(self) -> None:
        """End ``block()``."""
        with self._lock:
            self._blocked = None
            self._wake_all()

    def refuse_login(self, refused: bool = True) -> None:
        """Refuse every login from now on, or no longer. Connections that stand stay."""
        with self._lock:
            self._login_refused = refused
            self._wake_all()

    # Faults on the way in

    def hold_confirms(self) -> None:
        """Keep what is published but confirm nothing, until ``release_confirms()``."""
        with self._lock:
            self._hold_confirms = True

    def release_confirms(self) -> None:
        """Send all confirms that are held back, on connections that still stand."""
        with self._lock:
            self._hold_confirms = False
            self._wake_all()

    def confirm_out_of_order(self, on: bool = True) -> None:
        """Send the confirms that are due together in random order."""
        with self._lock:
            self._shuffle_confirms = on

    def lose(self, messages: int) -> None:
        """Confirm and forget the next so many messages."""
        with self._lock:
            self._lose = messages

    def ignore(self, messages: int) -> None:
        """Neither keep nor confirm the next so many messages."""
        with self._lock:
            self._ignore = messages

    def duplicate(self, messages: int) -> None:
        """Put the next so many messages into their queues twice."""
        with self._lock:
            self._duplicate = messages

    def damage(self, messages: int) -> None:
        """Flip one bit in the body of each of the next so many messages."""
        with self._lock:
            self._damage = messages

    def refuse(self, topic: str, outcome: Outcome, reason: str = "refused by the test") -> None:
        """Answer what is published to `topic` with `outcome`, and keep none of it, until ``accept()``."""
        with self._lock:
            self._refusals[topic] = (outcome, reason)

    def accept(self, topic: str) -> None:
        """End ``refuse()``."""
        with self._lock:
            self._refusals.pop(topic, None)

    # Faults on the way out

    def hold_deliveries(self) -> None:
        """Deliver nothing until ``release_deliveries()``."""
        with self._lock:
            self._hold_deliveries = True

    def release_deliveries(self) -> None:
        """End ``hold_deliveries()``."""
        with self._lock:
            self._hold_deliveries = False
            self._wake_all()

    def reorder(self, window: int) -> None:
        """Deliver a random one of the next `window` messages of a queue each time; 1 ends that."""
        with self._lock:
            self._reorder_window = max(1, window)

    def inject(
        self,
        topic: str,
        body: bytes,
        *,
        partition: int = 0,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        retained: bool = False,
    ) -> int:
        """Put a message from elsewhere into every queue of a topic, and return their number."""
        at = topic_address(topic, partition)
        delivery = Delivery(0, at, body, content_type, dict(headers or {}), retained=retained)
        return self.inject_delivery(topic, delivery, partition=partition)

    def inject_delivery(self, topic: str, delivery: Delivery, *, partition: int = 0) -> int:
        """Put a delivery into every queue of a topic, and return their number. It may claim another address, or be
        damaged."""
        with self._lock:
            queues = self._queues_of(topic, partition)
            self._store(queues, delivery)
            return len(queues)

    def delete_queue(self, topic: str, group: str, partition: int = 0) -> None:
        """Delete a group's queue, with what is in it; its reader loses its connection."""
        with self._lock:
            queue = (topic, partition, group)
            owner = self._owners.get(queue)
            if owner is not None:
                self._drop(owner, "the queue was deleted")
            self.lost += len(self._queues.pop(queue, ()))
            self.groups_changed += 1
            self._wake_all()

    def create_group(
        self, topic: str, group: str, partition: int = 0, *, keys: KeyRing | None = None
    ) -> None:
        """Have messages of a topic kept for a group from now on, as ``reliamsg group create`` does."""
        with self._lock:
            self._create((topic, partition, group))
            address = created_address(topic, partition, group)
            self._marks[address] = encode_mark(address, keys)
            self._wake_all()

    def delete_group(self, topic: str, group: str, partition: int = 0) -> None:
        """The opposite, as ``reliamsg group delete`` does."""
        with self._lock:
            self._marks.pop(created_address(topic, partition, group), None)
            self.delete_queue(topic, group, partition)

    def answer_wrongly(self, on: bool = True) -> None:
        """MQTT: say of every group that nobody subscribes, as some brokers do, or tell the truth again."""
        with self._lock:
            self._mistaken = on
            self.groups_changed += 1
            self._wake_all()

    # What tests look at

    def queued(self, topic: str | None = None, group: str | None = None) -> int:
        """How many messages wait here, delivered and unacknowledged ones included."""
        with self._lock:
            wanted = [
                queue
                for queue in self._queues
                if (topic is None or queue[0] == topic) and (group is None or queue[2] == group)
            ]
            held = [held for connection in self._connections for held in connection.unacknowledged.values()]
            return sum(len(self._queues[queue]) for queue in wanted) + sum(h.queue in wanted for h in held)

    @property
    def unconfirmed(self) -> int:
        """How many batches were published on connections that stand and wait for their confirm."""
        with self._lock:
            return sum(len(connection.results) for connection in self._connections)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self._lock:
            return len(self._connections)

    # What the transports call

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called whenever something happens that may matter to a client."""
        with self._lock:
            self._watchers.append(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """End ``watch()``."""
        with self._lock:
            self._watchers.remove(wake)

    def connect_sender(self, client: str, wake: Callable[[], None]) -> Connection:
        """A connection to publish on, or :class:`Refused`."""
        with self._lock:
            self._admit()
            connection = Connection(wake, client=client)
            self._connections.append(connection)
            return connection

    def connect_receiver(
        self, client: str, wake: Callable[[], None], bindings: Iterable[Binding]
    ) -> tuple[Connection, bool]:
        """A connection that reads these groups' queues, and whether all of them existed; or
        :class:`Refused`."""
        with self._lock:
            self._admit()
            queues = [(b.topic, b.partition, b.group) for b in bindings]
            for queue in queues:
                if queue in self._owners:
                    raise Refused(self._owners[queue].client, busy=True)
            existed = all(queue in self._queues for queue in queues)
            connection = Connection(wake, client=client, queues=queues)
            self._connections.append(connection)
            for queue in queues:
                self._create(queue)
                self._owners[queue] = connection
            self._wake_all()
            return connection, existed

    def declare(self, bindings: Iterable[Binding]) -> None:
        """Make sure that these groups' queues exist."""
        with self._lock:
            for binding in bindings:
                self._queues.setdefault((binding.topic, binding.partition, binding.group), deque())

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what it shows of groups."""
        with self._lock:
            return {binding: self._evidence(binding) for binding in bindings}

    def blocked_reason(self) -> str | None:
        """Why senders are asked to stop, None when they are not."""
        with self._lock:
            return self._blocked

    def publish(self, connection: Connection, messages: Sequence[Outgoing], limit: int) -> None:
        """Take messages; larger ones than `limit` (the client's own setting) were never sent."""
        with self._lock:
            if not connection.alive:
                return
            for message in messages:
                so_far = connection.partial.pop(message.token, None)
                if self._ignore:
                    self._ignore -= 1
                    so_far = _IGNORED
                else:
                    so_far = so_far or self._take(message, limit)
                if message.parts_left:
                    connection.partial[message.token] = so_far
                elif so_far is not _IGNORED:
                    connection.results.append((message.token, so_far))

    def results(self, connection: Connection) -> list[tuple[int, Refusal | None]]:
        """The outcomes that the client can be told now."""
        with self._lock:
            if self._hold_confirms or not connection.alive:
                return []
            due, connection.results = connection.results, []
            if self._shuffle_confirms:
                self._random.shuffle(due)
            return due

    def fetch(self, connection: Connection, prefetch: int) -> list[Delivery]:
        """The next messages for a reader that holds at most `prefetch` unacknowledged ones."""
        with self._lock:
            found: list[Delivery] = []
            if self._hold_deliveries or not connection.alive:
                return found
            for queue in connection.queues:
                ready = self._queues[queue]
                while ready and len(connection.unacknowledged) < prefetch:
                    at = self._random.randrange(min(len(ready), self._reorder_window))
                    message = ready[at]
                    del ready[at]
                    self._numbers += 1
                    connection.unacknowledged[self._numbers] = _Held(queue, message)
                    found.append(msgspec.structs.replace(message, token=(connection, self._numbers)))
            if found:
                connection.seen_empty = False
            return found

    def turned_empty(self, connection: Connection) -> bool:
        """Whether the reader's queues are all empty, told once each time."""
        with self._lock:
            if self.protocol == "mqtt" or connection.seen_empty or not connection.alive:
                return False
            connection.seen_empty = not any(self._queues[queue] for queue in connection.queues)
            return connection.seen_empty

    def acknowledge(self, connection: Connection, tokens: Iterable[object]) -> None:
        """Forget these deliveries; tokens of another connection are ignored."""
        with self._lock:
            for token in tokens:
                if not isinstance(token, tuple) or token[0] is not connection:
                    continue
                held = connection.unacknowledged.get(token[1])
                if held is not None:
                    held.acknowledged = True
            for number, held in list(connection.unacknowledged.items()):
                if held.acknowledged:
                    del connection.unacknowledged[number]
                elif self.protocol == "mqtt":  # PUBACKs go out in the order of the PUBLISHes
                    break

    def listen(self, connection: Connection, addresses: Iterable[str]) -> None:
        """Replace the control addresses at which a client listens."""
        with self._lock:
            if connection.alive:
                self.control.listen(connection, connection.wake, addresses)

    def tell(self, connection: Connection, address: str, body: bytes) -> bool:
        """Hand a control frame to whoever listens at its address now; False where it is dropped."""
        with self._lock:
            if not connection.alive or self._blocked is not None:
                return False
            told = self.control.tell(address, body)
            if told and is_created(address) and self._marks.get(address) != body:
                self._marks[address] = body
                self.groups_changed += 1
                self._wake_all()
            return told

    def drop(self, connection: Connection, reason: str) -> None:
        """End a connection; what its client had not acknowledged will be delivered again."""
        with self._lock:
            self._drop(connection, reason)

    # Inside, under the lock

    def _admit(self) -> None:
        if not self._up:
            raise Refused("connection refused")
        if self._login_refused:
            raise Refused("login refused", credentials=True)

    def _create(self, queue: Queue) -> None:
        self._queues.setdefault(queue, deque())
        self.groups_changed += 1

    def _evidence(self, binding: Binding) -> Evidence | Mark:
        queue = (binding.topic, binding.partition, binding.group)
        if self.tells_subscribers:
            there = queue in self._queues and not self._mistaken
            return Evidence.SUBSCRIBED if there else Evidence.NOT_SUBSCRIBED
        return self._marks.get(created_address(*queue), Evidence.NOT_MARKED)

    def _take(self, message: Outgoing, limit: int) -> Refusal | None:
        size = len(message.body)
        largest = limit if self.max_frame_bytes is None else min(limit, self.max_frame_bytes)
        if size > largest:
            return Outcome.REFUSED, f"a message of {size} bytes; the site takes {largest}"
        if message.topic in self._refusals:
            return self._refusals[message.topic]
        queues = self._queues_of(message.topic, message.partition)
        if not queues and self.protocol == "amqp":
            return Outcome.RETURNED, "no queue is bound to this topic"
        if not queues:
            self.lost += 1
            return None
        if self._lose:
            self._lose -= 1
            self.lost += len(queues)
            return None
        address = topic_address(message.topic, message.partition)
        self._store(
            queues, Delivery(0, address, message.body, message.content_type, dict(message.headers or {}))
        )
        return None

    def _store(self, queues: Sequence[Queue], message: Delivery) -> None:
        if self._damage and message.body:
            self._damage -= 1
            body = bytearray(message.body)
            bit = self._random.randrange(len(body) * 8)
            body[bit // 8] ^= 1 << bit % 8
            message = msgspec.structs.replace(message, body=bytes(body))
        times = 1
        if self._duplicate:
            self._duplicate -= 1
            times = 2
        for queue in queues:
            self._queues[queue].extend([message] * times)
            owner = self._owners.get(queue)
            if owner is not None:
                owner.seen_empty = False
                owner.wake()

    def _queues_of(self, topic: str, partition: int) -> list[Queue]:
        return [queue for queue in self._queues if queue[:2] == (topic, partition)]

    def _forget(self) -> None:
        self.lost += sum(map(len, self._queues.values()))
        self._queues.clear()
        self._marks.clear()
        self.groups_changed += 1

    def _drop_all(self, reason: str) -> None:
        for connection in list(self._connections):
            self._drop(connection, reason)

    def _drop(self, connection: Connection, reason: str) -> None:
        if not connection.alive:
            return
        connection.alive = False
        connection.reason = reason
        self._connections.remove(connection)
        self.control.leave(connection)
        for held in reversed(connection.unacknowledged.values()):
            self._queues[held.queue].appendleft(msgspec.structs.replace(held.message, redelivered=True))
        connection.unacknowledged.clear()
        for queue in connection.queues:
            if self._owners.get(queue) is connection:
                del self._owners[queue]
        self._wake_all()

    def _wake_all(self) -> None:
        for wake in list(self._watchers):
            wake()
