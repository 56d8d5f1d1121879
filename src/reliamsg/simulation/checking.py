"""The plain checker's verdict about a run's journals, held against the judge's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reliamsg.verify import Expect, Finding, check_directory

if TYPE_CHECKING:
    from reliamsg.simulation.oracle import Operation
    from reliamsg.simulation.world import World

__all__ = ["compare"]

TAKEN_OVER = frozenset({"duplicate", "acknowledged_twice", "redelivered_after_ack", "false_before_join"})
"""Findings about two consumers of a group, of which the judge alone knows what one had heard of the other."""

FORKED = frozenset({"not_redelivered", "out_of_order"})
"""Findings about an epoch that a group left because its producer's outbox was replaced by a copy, or lost what was in
it: the group does not wait for what it was given last, had not acknowledged, and only a broker still has; and what
comes too late for that epoch is declared though the application may not have been given all before it. Whether it was
given that in order, the judge knows."""


def compare(world: World, directory: Path) -> None:
    """Check the journals that a run has left, and report where the checker sees what the judge does not."""
    oracle = world.oracle
    report = check_directory(directory, Expect())
    for finding in report.findings:
        if finding.kind in FORKED and _is_forked(report.findings, finding):
            continue
        if finding.kind == "lost" and any(excuse(world, finding) for excuse in DOCUMENTED):
            continue
        if finding.kind in ("phantom", "phantom_gap") and _went_with_an_outbox(world, finding):
            continue
        if finding.kind in TAKEN_OVER and finding.group in world.scenario.standbys:
            continue
        if finding.severity == "violated" or finding.kind == "lost":
            oracle.violate("checker", f"{finding.kind}: {finding}")


def _is_forked(findings: list[Finding], finding: Finding) -> bool:
    """Whether the group met a later epoch that does not know how this one ended."""
    assert finding.epoch is not None  # it is about messages
    return any(
        other.kind == "fork"
        and (other.stream, other.group) == (finding.stream, finding.group)
        and other.epoch is not None
        and other.epoch > finding.epoch
        for other in findings
    )


def _joined_blindly(world: World, finding: Finding) -> bool:
    """Whether a loss is the documented one of a group that met a stream in its middle, and for `gap_timeout` heard
    nothing of its producer, which could tell that what came before was for the group."""
    assert finding.stream is not None  # losses are of streams
    assert finding.epoch is not None
    assert finding.first is not None
    assert finding.last is not None
    return world.oracle.passages[finding.group].is_blind(
        finding.stream, finding.epoch, finding.first, finding.last
    )


def _is_behind(world: World, finding: Finding) -> bool:
    """Whether a loss is the documented one of an outbox that was replaced and went on in an epoch that is over."""
    return all(world.oracle.is_behind(finding.group, operation) for operation in _operations(world, finding))


def _operations(world: World, finding: Finding) -> list[Operation]:
    """What a loss is about."""
    assert finding.first is not None  # losses are of ranges
    assert finding.last is not None
    return [
        operation
        for operation in world.oracle.operations.values()
        if (message := operation.message) is not None
        and (operation.stream, message.epoch) == (finding.stream, finding.epoch)
        and finding.first <= message.seq <= finding.last
    ]


def _went_with_an_outbox(world: World, finding: Finding) -> bool:
    """Whether the judge saw all that a finding is about go with an outbox's disk, and nothing that came of it later
    lets a journal tell so."""
    assert finding.stream is not None  # they are of streams
    assert finding.epoch is not None
    assert finding.first is not None
    assert finding.last is not None
    return world.oracle.went(finding.stream, finding.epoch, finding.first, finding.last)


def _went_with_an_inbox(world: World, finding: Finding) -> bool:
    """Whether a loss is of what an inbox was given whose journal went with its disk, and of which no other journal
    says that a group was told so: its producer had stopped counting the group, and forgot how far it was."""
    oracle = world.oracle
    given = oracle.handed[finding.group]
    return all(
        operation.message is not None and given.get(operation.message) in oracle.inboxes[finding.group]
        for operation in _operations(world, finding)
    )


DOCUMENTED = _joined_blindly, _is_behind, _went_with_an_inbox
"""Which losses are known limits, as the documentation says."""
