"""A simulated broker: queues for groups, confirms, deliveries, control frames, and what it does wrong."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Chances
from reliamsg.simulation.history import History
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.network import Connection
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing
from reliamsg.wire.address import created_address, is_created, is_group, topic_address
from reliamsg.wire.control import is_control_frame

__all__ = ["UNLIMITED", "Broker", "Reader", "Session"]

Key = tuple[str, int, str]
"""Topic, partition and group of a queue."""
UNLIMITED = 1 << 30
Refuses = Literal["closing", "answering"]
"""What an MQTT broker does about a subscription that it refuses. Where a client sends, it can only end the
connection."""
Tells = Literal["always", "wrongly", "never"]
"""Whether an MQTT broker says so where nobody subscribes; ``wrongly``: also, now and then, where somebody does."""
WRONG = 0.2
REORDER_WITHIN = 6
LATE_STORE_S = (0.2, 3.0)
GHOST_S = (1.0, 10.0)
TAIL = 6
"""Most messages of a queue that a broker loses when it comes back without its tail."""
REFUSALS = {
    "amqp": {"return": Outcome.RETURNED, "nack": Outcome.NACKED, "refuse": Outcome.REFUSED},
    "mqtt": {"refuse": Outcome.REFUSED},
}


@dataclass(slots=True)
class Stored:
    """A message in a queue."""

    number: int
    delivery: Delivery


class Session:
    """One client's connection, as the broker sees it. Calls to the client go through `connection.client`."""

    def __init__(self, connection: Connection, client: str, mqtt_version: str = "auto") -> None:
        self.connection = connection
        self.client = client
        self.mqtt_version = mqtt_version
        self.addresses: frozenset[str] = frozenset()
        """Control addresses that it listens to."""
        self.hear: Callable[[str, bytes], object] = lambda address, body: None
        self.reader: Reader | None = None
        """What it reads with, if it does."""
        self.ghost = False
        """Its client is gone, and the broker did not notice."""
        self.tell_blocked: Callable[[str | None], object] | None = None
        """Asks a sender to stop, or (None) to go on."""
        self.partial: dict[int, tuple[list[Outgoing], tuple[Outcome, str] | None]] = {}
        """By token, the messages of a batch whose last one is still to come, and what is to be said about it."""


@dataclass(eq=False, slots=True)
class Reader:
    """A session that reads for a group."""

    session: Session
    keys: tuple[Key, ...]
    prefetch: int
    deliver: Callable[[Sequence[Delivery]], object]
    drained: Callable[[], object]
    unacknowledged: dict[int, tuple[Key, Stored]] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    """MQTT: tokens that wait for earlier ones."""
    told_empty: bool = False
    tokens: int = 0


