"""What the checker says: findings, counts, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from reliamsg.checker.spans import ENDLESS
from reliamsg.message import Stream
from reliamsg.terminal import printable

__all__ = ["KINDS", "Counts", "Finding", "Report", "Severity", "SiteCounts", "Verdict", "worst"]

Verdict = Literal["complete", "violated", "lost", "unknown"]
Severity = Literal["violated", "lost", "unknown", "remark"]

_PRECEDENCE: tuple[Verdict, ...] = ("violated", "lost", "unknown")

KINDS: dict[str, tuple[Severity, str]] = {
    # What a group was given
    "out_of_order": ("violated", "delivered after a later message of its stream"),
    "duplicate": ("violated", "delivered again, without being flagged"),
    "redelivered_after_ack": ("violated", "delivered again after its acknowledgement was durable"),
    "acknowledged_twice": ("violated", "acknowledged more than once"),
    "acknowledged_undelivered": ("violated", "acknowledged, yet never delivered"),
    "not_redelivered": ("violated", "not acknowledged, and passed over after a restart"),
    "undeclared_gap": ("violated", "passed over without being declared"),
    "declared_late": ("violated", "declared as a gap only after later messages were delivered"),
    "delivered_after_gap": ("violated", "delivered after its gap was declared"),
    "false_gap": ("violated", "declared as a gap after it was delivered"),
    "phantom_gap": ("violated", "declared as a gap, yet never published"),
    "gap_closed_early": ("violated", "its gap expired before the gap timeout"),
    "gap_closed_late": ("violated", "its gap expired too long after the gap timeout"),
    "false_before_join": ("violated", "said to come from before the group joined, which it had by then"),
    "false_replay": ("violated", "replayed, yet never dead-lettered"),
    # What a producer did
    "seq_reused": ("violated", "a sequence number used twice"),
    "seq_skipped": ("violated", "a sequence number left out"),
    "old_epoch": ("violated", "enqueued under an epoch that was over"),
    "wrong_prev": ("violated", "an epoch entered with a wrong account of the one before"),
    "confirmed_unknown": ("violated", "confirmed, yet never enqueued"),
    "published_unconfirmed": ("violated", "counted as published before the confirm policy was met"),
    "enqueued_after_fence": ("violated", "enqueued although its producer knew that it was fenced"),
    "released_early": ("violated", "left the outbox before a group that counts was done with it"),
    # Both sides
    "two_incarnations": ("violated", "one epoch with two histories"),
    "phantom": ("violated", "delivered, yet never published"),
    "delivered_after_failed": ("violated", "delivered, although publishing it was reported as failed"),
    "consumed_unsettled": ("violated", "counted as consumed, yet its group had not settled it"),
    "false_removal": ("violated", "declared as removed, yet its producer never removed it"),
    "corrupt": ("violated", "the content that was delivered is not what was published"),
    "not_durable": ("violated", "publishing returned, and the outbox does not have it"),
    "unjournalled": ("violated", "the application was given what its journal does not say"),
    "too_late": ("violated", "still going on when all should have drained"),
    "lost": ("lost", "published, and never delivered"),
    "unseen": ("lost", "acknowledged in the journal, yet the application was never given it"),
    "joined_unheard": (
        "lost",
        "published for a group that joined behind it, having heard nothing of its producer",
    ),
    "declared_gap": ("lost", "declared lost to the application"),
    "discarded": ("lost", "discarded from quarantine by an operator, and never delivered"),
    "removed": ("lost", "removed by its producer, and never delivered"),
    # What is not known
    "pending": ("unknown", "the confirm policy is not met"),
    "undelivered": ("unknown", "not delivered, which is no proof that it won't be"),
    "unacknowledged": ("unknown", "delivered, and not acknowledged"),
    "never_joined": ("unknown", "a group reads the topic and never saw this stream"),
    "unproven": ("unknown", "delivered, or said to be removed, and its producer's journal lacks a part"),
    "unproven_gap": ("unknown", "declared as a gap, and its producer's journal lacks a part"),
    "settled_unseen": (
        "unknown",
        "settled, as was told or may be, by an inbox whose journal lacks it",
    ),
    "duplicate_apart": ("unknown", "delivered by two inboxes of the group without being flagged"),
    "unverified": ("unknown", "no digest sum tells whether the content is what was published"),
    "missing": ("unknown", "evidence is missing"),
    "broken": ("unknown", "evidence is damaged"),
    "unclosed": ("unknown", "a journal ends without being closed"),
    # What people want to know, and no verdict rests on
    "fork": ("remark", "a producer with two histories, since its outbox was restored or copied"),
}
"""Every kind of finding: how bad it is, and what it means."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as promised, or that can't be known.

    `first` to `last` are sequence numbers of `epoch` (in logs of clients without epochs: the application's own
    numbers, and `epoch` is None); `source` says which evidence shows it: ``journal`` or ``application``.
    """

    kind: str
    text: str
    stream: Stream | None = None
    group: str = ""
    site: str = ""
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    where: str = ""
    """For losses: ``prefix``, ``middle`` or ``tail`` of what the group was given of the stream."""
    source: str = "journal"
    hop: str = ""
    """For losses, how far it got: ``enqueued``, ``confirmed``, ``received`` or ``buffered``."""
    sites: tuple[str, ...] = ()
    """Where it got that far, sorted."""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    @property
    def count(self) -> int:
        """How many messages it is about."""
        if self.first is None or self.last is None or self.last >= ENDLESS - 1:
            return 0
        return self.last - self.first + 1

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind, "severity": self.severity, "text": str(self)}
        if self.stream is not None:
            found |= self.stream._asdict()
        for name in ("group", "site", "epoch", "first", "last", "where", "source"):
            value = getattr(self, name)
            if value not in ("", None):
                found[name] = value
        if self.hop:
            found |= {"hop": self.hop, "sites": list(self.sites)}
        return found

    def __str__(self) -> str:
        parts = [str(self.stream)] if self.stream is not None else []
        if self.first is not None:
            span = str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
            parts.append(span if self.epoch is None else f"{span} of epoch {self.epoch}")
        if self.group:
            parts.append(f"at group {self.group}")
        if self.site:
            parts.append(f"at site {self.site}")
        about = " ".join(parts)
        return f"{about}: {self.text}" if about else self.text


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict: proven violations first, then losses, then what is not known; remarks count for nothing."""
    severities = {finding.severity for finding in findings}
    for severity in _PRECEDENCE:
        if severity in severities:
            return severity
    return "complete"


