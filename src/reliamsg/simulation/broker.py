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
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.network import Connection
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outcome, Outgoing
from reliamsg.wire.address import created_address, is_created, is_group, topic_address
from reliamsg.wire.control import is_control_frame

__all__ = ["UNLIMITED", "Broker", "BrokerTraits", "Reader", "Session"]

QueueKey = tuple[str, int, str]
"""Topic, partition and group of a queue."""
UNLIMITED = 1 << 30
Tells = Literal["always", "wrongly", "never"]
Refuses = Literal["closing", "answering"]
WRONG_ANSWER = 0.2
"""How often a broker that tells wrongly does so."""
REORDER_WITHIN = 6
LATE_STORE_S = (0.2, 3.0)
GHOST_S = (1.0, 10.0)
TAIL = 6
"""Most messages of a queue that a broker loses when it comes back without its tail."""
REFUSALS = {
    "amqp": {"return": Outcome.RETURNED, "nack": Outcome.NACKED, "refuse": Outcome.REFUSED},
    "mqtt": {"refuse": Outcome.REFUSED},
}


@dataclass(frozen=True)
class BrokerTraits:
    """What a site's broker is like."""

    name: str
    protocol: Literal["amqp", "mqtt"]
    tells: Tells = "always"
    """MQTT: whether the broker reports that nobody subscribes to a topic; ``wrongly``: now and then also where somebody
    does."""
    inflight: int | None = None
    """MQTT: most messages that it sends ahead of acknowledgements, whatever clients allow."""
    refuses: Refuses = "closing"
    """MQTT: how it refuses a subscription to a control address. Publishing to one can only be refused by closing the
    connection."""


@dataclass(slots=True)
class Stored:
    """A message in a queue."""

    number: int
    delivery: Delivery


class Session:
    """One client's connection, as the broker sees it. Calls to the client go through `connection.client`."""

    def __init__(
        self,
        connection: Connection,
        client: str,
        mqtt_version: str = "auto",
        hear: Callable[[str, bytes], object] = lambda address, body: None,
    ) -> None:
        """`hear` is called at the client with the address and body of each control frame for it."""
        self.connection = connection
        self.client = client
        self.mqtt_version = mqtt_version
        self.hear = hear
        self.addresses: frozenset[str] = frozenset()
        """Control addresses that it listens to."""
        self.reader: Reader | None = None
        """What it reads with, if it does."""
        self.ghost = False
        """Its client is gone, and the broker has not noticed."""
        self.tell_blocked: Callable[[str | None], object] | None = None
        """Asks a sender to stop, or (None) to resume."""
        self.partial: dict[int, tuple[list[Outgoing], tuple[Outcome, str] | None]] = {}
        """By token, the messages of a batch that is not complete yet, and what is to be answered to it."""

    def listen(self, addresses: Iterable[str]) -> None:
        """Listen to these control addresses, and no others."""
        self.addresses = frozenset(addresses)

    def when_blocked(self, call: Callable[[str | None], object]) -> None:
        """Have `call` made at the client with the reason when it is to stop sending, or (None) when it may resume."""
        self.tell_blocked = call


@dataclass(eq=False, slots=True)
class Reader:
    """What a session reads with, for a group."""

    keys: tuple[QueueKey, ...]
    prefetch: int
    deliver: Callable[[Sequence[Delivery]], object]
    drained: Callable[[], object]
    unacknowledged: dict[int, tuple[QueueKey, Stored]] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    """MQTT: tokens that wait for earlier ones."""
    told_empty: bool = False
    tokens: int = 0


