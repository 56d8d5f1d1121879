"""Checks the applications' own logs message by message, and compares the journals with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from reliamsg.checker.applog import ApplicationLog, AppRecord
from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import KINDS, Counts, Finding
from reliamsg.checker.spans import ENDLESS, Key, SpanMap, Spans, total
from reliamsg.message import Stream

__all__ = ["Applications", "LogCheck", "Published", "check_applications", "gather_applications"]

Place = tuple[int, int]
"""Epoch and sequence number; for clients without epochs, -1 and the application's own number."""

_RANK = {"invoked": 0, "indeterminate": 1, "failed": 1, "ok": 2}


@dataclass(frozen=True)
class Published:
    """The messages published to one stream, according to the publisher's log."""

    attempts: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By the application's number, the outcome and the body's SHA-256."""
    content: dict[Place, str] = field(default_factory=dict)
    """By place, if it is known, the body's SHA-256."""

    @cached_property
    def outcomes(self) -> dict[str, set[str]]:
        """By SHA-256, the outcomes of publishing it."""
        found: dict[str, set[str]] = {}
        for outcome, digest in self.attempts.values():
            found.setdefault(digest, set()).add(outcome)
        return found

    @cached_property
    def numbers(self) -> dict[str, int]:
        """By SHA-256, the application's first number."""
        found: dict[str, int] = {}
        for number, (_, digest) in self.attempts.items():
            found.setdefault(digest, number)
        return found

    def add(self, record: AppRecord) -> None:
        """Add a ``publish`` record."""
        if record.n is not None:
            old = self.attempts.get(record.n)
            if old is None or _RANK.get(record.outcome, 0) >= _RANK.get(old[0], 0):
                self.attempts[record.n] = (record.outcome, record.sha256)
        place = _place(record) if record.outcome == "ok" else None
        if place is not None:
            self.content[place] = record.sha256

    def in_final_epochs(self, stream: Stream, facts: ProducerFacts) -> Published:
        """The same, by the epochs that messages are in finally."""
        content = {
            (facts.final_epoch(stream, epoch, seq), seq): digest
            for (epoch, seq), digest in self.content.items()
        }
        return Published(self.attempts, content)


@dataclass(frozen=True)
class Applications:
    """All logs of a run."""

    published: dict[Stream, Published] = field(default_factory=dict)
    delivered: dict[tuple[str, Stream], list[AppRecord]] = field(default_factory=dict)
    """By group and stream, the records of deliveries, acknowledgements and gaps, in their order."""
    publishers: set[str] = field(default_factory=set)
    groups: dict[str, set[str]] = field(default_factory=dict)
    """By group with a log, the topics that it reads."""
    damaged: list[Finding] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of applications with a log."""
        return len(self.publishers) + len(self.groups)

    def compared(self, group: str, key: Key) -> Spans:
        """The messages of a stream's epoch whose content the logs of both sides record."""
        stream, epoch = key
        published, delivered = self.published.get(stream), self.delivered.get((group, stream))
        if published is None or delivered is None:
            return Spans()
        # The hash identifies a body that some call published, even if a crash kept its place out of the log.
        seqs = sorted(
            r.seq
            for r in delivered
            if r.op == "delivered" and r.epoch == epoch and r.seq is not None
            and (r.sha256 in published.outcomes or (epoch, r.seq) in published.content)
        )  # fmt: skip
        return Spans((seq, seq) for seq in seqs)

    def add(self, record: AppRecord) -> None:
        """Add a record of any log."""
        stream = Stream(record.producer, record.topic, record.partition)
        if record.op == "opened":
            if record.group:
                self.groups.setdefault(record.group, set()).update(record.topics)
            elif record.producer:
                self.publishers.add(record.producer)
        elif record.op == "publish":
            self.publishers.add(record.producer)
            self.published.setdefault(stream, Published()).add(record)
        else:
            self.groups.setdefault(record.group, set()).add(record.topic)
            self.delivered.setdefault((record.group, stream), []).append(record)

    def in_final_epochs(self, producers: Mapping[str, ProducerFacts]) -> Applications:
        """The same, by the epochs that messages are in finally: they may be moved after publishing has returned, and
        are delivered in the later epoch."""
        published = {
            stream: own.in_final_epochs(stream, producers[stream.producer])
            if stream.producer in producers and producers[stream.producer].moved_to
            else own
            for stream, own in self.published.items()
        }
        return replace(self, published=published)

    def published_to(self, stream: Stream) -> Published | None:
        """What its publisher's log has of a stream; None if there is no such log."""
        published = self.published.get(stream)
        if published is None and stream.producer in self.publishers:
            return Published()
        return published