@dataclass
class Counts:
    """Messages, by what became of them.

    All but `enqueued` and `pending` count each message once for each group that it concerns.
    """

    enqueued: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    declared_gaps: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    phantom: int = 0
    pending: int = 0
    late: int = 0
    before_join: int = 0
    saved_by_repair: int = 0
    """Confirmed and delivered, and received only because its producer sent it again on request."""
    saved_by_second_site: int = 0
    """Delivered, lost by a site that had confirmed it, and received from another one."""

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "delivered": dict(sorted(self.delivered.items()))}


@dataclass
class SiteCounts:
    """What passed through a site. All but `confirmed` count each message once for each group."""

    confirmed: int = 0
    received: int = 0
    lost_after_confirm: int = 0
    """Confirmed, and proven not to be there any more without having been received: after its producer had told that it
    was confirmed, the queue was seen empty, or the session was found gone. At least so many."""
    saved_alone: int = 0
    """Delivered, and received from no other site."""


@dataclass
class Report:
    """The outcome of a check."""

    findings: list[Finding] = field(default_factory=list)
    messages: Counts = field(default_factory=Counts)
    streams: int = 0
    sites: dict[str, SiteCounts] = field(default_factory=dict)
    latency: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each hop, quantiles in seconds."""
    clients: int = 0
    logs: int = 0
    duplicated: int = 0
    """Segments that were found in more than one place, beyond the first."""
    unverified: int = 0
    """Messages, once for each group, whose content could not be compared with what was published."""
    rows: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        return worst(self.findings)

    def of_kind(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "verdict": self.verdict,
            "messages": self.messages.as_dict(),
            "streams": self.streams,
            "sites": {name: dict(vars(site)) for name, site in sorted(self.sites.items())},
            "lost_ranges": [f.as_dict() for f in self.findings if f.severity == "lost"],
            "evidence": {
                "clients": self.clients,
                "logs": self.logs,
                "missing": [str(f) for f in self.of_kind("missing")],
                "duplicated": self.duplicated,
                "unverified": self.unverified,
                "broken": [str(f) for f in self.findings if f.kind in ("broken", "unclosed")],
            },
            "latency": self.latency,
            "findings": [finding.as_dict() for finding in self.findings],
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
        }

    def text(self, limit: int = 20) -> str:
        """A summary for people, with at most `limit` findings of each kind."""
        m = self.messages
        lines = [
            f"verdict: {self.verdict}",
            f"  {m.enqueued:,} messages in {self.streams} streams, from {self.clients} journals and {self.logs} logs",
        ]
        lines += [f"  delivered to {group}: {count:,}" for group, count in sorted(m.delivered.items())]
        lines.append(
            f"  lost {m.lost:,}, declared gaps {m.declared_gaps:,}, duplicates {m.duplicates:,},"
            f" out of order {m.out_of_order:,}, phantom {m.phantom:,}, pending {m.pending:,}, late {m.late:,},"
            f" before join {m.before_join:,}, saved by repair {m.saved_by_repair:,}, by a second site"
            f" {m.saved_by_second_site:,}"
        )
        lines += [
            f"  site {name}: confirmed {s.confirmed:,}, received {s.received:,}, lost after confirming"
            f" {s.lost_after_confirm:,}, delivered thanks to it alone {s.saved_alone:,}"
            for name, s in sorted(self.sites.items())
        ]
        for kind in KINDS:
            found = self.of_kind(kind)
            lines += [f"  {finding.severity}: {finding}" for finding in found[:limit]]
            if len(found) > limit:
                lines.append(f"  {found[0].severity}: {kind}: {len(found) - limit} more like these")
        return "\n".join(map(printable, lines))
