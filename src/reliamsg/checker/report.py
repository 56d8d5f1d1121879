"""The result of a check: findings, counts, and one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from reliamsg.checker.spans import ENDLESS
from reliamsg.message import Stream
from reliamsg.terminal import printable

__all__ = [
    "DEMANDS", "KINDS", "Counts", "Ends", "Finding", "Hold", "Offset", "ProvenChain", "Report", "Severity",
    "SiteCounts", "Through", "Verdict", "as_time", "worst",
]  # fmt: skip

Verdict = Literal["complete", "violated", "lost", "unknown"]
Severity = Literal["violated", "lost", "unknown", "remark"]

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRECEDENCE: tuple[Verdict, ...] = ("violated", "lost", "unknown")

KINDS: dict[str, tuple[Severity, str]] = {
    # Deliveries to a group
    "out_of_order": ("violated", "delivered after a later message of its stream"),
    "duplicate": ("violated", "delivered again, without being flagged"),
    "redelivered_after_ack": ("violated", "delivered again after its acknowledgement was durable"),
    "acknowledged_twice": ("violated", "acknowledged more than once"),
    "acknowledged_undelivered": ("violated", "acknowledged, yet never delivered"),
    "not_redelivered": ("violated", "not acknowledged, and skipped after a restart"),
    "undeclared_gap": ("violated", "skipped without being declared"),
    "declared_late": ("violated", "declared as a gap only after later messages were delivered"),
    "delivered_after_gap": ("violated", "delivered after its gap was declared"),
    "false_gap": ("violated", "declared as a gap after it was delivered"),
    "phantom_gap": ("violated", "declared as a gap, yet never published"),
    "gap_closed_early": ("violated", "its gap expired before the gap timeout"),
    "gap_closed_late": ("violated", "its gap expired too long after the gap timeout"),
    "false_before_join": (
        "violated",
        "reported as from before the group joined, although it had joined by then",
    ),
    "false_replay": ("violated", "replayed, yet never dead-lettered"),
    # Actions of a producer
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
    "corrupt": ("violated", "the delivered content differs from the published content"),
    "not_durable": ("violated", "publishing returned, and the outbox does not have it"),
    "unjournalled": ("violated", "delivered to the application, but not according to its journal"),
    "too_late": ("violated", "still going on when all should have drained"),
    "lost": ("lost", "published, and never delivered"),
    "unseen": ("lost", "acknowledged in the journal, but never delivered to the application"),
    "joined_unheard": (
        "lost",
        "published for a group that joined behind it without any announcement of its producer",
    ),
    "declared_gap": ("lost", "declared lost to the application"),
    "discarded": ("lost", "discarded from quarantine by an operator, and never delivered"),
    "removed": ("lost", "removed by its producer, and never delivered"),
    # Unknown
    "pending": ("unknown", "the confirm policy is not met"),
    "undelivered": ("unknown", "not delivered, which is no proof that it won't be"),
    "unacknowledged": ("unknown", "delivered, and not acknowledged"),
    "never_joined": ("unknown", "a group reads the topic and never saw this stream"),
    "unproven": ("unknown", "delivered, or reported as removed, but its producer's journal lacks a part"),
    "unproven_gap": ("unknown", "declared as a gap, and its producer's journal lacks a part"),
    "settled_unseen": (
        "unknown",
        "settled, certainly or possibly, by an inbox whose journal lacks it",
    ),
    "duplicate_apart": ("unknown", "delivered by two inboxes of the group without being flagged"),
    "unverified": ("unknown", "no digest sum shows whether the content is as published"),
    "missing": ("unknown", "evidence is missing"),
    "broken": ("unknown", "evidence is damaged"),
    "unclosed": ("unknown", "a journal ends without being closed"),
    "ends_early": ("unknown", "a journal ends before the time up to which messages are to be accounted for"),
    "mixed_clock": ("unknown", "a client's clock was set around that time"),
    "not_retired": ("unknown", "declared as retired, which its journal does not bear out"),
    "skewed": ("unknown", "a client's clock is further from another one's than is allowed"),
    # Worth knowing, without influence on the verdict
    "fork": ("remark", "a producer with two histories, since its outbox was restored or copied"),
}
"""Every kind of finding: its severity, and its meaning."""


@dataclass(frozen=True)
class Finding:
    """One broken promise, one loss, or one question that the evidence leaves open.

    `first` to `last` are sequence numbers of `epoch`. In logs of clients without epochs, they are the application's own
    numbers, and `epoch` is None. `source` names the evidence: ``journal`` or ``application``.
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
    """For losses, the last hop that was reached: ``enqueued``, ``confirmed``, ``received`` or ``buffered``."""
    sites: tuple[str, ...] = ()
    """The sites where that hop was reached, sorted."""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    @property
    def producer(self) -> str:
        """The producer of the stream; empty without one."""
        return "" if self.stream is None else self.stream.producer

    @property
    def count(self) -> int:
        """Number of messages in the range."""
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
    """The verdict. Proven violations outrank losses, losses outrank open questions, and remarks do not count."""
    severities = {finding.severity for finding in findings}
    for severity in _PRECEDENCE:
        if severity in severities:
            return severity
    return "complete"


