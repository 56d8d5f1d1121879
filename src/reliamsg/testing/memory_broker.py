"""A broker in memory with faults on demand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from reliamsg.testing.faults import ControlFaults, Countable, MessageFaultsOnDemand
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome
from reliamsg.transport.memory.broker import LocalBroker
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.model import Copy, Refusal
from reliamsg.wire.address import topic_address

__all__ = ["MemoryBroker"]


class MemoryBroker(LocalBroker):
    """A broker at one site. Its faults are methods; all can be called at any time, on any thread.

    Every random choice comes from one seeded generator, so that one thread makes one history.
    """

    def __init__(self, name: str, *, protocol: Literal["amqp", "mqtt"] = "amqp", seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._faults = MessageFaultsOnDemand(self._random)
        super().__init__(name, protocol, self._faults)
        self._tells_wrongly = False
        self._hold_confirms = self._shuffle_confirms = False
        self.control: ControlFaults = ControlFaults(self.model, self.lock, self._random)
        """Faults of its control frames."""

    # Faults of the whole broker

    def down(self) -> None:
        """Drop every connection, and accept none."""
        with self.lock:
            self.model.set_up(False)
            self._drop_all("connection lost")

    def up(self, *, lose: bool = False) -> None:
        """Accept connections again; with ``lose``, like a broker whose data directory was wiped."""
        with self.lock:
            if lose:
                self._wipe()
            self.model.set_up(True)
            self.wake_all()

    def cut(self) -> None:
        """Drop every connection; clients may connect again at once."""
        with self.lock:
            self._drop_all("connection reset")

    def wipe(self) -> None:
        """Lose all queues, with the messages in them, and every connection."""
        with self.lock:
            self._drop_all("connection lost")  # first: unacknowledged messages return to their queues
            self._wipe()

    def block(self, reason: str = "low on memory") -> None:
        """Ask senders to stop sending, until ``unblock()``."""
        self._set(self.model.block, reason)

    def unblock(self) -> None:
        """End ``block()``."""
        self._set(self.model.block, None)

    def refuse_login(self, refused: bool = True) -> None:
        """Refuse every login from now on, or accept logins again. Existing connections stay."""
        self._set(self.model.refuse_logins, refused)

    # Faults of publishing

    def hold_confirms(self) -> None:
        """Store published messages but confirm none, until ``release_confirms()``."""
        with self.lock:
            self._hold_confirms = True

    def release_confirms(self) -> None:
        """Send all confirms that are held back, on connections that still exist."""
        with self.lock:
            self._hold_confirms = False
            self.wake_all()

    def confirm_out_of_order(self, on: bool = True) -> None:
        """Send the confirms that are due together in random order."""
        with self.lock:
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
        """Answer every publish to `topic` with `outcome`, and store nothing, until ``accept()``."""
        with self.lock:
            self._faults.refuse(topic, (outcome, reason))

    def accept(self, topic: str) -> None:
        """End ``refuse()``."""
        with self.lock:
            self._faults.refuse(topic, None)

    # Faults of delivering

    def hold_deliveries(self) -> None:
        """Deliver nothing until ``release_deliveries()``."""
        self._set(self.model.deliver, False)

    def release_deliveries(self) -> None:
        """End ``hold_deliveries()``."""
        self._set(self.model.deliver, True)

    def reorder(self, window: int) -> None:
        """Deliver a random one of the next `window` messages of a queue each time; 1 restores the order."""
        with self.lock:
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
        with self.lock:
            queues = self.model.queues_of(topic, partition)
            if queues:
                self.store(self._faults.spoil([Copy(queue, delivery) for queue in queues]))
            return len(queues)

    # Faults of groups

    def delete_queue(self, topic: str, group: str, partition: int = 0) -> int:
        """Delete a group's queue, with the messages in it; its reader loses its connection. Returns how many messages
        are lost."""
        with self.lock:
            deleted = super().delete_queue(topic, group, partition)
            self._faults.count_lost(deleted)
            return deleted

    def answer_wrongly(self, on: bool = True) -> None:
        """MQTT: report every group as having no subscriber, as some brokers do, or report the truth again."""
        with self.lock:
            self._tells_wrongly = on
            self.note_groups_changed()

    def keep_readers(self) -> None:
        """Keep delivering to the clients that read now, and let others of their groups read beside them."""
        with self.lock:
            for session in self.model.readers:
                session.abandon()

    # State for tests

    def queued(self, topic: str | None = None, group: str | None = None) -> int:
        """How many messages are stored here, including delivered and unacknowledged ones."""
        with self.lock:
            return sum(topic in (None, key[0]) and group in (None, key[2]) for key, _ in self.model.stored())

    @property
    def unconfirmed(self) -> int:
        """How many batches were published on existing connections and wait for their confirm."""
        with self.lock:
            return sum(connection.unconfirmed for connection in self.model.sessions)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self.lock:
            return len(self.model.sessions)

    # Overridden

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        found = super().evidence(bindings)
        wrong = self._tells_wrongly and self.tells_subscribers
        return dict.fromkeys(found, Evidence.NOT_SUBSCRIBED) if wrong else found

    def results(self, connection: Connection) -> list[tuple[int, Refusal | None]]:
        with self.lock:
            due = [] if self._hold_confirms else super().results(connection)
            if self._shuffle_confirms:
                self._random.shuffle(due)
            return due

    def forward(self, address: str, body: bytes) -> bool:
        return self.control.send_control(address, body)

    # Inside

    def _set(self, change: Callable[[Any], None], value: Any) -> None:
        with self.lock:
            change(value)
            self.wake_all()

    def _arm(self, fault: Countable, messages: int) -> None:
        with self.lock:
            self._faults.arm(fault, messages)

    def _wipe(self) -> None:
        self._faults.count_lost(self.model.wipe())
        self.note_groups_changed()

    def _drop_all(self, reason: str) -> None:
        for connection in list(self.model.sessions):
            self.drop(connection, reason)
