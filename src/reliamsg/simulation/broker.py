"""A simulated broker: the shared model of a broker over simulated connections, with faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Chances
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.message_faults import SimulatedMessageFaults
from reliamsg.simulation.network import Connection
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.transport.base import Binding, Delivery, Evidence, Mark, Outgoing
from reliamsg.transport.memory.model import BrokerModel, BrokerSession, Copy, QueueKey, Refusal, queue_of
from reliamsg.wire.address import is_created, is_for_one, is_group, topic_address
from reliamsg.wire.control import is_control_frame

__all__ = [
    "UNLIMITED", "Answered", "Blocked", "Broker", "BrokerEvent", "BrokerTraits", "ControlArrived", "ControlReturned",
    "Delivered", "Drained", "Session", "Unanswered",
]  # fmt: skip

UNLIMITED = 1 << 30
Tells = Literal["always", "wrongly", "never"]
Refuses = Literal["closing", "answering"]
WRONG_ANSWER = 0.2
"""How often a broker that tells wrongly does so."""
GHOST_S = (1.0, 10.0)
TAIL = 6
"""Most messages of a queue that a broker loses when it comes back without its tail."""


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


class Delivered(msgspec.Struct, frozen=True):
    """Messages for a reader."""

    deliveries: Sequence[Delivery]


class Drained(msgspec.Struct, frozen=True):
    """AMQP: a reader's queues are empty."""


class ControlArrived(msgspec.Struct, frozen=True):
    """A control frame for a listener."""

    address: str
    body: bytes


class ControlReturned(msgspec.Struct, frozen=True):
    """AMQP: a control frame that nobody listens for, for its sender."""

    address: str


class Answered(msgspec.Struct, frozen=True):
    """The outcome of a batch: a confirm, or a refusal."""

    token: int
    refusal: Refusal | None


class Blocked(msgspec.Struct, frozen=True):
    """A sender is to stop, or (None) may resume."""

    reason: str | None


@dataclass(frozen=True)
class Unanswered:
    """A topic for whose messages a broker neither stores nor confirms anything."""

    topic: str
    blocks: bool
    """Nor does it for what follows such a message on the same connection."""


BrokerEvent = Answered | Delivered | Drained | ControlArrived | ControlReturned | Blocked