@dataclass(frozen=True)
class Counts:
    """Numbers of messages, by fate.

    All but `enqueued`, `proven` and `pending` count each message once per group that it concerns.
    """

    enqueued: int = 0
    proven: int = 0
    """Those enqueued by the time through which the evidence is whole."""
    delivered: Mapping[str, int] = field(default_factory=dict)
    """By group."""
    lost: int = 0
    declared_gaps: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    phantom: int = 0
    pending: int = 0
    late: int = 0
    before_join: int = 0
    dead_lettered: int = 0
    """Given up after failures of the handler, or rejected by it, and not acknowledged since."""
    saved_by_repair: int = 0
    """Confirmed and delivered, but received only because the producer resent it on request."""
    saved_by_second_site: int = 0
    """Lost by a site that had confirmed it, received from another site, and delivered."""

    def __add__(self, other: Counts) -> Counts:
        """The sums. Groups are the same or different ones."""
        return self._merged(other, sum)

    def at_least(self, other: Counts) -> Counts:
        """The larger of each pair of numbers: both count the same messages, and neither need have seen all."""
        return self._merged(other, max)

    def _merged(self, other: Counts, merge: Callable[[tuple[int, int]], int]) -> Counts:
        groups = {**self.delivered, **other.delivered}
        numbers = {
            each.name: merge((getattr(self, each.name), getattr(other, each.name)))
            for each in fields(self)
            if each.name != "delivered"
        }
        delivered = {
            name: merge((self.delivered.get(name, 0), other.delivered.get(name, 0))) for name in groups
        }
        return Counts(delivered=delivered, **numbers)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "delivered": dict(sorted(self.delivered.items()))}


@dataclass(frozen=True)
class SiteCounts:
    """Numbers of messages that passed through a site. All but `confirmed` count each message once per group."""

    confirmed: int = 0
    received: int = 0
    lost_after_confirm: int = 0
    """A lower bound. Confirmed, never received, and proven to be gone: the queue was empty, or the session gone, after
    the producer had announced the confirm."""
    saved_alone: int = 0
    """Delivered, and received from this site only."""


_MAX_CLOCKS = 5
"""The most offsets of clocks in a text."""
_MAX_CLIENTS = 1_000
"""The most histories of clients in a report as data."""
DEMANDS = frozenset({"unclosed", "ends_early", "mixed_clock", "not_retired"})
"""Kinds of findings about evidence that was demanded and may follow. They don't question what is there."""
Ends = Literal["open", "closed", "retired"]


@dataclass(frozen=True)
class Offset:
    """By how much a client's clock was ahead of another client's."""

    role: str
    client: str
    """The other client."""
    least_us: int | None
    """None: unknown, like `most_us`. Each was measured at a time of its own, so both may contradict if it varied."""
    most_us: int | None

    @property
    def proven_us(self) -> int:
        """The clocks were at least this far apart at some time."""
        return max(0, self.least_us or 0, -(self.most_us or 0))

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "client": self.client,
            "least_s": None if self.least_us is None else self.least_us / 1e6,
            "most_s": None if self.most_us is None else self.most_us / 1e6,
        }

    def __str__(self) -> str:
        return f"{_signed(self.least_us)} to {_signed(self.most_us)} against {self.role} {self.client}"


def _signed(us: int | None) -> str:
    """A difference in seconds, without unnecessary digits."""
    return "?" if us is None else f"{us / 1e6:+.6f}".rstrip("0").rstrip(".") + " s"


@dataclass(frozen=True)
class ProvenChain:
    """A history of a client's file, and the time through which it is proven."""

    role: str
    client: str
    source: str
    proven_us: int
    """µs since 1970, by the client's clock: no row that began by then is missing at its end. Later than every time if
    its file was retired."""
    ends: Ends
    offset: Offset | None = None
    """Against the client that shows most."""

    def as_dict(self) -> dict[str, Any]:
        found = {
            "role": self.role,
            "client": self.client,
            "proven": None if self.ends == "retired" else as_time(self.proven_us),
            "ends": self.ends,
        }
        return found if self.offset is None else {**found, "offset": self.offset.as_dict()}


@dataclass(frozen=True)
class Hold:
    """What keeps the time from being later."""

    role: str
    """Empty for the clock of this machine."""
    client: str
    through_us: int
    why: str

    def __str__(self) -> str:
        return f"{self.role} {self.client}: {self.why}" if self.role else self.why

    def as_dict(self) -> dict[str, Any]:
        found = {"role": self.role, "client": self.client} if self.role else {}
        return {**found, "through": as_time(self.through_us), "why": self.why}


