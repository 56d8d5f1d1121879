"""The fate of every message that was enqueued: by group, in ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.hops import by_sites, pieces
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import KINDS, Counts, Finding
from reliamsg.checker.restores import Cut, Ends
from reliamsg.checker.spans import ENDLESS, Key, SpanMap, Spans, total
from reliamsg.checker.sums import check_fates
from reliamsg.message import Stream

__all__ = ["Accounts", "account", "beyond"]

_LOSSES = frozenset({"lost", "joined_unheard", "declared_gap", "removed", "discarded"})
_FATES_FOUND = _LOSSES | {"never_joined", "settled_unseen"}
"""Kinds of findings that are the fate of a message, besides open ends."""
_IN_QUARANTINE = "in quarantine"
_HELD = "behind a gap that holds its stream"


@dataclass(frozen=True)
class Accounts:
    """The fate of every message, for all groups."""

    findings: list[Finding]
    counts: Counts
    excused: dict[str, SpanMap]
    """By group, messages that its application's log may lack: declared, dead-lettered, open, or from before it joined.
    """


def account(
    producers: Mapping[str, ProducerFacts],
    groups: Mapping[str, GroupFacts],
    named: Mapping[str, set[str]],
    contested: set[Key],
    drained: bool,
    cuts: Mapping[str, list[Cut]],
    ends: Mapping[str, Ends],
) -> Accounts:
    """Compare published messages with those that each group received.

    `named`: groups by topic. `cuts` and `ends`: where producers' journals lack a part, or may lack one, by
    producer.
    """
    pending = SpanMap()
    findings: list[Finding] = []
    enqueued = 0
    for producer in producers.values():
        enqueued += total(_accounted(producer, key) for key in producer.enqueued)
        _add_pending(producer, pending)
        for why, spans in _unconfirmed(producer, pending).items():
            findings += _findings("pending", spans, why=why)
    open_ends = SpanMap()
    excused: dict[str, SpanMap] = {}
    counts = Counts(enqueued=enqueued)
    for name, group in groups.items():
        own = _GroupAccount(group, producers, drained, cuts, ends)
        for producer in producers.values():
            for key in _in_order(producer.enqueued):
                if name in named.get(key[0].topic, ()):
                    own.account(key, producer, pending[key])
        own.check_sums(named)
        own.check_unpublished(contested)
        own.check_claims(contested)
        own.find_unacknowledged()
        findings += own.findings()
        counts += own.counts()
        for undelivered in own.open.values():
            open_ends.merge(undelivered)
        excused[name] = own.excused
    open_ends.merge(pending)
    counts += Counts(pending=total(open_ends.values()))
    return Accounts(findings, counts, excused)


def _add_pending(producer: ProducerFacts, pending: SpanMap) -> None:
    """Add unpublished messages that were not removed."""
    for key in producer.enqueued:
        for first, last in _accounted(producer, key) - producer.published[key] - producer.removed[key]:
            pending.put(key, first, last)


def _unconfirmed(producer: ProducerFacts, pending: SpanMap) -> dict[str, SpanMap]:
    """A producer's pending messages, by the reason why they are not confirmed, as far as its journal has it."""
    found: dict[str, SpanMap] = {}
    for key in producer.enqueued:
        declined = {
            f"{how} by {site}": SpanMap({key: spans[key] - producer.confirmed.get(site, SpanMap())[key]})
            for (how, site), spans in producer.declined.items()
        }
        parked = sorted(producer.parked.get(key[0], ()))
        for first, last, labels in by_sites(pending[key], declined, key):
            why = ", ".join(labels) or (f"parked at {', '.join(parked)}" if parked else "")
            found.setdefault(why, SpanMap()).put(key, first, last)
    return found


def _accounted(producer: ProducerFacts, key: Key) -> Spans:
    """The part of a stream's epoch that was enqueued in the period of the check."""
    return producer.enqueued[key] - producer.later[key]


