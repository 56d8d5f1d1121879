"""The plain checker's verdict about a run's journals, held against the judge's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reliamsg.verify import Expect, check_directory

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["compare"]

MISSED = frozenset({"phantom", "phantom_gap"})
"""Findings about what a producer's journal lacks: where its outbox was replaced by a copy, that went with the disk."""

TAKEN_OVER = frozenset({"duplicate", "acknowledged_twice", "redelivered_after_ack", "false_before_join"})
"""Findings about several inboxes of a group, of which the judge alone knows what one had heard of the other."""

HANDED_AND_LOST = frozenset({"false_gap", "not_redelivered"})
"""Findings about what was handed out, not acknowledged when its consumer crashed, and lost by all brokers by then. The
inbox has nothing to hand out again, so it has to declare it; the judge knows what it had acknowledged."""


def compare(world: World, directory: Path) -> None:
    """Check the journals that a run has left, and report where the checker sees what the judge does not."""
    oracle = world.oracle
    report = check_directory(directory, Expect(gap_timeout=world.scenario.gap_timeout))
    for finding in report.findings:
        if finding.kind in MISSED and world.restored:
            continue
        if finding.kind in HANDED_AND_LOST:
            continue
        if finding.kind in TAKEN_OVER and len(oracle.inboxes.get(finding.group, ())) > 1:
            continue
        if finding.severity == "violated" or finding.kind == "lost":
            oracle.violate("checker", f"{finding.kind}: {finding}")
