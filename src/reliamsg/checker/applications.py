"""Judging what the applications themselves logged, message by message, and holding the journals against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from reliamsg.checker.applog import ApplicationLog, AppRecord
from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import ENDLESS, Key, SpanMap, Spans
from reliamsg.message import Stream

__all__ = ["Applications", "check_applications", "gather_applications"]

Place = tuple[int, int]
"""(epoch, sequence number), or (-1, the application's own number) for clients without epochs."""

_RANK = {"invoked": 0, "indeterminate": 1, "failed": 1, "ok": 2}


@dataclass
class _Published:
    """What was published to one stream, in the publisher's words."""

    attempts: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The application's number → (outcome, SHA-256)."""
    content: dict[Place, str] = field(default_factory=dict)
    """Where identities are known: the body's SHA-256."""
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    """For each SHA-256 how publishing it turned out."""
    numbers: dict[str, int] = field(default_factory=dict)
    """For each SHA-256 the application's number."""

    def finish(self) -> None:
        for n, (outcome, digest) in self.attempts.items():
            self.outcomes.setdefault(digest, set()).add(outcome)
            self.numbers.setdefault(digest, n)


@dataclass
class _Given:
    """What a group's application was given of one stream, in its order."""

    records: list[AppRecord] = field(default_factory=list)


@dataclass
class Applications:
    """All logs of a run."""

    published: dict[Stream, _Published] = field(default_factory=dict)
    given: dict[tuple[str, Stream], _Given] = field(default_factory=dict)
    publishers: set[str] = field(default_factory=set)
    groups: dict[str, set[str]] = field(default_factory=dict)
    """For each group with a log, the topics that it reads."""
    damaged: list[Finding] = field(default_factory=list)
    records: int = 0

    def compared(self, group: str, key: Key) -> Spans:
        """What the logs of both sides name the content of."""
        stream, epoch = key
        published, given = self.published.get(stream), self.given.get((group, stream))
        if published is None or given is None:
            return Spans()
        # A body that some call published is known by its hash, even where a crash kept its identity from the log.
        seqs = sorted(
            r.seq
            for r in given.records
            if r.op == "delivered" and r.epoch == epoch and r.seq is not None
            and (r.sha256 in published.outcomes or (epoch, r.seq) in published.content)
        )  # fmt: skip
        return Spans((seq, seq) for seq in seqs)


@dataclass
class _Counts:
    """Messages, counted once for each group."""

    enqueued: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    phantom: int = 0
    late: int = 0
    declared_gaps: int = 0


def gather_applications(logs: Iterable[ApplicationLog]) -> Applications:
    """Sort the records of all logs by stream and group."""
    apps = Applications()
    for log in sorted(logs, key=lambda log: (log.records[0].t if log.records else 0.0, log.name)):
        apps.records += len(log.records)
        if log.damaged:
            lines = ", ".join(map(str, log.damaged[:5]))
            apps.damaged.append(
                Finding("broken", f"{log.name}: lines can't be read: {lines}", source="application")
            )
        for record in log.records:
            _sort_in(apps, record)
    for published in apps.published.values():
        published.finish()
    return apps


def _sort_in(apps: Applications, record: AppRecord) -> None:
    stream = Stream(record.producer, record.topic, record.partition)
    if record.op == "opened":
        if record.group:
            apps.groups.setdefault(record.group, set()).update(record.topics)
        elif record.producer:
            apps.publishers.add(record.producer)
    elif record.op == "publish":
        apps.publishers.add(record.producer)
        published = apps.published.setdefault(stream, _Published())
        if record.n is not None:
            old = published.attempts.get(record.n)
            if old is None or _RANK.get(record.outcome, 0) >= _RANK.get(old[0], 0):
                published.attempts[record.n] = (record.outcome, record.sha256)
        if record.outcome == "ok":
            place = _place(record)
            if place is not None:
                published.content[place] = record.sha256
    else:
        apps.groups.setdefault(record.group, set()).add(record.topic)
        apps.given.setdefault((record.group, stream), _Given()).records.append(record)


def _place(record: AppRecord) -> Place | None:
    if record.epoch is not None and record.seq is not None:
        return record.epoch, record.seq
    return None if record.n is None else (-1, record.n)


class _StreamCheck:
    """One stream as one group's application saw it."""

    def __init__(self, group: str, stream: Stream, published: _Published | None) -> None:
        self.group = group
        self.stream = stream
        self.published = published
        self.seen = SpanMap()
        self.gaps = SpanMap()
        self.acknowledged: dict[Place, bool] = {}
        """Places that were acknowledged and not given again since; whether that was durable."""
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
        """Where a record belongs; a body without identity is known by its content."""
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

    def count(self, kind: str) -> int:
        return sum(spans.count for spans in self.wrong.get(kind, SpanMap()).values())


def check_applications(
    apps: Applications,
    producers: dict[str, ProducerFacts],
    groups: dict[str, GroupFacts],
    excused: dict[str, SpanMap],
    drained: bool,
) -> tuple[list[Finding], _Counts]:
    """Judge all logs. `excused` says, for each group, what its journals account for otherwise, or leave open."""
    _call_as_now(apps, producers)
    findings = list(apps.damaged)
    counts = _Counts()
    counts.enqueued = sum(
        sum(outcome == "ok" for outcome, _ in published.attempts.values())
        for published in apps.published.values()
    )
    for group, topics in sorted(apps.groups.items()):
        counts.delivered[group] = 0
        streams = {stream for name, stream in apps.given if name == group}
        streams |= {stream for stream in apps.published if stream.topic in topics}
        for stream in sorted(streams):
            check = _StreamCheck(group, stream, _published_for(apps, stream))
            check.run(apps.given.get((group, stream), _Given()).records)
            findings += check.findings()
            counts.delivered[group] += sum(spans.count for spans in check.seen.values())
            counts.duplicates += check.count("duplicate")
            counts.out_of_order += check.count("out_of_order")
            counts.phantom += check.count("phantom")
            counts.late += check.late
            counts.declared_gaps += sum(s.count for s in check.gaps.values() if s.highest < ENDLESS - 1)
            lost = _lost(check, excused.get(group, SpanMap()), drained)
            counts.lost += sum(f.count for f in lost if f.kind == "lost")
            findings += lost
            if group in groups:
                findings += _against_group_journal(check, groups[group])
    findings += _against_outboxes(apps, producers)
    return findings, counts


def _call_as_now(apps: Applications, producers: dict[str, ProducerFacts]) -> None:
    """Messages may get another epoch after publishing has returned, and are delivered under that."""
    for stream, published in apps.published.items():
        facts = producers.get(stream.producer)
        if facts is not None and facts.renamed:
            published.content = {
                (facts.epoch_now(stream, epoch, seq), seq): content
                for (epoch, seq), content in published.content.items()
            }


def _published_for(apps: Applications, stream: Stream) -> _Published | None:
    """What its publisher says of a stream: nothing at all is known only where there is no log of it."""
    published = apps.published.get(stream)
    if published is None and stream.producer in apps.publishers:
        return _Published()
    return published


def _lost(check: _StreamCheck, excused: SpanMap, drained: bool) -> list[Finding]:
    """What was published for certain, and was neither given nor named as a gap."""
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


def _certain(published: _Published) -> Iterable[Place]:
    """Where messages are that publishing returned for."""
    if published.content:
        return published.content
    return [(-1, n) for n, (outcome, _) in published.attempts.items() if outcome == "ok"]


def _against_group_journal(check: _StreamCheck, facts: GroupFacts) -> list[Finding]:
    """The application was given all that the journal calls acknowledged, and nothing that it does not name."""
    findings: list[Finding] = []
    keys = {key for key in (*check.seen, *facts.acknowledged) if key[0] == check.stream and key[1] >= 0}
    for key in sorted(keys, key=lambda key: key[1]):
        if facts.sound and facts.finished:
            for first, last in check.seen[key] - facts.handed[key] - facts.dead[key]:
                findings.append(_finding("unjournalled", check.stream, check.group, key[1], first, last))
        for first, last in facts.acknowledged[key] - check.seen[key]:
            findings.append(_finding("unseen", check.stream, check.group, key[1], first, last))
    return findings


def _against_outboxes(apps: Applications, producers: dict[str, ProducerFacts]) -> list[Finding]:
    """Publishing returned only for what the outbox has."""
    findings: list[Finding] = []
    for stream, published in sorted(apps.published.items()):
        facts = producers.get(stream.producer)
        if facts is None or not facts.told:
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
