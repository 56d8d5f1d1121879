"""The one model of a broker, which the in-memory transport and the simulator share.

Sans-I/O and deterministic: it has no threads and no clock, and never waits. A call changes the state and returns what
follows from it. The layer around it carries that to clients, with whatever delay it has decided on, and injects what
goes wrong with single messages as :class:`MessageFaults`.

It models what matters to a client: a topic fans out to a durable queue per group, publishing is confirmed, and a
delivery stays with the broker until it is acknowledged. With ``"amqp"`` an unroutable message is returned, and a queue
can be seen empty. With ``"mqtt"`` an unroutable message is confirmed and gone, acknowledgements count in the order of
receipt, and groups leave evidence of themselves.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing
from reliamsg.wire.address import created_address, is_created, topic_address

__all__ = [
    "Answer", "BrokerModel", "BrokerSession", "Copy", "Fate", "MessageFaults", "Published", "QueueKey", "Refusal",
    "flip_bit", "queue_of",
]  # fmt: skip

QueueKey = tuple[str, int, str]
"""Topic, partition and group of a queue."""
Refusal = tuple[Outcome, str]


class Copy(msgspec.Struct, frozen=True):
    """A message on its way into one queue."""

    queue: QueueKey
    delivery: Delivery
    delay: float = 0.0
    """Seconds until it is to be stored."""


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one message."""

    copies: Sequence[Copy] | None = None
    """Those to store: none if it reaches no queue, None if the broker does not store it."""
    refusal: Refusal | None = None
    """The answer in place of a confirm."""
    answered: bool = True
    delay: float = 0.0
    """Seconds until the answer is to be sent."""


class Answer(msgspec.Struct, frozen=True):
    """The outcome of a batch."""

    token: int
    refusal: Refusal | None
    parts: Sequence[Outgoing]
    delay: float
    """Seconds until it is to be sent."""


class Published(NamedTuple):
    """What follows from publishing a message."""

    copies: Sequence[Copy] | None
    """For :meth:`BrokerModel.store`; see :class:`Fate`."""
    answer: Answer | None
    """None if the batch is incomplete, or gets no answer."""


class MessageFaults(Protocol):
    """Decides what goes wrong with single messages."""

    def before_routing(self, message: Outgoing) -> Fate | None:
        """What becomes of a message regardless of its queues, if that is decided here."""

    def fate(self, session: BrokerSession, message: Outgoing, copies: Sequence[Copy]) -> Fate:
        """What becomes of any other message. `copies`: what belongs in the queues, one for each; with AMQP there is at
        least one."""

    def pick(self, waiting: int) -> int:
        """The position in a queue of `waiting` messages of the one to deliver next."""


class BrokerSession:
    """One client's connection, as the broker sees it. Only :class:`BrokerModel` changes what it reads."""

    def __init__(self, client: str, can_be_refused: bool = True) -> None:
        """`can_be_refused`: whether its protocol has an answer that refuses a message."""
        self.client: str = client
        self.can_be_refused: bool = can_be_refused
        self.addresses: frozenset[str] = frozenset()
        """Control addresses that it listens at."""
        self.queues: tuple[QueueKey, ...] = ()
        """The queues that it reads."""
        self.abandoned: bool = False
        """Its client is gone, and the broker has not noticed: another reader is let in beside it."""
        self._unacknowledged: dict[int, tuple[QueueKey, Delivery]] = {}
        """By number, in the order of delivery."""
        self._acknowledged: set[int] = set()
        """MQTT: numbers that wait for earlier ones."""
        self._numbers = 0
        self._seen_empty = False
        self._partial: dict[int, tuple[tuple[Outgoing, ...], Refusal | None, bool]] = {}
        """By token of an incomplete batch: its messages, the refusal, and whether it is to be answered."""

    @property
    def unacknowledged(self) -> int:
        """How many deliveries are not acknowledged."""
        return len(self._unacknowledged)

    @property
    def deliveries(self) -> list[tuple[QueueKey, Delivery]]:
        """Those that are not acknowledged, in order."""
        return list(self._unacknowledged.values())

    def listen(self, addresses: Iterable[str]) -> None:
        """Replace the control addresses that it listens at."""
        self.addresses = frozenset(addresses)

    def abandon(self) -> None:
        """Its client is gone, and the broker does not notice yet."""
        self.abandoned = True


S = TypeVar("S", bound=BrokerSession)