class Broker:
    """One site. Everything is called when it arrives there; answers are sent over the sessions' connections."""

    def __init__(
        self,
        name: str,
        protocol: Literal["amqp", "mqtt"],
        scheduler: Scheduler,
        faults: Chances,
        history: History,
        chance: random.Random,
        hole: Hole | None = None,
        tells: Tells = "always",
        inflight: int | None = None,
        refuses: Refuses = "closing",
    ) -> None:
        """MQTT: `inflight`: most that it sends ahead of acknowledgements, whatever clients allow. `refuses`: how it
        refuses control addresses."""
        self.name = name
        self.tells = tells
        self._leads = True
        """Whether anybody leads its queues: else nothing is stored, confirmed or delivered, and connections stand."""
        self._unled: list[tuple[Session, Outgoing, Callable[..., object]]] = []
        """What was published meanwhile."""
        self.over_sends = False
        """MQTT: it sends as much ahead as there is."""
        self.refused: set[str] = set()
        """MQTT: control addresses that it lets nobody use."""
        self.addresses: dict[str, None] = {}
        """Control addresses that were used."""
        self._inflight = UNLIMITED if inflight is None or protocol == "amqp" else inflight
        self._refuses = refuses
        self.marks: dict[str, bytes] = {}
        """What groups left, by address."""
        self.protocol = protocol
        self.up = True
        self.login_refused = False
        self.blocked: str | None = None
        self.queues: dict[Key, deque[Stored]] = {}
        self.sessions: dict[Session, None] = {}
        self.readers: dict[Reader, None] = {}
        self._scheduler, self._faults, self._history = scheduler, faults, history
        self._random = chance
        self._hole = hole
        self._numbers = 0
        self._copy: dict[Key, deque[Stored]] = {}
        """Queues as they were some time ago."""
        self._life = 0

    # -- sessions -------------------------------------------------------------------------------------------

    def admit(self) -> str | None:
        """Why nobody gets in, if so."""
        if not self.up:
            return "connection refused"
        return "login refused" if self.login_refused else None

    def open(self, session: Session) -> None:
        """A client is connected."""
        self.sessions[session] = None
        session.connection.site.on_lost = lambda reason: self._gone(session)

    def _gone(self, session: Session) -> None:
        """A client went away. A broker whose nodes do not see each other may not notice for a while, and let the next
        one in beside it."""
        if session.reader is None or not self._faults.bites("two_sessions", 5):
            self.close(session)
            return
        session.ghost = True
        self._history.note("broker", self.name, f"keeps the session of {session.client}")
        self._scheduler.after(self._faults.random("two_sessions").uniform(*GHOST_S), self.close, session)

    def close(self, session: Session) -> None:
        """A client is gone; what it had not acknowledged is delivered again."""
        self.sessions.pop(session, None)
        for reader in [r for r in self.readers if r.session is session]:
            del self.readers[reader]
            for key, stored in reversed(reader.unacknowledged.values()):
                if key in self.queues:
                    again = msgspec.structs.replace(stored.delivery, redelivered=True)
                    self.queues[key].appendleft(Stored(stored.number, again))
            self.feed()

    def declare(self, bindings: Iterable[Binding]) -> None:
        """Make sure that these groups' queues exist. At MQTT sites only a group's own client can do that."""
        for binding in bindings if self.protocol == "amqp" else ():
            self.queues.setdefault((binding.topic, binding.partition, binding.group), deque())

    def holder(self, keys: Sequence[Key]) -> Reader | None:
        """Who reads one of these queues."""
        return next((reader for reader in self.readers if set(reader.keys) & set(keys)), None)

    def read(self, reader: Reader) -> bool | str:
        """A client begins to read: whether all its queues existed, or who keeps it from reading."""
        other = self.holder(reader.keys)
        if other is not None and other.session.ghost:
            self._faults.strikes("two_sessions")
            other = None
        if other is not None and self.protocol == "amqp":
            return other.session.client
        if other is not None:  # a client id is taken over
            other.session.connection.site.close("session taken over")
            self.close(other.session)
        existed = all(key in self.queues for key in reader.keys)
        for key in reader.keys:
            self.queues.setdefault(key, deque())
        self.readers[reader] = None
        return existed

    def create(self, key: Key, mark: bytes) -> None:
        """Somebody makes a group."""
        self.queues.setdefault(key, deque())
        self.marks[created_address(*key)] = mark

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what it shows of groups."""
        return {
            binding: self._evidence((binding.topic, binding.partition, binding.group)) for binding in bindings
        }

    def _evidence(self, key: Key) -> Evidence | Mark:
        if self.tells == "never":
            return self.marks.get(created_address(*key), Evidence.NOT_MARKED)
        wrong = self.tells == "wrongly" and self._random.random() < WRONG
        return Evidence.SUBSCRIBED if key in self.queues and not wrong else Evidence.NOT_SUBSCRIBED

    # -- publishing -----------------------------------------------------------------------------------------

    def publish(self, session: Session, message: Outgoing, confirm: Callable[..., object]) -> None:
        """A message arrived. `confirm(token, refusal)` is called at the client, unless it goes wrong."""
        if session not in self.sessions:
            return
        if not self._leads:
            self._unled.append((session, message, confirm))
            return
        self._history.sent(self.name, message, orphaned=not session.connection.client.alive)
        parts, said = session.partial.pop(message.token, ([], None))
        silent, refusal, delay = self._take(session, message)
        if silent:
            return
        parts, said = [*parts, message], said or refusal
        if message.parts_left:
            session.partial[message.token] = parts, said
            return
        for part in parts if said is None else ():
            self._history.confirmed(self.name, part)
        client = session.connection.client
        if delay:
            self._faults.strikes("confirm_disorder")
            self._scheduler.after(delay, client.send, confirm, message.token, said)
        else:
            client.send(confirm, message.token, said)

    def _take(self, session: Session, message: Outgoing) -> tuple[bool, tuple[Outcome, str] | None, float]:
        """(whether nothing is said, what is said instead of a confirm, how much later)"""
        faults = self._faults
        if message.parts_left == 0 and faults.bites("swallow"):
            faults.strikes("swallow")
            self._history.note("broker", self.name, f"swallows {message.message_id}")
            return True, None, 0.0
        keys = [key for key in self.queues if key[:2] == (message.topic, message.partition)]
        if not keys and self.protocol == "amqp":
            return False, (Outcome.RETURNED, "no queue is bound to this topic"), 0.0
        delivery = Delivery(
            0, topic_address(message.topic, message.partition), message.body, message.content_type,
            dict(message.headers or {}),
        )  # fmt: skip
        refusal = self._refusal(session, message)
        if refusal is not None:
            if refusal[0] is Outcome.NACKED:  # one of several queues may have taken it
                self._keep(keys[:1], delivery, message.message_id)
            return False, refusal, 0.0
        self._keep(keys, delivery, message.message_id)
        if message.parts_left == 0 and faults.bites("confirm_lost"):
            faults.strikes("confirm_lost")
            self._history.note("broker", self.name, f"does not confirm {message.message_id}")
            return True, None, 0.0
        late = faults.bites("confirm_disorder")
        return False, None, faults.random("confirm_disorder").uniform(0.0, 0.5) if late else 0.0

    def _refusal(self, session: Session, message: Outgoing) -> tuple[Outcome, str] | None:
        faults = self._faults
        if self.protocol == "mqtt" and session.mqtt_version == "3.1.1":
            return None  # it has no word for that
        for name, outcome in REFUSALS[self.protocol].items():
            if faults.bites(name):
                faults.strikes(name)
                self._history.note("broker", self.name, f"says {outcome.value} to {message.message_id}")
                return outcome, "as simulated"
        return None

    def _keep(self, keys: Sequence[Key], delivery: Delivery, what: str) -> None:
        faults = self._faults
        if keys and self._hole is not None and self._hole.swallows(self._history.frame(delivery)):
            self._history.note("broker", self.name, f"loses {what}, as all sites do")
            return
        if keys and faults.bites("confirm_and_lose"):
            faults.strikes("confirm_and_lose")
            self._history.note("broker", self.name, f"loses {what}")
            return
        if faults.bites("damage") and delivery.body:
            faults.strikes("damage")
            self._history.note("broker", self.name, f"damages {what}")
            delivery = msgspec.structs.replace(
                delivery, body=_flipped(delivery.body, faults.random("damage"))
            )
        for key in keys:
            if faults.bites("misroute"):
                faults.strikes("misroute")
                self._history.note("broker", self.name, f"does not route {what} to {key[2]}")
                continue
            self._put(key, delivery)
            if faults.bites("duplicate"):
                faults.strikes("duplicate")
                self._put(key, delivery)
        self.feed()

    def _put(self, key: Key, delivery: Delivery) -> None:
        if self._faults.bites("early_confirm"):
            self._faults.strikes("early_confirm")
            delay = self._faults.random("early_confirm").uniform(*LATE_STORE_S)
            self._scheduler.after(delay, self._store, key, delivery, self._life)
        else:
            self._store(key, delivery, self._life)

    def _store(self, key: Key, delivery: Delivery, life: int) -> None:
        if key in self.queues and life == self._life and self.up:
            self._numbers += 1
            self.queues[key].append(Stored(self._numbers, delivery))
            self.feed()

    def inject(self, topic: str, body: bytes, content_type: str | None) -> None:
        """Somebody else publishes something."""
        delivery = Delivery(0, topic_address(topic, 0), body, content_type)
        for key in [key for key in self.queues if key[0] == topic]:
            self._store(key, delivery, self._life)

    # -- delivering -----------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Deliver what readers have room for."""
        for reader in list(self.readers) if self._leads else ():
            found: list[Delivery] = []
            most = UNLIMITED if self.over_sends else min(reader.prefetch, self._inflight)
            for key in reader.keys:
                queue = self.queues.get(key)
                while queue and len(reader.unacknowledged) < most:
                    found.append(self._next(reader, key, queue))
            if found:
                reader.told_empty = False
                reader.session.connection.client.send(reader.deliver, found)
            elif self.protocol == "amqp" and not (
                reader.told_empty or any(map(self.queues.get, reader.keys))
            ):
                reader.told_empty = True
                reader.session.connection.client.send(reader.drained)

    def _next(self, reader: Reader, key: Key, queue: deque[Stored]) -> Delivery:
        at = 0
        if len(queue) > 1 and self._faults.bites("reorder"):
            self._faults.strikes("reorder")
            at = self._faults.random("reorder").randrange(1, min(len(queue), REORDER_WITHIN))
        stored = queue[at]
        del queue[at]
        if len(reader.unacknowledged) >= reader.prefetch:
            self._faults.strikes("over_send")
        reader.tokens += 1
        reader.unacknowledged[reader.tokens] = key, stored
        return msgspec.structs.replace(stored.delivery, token=(reader, reader.tokens))

    def acknowledge(self, reader: Reader, numbers: Iterable[int]) -> None:
        """A reader says that deliveries are safe with it."""
        if reader not in self.readers:
            return
        waiting = reader.unacknowledged
        reader.acknowledged.update(numbers)
        if self.protocol == "amqp":
            done = [number for number in waiting if number in reader.acknowledged]
        else:
            done = []
            for number in waiting:  # PUBACKs go in the order of the PUBLISHes
                if number not in reader.acknowledged:
                    break
                done.append(number)
        for number in done:
            key, stored = waiting.pop(number)
            self._history.let_go(self.name, key[2], stored.delivery)
        self.feed()

    # -- control frames -------------------------------------------------------------------------------------

    def subscribe(self, session: Session, addresses: Sequence[str], answer: Callable[..., object]) -> None:
        """MQTT: a client wants to listen at more addresses. `answer` gets those that are refused."""
        if session not in self.sessions:
            return
        self.addresses.update(dict.fromkeys(addresses))
        refused = [address for address in addresses if address in self.refused]
        for address in refused:
            self._refuse(session, address, "listen at")
        if refused and self._refuses == "closing":
            session.connection.site.close("not authorized")
            self.close(session)
            return
        session.addresses |= set(addresses) - set(refused)
        answer(refused)

    def unsubscribe(self, session: Session, addresses: Iterable[str]) -> None:
        """MQTT: a client does not want to listen there any more."""
        session.addresses -= set(addresses)

    def told(self, session: Session, address: str, body: bytes) -> None:
        """MQTT: a control frame came over a client's second connection."""
        if session not in self.sessions:
            return
        self.addresses[address] = None
        if address not in self.refused:
            self.tell(address, body)
            return
        self._refuse(session, address, "tell")
        session.connection.site.close("not authorized")
        self.close(session)

    def _refuse(self, session: Session, address: str, what: str) -> None:
        self._faults.strikes("address_refused")
        self._history.note("broker", self.name, f"does not let {session.client} {what} {address}")

    def tell(self, address: str, body: bytes) -> None:
        """Hand a control frame to whoever listens."""
        faults, copies = self._faults, 1
        self._history.captured(address, body)
        if (
            is_group(address)
            and not is_control_frame(body)
            and self._hole is not None
            and self._hole.swallows(self._history.repair(body))
        ):
            return
        if faults.bites("control_lost"):
            faults.strikes("control_lost")
            copies = 0
        elif is_created(address) and self.protocol == "mqtt":
            self.marks[address] = body
        elif faults.bites("control_twice"):
            faults.strikes("control_twice")
            copies = 2
        late = copies and faults.bites("control_late")
        for _ in range(copies):
            if late:
                faults.strikes("control_late")
                delay = faults.random("control_late").uniform(0.05, 2.0)
                self._scheduler.after(delay, self.spread, address, body)
            else:
                self.spread(address, body)

    def spread(self, address: str, body: bytes) -> None:
        """Hand a control frame, whoever sent it, to those who listen now."""
        for session in self.sessions:
            if address in session.addresses:
                session.connection.client.send(session.hear, address, body)

    # -- as a whole -----------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """How many messages are here, delivered ones included."""
        return sum(map(len, self.queues.values())) + sum(len(r.unacknowledged) for r in self.readers)

    def stored(self) -> Iterator[tuple[str, Delivery]]:
        """Groups and what waits for them here, delivered and not acknowledged included."""
        for key, queue in self.queues.items():
            yield from ((key[2], stored.delivery) for stored in queue)
        for reader in self.readers:
            yield from ((key[2], stored.delivery) for key, stored in reader.unacknowledged.values())

    def remember(self) -> None:
        """Keep a copy of what is stored now, to come back with later."""
        self._copy = {key: deque(queue) for key, queue in self.queues.items()}
        for reader in self.readers:
            for key, stored in reader.unacknowledged.values():
                if key in self._copy:
                    self._copy[key].append(stored)

    def go_down(self, reason: str) -> None:
        """Drop every connection, and take no new one."""
        self.up = False
        self._unled.clear()
        self._life += 1
        for session in list(self.sessions):
            self.close(session)
            session.connection.site.close(reason)

    def come_up(self, how: str) -> int:
        """Take connections again; returns how many messages came or went meanwhile."""
        changed = 0
        if how == "broker_empty":
            changed = self.waiting() or len(self.queues)
            self.queues.clear()
            self.marks.clear()
        elif how == "broker_stale":
            changed = sum(map(len, self._copy.values())) + self.waiting()
            self.queues = {key: deque(queue) for key, queue in self._copy.items()}
            there = {created_address(*key) for key in self.queues}
            self.marks = {address: mark for address, mark in self.marks.items() if address in there}
        elif how == "broker_tail":
            for queue in self.queues.values():
                for _ in range(min(len(queue), self._faults.random(how).randrange(1, TAIL + 1))):
                    queue.pop()
                    changed += 1
        self.up = True
        return changed

    def forget_group(self, key: Key) -> int:
        """One group's queue or session is gone, with what was in it; whoever reads it is disconnected."""
        while (reader := self.holder([key])) is not None:
            self.close(reader.session)
            reader.session.connection.site.close("the queue was deleted")
        return len(self.queues.pop(key, ())) + 1

    def lead(self, leads: bool) -> None:
        """Have somebody lead its queues again, or nobody."""
        self._leads = leads
        unled, self._unled = self._unled, []
        for session, message, confirm in unled:
            self.publish(session, message, confirm)
        self.feed()

    def block(self, reason: str | None) -> None:
        """Ask senders to stop, or (None) to go on."""
        self.blocked = reason
        for session in self.sessions:
            if session.tell_blocked is not None:
                session.connection.client.send(session.tell_blocked, reason)


def _flipped(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    bit = chance.randrange(len(changed) * 8)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
