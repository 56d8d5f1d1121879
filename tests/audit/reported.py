"""Verdicts and reports of journals in memory, without Spark and without files; and a night with several incidents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.audit.changes import Earlier
from reliamsg.audit.clients import JournalParts, StreamTraces, gather
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Fact, Folder, StreamName
from reliamsg.audit.lineage import Histories
from reliamsg.audit.overview import overview_of
from reliamsg.audit.report import data
from reliamsg.audit.segment import Line, SegmentHeader
from reliamsg.audit.streams import judge
from reliamsg.audit.tasks import Summary, summarize
from reliamsg.audit.verdict import Proof, about_evidence, compose, time_of
from reliamsg.audit.windows import Reach, Scope
from reliamsg.checker import Chain
from reliamsg.checker.journals import Role
from reliamsg.store.journal import JournalRow
from tests.audit.equality import line_of

MINUTE_US = 60_000_000
START_US = 1_795_658_400_000_000
"""2026-11-26 02:00 UTC."""
EPOCH, INCARNATION = 1_795_650_000_000, 0x30C664C568B2744A
MINUTES, PER_MINUTE = 40, 600
SITES = ("dc1", "dc2")
TOPICS = {"orders": ("billing", "archive"), "payments": ("billing", "fraud")}
OUTAGE = (12, 21)
"""The minutes in which dc1 was away."""
CRASH = (25, 29)
"""The minutes in which billing was down."""
LOST = (6_201, 6_320)
"""Of gateway-3's orders."""
REPEATED = (3_001, 3_050)
"""Of gateway-7's payments, at fraud."""
UNPUBLISHED = 240
"""Messages of gateway-8 that no site has confirmed, at the end."""