class Session(BrokerSession):
    """One client's connection, as the broker sees it."""

    def __init__(
        self,
        connection: Connection,
        client: str,
        notify: Callable[[BrokerEvent], object] = lambda event: None,
        *,
        sends: bool = False,
        prefetch: int = 0,
        can_be_refused: bool = True,
    ) -> None:
        """`notify` is called at the client with what the broker sends to it. `sends`: whether it is asked to stop when
        the broker is short of something. `prefetch`: how many unacknowledged deliveries it allows."""
        super().__init__(client, can_be_refused)
        self.connection = connection
        self.sends: bool = sends
        self.prefetch: int = prefetch
        self.unrouted: set[str] = set()
        """AMQP: addresses to which nothing leads from the node that it is connected to."""
        self._notify = notify

    def post(self, event: BrokerEvent) -> None:
        """Send something to the client."""
        self.connection.client.send(self._notify, event)


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
        self.name: str = traits.name
        self.protocol = traits.protocol
        message_faults = SimulatedMessageFaults(traits.protocol, faults, trace, traffic, hole)
        self.model: BrokerModel[Session] = BrokerModel[Session](traits.protocol, message_faults)
        self.sends_all: bool = False
        """MQTT: it ignores how much clients allow it to send ahead."""
        self.addresses: dict[str, None] = {}
        """Control addresses that were used."""
        self.refused: set[str] = set()
        """MQTT: control addresses that nobody may use."""
        self._tells, self._refuses = traits.tells, traits.refuses
        self._inflight = UNLIMITED if traits.inflight is None or self.protocol == "amqp" else traits.inflight
        self._scheduler, self._faults, self._trace, self._traffic = scheduler, faults, trace, traffic
        self._random, self._hole = chance, hole
        self.unanswered: Unanswered | None = None
        self._held: list[tuple[Session, Outgoing]] = []
        """What was published while its queues had no leader, or its topic was not answered: connections stand, and
        nothing of it is stored or confirmed."""
        self._life = 0

    # -- sessions -------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """A client connected."""
        self.model.open(session)
        session.connection.site.when_lost(lambda reason: self._gone(session))

    def _gone(self, session: Session) -> None:
        """A client is gone. A broker whose nodes can't see each other may not notice for a while, and let its successor
        in beside it."""
        if not session.queues or not self._faults.bites("two_sessions", 5):
            self.close(session)
            return
        session.abandon()
        self._trace.note("broker", self.name, f"keeps the session of {session.client}, which is gone")
        self._scheduler.after(self._faults.random("two_sessions").uniform(*GHOST_S), self.close, session)

    def close(self, session: Session) -> None:
        """Close a session: deliveries that its client had not acknowledged are delivered again."""
        if self.model.close(session):
            self.feed()

    def _disconnect(self, session: Session, reason: str) -> None:
        self.close(session)
        session.connection.site.close(reason)

    def read(self, session: Session, queues: Sequence[QueueKey]) -> bool | str | None:
        """A client starts to read. Returns whether its queues existed, None if only some did, or the client that
        keeps it from reading."""
        other = self.model.reader_of(queues)
        if other is not None and other.abandoned:
            self._faults.strikes("two_sessions")
        elif other is not None and self.protocol == "amqp":
            return other.client
        elif other is not None:  # a client id is taken over
            other.connection.site.close("session taken over")
            self.close(other)
        return self.model.read(session, queues)

    def evidence(self, bindings: Iterable[Binding]) -> dict[Binding, Evidence | Mark]:
        """MQTT: what the broker shows of groups."""
        tells = self._tells != "never"
        return {
            binding: self.model.evidence(
                queue_of(binding),
                tells=tells,
                wrongly=self._tells == "wrongly" and self._random.random() < WRONG_ANSWER,
            )
            for binding in bindings
        }

    # -- messages -------------------------------------------------------------------------------------------

    def publish(self, session: Session, message: Outgoing) -> None:
        """A message arrived."""
        if session not in self.model.sessions:
            return
        if not self.model.delivers or self._is_held(session, message):
            self._held.append((session, message))
            return
        self._traffic.published(self.name, message, orphaned=not session.connection.client.alive)
        copies, answer = self.model.publish(session, message)
        for copy in copies or ():
            if copy.delay:
                self._scheduler.after(copy.delay, self._store_late, copy, self._life)
            else:
                self._store(copy)
        if copies is not None:
            self.feed()  # once more: a reader whose queues are empty now is notified
        if answer is None:
            return
        for part in answer.parts if answer.refusal is None else ():
            self._traffic.confirmed(self.name, part)
        answered = Answered(answer.token, answer.refusal)
        if answer.delay:
            self._faults.strikes("confirm_disorder")
            self._scheduler.after(answer.delay, session.post, answered)
        else:
            session.post(answered)

    def _is_held(self, session: Session, message: Outgoing) -> bool:
        """Whether a message waits behind others, or for as long as its topic is not answered."""
        unanswered = self.unanswered
        return unanswered is not None and (
            message.topic == unanswered.topic
            or (unanswered.blocks and any(each is session for each, _ in self._held))
        )

    def _release_held(self) -> None:
        """Process again what was held."""
        held, self._held = self._held, []
        for session, message in held:
            self.publish(session, message)
        self.feed()

    def _store(self, copy: Copy) -> None:
        if self.model.store(copy):
            self.feed()

    def _store_late(self, copy: Copy, life: int) -> None:
        if life == self._life:
            self._store(copy)

    def inject(self, topic: str, body: bytes, content_type: str | None) -> None:
        """Someone else publishes something."""
        delivery = Delivery(0, topic_address(topic, 0), body, content_type)
        for queue in self.model.queues_of(topic, 0):
            self._store(Copy(queue, delivery))

    def feed(self) -> None:
        """Deliver what readers have room for."""
        for session in self.model.readers:
            prefetch, before = session.prefetch, session.unacknowledged
            most = UNLIMITED if self.sends_all else min(prefetch, self._inflight)
            found = self.model.take(session, most)
            for _ in range(before + len(found) - max(before, prefetch)):
                self._faults.strikes("over_send")
            if found:
                session.post(Delivered(found))
            elif self.model.turned_empty(session):
                session.post(Drained())

    def acknowledge(self, session: Session, numbers: Iterable[int]) -> None:
        """A reader acknowledges deliveries."""
        if session not in self.model.sessions:
            return
        for queue, delivery in self.model.acknowledge(session, numbers):
            self._traffic.acknowledged(self.name, queue[2], delivery)
        self.feed()

    # -- control frames -------------------------------------------------------------------------------------

    def subscribe(self, session: Session, addresses: Sequence[str], answer: Callable[..., object]) -> None:
        """MQTT: a client subscribes to more addresses. `answer` is called with those that are refused."""
        if session not in self.model.sessions:
            return
        self.addresses.update(dict.fromkeys(addresses))
        refused = [address for address in addresses if address in self.refused]
        for address in refused:
            self._refuse(session, address, "listen to")
        if refused and self._refuses == "closing":
            session.connection.site.close("not authorized")
            self.close(session)
            return
        session.listen(session.addresses | set(addresses) - set(refused))
        answer(refused)

    def unsubscribe(self, session: Session, addresses: Iterable[str]) -> None:
        """MQTT: a client unsubscribes."""
        session.listen(session.addresses.difference(addresses))

    def receive_control(self, session: Session, address: str, body: bytes) -> None:
        """MQTT: a control frame arrived over a client's second connection."""
        if session not in self.model.sessions:
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

    def route_control(self, session: Session, address: str, body: bytes) -> None:
        """AMQP: a control frame arrived."""
        lost = address in session.unrouted
        if lost:
            self._faults.strikes("control_unrouted")
        else:
            self.forward_control(address, body)
        if is_for_one(address) and (lost or not self.model.listeners(address)):
            session.post(ControlReturned(address))

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
            self.model.keep_mark(address, body)
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
        for session in self.model.listeners(address):
            session.post(ControlArrived(address, body))

    # -- as a whole -----------------------------------------------------------------------------------------

    def go_down(self, reason: str) -> None:
        """Drop every connection, and accept no new one."""
        self.model.set_up(False)
        self._held.clear()
        self._life += 1
        for session in list(self.model.sessions):
            self._disconnect(session, reason)

    def come_up(self, how: str) -> int:
        """Accept connections again. Returns how many messages appeared or disappeared."""
        changed, model = 0, self.model
        if how == "broker_empty":
            queues = len(model.queues)
            changed = model.wipe() or queues
        elif how == "broker_stale":
            changed = model.restore_snapshot()
        elif how == "broker_tail":
            for queue in model.queues:
                changed += model.drop_latest(queue, self._faults.random(how).randrange(1, TAIL + 1))
        model.set_up(True)
        return changed

    def forget_group(self, queue: QueueKey) -> None:
        """Lose one group's queue or session, with what is in it, and disconnect its readers."""
        while (session := self.model.reader_of([queue])) is not None:
            self._disconnect(session, "the queue was deleted")
        self.model.delete(queue)

    def refuse_logins(self, refused: bool) -> None:
        """Refuse logins, and drop the connections that there are, or accept logins again."""
        self.model.refuse_logins(refused)
        for session in list(self.model.sessions) if refused else ():
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
        self.model.deliver(has_leader)
        self._release_held()

    def leave_unrouted(self, chance: random.Random) -> str:
        """AMQP: from now on, nothing that one connection sends to some control addresses arrives, for as long as that
        connection lasts. Returns which; empty if there are none."""
        addresses = sorted({a for session in self.model.sessions for a in session.addresses if is_for_one(a)})
        if not addresses:
            return ""
        session = chance.choice(list(self.model.sessions))
        lost = chance.sample(addresses, chance.randint(1, len(addresses)))
        session.unrouted.update(lost)
        return f"{session.client} to {', '.join(lost)}"

    def answer_all(self, but: Unanswered | None = None) -> None:
        """From now on, answer everything again, or everything but this."""
        self.unanswered = but
        self._release_held()

    def block(self, reason: str | None) -> None:
        """Ask senders to stop, or (None) to resume."""
        self.model.block(reason)
        for session in self.model.sessions:
            if session.sends:
                session.post(Blocked(reason))
