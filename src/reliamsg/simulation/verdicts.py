"""What must not be in a simulated run, by kind, and when it was."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.message import MessageId

__all__ = ["KINDS", "Violation"]

KINDS = {
    "lost": "durable, and neither delivered nor declared",
    "lost_held": "declared as a gap, although its producer was to hold it until the group had it",
    "let_go_unsafe": "its broker was told that it is safe, and then it was lost",
    "phantom": "delivered, yet never published",
    "delivered_after_failed": "delivered, although publishing it was reported as failed",
    "out_of_order": "delivered after a later message of its stream",
    "duplicate": "delivered again without being flagged",
    "redelivered_after_ack": "delivered again after its acknowledgement was durable",
    "delivered_after_gap": "delivered after it was declared as a gap",
    "false_gap": "declared as a gap after it was delivered",
    "skipped": "passed over without being declared",
    "gap_too_early": "declared as expired before the gap timeout",
    "corrupt": "one identity with two contents, or one content with two identities",
    "published_unconfirmed": "counted as published before enough sites had confirmed it",
    "unbounded": "more was taken than there is room for",
    "two_readers": "handed out by a consumer that could not know that no other of its group reads",
    "false_alarm": "a producer is said to have two histories, and it has one",
    "stalled": "not done long after the last fault, for no cause that a client named and this run's faults confirm",
    "spins": "wants to be called again at once, over and over, though nothing else happens",
    "stopped": "a client stopped that had no reason to",
    "internal_error": "the product raised what it never should",
    "checker": "the plain checker finds what must not be",
}
"""Kinds of violations, and what they mean."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    kind: str
    text: str
    at: float
    """Simulated seconds."""
    about: tuple[str, MessageId] | None = None
    """A group, and a message of which its journals must show it as well; None where they may know nothing."""

    def __str__(self) -> str:
        return f"{self.at:.3f}: {self.kind} ({KINDS[self.kind]}): {self.text}"
