"""Converts counts and findings to the content of ``verdict.json``, and to a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reliamsg.audit import days
from reliamsg.audit.accepted import Acceptances, Brief, worst_briefs
from reliamsg.audit.clients import Clients
from reliamsg.audit.expect import Expect
from reliamsg.audit.found import EVIDENCE, Finding, describe
from reliamsg.audit.incidents import as_dicts, incidents_of_clients, worst_incidents
from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.lineage import Histories
from reliamsg.audit.operation import operation
from reliamsg.audit.tasks import MAX_FINDINGS, Summary, worst_first
from reliamsg.audit.through import DEMANDS, Through, clients_as_dicts, find_through, offset_of
from reliamsg.audit.times import as_time
from reliamsg.audit.windows import Reach, Scope, judge_window
from reliamsg.terminal import printable

__all__ = [
    "HOPS",
    "QUANTILES",
    "SITE_COUNTS",
    "Proof",
    "about_evidence",
    "as_dict",
    "briefs",
    "compose",
    "conclude",
    "evidence_of",
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
    "acknowledged": "publish_to_acknowledged",
}
"""Rows with latencies, and their hop."""
_NO_JOURNALS = "there are no journals"
SITE_COUNTS = ("confirmed", "received", "lost_after_confirm", "saved_alone")
"""The numbers of messages of each site."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
"""The quantiles of each hop."""
_DAYS_SHOWN = 7
_MAX_CLOCKS = 5
_MAX_BUCKET = 255
"""Half a million years."""

_STATUS = {"complete": 0, "accepted": 0, "violated": 1, "lost": 1, "unknown": 2}


def worst(kinds: Iterable[str]) -> str:
    """The worst severity: violations take precedence over losses, and losses over unknown; remarks are ignored."""
    severities = {KINDS[kind][0] for kind in kinds} - {"remark"}
    return next((severity for severity in PRECEDENCE if severity in severities), "complete")


def status(verdict: Mapping[str, Any]) -> int:
    """The exit code of the verdict for the window: 0 complete or accepted, 1 violated or lost, 2 unknown."""
    return _STATUS[verdict["window"]["verdict"]]


def conclude(kinds: Iterable[str], through: Through, enqueued: int, proven: int, all_counts: bool) -> str:
    """The verdict. `enqueued` and `proven`: messages, and those that were enqueued by the time of `through`.
    `all_counts`: whether any open question makes it ``unknown``."""
    found = worst(kinds)
    if found in ("violated", "lost") or all_counts or through.us is None:
        return found
    return "complete" if proven or not enqueued else "unknown"


def time_of(
    total: Summary,
    clients: Clients,
    known: Histories,
    rules: Expect,
    now_us: int,
    acceptances: Acceptances | None = None,
) -> Through:
    """The time through which the evidence is whole and no message is open; with `acceptances`, whatever was accepted
    does not count as open."""
    evidence = about_evidence(total, clients, known)
    if acceptances is not None:
        covered = {each.id for each in incidents_of_clients(evidence) if acceptances.covers(each.brief)}
        evidence = [each for each in evidence if incidents_of_clients([each])[0].id not in covered]
    questioned = any(KINDS[each.kind][0] == "unknown" and each.kind not in DEMANDS for each in evidence)
    left = total.open if acceptances is None else total.unaccepted
    if questioned or left.undated or not known.journals:
        return Through(None, [])
    return find_through(clients.proven, left.first, rules.until_us, now_us)


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
    in_window: Reach
    signatures_checked: bool = False
    """Whether every segment and head had to be signed by its client."""
    state_signature_checked: bool | None = None
    """Whether the state had to be signed by the auditor; None: there was none."""


def compose(
    total: Summary,
    clients: Clients,
    known: Histories,
    duplicated: int,
    proof: Proof,
    scope: Scope,
    places: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """The content of ``verdict.json``, but for the time that the audit took. `duplicated`: further copies of valid
    segments. `places`: for commands, where the journals and the audit's output are."""
    evidence, through = evidence_of(total, clients, known, proof), proof.through
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
        **_incidents(total, evidence, scope.acceptances, *places),
        "window": judge_window(scope, *briefs(total, evidence), proof.in_window),
        "sites": {
            site: {name: counts[name] for name in SITE_COUNTS} for site, counts in sorted(total.sites.items())
        },
        "operation": _operation(known, clients),
        "lost_ranges": [as_dict(each, hops=True) for each in worst_first(total.losses)],
        "lost_ranges_total": total.losses_total,
        "evidence": {
            "clients": len(known.journals),
            "missing": lines["missing"],
            "duplicated": duplicated,
            "signatures_checked": proof.signatures_checked,
            "checkpoints": known.checkpoints,
            "checkpoint_signatures_checked": known.checkpoint_signatures_checked,
            **_of_state(proof),
            "broken": sorted(line for kind in EVIDENCE if kind != "missing" for line in lines[kind])[
                :MAX_FINDINGS
            ],
        },
        "latency": quantiles(clients.latencies),
        "days": days.as_dicts(total.days),
        "findings": [as_dict(each) for each in worst_found],
        "findings_total": sum(kinds.values()),
        "rows": known.rows,
    }


def _operation(known: Histories, clients: Clients) -> dict[str, Any]:
    """How often clients and sites were away, and how fast sites confirm."""
    found = operation(known.journals)
    for site, own in found["sites"].items():
        counts = clients.latencies.get(("confirmed", site), {})
        hops = quantiles({("confirmed", site): counts})
        own["confirm_seconds"] = next((each["p50"] for each in hops.values()), None)
    return found