def beyond(producer: ProducerFacts | None, key: Key, delivered: Spans) -> Spans:
    """The delivered part of a stream's epoch that was enqueued after the period of the check."""
    if producer is None:
        return Spans()
    later = delivered & producer.later[key]
    following = producer.continues and producer.may_follow(key[1])
    return later | (delivered - producer.enqueued[key]) if following else later


def _in_order(spans: SpanMap) -> list[Key]:
    return sorted(spans, key=lambda key: (key[0], key[1]))


def _findings(kind: str, found: SpanMap, group: str = "", why: str = "") -> Iterator[Finding]:
    text = KINDS[kind][1] + (f": {why}" if why else "")
    for key in _in_order(found):
        for first, last in found[key]:
            yield Finding(kind, text, key[0], group, epoch=key[1], first=first, last=last)


class _GroupAccount:
    """The fate of every message at one group."""

    def __init__(
        self,
        group: GroupFacts,
        producers: Mapping[str, ProducerFacts],
        drained: bool,
        cuts: Mapping[str, list[Cut]],
        ends: Mapping[str, Ends],
    ) -> None:
        self.group = group
        self.producers = producers
        self.drained = drained
        self.cuts, self.ends = cuts, ends
        self.open: dict[str, SpanMap] = {}
        """Undelivered messages by reason, as far as it is known."""
        self.excused = SpanMap()
        self._found: dict[str, SpanMap] = {}
        """By kind of finding."""
        self._lost: dict[str, SpanMap] = {}
        """By place in the stream."""
        self._before_join = SpanMap()
        self._dead_letters = 0
        self._unremarkable: dict[Stream, Counter[str]] = {}
        """By stream and fate, numbers of messages with fates that are no findings of the group."""
        self._consumed: dict[bool, SpanMap] = {True: SpanMap(), False: SpanMap()}
        """Messages that producers journalled as consumed: those that the group had settled by a row that its journals
        have, and all others."""
        reports = [
            (producer, report)
            for producer in producers.values()
            for report in producer.reports.get(group.group, ())
        ]
        for _, report in reports:
            if not group.goes_beyond(report.boot, report.lsn):
                self._consumed[False].put(report.key, report.first, report.last)
        for producer, report in reports:
            if group.goes_beyond(report.boot, report.lsn):
                claimed = Spans([(report.first, report.last)])
                if report.epoch != report.key[1]:
                    claimed = claimed - self._settled((report.key[0], report.epoch), producer)
                self._consumed[True].merge({report.key: claimed})
        self._lacks_rows = any(
            report.boot and group.rows.get(report.boot, 0) < report.lsn for _, report in reports
        )
        """Whether its journals lack rows at their end that producers name."""

    def account(self, key: Key, producer: ProducerFacts, pending: Spans) -> None:
        """Add one stream's epoch."""
        group = self.group
        self._excuse(key, producer.later[key])
        enqueued = _accounted(producer, key)
        counted = producer.counted.get(group.group, SpanMap())[key]
        declared = group.declared_in(key) & enqueued
        gap, removable = declared - group.delivered[key], producer.removed[key]
        self._put("declared_gap", key, gap - removable)
        self._excuse(key, declared | group.dead[key] | pending)
        missing = enqueued - group.delivered[key] - group.dead[key] - declared - pending
        self._dead_letters += ((enqueued & group.dead[key]) - group.acknowledged[key]).count
        self._count_fates(
            key,
            delivered=(enqueued & group.delivered[key]).count,
            dead=((enqueued & group.dead[key]) - group.delivered[key] - declared).count,
            pending=((enqueued & pending) - group.delivered[key] - group.dead[key] - declared).count,
        )
        announced = producer.settled_before_removal.get(group.group, {}).get(key[0], ())
        settled = missing & group.settled_before_joining(key, announced)
        owed = Spans() if group.latest else counted
        early = (missing - owed - settled) & (group.before_join[key] | self._before(key))
        if key[0] not in group.joined:
            quarantined, discarded = group.in_quarantine(key)
            early = early - quarantined - discarded
        if early and key[0] not in group.joined and group.sound:
            self._put("never_joined", key, early)
            self._excuse(key, early)
        elif early:
            self._before_join.merge({key: early})
            self._excuse(key, early)
        excused = producer.excused.get(group.group, SpanMap())[key] - counted
        self._excuse(key, missing & excused)
        self._count_fates(key, excused=(missing & (excused - early)).count)
        missing = missing - early - excused
        removed = (missing & removable) - settled
        self._put("removed", key, removed | (gap & removable))
        self._excuse(key, removed)
        retained = producer.retained[key] - producer.consumed.get(group.group, SpanMap())[key]
        for first, last in missing - removed:
            self._add_missing(key, first, last, retained)

    def _before(self, key: Key) -> Spans:
        """The part of an epoch before the place where the group joined; everything if it never joined."""
        stream, epoch = key
        joined = self.group.joined.get(stream)
        if joined is None or epoch < joined[0]:
            return Spans([(1, ENDLESS)])
        return Spans([(1, joined[1] - 1)]) if epoch == joined[0] else Spans()

    def _add_missing(self, key: Key, first: int, last: int, retained: Spans) -> None:
        """`retained`: what the outbox keeps for the group, which can still request it at the end of the stream."""
        stream, epoch = key
        tail = self._is_ahead(stream, epoch, first)
        at_the_end = self.drained and self.group.finished and not self._lacks_rows
        certain = self.group.sound and (not tail or at_the_end)
        missing, held = Spans([(first, last)]), self.group.held(key)
        quarantined, discarded = (missing & each for each in self.group.in_quarantine(key))
        waiting = (missing & held & self.group.received_anywhere(key)) - quarantined - discarded
        missing = missing - quarantined - discarded - waiting
        if tail and self._lacks_rows:
            announced = missing & self._settled_unseen(key, self.producers[stream.producer])
            self._put("settled_unseen", key, announced)
            self._excuse(key, announced)
            missing = missing - announced
        open_end = missing if not certain else retained & missing if tail else Spans()
        self._add_undelivered(key, quarantined, _IN_QUARANTINE)
        self._add_undelivered(key, waiting | (open_end & held), _HELD)
        self._add_undelivered(key, open_end - held, "")
        self._put("discarded", key, discarded)
        self._excuse(key, discarded)
        certain_loss = missing - open_end
        unseen = certain_loss & self._settled_unseen(key, self.producers[stream.producer])
        perhaps = self.group.perhaps_settled(key) if tail else self.group.unaccounted(key)
        unseen = unseen | (certain_loss & perhaps)
        self._put("settled_unseen", key, unseen)
        self._excuse(key, unseen)
        certain_loss = certain_loss - unseen
        before = certain_loss & self._before(key) if self.group.began_unannounced(stream) else Spans()
        self._put("joined_unheard", key, before)
        for piece in certain_loss - before:
            self._add_lost(key, *piece, tail)

    def _is_ahead(self, stream: Stream, epoch: int, first: int) -> bool:
        """Whether the group has not reached this yet. It has passed an epoch below its current one only if it also
        passed a later one of the same history: epochs continue below if an outbox is lost while clocks are set back."""
        reached = self.group.reached.get(stream, (0, 0))
        if epoch >= reached[0]:
            return (epoch, first) > reached
        epochs = self.producers[stream.producer].epochs.get(stream, ())
        return not any(epoch < other <= reached[0] for other in epochs)

    def _add_undelivered(self, key: Key, spans: Spans, why: str) -> None:
        for first, last in spans:
            self.open.setdefault(why, SpanMap()).put(key, first, last)
        self._excuse(key, spans)

    def _settled(self, key: Key, producer: ProducerFacts) -> Spans:
        """What the group may have reported as settled: what it settled, what came before it joined, and what an inbox
        whose journal lacks it settled or may have settled."""
        group = self.group
        found = group.acknowledged[key] | group.dead[key] | group.declared_in(key) | group.before_join[key]
        found = found | self._settled_unseen(key, producer) | group.unaccounted(key)
        return found | self._before(key) if key[0] in group.joined else found

    def _settled_unseen(self, key: Key, producer: ProducerFacts) -> Spans:
        """What the group announced as settled to one of its inboxes or to the producer, by rows that its journals
        lack."""
        group = self.group
        announced = group.settled_unseen(key) | producer.settled_unseen(group.group, key)
        return announced | self._consumed[False][key]

    def _add_lost(self, key: Key, first: int, last: int, tail: bool) -> None:
        stream, epoch = key
        begins = [
            (e, spans.lowest) for (s, e), spans in self.group.delivered.items() if s == stream and spans
        ]
        where = "tail" if tail else "prefix" if not begins or (epoch, last) < min(begins) else "middle"
        self._lost.setdefault(where, SpanMap()).put(key, first, last)

    def check_sums(self, named: Mapping[str, set[str]]) -> None:
        """Compare the sum of all fates, as they are reported, with the rows that enqueued messages."""
        found: dict[Stream, Counter[str]] = {}
        for stream, counts in self._unremarkable.items():
            found.setdefault(stream, Counter()).update(counts)
        fates = {kind: self._found.get(kind, SpanMap()) for kind in _FATES_FOUND - {"lost"}}
        every = [
            *fates.items(),
            *(("lost", spans) for spans in self._lost.values()),
            *(("undelivered", spans) for spans in self.open.values()),
            ("before_join", self._before_join),
        ]
        for name, by_key in every:
            for key, spans in by_key.items():
                found.setdefault(key[0], Counter())[name] += spans.count
        for producer in self.producers.values():
            enqueued: Counter[Stream] = Counter()
            for key, rows in producer.begun.items():
                if self.group.group in named.get(key[0].topic, ()):
                    own = Spans((first, last) for first, last, _ in rows)
                    enqueued[key[0]] += (own - producer.later[key]).count
            for stream in enqueued:
                check_fates(stream, self.group.group, enqueued[stream], found.pop(stream, {}))
        for stream, counts in found.items():
            check_fates(stream, self.group.group, 0, counts)

    def _count_fates(self, key: Key, **counts: int) -> None:
        self._unremarkable.setdefault(key[0], Counter()).update(counts)

    def check_unpublished(self, contested: set[Key]) -> None:
        """Find messages that were delivered, or declared as a gap, and never enqueued."""
        for key in _in_order(self.group.delivered):
            producer = self.producers.get(key[0].producer)
            if producer is not None and key not in contested:
                stray = self.group.delivered[key] - producer.enqueued[key]
                stray = stray - beyond(producer, key, stray)
                certain = producer.has_all_of(key[1]) and not self._is_cut(key)
                offered = stray & producer.moved[key] if self._may_lack_rows(key) else Spans()
                self._put("unproven", key, offered if certain else stray)
                self._put("phantom", key, stray - offered if certain else Spans())
        for key in _in_order(self.group.declared):
            producer = self.producers.get(key[0].producer)
            if (
                producer is not None
                and producer.has_all_of(key[1])
                and producer.enqueued[key]
                and key not in contested
            ):
                stray = self.group.declared[key] - producer.enqueued[key] - producer.moved[key]
                kind = "unproven_gap" if self._is_cut(key) else "phantom_gap"
                self._put(kind, key, Spans((a, b) for a, b in stray if b < ENDLESS - 1))

    def _is_cut(self, key: Key) -> bool:
        """Whether the stream's epoch may have had more messages than are in its producer's journal."""
        producer, epoch = key[0].producer, key[1]
        ends = self.ends.get(producer)
        if ends is not None and ends.touch(epoch):
            enqueued = self.producers[producer].enqueued[key]
            last = enqueued.highest if enqueued else 0
            if not self.group.went_on(key, last, ends.epochs):
                return True
        return any(cut.touches(epoch) for cut in self.cuts.get(producer, ()))

    def _may_lack_rows(self, key: Key) -> bool:
        """Whether the producer's journal may lack that messages of the epoch were removed, or offered to sites in this
        epoch."""
        return any(key[1] <= cut.low for cut in self.cuts.get(key[0].producer, ()))

    def check_claims(self, contested: set[Key]) -> None:
        """Find claims of one side's journal about the other side that the other side's journal does not confirm."""
        group = self.group
        claims: dict[str, SpanMap] = {"false_removal": SpanMap(), "unproven": SpanMap()}
        for key, first, last, incarnation, lsn in group.removals:
            producer = self.producers.get(key[0].producer)
            if producer is not None and key not in contested:
                proven = producer.goes_beyond(incarnation, lsn) and not self._may_lack_rows(key)
                claims["false_removal" if proven else "unproven"].put(key, first, last)
        for kind, found in claims.items():
            for key, spans in found.items():
                producer = self.producers[key[0].producer]
                claimed = spans & producer.enqueued[key]
                self._put(kind, key, claimed - producer.later[key] - producer.removed[key])
        for key, spans in self._consumed[True].items():
            producer = self.producers.get(key[0].producer)
            if producer is not None and key not in contested:
                claimed = spans & _accounted(producer, key)
                self._put("consumed_unsettled", key, claimed - self._settled(key, producer))

    def find_unacknowledged(self) -> None:
        """Find messages that were delivered and are not settled."""
        if not self.group.sound:
            return
        for key in _in_order(self.group.delivered):
            left = self._delivered(key) - self.group.acknowledged[key] - self.group.dead[key]
            self._put("unacknowledged", key, left)
            self._excuse(key, left)

    def findings(self) -> Iterator[Finding]:
        """Everything that was found."""
        for kind, found in self._found.items():
            if kind in _LOSSES:
                yield from self._losses(kind, found)
            else:
                yield from _findings(kind, found, self.group.group)
        for why, found in self.open.items():
            yield from _findings("undelivered", found, self.group.group, why)
        for where, found in self._lost.items():
            yield from self._losses("lost", found, where)

    def counts(self) -> Counts:
        """The group's share of all counts but `enqueued` and `pending`."""
        late = (
            spans - self.group.delivered[key] - beyond(self.producers.get(key[0].producer), key, spans)
            for key, spans in self.group.late.items()
        )
        return Counts(
            delivered={self.group.group: total(self._delivered(key) for key in self.group.delivered)},
            lost=sum(total(found.values()) for found in self._lost.values()) + self._count("joined_unheard"),
            declared_gaps=sum(map(self._count, ("declared_gap", "removed", "discarded"))),
            phantom=self._count("phantom"),
            duplicates=self.group.duplicates,
            out_of_order=self.group.out_of_order,
            late=total(late),
            before_join=total(self._before_join.values()),
            dead_lettered=self._dead_letters,
        )

    def _delivered(self, key: Key) -> Spans:
        """Delivered messages that belong to the period of the check."""
        delivered = self.group.delivered[key]
        return delivered - beyond(self.producers.get(key[0].producer), key, delivered)

    def _losses(self, kind: str, found: SpanMap, where: str = "") -> Iterator[Finding]:
        """A finding for each range that got equally far."""
        text = KINDS[kind][1] + (f" ({where} of the stream)" if where else "")
        for key in _in_order(found):
            producer = self.producers[key[0].producer]
            for first, last, hop, sites in pieces(found[key], key, producer, self.group):
                yield Finding(
                    kind, text, key[0], self.group.group, epoch=key[1], first=first, last=last,
                    where=where, hop=hop, sites=sites,
                )  # fmt: skip

    def _count(self, kind: str) -> int:
        return total(self._found.get(kind, SpanMap()).values())

    def _put(self, kind: str, key: Key, spans: Spans) -> None:
        for first, last in spans:
            self._found.setdefault(kind, SpanMap()).put(key, first, last)

    def _excuse(self, key: Key, spans: Spans) -> None:
        for first, last in spans:
            self.excused.put(key, first, last)
