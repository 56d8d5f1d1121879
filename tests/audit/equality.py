"""The judgements of the plain checker and of the audit on the same journals, in a common form for comparison."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from reliamsg.audit.clients import Clients, JournalParts, gather
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.fold import Fact, Folder, Part, StreamName
from reliamsg.audit.joining import join_facts, join_parts, seam_of
from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.numbers import History, read_history
from reliamsg.audit.offsets import Offsets, add_offsets, compare_clocks
from reliamsg.audit.segment import Line, SegmentHeader
from reliamsg.audit.spans import LAST
from reliamsg.audit.streams import Judged, judge
from reliamsg.audit.tasks import partition_of, trace_streams
from reliamsg.audit.through import (
    DEMANDS,
    Open,
    Through,
    clients_as_dicts,
    demands_at,
    enqueued_by,
    find_through,
)
from reliamsg.audit.verdict import conclude, quantiles
from reliamsg.checker import Expect, Report, check
from reliamsg.checker.journals import Chain, mark_abandoned, merge_copies
from reliamsg.checker.spans import Spans
from reliamsg.store.journal import JournalRow

__all__ = ["EVIDENCE", "Outcome", "Place", "by_audit", "differences", "judged_streams", "plain", "shared"]

Place = tuple[str, str, str, str, str, int, str]
"""Kind, producer, topic, group, site, epoch; for losses: place, hop and sites; for open messages: the reason; for
missing evidence: its text. Absent values are empty or 0."""
EVIDENCE = frozenset({"missing", "broken", "unclosed", "ends_early", "mixed_clock", "not_retired", "skewed"})
"""Segments and expectations, and clients without a journal."""
_OPEN = frozenset({"pending", "undelivered"})
_DOUBLE = re.compile(r"(\S+) (?:has incarnations|was fenced)")


@dataclass
class Outcome:
    """A judgement. Counts are by name and group (``""``: all groups), sites' counts by site and name."""

    found: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """The ranges, merged into as few as possible."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    through: dict[str, object] = field(default_factory=dict)
    """The time through which everything is proven, the clients, and the verdict."""
    sites: dict[str, dict[str, int]] = field(default_factory=dict)
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def kinds(self) -> set[str]:
        return {place[0] for place in self.found}

    def verdict(self) -> str:
        """The verdict, by the job's own table of kinds."""
        severities = {KINDS[kind][0] for kind in self.kinds()} - {"remark"}
        return next((severity for severity in PRECEDENCE if severity in severities), "complete")


def differences(one: Outcome, other: Outcome) -> list[tuple[str, object, object, object]]:
    """The differences between two judgements: name, key, and either side's value."""
    return [
        (name, key, mine.get(key), theirs.get(key))
        for name in ("found", "counts", "through", "sites", "latency")
        for mine, theirs in [(getattr(one, name), getattr(other, name))]
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]


def plain(chains: Sequence[Chain], expect: Expect | None = None, *, evidence: bool = False) -> Outcome:
    """The plain checker's judgement; by default, of a run that is over. `evidence`: include that about the evidence."""
    return of_report(check(chains, expect=expect or Expect(drained=True)), evidence=evidence)


def of_report(report: Report, *, evidence: bool = False) -> Outcome:
    """A report of the plain checker in the common form."""
    found: dict[Place, Spans] = {}
    for each in report.findings:
        if each.kind in EVIDENCE - {"missing"} and not evidence:
            continue
        producer, topic, _ = each.stream or (_producer(each.text), "", 0)
        loss = " ".join((each.where, each.hop, *each.sites)).strip() or _why(each.kind, each.text)
        place = (each.kind, producer, topic, each.group, each.site, each.epoch or 0, loss)
        _add(found, place, each.first, each.last)
    messages = report.messages
    counts = {("delivered", group): count for group, count in messages.delivered.items()}
    for name, value in vars(messages).items():
        if name != "delivered":
            counts[name, ""] = value
    return Outcome(
        {place: list(ranges) for place, ranges in found.items()},
        {key: count for key, count in counts.items() if count},
        {
            "us": report.through.us,
            "clients": [each.as_dict() for each in report.through.chains[:1000]],
            "verdict": report.verdict,
        },
        {site: dict(vars(each)) for site, each in report.sites.items()},
        report.latency,
    )


def _why(kind: str, text: str) -> str:
    if kind == "missing":
        return text
    return text.partition(KINDS[kind][1])[2].removeprefix(": ") if kind in _OPEN else ""


def _producer(text: str | None) -> str:
    """For an epoch with two histories, and for a fence, only the text names the client."""
    named = _DOUBLE.search(text or "")
    return named[1] if named else ""


def _add(found: dict[Place, Spans], place: Place, first: int | None, last: int | None) -> None:
    ranges = found.setdefault(place, Spans())
    if first is not None and last is not None:
        ranges.add(first, min(last, LAST))


