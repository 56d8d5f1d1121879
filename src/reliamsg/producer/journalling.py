"""How a producer's journal rows are merged before they are written."""

from __future__ import annotations

from reliamsg.runtime.journal_buffer import MergeRules
from reliamsg.transport.base import Outcome

__all__ = ["MAX_WAITING_ROWS", "RULES"]

MAX_WAITING_ROWS = 10_000
"""Most rows that wait to be written. More wait only where the disk stays full: then the oldest are given up."""

RULES = MergeRules(
    frozenset(
        {"confirmed", "published", "released", "released_unsent", "repaired", *(o.value for o in Outcome)}
    ),
    # Sites confirm the epochs of a stream side by side.
    order=("kind", "stream", "epoch", "site", "group", "reason"),
)
