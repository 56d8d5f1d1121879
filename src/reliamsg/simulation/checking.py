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


def compare(world: World, directory: Path) -> None:
    """Check the journals that a run has left, and report where the checker sees what the judge does not."""
    oracle = world.oracle
    report = check_directory(directory, Expect(gap_timeout=world.scenario.gap_timeout))
    for finding in report.findings:
        if finding.kind in MISSED and world.restored:
            continue
        if finding.severity == "violated" or finding.kind == "lost":
            oracle.violate("checker", f"{finding.kind}: {finding}")
