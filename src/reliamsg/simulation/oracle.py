"""The judge of a simulated run: compares what applications requested and received with the promises.

It knows only the applications' view, the traffic at the brokers, and the files, and never asks the product about its
own state. :data:`~reliamsg.simulation.verdicts.KINDS` explains each kind of violation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, Protocol

from reliamsg.message import Gap, Message, MessageId, Stream
from reliamsg.protocol.receiver.joining import JOINED_LATE
from reliamsg.simulation.bodies import Bodies
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.dead_letters import DeadLetters
from reliamsg.simulation.declarations import Declarations, covers, names, stream_of
from reliamsg.simulation.first_deliveries import FirstDeliveries
from reliamsg.simulation.left_messages import LeftMessages
from reliamsg.simulation.readers import NEVER, Readers
from reliamsg.simulation.starts import Start, Starts
from reliamsg.simulation.stopwatch import Stopwatch
from reliamsg.simulation.verdicts import Violation

__all__ = ["ConsumerFiles", "Operation", "Oracle"]

Place = tuple[int, int]
"""Epoch and number of a message in its stream."""


class ConsumerFiles(Protocol):
    """A consumer's files, as far as the judge may look things up in them at any time."""

    def is_quarantined(self, stream: Stream, epoch: int, seq: int) -> bool:
        """Whether a message is in the inbox's quarantine, as committed."""

    def was_dropped_unverified(self, stream: Stream, epoch: int, seq: int) -> bool:
        """Whether the consumer, which has keys, dropped a message in a format in which it can verify no signature, for
        want of room in the quarantine."""

    def came_before_join(self, stream: Stream, epoch: int, seq: int) -> bool:
        """Whether a message was published before the consumer joined its stream, according to the journal."""

    def has_joined(self, stream: Stream) -> bool:
        """Whether the consumer ever joined a stream, according to the journal."""

    def report_left_messages(self) -> None:
        """Report to the judge the messages that were left to their producers, according to the journal."""


@dataclass(slots=True)
class Operation:
    """One message that an application published."""

    number: int
    stream: Stream
    body: bytes
    outcome: Literal["invoked", "ok", "failed", "indeterminate"] = "invoked"
    durable_at: float = 0.0
    message: MessageId | None = None
    """Its identity, once known."""
    names: set[MessageId] = field(default_factory=set)
    """All of its identities: an outbox that was restored knows it by an earlier one."""
    gone: bool = False
    """Whether it was lost with its disk, which nothing can prevent."""
    confirmed: set[str] = field(default_factory=set)
    groups: frozenset[str] | None = None
    """The groups that its producer named for it, and still names; None for all. Other groups are promised nothing."""
    named: frozenset[str] = frozenset()
    """The groups that its producer named when it was published."""
    removed: bool = False
    """Whether its application removed it: nothing is promised about it."""

    def identify(self, message: MessageId) -> None:
        """Its identity is known, or has changed."""
        self.message = message
        self.names.add(message)

    def succeed(self, at: float) -> None:
        """Publishing returned."""
        self.outcome, self.durable_at = "ok", at

    def fail(self) -> None:
        """Publishing was reported as failed."""
        self.outcome = "failed"

    def become_indeterminate(self) -> None:
        """It is unknown whether publishing succeeded."""
        self.outcome = "indeterminate"

    def is_for(self, group: str) -> bool:
        """Whether its producer names a group for it."""
        return self.groups is None or group in self.groups


_number = attrgetter("number")


@dataclass(slots=True)
class _Received:
    """The part of one stream that one group received."""

    latest: Place = (0, 0)
    """The highest place."""
    number: int = -1
    """The highest number of an operation."""
    own: dict[str, tuple[Place, int]] = field(default_factory=dict)
    """By consumer, the highest place and number of an operation that it delivered."""
    maxima: list[tuple[float, Place, int]] = field(default_factory=list)
    """By time, the highest place and number of an operation until then."""
    moved_at: dict[str, float] = field(default_factory=dict)
    """By consumer and according to its stopwatch, when something was last delivered, settled or declared: actions of
    other consumers do not affect its clock."""
    accepted_at: dict[tuple[str, Gap], float] = field(default_factory=dict)
    """By consumer and accepted gap, when the gap's clock had started."""
    failed: dict[str, dict[MessageId, MessageId | None]] = field(default_factory=dict)
    """By consumer, messages whose handler raised and that were not delivered again, and the messages that overtook
    each."""
    reached: dict[str, Place] = field(default_factory=dict)
    """By consumer, the highest place that it delivered or declared."""

    def note_own(self, consumer: str, message: MessageId, number: int) -> None:
        """A consumer delivered a message, which the operation with this number published."""
        place = message.epoch, message.seq
        own, known = self.own.get(consumer, (place, number))
        self.own[consumer] = max(own, place), max(known, number)

    def note_reached(self, consumer: str, place: Place) -> None:
        """A consumer delivered or declared this place."""
        self.reached[consumer] = max(place, self.reached.get(consumer, place))