@dataclass(frozen=True)
class LogCheck:
    """What the applications' logs show."""

    findings: list[Finding]
    counts: Counts


def gather_applications(logs: Iterable[ApplicationLog]) -> Applications:
    """Sort the records of all logs by stream and group."""
    apps = Applications()
    for log in sorted(logs, key=lambda log: (log.records[0].t if log.records else 0.0, log.name)):
        if log.damaged:
            lines = ", ".join(map(str, log.damaged[:5]))
            apps.damaged.append(
                Finding("broken", f"{log.name}: lines can't be read: {lines}", source="application")
            )
        for record in log.records:
            apps.add(record)
    return apps


def _place(record: AppRecord) -> Place | None:
    if record.epoch is not None and record.seq is not None:
        return record.epoch, record.seq
    return None if record.n is None else (-1, record.n)


class _StreamCheck:
    """One stream, as one group's application got it."""

    def __init__(self, group: str, stream: Stream, published: Published | None) -> None:
        self.group = group
        self.stream = stream
        self.published = published
        self.seen = SpanMap()
        self.gaps = SpanMap()
        self.acknowledged: dict[Place, bool] = {}
        """Places that were acknowledged and not delivered again since; whether the acknowledgement was durable."""
        self.newest: Place | None = None
        self.wrong: dict[str, SpanMap] = {}
        self.late = 0

    def run(self, records: Iterable[AppRecord]) -> None:
        for record in records:
            if record.op == "gap":
                if record.epoch is not None and record.first is not None:
                    last = record.last if record.last is not None else ENDLESS - 1
                    self.gaps.put((self.stream, record.epoch), record.first, last)
                continue
            place = self._identify(record)
            if place is None:
                continue
            if record.op == "delivered":
                self._delivered(record, place)
            elif record.op == "acknowledged" and not record.replayed:
                if place in self.acknowledged:
                    self._find("acknowledged_twice", place)
                elif place[1] not in self.seen[self.stream, place[0]]:
                    self._find("acknowledged_undelivered", place)
                self.acknowledged[place] = record.durable
            elif record.op == "late":
                self.late += 1

    def _identify(self, record: AppRecord) -> Place | None:
        """The place of a record. A body without a place is identified by its content."""
        place = _place(record)
        if place is None and self.published is not None and record.sha256 in self.published.numbers:
            place = (-1, self.published.numbers[record.sha256])
        return place

    def _delivered(self, record: AppRecord, place: Place) -> None:
        key = (self.stream, place[0])
        again = place[1] in self.seen[key]
        durable = self.acknowledged.pop(place, False)
        if record.replayed:
            pass
        elif again and not record.redelivered:
            self._find("duplicate", place)
        elif durable:
            self._find("redelivered_after_ack", place)
        elif not again and place[1] in self.gaps[key]:
            self._find("delivered_after_gap", place)
        elif self.newest is not None and place < self.newest and not (record.redelivered or again):
            self._find("out_of_order", place)
        if not record.replayed and (self.newest is None or place > self.newest):
            self.newest = place
        self.seen.put(key, place[1], place[1])
        self._check_content(record, place)

    def _check_content(self, record: AppRecord, place: Place) -> None:
        if self.published is None or not record.sha256:
            return
        original = self.published.content.get(place)
        if original is None and place[0] == -1:
            original = self.published.attempts.get(place[1], ("", None))[1]
        outcomes = self.published.outcomes.get(record.sha256)
        if original is not None and original != record.sha256:
            self._find("corrupt", place)
        elif original is None and outcomes is None:
            self._find("phantom", place)
        elif outcomes == {"failed"}:
            self._find("delivered_after_failed", place)

    def _find(self, kind: str, place: Place) -> None:
        self.wrong.setdefault(kind, SpanMap()).put((self.stream, place[0]), place[1], place[1])

    def findings(self) -> list[Finding]:
        return [
            _finding(kind, self.stream, self.group, key[1], first, last)
            for kind, found in self.wrong.items()
            for key, spans in found.items()
            for first, last in spans
        ]

    def counts(self) -> Counts:
        """The numbers of messages, without those that are lost."""
        return Counts(
            delivered={self.group: total(self.seen.values())},
            declared_gaps=sum(s.count for s in self.gaps.values() if s.highest < ENDLESS - 1),
            duplicates=self._count("duplicate"),
            out_of_order=self._count("out_of_order"),
            phantom=self._count("phantom"),
            late=self.late,
        )

    def _count(self, kind: str) -> int:
        return total(self.wrong.get(kind, SpanMap()).values())