@dataclass(frozen=True)
class Through:
    """The time through which the evidence is whole and no message is open."""

    us: int | None = None
    """µs since 1970. None: at no time."""
    held_by: Sequence[Hold] = ()
    chains: Sequence[ProvenChain] = ()
    """All, those first that are proven least."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "through": None if self.us is None else as_time(self.us),
            "held_by": [each.as_dict() for each in self.held_by],
            "clients": [each.as_dict() for each in self.chains[:_MAX_CLIENTS]],
        }


def as_time(us: int) -> str:
    """µs since 1970 in ISO 8601, UTC; numbers beyond the year 9999 as they are."""
    try:
        return f"{(_UNIX_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    except OverflowError:
        return f"{us} µs"


@dataclass(frozen=True)
class Report:
    """The result of a check."""

    findings: Sequence[Finding] = ()
    messages: Counts = field(default_factory=Counts)
    streams: int = 0
    sites: Mapping[str, SiteCounts] = field(default_factory=dict)
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By hop, quantiles in seconds."""
    clients: int = 0
    logs: int = 0
    duplicated: int = 0
    """Further copies of segments that were found already."""
    signatures_checked: bool = False
    """Whether segments and heads had to be signed by their clients."""
    checkpoints: int = 0
    """Valid checkpoints."""
    checkpoint_signatures_checked: bool = False
    unverified: int = 0
    """Messages, once per group, whose content could not be compared with the published content."""
    rows: int = 0
    seconds: float = 0.0
    through: Through = field(default_factory=Through)
    all_counts: bool = True
    """Whether any open question makes the verdict ``unknown``, rather than being about later messages only."""

    @property
    def verdict(self) -> Verdict:
        found = worst(self.findings)
        if found in ("violated", "lost") or self.all_counts or self.through.us is None:
            return found
        return "complete" if self.messages.proven or not self.messages.enqueued else "unknown"

    def of_kind(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {
            "verdict": self.verdict,
            **self.through.as_dict(),
            "messages": self.messages.as_dict(),
            "streams": self.streams,
            "sites": {name: dict(vars(site)) for name, site in sorted(self.sites.items())},
            "lost_ranges": [f.as_dict() for f in self.findings if f.severity == "lost"],
            "evidence": {
                "clients": self.clients,
                "logs": self.logs,
                "missing": [str(f) for f in self.of_kind("missing")],
                "duplicated": self.duplicated,
                "signatures_checked": self.signatures_checked,
                "checkpoints": self.checkpoints,
                "checkpoint_signatures_checked": self.checkpoint_signatures_checked,
                "unverified": self.unverified,
                "broken": [str(f) for f in self.findings if f.kind in ("broken", "skewed", *DEMANDS)],
            },
            "latency": {hop: dict(quantiles) for hop, quantiles in self.latency.items()},
            "findings": [finding.as_dict() for finding in self.findings],
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
        }

    def text(self, limit: int = 20) -> str:
        """A summary to read, with at most `limit` findings of each kind."""
        m = self.messages
        us = self.through.us
        checked = "checked" if self.signatures_checked else "not checked"
        lines = [
            f"verdict: {self.verdict}"
            + (f" through {as_time(us)}" if us and self.verdict == "complete" else ""),
            f"  {m.enqueued:,} messages in {self.streams} streams, from {self.clients} journals and {self.logs} logs",
        ]
        if us is not None:
            lines.append(f"  whole and without open questions through {as_time(us)}: {m.proven:,} messages")
            lines += [f"  held there by {each}" for each in self.through.held_by]
        clocks = sorted(
            (-each.offset.proven_us, each.role, each.client, str(each.offset))
            for each in self.through.chains[:_MAX_CLIENTS]
            if each.offset is not None
        )
        lines += [f"  clock of {role} {client}: {offset}" for _, role, client, offset in clocks[:_MAX_CLOCKS]]
        lines.append(f"  signatures of journals: {checked}")
        lines += [f"  delivered to {group}: {count:,}" for group, count in sorted(m.delivered.items())]
        lines.append(
            f"  lost {m.lost:,}, declared gaps {m.declared_gaps:,}, duplicates {m.duplicates:,},"
            f" out of order {m.out_of_order:,}, phantom {m.phantom:,}, pending {m.pending:,}, late {m.late:,},"
            f" before join {m.before_join:,}, dead letters {m.dead_lettered:,}, saved by repair"
            f" {m.saved_by_repair:,}, by a second site {m.saved_by_second_site:,}"
        )
        lines += [
            f"  site {name}: confirmed {s.confirmed:,}, received {s.received:,}, lost after confirming"
            f" {s.lost_after_confirm:,}, delivered thanks to it alone {s.saved_alone:,}"
            for name, s in sorted(self.sites.items())
        ]
        lines += [
            f"  {hop}: " + ", ".join(f"{name} {seconds:.6g} s" for name, seconds in quantiles.items())
            for hop, quantiles in sorted(self.latency.items())
        ]
        if self.checkpoints:
            checked = "checked" if self.checkpoint_signatures_checked else "not checked"
            lines.append(f"  checkpoints {self.checkpoints:,}, their signatures {checked}")
        for kind in KINDS:
            found = self.of_kind(kind)
            lines += [f"  {finding.severity}: {finding}" for finding in found[:limit]]
            if len(found) > limit:
                lines.append(f"  {found[0].severity}: {kind}: {len(found) - limit} more like these")
        return "\n".join(map(printable, lines))
