"""Compares the checker's verdict on a run's journals with the judge's verdict, in both directions."""

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
    """Reports contradictions between the two as violations."""

    def __init__(
        self,
        oracle: Oracle,
        incidents: Incidents,
        topics_of: Callable[[str], Collection[str]],
        renumberings: Mapping[str, Renumbering],
    ) -> None:
        """`topics_of`: the topics of each group. `renumberings`: by producer."""
        self._oracle, self._incidents = oracle, incidents
        self._topics_of, self._renumberings = topics_of, renumberings

    def compare(self, directory: Path) -> None:
        """Check the journals that a run left in a directory."""
        # Messages for which no producer named a group may be in an inbox that never reads again, because another one
        # took over.
        drained = not self._oracle.has_unpromised(self._topics_of)
        report = check_directory(directory, Expect(drained=drained))
        truncated = self._incidents.truncated
        for finding in report.findings:
            # Journals that were exported before an outbox was lost prove that its messages are lost.
            lost = finding.kind == "lost" and not (
                self.went_with_outbox(finding) or self.went_with_inbox(finding)
            )
            wrong = finding.severity == "violated" or lost
            unproven = finding.kind in UNKNOWN and not UNKNOWN[finding.kind](self, finding)
            if wrong or (unproven and truncated.isdisjoint(_clients(finding))):
                self._oracle.violate("checker", f"{finding.kind}: {finding}")
        self._find_omissions(report.findings)

    # -- findings of the checker that the judge does not have ------------------------------------------------

    def went_with_outbox(self, finding: Finding) -> bool:
        """Whether, according to the judge, all messages of a finding were lost with an outbox's disk, or their removal
        was, or they were renumbered after being offered in this epoch."""
        return all(
            self._oracle.went_with_outbox(message)
            or (self._oracle.was_offered(message) and self._epoch_of(message) != message.epoch)
            for message in _messages(finding)
        )

    def went_with_inbox(self, finding: Finding) -> bool:
        """Whether an inbox of the group was lost, and the producer did not count the group for any of the messages of a
        finding: brokers keep nothing that an inbox has received, and nobody else had promised to."""
        return finding.group in self._incidents.replaced_inboxes and not any(
            self._oracle.was_promised(finding.group, message) for message in _messages(finding)
        )

    def was_delivered_apart(self, finding: Finding) -> bool:
        """Whether, according to the judge, two inboxes delivered all messages of a finding."""
        first_deliveries = self._oracle.first_deliveries[finding.group]
        return set(_messages(finding)) <= set(first_deliveries.delivered_apart(journalled=False))

    def was_dealt_with(self, finding: Finding) -> bool:
        """Whether, according to the judge, all messages of a finding were settled by some inbox of the group, or lost
        with an outbox's disk."""
        return all(self._oracle.is_dealt_with(finding.group, message) for message in _messages(finding))

    def was_joined_blindly(self, finding: Finding) -> bool:
        """Whether the group had no announcement of the producer when it declared all messages of a finding to be
        published before it joined."""
        return all(map(self._oracle.declarations[finding.group].was_blind, _messages(finding)))

    def is_journal_gone(self, finding: Finding) -> bool:
        """Whether a part of a journal to which others refer was lost with an outbox's or inbox's disk, or was forged.
        In a group's quarantine, forged messages can't be distinguished from messages without a journal."""
        if inbox := re.search(r"opening (\S+) of group (\S+)", finding.text):
            return self._incidents.lost_rows_of(inbox[2], inbox[1])
        if outbox := re.search(r"end of the journal \S+ of producer ([^ :]+)", finding.text):
            return self._incidents.was_outbox_replaced(outbox[1])
        named = re.search(r"(opening|epoch) (\S+) of producer (\S+)", finding.text)
        if named is None:  # an empty outbox publishes to no topic
            return "any producer of topic" in finding.text and self._incidents.outbox_replaced
        part, number, producer = named.groups()
        return self._incidents.is_unverifiable(producer, part, int(number, 16 if part == "opening" else 10))

    # -- findings of the judge that the checker does not have ------------------------------------------------

    def _find_omissions(self, findings: Sequence[Finding]) -> None:
        """Report findings of the judge that the checker lacks: broken promises; messages that a group should have
        received and did not, declared or not; and messages that two inboxes delivered without a flag. What clients
        discarded of their journals can't show any of that."""
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
            # Only the judge knows what was removed before any broker received it under its first identity.
            epochs = {message.epoch, self._epoch_of(message)}
            if self._incidents.truncated.isdisjoint((group, message.producer)) and not any(
                message.seq in mentioned[who, stream, epoch] for who in (group, "") for epoch in epochs
            ):
                oracle.violate("checker", f"not reported: {kind}: {message} at {group}")

    def _epoch_of(self, message: MessageId) -> int:
        """The current epoch of a message."""
        return self._renumberings[message.producer].epoch(stream_of(message), message.epoch, 0)


def _clients(finding: Finding) -> set[str]:
    """The producers and the group whose journals a finding is about."""
    named = re.search(r"producer ([^ ,:;]+)", finding.text)
    found = {finding.group} if named is None else {finding.group, named.group(1)}
    return found if finding.stream is None else found | {finding.stream.producer}


def _messages(finding: Finding) -> Iterator[MessageId]:
    """The messages of a finding."""
    assert finding.stream is not None  # the finding is about messages
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
"""Things that the checker can't know, and when it may report them."""
