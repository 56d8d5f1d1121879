"""The plain checker's verdict about a run's journals, held against the judge's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reliamsg.message import MessageId, Stream
from reliamsg.simulation.passages import stream_of
from reliamsg.verify import Expect, Finding, check_directory
from reliamsg.verify.spans import Spans

if TYPE_CHECKING:
    from reliamsg.simulation.oracle import Operation
    from reliamsg.simulation.world import World

__all__ = ["compare"]


def compare(world: World, directory: Path) -> None:
    """Check the journals that a run has left, and report where the checker sees what the judge does not."""
    oracle = world.oracle
    report = check_directory(directory, Expect())
    for finding in report.findings:
        if finding.kind == "lost" and any(excuse(world, finding) for excuse in DOCUMENTED):
            continue
        wrong = finding.severity == "violated" or finding.kind == "lost"
        if wrong or (finding.kind in UNKNOWN and not UNKNOWN[finding.kind](world, finding)):
            oracle.violate("checker", f"{finding.kind}: {finding}")
    _look_for_unsaid(world, report.findings)


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


def _numbers(finding: Finding) -> Iterator[MessageId]:
    """The messages that a finding is about."""
    assert finding.stream is not None  # it is about messages
    assert finding.epoch is not None
    assert finding.first is not None
    assert finding.last is not None
    for seq in range(finding.first, finding.last + 1):
        yield MessageId(
            finding.stream.producer, finding.epoch, finding.stream.topic, finding.stream.partition, seq
        )


def _went_with_an_outbox(world: World, finding: Finding) -> bool:
    """Whether the judge saw all that a finding is about go with an outbox's disk; what was said to be removed, the
    removal."""
    return all(map(world.oracle.went, _numbers(finding)))


def _is_apart(world: World, finding: Finding) -> bool:
    """Whether the judge saw two inboxes give all that a finding is about."""
    return set(_numbers(finding)) <= set(world.oracle.firsts[finding.group].apart(sure=False))


UNKNOWN: dict[str, Callable[[World, Finding], bool]] = {
    "unproven": _went_with_an_outbox,
    "unproven_gap": _went_with_an_outbox,
    "duplicate_apart": _is_apart,
}
"""What the checker can't know, and when it may say so."""


def _look_for_unsaid(world: World, findings: list[Finding]) -> None:
    """Report what the judge knows and the checker passes over: a promise that was broken, a message that a group was
    to be given and was not, whether that was declared or not, and one that two inboxes gave without a flag."""
    oracle, said = world.oracle, defaultdict[tuple[str, Stream, int], Spans](Spans)
    for finding in findings:
        if finding.severity != "remark" and finding.first is not None and finding.last is not None:
            assert finding.stream is not None
            assert finding.epoch is not None
            said[finding.group, finding.stream, finding.epoch].add(finding.first, finding.last)
    known = [(found.kind, *found.about) for found in oracle.violations if found.about is not None]
    for group in oracle.groups:
        known += [("duplicate_apart", group, message) for message in oracle.firsts[group].apart(sure=True)]
        known += [("not delivered", group, message) for message in oracle.not_given(group)]
    for kind, group, message in known:
        place = stream_of(message), message.epoch
        if not any(message.seq in said[who, *place] for who in (group, "")):
            oracle.violate("checker", f"says nothing: {kind}: {message} at {group}")


DOCUMENTED = _joined_blindly, _is_behind
"""Which losses are known limits, as the documentation says."""
