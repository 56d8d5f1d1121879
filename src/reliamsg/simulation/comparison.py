"""Compares the plain checker's verdict about a run's journals with the judge's, in both directions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from reliamsg.checker import Expect, Finding, check_directory
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.spans import Spans
from reliamsg.message import MessageId, Stream
from reliamsg.simulation.declarations import stream_of
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.oracle import Oracle

__all__ = ["Comparison"]


class Comparison:
    """Reports where the two contradict each other, as violations."""

    def __init__(
        self,
        oracle: Oracle,
        incidents: Incidents,
        topics_of: Callable[[str], Collection[str]],
        renumberings: Mapping[str, Renumbering],
    ) -> None:
        """`topics_of`: what each group reads. `renumberings`: by producer."""
        self._oracle, self._incidents = oracle, incidents
        self._topics_of, self._renumberings = topics_of, renumberings

    def compare(self, directory: Path) -> None:
        """Check the journals that a run left in a directory."""
        # What no producer named a group for may be in an inbox that never reads again, because another took over.
        drained = not self._oracle.has_unpromised(self._topics_of)
        report = check_directory(directory, Expect(drained=drained))
        for finding in report.findings:
            wrong = finding.severity == "violated" or finding.kind == "lost"
            if wrong or (finding.kind in UNKNOWN and not UNKNOWN[finding.kind](self, finding)):
                self._oracle.violate("checker", f"{finding.kind}: {finding}")
        self._find_omissions(report.findings)

    # -- what the checker reports, and the judge does not -----------------------------------------------------

    def went_with_outbox(self, finding: Finding) -> bool:
        """Whether, according to the judge, everything that a finding is about was lost with an outbox's disk; or its
        removal was; or it has another epoch now, and was offered under this one."""
        return all(
            self._oracle.went_with_outbox(message)
            or (self._oracle.was_offered(message) and self._epoch_of(message) != message.epoch)
            for message in _messages(finding)
        )

    def was_delivered_apart(self, finding: Finding) -> bool:
        """Whether, according to the judge, two inboxes delivered everything that a finding is about."""
        first_deliveries = self._oracle.first_deliveries[finding.group]
        return set(_messages(finding)) <= set(first_deliveries.delivered_apart(journalled=False))

    def was_dealt_with(self, finding: Finding) -> bool:
        """Whether, according to the judge, some inbox of the group dealt with everything that a finding is about, or it
        was lost with an outbox's disk."""
        return all(self._oracle.is_dealt_with(finding.group, message) for message in _messages(finding))

    def was_joined_blindly(self, finding: Finding) -> bool:
        """Whether the group had no announcement of the producer when it declared that everything that a finding is
        about was published before it joined."""
        return all(map(self._oracle.declarations[finding.group].was_blind, _messages(finding)))

    def is_journal_gone(self, finding: Finding) -> bool:
        """Whether a part of a journal to which others refer was lost with an outbox's disk, or was made up by someone:
        in a group's quarantine, that can't be distinguished from messages whose journal is missing."""
        named = re.search(r"(opening|epoch) (\S+) of producer (\S+)", finding.text)
        if named is None:  # an outbox that has nothing any more does not publish to any topic
            return "any producer of topic" in finding.text and self._incidents.outbox_replaced
        part, number, producer = named.groups()
        return self._incidents.is_unverifiable(producer, part, int(number, 16 if part == "opening" else 10))

    # -- what the judge reports, and the checker does not -----------------------------------------------------

    def _find_omissions(self, findings: Sequence[Finding]) -> None:
        """Report what the judge knows and the checker does not mention: a broken promise, a message that a group was to
        receive and did not, whether that was declared or not, and one that two inboxes delivered without a flag."""
        oracle, mentioned = self._oracle, defaultdict[tuple[str, Stream, int], Spans](Spans)
        for finding in findings:
            if finding.severity != "remark" and finding.first is not None and finding.last is not None:
                assert finding.stream is not None
                assert finding.epoch is not None
                mentioned[finding.group, finding.stream, finding.epoch].add(finding.first, finding.last)
        known = [(found.kind, *found.about) for found in oracle.violations if found.about is not None]
        for group in oracle.groups:
            apart = oracle.first_deliveries[group].delivered_apart(journalled=True)
            known += [("duplicate_apart", group, message) for message in apart]
            known += [("not delivered", group, message) for message in oracle.not_delivered(group)]
        for kind, group, message in known:
            stream = stream_of(message)
            # The judge knows what was removed before any broker saw it by the name that it had first.
            epochs = {message.epoch, self._epoch_of(message)}
            if not any(
                message.seq in mentioned[who, stream, epoch] for who in (group, "") for epoch in epochs
            ):
                oracle.violate("checker", f"not reported: {kind}: {message} at {group}")

    def _epoch_of(self, message: MessageId) -> int:
        """The epoch that a message has now."""
        return self._renumberings[message.producer].epoch(stream_of(message), message.epoch, 0)


def _messages(finding: Finding) -> Iterator[MessageId]:
    """The messages that a finding is about."""
    assert finding.stream is not None  # it is about messages
    assert finding.epoch is not None
    assert finding.first is not None
    assert finding.last is not None
    producer, topic, partition = finding.stream
    for seq in range(finding.first, finding.last + 1):
        yield MessageId(producer, finding.epoch, topic, partition, seq)


UNKNOWN: dict[str, Callable[[Comparison, Finding], bool]] = {
    "unproven": Comparison.went_with_outbox,
    "unproven_gap": Comparison.went_with_outbox,
    "settled_unseen": Comparison.was_dealt_with,
    "joined_unheard": Comparison.was_joined_blindly,
    "duplicate_apart": Comparison.was_delivered_apart,
    "missing": Comparison.is_journal_gone,
}
"""What the checker can't know, and when it may report it."""