def by_audit(
    chains: Sequence[Chain], *, drained: bool = True, until_us: int | None = None, now_us: int | None = None,
    seed: int = 0, max_skew: float | None = None,
) -> Outcome:  # fmt: skip
    """The audit's judgement, in this process and without files; damaged segments are tested elsewhere.

    `seed`: the journals are divided into segments, and these into parts, at random.
    """
    expect = AuditExpect(drained=drained, until_us=until_us, now_us=now_us)
    known = mark_abandoned(merge_copies(chains))
    clients, streams, histories = judged_streams(known, expect, seed)
    offsets: Offsets = {}
    for judged in streams:
        add_offsets(offsets, judged.offsets)
    clients = compare_clocks(clients, offsets, max_skew)
    through, proven, verdict = _conclude(clients, streams, histories, expect)
    found: dict[Place, Spans] = {}
    for each in [*clients.findings, *(each for judged in streams for each in judged.findings)]:
        if each.kind in EVIDENCE - {"missing"}:
            continue
        producer, topic, _ = each.stream or (_producer(each.text), "", 0)
        loss = " ".join((each.place, each.hop, *each.sites)).strip()
        if each.kind in _OPEN | {"missing"}:
            loss = each.text
        _add(
            found,
            (each.kind, producer, topic, each.group, each.site, each.epoch or 0, loss),
            each.first,
            each.last,
        )
    for line in {line for judged in streams for line in judged.lacking}:
        _add(found, ("missing", "", "", "", "", 0, line), None, None)
    return Outcome(
        {place: list(ranges) for place, ranges in found.items()},
        _counts(streams) | ({("proven", ""): proven} if proven else {}),
        {"us": through.us, "clients": clients_as_dicts(clients.proven), "verdict": verdict},
        _sites(streams),
        quantiles(clients.latencies),
    )