def check_applications(
    apps: Applications,
    producers: Mapping[str, ProducerFacts],
    groups: Mapping[str, GroupFacts],
    excused: Mapping[str, SpanMap],
    drained: bool,
) -> LogCheck:
    """Check all logs. `apps` is by final epochs. `excused`: by group, what its journals explain otherwise, or leave
    open."""
    findings = list(apps.damaged)
    counts = Counts(
        enqueued=sum(
            sum(outcome == "ok" for outcome, _ in published.attempts.values())
            for published in apps.published.values()
        )
    )
    for group, topics in sorted(apps.groups.items()):
        counts += Counts(delivered={group: 0})
        streams = {stream for name, stream in apps.delivered if name == group}
        streams |= {stream for stream in apps.published if stream.topic in topics}
        for stream in sorted(streams):
            check = _StreamCheck(group, stream, apps.published_to(stream))
            check.run(apps.delivered.get((group, stream), ()))
            lost = _lost(check, excused.get(group, SpanMap()), drained)
            findings += [*check.findings(), *lost]
            counts += check.counts() + Counts(lost=sum(f.count for f in lost if f.kind == "lost"))
            if group in groups:
                findings += _against_group_journal(check, groups[group])
    findings += _against_outboxes(apps, producers)
    return LogCheck(findings, counts)


def _lost(check: _StreamCheck, excused: SpanMap, drained: bool) -> list[Finding]:
    """Messages that were certainly published, and neither delivered nor reported as a gap."""
    if check.published is None:
        return []
    certain = SpanMap()
    for epoch, number in sorted(_certain(check.published)):
        certain.put((check.stream, epoch), number, number)
    reached = check.newest or (-2, 0)
    seen_any = any(check.seen.values())
    lowest = min((key[1], spans.lowest) for key, spans in check.seen.items()) if seen_any else (ENDLESS, 0)
    findings: list[Finding] = []
    for key, spans in certain.items():
        for first, last in spans - check.seen[key] - check.gaps[key] - excused[key]:
            tail = (key[1], first) > reached
            where = "tail" if tail else "prefix" if (key[1], last) < lowest else "middle"
            kind = "lost" if drained or not tail else "undelivered"
            findings.append(_finding(kind, check.stream, check.group, key[1], first, last, where))
    return findings


def _certain(published: Published) -> Iterable[Place]:
    """The places of messages for which publishing returned."""
    if published.content:
        return published.content
    return [(-1, n) for n, (outcome, _) in published.attempts.items() if outcome == "ok"]


def _against_group_journal(check: _StreamCheck, facts: GroupFacts) -> list[Finding]:
    """The application received everything that the journal reports as acknowledged, and nothing that is not in the
    journal."""
    findings: list[Finding] = []
    keys = {key for key in (*check.seen, *facts.acknowledged) if key[0] == check.stream and key[1] >= 0}
    for key in sorted(keys, key=lambda key: key[1]):
        if facts.sound and facts.finished:
            for first, last in check.seen[key] - facts.delivered[key] - facts.dead[key]:
                findings.append(_finding("unjournalled", check.stream, check.group, key[1], first, last))
        for first, last in facts.acknowledged[key] - check.seen[key]:
            findings.append(_finding("unseen", check.stream, check.group, key[1], first, last))
    return findings


def _against_outboxes(apps: Applications, producers: Mapping[str, ProducerFacts]) -> list[Finding]:
    """Publishing returned only for messages that are in the outbox."""
    findings: list[Finding] = []
    for stream, published in sorted(apps.published.items()):
        facts = producers.get(stream.producer)
        if facts is None or not facts.conclusive:
            continue
        places = SpanMap()
        for epoch, seq in sorted(place for place in published.content if place[0] >= 0):
            places.put((stream, epoch), seq, seq)
        for key, spans in places.items():
            for first, last in spans - facts.enqueued[key]:
                findings.append(_finding("not_durable", stream, "", key[1], first, last))
    return findings


def _finding(
    kind: str, stream: Stream, group: str, epoch: int, first: int, last: int, where: str = ""
) -> Finding:
    text = KINDS[kind][1] + (f" ({where} of the stream)" if where else "")
    return Finding(kind, text, stream, group, epoch=None if epoch < 0 else epoch, first=first, last=last,
                   where=where, source="application")  # fmt: skip
