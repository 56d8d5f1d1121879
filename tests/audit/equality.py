"""The judgements of the plain checker and of the Spark job on the same journals, in a common form for comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from reliamsg.audit import (
    accounts,
    consumption,
    contents,
    evidence,
    forks,
    groups,
    latency,
    membership,
    producers,
    sites,
)
from reliamsg.audit.expect import Expect as JobsExpect
from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.ranges import LAST
from reliamsg.audit.schema import FINDINGS, union
from reliamsg.checker import Expect, Report, check
from reliamsg.checker.journals import Chain, mark_abandoned, merge_copies
from reliamsg.checker.spans import Spans
from tests.audit.fleet import frames

__all__ = ["EVIDENCE", "Outcome", "Place", "by_spark", "differences", "plain", "shared"]

Place = tuple[str, str, str, str, str, int, str]
"""Kind, producer, topic, group, site, epoch; for losses: place, hop and sites; for open messages: the reason; for
missing evidence: its text. Absent values are empty or 0."""
EVIDENCE = frozenset({"missing", "broken", "unclosed"})
"""Segments and expectations, and clients without a journal."""
_OPEN = frozenset({"pending", "undelivered"})
_DOUBLE = re.compile(r"(\S+) (?:has incarnations|was fenced)")


@dataclass
class Outcome:
    """A judgement. Counts are by name and group (``""``: all groups), sites' counts by site and name."""

    found: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """The ranges, merged into as few as possible."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    sites: dict[str, dict[str, int]] = field(default_factory=dict)
    latency: dict[str, dict[str, float]] = field(default_factory=dict)

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
        for name in ("found", "counts", "sites", "latency")
        for mine, theirs in [(getattr(one, name), getattr(other, name))]
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]


def plain(chains: Sequence[Chain], expect: Expect | None = None, *, evidence: bool = False) -> Outcome:
    """The plain checker's judgement. `evidence`: whether to include findings about the evidence."""
    return of_report(check(chains, expect=expect), evidence=evidence)


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


def by_spark(
    spark: SparkSession, chains: Sequence[Chain], *, drained: bool = True, until_us: int | None = None
) -> Outcome:
    """The chains' judgement, combined from the job's steps as in the job; damaged segments are tested elsewhere."""
    chains = mark_abandoned(merge_copies(chains))
    rows, known = (frame.localCheckpoint() for frame in frames(spark, chains))
    counted = membership.counted(rows).localCheckpoint()
    contested = producers.contested(rows, known).localCheckpoint()
    expect = JobsExpect(until_us=until_us)
    named = evidence.named(rows, expect).localCheckpoint()
    pieces = accounts.ranges(
        rows, known, named,
        drained=drained, until_us=until_us, contested=contested, counted=counted,
    ).localCheckpoint()  # fmt: skip
    lost = sites.lost(rows, known, counted).localCheckpoint()
    stretches = contents.stretches(rows, contested).localCheckpoint()
    given = groups.instances(rows, known).localCheckpoint()
    others = union(
        [
            groups.merge(given),
            producers.findings(rows, known),
            producers.incarnations(rows),
            consumption.released_early(rows, known, counted),
            contents.corrupt(stretches),
            accounts.findings(pieces),
            evidence.missing(rows, known, named, expect),
        ]
    ).localCheckpoint()
    found: dict[Place, Spans] = {}
    unverified = accounts.unverified(pieces, contents.verified(stretches), others)
    findings = union([others, unverified, forks.forks(rows)])
    assert [(f.name, f.dataType) for f in findings.schema.fields] == [
        (f.name, f.dataType) for f in FINDINGS.fields
    ]
    for row in findings.collect():
        if KINDS[row.kind][0] == "lost":
            continue  # accounts.losses has the details
        producer = row.producer or _producer(row.text)
        why = (row.text or "") if row.kind in _OPEN | {"missing"} else ""
        place = (row.kind, producer, row.topic or "", row.grp or "", row.site or "", row.epoch or 0, why)
        _add(found, place, row.first, row.last)
    for row in accounts.losses(pieces).collect():
        loss = " ".join((row.place or "", row.hop, *row.sites)).strip()
        _add(found, (row.kind, row.producer, row.topic, row.grp, "", row.epoch, loss), row.first, row.last)
    return Outcome(
        {place: list(ranges) for place, ranges in found.items()},
        _counts(accounts.counts(pieces), groups.count(given), sites.saved(rows, lost)),
        {
            row.site: {k: v for k, v in row.asDict().items() if k != "site"}
            for row in sites.counts(rows, lost).collect()
        },
        {
            row.hop: {k: v for k, v in row.asDict().items() if k != "hop"}
            for row in latency.quantiles(rows).collect()
        },
    )


def _counts(by_fate: DataFrame, by_order: DataFrame, saved: DataFrame) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for row in saved.collect():
        counts |= {(name, ""): value for name, value in row.asDict().items() if value}
    for row in [*by_fate.collect(), *by_order.collect()]:
        for name, value in row.asDict().items():
            if name == "grp" or not value:
                continue
            key = (name, row.grp if name == "delivered" else "")
            # The producers' own account counts every enqueued message once, a group's account once for each group.
            if name != "enqueued" or row.grp == accounts.PRODUCER:
                counts[key] = counts.get(key, 0) + value
    return counts


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
        **{name: verdict[name] for name in ("verdict", "messages", "streams", "sites", "latency", "rows")},
        **{name: evidence[name] for name in ("clients", "duplicated")},
        **{name: sorted(evidence[name]) for name in ("missing", "broken")},
        "found": {place: list(ranges) for place, ranges in found.items()},
    }
