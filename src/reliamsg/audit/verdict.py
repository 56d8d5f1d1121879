"""Converts counts and findings to the content of ``verdict.json``, and to a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Row

from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.ranges import LAST
from reliamsg.terminal import printable

__all__ = ["as_dict", "messages", "status", "table", "worst"]

_STATUS = {"complete": 0, "violated": 1, "lost": 1, "unknown": 2}
_SUMS = ("enqueued", "lost", "declared_gaps", "phantom", "pending", "late", "before_join")
_SAVED = ("saved_by_repair", "saved_by_second_site")
_EVIDENCE = ("missing", "broken", "unclosed")


def worst(kinds: Iterable[str]) -> str:
    """The verdict: violations take precedence over losses, and losses over unknown; remarks are ignored."""
    severities = {KINDS[kind][0] for kind in kinds} - {"remark"}
    return next((severity for severity in PRECEDENCE if severity in severities), "complete")


def status(verdict: Mapping[str, Any]) -> int:
    """The exit code: 0 complete, 1 violated or lost, 2 unknown."""
    return _STATUS[verdict["verdict"]]


def messages(
    accounts: Iterable[Row], wrong: Iterable[Row], saved: Iterable[Row], groups: Iterable[str]
) -> dict[str, Any]:
    """Messages by fate, from the rows of ``accounts.counts``, ``groups.counts`` and ``sites.saved``.

    `groups`: all groups with a journal; exactly these appear in `delivered`, even without deliveries.
    """
    sums = dict.fromkeys(_SUMS, 0)
    delivered = dict.fromkeys(sorted(groups), 0)
    for row in accounts:
        for name in _SUMS:
            sums[name] += int(row[name] or 0)
        if row["grp"] in delivered:
            delivered[row["grp"]] = int(row["delivered"] or 0)
    counted = list(saved)
    duplicates = out_of_order = 0
    for row in wrong:
        duplicates += int(row["duplicates"])
        out_of_order += int(row["out_of_order"])
    return {
        "enqueued": sums["enqueued"],
        "delivered": delivered,
        "lost": sums["lost"],
        "declared_gaps": sums["declared_gaps"],
        "duplicates": duplicates,
        "out_of_order": out_of_order,
        "phantom": sums["phantom"],
        "pending": sums["pending"],
        "late": sums["late"],
        "before_join": sums["before_join"],
        **{name: sum(int(row[name] or 0) for row in counted) for name in _SAVED},
    }


def as_dict(finding: Row) -> dict[str, Any]:
    """A finding, or a lost range with `hop` and `sites`, as plain data."""
    # A damaged row may have a stream without a topic, which still has a producer.
    known = {
        name: value
        for name, value in finding.asDict().items()
        if value is not None and (value != "" or name == "topic")
    }
    kind = known["kind"]
    found: dict[str, Any] = {"kind": kind, "severity": KINDS[kind][0], "text": _text(known)}
    for name, shown in (
        ("producer", "producer"), ("topic", "topic"), ("part", "partition"), ("grp", "group"), ("site", "site"),
        ("epoch", "epoch"), ("first", "first"), ("last", "last"), ("place", "where"),
    ):  # fmt: skip
        if name in known and (shown not in ("producer", "partition") or "topic" in known):
            found[shown] = known[name]
    found["source"] = "journal"
    if "hop" in known:
        found |= {"hop": known["hop"], "sites": list(known.get("sites", []))}
    return found


def _text(known: Mapping[str, Any]) -> str:
    kind = known["kind"]
    meaning, more = KINDS[kind][1], known.get("text", "")
    if kind in _EVIDENCE:
        return str(more) or meaning
    parts = []
    if "topic" in known:
        part = known.get("part")
        parts.append(f"{known['producer']}/{known['topic']}" + (f"~{part}" if part else ""))
    if "first" in known:
        first, last = known["first"], known["last"]
        span = str(first) if first == last else f"{first} to {last if last < LAST else 'the end'}"
        parts.append(f"{span} of epoch {known['epoch']}")
    parts += [f"at group {known['grp']}"] if "grp" in known else []
    parts += [f"at site {known['site']}"] if "site" in known else []
    about = " ".join(parts)
    said = f"{meaning}: {more}" if more else meaning
    return f"{about}: {said}" if about else said


def table(verdict: Mapping[str, Any], limit: int = 20) -> str:
    """A summary as text, with at most `limit` lines of evidence and of findings."""
    m, evidence = verdict["messages"], verdict["evidence"]
    lines = [
        f"verdict: {verdict['verdict']}",
        f"  {m['enqueued']:,} messages in {verdict['streams']:,} streams, from {evidence['clients']:,} journals",
    ]
    lines += [f"  delivered to {group}: {count:,}" for group, count in m["delivered"].items()]
    lines.append(
        f"  lost {m['lost']:,}, declared gaps {m['declared_gaps']:,}, duplicates {m['duplicates']:,},"
        f" out of order {m['out_of_order']:,}, phantom {m['phantom']:,}, pending {m['pending']:,},"
        f" late {m['late']:,}, before join {m['before_join']:,}, saved by repair {m['saved_by_repair']:,},"
        f" by a second site {m['saved_by_second_site']:,}"
    )
    lines += [
        f"  site {name}: confirmed {s['confirmed']:,}, received {s['received']:,}, lost after confirming"
        f" {s['lost_after_confirm']:,}, delivered thanks to it alone {s['saved_alone']:,}"
        for name, s in verdict["sites"].items()
    ]
    lines += [
        f"  {hop}: " + ", ".join(f"{name} {seconds:.6g} s" for name, seconds in quantiles.items())
        for hop, quantiles in verdict["latency"].items()
    ]
    others = [f"  {f['severity']}: {f['text']}" for f in verdict["findings"] if f["kind"] not in _EVIDENCE]
    lacking = [f"  evidence: {line}" for line in (*evidence["missing"], *evidence["broken"])]
    for shown, what in ((lacking, "lines of evidence"), (others, "findings")):
        lines += shown[:limit]
        if len(shown) > limit:
            lines.append(f"  {len(shown) - limit:,} more {what} like these")
    lines.append(f"  {verdict['rows']:,} rows in {verdict['seconds']:.1f} s")
    return "\n".join(map(printable, lines))
