"""A broker in the memory of this process: what the in-memory transports connect to.

It makes one :class:`~reliamsg.transport.memory.model.BrokerModel` available to threads. Nothing here runs by itself.
Methods may be called from any thread and never wait. :class:`reliamsg.testing.MemoryBroker` adds faults on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outgoing
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.model import (
    BrokerModel,
    BrokerSession,
    Copy,
    Fate,
    MessageFaults,
    QueueKey,
    Refusal,
    queue_of,
)
from reliamsg.wire.address import created_address
from reliamsg.wire.control import encode_mark

__all__ = ["LocalBroker", "NoFaults", "Refused"]


class Refused(Exception):
    """The broker takes no connection now."""

    def __init__(self, reason: str, *, credentials: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.credentials = credentials
        self.busy = busy


class NoFaults:
    """The :class:`~reliamsg.transport.memory.model.MessageFaults` of a broker that works."""

    def before_routing(self, message: Outgoing) -> Fate | None:
        return None

    def fate(self, session: BrokerSession, message: Outgoing, copies: Sequence[Copy]) -> Fate:
        return Fate(copies)

    def pick(self, waiting: int) -> int:
        return 0


class LocalBroker:
    """A broker at one site."""

    def __init__(self, name: str, protocol: Literal["amqp", "mqtt"], faults: MessageFaults) -> None:
        self.name = name
        self.protocol = protocol
        self.max_frame_bytes: int | None = None
        """Messages with a larger body are refused."""
        self.window: int | None = None
        """The limit of unconfirmed messages that it announces to senders."""
        self.max_inflight: int | None = None
        """MQTT: how many messages it sends ahead of acknowledgements, as a broker does whose client can't tell it a
        limit (3.1.1); None: as many as the client asks for."""
        self.takes_over = False
        """MQTT: whether a reader takes over the session of another one, as at real brokers. Otherwise the
        group is busy."""
        self.tells_subscribers = True
        """MQTT: whether it reports that nobody subscribes, as MQTT 5 brokers can; others only keep a group's mark."""
        self.groups_changed: int = 0
        """How often groups appeared or disappeared, or the evidence of them changed."""
        self.model: BrokerModel[Connection] = BrokerModel(protocol, faults)
        """To be used with :attr:`lock`."""
        self.lock: threading.RLock = threading.RLock()
        self._watchers: list[Callable[[], None]] = []

    # Groups

    def create_group(
        self, topic: str, group: str, partition: int = 0, *, keys: KeyRing | None = None
    ) -> None:
        """Store messages of a topic for a group from now on, as ``reliamsg group create`` does."""
        with self.lock:
            queue = (topic, partition, group)
            self.model.create(queue, encode_mark(created_address(*queue), keys))
            self.note_groups_changed()

    def delete_group(self, topic: str, group: str, partition: int = 0) -> None:
        """Delete a group's queue and mark, as ``reliamsg group delete`` does."""
        with self.lock:
            self.model.delete_mark((topic, partition, group))
            self.delete_queue(topic, group, partition)

    def delete_queue(self, topic: str, group: str, partition: int = 0) -> int:
        """Delete a group's queue; its reader loses its connection. Returns how many messages were in it."""
        with self.lock:
            queue = (topic, partition, group)
            for connection in self._readers_of([queue]):
                self.drop(connection, "the queue was deleted")
            deleted = self.model.delete(queue)
            self.note_groups_changed()
            return deleted

    # What transports call

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called whenever something happens that may matter to a client."""
        with self.lock:
            self._watchers.append(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """End ``watch()``."""
        with self.lock:
            self._watchers.remove(wake)

    def connect_sender(self, client: str, wake: Callable[[], None]) -> Connection:
        """A connection to publish on, or :class:`Refused`."""
        with self.lock:
            return self._connect(client, wake)

    def connect_receiver(
        self, client: str, wake: Callable[[], None], bindings: Iterable[Binding]
    ) -> tuple[Connection, bool | None]:
        """A connection that reads these groups' queues, and whether they existed (None: only some did); or
        :class:`Refused`. With MQTT it may take over the session of another reader."""
        with self.lock:
            queues = [queue_of(binding) for binding in bindings]
            connection = self._connect(client, wake, queues)
            existed = self.model.read(connection, queues)
            self.note_groups_changed()
            return connection, existed

    def declare(self, bindings: Iterable[Binding]) -> None:
        """Make sure that these groups' queues exist, if senders can do that."""
        with self.lock:
            self.model.declare(bindings)

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what the broker shows of groups."""
        with self.lock:
            return {
                each: self.model.evidence(queue_of(each), tells=self.tells_subscribers, wrongly=False)
                for each in bindings
            }

    def blocked_reason(self) -> str | None:
        """Why senders are asked to stop, or None."""
        return self.model.blocked

    def publish(self, connection: Connection, messages: Sequence[Outgoing], limit: int) -> None:
        """Accept messages; larger ones than `limit` (the client's own setting) are refused."""
        largest = limit if self.max_frame_bytes is None else min(limit, self.max_frame_bytes)
        with self.lock:
            for message in messages if connection.alive else ():
                copies, answer = self.model.publish(connection, message, largest)
                self.store(copies or ())
                if answer is not None:
                    connection.add_result(answer.token, answer.refusal)

    def results(self, connection: Connection) -> list[tuple[int, Refusal | None]]:
        """The outcomes that are due to the client."""
        with self.lock:
            return connection.take_results() if connection.alive else []

    def fetch(self, connection: Connection, prefetch: int) -> list[Delivery]:
        """The next messages for a reader that may hold `prefetch` unacknowledged ones."""
        with self.lock:
            return self.model.take(connection, prefetch)

    def turned_empty(self, connection: Connection) -> bool:
        """AMQP: whether the reader's queues are all empty, reported once each time they become so."""
        with self.lock:
            return self.model.turned_empty(connection)

    def acknowledge(self, connection: Connection, tokens: Iterable[object]) -> None:
        """Delete these deliveries; tokens of another connection are ignored."""
        with self.lock:
            mine = [token[1] for token in tokens if isinstance(token, tuple) and token[0] is connection]
            self.model.acknowledge(connection, mine)

    def listen(self, connection: Connection, addresses: Iterable[str]) -> None:
        """Replace the control addresses at which a client listens."""
        with self.lock:
            if connection.alive:
                connection.listen(addresses)

    def send_control(self, connection: Connection, address: str, body: bytes) -> bool:
        """Pass a control frame to everyone who listens at its address now; returns False if it is dropped."""
        with self.lock:
            if not connection.alive or self.model.blocked is not None:
                return False
            forwarded = self.forward(address, body)
            if forwarded and self.model.keep_mark(address, body):
                self.note_groups_changed()
            return forwarded

    def forward(self, address: str, body: bytes) -> bool:
        """Pass a control frame on; returns False if it is dropped."""
        for listener in self.model.listeners(address):
            listener.add_frame(address, body)
        return True

    def take_control(self, connection: Connection) -> list[tuple[str, bytes]]:
        """The control frames that arrived for a client since the last call."""
        with self.lock:
            return connection.take_frames()

    def drop(self, connection: Connection, reason: str) -> None:
        """Close a connection; deliveries that were not acknowledged will be delivered again."""
        with self.lock:
            if connection.alive:
                connection.close(reason)
                self.model.close(connection)
                self.wake_all()

    def store(self, copies: Iterable[Copy]) -> None:
        """Put messages into queues."""
        with self.lock:
            for copy in copies:
                self.model.store(copy)
                for connection in self._readers_of([copy.queue]):
                    connection.wake()

    def note_groups_changed(self) -> None:
        """Groups, or the evidence of them, have changed."""
        self.groups_changed += 1
        self.wake_all()

    def wake_all(self) -> None:
        """Have every client look at what has changed."""
        with self.lock:
            for wake in list(self._watchers):
                wake()

    # Inside, under the lock

    def _connect(self, client: str, wake: Callable[[], None], queues: Sequence[QueueKey] = ()) -> Connection:
        refusal = self.model.login_refusal
        if refusal is not None:
            raise Refused(refusal, credentials=self.model.up)
        other = self.model.reader_of(queues)
        if other is not None and not other.abandoned:
            if self.protocol == "amqp" or not self.takes_over:
                raise Refused(other.client, busy=True)
            for connection in self._readers_of(queues):
                self.drop(connection, "session taken over")
        made = Connection(client, wake)
        self.model.open(made)
        return made

    def _readers_of(self, queues: Iterable[QueueKey]) -> list[Connection]:
        wanted = set(queues)
        return [reader for reader in self.model.readers if not wanted.isdisjoint(reader.queues)]
