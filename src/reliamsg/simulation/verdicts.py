"""The violations of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.message import MessageId

__all__ = ["KINDS", "Violation"]

KINDS = {
    "lost": "durable, and neither delivered nor declared",
    "lost_held": "declared as a gap, although its producer was to keep it until the group had it",
    "let_go_unsafe": "its broker was allowed to delete it, and then it was lost",
    "phantom": "delivered, but never published",
    "delivered_after_failed": "delivered, although publishing it was reported as failed",
    "out_of_order": "delivered after a later message of its stream",
    "duplicate": "delivered again without being flagged",
    "redelivered_after_ack": "delivered again after its acknowledgement was durable",
    "delivered_after_gap": "delivered after it was declared as a gap",
    "false_gap": "declared as a gap after it was delivered",
    "skipped": "skipped without being declared",
    "gap_too_early": "declared as expired before the gap timeout",
    "corrupt": "one identity with two contents, or one content with two identities",
    "published_unconfirmed": "counted as published before enough sites had confirmed it",
    "unbounded": "a client accepted more than it has room for",
    "uncommitted_row": "named to others as a row of its journal, and not committed by that opening",
    "two_readers": "delivered by a consumer that could not know that no other consumer of its group reads",
    "unreported": "kept in a quarantine, and the consumer's status does not say so",
    "false_alarm": "a producer is accused of having two histories, but has one",
    "stalled": "not finished long after the last fault, and no client named a cause that this run's faults confirm",
    "spins": "an engine asks to be called again at once, over and over, although nothing else happens",
    "stopped": "a client terminated without a reason",
    "internal_error": "the product, or the simulator, raised an error that must never be raised",
    "checker": "the plain checker contradicts the judge",
}
"""Kinds of violations, and their meanings."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not happen."""

    kind: str
    text: str
    at: float
    """Simulated seconds."""
    about: tuple[str, MessageId] | None = None
    """A group and a message, where the group's journals must show the violation as well; None where they may not."""

    def __str__(self) -> str:
        return f"{self.at:.3f}: {self.kind} ({KINDS[self.kind]}): {self.text}"
