"""What became of every message that was enqueued: for each group, range by range."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.hops import by_sites, pieces
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import KINDS, Finding, Report
from reliamsg.checker.restores import Cut
from reliamsg.checker.spans import ENDLESS, Key, SpanMap, Spans, total
from reliamsg.message import Stream

__all__ = ["account", "beyond"]

_LOSSES = frozenset({"lost", "joined_unheard", "declared_gap", "removed", "discarded"})
_IN_QUARANTINE = "in quarantine"
_HELD = "behind a gap that holds its stream"


def account(
    report: Report,
    producers: dict[str, ProducerFacts],
    groups: dict[str, GroupFacts],
    named: dict[str, set[str]],
    contested: set[Key],
    drained: bool,
    cuts: dict[str, list[Cut]],
) -> dict[str, SpanMap]:
    """Set what is published against what each group was given, and count.

    `cuts`: where producers' journals lack a part. Adds findings and counts to `report`. Returns, for each group, what
    need not be in its application's log: what is declared, dead-lettered, from before it joined, or still open.
    """
    pending = SpanMap()
    excused: dict[str, SpanMap] = {}
    for producer in producers.values():
        report.messages.enqueued += total(_accounted(producer, key) for key in producer.enqueued)
        _pending(producer, pending)
        for why, spans in _unconfirmed(producer, pending).items():
            _find(report, "pending", spans, why=why)
    open_ends = SpanMap()
    for name, group in groups.items():
        ledger = _Ledger(group, producers, drained, cuts)
        for producer in producers.values():
            for key in _in_order(producer.enqueued):
                if name in named.get(key[0].topic, ()):
                    ledger.account(key, producer, pending[key])
        ledger.strangers(contested)
        ledger.claims(contested)
        ledger.unacknowledged()
        ledger.report_to(report)
        for undelivered in ledger.open.values():
            open_ends.merge(undelivered)
        excused[name] = ledger.excused
    open_ends.merge(pending)
    report.messages.pending = total(open_ends.values())
    return excused


def _pending(producer: ProducerFacts, pending: SpanMap) -> None:
    for key in producer.enqueued:
        for first, last in _accounted(producer, key) - producer.published[key] - producer.removed[key]:
            pending.put(key, first, last)


def _unconfirmed(producer: ProducerFacts, pending: SpanMap) -> dict[str, SpanMap]:
    """Why what is pending of a producer is not confirmed, as far as its journal tells."""
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
    """What of a stream's epoch the account is about: what was enqueued, by the time that was asked for."""
    return producer.enqueued[key] - producer.later[key]


def beyond(producer: ProducerFacts | None, key: Key, handed: Spans) -> Spans:
    """What was handed out of a stream's epoch and belongs to a later account."""
    if producer is None:
        return Spans()
    later = handed & producer.later[key]
    return later | (handed - producer.enqueued[key]) if producer.going_on else later


def _in_order(spans: SpanMap) -> list[Key]:
    return sorted(spans, key=lambda key: (key[0], key[1]))


def _find(report: Report, kind: str, found: SpanMap, group: str = "", why: str = "") -> None:
    text = KINDS[kind][1] + (f": {why}" if why else "")
    for key in _in_order(found):
        for first, last in found[key]:
            report.findings.append(Finding(kind, text, key[0], group, epoch=key[1], first=first, last=last))