def reported(
    chains: Sequence[Chain],
    expect: Expect | None = None,
    earlier: Earlier | None = None,
    out: str = "verdict",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of ``verdict.json``, and the report's data."""
    streams: dict[StreamName, dict[str, list[Fact]]] = {}
    journals: list[JournalParts] = []
    for number, chain in enumerate(chains):
        folder = Folder()
        lines = [line_of(row) for row in chain.rows]
        boots: dict[str, list[Line]] = {}
        for line in lines:
            boots.setdefault(line.boot, []).append(line)
        for place, own in enumerate(boots.values()):
            header = SegmentHeader(chain.role, chain.client, own[0].boot, own[0].lsn, own[-1].lsn, len(own))
            folder.add(header, f"{number}-{place}", own)
        name = f"{chain.role}/{chain.client}#{number:04}"
        journals.append(
            JournalParts(
                chain.role, chain.client, name, f"journals/{chain.client}", [folder.part()], [*chain.problems]
            )
        )
        for stream, facts in folder.streams.items():
            streams.setdefault(stream, {})[name] = facts
    rules = expect or Expect(drained=True)
    clients = gather(journals, rules, StreamTraces())
    total = Summary()
    for stream, by_journal in streams.items():
        found = judge(stream, by_journal, clients.context)
        own_summary = summarize(found)
        own_summary.overview = overview_of(found, by_journal, clients.context)
        total.add(own_summary)
    known = Histories(journals, {}, {})
    through = time_of(total, clients, known, rules, time.time_ns() // 1000)
    proof = Proof(through, 0, rules.all_counts, [], Reach(through, total.enqueued, 0, rules.all_counts))
    verdict = compose(total, clients, known, 0, proof, Scope(), ("journals", out))
    verdict["seconds"] = 1.5
    evidence = about_evidence(total, clients, known)
    return verdict, data(total, evidence, clients, journals, verdict, earlier) | {"out": out}


@dataclass
class Diary:
    """A journal, written at given minutes."""

    role: Role
    client: str
    rows: list[JournalRow] = field(default_factory=list)
    boots: int = 0

    def add(
        self, minute: float, kind: str, stream: tuple[str, str] = ("", ""), first: int = 0, last: int = 0, *,
        took: float = 0.0, site: str = "", reason: str = "", latency: dict[int, int] | None = None,
        group: str = "", **detail: Any,
    ) -> None:  # fmt: skip
        """Add a row that grew for `took` minutes. A row about messages has the right digest sum."""
        if kind == "opened":
            self.boots += 1
        at = START_US + round(minute * MINUTE_US)
        about = bool(stream[1])
        owned = about or self.role == "producer"
        summed = kind in ("enqueued", "delivered", "redelivered")
        self.rows.append(
            JournalRow(
                len(self.rows) + 1, f"{self.client}-{self.boots}", kind, at, at + round(took * MINUTE_US),
                at - START_US,
                *stream, 0, EPOCH if owned else 0, INCARNATION if owned else 0, first, last, site,
                group or (self.client if self.role == "group" else ""), reason,
                sum(range(first, last + 1)) * 7919 % 2**64 if summed else None, latency, detail or None,
            )
        )  # fmt: skip

    def chain(self) -> Chain:
        return Chain(self.role, self.client, f"{self.client}.db", self.rows, to_the_end=False)


def night(producers: int = 9, *, lost: bool = True) -> list[Chain]:
    """Forty minutes of a fleet: dc1 is away for nine of them and loses what it had confirmed; billing is killed and
    starts again; fraud gets messages twice; gateway-8 is away at the end; and there is no journal of reports, which
    gateway-8 names. Without `lost`, dc1 loses nothing."""
    names = {f"gateway-{n}": "payments" if n % 3 == 1 else "orders" for n in range(1, producers + 1)}
    chains = [_producer(name, topic, lost) for name, topic in names.items()]
    return chains + [_group(group, names, lost) for group in ("billing", "archive", "fraud")]


def _producer(name: str, topic: str, lost: bool) -> Chain:
    diary, stream = Diary("producer", name), (name, topic)
    late = name == "gateway-8"
    groups = {topic: [*TOPICS[topic], *(["reports"] if late else [])]}
    diary.add(0, "opened", groups=groups, sites=list(SITES), confirm="any")
    for site in SITES:
        diary.add(0.01, "connected", site=site)
    diary.add(0.02, "epoch", stream, prev=None)
    for minute in range(MINUTES):
        first, last = minute * PER_MINUTE + 1, (minute + 1) * PER_MINUTE
        if minute == OUTAGE[0]:
            diary.add(minute, "disconnected", site="dc1")
        if minute == OUTAGE[1]:
            diary.add(minute, "connected", site="dc1")
        diary.add(minute, "enqueued", stream, first, last, took=1, latency={28: 500, 36: 95, 44: 5})
        if late and minute >= MINUTES - 1:
            last -= UNPUBLISHED
        for site in SITES:
            away = site == "dc1" and OUTAGE[0] <= minute < OUTAGE[1]
            if not away and not (site == "dc2" and lost and _touches(name, first, last)):
                slow = {52: 540, 60: 50, 72: 10} if site == "dc2" else {44: 560, 52: 38, 64: 2}
                diary.add(minute + 0.01, "confirmed", stream, first, last, took=1, site=site, latency=slow)
        diary.add(minute + 0.02, "published", stream, first, last, took=1)
    if not late:
        diary.add(MINUTES + 2, "closed")
    return diary.chain()


def _touches(name: str, first: int, last: int) -> bool:
    return name == "gateway-3" and first <= LOST[1] and LOST[0] <= last


def _group(group: str, producers: dict[str, str], lost: bool) -> Chain:
    diary = Diary("group", group)
    topics = [topic for topic, groups in TOPICS.items() if group in groups]
    opened: dict[str, Any] = {
        "topics": topics,
        "sites": list(SITES),
        "begin": "earliest",
        "gap_timeout": 30.0,
    }
    diary.add(0, "opened", inbox=f"{group}-inbox", **opened)
    for site in SITES:
        diary.add(0.02, "connected", site=site)
    streams = [(name, topic) for name, topic in producers.items() if topic in topics]
    for stream in streams:
        diary.add(0.03, "joined", stream, 1)
    again: list[tuple[tuple[str, str], int]] = []
    for minute in range(MINUTES):
        if minute == OUTAGE[0]:
            diary.add(minute, "disconnected", site="dc1")
        if minute == OUTAGE[1]:
            diary.add(minute, "connected", site="dc1")
        if group == "billing" and minute == CRASH[1]:
            diary.add(minute, "opened", inbox=f"{group}-inbox", **opened)
            for site in SITES:
                diary.add(minute + 0.01, "connected", site=site)
            for stream, first in again:
                diary.add(minute + 0.02, "redelivered", stream, first, first + 99, took=0.3)
                diary.add(
                    minute + 0.03, "acknowledged", stream, first, first + 99, took=0.3, latency={100: 100}
                )
            for stream in streams:
                for missed in range(*CRASH):
                    _read(diary, minute + 0.3, stream, missed, lost)
        if group == "billing" and CRASH[0] <= minute < CRASH[1]:
            continue
        for stream in streams:
            _read(
                diary,
                minute + 0.05,
                stream,
                minute,
                lost,
                again if minute == CRASH[0] - 1 and group == "billing" else None,
            )
    if lost:
        heard = {name: [60, f"{INCARNATION:016x}"] for name in producers}
        diary.add(MINUTES + 1, "drained", site="dc1", heard=heard)
    diary.add(MINUTES + 3, "closed")
    return diary.chain()


def _read(
    diary: Diary, at: float, stream: tuple[str, str], minute: int, lost: bool,
    again: list[tuple[tuple[str, str], int]] | None = None,
) -> None:  # fmt: skip
    """What a group journals of one minute's messages. `again`: the last hundred are left unacknowledged, and added."""
    first, last = minute * PER_MINUTE + 1, (minute + 1) * PER_MINUTE
    if stream[0] == "gateway-8" and minute >= MINUTES - 1:
        last -= UNPUBLISHED
    latency = {"billing": {64: 300, 72: 250, 80: 50}, "archive": {48: 500, 60: 100}}.get(
        diary.client, {56: 580, 84: 20}
    )
    spans = [(first, last)]
    if lost and _touches(stream[0], first, last):
        spans = [span for span in ((first, LOST[0] - 1), (LOST[1] + 1, last)) if span[0] <= span[1]]
        gap = (max(first, LOST[0]), min(last, LOST[1]))
    for site in SITES:
        away = site == "dc1" and OUTAGE[0] <= minute < OUTAGE[1]
        if not away and not (site == "dc2" and lost and _touches(stream[0], first, last)):
            for span in spans:
                diary.add(at, "received", stream, *span, took=1, site=site)
    for place, span in enumerate(spans):
        if place and lost and _touches(stream[0], first, last):
            diary.add(at + 0.5, "declared", stream, *gap, reason="expired", elapsed=30.0)
        diary.add(at + 0.01, "delivered", stream, *span, took=1, latency=latency)
        if diary.client == "fraud" and stream[0] == "gateway-7" and span[0] <= REPEATED[0] <= span[1]:
            diary.add(at + 0.9, "delivered", stream, *REPEATED, took=0.05)
        end = span[1] - (100 if again is not None else 0)
        total = sum(latency.values()) if span == (first, last) else 0
        diary.add(
            at + 0.02, "acknowledged", stream, span[0], end, took=1,
            latency={bucket + 20: count for bucket, count in latency.items()} if total else None,
        )  # fmt: skip
    if again is not None:
        again.append((stream, last - 99))


def write_report(path: Path, verdict: dict[str, Any], sums: dict[str, Any]) -> Path:
    """Write ``report.html`` there, and return the path."""
    from reliamsg.audit.report import write

    write(path, verdict, sums)
    return path
