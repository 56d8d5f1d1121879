"""The judge of a simulated run: what applications asked for and were given, against what was promised.

It knows only what applications saw and what passed the brokers, and never asks the product's own state. What each kind
of violation means is in :data:`~reliamsg.simulation.verdicts.KINDS`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple

from reliamsg.core.joining import JOINED_LATE
from reliamsg.message import Gap, Message, MessageId, Stream
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.firsts import Firsts
from reliamsg.simulation.leaving import Leaving
from reliamsg.simulation.passages import Passages, covers, names, stream_of
from reliamsg.simulation.stopwatch import Stopwatch
from reliamsg.simulation.verdicts import Violation

__all__ = ["Operation", "Oracle"]


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
    """All that it ever had: an outbox that goes back knows it by an earlier one."""
    gone: bool = False
    """It was lost with the disk that it was on, which nothing can help."""
    confirmed: set[str] = field(default_factory=set)
    groups: frozenset[str] | None = None
    """The groups that its producer named for it, and still does; None for all. Nothing is promised to others."""
    named: frozenset[str] = frozenset()
    """The groups that its producer named when it was published."""
    removed: bool = False
    """Its application took it back: nothing is promised about it."""

    def identify(self, message: MessageId) -> None:
        """Its identity is known, or is another one."""
        self.message = message
        self.names.add(message)


_number = attrgetter("number")


@dataclass(slots=True)
class _Given:
    """What one group was given of one stream."""

    latest: tuple[int, int] = (0, 0)
    """Highest (epoch, number)."""
    number: int = -1
    """Highest number of an operation."""
    own: dict[str, tuple[tuple[int, int], int]] = field(default_factory=dict)
    """Highest (epoch, number), and number of an operation, that each consumer was given."""
    firsts: list[tuple[float, tuple[int, int], int]] = field(default_factory=list)
    """When these were the highest first, and what they were then."""
    moved_at: dict[str, float] = field(default_factory=dict)
    """When something was handed out, settled or declared last, by consumer and its stopwatch: what others do does not
    wind its clock."""
    accepted_at: dict[tuple[str, Gap], float] = field(default_factory=dict)
    """When the clocks of gaps that were accepted had begun, by consumer and gap."""
    failed: dict[str, dict[MessageId, MessageId | None]] = field(default_factory=dict)
    """By consumer, messages whose handling raised, and that did not come again since; what overtook each."""
    reached: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The highest (epoch, number) that each consumer handed out or declared."""

    def note_own(self, consumer: str, message: MessageId, number: int) -> None:
        """A consumer was given a message, the operation of that number."""
        place = message.epoch, message.seq
        own, known = self.own.get(consumer, (place, number))
        self.own[consumer] = max(own, place), max(known, number)


class _Met(NamedTuple):
    """What a group was given, or took in, of a stream first."""

    number: int
    """Of the operation."""
    epoch: int
    at: float
    aside: str = ""
    """The one of its several inboxes that has it in quarantine, as long as none has begun with the stream."""


