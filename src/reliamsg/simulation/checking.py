"""The plain checker's verdict about a run's journals, held against the judge's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reliamsg.checker import Expect, Finding, check_directory
from reliamsg.checker.spans import Spans
from reliamsg.message import MessageId, Stream
from reliamsg.simulation.passages import stream_of

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["compare"]


def compare(world: World, directory: Path) -> None:
    """Check the journals that a run has left, and report where the checker sees what the judge does not."""
    oracle = world.oracle
    # What no producer named a group for may be in an inbox that never reads again, since another has taken over.
    drained = not oracle.unresolved(world.scenario.topics_of)
    report = check_directory(directory, Expect(drained=drained))
    for finding in report.findings:
        wrong = finding.severity == "violated" or finding.kind == "lost"
        if wrong or (finding.kind in UNKNOWN and not UNKNOWN[finding.kind](world, finding)):
            oracle.violate("checker", f"{finding.kind}: {finding}")
    _look_for_unsaid(world, report.findings)


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
    removal; and what has another epoch now, that it was offered under this one."""
    oracle = world.oracle
    now = {producer.name: producer.renumbering() for producer in world.producers}
    return all(
        oracle.went(message)
        or (
            oracle.was_offered(message)
            and now[message.producer].epoch(stream_of(message), message.epoch, 0) != message.epoch
        )
        for message in _numbers(finding)
    )


def _is_apart(world: World, finding: Finding) -> bool:
    """Whether the judge saw two inboxes give all that a finding is about."""
    return set(_numbers(finding)) <= set(world.oracle.firsts[finding.group].apart(sure=False))


def _was_dealt_with(world: World, finding: Finding) -> bool:
    """Whether the judge saw some inbox of the group deal with all that a finding is about, or an outbox's disk take
    it."""
    oracle = world.oracle
    return all(oracle.is_dealt_with(finding.group, message) for message in _numbers(finding))


def _joined_unheard(world: World, finding: Finding) -> bool:
    """Whether the group had heard nothing of the producer of all that a finding is about when it took it for what came
    before."""
    return all(map(world.oracle.passages[finding.group].is_blind, _numbers(finding)))


def _journal_went(world: World, finding: Finding) -> bool:
    """Whether a part of a journal of which others tell went with an outbox's disk, or somebody made up the opening:
    what a group keeps in quarantine nothing tells from messages of one whose journal is missing."""
    named = re.search(r"(opening|epoch) (\S+) of producer (\S+)", finding.text)
    if named is None:  # an outbox that has nothing any more publishes to no topic
        return "any producer of topic" in finding.text and world.restored
    what, name, producer = named.groups()
    return (producer, what, int(name, 16 if what == "opening" else 10)) in world.unjournalled


UNKNOWN: dict[str, Callable[[World, Finding], bool]] = {
    "unproven": _went_with_an_outbox,
    "unproven_gap": _went_with_an_outbox,
    "settled_unseen": _was_dealt_with,
    "joined_unheard": _joined_unheard,
    "duplicate_apart": _is_apart,
    "missing": _journal_went,
}
"""What the checker can't know, and when it may say so."""


def _look_for_unsaid(world: World, findings: Sequence[Finding]) -> None:
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
    now = {producer.name: producer.renumbering() for producer in world.producers}
    for kind, group, message in known:
        stream = stream_of(message)
        # What was removed before any broker saw it is known to the judge by the name that it had first.
        names = {message.epoch, now[message.producer].epoch(stream, message.epoch, 0)}
        if not any(message.seq in said[who, stream, epoch] for who in (group, "") for epoch in names):
            oracle.violate("checker", f"says nothing: {kind}: {message} at {group}")