class BrokerModel(Generic[S]):
    """The state of one broker."""

    def __init__(self, protocol: Literal["amqp", "mqtt"], faults: MessageFaults) -> None:
        self.protocol = protocol
        self.up: bool = True
        self.login_refused: bool = False
        self.blocked: str | None = None
        """Why senders are asked to stop, if they are."""
        self.delivers: bool = True
        self.queues: dict[QueueKey, deque[Delivery]] = {}
        self.sessions: dict[S, None] = {}
        """Those that are connected, in the order of connecting."""
        self._faults = faults
        self._readers: dict[S, None] = {}
        self._marks: dict[str, bytes] = {}
        """By address, what groups left when they were created."""
        self._snapshot: dict[QueueKey, deque[Delivery]] = {}

    # -- sessions -------------------------------------------------------------------------------------------

    @property
    def login_refusal(self) -> str | None:
        """Why clients can't connect now, or None."""
        if not self.up:
            return "connection refused"
        return "login refused" if self.login_refused else None

    @property
    def readers(self) -> list[S]:
        """The sessions that read, in the order in which they began."""
        return list(self._readers)

    def open(self, session: S) -> None:
        """A client connected."""
        self.sessions[session] = None

    def close(self, session: S) -> bool:
        """Close a session: deliveries that were not acknowledged return to their queues. Returns whether it read."""
        self.sessions.pop(session, None)
        if session not in self._readers:
            return False
        del self._readers[session]
        for queue, delivery in reversed(session.deliveries):
            if queue in self.queues:
                self.queues[queue].appendleft(msgspec.structs.replace(delivery, redelivered=True))
        session._unacknowledged.clear()
        return True

    def reader_of(self, queues: Iterable[QueueKey]) -> S | None:
        """Who reads any of these queues."""
        wanted = set(queues)
        return next((session for session in self._readers if not wanted.isdisjoint(session.queues)), None)

    def read(self, session: S, queues: Sequence[QueueKey]) -> bool | None:
        """A client begins to read; returns True if all queues existed, False if none did, else None. The caller has
        made sure that nobody else reads them."""
        found = {queue in self.queues for queue in queues}
        for queue in queues:
            self.create(queue)
        self._readers[session] = None
        session.queues = tuple(queues)
        return found.pop() if len(found) == 1 else None

    # -- groups ---------------------------------------------------------------------------------------------

    def create(self, queue: QueueKey, mark: bytes | None = None) -> None:
        """Create a group's queue unless it exists, and leave its mark."""
        self.queues.setdefault(queue, deque())
        if mark is not None:
            self._marks[created_address(*queue)] = mark

    def declare(self, bindings: Iterable[Binding]) -> None:
        """A sender declares the queues of groups. At MQTT sites only a group's own client can create its session."""
        for binding in bindings if self.protocol == "amqp" else ():
            self.create(queue_of(binding))

    def delete(self, queue: QueueKey) -> int:
        """Delete a group's queue; returns how many messages were in it."""
        return len(self.queues.pop(queue, ()))

    def delete_mark(self, queue: QueueKey) -> None:
        """Delete the mark that a group left."""
        self._marks.pop(created_address(*queue), None)

    def keep_mark(self, address: str, body: bytes) -> bool:
        """MQTT: retain a control frame that is a group's mark; returns whether that changes anything."""
        if self.protocol != "mqtt" or not is_created(address) or self._marks.get(address) == body:
            return False
        self._marks[address] = body
        return True

    def evidence(self, queue: QueueKey, *, tells: bool, wrongly: bool) -> Evidence | Mark:
        """MQTT: what the broker shows of a group. `tells`: whether it reports that nobody subscribes; `wrongly`: it
        reports that whether or not anybody does."""
        if not tells:
            return self._marks.get(created_address(*queue), Evidence.NOT_MARKED)
        return Evidence.SUBSCRIBED if queue in self.queues and not wrongly else Evidence.NOT_SUBSCRIBED

    # -- messages -------------------------------------------------------------------------------------------

    def queues_of(self, topic: str, partition: int) -> list[QueueKey]:
        """The queues that a message of a topic belongs in."""
        return [queue for queue in self.queues if queue[:2] == (topic, partition)]

    def publish(self, session: S, message: Outgoing, largest: int | None = None) -> Published:
        """A message arrived. `largest`: the largest body that is accepted, in bytes."""
        fate = self._fate(session, message, largest)
        parts, refusal, answered = session._partial.pop(message.token, ((), None, True))
        parts, refusal, answered = (*parts, message), refusal or fate.refusal, answered and fate.answered
        if message.parts_left:
            session._partial[message.token] = parts, refusal, answered
            return Published(fate.copies, None)
        answer = Answer(message.token, refusal, parts, fate.delay) if answered else None
        return Published(fate.copies, answer)

    def _fate(self, session: S, message: Outgoing, largest: int | None) -> Fate:
        fate = self._faults.before_routing(message)
        if fate is not None:
            return fate
        size = len(message.body)
        if largest is not None and size > largest:
            return Fate(refusal=(Outcome.REFUSED, f"a message of {size} bytes; the site takes {largest}"))
        queues = self.queues_of(message.topic, message.partition)
        if not queues and self.protocol == "amqp":
            return Fate(refusal=(Outcome.RETURNED, "no queue is bound to this topic"))
        delivery = Delivery(
            0, topic_address(message.topic, message.partition), message.body, message.content_type,
            dict(message.headers or {}),
        )  # fmt: skip
        return self._faults.fate(session, message, [Copy(queue, delivery) for queue in queues])

    def store(self, copy: Copy) -> bool:
        """Put a message into its queue; returns False if that is gone."""
        queue = self.queues.get(copy.queue)
        if queue is not None:
            queue.append(copy.delivery)
        return queue is not None

    def take(self, session: S, most: int) -> list[Delivery]:
        """The next deliveries for a reader that may have `most` unacknowledged."""
        found: list[Delivery] = []
        for key in session.queues if self.delivers and session in self._readers else ():
            queue = self.queues.get(key)
            while queue and session.unacknowledged < most:
                at = self._faults.pick(len(queue))
                delivery = queue[at]
                del queue[at]
                session._numbers += 1
                session._unacknowledged[session._numbers] = key, delivery
                found.append(msgspec.structs.replace(delivery, token=(session, session._numbers)))
        session._seen_empty = session._seen_empty and not found
        return found

    def turned_empty(self, session: S) -> bool:
        """AMQP: whether a reader's queues are all empty, reported once each time they become so."""
        if (
            self.protocol == "mqtt"
            or session._seen_empty
            or not self.delivers
            or session not in self._readers
        ):
            return False
        session._seen_empty = not any(map(self.queues.get, session.queues))
        return session._seen_empty

    def acknowledge(self, session: S, numbers: Iterable[int]) -> list[tuple[QueueKey, Delivery]]:
        """A client acknowledges deliveries, by the numbers in their tokens; returns those that are deleted."""
        if session not in self._readers:
            return []
        waiting, acknowledged = session._unacknowledged, session._acknowledged
        acknowledged.update(number for number in numbers if number in waiting)
        done = sorted(acknowledged)
        if self.protocol == "mqtt":  # PUBACKs are sent in the order of the PUBLISHes
            done = list(takewhile(acknowledged.__contains__, waiting))
        acknowledged.difference_update(done)
        return [waiting.pop(number) for number in done]

    def listeners(self, address: str) -> list[S]:
        """Who listens at a control address."""
        return [session for session in self.sessions if address in session.addresses]

    # -- as a whole -----------------------------------------------------------------------------------------

    def set_up(self, up: bool) -> None:
        """Accept connections, or none. The caller closes those that there are."""
        self.up = up

    def refuse_logins(self, refused: bool) -> None:
        """Refuse logins, or accept them again."""
        self.login_refused = refused

    def block(self, reason: str | None) -> None:
        """Ask senders to stop, or (None) to resume."""
        self.blocked = reason

    def deliver(self, delivers: bool) -> None:
        """Deliver what waits, or nothing until further notice."""
        self.delivers = delivers

    def stored(self) -> Iterator[tuple[QueueKey, Delivery]]:
        """Everything that waits in queues or is delivered and not acknowledged."""
        for key, queue in self.queues.items():
            yield from ((key, delivery) for delivery in queue)
        for session in self._readers:
            yield from session.deliveries

    def waiting(self) -> int:
        """How many messages are here, including delivered ones."""
        return sum(1 for _ in self.stored())

    def wipe(self) -> int:
        """Lose all queues and marks; returns how many messages were in queues."""
        lost = sum(map(len, self.queues.values()))
        self.queues.clear()
        self._marks.clear()
        return lost

    def drop_latest(self, queue: QueueKey, messages: int) -> int:
        """Lose the latest messages of a queue; returns how many."""
        dropped = min(messages, len(self.queues[queue]))
        for _ in range(dropped):
            self.queues[queue].pop()
        return dropped

    def take_snapshot(self) -> None:
        """Copy the stored messages."""
        self._snapshot = {key: deque(queue) for key, queue in self.queues.items()}
        for session in self._readers:
            for key, delivery in session.deliveries:
                if key in self._snapshot:
                    self._snapshot[key].append(delivery)

    def restore_snapshot(self) -> int:
        """Return to the latest snapshot; returns how many messages appear or disappear, at most."""
        changed = sum(map(len, self._snapshot.values())) + self.waiting()
        self.queues = {key: deque(queue) for key, queue in self._snapshot.items()}
        there = {created_address(*key) for key in self.queues}
        self._marks = {address: mark for address, mark in self._marks.items() if address in there}
        return changed


def queue_of(binding: Binding) -> QueueKey:
    """The queue of a group at one topic and partition."""
    return binding.topic, binding.partition, binding.group


def flip_bit(delivery: Delivery, chance: random.Random) -> Delivery:
    """A delivery with one bit of its body flipped; the body must not be empty."""
    body = bytearray(delivery.body)
    bit = chance.randrange(len(body) * 8)
    body[bit // 8] ^= 1 << bit % 8
    return msgspec.structs.replace(delivery, body=bytes(body))
