"""A broker in memory, with faults on demand: what the in-memory transports connect to.

It makes one :class:`~reliamsg.transport.memory.model.BrokerModel` available to threads. Nothing here runs by itself.
Methods may be called from any thread and never wait; every random choice comes from one seeded generator, so that one
thread makes one history.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.control import MemoryControl
from reliamsg.transport.memory.faults import Countable, FaultsOnDemand
from reliamsg.transport.memory.model import BrokerModel, Copy, QueueKey, Refusal, queue_of
from reliamsg.wire.address import created_address, topic_address
from reliamsg.wire.control import encode_mark

__all__ = ["MemoryBroker", "Refused"]


class Refused(Exception):
    """The broker takes no connection now."""

    def __init__(self, reason: str, *, credentials: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.credentials = credentials
        self.busy = busy


class MemoryBroker:
    """A broker at one site. Its faults are methods; all can be called at any time, on any thread."""

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
        """MQTT: how many messages it sends ahead of acknowledgements, as a broker does whose client can't tell it a
        limit (3.1.1); None: as many as the client asks for."""
        self.takes_over = False
        """MQTT: whether a reader takes over the session of another one, as at real brokers. Otherwise it is told that
        the group is busy."""
        self.tells_subscribers = True
        """MQTT: whether it reports that nobody subscribes, as MQTT 5 brokers can; others only keep a group's mark."""
        self.groups_changed = 0
        """How often groups appeared or disappeared, or the evidence of them changed."""
        self._tells_wrongly = False
        self._random = random.Random(seed)
        self._faults = FaultsOnDemand(self._random)
        self._model = BrokerModel[Connection](protocol, self._faults)
        self._lock = threading.RLock()
        self._watchers: list[Callable[[], None]] = []
        self._hold_confirms = self._shuffle_confirms = False
        self.control = MemoryControl(self._model, self._lock, self._random)
        """Its control frames, with faults of their own."""

    # Faults of the whole broker

    def down(self) -> None:
        """Drop every connection, and accept none."""
        with self._lock:
            self._model.set_up(False)
            self._drop_all("connection lost")

    def up(self, *, lose: bool = False) -> None:
        """Accept connections again; with ``lose``, like a broker whose data directory was wiped."""
        with self._lock:
            if lose:
                self._wipe()
            self._model.set_up(True)
            self._wake_all()

    def cut(self) -> None:
        """Drop every connection; clients may connect again at once."""
        with self._lock:
            self._drop_all("connection reset")

    def wipe(self) -> None:
        """Lose all queues, with the messages in them, and every connection."""
        with self._lock:
            self._drop_all("connection lost")  # first: unacknowledged messages return to their queues
            self._wipe()

    def block(self, reason: str = "low on memory") -> None:
        """Ask senders to stop sending, until ``unblock()``."""
        self._set(self._model.block, reason)

    def unblock(self) -> None:
        """End ``block()``."""
        self._set(self._model.block, None)

    def refuse_login(self, refused: bool = True) -> None:
        """Refuse every login from now on, or accept logins again. Existing connections stay."""
        self._set(self._model.refuse_logins, refused)

    # Faults of publishing

    def hold_confirms(self) -> None:
        """Store what is published but confirm nothing, until ``release_confirms()``."""
        with self._lock:
            self._hold_confirms = True

    def release_confirms(self) -> None:
        """Send all confirms that are held back, on connections that still exist."""
        with self._lock:
            self._hold_confirms = False
            self._wake_all()

    def confirm_out_of_order(self, on: bool = True) -> None:
        """Send the confirms that are due together in random order."""
        with self._lock:
            self._shuffle_confirms = on

    def lose(self, messages: int) -> None:
        """Confirm the next `messages` messages and do not store them."""
        self._arm("lose", messages)

    def ignore(self, messages: int) -> None:
        """Neither store nor confirm the next `messages` messages."""
        self._arm("ignore", messages)

    def duplicate(self, messages: int) -> None:
        """Put the next `messages` messages into their queues twice."""
        self._arm("duplicate", messages)

    def damage(self, messages: int) -> None:
        """Flip one bit in the body of each of the next `messages` messages."""
        self._arm("damage", messages)

    @property
    def lost(self) -> int:
        """Messages that were confirmed and not kept, once per queue, or once if there was none: shows that a fault had
        an effect."""
        return self._faults.lost

    def refuse(self, topic: str, outcome: Outcome, reason: str = "refused by the test") -> None:
        """Answer what is published to `topic` with `outcome`, and store none of it, until ``accept()``."""
        with self._lock:
            self._faults.refuse(topic, (outcome, reason))

    def accept(self, topic: str) -> None:
        """End ``refuse()``."""
        with self._lock:
            self._faults.refuse(topic, None)

    # Faults of delivering

    def hold_deliveries(self) -> None:
        """Deliver nothing until ``release_deliveries()``."""
        self._set(self._model.deliver, False)

    def release_deliveries(self) -> None:
        """End ``hold_deliveries()``."""
        self._set(self._model.deliver, True)

    def reorder(self, window: int) -> None:
        """Deliver a random one of the next `window` messages of a queue each time; 1 restores the order."""
        with self._lock:
            self._faults.reorder(window)

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
        """Put a message from elsewhere into every queue of a topic; returns the number of queues."""
        at = topic_address(topic, partition)
        delivery = Delivery(0, at, body, content_type, dict(headers or {}), retained=retained)
        return self.inject_delivery(topic, delivery, partition=partition)

    def inject_delivery(self, topic: str, delivery: Delivery, *, partition: int = 0) -> int:
        """Put a delivery into every queue of a topic; returns the number of queues. It may claim another address, or be
        damaged."""
        with self._lock:
            queues = self._model.queues_of(topic, partition)
            if queues:
                self._store(self._faults.spoil([Copy(queue, delivery) for queue in queues]))
            return len(queues)

    # Faults of groups

    def delete_queue(self, topic: str, group: str, partition: int = 0) -> None:
        """Delete a group's queue, with the messages in it; its reader loses its connection."""
        with self._lock:
            queue = (topic, partition, group)
            self._drop_readers([queue], "the queue was deleted")
            self._faults.count_lost(self._model.delete(queue))
            self._groups_changed()

    def create_group(
        self, topic: str, group: str, partition: int = 0, *, keys: KeyRing | None = None
    ) -> None:
        """Store messages of a topic for a group from now on, as ``reliamsg group create`` does."""
        with self._lock:
            queue = (topic, partition, group)
            self._model.create(queue, encode_mark(created_address(*queue), keys))
            self._groups_changed()

    def delete_group(self, topic: str, group: str, partition: int = 0) -> None:
        """Delete a group's queue and mark, as ``reliamsg group delete`` does."""
        with self._lock:
            self._model.delete_mark((topic, partition, group))
            self.delete_queue(topic, group, partition)

    def answer_wrongly(self, on: bool = True) -> None:
        """MQTT: report of every group that nobody subscribes, as some brokers do, or tell the truth again."""
        with self._lock:
            self._tells_wrongly = on
            self._groups_changed()

    def keep_readers(self) -> None:
        """Keep delivering to the clients that read now, and let others of their groups read beside them."""
        with self._lock:
            for session in self._model.readers:
                session.abandon()

    # What tests look at

    def queued(self, topic: str | None = None, group: str | None = None) -> int:
        """How many messages are stored here, including delivered and unacknowledged ones."""
        with self._lock:
            return sum(topic in (None, key[0]) and group in (None, key[2]) for key, _ in self._model.stored())

    @property
    def unconfirmed(self) -> int:
        """How many batches were published on existing connections and wait for their confirm."""
        with self._lock:
            return sum(connection.unconfirmed for connection in self._model.sessions)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self._lock:
            return len(self._model.sessions)

    # What transports call

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
            return self._connect(client, wake)

    def connect_receiver(
        self, client: str, wake: Callable[[], None], bindings: Iterable[Binding]
    ) -> tuple[Connection, bool]:
        """A connection that reads these groups' queues, and whether all of them existed; or :class:`Refused`. With MQTT
        it may take over the session of another reader."""
        with self._lock:
            queues = [queue_of(binding) for binding in bindings]
            connection = self._connect(client, wake, queues)
            existed = self._model.read(connection, queues)
            self._groups_changed()
            return connection, existed

    def declare(self, bindings: Iterable[Binding]) -> None:
        """Make sure that these groups' queues exist, if senders can do that."""
        with self._lock:
            self._model.declare(bindings)

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what the broker shows of groups."""
        tells, wrongly = self.tells_subscribers, self._tells_wrongly
        with self._lock:
            return {
                each: self._model.evidence(queue_of(each), tells=tells, wrongly=wrongly) for each in bindings
            }

    def blocked_reason(self) -> str | None:
        """Why senders are asked to stop, or None."""
        return self._model.blocked

    def publish(self, connection: Connection, messages: Sequence[Outgoing], limit: int) -> None:
        """Accept messages; larger ones than `limit` (the client's own setting) are refused."""
        largest = limit if self.max_frame_bytes is None else min(limit, self.max_frame_bytes)
        with self._lock:
            for message in messages if connection.alive else ():
                copies, answer = self._model.publish(connection, message, largest)
                self._store(copies)
                if answer is not None:
                    connection.add_result(answer.token, answer.refusal)

    def results(self, connection: Connection) -> list[tuple[int, Refusal | None]]:
        """The outcomes that the client can be told now."""
        with self._lock:
            if self._hold_confirms or not connection.alive:
                return []
            due = connection.take_results()
            if self._shuffle_confirms:
                self._random.shuffle(due)
            return due

    def fetch(self, connection: Connection, prefetch: int) -> list[Delivery]:
        """The next messages for a reader that may hold `prefetch` unacknowledged ones."""
        with self._lock:
            return self._model.take(connection, prefetch)

    def turned_empty(self, connection: Connection) -> bool:
        """AMQP: whether the reader's queues are all empty, reported once each time they become so."""
        with self._lock:
            return self._model.turned_empty(connection)

    def acknowledge(self, connection: Connection, tokens: Iterable[object]) -> None:
        """Delete these deliveries; tokens of another connection are ignored."""
        with self._lock:
            mine = [token[1] for token in tokens if isinstance(token, tuple) and token[0] is connection]
            self._model.acknowledge(connection, mine)

    def listen(self, connection: Connection, addresses: Iterable[str]) -> None:
        """Replace the control addresses at which a client listens."""
        with self._lock:
            if connection.alive:
                connection.listen(addresses)

    def tell(self, connection: Connection, address: str, body: bytes) -> bool:
        """Pass a control frame to everyone who listens at its address now; returns False if it is dropped."""
        with self._lock:
            if not connection.alive or self._model.blocked is not None:
                return False
            told = self.control.tell(address, body)
            if told and self._model.keep_mark(address, body):
                self._groups_changed()
            return told

    def heard(self, connection: Connection) -> list[tuple[str, bytes]]:
        """The control frames that arrived for a client since the last call."""
        with self._lock:
            return connection.take_frames()

    def drop(self, connection: Connection, reason: str) -> None:
        """End a connection; deliveries that were not acknowledged will be delivered again."""
        with self._lock:
            self._drop(connection, reason)

    # Inside, under the lock

    def _set(self, change: Callable[[Any], None], value: Any) -> None:
        with self._lock:
            change(value)
            self._wake_all()

    def _arm(self, fault: Countable, messages: int) -> None:
        with self._lock:
            self._faults.arm(fault, messages)

    def _connect(self, client: str, wake: Callable[[], None], queues: Sequence[QueueKey] = ()) -> Connection:
        refusal = self._model.login_refusal
        if refusal is not None:
            raise Refused(refusal, credentials=self._model.up)
        other = self._model.reader_of(queues)
        if other is not None and not other.abandoned:
            if self.protocol == "amqp" or not self.takes_over:
                raise Refused(other.client, busy=True)
            self._drop_readers(queues, "session taken over")
        connection = Connection(client, wake)
        self._model.open(connection)
        return connection

    def _store(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            self._model.store(copy)
            for connection in self._readers_of([copy.queue]):
                connection.wake()

    def _wipe(self) -> None:
        self._faults.count_lost(self._model.wipe())
        self.groups_changed += 1

    def _readers_of(self, queues: Iterable[QueueKey]) -> list[Connection]:
        wanted = set(queues)
        return [reader for reader in self._model.readers if not wanted.isdisjoint(reader.queues)]

    def _drop_readers(self, queues: Iterable[QueueKey], reason: str) -> None:
        for connection in self._readers_of(queues):
            self._drop(connection, reason)

    def _drop_all(self, reason: str) -> None:
        for connection in list(self._model.sessions):
            self._drop(connection, reason)

    def _drop(self, connection: Connection, reason: str) -> None:
        if connection.alive:
            connection.close(reason)
            self._model.close(connection)
            self._wake_all()

    def _groups_changed(self) -> None:
        self.groups_changed += 1
        self._wake_all()

    def _wake_all(self) -> None:
        for wake in list(self._watchers):
            wake()