def _of_state(proof: Proof) -> dict[str, bool]:
    checked = proof.state_signature_checked
    return {} if checked is None else {"state_signature_checked": checked}


def _incidents(
    total: Summary, evidence: Iterable[Finding], acceptances: Acceptances, journals: str, out: str
) -> dict[str, Any]:
    of_clients = incidents_of_clients(evidence)
    worst_ones = worst_incidents([*total.incidents, *of_clients])
    return {
        "incidents": as_dicts(worst_ones, acceptances, journals, out),
        "incidents_total": total.incidents_total + len(of_clients),
    }


def briefs(total: Summary, evidence: Iterable[Finding]) -> tuple[list[Brief], int]:
    """The worst incidents, for comparisons, and the number of those beyond."""
    of_clients = [each.brief for each in incidents_of_clients(evidence)]
    worst_ones = worst_briefs([*total.briefs, *of_clients])
    return worst_ones, total.incidents_total + len(of_clients) - len(worst_ones)


def evidence_of(total: Summary, clients: Clients, known: Histories, proof: Proof) -> list[Finding]:
    """All findings that are not about a stream, with those about what was asked for."""
    none = [] if known.journals else [Finding("missing", text=_NO_JOURNALS)]
    return [*about_evidence(total, clients, known), *none, *proof.demands]


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
        **{name: sum_of(name) for name in ("late", "before_join", "dead_lettered")},
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
    lines += _window(verdict["window"])
    lines += _clocks(verdict["clients"])
    checked = "checked" if evidence["signatures_checked"] else "not checked"
    lines.append(f"  signatures of journals: {checked}")
    if "state_signature_checked" in evidence:
        checked = "checked" if evidence["state_signature_checked"] else "not checked"
        lines.append(f"  signature of the state: {checked}")
    lines += [f"  delivered to {group}: {count:,}" for group, count in m["delivered"].items()]
    lines.append(
        f"  lost {m['lost']:,}, declared gaps {m['declared_gaps']:,}, duplicates {m['duplicates']:,},"
        f" out of order {m['out_of_order']:,}, phantom {m['phantom']:,}, pending {m['pending']:,},"
        f" late {m['late']:,}, before join {m['before_join']:,}, dead letters {m['dead_lettered']:,}, saved by repair"
        f" {m['saved_by_repair']:,}, by a second site {m['saved_by_second_site']:,}"
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
    if evidence["checkpoints"]:
        checked = "checked" if evidence["checkpoint_signatures_checked"] else "not checked"
        lines.append(f"  checkpoints {evidence['checkpoints']:,}, their signatures {checked}")
    lines += _days(verdict["days"])
    others = [f"  {f['severity']}: {f['text']}" for f in verdict["findings"] if f["kind"] not in EVIDENCE]
    lacking = [f"  evidence: {line}" for line in (*evidence["missing"], *evidence["broken"])]
    for shown, what in ((lacking, "lines of evidence"), (others, "findings")):
        lines += shown[:limit]
        if len(shown) > limit:
            lines.append(f"  {len(shown) - limit:,} more {what} like these")
    lines.append(f"  {verdict['rows']:,} rows in {verdict['seconds']:.1f} s")
    return "\n".join(map(printable, lines))


def _days(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The last days, if there are several."""
    if len(found) < 2:
        return []
    return [
        f"  {each['day']}: {each['enqueued']:,} messages, declared gaps {each['declared_gaps']:,}, repaired"
        f" {each['repaired']:,}"
        for each in found[-_DAYS_SHOWN:]
    ]


def _window(window: Mapping[str, Any]) -> list[str]:
    """The verdict for the window, if that differs from all time."""
    if window["since"] is None and not window["accepted"]:
        return []
    found = window["verdict"] + (f" through {window['through']}" if window["through"] else "")
    since = f" since {window['since']}" if window["since"] else ""
    counts = (
        f"{window['enqueued']:,} messages, {window['proven']:,} proven, {window['incidents']:,} incidents"
    )
    return [f"  verdict{since}: {found}: {counts}, {window['accepted']:,} accepted"]


def _clocks(clients: Iterable[Mapping[str, Any]]) -> list[str]:
    """The offsets of those clients whose clocks are furthest from others'."""
    known = [(offset_of(each["offset"]), each) for each in clients if "offset" in each]
    known.sort(key=lambda pair: (-pair[0].proven_us, pair[1]["role"], pair[1]["client"], str(pair[0])))
    return [f"  clock of {each['role']} {each['client']}: {offset}" for offset, each in known[:_MAX_CLOCKS]]


def line(verdict: Mapping[str, Any]) -> str:
    """A summary as one line."""
    m, through = verdict["messages"], verdict["through"]
    held = ", ".join(f"{hold['role']} {hold['client']}" for hold in verdict["held_by"] if "role" in hold)
    found = verdict["verdict"]
    if through:
        found += f" through {through}" if found == "complete" else f" (whole through {through})"
    window = verdict["window"]
    if window["since"] is not None or window["accepted"]:
        since = "" if window["since"] is None else f"since {window['since']} "
        found = f"{since}{window['verdict']}; in all {found}"
    found += f": {m['enqueued']:,} messages, {m['proven']:,} proven"
    counts = {
        name: m[name]
        for name in (
            "lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending", "dead_lettered",
        )
    }  # fmt: skip
    found += "".join(f", {name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count)
    lines = len(verdict["evidence"]["missing"]) + len(verdict["evidence"]["broken"])
    found += f", {lines:,} lines of missing or damaged evidence" if lines else ""
    return printable(found + (f"; held by {held}" if held else ""))
