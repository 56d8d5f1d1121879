"""Converts counts and findings to the content of ``verdict.json``, and to a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.audit.clients import Clients
from reliamsg.audit.expect import Expect
from reliamsg.audit.found import EVIDENCE, Finding, describe
from reliamsg.audit.incidents import as_dicts, incidents_of_clients, worst_incidents
from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.lineage import Histories
from reliamsg.audit.tasks import MAX_FINDINGS, Summary, worst_first
from reliamsg.audit.through import DEMANDS, Through, as_time, clients_as_dicts, find_through
from reliamsg.terminal import printable

__all__ = [
    "HOPS",
    "QUANTILES",
    "SITE_COUNTS",
    "Proof",
    "about_evidence",
    "as_dict",
    "compose",
    "conclude",
    "line",
    "messages",
    "quantiles",
    "status",
    "table",
    "time_of",
    "worst",
]  # fmt: skip

HOPS = {
    "enqueued": "publish_to_durable",
    "confirmed": "durable_to_confirmed",
    "delivered": "received_to_delivered",
}
"""Rows with latencies, and their hop."""
_NO_JOURNALS = "there are no journals"
SITE_COUNTS = ("confirmed", "received", "lost_after_confirm", "saved_alone")
"""The numbers of messages of each site."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
"""The quantiles of each hop."""
_MAX_BUCKET = 255
"""Half a million years."""

_STATUS = {"complete": 0, "violated": 1, "lost": 1, "unknown": 2}


def worst(kinds: Iterable[str]) -> str:
    """The worst severity: violations take precedence over losses, and losses over unknown; remarks are ignored."""
    severities = {KINDS[kind][0] for kind in kinds} - {"remark"}
    return next((severity for severity in PRECEDENCE if severity in severities), "complete")


def status(verdict: Mapping[str, Any]) -> int:
    """The exit code: 0 complete, 1 violated or lost, 2 unknown."""
    return _STATUS[verdict["verdict"]]


def conclude(kinds: Iterable[str], through: Through, enqueued: int, proven: int, all_counts: bool) -> str:
    """The verdict. `enqueued` and `proven`: messages, and those that were enqueued by the time of `through`.
    `all_counts`: whether any open question makes it ``unknown``."""
    found = worst(kinds)
    if found != "unknown" or all_counts or through.us is None:
        return found
    return "complete" if proven or not enqueued else "unknown"


def time_of(total: Summary, clients: Clients, known: Histories, rules: Expect, now_us: int) -> Through:
    """The time through which the evidence is whole and no message is open."""
    questioned = any(
        KINDS[each.kind][0] == "unknown" and each.kind not in DEMANDS
        for each in about_evidence(total, clients, known)
    )
    if questioned or total.undated or not known.journals:
        return Through(None, [])
    return find_through(clients.proven, total.question, rules.until_us, now_us)


@dataclass(frozen=True, slots=True)
class Proof:
    """Up to when everything is proven, and what was asked for."""

    through: Through
    proven: int
    """Messages that were enqueued by then."""
    all_counts: bool
    """Whether any open question makes the verdict ``unknown``."""
    demands: list[Finding]
    """What questions that everything is proven through the time that was asked for."""


def compose(
    total: Summary,
    clients: Clients,
    known: Histories,
    duplicated: int,
    proof: Proof,
    journals: str = "",
    out: str = "",
) -> dict[str, Any]:
    """The content of ``verdict.json``, but for the time that the audit took. `duplicated`: further copies of valid
    segments. `journals` and `out`: for commands, where the journals and the audit's output are."""
    evidence, through = about_evidence(total, clients, known), proof.through
    if not known.journals:
        evidence.append(Finding("missing", text=_NO_JOURNALS))
    evidence += proof.demands
    kinds: Counter[str] = Counter(each.kind for each in evidence)
    for (kind, _), count in total.kinds.items():
        kinds[kind] += count
    lines = {
        kind: sorted(each.text for each in evidence if each.kind == kind)[:MAX_FINDINGS] for kind in EVIDENCE
    }
    if not known.journals:
        lines["missing"].remove(_NO_JOURNALS)
        lines["missing"].insert(0, _NO_JOURNALS)
    worst_found = worst_first([*total.findings, *evidence])
    counts = messages(total, {each.client for each in known.journals if each.role == "group"}, proof.proven)
    return {
        "verdict": conclude(kinds, through, counts["enqueued"], proof.proven, proof.all_counts),
        "through": None if through.us is None else as_time(through.us),
        "held_by": through.held_by,
        "clients": clients_as_dicts(clients.proven),
        "messages": counts,
        "streams": total.streams,
        **_incidents(total, evidence, journals, out),
        "sites": {
            site: {name: counts[name] for name in SITE_COUNTS} for site, counts in sorted(total.sites.items())
        },
        "lost_ranges": [as_dict(each, hops=True) for each in worst_first(total.losses)],
        "lost_ranges_total": total.losses_total,
        "evidence": {
            "clients": len(known.journals),
            "missing": lines["missing"],
            "duplicated": duplicated,
            "broken": sorted(line for kind in EVIDENCE if kind != "missing" for line in lines[kind])[
                :MAX_FINDINGS
            ],
        },
        "latency": quantiles(clients.latencies),
        "findings": [as_dict(each) for each in worst_found],
        "findings_total": sum(kinds.values()),
        "rows": known.rows,
    }