@dataclass
class _Ledger:
    """One group's account."""

    group: GroupFacts
    producers: dict[str, ProducerFacts]
    drained: bool
    cuts: dict[str, list[Cut]]
    found: dict[str, SpanMap] = field(default_factory=dict)
    lost: dict[str, SpanMap] = field(default_factory=dict)
    """By where in the stream."""
    open: dict[str, SpanMap] = field(default_factory=dict)
    """What is undelivered, by why, as far as that is known."""
    before_join: SpanMap = field(default_factory=SpanMap)
    excused: SpanMap = field(default_factory=SpanMap)

    def account(self, key: Key, producer: ProducerFacts, pending: Spans) -> None:
        """What became of one stream's epoch at this group."""
        group = self.group
        self._excuse(key, producer.later[key])
        enqueued = _accounted(producer, key)
        counted = producer.counted.get(group.group, SpanMap())[key]
        declared = group.declared_in(key) & enqueued
        gap, taken = declared - group.handed[key], producer.removed[key]
        self._put("declared_gap", key, gap - taken)
        self._excuse(key, declared | group.dead[key] | pending)
        missing = enqueued - group.handed[key] - group.dead[key] - declared - pending
        gone = missing & group.settled_before_joining(key, producer.left.get(group.group, {}).get(key[0], ()))
        owed = Spans() if group.latest else counted
        early = (missing - owed - gone) & (group.before_join[key] | self._before(key))
        if key[0] not in group.joined:
            quarantined, discarded = group.set_aside(key)
            early = early - quarantined - discarded
        if early and key[0] not in group.joined and group.sound:
            self._put("never_joined", key, early)
            self._excuse(key, early)
        elif early:
            self.before_join.merge({key: early})
            self._excuse(key, early)
        excused = producer.excused.get(group.group, SpanMap())[key] - counted
        self._excuse(key, missing & excused)
        missing = missing - early - excused
        removed = (missing & taken) - gone
        self._put("removed", key, removed | (gap & taken))
        self._excuse(key, removed)
        held = producer.held[key] - producer.consumed.get(group.group, SpanMap())[key]
        for first, last in missing - removed:
            self._missing(key, first, last, held)

    def _before(self, key: Key) -> Spans:
        """What of an epoch lies before the place where the group joined; all of it where it never did."""
        stream, epoch = key
        joined = self.group.joined.get(stream)
        if joined is None or epoch < joined[0]:
            return Spans([(1, ENDLESS)])
        return Spans([(1, joined[1] - 1)]) if epoch == joined[0] else Spans()

    def _missing(self, key: Key, first: int, last: int, held: Spans) -> None:
        """`held`: what the outbox keeps for the group, which can still ask for it at the end of the stream."""
        stream, epoch = key
        tail = self._is_ahead(stream, epoch, first)
        certain = self.group.sound and (not tail or (self.drained and self.group.finished))
        missing, held_up = Spans([(first, last)]), self.group.held_up(key)
        quarantined, discarded = (missing & each for each in self.group.set_aside(key))
        waiting = (missing & held_up & self.group.taken_in(key)) - quarantined - discarded
        missing = missing - quarantined - discarded - waiting
        open_end = missing if not certain else held & missing if tail else Spans()
        self._undelivered(key, quarantined, _IN_QUARANTINE)
        self._undelivered(key, waiting | (open_end & held_up), _HELD)
        self._undelivered(key, open_end - held_up, "")
        self._put("discarded", key, discarded)
        self._excuse(key, discarded)
        certain_loss = missing - open_end
        unseen = certain_loss & self._settled_unseen(key, self.producers[stream.producer])
        if tail:
            unseen = unseen | (certain_loss & self.group.perhaps_settled(key))
        self._put("settled_unseen", key, unseen)
        self._excuse(key, unseen)
        certain_loss = certain_loss - unseen
        before = certain_loss & self._before(key) if self.group.joined_unheard(stream) else Spans()
        self._put("joined_unheard", key, before)
        for piece in certain_loss - before:
            self._lost(key, *piece, tail)

    def _is_ahead(self, stream: Stream, epoch: int, first: int) -> bool:
        """Whether the group has yet to come to this. An epoch below the one that it is in is behind it only if it came
        through a later one of the same history: an outbox that is lost while clocks are set back goes on below."""
        reached = self.group.reached.get(stream, (0, 0))
        if epoch >= reached[0]:
            return (epoch, first) > reached
        epochs = self.producers[stream.producer].epochs.get(stream, ())
        return not any(epoch < other <= reached[0] for other in epochs)

    def _undelivered(self, key: Key, spans: Spans, why: str) -> None:
        for first, last in spans:
            self.open.setdefault(why, SpanMap()).put(key, first, last)
        self._excuse(key, spans)

    def _settled_unseen(self, key: Key, producer: ProducerFacts) -> Spans:
        """What one of the group's inboxes, or its producer, was told to be settled. Where an inbox is gone with its
        journal, all that producers were told may have been its word; so it was, of a stream that no journal here ever
        joined."""
        group = self.group
        told = group.settled_unseen(key) | producer.settled_unseen(group.group, key)
        if group.replaced or key[0] not in group.joined:
            told = told | producer.consumed.get(group.group, SpanMap())[key]
        return told

    def _lost(self, key: Key, first: int, last: int, tail: bool) -> None:
        stream, epoch = key
        given = [(e, spans.lowest) for (s, e), spans in self.group.handed.items() if s == stream and spans]
        where = "tail" if tail else "prefix" if not given or (epoch, last) < min(given) else "middle"
        self.lost.setdefault(where, SpanMap()).put(key, first, last)

    def strangers(self, contested: set[Key]) -> None:
        """What was given, or declared a gap, without ever having been enqueued."""
        for key in _in_order(self.group.handed):
            producer = self.producers.get(key[0].producer)
            if producer is not None and key not in contested and not producer.going_on:
                stray = self.group.handed[key] - producer.enqueued[key]
                certain = producer.told and not self._is_cut(key)
                offered = stray & producer.moved[key] if self._may_lack_rows(key) else Spans()
                self._put("unproven", key, offered if certain else stray)
                self._put("phantom", key, stray - offered if certain else Spans())
        for key in _in_order(self.group.declared):
            producer = self.producers.get(key[0].producer)
            if producer is not None and producer.told and producer.enqueued[key] and key not in contested:
                stray = self.group.declared[key] - producer.enqueued[key] - producer.moved[key]
                kind = "unproven_gap" if self._is_cut(key) else "phantom_gap"
                self._put(kind, key, Spans((a, b) for a, b in stray if b < ENDLESS - 1))

    def _is_cut(self, key: Key) -> bool:
        """Whether the stream's epoch may have had more messages than its producer's journal still has."""
        return any(cut.touches(key[1]) for cut in self.cuts.get(key[0].producer, ()))

    def _may_lack_rows(self, key: Key) -> bool:
        """Whether messages of the epoch may have been removed, or offered to sites under this name, without the
        producer's journal still having it."""
        return any(key[1] <= cut.low for cut in self.cuts.get(key[0].producer, ()))

    def claims(self, contested: set[Key]) -> None:
        """What a producer said, or was said to have done, that the other side's journal knows nothing of."""
        group = self.group
        for key in _in_order(group.removed):
            producer = self.producers.get(key[0].producer)
            if producer is not None and producer.told and key not in contested:
                said = group.removed[key] & producer.enqueued[key]
                kind = "unproven" if self._may_lack_rows(key) else "false_removal"
                self._put(kind, key, said - producer.later[key] - producer.removed[key])
        if not (group.sound and group.finished):
            return
        for producer in self.producers.values():
            for key, spans in producer.consumed.get(group.group, SpanMap()).items():
                if key not in contested:
                    claimed = spans & _accounted(producer, key)
                    settled = group.acknowledged[key] | group.dead[key] | group.declared_in(key)
                    settled = settled | group.before_join[key] | self._settled_unseen(key, producer)
                    if key[0] in group.joined:
                        settled = settled | self._before(key)
                    self._put("consumed_unsettled", key, claimed - settled)

    def unacknowledged(self) -> None:
        """What was given and is not settled yet."""
        if not self.group.sound:
            return
        for key in _in_order(self.group.handed):
            left = self._handed(key) - self.group.acknowledged[key] - self.group.dead[key]
            self._put("unacknowledged", key, left)
            self._excuse(key, left)

    def report_to(self, report: Report) -> None:
        name, messages = self.group.group, report.messages
        for kind, found in self.found.items():
            if kind in _LOSSES:
                self._report_losses(report, kind, found)
            else:
                _find(report, kind, found, name)
        for why, found in self.open.items():
            _find(report, "undelivered", found, name, why)
        for where, found in self.lost.items():
            self._report_losses(report, "lost", found, where)
        messages.delivered[name] = total(self._handed(key) for key in self.group.handed)
        messages.lost += sum(total(found.values()) for found in self.lost.values())
        messages.lost += self._count("joined_unheard")
        messages.declared_gaps += sum(map(self._count, ("declared_gap", "removed", "discarded")))
        messages.phantom += self._count("phantom")
        messages.duplicates += self.group.duplicates
        messages.out_of_order += self.group.out_of_order
        messages.late += total(
            spans - self.group.handed[key] - beyond(self.producers.get(key[0].producer), key, spans)
            for key, spans in self.group.late.items()
        )
        messages.before_join += total(self.before_join.values())

    def _handed(self, key: Key) -> Spans:
        """What was handed out and the account is about."""
        handed = self.group.handed[key]
        return handed - beyond(self.producers.get(key[0].producer), key, handed)

    def _report_losses(self, report: Report, kind: str, found: SpanMap, where: str = "") -> None:
        """A finding for each piece that got equally far."""
        text = KINDS[kind][1] + (f" ({where} of the stream)" if where else "")
        for key in _in_order(found):
            producer = self.producers[key[0].producer]
            for first, last, hop, sites in pieces(found[key], key, producer, self.group):
                report.findings.append(
                    Finding(kind, text, key[0], self.group.group, epoch=key[1], first=first, last=last,
                            where=where, hop=hop, sites=sites)
                )  # fmt: skip

    def _count(self, kind: str) -> int:
        return total(self.found.get(kind, SpanMap()).values())

    def _put(self, kind: str, key: Key, spans: Spans) -> None:
        for first, last in spans:
            self.found.setdefault(kind, SpanMap()).put(key, first, last)

    def _excuse(self, key: Key, spans: Spans) -> None:
        for first, last in spans:
            self.excused.put(key, first, last)