class Oracle:
    """See the module. Every method is told of something when it happens."""

    def __init__(
        self,
        scheduler: Scheduler,
        groups: Iterable[str],
        gap_timeouts: Mapping[str, float],
        needed: Mapping[str, int],
        latest: Collection[str] = (),
        keepers: Collection[str] = (),
    ) -> None:
        """`gap_timeouts`: of each consumer, in seconds. `needed`: how many sites must have confirmed what each producer
        calls published. `latest`: groups that begin with what arrives first. `keepers`: producers that hold everything
        until the groups that they name have it."""
        self.violations, self.operations = list[Violation](), dict[bytes, Operation]()
        self.groups, self.ended = tuple(groups), set[tuple[str, Stream]]()
        """Ended: streams that groups are not given to their end, since a client ended for good, and said why. What is
        missing of these must be where it can still be sent, or given, from."""
        self._scheduler, self._gap_timeouts, self._needed = scheduler, gap_timeouts, needed
        self.leaving = Leaving(self.groups, keepers)
        # Groups that begin with the latest, where they met streams, and where streams began for any group, as journals
        # say: the lowest (epoch, number).
        self._latest, self._met = frozenset(latest), dict[tuple[str, Stream], _Met]()
        self._begun = dict[tuple[str, Stream], tuple[int, int]]()
        self._streams, self._bodies = dict[Stream, list[Operation]](), dict[MessageId, bytes]()
        # Producers whose outbox was replaced by an older copy of itself, what was stored in no copy, what had been
        # removed, and was in one, and what brokers had been offered by then.
        self._replaced = set[str]()
        self._went, self._back, self._offered = (set[MessageId]() for _ in range(3))
        self._given: dict[tuple[str, Stream], _Given] = {}
        self.handed: dict[str, dict[MessageId, str]] = {group: {} for group in self.groups}
        """By group, what was delivered, and to which consumer last."""
        self._given_at: dict[str, dict[MessageId, float]] = {group: {} for group in self.groups}
        """The same, and when last."""
        self._told: dict[tuple[str, Stream], tuple[int, int]] = {}
        """By consumer, up to where others of its group said that they may have handed out."""
        self._told_positions: dict[tuple[str, Stream], tuple[int, int]] = {}
        """By consumer, before which others of its group said that everything is settled."""
        self.standbys: set[str] = set()
        """Consumers that read only after they found that no other does: they flag whatever that may have handed out."""
        self.apart: dict[str, tuple[float, float]] = {}
        """By consumer that reads: from when to when another may read as well, and hand out what this one can't know of.
        Two that share no reachable site can't be kept from that."""
        self._ends: dict[str, list[float]] = {group: [] for group in self.groups}
        """When consumers ended."""
        self.settled: dict[str, dict[MessageId, tuple[str, float]]] = {group: {} for group in self.groups}
        """What was acknowledged durably, by whose inbox, and when."""
        self.acked: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """What was acknowledged."""
        self.doubted: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """What was acknowledged or given up by a consumer that ended before that was known to be durable."""
        # Of what was done about these, journals tell; what was given up to the dead letters.
        self._sure, self.dead = ({group: set[MessageId]() for group in self.groups} for _ in range(2))
        self._buried: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """Of that, what was not handed out again since: it must be among the dead letters."""
        self._tries: dict[str, Counter[MessageId]] = {group: Counter() for group in self.groups}
        """How often each message was handed out."""
        self._short: Counter[tuple[str, Stream]] = Counter()
        """By group and stream, how many were given up after fewer attempts: each stream counts its own ahead."""
        self.letters: dict[str, set[MessageId]] = {group: set() for group in self.groups}
        """Dead letters in the group's inboxes, in the end."""
        self.watches, self.passages = dict[str, Stopwatch](), defaultdict[str, Passages](Passages)
        self.firsts, self.kept = defaultdict[str, Firsts](Firsts), defaultdict[str, set[MessageId]](set)
        # By consumer; by group; and what is in a group's inboxes, or at a broker for it, in the end, "" for outboxes.
        # Then by consumer: whether a number of an epoch of a stream is in its quarantine.
        self.quarantines: dict[str, Callable[[Stream, int, int], bool]] = {}
        self.inboxes: dict[str, set[str]] = {group: set() for group in self.groups}
        self._let_go: dict[str, dict[MessageId, float]] = {group: {} for group in self.groups}
        self._passed: list[tuple[str, Operation, MessageId, float]] = []
        """(group, message, by which, when): what was passed without a word; journals may still have one."""

        self._overtaken: list[tuple[str, str, MessageId, Violation]] = []
        """(group, consumer, message, what that is unless another inbox had passed the message by then without handing
        it out, as a gap, since it was removed or since it joined behind it): journals tell."""

    @property
    def streams(self) -> Iterable[Stream]:
        """Those to which anything was published, or was to be."""
        return self._streams

    def violate(self, kind: str, text: str, about: tuple[str, MessageId] | None = None) -> None:
        """Something must not be. `about`: see :class:`Violation`."""
        self.violations.append(Violation(kind, text, self._scheduler.now, about))

    def owes(self, group: str, operation: Operation) -> bool:
        """Whether a group is to be given a message, or told that it is not."""
        return (
            operation.outcome == "ok"
            and not (operation.gone or operation.removed)
            and (operation.groups is None or group in operation.groups)
            and self._is_new(group, operation)
        )

    def _is_new(self, group: str, operation: Operation) -> bool:
        """Whether a group began with this or before it. One that begins with the latest is owed nothing of a stream of
        which nothing came yet; nor of an epoch before the one that came first, which only an outbox that went back
        together with its clock goes on in."""
        if group not in self._latest:
            return True
        met, message = self._met.get((group, operation.stream)), operation.message
        if met is None or operation.number < met.number:
            return False
        return (
            message is None or message.epoch >= met.epoch or operation.stream.producer not in self._replaced
        )

    def _meets(self, group: str, operation: Operation, aside: str = "") -> None:
        """A group was given something, or took it in. `aside`: see :class:`_Met`."""
        if group in self._latest:
            assert operation.message is not None  # it passed a broker
            met = _Met(operation.number, operation.message.epoch, self._scheduler.now, aside)
            self._met.setdefault((group, operation.stream), met)

    def _begins_behind(self, group: str, stream: Stream, consumer: str) -> None:
        """A consumer has begun with a stream: what only another one has, in its quarantine, came before."""
        met = self._met.get((group, stream))
        if met is not None and met.aside == consumer:
            self._met[group, stream] = met._replace(aside="")
        elif met is not None and met.aside:
            del self._met[group, stream]

    # -- publishing -----------------------------------------------------------------------------------------

    def invoked(self, stream: Stream, body: bytes) -> Operation:
        """An application publishes."""
        done = Operation(len(self.operations), stream, body)
        self.operations[body] = done
        self._streams.setdefault(stream, []).append(done)
        return done

    def durable(self, operation: Operation, message: MessageId) -> None:
        """Publishing returned."""
        operation.outcome, operation.durable_at = "ok", self._scheduler.now
        operation.identify(message)

    def published(self, operation: Operation) -> None:
        """Its receipt says that it is confirmed."""
        if len(operation.confirmed) < self._needed[operation.stream.producer]:
            sites = ", ".join(sorted(operation.confirmed)) or "no site"
            self.violate("published_unconfirmed", f"{operation.message}: {sites} confirmed it")

    def unbounded(self, who: str, count: int, limit: int) -> None:
        """So much was taken that nothing had room for."""
        self.violate("unbounded", f"{who} took {count} bytes, the limit is {limit}")

    def disk_replaced(
        self, producer: str, since: float, went: Set[MessageId], removals: Set[MessageId] = frozenset()
    ) -> None:
        """An outbox is what it was at `since` again. `went`: what was stored in it, and is not any more; `removals`:
        what was removed from it, and is not any more."""
        self._replaced.add(producer)
        self._offered |= {message for message in self._bodies if message.producer == producer}
        self._went |= went
        self._back |= removals
        for operation in self.operations.values():
            # Of what was in hand when a process ended it is not known when it became durable, if ever.
            if operation.stream.producer == producer and not 0.0 < operation.durable_at <= since:
                operation.gone |= operation.message is None or not operation.names.isdisjoint(went)
            if operation.stream.producer == producer and operation.outcome == "invoked":
                operation.outcome = "indeterminate"

    def is_gone(self, gap: Gap, until: int | None = None) -> bool:
        """Whether a disk took all that is known of a gap with it, so that waiting for it would be in vain. `until`: the
        epoch before which a gap of unknown extent ends."""
        return gap.stream.producer in self._replaced and all(
            operation.gone for operation in self._within(gap, until)
        )

    def went(self, message: MessageId) -> bool:
        """Whether a message, or its removal, went with an outbox's disk."""
        return message in self._went or message in self._back

    def was_offered(self, message: MessageId) -> bool:
        """Whether a broker was offered a message before its outbox was replaced, which may not know that any more."""
        return message in self._offered

    def gave_what_went(self) -> bool:
        """Whether some group was given what went with an outbox's disk."""
        return any(not self._went.isdisjoint(handed) for handed in self.handed.values())

    def is_owed(self, group: str, gap: Gap, until: int | None = None) -> bool:
        """Whether anything in a gap is still to be given to a group, as far as is known. `until`: see
        :meth:`is_gone`."""
        return any(
            operation.groups is None or group in operation.groups
            for operation in self._within(gap, until)
            if not operation.removed
        )

    def _within(self, gap: Gap, until: int | None) -> Iterator[Operation]:
        for operation in self._streams.get(gap.stream, ()):
            message = operation.message
            if message is not None and covers(gap, message) and (until is None or message.epoch < until):
                yield operation

    # -- at brokers -----------------------------------------------------------------------------------------

    def seen(self, message: MessageId, body: bytes, *, orphaned: bool = False) -> None:
        """See :class:`~reliamsg.simulation.history.Witness`."""
        operation = self.operations.get(body)
        if operation is None:
            self.violate("phantom", f"{message} was sent, and nobody published it")
            return
        self._identify(operation, message)
        if orphaned and message.producer in self._replaced:
            self._offered.add(message)  # it was on its way when its outbox was replaced

    def _identify(self, operation: Operation, message: MessageId) -> None:
        before = self._bodies.setdefault(message, operation.body)
        if before != operation.body:
            self.violate("corrupt", f"{message} is {before!r} and {operation.body!r}")
        elif (message.producer, message.topic, message.partition) != operation.stream:
            self.violate("corrupt", f"{message} was published to {operation.stream}")
        operation.identify(message)

    def confirmed_at(self, site: str, message: MessageId) -> None:
        """See :class:`~reliamsg.simulation.history.Witness`."""
        body = self._bodies.get(message)
        if body is not None:
            self.operations[body].confirmed.add(site)

    def let_go_at(self, site: str, group: str, message: MessageId) -> None:
        """See :class:`~reliamsg.simulation.history.Witness`."""
        if group in self._let_go:
            self._let_go[group].setdefault(message, self._scheduler.now)
            body = self._bodies.get(message)
            if body is not None and group in self._latest:
                self._meets(group, self.operations[body], self._only_has_aside(group, message))

    def _only_has_aside(self, group: str, message: MessageId) -> str:
        """Which of a group's several inboxes has a message in its quarantine, where the others know nothing of it."""
        if (group, stream_of(message)) in self._met:
            return ""
        consumers = self._consumers(group)
        has = (
            name
            for name in consumers
            if name in self.quarantines
            and self.quarantines[name](stream_of(message), message.epoch, message.seq)
        )
        return next(has, "") if len(consumers) > 1 else ""

    def _consumers(self, group: str) -> list[str]:
        return [name for name in self._gap_timeouts if name.startswith(f"{group}-")]

    def left(self, group: str, consumer: str, stream: Stream, epoch: int, first: int, last: int) -> None:
        """A consumer says that it left these to their producer, which has to keep them for its group."""
        for seq in range(first, last + 1):
            message = MessageId(stream.producer, epoch, stream.topic, stream.partition, seq)
            if message in self.leaving.said[group]:
                continue
            self.leaving.said[group].add(message)
            body = self._bodies.get(message)
            operation = None if body is None else self.operations[body]
            if operation is not None and not self.leaving.is_kept(
                group, stream, operation.named, operation.durable_at
            ):
                self.violate(
                    "let_go_unsafe", f"{message} was left by {consumer} to a producer that does not keep it"
                )

    def lacks(self, group: str, consumer: str, stream: Stream, spans: Iterable[tuple[int, int, int]]) -> None:
        """A consumer says that it lacks these: (epoch, first, last)."""
        # Only what was lost with an outbox that was replaced is gone: without one there is no need to look.
        gone = self._replaced and any(each.gone for each in self.operations.values())
        if gone or len(self.inboxes[group]) > 1:
            return  # another inbox may have taken them, or there are two histories
        for epoch, first, last in spans:
            for message in self._let_go[group]:
                if message.epoch == epoch and first <= message.seq <= last and stream_of(message) == stream:
                    if self.quarantines[consumer](stream, epoch, message.seq):
                        continue  # it is safe there, and will be taken in
                    if message not in self.leaving.said[group]:
                        self.leaving.looks[consumer]()
                    if message in self.leaving.said[group]:
                        continue  # whether it is safe with its producer was judged then
                    self.violate(
                        "let_go_unsafe", f"{message} is lacking at {consumer}, and its broker let it go"
                    )
                    return

    # -- consuming ------------------------------------------------------------------------------------------

    def delivered(self, group: str, consumer: str, message: Message) -> None:
        """An application was handed a message."""
        identity = message.id
        operation = self.operations.get(message.body)
        if operation is None:
            self.violate("phantom", f"{identity} at {consumer}: {message.body[:40]!r}", (group, identity))
            return
        if operation.outcome == "failed":
            self.violate("delivered_after_failed", f"{identity} at {consumer}")
        self._identify(operation, identity)
        self._begins_behind(group, operation.stream, consumer)
        self._meets(group, operation)
        given = self._given.setdefault((group, operation.stream), _Given())
        self._tries[group][identity] += 1
        if identity in self.handed[group]:
            self._again(group, consumer, message, identity)
        elif not (message.redelivered or message.replayed):
            self._first(group, consumer, operation, identity, given)
        told = self._was_told(consumer, identity)
        if not message.replayed and self.passages[group].knows_declared(consumer, identity, told):
            self.violate("delivered_after_gap", f"{identity} at {consumer}")
        self._check_failed(group, consumer, given, message, identity)
        self._buried[group].discard(identity)
        if not message.replayed:
            self.firsts[group].given(consumer, identity, self._scheduler.now, message.redelivered)
        self.handed[group][identity] = consumer
        self._given_at[group][identity] = self._scheduler.now
        place = (identity.epoch, identity.seq)
        given.latest = max(given.latest, place)
        given.note_own(consumer, identity, operation.number)
        given.number = max(given.number, operation.number)
        given.firsts.append((self._scheduler.now, given.latest, given.number))
        given.reached[consumer] = max(place, given.reached.get(consumer, place))
        self._moved(consumer, given)

    def _was_told(self, consumer: str, identity: MessageId) -> bool:
        """Whether a consumer had heard that its group was done with a message."""
        at = self._told_positions.get((consumer, stream_of(identity)), (0, 0))
        return (identity.epoch, identity.seq) < at

    def _keeps_own_order(self, group: str, consumer: str, operation: Operation, given: _Given) -> bool:
        """Whether a consumer goes on in its own order with a message of which it does not know that its group passed
        it."""
        identity = operation.message
        assert identity is not None  # it is handed out
        told = self._was_told(consumer, identity)
        knows = told or self.passages[group].knows_declared(consumer, identity, False)
        own, number = given.own.get(consumer, ((0, 0), -1))
        return not knows and (identity.epoch, identity.seq) > own and operation.number > number

    def _moved(self, consumer: str, given: _Given) -> None:
        """The clock of the consumer's next gap begins now."""
        given.moved_at[consumer] = self.watches[consumer].read(self._scheduler.now)

    def _check_failed(
        self, group: str, consumer: str, given: _Given, message: Message, identity: MessageId
    ) -> None:
        """Nothing overtakes a message that comes again since handling it raised. Whether it comes again is known when
        it does: attempts that a process did not live to make may have been counted (C7), so that it is a dead letter
        after fewer than the application saw. It may come late where another inbox had settled it."""
        failed = given.failed.get(consumer)
        if not failed or message.replayed:
            return
        overtaken_by = failed.pop(identity, None)
        if overtaken_by is not None and not self._settled_elsewhere(group, identity):
            self.violate(
                "out_of_order", f"{overtaken_by} at {consumer}, before {identity}, which failed, came again"
            )
        for each, by in failed.items():
            if by is None and (each.epoch, each.seq) < (message.epoch, message.seq):
                failed[each] = identity

    def _settled_elsewhere(self, group: str, message: MessageId) -> bool:
        """Whether another inbox of the group has settled it, or may have. Any time the one that has handed it out again
        may hear of that: then it is done with it, whatever its application does."""
        done = message in self.acked[group] or message in self.doubted[group]
        return done and len(self.inboxes[group]) > 1

    def _again(self, group: str, consumer: str, message: Message, identity: MessageId) -> None:
        if message.replayed:
            return
        before = self.handed[group][identity]
        told = self._told.get((consumer, message.stream), (0, 0))
        since, until = self.apart.get(consumer, (float("inf"), float("inf")))
        at = self._given_at[group][identity]
        took_over = consumer in self.standbys and not since <= at < until
        knew = before == consumer or took_over or (message.epoch, message.seq) < told
        if knew and not message.redelivered:
            # A crash may have come before the journal told of the first time.
            ended = before != consumer or any(at <= end for end in self._ends[group])
            about = None if ended else (group, identity)
            self.violate("duplicate", f"{identity} at {consumer}, before at {before}", about)
        by, _ = self.settled[group].get(identity, ("", 0.0))
        if by == consumer:
            self.violate("redelivered_after_ack", f"{identity} at {consumer}")

    def _first(
        self, group: str, consumer: str, operation: Operation, identity: MessageId, given: _Given
    ) -> None:
        # What was lost with an outbox is linked with nothing that was published to it since: numbers of epochs, which
        # are those of a clock, are all that orders them.
        overtaken = operation.number <= given.number and not operation.gone
        if (identity.epoch, identity.seq) <= given.latest or overtaken:
            own, _ = given.own.get(consumer, ((0, 0), -1))
            shown = (identity.epoch, identity.seq) <= own and not self._ends[group]
            text = f"{identity} at {consumer}, after {given.latest}"
            about = (group, identity) if shown else None
            found = Violation("out_of_order", text, self._scheduler.now, about)
            if not self._keeps_own_order(group, consumer, operation, given):
                self.violations.append(found)
            elif operation.number <= given.number:
                self._overtaken.append((group, consumer, identity, found))
            # Else it was published later, by an outbox that had gone back with its clock, as this inbox can't know.
            return
        published = self._streams[operation.stream]
        for at in range(bisect_right(published, given.number, key=_number), len(published)):
            other = published[at]
            if other.number >= operation.number:
                break
            if self.owes(group, other):
                self._check_passed(group, other, identity)

    def _check_passed(self, group: str, other: Operation, by: MessageId) -> None:
        if other.message is None or self._done(group, other.message):
            return
        self._passed.append((group, other, by, self._scheduler.now))

    def acknowledged(self, group: str, consumer: str, message: MessageId) -> None:
        """An application acknowledged a message."""
        self._settled(group, consumer, message)

    def failed(self, group: str, consumer: str, message: MessageId, tries: float = 1_000) -> None:
        """Handling a message raised. After so many `tries` it need not come again."""
        if self._tries[group][message] >= tries:
            return
        given = self._given[group, stream_of(message)]
        given.failed.setdefault(consumer, {})[message] = None

    def _settled(self, group: str, consumer: str, message: MessageId) -> None:
        given = self._given[group, stream_of(message)]
        if not self._settled_elsewhere(group, message):  # else the clock may have begun before
            self._moved(consumer, given)
        self.acked[group].add(message)
        for failed in given.failed.values():
            failed.pop(message, None)

    def settled_durably(self, group: str, consumer: str, messages: Iterable[MessageId]) -> None:
        """``ack(durable=True)`` would have returned."""
        for message in messages:
            self.settled[group][message] = consumer, self._scheduler.now

    def doubt(self, group: str, messages: Iterable[MessageId]) -> None:
        """What was done about these may have ended with their consumer: they are waited for, or for the word of its
        journal."""
        doubted = set(messages) - self._sure[group]
        self.acked[group] -= doubted
        self.doubted[group] |= doubted

    def no_doubt(self, group: str, stream: Stream, epoch: int, first: int, last: int) -> None:
        """A group's journal says that these were acknowledged or given up."""
        sure = {
            MessageId(stream.producer, epoch, stream.topic, stream.partition, n)
            for n in range(first, last + 1)
        }
        self._sure[group] |= sure
        self.acked[group] |= sure & self.doubted[group]
        self.doubted[group] -= sure

    def buried(self, group: str, consumer: str, message: MessageId) -> None:
        """An application gave a message up."""
        self.dead[group].add(message)
        self._buried[group].add(message)
        self._settled(group, consumer, message)

    def spent(self, group: str, stream: Stream, epoch: int, seq: int, tries: float, together: int) -> None:
        """A group's journal says that a message went to the dead letters, not by the application's word: it must have
        been handed out `tries` times. Where a consumer ended between counting an attempt and making it, that counts;
        `together` messages at most are counted at a time."""
        message = MessageId(stream.producer, epoch, stream.topic, stream.partition, seq)
        if message in self.dead[group]:
            return
        if self._tries[group][message] < tries:
            self._short[group, stream] += 1
            if tries == float("inf") or self._short[group, stream] > together * len(self._ends[group]):
                self.violate(
                    "lost", f"{message} at {group}: given up after {self._tries[group][message]} attempts"
                )
        self.dead[group].add(message)
        self._buried[group].add(message)
        self.acked[group].add(message)
        for (its, _), given in self._given.items():
            if its == group:
                for failed in given.failed.values():
                    failed.pop(message, None)

    def gap(self, group: str, consumer: str, gap: Gap) -> None:
        """An application was told of a gap, and moved past it. A gap's clock goes on where it stopped when its
        consumer is opened again."""
        given = self._given.setdefault((group, gap.stream), _Given())
        waited = self.watches[consumer].read(self._scheduler.now) - given.moved_at.get(consumer, 0.0)
        if gap.reason == "expired" and waited < self._gap_timeouts[consumer] - 0.001:
            self.violate("gap_too_early", f"{gap} at {group}, after {waited:.3f} s")
        if gap.reason == "removed" and any(
            not operation.removed
            for operation in self._streams.get(gap.stream, ())
            if operation.message is not None and names(gap, operation.message)
        ):
            self.violate("false_gap", f"{gap} at {group}: not all of it was taken back")
        self._declare(group, consumer, gap, self._scheduler.now)
        given.accepted_at[consumer, gap] = given.moved_at.get(consumer, 0.0)
        self._moved(consumer, given)

    def not_accepted(self, group: str, consumer: str, gap: Gap) -> None:
        """A consumer ended before it was durable that it moved past a gap: the gap is there again, and its clock goes
        on where it was."""
        self.passages[group].not_accepted(gap, consumer)
        given = self._given[group, gap.stream]
        began = given.accepted_at[consumer, gap]
        given.moved_at[consumer] = min(began, given.moved_at.get(consumer, began))

    def missed(self, group: str, consumer: str, gap: Gap) -> None:
        """An application was told of a gap that was passed by joining."""
        self._declare(group, consumer, gap, self._scheduler.now)

    def skipped(self, group: str, consumer: str, gap: Gap, at: float, until: int | None = None) -> None:
        """A group's journal says that it went on without these, as its application had asked for. `until`: the epoch
        that it went on with, where it is not known how many these are."""
        self._declare(group, consumer, gap, at, until)

    def _declare(self, group: str, consumer: str, gap: Gap, at: float, until: int | None = None) -> None:
        """What was acknowledged durably, or handed out by this consumer, which did not end since, is no gap. Another
        inbox of the group may not have heard of that."""
        self.passages[group].declare(gap, at, consumer, until)
        given, place = (
            self._given.setdefault((group, gap.stream), _Given()),
            (gap.epoch, gap.last or gap.first),
        )
        given.reached[consumer] = max(place, given.reached.get(consumer, place))
        for message, given_at in self._given_at[group].items():
            if not names(gap, message) or message in self.dead[group] or given_at >= at:
                continue
            if self.handed[group][message] != consumer:
                continue
            ended = any(given_at <= end <= at for end in self._ends[group])
            by, _ = self.settled[group].get(message, ("", 0.0))  # perhaps in an inbox that is gone
            if by == consumer or not ended:
                about = None if ended else (group, message)
                self.violate("false_gap", f"{gap} at {group}: {message} was delivered", about)

    def joined(self, group: str, stream: Stream, epoch: int, first: int, last: int, at: float) -> None:
        """A group's journal says that these came before it joined (`last` 0: all of the epoch): with one inbox nothing
        comes before that follows what the group had been given."""
        given = self._given.get((group, stream))
        before = [number for time, _, number in given.firsts if time < at] if given is not None else []
        if not before or len(self.inboxes[group]) > 1:
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
                self.violate("skipped", f"{message} at {group}: it follows what the group was given before")

    def told_of(
        self, consumer: str, stream: Stream, position: tuple[int, int], high_water: tuple[int, int]
    ) -> None:
        """A consumer hears from another inbox of its group that everything below `position` is settled, and that what
        is below `high_water` may have been handed out. What it did not hear of it can't leave out when it takes over,
        nor flag, unless it waited for the other to end; no more is promised."""
        for told, value in ((self._told_positions, position), (self._told, max(position, high_water))):
            told[consumer, stream] = max(value, told.get((consumer, stream), (0, 0)))

    def consumer_ended(self, group: str, consumer: str, crashed: bool = True) -> None:
        """A consumer of the group is gone, and what it had not committed with it."""
        for told in (self._told, self._told_positions):
            for key in [key for key in told if key[0] == consumer]:
                del told[key]
        for given in self._given.values():
            given.failed.pop(consumer, None)
        self._ends[group].append(self._scheduler.now)
        if crashed:
            self.firsts[group].ended(consumer)

    def inbox_replaced(self, group: str, consumer: str, since: float) -> None:
        """A consumer's inbox is what it was at `since` again: of what it did after that it knows as little as another
        inbox of its group that never heard of it."""
        gone = f"{consumer} before its inbox was replaced"
        self.inboxes[group].add(gone)
        if self._consumers(group) == [consumer]:
            # Nobody else knows where the group met a stream: it begins anew with what comes next.
            self._met = {key: met for key, met in self._met.items() if key[0] != group or met.at <= since}
            self._begun = {key: place for key, place in self._begun.items() if key[0] != group}
        for message, at in self._given_at[group].items():
            if at > since and self.handed[group][message] == consumer:
                self.handed[group][message] = gone
        for message, (by, at) in self.settled[group].items():
            if at > since and by == consumer:
                self.settled[group][message] = gone, at
        self.passages[group].replaced(consumer, gone, since)
        self.firsts[group].replaced(consumer, since)
        self._buried[group].clear()  # which of its dead letters the copy holds is not known
        for (its, _), given in self._given.items():
            if its == group:
                given.firsts = [each for each in given.firsts if each[0] <= since]
                _, given.latest, given.number = given.firsts[-1] if given.firsts else (0.0, (0, 0), -1)
                given.moved_at.pop(consumer, None)
                given.reached.pop(consumer, None)
                given.own.pop(consumer, None)
        for message, by in self.handed[group].items():
            if by == consumer:
                self._given[group, stream_of(message)].note_own(consumer, message, self._number_of(message))

    def _number_of(self, message: MessageId) -> int:
        return self.operations[self._bodies[message]].number

    def _done(self, group: str, message: MessageId) -> bool:
        return message in self.handed[group] or message in self.dead[group] or message in self.passages[group]

    def is_dealt_with(self, group: str, message: MessageId) -> bool:
        """Whether some inbox of a group gave a message, or passed it with a word, or nothing is owed of it."""
        body = self._bodies.get(message)
        if body is None:
            return self._done(group, message)
        operation = self.operations[body]
        return any(self._done(group, name) for name in operation.names) or not self.owes(group, operation)

    def _is_left(self, gap: Gap) -> bool:
        """Whether it was declared since its epoch was over: its producer's outbox was replaced. Wherever such messages
        are kept, and however long, none of them is handed out."""
        return gap.reason == "superseded" and gap.stream.producer in self._replaced

    # -- the end --------------------------------------------------------------------------------------------

    def not_given(self, group: str) -> list[MessageId]:
        """What is durable, and was to be given to a group, and was not, whatever it was told about that."""
        return [
            operation.message
            for operation in self.operations.values()
            if operation.outcome == "ok"
            and operation.message is not None
            and not operation.gone
            and (operation.groups is None or group in operation.groups)
            and self.handed[group].keys().isdisjoint(operation.names)
            and operation.message not in self.dead[group]
            and not (group in self._latest and self._is_before(group, operation, operation.message))
        ]

    def _is_before(self, group: str, operation: Operation, message: MessageId) -> bool:
        """Whether a group that begins with the latest has nothing to do with a message."""
        return not self._is_new(group, operation) or self.passages[group].came_before(message)

    def open_for(self, group: str) -> list[Operation]:
        """What the group has still to come."""
        done = self.acked[group]
        return [
            operation
            for operation in self.operations.values()
            if self.owes(group, operation)
            and done.isdisjoint(operation.names)
            and not (operation.message is not None and operation.message in self.passages[group])
        ]

    def reached(self, group: str, stream: Stream) -> Mapping[str, tuple[int, int]]:
        """How far in a stream each consumer of a group has come: the highest (epoch, number) that it handed out or
        declared."""
        given = self._given.get((group, stream))
        return {} if given is None else given.reached

    @property
    def looks_for_ends(self) -> bool:
        """Whether journals have still to tell where a gap ends that an application was told of."""
        return any(passages.is_open for passages in self.passages.values())

    def unresolved(self, topics_of: Callable[[str], Collection[str]]) -> bool:
        """Whether there is anything of which it is open what becomes of it at a group that reads it (`topics_of` says
        what each does), and of which nothing is promised: that group was not named for it, or its application was not
        told that it is durable."""
        return any(
            operation.message is not None
            and not (operation.gone or operation.removed)
            and not (operation.outcome == "ok" and (operation.groups is None or group in operation.groups))
            and self.acked[group].isdisjoint(operation.names)
            and operation.message not in self.passages[group]
            and operation.stream.topic in topics_of(group)
            and (self._is_new(group, operation) or self._has_begun(group, operation.message))
            for group in self.groups
            for operation in self.operations.values()
        )

    def begins(self, group: str, consumer: str, stream: Stream, epoch: int, first: int) -> None:
        """A consumer's journal says that a stream began there, though nothing may have been given or taken in yet."""
        self._begins_behind(group, stream, consumer)
        place = epoch, max(first, 1)
        self._begun[group, stream] = min(place, self._begun.get((group, stream), place))

    def _has_begun(self, group: str, message: MessageId) -> bool:
        began = self._begun.get((group, stream_of(message)))
        return began is not None and began <= (message.epoch, message.seq)

    def judge(self, held_for: Collection[str] = ()) -> None:
        """Everything is over. `held_for`: groups that never give a gap up."""
        for group, operation, by, at in self._passed:
            passages, dead = self.passages[group], self.dead[group]
            told = any(name in passages or name in dead for name in operation.names)
            if self.owes(group, operation) and not told:
                text = f"{operation.message} at {group}, passed by {by}"
                self.violations.append(Violation("skipped", text, at))
        self.violations += [
            found
            for group, consumer, message, found in self._overtaken
            if not self.passages[group].was_passed(message, consumer, found.at)
        ]
        for operation in self.operations.values():
            done = len(operation.confirmed) >= self._needed[operation.stream.producer]
            waits = operation.message in self.kept[""] and all(
                (group, operation.stream) in self.ended for group in self.groups
            )
            if operation.outcome == "ok" and not (operation.gone or operation.removed or done or waits):
                self.violate(
                    "published_unconfirmed",
                    f"{operation.message or operation.body!r}: nothing is pending any more",
                )
        for group in self.groups:
            for operation in self.operations.values():
                self._judge(
                    group, operation, group in held_for and operation.stream.producer in self.leaving.keepers
                )
            for message in sorted(self._buried[group] - self.letters[group]):
                if message not in self.passages[group]:
                    self.violate("lost", f"{message} at {group}: given up, and not among the dead letters")

    def _judge(self, group: str, operation: Operation, held: bool) -> None:
        message = operation.message
        if message is None and self.owes(group, operation):
            self.violate("lost", f"{operation.body!r} at {group}: never sent")
        if operation.gone or message is None or message in self.dead[group]:
            return
        if not self.handed[group].keys().isdisjoint(operation.names):
            return
        found = self.passages[group].declared(message)
        if found is not None and found.gap.reason == JOINED_LATE:
            return  # it is no promise that a group hears of what it was counted for before it joins
        let_go = self._let_go[group].get(message)
        if found is None and not self.passages[group].came_before(message):
            waits = (group, operation.stream) in self.ended and (message in self.kept[""] | self.kept[group])
            if self.owes(group, operation) and not waits:
                self.violate("lost", f"{message} at {group}", (group, message))
        elif found is not None and held and self.owes(group, operation) and not self._is_left(found.gap):
            self.violate("lost_held", f"{message} at {group}", (group, message))
        if (
            let_go is not None
            and found is not None
            and let_go < found.at
            and len(self.inboxes[group]) == 1
            and (self.owes(group, operation) or message not in self.leaving.said[group])
            and not self._is_left(found.gap)
        ):
            self.violate("let_go_unsafe", f"{message} at {group}: let go at {let_go:.3f}")