def _incidents(total: Summary, evidence: Iterable[Finding], journals: str, out: str) -> dict[str, Any]:
    of_clients = incidents_of_clients(evidence)
    worst_ones = worst_incidents([*total.incidents, *of_clients])
    return {
        "incidents": as_dicts(worst_ones, journals, out),
        "incidents_total": total.incidents_total + len(of_clients),
    }


def about_evidence(total: Summary, clients: Clients, known: Histories) -> list[Finding]:
    """All findings that are not about a stream."""
    return [
        *clients.findings,
        *(Finding("broken", text=line) for line in known.stray),
        *(Finding("missing", text=line) for line in sorted(total.lacking)),
    ]


def messages(total: Summary, groups: Iterable[str], proven: int) -> dict[str, Any]:
    """Messages by fate. `groups`: all groups with a journal; exactly these appear in `delivered`, even without
    deliveries. `proven`: messages that were enqueued by the time through which everything is proven."""

    def sum_of(name: str) -> int:
        return sum(getattr(account, name) for account in total.accounts.values())

    delivered = {
        group: total.accounts[group].delivered if group in total.accounts else 0 for group in sorted(groups)
    }
    return {
        "enqueued": sum_of("enqueued"),
        "proven": proven,
        "delivered": delivered,
        **{name: sum_of(name) for name in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom")},
        "pending": total.pending,
        **{name: sum_of(name) for name in ("late", "before_join")},
        "saved_by_repair": total.by_repair,
        "saved_by_second_site": total.by_second_site,
    }


def quantiles(latencies: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, dict[str, float]]:
    """By hop, quantiles in seconds: upper bounds of buckets that are 19 % wide."""
    hops: dict[str, Counter[int]] = {}
    for (kind, _), counts in latencies.items():
        hops.setdefault(HOPS[kind], Counter()).update(counts)
    return {hop: _quantiles(counts) for hop, counts in sorted(hops.items()) if sum(counts.values()) > 0}


def _quantiles(counts: Counter[int]) -> dict[str, float]:
    everything, found = sum(counts.values()), {}
    for name, quantile in QUANTILES.items():
        seen = 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= everything * quantile:
                # Bucket b ends at 2**((b+1)/4) µs. The bound is for invalid values in journals.
                found[name] = round(2.0 ** ((min(bucket, _MAX_BUCKET) + 1) / 4) / 1e6, 6)
                break
    return found


def as_dict(finding: Finding, hops: bool = False) -> dict[str, Any]:
    """A finding, with `hops` a lost range, as plain data."""
    found: dict[str, Any] = {
        "kind": finding.kind, "severity": KINDS[finding.kind][0], "text": describe(finding),
    }  # fmt: skip
    if finding.stream is not None:
        found |= dict(zip(("producer", "topic", "partition"), finding.stream, strict=True))
    for name, value in (
        ("group", finding.group), ("site", finding.site), ("epoch", finding.epoch), ("first", finding.first),
        ("last", finding.last), ("where", finding.place),
    ):  # fmt: skip
        if value not in ("", None):
            found[name] = value
    found["source"] = "journal"
    if hops:
        found |= {"hop": finding.hop, "sites": list(finding.sites)}
    return found


def table(verdict: Mapping[str, Any], limit: int = 20) -> str:
    """A summary as text, with at most `limit` lines of evidence and of findings."""
    m, evidence = verdict["messages"], verdict["evidence"]
    through = verdict["through"]
    lines = [
        f"verdict: {verdict['verdict']}"
        + (f" through {through}" if through and verdict["verdict"] == "complete" else ""),
        f"  {m['enqueued']:,} messages in {verdict['streams']:,} streams, from {evidence['clients']:,} journals",
    ]
    if through:
        lines.append(f"  whole and without open questions through {through}: {m['proven']:,} messages")
        lines += [
            f"  held there by {hold['role']} {hold['client']}: {hold['why']}"
            if "role" in hold
            else f"  {hold['why']}"
            for hold in verdict["held_by"]
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
    others = [f"  {f['severity']}: {f['text']}" for f in verdict["findings"] if f["kind"] not in EVIDENCE]
    lacking = [f"  evidence: {line}" for line in (*evidence["missing"], *evidence["broken"])]
    for shown, what in ((lacking, "lines of evidence"), (others, "findings")):
        lines += shown[:limit]
        if len(shown) > limit:
            lines.append(f"  {len(shown) - limit:,} more {what} like these")
    lines.append(f"  {verdict['rows']:,} rows in {verdict['seconds']:.1f} s")
    return "\n".join(map(printable, lines))


def line(verdict: Mapping[str, Any]) -> str:
    """A summary as one line."""
    m, through = verdict["messages"], verdict["through"]
    held = ", ".join(f"{hold['role']} {hold['client']}" for hold in verdict["held_by"] if "role" in hold)
    found = verdict["verdict"]
    if through:
        found += f" through {through}" if found == "complete" else f" (whole through {through})"
    found += f": {m['enqueued']:,} messages, {m['proven']:,} proven"
    counts = {
        name: m[name]
        for name in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending")
    }
    found += "".join(f", {name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count)
    lines = len(verdict["evidence"]["missing"]) + len(verdict["evidence"]["broken"])
    found += f", {lines:,} lines of missing or damaged evidence" if lines else ""
    return printable(found + (f"; held by {held}" if held else ""))