class Oracle:
    """Its methods are called on events; the violations are complete after :meth:`judge`."""

    def __init__(
        self,
        scheduler: Scheduler,
        groups: Iterable[str],
        gap_timeouts: Mapping[str, float],
        needed: Mapping[str, int],
        latest: Collection[str] = (),
        keepers: Collection[str] = (),
    ) -> None:
        """`gap_timeouts`: of each consumer, in seconds. `needed`: how many sites have to confirm a message before each
        producer reports it as published. `latest`: groups that start with the first message to arrive. `keepers`:
        producers that keep everything until the groups that they name have it."""
        self.violations: list[Violation] = []
        self.operations: dict[bytes, Operation] = {}
        """By body."""
        self.groups: tuple[str, ...] = tuple(groups)
        self.deliveries: dict[str, dict[MessageId, str]] = {group: {} for group in self.groups}
        """By group, the delivered messages, and the consumer that delivered each last."""
        self.acked: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """Acknowledged messages."""
        self.indeterminate: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """Messages that were acknowledged or rejected by a consumer that terminated before that was known to be
        durable."""
        self.declarations: defaultdict[str, Declarations] = defaultdict[str, Declarations](Declarations)
        self.first_deliveries: defaultdict[str, FirstDeliveries] = defaultdict[str, FirstDeliveries](
            FirstDeliveries
        )
        """Both by group."""
        self.readers: Readers = Readers(scheduler)
        self._scheduler, self._gap_timeouts, self._needed = scheduler, gap_timeouts, needed
        self._streams: dict[Stream, list[Operation]] = {}
        self._bodies: dict[MessageId, Bodies] = {}
        # Producers whose outbox was replaced by an older copy; messages and removals that are in no copy; and what
        # brokers had been offered by then.
        self._replaced = set[str]()
        self._gone, self._gone_removals, self._offered = (set[MessageId]() for _ in range(3))
        self._left_messages = LeftMessages(self.groups, keepers)
        self._received: dict[tuple[str, Stream], _Received] = {}
        self._delivered_at: dict[str, dict[MessageId, float]] = {group: {} for group in self.groups}
        """By group, the delivered messages, and when each was delivered last."""
        self._attempts: dict[str, Counter[MessageId]] = {group: Counter() for group in self.groups}
        """By group, how often each message was delivered."""
        # Groups that start with the latest; where they started with each stream; and the lowest place where each stream
        # started for any group according to its journals.
        self._latest = frozenset(latest)
        self._starts = Starts()
        self._journalled_starts: dict[tuple[str, Stream], Place] = {}
        self._terminations: dict[str, list[float]] = {group: [] for group in self.groups}
        """By group, when consumers terminated."""
        self._acked_durably: dict[str, dict[MessageId, tuple[str, float]]] = {g: {} for g in self.groups}
        """By group, in whose inbox, and when."""
        # By group, according to journals: messages that were acknowledged or became dead letters; and messages that a
        # consumer could not read, and keeps in its quarantine.
        self._journalled, self._unreadable = (
            {group: set[MessageId]() for group in self.groups} for _ in range(2)
        )
        self._dead_letters = {group: DeadLetters() for group in self.groups}
        self._stopwatches: dict[str, Stopwatch] = {}
        self._files: dict[str, ConsumerFiles] = {}
        """Both by consumer."""
        self._inboxes: dict[str, set[str]] = {group: set() for group in self.groups}
        self._released: dict[str, dict[MessageId, float]] = {group: {} for group in self.groups}
        """By group, the messages that its brokers were allowed to delete, and when first."""
        self._excused: set[tuple[str, Stream]] = set()
        """Streams that groups do not receive to their end, because a client terminated for good with a valid cause.
        Their missing messages must be in a place from which they could still be sent or delivered."""
        self._stored = defaultdict[str, set[MessageId]](set)
        """The messages in a group's inboxes, or at a broker for it, at the end; under "" those in outboxes."""
        self._passed: list[tuple[str, Operation, str, float]] = []
        """Group, message, how it was skipped, and when: it was not declared by then, but journals may still show
        that."""
        self._overtaken: list[tuple[str, str, MessageId, Violation]] = []
        """Group, consumer, message, and its violation. It is dropped if journals show that another inbox had passed the
        message by then without delivering it: as a gap, because it was removed, because it joined behind it, or because
        it did not know of it when it went on to another history of the outbox."""

    @property
    def streams(self) -> Iterable[Stream]:
        """Those to which an application published, or tried to."""
        return self._streams

    def violate(self, kind: str, text: str, about: tuple[str, MessageId] | None = None) -> None:
        """Record a violation. `about`: see :class:`Violation`."""
        self.violations.append(Violation(kind, text, self._scheduler.now, about))

    def owes(self, group: str, operation: Operation) -> bool:
        """Whether a group must receive or declare a message."""
        return (
            operation.outcome == "ok"
            and not (operation.gone or operation.removed)
            and operation.is_for(group)
            and not self._is_before_start(group, operation)
        )

    def _is_before_start(self, group: str, operation: Operation) -> bool:
        """Whether a group with ``begin="latest"`` started behind a message. It is owed nothing of a stream of which
        nothing has arrived yet, nor of an epoch before the first that arrived, in which only an outbox that was
        restored together with its clock continues."""
        if group not in self._latest:
            return False
        start, message = self._starts.get(group, operation.stream), operation.message
        if start is None or operation.number < start.number:
            return True
        replaced = operation.stream.producer in self._replaced
        return message is not None and message.epoch < start.epoch and replaced

    def _note_start(self, group: str, operation: Operation, quarantined_by: str = "") -> None:
        """A group received or accepted a message. `quarantined_by`: see :class:`Start`."""
        if group in self._latest:
            assert operation.message is not None  # it passed a broker
            start = Start(operation.number, operation.message.epoch, self._scheduler.now, quarantined_by)
            self._starts.note(group, operation.stream, start)

    # -- clients --------------------------------------------------------------------------------------------

    def consumer_added(self, consumer: str, stopwatch: Stopwatch, files: ConsumerFiles) -> None:
        """Add a consumer. `stopwatch`: runs while its gaps' clocks can run."""
        self._stopwatches[consumer] = stopwatch
        self._files[consumer] = files

    def inbox_opened(self, group: str, consumer: str, inbox: str, *, standby: bool) -> None:
        """A consumer opened its inbox. `standby`: it waits until no other consumer of the group reads."""
        self._inboxes[group].add(inbox)
        self.readers.opened(consumer, standby=standby)

    def _has_several_inboxes(self, group: str) -> bool:
        return len(self._inboxes[group]) > 1

    def consumer_terminated(self, group: str, consumer: str, crashed: bool = True) -> None:
        """A consumer of the group is gone, with everything that it had not committed."""
        self.readers.terminated(consumer)
        for received in self._received.values():
            received.failed.pop(consumer, None)
        self._terminations[group].append(self._scheduler.now)
        if crashed:
            self.first_deliveries[group].crashed(consumer)

    def inbox_replaced(self, group: str, consumer: str, since: float) -> None:
        """A consumer's inbox is in the state of `since` again. Its later actions are attributed to another inbox of its
        group, from which it never received anything."""
        gone = f"{consumer} before its inbox was replaced"
        self._inboxes[group].add(gone)
        others = [
            self._files[name] for name in self._consumers(group) if name != consumer and name in self._files
        ]

        def known(stream: Stream) -> bool:
            return any(files.has_joined(stream) for files in others)

        self._starts.went_back(group, since, self._scheduler.now, known)
        self._journalled_starts = {
            (its, stream): place
            for (its, stream), place in self._journalled_starts.items()
            if its != group or known(stream)
        }
        for message, at in self._delivered_at[group].items():
            if at > since and self.deliveries[group][message] == consumer:
                self.deliveries[group][message] = gone
        for message, (by, at) in self._acked_durably[group].items():
            if at > since and by == consumer:
                self._acked_durably[group][message] = gone, at
        self.declarations[group].inbox_replaced(consumer, gone, since)
        self.first_deliveries[group].inbox_replaced(consumer, since)
        self._dead_letters[group].inbox_replaced()
        for (its, _), received in self._received.items():
            if its == group:
                received.maxima = [each for each in received.maxima if each[0] <= since]
                _, received.latest, received.number = (
                    received.maxima[-1] if received.maxima else (0.0, (0, 0), -1)
                )
                received.moved_at.pop(consumer, None)
                received.reached.pop(consumer, None)
                received.own.pop(consumer, None)
        for message, by in self.deliveries[group].items():
            if by == consumer:
                number = self.operations[self._bodies[message].of(None)].number
                self._received[group, stream_of(message)].note_own(consumer, message, number)

    def outbox_replaced(
        self, producer: str, since: float, gone: Set[MessageId], removals: Set[MessageId] = frozenset()
    ) -> None:
        """An outbox is in the state of `since` again. `gone`: messages that it no longer contains; `removals`: removals
        that it no longer contains."""
        self._replaced.add(producer)
        self._offered |= {message for message in self._bodies if message.producer == producer}
        self._gone |= gone
        self._gone_removals |= removals
        for operation in self.operations.values():
            # If a process terminated during a publish, it is unknown when the message became durable.
            if operation.stream.producer == producer and not 0.0 < operation.durable_at <= since:
                operation.gone |= operation.message is None or not operation.names.isdisjoint(gone)
            if operation.stream.producer == producer and operation.outcome == "invoked":
                operation.become_indeterminate()

    # -- publishing -----------------------------------------------------------------------------------------

    def invoked(self, stream: Stream, body: bytes, groups: frozenset[str] | None = None) -> Operation:
        """An application publishes. `groups`: those that its producer names; None for all."""
        made = Operation(len(self.operations), stream, body, groups=groups, named=groups or frozenset())
        self.operations[body] = made
        self._streams.setdefault(stream, []).append(made)
        return made

    def durable(self, operation: Operation, message: MessageId) -> None:
        """Publishing returned."""
        operation.succeed(self._scheduler.now)
        operation.identify(message)

    def published(self, operation: Operation) -> None:
        """The receipt reports that enough sites have confirmed."""
        if len(operation.confirmed) < self._needed[operation.stream.producer]:
            sites = ", ".join(sorted(operation.confirmed)) or "no site"
            self.violate("published_unconfirmed", f"{operation.message}: {sites} confirmed it")

    def unbounded(self, client: str, count: int, limit: int) -> None:
        """A client accepted more bytes than its limit."""
        self.violate("unbounded", f"{client} accepted {count} bytes, the limit is {limit}")

    def taken_back(
        self, first: MessageId, last: int, epoch_of: Callable[[Stream, int], int]
    ) -> list[Operation]:
        """An application removed the messages from `first` to number `last`, by their current identities: nothing is
        promised about them from now on, and they may still be delivered. Returns those that were not removed before.

        `epoch_of`: the current epoch of renumbered messages. The judge knows a message by its first identity if no
        broker has received it since it was renumbered.
        """
        found: list[Operation] = []
        for operation in self.operations.values():
            message = operation.message
            if message is None or not first.seq <= message.seq <= last:
                continue
            epoch = epoch_of(operation.stream, message.epoch)
            matches = first in (message._replace(seq=first.seq), message._replace(seq=first.seq, epoch=epoch))
            if matches and not operation.removed:
                operation.removed = True
                found.append(operation)
        return found

    def group_named(self, producer: str, topic: str, group: str) -> None:
        """A producer names one more group."""
        self._left_messages.group_named(producer, topic, group, self._scheduler.now)

    def group_no_longer_named(self, producer: str, topic: str, group: str) -> None:
        """A producer no longer names a group, which is promised nothing from now on."""
        self._left_messages.group_no_longer_named(producer, topic, group)
        for operation in self._streams.get(Stream(producer, topic, 0), ()):
            if operation.groups is not None:
                operation.groups -= {group}

    def is_owed(self, group: str, gap: Gap, until: int | None = None) -> bool:
        """Whether a group still has to receive anything in a gap, as far as is known, and could: it was not lost with a
        disk, and the group has not settled it under another identity. `until`: the epoch before which a gap of unknown
        extent ends."""
        replaced = gap.stream.producer in self._replaced
        return any(
            operation.is_for(group)
            and not (operation.removed or (replaced and operation.gone))
            and self.acked[group].isdisjoint(operation.names)
            for operation in self._within(gap, until)
        )

    def _within(self, gap: Gap, until: int | None) -> Iterator[Operation]:
        for operation in self._streams.get(gap.stream, ()):
            message = operation.message
            if message is not None and covers(gap, message) and (until is None or message.epoch < until):
                yield operation

    def went_with_outbox(self, message: MessageId) -> bool:
        """Whether a message, or its removal, was lost with an outbox's disk."""
        return message in self._gone or message in self._gone_removals

    def was_offered(self, message: MessageId) -> bool:
        """Whether a broker was offered a message before its outbox was replaced, which may no longer know that."""
        return message in self._offered

    def has_delivered_what_is_gone(self) -> bool:
        """Whether some group received messages that were lost with an outbox's disk."""
        return any(not self._gone.isdisjoint(delivered) for delivered in self.deliveries.values())

    # -- at brokers -----------------------------------------------------------------------------------------

    def seen(self, message: MessageId, opening: int, body: bytes, *, orphaned: bool = False) -> None:
        """See :class:`~reliamsg.simulation.traffic.Witness`."""
        operation = self.operations.get(body)
        if operation is None:
            self.violate("phantom", f"{message} was sent, but never published")
            return
        self._identify(operation, message, opening)
        if orphaned and message.producer in self._replaced:
            self._offered.add(message)  # it was in flight when its outbox was replaced

    def _identify(self, operation: Operation, message: MessageId, opening: int | None = None) -> None:
        """`opening`: the incarnation with which the message was sent; None if it was delivered."""
        bodies, body = self._bodies.setdefault(message, Bodies()), operation.body
        before = bodies.delivered(body) if opening is None else bodies.sent(opening, body)
        if before is not None:
            self.violate("corrupt", f"{message} is {before!r} and {body!r}")
        elif (message.producer, message.topic, message.partition) != operation.stream:
            self.violate("corrupt", f"{message} was published to {operation.stream}")
        operation.identify(message)

    def _operation(self, message: MessageId, opening: int | None = None) -> Operation | None:
        """What was published with this identity. `opening`: by the opening with this incarnation; None where that is
        not known, for the one that a group received, or else the first."""
        bodies = self._bodies.get(message)
        return None if bodies is None else self.operations.get(bodies.of(opening))

    def confirmed_at(self, site: str, message: MessageId, opening: int) -> None:
        """See :class:`~reliamsg.simulation.traffic.Witness`."""
        operation = self._operation(message, opening)
        if operation is not None:
            operation.confirmed.add(site)

    def released_at(self, site: str, group: str, message: MessageId, opening: int) -> None:
        """See :class:`~reliamsg.simulation.traffic.Witness`."""
        if group in self._released:
            self._released[group].setdefault(message, self._scheduler.now)
            operation = self._operation(message, opening)
            # What a consumer had sent before it terminated says nothing about its inbox, which may be gone.
            if (
                operation is not None
                and group in self._latest
                and not self.readers.are_gone(self._consumers(group))
                and not self._precedes_joining(group, message)
            ):
                self._note_start(group, operation, self._only_quarantined_by(group, message))

    def _precedes_joining(self, group: str, message: MessageId) -> bool:
        """Whether a message arrived after a consumer had joined its stream behind it: only the one with which the
        consumer joined is where the group starts."""
        stream = stream_of(message)
        return self._starts.get(group, stream) is None and any(
            consumer in self._files
            and self._files[consumer].came_before_join(stream, message.epoch, message.seq)
            for consumer in self._consumers(group)
        )

    def _only_quarantined_by(self, group: str, message: MessageId) -> str:
        """The one of a group's several consumers that has a message in its quarantine, if the others do not
        know of it."""
        stream, consumers = stream_of(message), self._consumers(group)
        if self._starts.get(group, stream) is not None or len(consumers) == 1:
            return ""
        has = (
            consumer
            for consumer in consumers
            if consumer in self._files
            and self._files[consumer].is_quarantined(stream, message.epoch, message.seq)
        )
        return next(has, "")

    def _consumers(self, group: str) -> list[str]:
        return [name for name in self._gap_timeouts if name.startswith(f"{group}-")]

    def left_to_producer(
        self, group: str, consumer: str, stream: Stream, epoch: int, first: int, last: int
    ) -> None:
        """A consumer's journal records that it left these messages to their producer, which has to keep them for its
        group."""
        for seq in range(first, last + 1):
            message = MessageId(stream.producer, epoch, stream.topic, stream.partition, seq)
            if self._left_messages.was_left(group, message):
                continue
            self._left_messages.leave(group, message)
            operation = self._operation(message)
            if operation is not None and not self._left_messages.is_kept(
                group, stream, operation.named, operation.durable_at
            ):
                self.violate(
                    "let_go_unsafe", f"{message} was left by {consumer} to a producer that does not keep it"
                )

    def kept_unreadable(self, group: str, stream: Stream, epoch: int, first: int, last: int) -> None:
        """A consumer's journal records that it can't read these messages, and keeps them in its quarantine. Until then
        they are missing, and may be declared."""
        self._unreadable[group] |= {
            MessageId(stream.producer, epoch, stream.topic, stream.partition, seq)
            for seq in range(first, last + 1)
        }

    def announced_missing(
        self, group: str, consumer: str, stream: Stream, spans: Iterable[tuple[int, int, int]]
    ) -> None:
        """A consumer announces that it lacks these ranges: (epoch, first, last)."""
        # Operations can be gone only if an outbox was replaced.
        gone = self._replaced and any(each.gone for each in self.operations.values())
        if gone or self._has_several_inboxes(group):
            return  # another inbox may have accepted them, or there are two histories
        for epoch, first, last in spans:
            for message in self._released[group]:
                if message.epoch == epoch and first <= message.seq <= last and stream_of(message) == stream:
                    if self._files[consumer].is_quarantined(stream, epoch, message.seq):
                        continue  # it is safe there, and will be read from there
                    if self._files[consumer].was_dropped_unverified(stream, epoch, message.seq):
                        self._unreadable[group].add(message)
                        continue
                    if not self._left_messages.was_left(group, message):
                        self._files[consumer].report_left_messages()
                    if self._left_messages.was_left(group, message):
                        continue  # whether it is safe with its producer was judged then
                    self.violate(
                        "let_go_unsafe",
                        f"{message} is missing at {consumer}, and its broker was allowed to delete it",
                    )
                    return

    # -- delivering -----------------------------------------------------------------------------------------

    def delivered(self, group: str, consumer: str, message: Message) -> None:
        """An application received a message."""
        identity, now = message.id, self._scheduler.now
        operation = self._recognize(group, consumer, message)
        if operation is None:
            return
        self._starts.joined(group, operation.stream, consumer, self._scheduler.now)
        self._note_start(group, operation)
        received = self._received.setdefault((group, operation.stream), _Received())
        self._attempts[group][identity] += 1
        if identity in self.deliveries[group]:
            self._check_redelivery(group, consumer, message, identity)
        elif not message.redelivered:
            self._check_order(group, consumer, operation, identity, received)
        announced = self.readers.knows_settled(consumer, identity)
        if self.declarations[group].was_known(consumer, identity, announced):
            self.violate("delivered_after_gap", f"{identity} at {consumer}")
        self._check_failed(group, consumer, received, message, identity)
        self._dead_letters[group].delivered_again(identity)
        self.first_deliveries[group].delivered(consumer, identity, now, message.redelivered)
        self.deliveries[group][identity] = consumer
        self._delivered_at[group][identity] = now
        place = (identity.epoch, identity.seq)
        received.latest = max(received.latest, place)
        received.note_own(consumer, identity, operation.number)
        received.number = max(received.number, operation.number)
        received.maxima.append((now, received.latest, received.number))
        received.note_reached(consumer, place)
        self._restart_clock(consumer, received)

    def replayed(self, group: str, consumer: str, message: Message) -> None:
        """An application received a dead letter again."""
        self._recognize(group, consumer, message)

    def revived(self, group: str, message: MessageId) -> None:
        """An application acknowledged a dead letter that it had received again."""
        self._dead_letters[group].revived(message)

    def _recognize(self, group: str, consumer: str, message: Message) -> Operation | None:
        """What published a message that an application received."""
        operation = self.operations.get(message.body)
        if operation is None:
            self.violate("phantom", f"{message.id} at {consumer}: {message.body[:40]!r}", (group, message.id))
            return None
        if operation.outcome == "failed":
            self.violate("delivered_after_failed", f"{message.id} at {consumer}")
        self._identify(operation, message.id)
        return operation

    def _restart_clock(self, consumer: str, received: _Received) -> None:
        """The clock of the consumer's next gap starts now."""
        received.moved_at[consumer] = self._stopwatches[consumer].read(self._scheduler.now)

    def _check_redelivery(self, group: str, consumer: str, message: Message, identity: MessageId) -> None:
        """A redelivered message must be flagged if the consumer could know that it is one, and must not be settled."""
        before = self.deliveries[group][identity]
        at = self._delivered_at[group][identity]
        knew = before == consumer or self.readers.knows_delivered(consumer, identity, at)
        if knew and not message.redelivered:
            # A crash may have come before the journal showed the first delivery.
            unsure = before != consumer or any(at <= end for end in self._terminations[group])
            about = None if unsure else (group, identity)
            self.violate("duplicate", f"{identity} at {consumer}, previously at {before}", about)
        by, _ = self._acked_durably[group].get(identity, ("", 0.0))
        if by == consumer:
            self.violate("redelivered_after_ack", f"{identity} at {consumer}")

    def _check_order(
        self, group: str, consumer: str, operation: Operation, identity: MessageId, received: _Received
    ) -> None:
        """A first delivery must follow everything that was delivered, and skip nothing that is owed."""
        # Messages that were lost with an outbox are not linked with later ones: only the numbers of epochs, which are
        # times of a clock, order them.
        overtaken = operation.number <= received.number and not operation.gone
        if (identity.epoch, identity.seq) <= received.latest or overtaken:
            own, _ = received.own.get(consumer, ((0, 0), -1))
            shown = (identity.epoch, identity.seq) <= own and not self._terminations[group]
            text = f"{identity} at {consumer}, after {received.latest}"
            about = (group, identity) if shown else None
            found = Violation("out_of_order", text, self._scheduler.now, about)
            if not self._keeps_own_order(group, consumer, operation, received):
                self.violations.append(found)
            elif operation.number <= received.number:
                self._overtaken.append((group, consumer, identity, found))
            # Else it was published later, by an outbox that was restored together with its clock, which this inbox
            # can't know.
            return
        published = self._streams[operation.stream]
        for at in range(bisect_right(published, received.number, key=_number), len(published)):
            other = published[at]
            if other.number >= operation.number:
                break
            known = other.message is not None
            if known and self.owes(group, other) and not any(self._done(group, name) for name in other.names):
                self._passed.append((group, other, f"passed by {identity}", self._scheduler.now))

    def _keeps_own_order(self, group: str, consumer: str, operation: Operation, received: _Received) -> bool:
        """Whether a message is next in a consumer's own order, and the consumer does not know that its group has passed
        it."""
        identity = operation.message
        assert identity is not None  # it is being delivered
        known = self.readers.knows_settled(consumer, identity) or self.declarations[group].was_known(
            consumer, identity, announced=False
        )
        own, number = received.own.get(consumer, ((0, 0), -1))
        return not known and (identity.epoch, identity.seq) > own and operation.number > number

    def _check_failed(
        self, group: str, consumer: str, received: _Received, message: Message, identity: MessageId
    ) -> None:
        """A message whose handler raised must not be overtaken before it is delivered again.

        Whether it is delivered again is known only when that happens: attempts that were cut short by a crash may have
        been counted (C7), so it can become a dead letter after fewer attempts than the application saw. It may be late
        if another inbox had settled it.
        """
        failed = received.failed.get(consumer)
        if not failed:
            return
        overtaken_by = failed.pop(identity, None)
        if overtaken_by is not None and not self._settled_elsewhere(group, identity):
            self.violate(
                "out_of_order",
                f"{overtaken_by} at {consumer}, before {identity} was delivered again, whose handler had raised",
            )
        for each, by in failed.items():
            if by is None and (each.epoch, each.seq) < (message.epoch, message.seq):
                failed[each] = identity

    def _settled_elsewhere(self, group: str, message: MessageId) -> bool:
        """Whether another inbox of the group has settled it, or may have. The one that has redelivered it may learn of
        that at any time, and is then done with it, regardless of its application."""
        done = message in self.acked[group] or message in self.indeterminate[group]
        return done and self._has_several_inboxes(group)

    # -- acknowledging --------------------------------------------------------------------------------------

    def acknowledged(self, group: str, consumer: str, message: MessageId) -> None:
        """An application acknowledged a message."""
        self._settle(group, consumer, message)

    def rejected(self, group: str, consumer: str, message: MessageId) -> None:
        """An application rejected a message: it becomes a dead letter."""
        self._dead_letters[group].add(message)
        self._settle(group, consumer, message)

    def handler_failed(self, group: str, consumer: str, message: MessageId, tries: float = 1_000) -> None:
        """The handler of a message raised. After `tries` attempts it need not be delivered again."""
        if self._attempts[group][message] >= tries:
            return
        received = self._received[group, stream_of(message)]
        received.failed.setdefault(consumer, {})[message] = None

    def _settle(self, group: str, consumer: str, message: MessageId) -> None:
        received = self._received[group, stream_of(message)]
        if not self._settled_elsewhere(group, message):  # else the clock may have started before
            self._restart_clock(consumer, received)
        self.acked[group].add(message)
        for failed in received.failed.values():
            failed.pop(message, None)

    def acknowledged_durably(self, group: str, consumer: str, messages: Iterable[MessageId]) -> None:
        """``ack(durable=True)`` would have returned."""
        for message in messages:
            self._acked_durably[group][message] = consumer, self._scheduler.now

    def became_indeterminate(self, group: str, messages: Iterable[MessageId]) -> None:
        """These acknowledgements may be lost with their consumer: the messages must be delivered, or settled in a
        journal."""
        messages = set(messages) - self._journalled[group]
        self.acked[group] -= messages
        self.indeterminate[group] |= messages

    def settled_in_journal(self, group: str, stream: Stream, epoch: int, first: int, last: int) -> None:
        """A group's journal records that these were acknowledged or became dead letters."""
        settled = {
            MessageId(stream.producer, epoch, stream.topic, stream.partition, n)
            for n in range(first, last + 1)
        }
        self._journalled[group] |= settled
        self.acked[group] |= settled & self.indeterminate[group]
        self.indeterminate[group] -= settled

    def dead_lettered(self, group: str, message: MessageId, tries: float, together: int) -> None:
        """A group's journal records that a message became a dead letter. Unless its application rejected it, it must
        have been delivered `tries` times. An attempt that a consumer counted before it crashed counts too; at most
        `together` messages are counted at a time."""
        if message in self._dead_letters[group]:
            return
        if self._attempts[group][message] < tries:
            early = self._dead_letters[group].count_early(message)
            if tries == NEVER or early > together * len(self._terminations[group]):
                self.violate(
                    "lost",
                    f"{message} at {group}: a dead letter after {self._attempts[group][message]} attempts",
                )
        self._dead_letters[group].add(message)
        self.acked[group].add(message)
        for (its, _), received in self._received.items():
            if its == group:
                for failed in received.failed.values():
                    failed.pop(message, None)

    def dead_letter_found(self, group: str, message: MessageId) -> None:
        """The run has ended, and a group's inbox has this dead letter."""
        self._dead_letters[group].find(message)

    # -- passing --------------------------------------------------------------------------------------------

    def gap_accepted(self, group: str, consumer: str, gap: Gap) -> None:
        """An application accepted a gap, and its consumer moved past it. A gap's clock continues where it stopped when
        its consumer is opened again."""
        now = self._scheduler.now
        received = self._received.setdefault((group, gap.stream), _Received())
        waited = self._stopwatches[consumer].read(now) - received.moved_at.get(consumer, 0.0)
        if gap.reason == "expired" and waited < self._gap_timeouts[consumer] - 0.001:
            self.violate("gap_too_early", f"{gap} at {group}, after {waited:.3f} s")
        if gap.reason == "removed" and any(
            not operation.removed
            for operation in self._streams.get(gap.stream, ())
            if operation.message is not None and names(gap, operation.message)
        ):
            self.violate("false_gap", f"{gap} at {group}: not all of it was taken back")
        self._declare(group, consumer, gap, now)
        received.accepted_at[consumer, gap] = received.moved_at.get(consumer, 0.0)
        self._restart_clock(consumer, received)

    def acceptance_lost(self, group: str, consumer: str, gap: Gap) -> None:
        """A consumer terminated before its acceptance of a gap was durable: the gap exists again, and its clock
        continues where it was."""
        self.declarations[group].withdraw(gap, consumer)
        received = self._received[group, gap.stream]
        began = received.accepted_at[consumer, gap]
        received.moved_at[consumer] = min(began, received.moved_at.get(consumer, began))

    def gap_reported(self, group: str, consumer: str, gap: Gap) -> None:
        """A consumer passed a gap by joining, and reported it to its application."""
        self._declare(group, consumer, gap, self._scheduler.now)

    def gap_skipped(self, group: str, consumer: str, gap: Gap, at: float, until: int | None = None) -> None:
        """A group's journal records that it skipped these at a time, as its application had requested. `until`: the
        epoch with which it continued, if the extent of the gap is unknown."""
        self._declare(group, consumer, gap, at, until)

    def _declare(self, group: str, consumer: str, gap: Gap, at: float, until: int | None = None) -> None:
        """Messages that were acknowledged durably, or delivered in the same run of this consumer, are no gap. Another
        inbox of the group may not have learned of that."""
        self.declarations[group].declare(gap, at, consumer, until)
        received = self._received.setdefault((group, gap.stream), _Received())
        received.note_reached(consumer, (gap.epoch, gap.last or gap.first))
        for message, delivered_at in self._delivered_at[group].items():
            if not names(gap, message) or message in self._dead_letters[group] or delivered_at >= at:
                continue
            if self.deliveries[group][message] != consumer:
                continue
            terminated = any(delivered_at <= end <= at for end in self._terminations[group])
            by, _ = self._acked_durably[group].get(message, ("", 0.0))  # perhaps in a lost inbox
            if by == consumer or not terminated:
                about = None if terminated else (group, message)
                self.violate("false_gap", f"{gap} at {group}: {message} was delivered", about)

    def started_in_journal(self, group: str, consumer: str, stream: Stream, epoch: int, first: int) -> None:
        """A consumer's journal records that a stream starts there, though nothing may have arrived yet."""
        self._starts.joined(group, stream, consumer, self._scheduler.now)
        place = epoch, max(first, 1)
        self._journalled_starts[group, stream] = min(
            place, self._journalled_starts.get((group, stream), place)
        )

    def came_before_join(
        self, group: str, stream: Stream, epoch: int, first: int, last: int, at: float
    ) -> None:
        """A group's journal records that these were published before it joined (`last` 0: all of the epoch). With a
        single inbox, this can't include anything after a message that the group had received, unless it is declared
        later, when its producer has answered (E4)."""
        received = self._received.get((group, stream))
        before = [number for time, _, number in received.maxima if time < at] if received is not None else []
        if not before or self._has_several_inboxes(group):
            return
        for operation in self._streams.get(stream, ()):
            message = operation.message
            if (
                message is not None
                and operation.number > before[-1]
                and message.epoch == epoch
                and first <= message.seq <= (last or message.seq)
                and self.owes(group, operation)
            ):
                how = "although it follows messages that the group had received"
                self._passed.append((group, operation, how, self._scheduler.now))

    def _done(self, group: str, message: MessageId) -> bool:
        return (
            message in self.deliveries[group]
            or message in self._dead_letters[group]
            or message in self.declarations[group]
        )

    def is_dealt_with(self, group: str, message: MessageId) -> bool:
        """Whether some inbox of a group delivered or declared a message, or the group is not owed it."""
        operation = self._operation_named(message)
        if operation is None:
            return self._done(group, message)
        return any(self._done(group, name) for name in operation.names) or not self.owes(group, operation)

    def was_promised(self, group: str, message: MessageId) -> bool:
        """Whether the producer named a group when a message was published."""
        operation = self._operation_named(message)
        return operation is None or operation.is_for(group)

    def _operation_named(self, message: MessageId) -> Operation | None:
        """The operation that published a message, also if no broker received it under this name."""
        every = self.operations.values()
        return self._operation(message) or next((each for each in every if message in each.names), None)

    # -- open messages -------------------------------------------------------------------------------------

    def open_for(self, group: str) -> list[Operation]:
        """The messages that the group still has to receive or declare."""
        done = self.acked[group]
        return [
            operation
            for operation in self.operations.values()
            if self.owes(group, operation)
            and done.isdisjoint(operation.names)
            and not (operation.message is not None and operation.message in self.declarations[group])
        ]

    def reached(self, group: str, stream: Stream) -> Mapping[str, Place]:
        """By consumer of a group, the highest place of a stream that it delivered or declared."""
        received = self._received.get((group, stream))
        return {} if received is None else received.reached

    @property
    def awaits_gap_ends(self) -> bool:
        """Whether journals do not yet show where an accepted gap ends."""
        return any(declared.has_open_end for declared in self.declarations.values())

    def has_unpromised(self, topics_of: Callable[[str], Collection[str]]) -> bool:
        """Whether the fate of any message is still open at a group that reads it without a promise: the group was not
        named for it, its application does not know that it is durable, or the group starts with the latest, and waits
        for messages that it heard of, though none has arrived. `topics_of`: the topics of each group."""
        return any(
            operation.message is not None
            and not (operation.gone or operation.removed)
            and not self.owes(group, operation)
            and self.acked[group].isdisjoint(operation.names)
            and operation.message not in self.declarations[group]
            and operation.stream.topic in topics_of(group)
            and (
                not self._is_before_start(group, operation)
                or self._is_behind_journalled_start(group, operation.message)
            )
            for group in self.groups
            for operation in self.operations.values()
        )

    def _is_behind_journalled_start(self, group: str, message: MessageId) -> bool:
        start = self._journalled_starts.get((group, stream_of(message)))
        return start is not None and start <= (message.epoch, message.seq)

    def not_delivered(self, group: str) -> list[MessageId]:
        """Durable messages that should have been delivered to a group and were not, whether or not that was
        declared."""
        return [
            operation.message
            for operation in self.operations.values()
            if operation.outcome == "ok"
            and operation.message is not None
            and not operation.gone
            and operation.is_for(group)
            and self.deliveries[group].keys().isdisjoint(operation.names)
            and operation.message not in self._dead_letters[group]
            and not (group in self._latest and self._is_skipped_by_start(group, operation, operation.message))
        ]

    def _is_skipped_by_start(self, group: str, operation: Operation, message: MessageId) -> bool:
        """Whether a message does not concern a group that starts with the latest."""
        return self._is_before_start(group, operation) or self.declarations[group].came_before(message)

    # -- the end --------------------------------------------------------------------------------------------

    def excuse(self, streams: Iterable[tuple[str, Stream]]) -> None:
        """Streams that groups need not receive to their end, because a client terminated with a valid cause."""
        self._excused |= set(streams)

    def still_stored(self, group: str, messages: Iterable[MessageId]) -> None:
        """At the end, these are in a group's inboxes, or at a broker for it; in outboxes if the group is empty."""
        self._stored[group].update(messages)

    def judge(self, held_for: Collection[str] = ()) -> None:
        """The run has ended. `held_for`: groups that never give up on a gap."""
        for group, operation, how, at in self._passed:
            declarations, dead = self.declarations[group], self._dead_letters[group]
            declared = any(name in declarations or name in dead for name in operation.names)
            if self.owes(group, operation) and not declared:
                text = f"{operation.message} at {group}, {how}"
                self.violations.append(Violation("skipped", text, at))
        self.violations += [
            found
            for group, consumer, message, found in self._overtaken
            if not self.declarations[group].was_passed_elsewhere(message, consumer, found.at)
        ]
        for operation in self.operations.values():
            self._judge_publishing(operation)
        for group in self.groups:
            for operation in self.operations.values():
                held = group in held_for and operation.stream.producer in self._left_messages.keepers
                self._judge_delivery(group, operation, held)
            for message in self._dead_letters[group].missing():
                if message not in self.declarations[group]:
                    self.violate("lost", f"{message} at {group}: given up, but not among the dead letters")

    def _judge_publishing(self, operation: Operation) -> None:
        done = len(operation.confirmed) >= self._needed[operation.stream.producer]
        waits = operation.message in self._stored[""] and all(
            (group, operation.stream) in self._excused for group in self.groups
        )
        if operation.outcome == "ok" and not (operation.gone or operation.removed or done or waits):
            self.violate(
                "published_unconfirmed",
                f"{operation.message or operation.body!r}: nothing is pending any more",
            )

    def _judge_delivery(self, group: str, operation: Operation, held: bool) -> None:
        """`held`: its producer had to keep it, and the group never gives up on a gap."""
        message = operation.message
        if message is None and self.owes(group, operation):
            self.violate("lost", f"{operation.body!r} at {group}: never sent")
        if operation.gone or message is None or message in self._dead_letters[group]:
            return
        if not self.deliveries[group].keys().isdisjoint(operation.names):
            return
        found = self.declarations[group].gap_of(message)
        if found is not None and found.gap.reason == JOINED_LATE:
            return  # groups need not learn of messages for which they counted before they joined
        named = operation.groups is not None and group not in self._latest
        if found is None and (named or not self.declarations[group].came_before(message)):
            stored = self._stored[""] | self._stored[group]
            waits = (group, operation.stream) in self._excused and message in stored
            if self.owes(group, operation) and not waits:
                self.violate("lost", f"{message} at {group}", (group, message))
        elif (
            found is not None and held and self.owes(group, operation) and not self._is_superseded(found.gap)
        ):
            self.violate("lost_held", f"{message} at {group}", (group, message))
        released = self._released[group].get(message)
        if (
            released is not None
            and found is not None
            and released < found.at
            and len(self._inboxes[group]) == 1
            and message not in self._unreadable[group]
            and (self.owes(group, operation) or not self._left_messages.was_left(group, message))
            and not self._is_superseded(found.gap)
        ):
            self.violate("let_go_unsafe", f"{message} at {group}: released at {released:.3f}")

    def _is_superseded(self, gap: Gap) -> bool:
        """Whether it was declared because its epoch was over, after its producer's outbox was replaced. Such messages
        are not delivered, wherever and however long they are stored."""
        return gap.reason == "superseded" and gap.stream.producer in self._replaced
