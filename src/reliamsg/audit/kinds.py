"""All kinds of findings: their severity and meaning.

The plain checker (``reliamsg.checker``) has a separate table on purpose, so that the two do not share mistakes. Tests
compare them.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["KINDS", "LOSSES", "PRECEDENCE", "Severity"]

Severity = Literal["violated", "lost", "unknown", "remark"]
PRECEDENCE: tuple[Severity, ...] = ("violated", "lost", "unknown", "remark")
"""Worst first. The verdict is the worst severity, or ``complete``; remarks do not affect it."""

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
    "consumed_unsettled": ("violated", "counted as consumed, yet its group had not settled it"),
    "false_removal": ("violated", "declared as removed, yet its producer never removed it"),
    "corrupt": ("violated", "the delivered content differs from the published content"),
    "lost": ("lost", "published, and never delivered"),
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
    # Remarks, which do not affect the verdict
    "fork": ("remark", "a producer with two histories, since its outbox was restored or copied"),
}

LOSSES = tuple(kind for kind, (severity, _) in KINDS.items() if severity == "lost")
"""Messages that did not reach a group, and never will."""
