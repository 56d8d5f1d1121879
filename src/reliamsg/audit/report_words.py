"""The report's texts: meanings of verdicts and counts, and the format of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["counts", "duration", "grouped", "meaning", "moment", "times"]

_COUNTS = (
    ("enqueued", "enqueued", "published, so that they had to arrive", ""),
    ("lost", "lost", "never delivered, and nobody was told", "lost"),
    ("declared_gaps", "declared gaps", "not delivered, and the application was told", "lost"),
    ("duplicates", "duplicates", "delivered again without being flagged", "violated"),
    ("out_of_order", "out of order", "delivered after a later one of their stream", "violated"),
    ("phantom", "phantom", "delivered, yet never published", "violated"),
    ("pending", "pending", "still on their way, as far as the journals say", "unknown"),
    ("late", "late", "arrived after their gap was closed, and not delivered", ""),
    ("before_join", "before join", "older than the group's first look at the stream", ""),
    ("saved_by_repair", "saved by repair", "received only because their producer sent them again", ""),
    ("saved_by_second_site", "saved by a second site", "lost by a site that had confirmed them", ""),
)


def meaning(verdict: Mapping[str, Any]) -> dict[str, str]:
    """A sentence about the verdict, and the next step."""
    m = verdict["messages"]
    evidence = verdict["evidence"]
    match verdict["verdict"]:
        case "complete":
            return {
                "says": "Every message reached every group that reads its topic: once, in order, unchanged.",
                "then": "Nothing is left open, and no evidence is missing.",
            }
        case "lost":
            silent, told = grouped(m["lost"]), grouped(m["declared_gaps"])
            return {
                "says": "Messages are lost: published, and proven not to have reached a group.",
                "then": f"{silent} without a word, {told} declared to the application as gaps. The last hop that a"
                " range reached says where to look.",
            }
        case "violated":
            return {
                "says": "A promise was broken: the journals prove that something happened that never may.",
                "then": "The findings below say what, where and for which messages. What was lost"
                " besides, or is still open, is listed apart.",
            }
    lacking = len(evidence.get("missing", [])) + len(evidence.get("broken", []))
    why = f"{times(lacking, 'piece')} of evidence missing or damaged" if lacking else "no evidence is missing"
    return {
        "says": "The journals do not show what became of every message.",
        "then": f"No loss is proven, nor is there proof that there is none: {why},"
        f" {times(m['pending'], 'message')} still open.",
    }


def counts(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages by fate; `severity` is empty for those that are no problem."""
    return [
        {
            "label": label,
            "count": verdict["messages"][name],
            "means": means,
            "severity": severity if verdict["messages"][name] else "",
        }
        for name, label, means, severity in _COUNTS
    ]


def grouped(number: float) -> str:
    """A number with thousands separators, without unnecessary digits."""
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:,.2g}"


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