def judged_streams(
    chains: Sequence[Chain], expect: AuditExpect, seed: int = 0
) -> tuple[Clients, list[Judged], list[list[History]]]:
    """The audit's judgement of clients and streams, by the functions that Spark's tasks call."""
    dice = random.Random(seed)
    journals, records = [], []
    for number, chain in enumerate(chains):
        name = f"{chain.role}/{chain.client}#{number:05}"
        folded = _joined([(each.part(), each.streams) for each in _folded(chain, dice)], dice)
        parts = [part for part, _ in folded]
        journals.append(
            JournalParts(
                chain.role, chain.client, name, chain.source, parts, [*chain.problems, *chain.further]
            )
        )
        for place, (_, facts_of) in enumerate(folded):
            records += [
                ((stream, number * 1000 + place), msgspec.msgpack.encode(facts))
                for stream, facts in facts_of.items()
            ]
    numbers = {
        journal.name: [number * 1000 + place for place in range(len(journal.parts))]
        for number, journal in enumerate(journals)
    }
    records.sort(key=lambda record: (partition_of(record[0]), record[0]))
    traces = trace_streams(records, numbers, {journal.name: journal.sketch() for journal in journals})
    clients = gather(journals, expect, traces)
    by_stream: dict[StreamName, dict[str, list[Fact]]] = {}
    for (stream, number), data in sorted(records):
        own = by_stream.setdefault(stream, {}).setdefault(journals[number // 1000].name, [])
        own += msgspec.msgpack.decode(data, type=list[Fact])
    known = clients.context.journals
    histories = [
        [
            read_history(known[name], stream, facts)
            for name, facts in own.items()
            if known[name].role == "producer"
        ]
        for stream, own in by_stream.items()
    ]
    return clients, [judge(stream, facts, clients.context) for stream, facts in by_stream.items()], histories


def _conclude(
    clients: Clients, streams: Sequence[Judged], histories: Sequence[Sequence[History]], expect: AuditExpect
) -> tuple[Through, int, str]:
    """The time through which everything is proven, the messages enqueued by then, and the verdict."""
    kinds = {each.kind for each in clients.findings} | {
        each.kind for judged in streams for each in judged.findings
    }
    if any(judged.lacking for judged in streams):
        kinds.add("missing")
    now_us = time.time_ns() // 1000 if expect.now_us is None else expect.now_us
    if expect.until_us is not None:
        kinds.update(each.kind for each in demands_at(expect.until_us, clients.proven, now_us))
    left = Open()
    for judged in streams:
        left.add(judged.open)
    evidence = {each.kind for each in clients.findings if KINDS[each.kind][0] == "unknown"} - DEMANDS
    if evidence or left.undated or any(judged.lacking for judged in streams):
        through = Through(None, [])
    else:
        through = find_through(clients.proven, left.first, expect.until_us, now_us)
    us = through.us
    proven = 0 if us is None else sum(enqueued_by([us], own, expect.until_us)[0] for own in histories)
    enqueued = sum(account.enqueued for judged in streams for account in judged.accounts.values())
    return through, proven, conclude(kinds, through, enqueued, proven, expect.all_counts)


def _joined(
    folded: Sequence[tuple[Part, dict[StreamName, list[Fact]]]], dice: random.Random
) -> list[tuple[Part, dict[StreamName, list[Fact]]]]:
    """Some of the parts that follow each other, joined."""
    found: list[tuple[Part, dict[StreamName, list[Fact]]]] = []
    for part, streams in folded:
        before = found[-1][0] if found else None
        if before is None or before.last_lsn + 1 != part.first_lsn or dice.random() < 0.5:
            found.append((part, streams))
            continue
        seam, known = seam_of(before, part), found[-1][1]
        both = {
            stream: join_facts(known.get(stream, []), streams.get(stream, []), seam)
            for stream in dict.fromkeys([*known, *streams])
        }
        found[-1] = join_parts(before, part), both
    return found


def _folded(chain: Chain, dice: random.Random) -> list[Folder]:
    """A chain, divided into segments of one boot without missing rows, and these into parts."""
    segments: list[list[JournalRow]] = []
    for row in chain.rows:
        last = segments[-1][-1] if segments else None
        goes_on = last is not None and last.boot == row.boot and last.lsn + 1 == row.lsn
        if not goes_on or dice.random() < 0.1:
            segments.append([])
        segments[-1].append(row)
    folders: list[Folder] = []
    end = 0
    for rows in segments:
        if not folders or end + 1 != rows[0].lsn or dice.random() < 0.3:
            folders.append(Folder())
        end = rows[-1].lsn
        header = SegmentHeader(chain.role, chain.client, rows[0].boot, rows[0].lsn, end, len(rows))
        folders[-1].add(header, "", map(line_of, rows))
    return folders


def line_of(row: JournalRow) -> Line:
    return Line(
        row.lsn, row.boot, row.kind, row.wall_us, row.wall_last_us, row.mono_us, row.producer, row.topic, row.partition,
        row.epoch, f"{row.incarnation:x}", row.first, row.last, row.site, row.group, row.reason,
        None if row.digest is None else f"{row.digest:x}",
        None if row.latency is None else {str(bucket): count for bucket, count in row.latency.items()}, row.detail,
    )  # fmt: skip


def _counts(streams: Iterable[Judged]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for judged in streams:
        for group, account in judged.accounts.items():
            for name in (
                "enqueued",
                "lost",
                "declared_gaps",
                "phantom",
                "late",
                "before_join",
                "dead_lettered",
                "duplicates",
                "out_of_order",
            ):
                counts[name, ""] += getattr(account, name)
            if group:
                counts["delivered", group] += account.delivered
        counts["pending", ""] += judged.pending
        counts["saved_by_repair", ""] += judged.passages.by_repair
        counts["saved_by_second_site", ""] += judged.passages.by_second_site
    return {key: count for key, count in counts.items() if count}


def _sites(streams: Iterable[Judged]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for judged in streams:
        passages = judged.passages
        for name, counts in (
            ("confirmed", passages.confirmed), ("received", passages.received), ("lost_after_confirm", passages.lost),
            ("saved_alone", passages.alone),
        ):  # fmt: skip
            for site, count in counts.items():
                found.setdefault(site, Counter())[name] += count
    names = ("confirmed", "received", "lost_after_confirm", "saved_alone")
    return {site: {name: counts[name] for name in names} for site, counts in found.items()}


def shared(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in which ``verdict.json`` and the plain checker's report, as plain data, must agree."""
    evidence = verdict["evidence"]
    found: dict[Place, Spans] = {}
    for each in (*verdict["findings"], *verdict["lost_ranges"]):
        if each["kind"] in EVIDENCE or (each["severity"] == "lost" and "hop" not in each):
            continue  # in the lines of the evidence, and in the lost ranges
        producer = each["producer"] if "topic" in each else _producer(each["text"])
        loss = " ".join((each.get("where", ""), each.get("hop", ""), *each.get("sites", ()))).strip()
        loss = loss or _why(each["kind"], each["text"])
        names = (producer, each.get("topic", ""), each.get("group", ""), each.get("site", ""))
        _add(found, (each["kind"], *names, each.get("epoch") or 0, loss), each.get("first"), each.get("last"))
    return {
        **{
            name: verdict[name]
            for name in ("verdict", "through", "messages", "streams", "sites", "latency", "rows")
        },
        "proven": sorted(str(sorted(each.items())) for each in verdict["clients"]),
        **{name: evidence[name] for name in ("clients", "duplicated")},
        **{name: sorted(evidence[name]) for name in ("missing", "broken")},
        "found": {place: list(ranges) for place, ranges in found.items()},
    }
