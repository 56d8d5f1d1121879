"""The report's texts: meanings of verdicts and counts, and the format of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["compact", "counts", "duration", "grouped", "meaning", "moment", "quantile", "times"]

_COUNTS = (
    ("enqueued", "enqueued", "published, and thus to be delivered", ""),
    ("proven", "proven", "enqueued by the time through which everything is proven", ""),
    ("lost", "lost", "never delivered, and not declared to the application", "lost"),
    ("declared_gaps", "declared gaps", "not delivered, and declared to the application", "lost"),
    ("duplicates", "duplicates", "delivered again without the redelivery flag", "violated"),
    ("out_of_order", "out of order", "delivered after a later one of their stream", "violated"),
    ("phantom", "phantom", "delivered, yet never published", "violated"),
    ("pending", "pending", "still in flight, according to the journals", "unknown"),
    ("late", "late", "arrived after their gap was closed, and not delivered", ""),
    ("before_join", "before join", "older than the position where the group joined", ""),
    ("dead_lettered", "dead letters", "given up after failures of the handler, or rejected by it", "unknown"),
    ("saved_by_repair", "saved by repair", "received only because their producer resent them", ""),
    ("saved_by_second_site", "saved by a second site", "lost by a site that had confirmed them", ""),
)


def meaning(verdict: Mapping[str, Any]) -> dict[str, str]:
    """A sentence about the verdict, and the next step."""
    m = verdict["messages"]
    evidence = verdict["evidence"]
    match verdict["verdict"]:
        case "complete":
            return {
                "says": "Every message reached every group of its topic: once, in order, unchanged.",
                "then": "No message is open, and no evidence is missing.",
            }
        case "lost":
            silent, told = grouped(m["lost"]), grouped(m["declared_gaps"])
            return {
                "says": "Messages are lost: published, and proven not to have reached a group.",
                "then": f"{silent} silently, {told} declared to the application as gaps. The last hop that a range"
                " reached shows where to look.",
            }
        case "violated":
            return {
                "says": "A promise was broken: the journals prove a violation.",
                "then": "The findings below show the kind, the place and the messages. Lost and open messages"
                " are listed separately.",
            }
    lacking = len(evidence.get("missing", [])) + len(evidence.get("broken", []))
    why = f"{times(lacking, 'piece')} of evidence missing or damaged" if lacking else "no evidence is missing"
    return {
        "says": "The journals do not show the fate of every message.",
        "then": f"Losses are neither proven nor ruled out: {why},"
        f" {times(m['pending'], 'message')} still open.",
    }


def counts(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages by fate; `severity` is empty for those that are no problem."""
    return [
        {
            "name": name,
            "label": label,
            "count": verdict["messages"][name],
            "means": means,
            "severity": severity if verdict["messages"][name] else "",
        }
        for name, label, means, severity in _COUNTS
        if name in verdict["messages"]
    ]


def grouped(number: float) -> str:
    """A number with thousands separators, without unnecessary digits."""
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:,.2g}"


def compact(number: float) -> str:
    """A number of messages in few characters: 9,500, 12k, 1.5M."""
    if abs(number) < 10_000:
        return grouped(number)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return grouped(number)


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """The upper bound of the bucket in which the quantile lies, in seconds. Bucket b ends at 2^((b+1)/4) µs."""
    needed, seen, at = share * sum(buckets.values()), 0, 0
    for at in sorted(buckets):
        seen += buckets[at]
        if seen >= needed:
            break
    return float(round(2.0 ** ((min(at, 255) + 1) / 4) / 1e6, 6))


def times(number: int, noun: str) -> str:
    """For example "1 message", "2 messages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration in seconds, formatted in a suitable unit."""
    for limit, factor, unit in (
        (1e-3, 1e6, "µs"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:,.3g} h"


def moment(us: float) -> str:
    """A time in µs since 1970 as UTC, to the second."""
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