class Broker:
    """One site. Everything is called when it arrives there; answers go over the sessions' connections."""

    def __init__(
        self,
        traits: BrokerTraits,
        scheduler: Scheduler,
        faults: Chances,
        trace: Trace,
        traffic: Traffic,
        chance: random.Random,
        hole: Hole | None = None,
    ) -> None:
        self.name, self.protocol = traits.name, traits.protocol
        self.up = True
        self.login_refused = False
        self.blocked: str | None = None
        """Why senders are asked to stop, if they are."""
        self.sends_all = False
        """MQTT: it ignores how much clients allow it to send ahead."""
        self.addresses: dict[str, None] = {}
        """Control addresses that were used."""
        self.refused: set[str] = set()
        """MQTT: control addresses that nobody may use."""
        self.marks: dict[str, bytes] = {}
        """What groups left there when they were created, by address."""
        self.queues: dict[QueueKey, deque[Stored]] = {}
        self.sessions: dict[Session, None] = {}
        self.readers: dict[Reader, Session] = {}
        self._tells, self._refuses = traits.tells, traits.refuses
        self._inflight = UNLIMITED if traits.inflight is None or self.protocol == "amqp" else traits.inflight
        self._scheduler, self._faults, self._trace, self._traffic = scheduler, faults, trace, traffic
        self._random, self._hole = chance, hole
        self._has_leader = True
        """Whether its queues have a leader. Otherwise nothing is stored, confirmed or delivered, but connections
        stand."""
        self._waiting_for_leader: list[tuple[Session, Outgoing, Callable[..., object]]] = []
        self._numbers = 0
        self._snapshot: dict[QueueKey, deque[Stored]] = {}
        self._life = 0

    # -- sessions -------------------------------------------------------------------------------------------

    def admit(self) -> str | None:
        """Why clients can't log in, or None."""
        if not self.up:
            return "connection refused"
        return "login refused" if self.login_refused else None

    def open(self, session: Session) -> None:
        """A client connected."""
        self.sessions[session] = None
        session.connection.site.when_lost(lambda reason: self._gone(session))

    def _gone(self, session: Session) -> None:
        """A client is gone. A broker whose nodes can't see each other may not notice for a while, and let its successor
        in beside it."""
        if session.reader is None or not self._faults.bites("two_sessions", 5):
            self.close(session)
            return
        session.ghost = True
        self._trace.note("broker", self.name, f"keeps the session of {session.client}, which is gone")
        self._scheduler.after(self._faults.random("two_sessions").uniform(*GHOST_S), self.close, session)

    def close(self, session: Session) -> None:
        """Close a session: what its client had not acknowledged is delivered again."""
        self.sessions.pop(session, None)
        for reader in [each for each, its in self.readers.items() if its is session]:
            del self.readers[reader]
            for key, stored in reversed(reader.unacknowledged.values()):
                if key in self.queues:
                    again = msgspec.structs.replace(stored.delivery, redelivered=True)
                    self.queues[key].appendleft(Stored(stored.number, again))
            self.feed()

    def declare(self, bindings: Iterable[Binding]) -> None:
        """Create these groups' queues unless they exist. At MQTT sites only a group's own client can do that."""
        for binding in bindings if self.protocol == "amqp" else ():
            self.queues.setdefault((binding.topic, binding.partition, binding.group), deque())

    def _holder(self, keys: Sequence[QueueKey]) -> Session | None:
        """Who reads any of these queues."""
        return next(
            (session for reader, session in self.readers.items() if set(reader.keys) & set(keys)), None
        )

    def read(self, session: Session, reader: Reader) -> bool | str:
        """A client starts to read. Returns whether all its queues existed, or the client that keeps it from reading."""
        other = self._holder(reader.keys)
        if other is not None and other.ghost:
            self._faults.strikes("two_sessions")
            other = None
        if other is not None and self.protocol == "amqp":
            return other.client
        if other is not None:  # a client id is taken over
            other.connection.site.close("session taken over")
            self.close(other)
        existed = all(key in self.queues for key in reader.keys)
        for key in reader.keys:
            self.queues.setdefault(key, deque())
        self.readers[reader] = session
        session.reader = reader
        return existed

    def create(self, key: QueueKey, mark: bytes) -> None:
        """Someone creates a group."""
        self.queues.setdefault(key, deque())
        self.marks[created_address(*key)] = mark

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what the broker shows of groups."""
        return {
            binding: self._evidence((binding.topic, binding.partition, binding.group)) for binding in bindings
        }

    def _evidence(self, key: QueueKey) -> Evidence | Mark:
        if self._tells == "never":
            return self.marks.get(created_address(*key), Evidence.NOT_MARKED)
        wrong = self._tells == "wrongly" and self._random.random() < WRONG_ANSWER
        return Evidence.SUBSCRIBED if key in self.queues and not wrong else Evidence.NOT_SUBSCRIBED

    # -- publishing -----------------------------------------------------------------------------------------

    def publish(self, session: Session, message: Outgoing, confirm: Callable[..., object]) -> None:
        """A message arrived. `confirm(token, refusal)` is called at the client, unless a fault prevents it."""
        if session not in self.sessions:
            return
        if not self._has_leader:
            self._waiting_for_leader.append((session, message, confirm))
            return
        self._traffic.published(self.name, message, orphaned=not session.connection.client.alive)
        parts, answer = session.partial.pop(message.token, ([], None))
        silent, refusal, delay = self._take(session, message)
        if silent:
            return
        parts, answer = [*parts, message], answer or refusal
        if message.parts_left:
            session.partial[message.token] = parts, answer
            return
        for part in parts if answer is None else ():
            self._traffic.confirmed(self.name, part)
        client = session.connection.client
        if delay:
            self._faults.strikes("confirm_disorder")
            self._scheduler.after(delay, client.send, confirm, message.token, answer)
        else:
            client.send(confirm, message.token, answer)

    def _take(self, session: Session, message: Outgoing) -> tuple[bool, tuple[Outcome, str] | None, float]:
        """Whether there is no answer, what is answered instead of a confirm, and how much later."""
        faults = self._faults
        if message.parts_left == 0 and faults.bites("swallow"):
            faults.strikes("swallow")
            self._trace.note("broker", self.name, f"swallows {message.message_id}")
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
            self._trace.note("broker", self.name, f"does not confirm {message.message_id}")
            return True, None, 0.0
        late = faults.bites("confirm_disorder")
        return False, None, faults.random("confirm_disorder").uniform(0.0, 0.5) if late else 0.0

    def _refusal(self, session: Session, message: Outgoing) -> tuple[Outcome, str] | None:
        faults = self._faults
        if self.protocol == "mqtt" and session.mqtt_version == "3.1.1":
            return None  # that version has no refusals
        for name, outcome in REFUSALS[self.protocol].items():
            if faults.bites(name):
                faults.strikes(name)
                self._trace.note("broker", self.name, f"answers {message.message_id} with {outcome.value}")
                return outcome, "as simulated"
        return None

    def _keep(self, keys: Sequence[QueueKey], delivery: Delivery, what: str) -> None:
        faults = self._faults
        if keys and self._hole is not None and self._hole.swallows(self._traffic.frame(delivery)):
            self._trace.note("broker", self.name, f"loses {what}, as all sites do")
            return
        if keys and faults.bites("confirm_and_lose"):
            faults.strikes("confirm_and_lose")
            self._trace.note("broker", self.name, f"loses {what}")
            return
        if faults.bites("damage") and delivery.body:
            faults.strikes("damage")
            self._trace.note("broker", self.name, f"damages {what}")
            delivery = msgspec.structs.replace(
                delivery, body=_flipped(delivery.body, faults.random("damage"))
            )
        for key in keys:
            if faults.bites("misroute"):
                faults.strikes("misroute")
                self._trace.note("broker", self.name, f"does not route {what} to {key[2]}")
                continue
            self._put(key, delivery)
            if faults.bites("duplicate"):
                faults.strikes("duplicate")
                self._put(key, delivery)
        self.feed()

    def _put(self, key: QueueKey, delivery: Delivery) -> None:
        if self._faults.bites("early_confirm"):
            self._faults.strikes("early_confirm")
            delay = self._faults.random("early_confirm").uniform(*LATE_STORE_S)
            self._scheduler.after(delay, self._store, key, delivery, self._life)
        else:
            self._store(key, delivery, self._life)

    def _store(self, key: QueueKey, delivery: Delivery, life: int) -> None:
        if key in self.queues and life == self._life and self.up:
            self._numbers += 1
            self.queues[key].append(Stored(self._numbers, delivery))
            self.feed()

    def inject(self, topic: str, body: bytes, content_type: str | None) -> None:
        """Someone else publishes something."""
        delivery = Delivery(0, topic_address(topic, 0), body, content_type)
        for key in [key for key in self.queues if key[0] == topic]:
            self._store(key, delivery, self._life)

    # -- delivering -----------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Deliver what readers have room for."""
        for reader, session in list(self.readers.items()) if self._has_leader else ():
            found: list[Delivery] = []
            most = UNLIMITED if self.sends_all else min(reader.prefetch, self._inflight)
            for key in reader.keys:
                queue = self.queues.get(key)
                while queue and len(reader.unacknowledged) < most:
                    found.append(self._next(reader, key, queue))
            if found:
                reader.told_empty = False
                session.connection.client.send(reader.deliver, found)
            elif self.protocol == "amqp" and not (
                reader.told_empty or any(map(self.queues.get, reader.keys))
            ):
                reader.told_empty = True
                session.connection.client.send(reader.drained)

    def _next(self, reader: Reader, key: QueueKey, queue: deque[Stored]) -> Delivery:
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
        """A reader acknowledges deliveries."""
        if reader not in self.readers:
            return
        waiting = reader.unacknowledged
        reader.acknowledged.update(numbers)
        if self.protocol == "amqp":
            done = [number for number in waiting if number in reader.acknowledged]
        else:
            done = []
            for number in waiting:  # PUBACKs are sent in the order of the PUBLISHes
                if number not in reader.acknowledged:
                    break
                done.append(number)
        for number in done:
            key, stored = waiting.pop(number)
            self._traffic.acknowledged(self.name, key[2], stored.delivery)
        self.feed()

    # -- control frames -------------------------------------------------------------------------------------

    def subscribe(self, session: Session, addresses: Sequence[str], answer: Callable[..., object]) -> None:
        """MQTT: a client subscribes to more addresses. `answer` is called with those that are refused."""
        if session not in self.sessions:
            return
        self.addresses.update(dict.fromkeys(addresses))
        refused = [address for address in addresses if address in self.refused]
        for address in refused:
            self._refuse(session, address, "listen to")
        if refused and self._refuses == "closing":
            session.connection.site.close("not authorized")
            self.close(session)
            return
        session.addresses |= set(addresses) - set(refused)
        answer(refused)

    def unsubscribe(self, session: Session, addresses: Iterable[str]) -> None:
        """MQTT: a client unsubscribes."""
        session.addresses -= set(addresses)

    def receive_control(self, session: Session, address: str, body: bytes) -> None:
        """MQTT: a control frame arrived over a client's second connection."""
        if session not in self.sessions:
            return
        self.addresses[address] = None
        if address not in self.refused:
            self.forward_control(address, body)
            return
        self._refuse(session, address, "send to")
        session.connection.site.close("not authorized")
        self.close(session)

    def _refuse(self, session: Session, address: str, what: str) -> None:
        self._faults.strikes("address_refused")
        self._trace.note("broker", self.name, f"does not let {session.client} {what} {address}")

    def forward_control(self, address: str, body: bytes) -> None:
        """A control frame arrived: send it to everyone who listens."""
        faults, copies = self._faults, 1
        self._traffic.capture(address, body)
        if (
            is_group(address)
            and not is_control_frame(body)
            and self._hole is not None
            and self._hole.swallows(self._traffic.repair(body))
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
                self._scheduler.after(delay, self.send_control, address, body)
            else:
                self.send_control(address, body)

    def send_control(self, address: str, body: bytes) -> None:
        """Send a control frame, from whomever, to everyone who listens now."""
        for session in self.sessions:
            if address in session.addresses:
                session.connection.client.send(session.hear, address, body)

    # -- as a whole -----------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """How many messages are here, including delivered ones."""
        return sum(map(len, self.queues.values())) + sum(len(r.unacknowledged) for r in self.readers)

    def stored(self) -> Iterator[tuple[str, Delivery]]:
        """Groups and what waits for them here, including what is delivered and not acknowledged."""
        for key, queue in self.queues.items():
            yield from ((key[2], stored.delivery) for stored in queue)
        for reader in self.readers:
            yield from ((key[2], stored.delivery) for key, stored in reader.unacknowledged.values())

    def take_snapshot(self) -> None:
        """Copy what is stored now, to come back with it later."""
        self._snapshot = {key: deque(queue) for key, queue in self.queues.items()}
        for reader in self.readers:
            for key, stored in reader.unacknowledged.values():
                if key in self._snapshot:
                    self._snapshot[key].append(stored)

    def go_down(self, reason: str) -> None:
        """Drop every connection, and accept no new one."""
        self.up = False
        self._waiting_for_leader.clear()
        self._life += 1
        for session in list(self.sessions):
            self.close(session)
            session.connection.site.close(reason)

    def come_up(self, how: str) -> int:
        """Accept connections again. Returns how many messages appeared or disappeared."""
        changed = 0
        if how == "broker_empty":
            changed = self.waiting() or len(self.queues)
            self.queues.clear()
            self.marks.clear()
        elif how == "broker_stale":
            changed = sum(map(len, self._snapshot.values())) + self.waiting()
            self.queues = {key: deque(queue) for key, queue in self._snapshot.items()}
            there = {created_address(*key) for key in self.queues}
            self.marks = {address: mark for address, mark in self.marks.items() if address in there}
        elif how == "broker_tail":
            for queue in self.queues.values():
                for _ in range(min(len(queue), self._faults.random(how).randrange(1, TAIL + 1))):
                    queue.pop()
                    changed += 1
        self.up = True
        return changed

    def forget_group(self, key: QueueKey) -> int:
        """Lose one group's queue or session, with what is in it, and disconnect its reader."""
        while (session := self._holder([key])) is not None:
            self.close(session)
            session.connection.site.close("the queue was deleted")
        return len(self.queues.pop(key, ())) + 1

    def refuse_logins(self, refuse: bool) -> None:
        """Refuse logins, and drop the connections that there are, or accept logins again."""
        self.login_refused = refuse
        for session in list(self.sessions) if refuse else ():
            session.connection.reset("login expired")

    def refuse_address(self, address: str) -> None:
        """MQTT: let nobody use a control address."""
        self.refused.add(address)

    def allow_addresses(self) -> None:
        """MQTT: refuse no address any more."""
        self.refused.clear()

    def send_all(self, send_all: bool) -> None:
        """MQTT: from now on, ignore how much clients allow to be sent ahead, or respect it."""
        self.sends_all = send_all
        if send_all:
            self.feed()

    def set_leader(self, has_leader: bool) -> None:
        """Its quorum queues have a leader again, or lose it."""
        self._has_leader = has_leader
        waiting, self._waiting_for_leader = self._waiting_for_leader, []
        for session, message, confirm in waiting:
            self.publish(session, message, confirm)
        self.feed()

    def block(self, reason: str | None) -> None:
        """Ask senders to stop, or (None) to resume."""
        self.blocked = reason
        for session in self.sessions:
            if session.tell_blocked is not None:
                session.connection.client.send(session.tell_blocked, reason)


def _flipped(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    bit = chance.randrange(len(changed) * 8)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
