"""Reports to the judge facts that are in a consumer's files and that its application is not told."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping

from reliamsg.consumer.intake import UNREADABLE
from reliamsg.message import Gap, MessageId, Stream
from reliamsg.protocol.receiver.redelivery import COUNTED_TOGETHER
from reliamsg.simulation.announcements import Announcements, Member
from reliamsg.simulation.declarations import BeforeJoin
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.journal_copy import JournalCopy
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.readers import NEVER
from reliamsg.simulation.settings import ClientSettings
from reliamsg.simulation.stored import dropped_unverified, quarantine
from reliamsg.store.inbox_rows import DeadLetter
from reliamsg.store.inbox_view import read_dead_letters
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.quarantine import LATER_VERSION

__all__ = ["NOT_READABLE", "ConsumerJournal", "message_of"]

NOT_READABLE = (UNREADABLE, LATER_VERSION)
"""Why deliveries are in quarantine that an installation can't read."""
TAKEN_IN = ("received", "duplicate", "late", "before_join", "conflict")
"""Rows about a delivery that was taken in."""


class ConsumerJournal:
    """Reads one consumer's journal incrementally: the :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""

    def __init__(
        self,
        member: Member,
        settings: ClientSettings,
        drive: Drive,
        oracle: Oracle,
        incidents: Incidents,
        announcements: Announcements,
    ) -> None:
        self._group, self._name, self._drive = member.group, member.name, drive
        self._oracle, self._incidents, self._announcements = oracle, incidents, announcements
        policy, deliveries, batch = settings["on_gap"], settings["max_deliveries"], settings["batch"] or 1
        self._skips, self._holds = policy == "skip", policy == "hold"
        self.max_attempts: float = NEVER if settings["on_dead_letter"] == "halt" else deliveries
        """After this many attempts a message becomes a dead letter."""
        self._counted_together = batch if deliveries <= 2 else max(batch, COUNTED_TOGETHER)
        """The number of messages whose attempts are counted at a time."""
        self._copy = JournalCopy(drive, incidents, member.group) if settings["journal"] else None
        self._lsn = 0
        """The position up to which the journal was read."""
        self._growing: dict[tuple[str, Stream], int] = {}
        """By kind and stream, the row before the newest one about acknowledgements or messages left to a producer: the
        newest row can still grow."""
        self._reads_since: float | None = None
        """When it first read a site since it was opened, as far as the journal was read; None if it did not."""
        self._accepted: list[Gap] = []
        """Gaps that were accepted, though not yet durably as far as known."""
        self._had: dict[str, int] = {}
        """By opening, the last row of the file that may be replaced."""
        self._kept: set[tuple[Stream, int, int]] = set()
        """Stream, epoch and number of messages that were seen in the quarantine, and that could not be read."""

    def _rows(self, connection: sqlite3.Connection, after: int = 0) -> list[JournalRow]:
        """All rows above `after` that the journal ever had, and has or would have if nothing had been exported."""
        return list(read_journal(connection, after)) if self._copy is None else self._copy.rows(after)

    # -- lookups --------------------------------------------------------------------------------------------

    def is_quarantined(self, stream: Stream, epoch: int, seq: int) -> bool:
        """See :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""
        if not self._drive.is_open:
            return False
        with self._drive.reading() as connection:
            found = quarantine(connection)
        return any(
            each.stream == stream and each.epoch == epoch and each.first <= seq <= each.last for each in found
        )

    def was_dropped_unverified(self, stream: Stream, epoch: int, seq: int) -> bool:
        """See :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""
        with self._drive.reading() as connection:
            found = list(dropped_unverified(connection))
        return any(
            each.stream == stream and each.epoch == epoch and each.seq <= seq <= each.last for each in found
        )

    def came_before_join(self, stream: Stream, epoch: int, seq: int) -> bool:
        """See :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""
        rows = self._rows_about("before_join", stream)
        return any(row.epoch == epoch and row.first <= seq <= (row.last or seq) for row in rows)

    def has_joined(self, stream: Stream) -> bool:
        """See :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""
        return bool(self._rows_about("joined", stream))

    def _rows_about(self, kind: str, stream: Stream) -> list[JournalRow]:
        if not self._drive.path.exists():  # it was never opened
            return []
        with self._drive.reading() as connection:
            rows = self._rows(connection)
        return [row for row in rows if row.kind == kind and _stream_of(row) == stream]

    def report_left_messages(self) -> None:
        """See :class:`~reliamsg.simulation.oracle.ConsumerFiles`."""
        if self._drive.is_open:
            with self._drive.reading() as connection:
                rows = self._rows(connection)
            for row in rows:
                if row.kind == "let_go":
                    self._report_left(row, _stream_of(row))

    # -- events of its process ------------------------------------------------------------------------------

    def gap_accepted(self, gap: Gap) -> None:
        """Its application accepted a gap; this is durable with the next commit."""
        self._accepted.append(gap)

    def process_terminated(self, may_be_replaced: bool) -> None:
        """Its process is gone, with everything that it had not committed. `may_be_replaced`: its files may be
        replaced."""
        if may_be_replaced or self._accepted:
            self.report()
        self._had = self._openings() if may_be_replaced else {}
        for gap in self._accepted:
            self._oracle.acceptance_lost(self._group, self._name, gap)
        self._accepted.clear()

    def file_replaced(self) -> None:
        """The journal was replaced by an older copy."""
        self._lsn = 0
        self._growing.clear()
        self._kept.clear()
        has = self._openings()
        gone = {boot for boot, last in self._had.items() if has.get(boot, 0) < last}
        self._incidents.inbox_rows_lost(self._group, gone)

    def _openings(self) -> dict[str, int]:
        """By opening, its last row."""
        with self._drive.reading() as connection:
            return {row.boot: row.lsn for row in self._rows(connection)}

    # -- reporting ------------------------------------------------------------------------------------------

    def report(self) -> None:
        """Report everything new: messages from before the group joined, messages that were skipped or arrived in an
        epoch that had ended, and actions of its consumers that were durable when they terminated."""
        with self._drive.reading() as connection:
            rows = self._rows(connection, min([self._lsn, *self._growing.values()]))
        known = self._lsn
        for row in rows:
            self._lsn = max(row.lsn, known)
            stream = _stream_of(row)
            if row.kind in ("acknowledged", "let_go"):
                self._growing[row.kind, stream] = row.lsn - 1
                if row.kind == "acknowledged":
                    self._report_settled(row, stream)
                else:
                    self._report_left(row, stream)
                    self._incidents.count("let_go", int(row.lsn > known))
            elif row.lsn > known:
                self._report_new(row, stream)

    def _report_new(self, row: JournalRow, stream: Stream) -> None:
        oracle, group, name = self._oracle, self._group, self._name
        if row.kind == "quarantined":
            self._incidents.count("quarantined", int(row.reason == "held"))
            if row.reason == UNREADABLE:
                oracle.kept_unreadable(group, stream, row.epoch, row.first, row.last)
        elif row.kind == "opened":
            self._reads_since = None
        elif row.kind == "connected" and self._reads_since is None:
            self._reads_since = row.mono_us / 1e6
        elif row.kind == "joined":
            oracle.started_in_journal(group, name, stream, row.epoch, row.first)
            place = row.epoch, max(row.first, 1)
            oracle.declarations[group].started(stream, place, row.mono_us / 1e6, name)
        elif row.kind == "before_join":
            at, span = row.mono_us / 1e6, (row.epoch, row.first, row.last)
            blind = not self._had_status(stream, at)
            oracle.declarations[group].joined(BeforeJoin(stream, *span, at, name, blind=blind))
            oracle.came_before_join(group, stream, *span, at)
        elif row.kind == "dead_lettered":
            self._report_settled(row, stream)
            for seq in range(row.first, row.last + 1):
                message = MessageId(stream.producer, row.epoch, stream.topic, stream.partition, seq)
                oracle.dead_lettered(group, message, self.max_attempts, self._counted_together)
        elif row.kind == "declared":
            self._report_declared(row, stream)
        elif row.kind == "conflict" and (known := (row.detail or {}).get("known")) is not None:
            place = known[0], known[2]
            oracle.declarations[group].forked(stream, place, row.epoch, row.mono_us / 1e6, name)

    def _report_settled(self, row: JournalRow, stream: Stream) -> None:
        self._oracle.settled_in_journal(self._group, stream, row.epoch, row.first, row.last)

    def _report_left(self, row: JournalRow, stream: Stream) -> None:
        self._oracle.left_to_producer(self._group, self._name, stream, row.epoch, row.first, row.last)

    def _report_declared(self, row: JournalRow, stream: Stream) -> None:
        gap = Gap(stream, row.epoch, row.first, row.last or None, row.reason)
        until = (row.detail or {}).get("until_epoch")
        if until is not None:
            declarations = self._oracle.declarations[self._group]
            declarations.end_before(stream, row.epoch, row.first, self._name, until)
        if self._skips or row.reason == "superseded" or (self._holds and row.reason == "removed"):
            self._oracle.gap_skipped(self._group, self._name, gap, row.mono_us / 1e6, until)
        start = gap.stream, gap.epoch, gap.first
        self._accepted = [each for each in self._accepted if (each.stream, each.epoch, each.first) != start]

    def _had_status(self, stream: Stream, at: float) -> bool:
        """Whether it had received a status of a stream since it began to read, by then. A consumer that does not read
        receives no announcements."""
        since = self._reads_since
        return since is not None and self._announcements.includes_status(stream, since, at)

    def check_quarantine(self, counts: Mapping[str, int], all_readable: bool) -> None:
        """Check the number of deliveries in the quarantine by reason, according to the consumer's status.
        `all_readable`: the consumer has read for a while with an installation for which nothing is unreadable."""
        with self._drive.reading() as connection:
            rows = quarantine(connection)
        for reason, count in Counter(row.reason for row in rows).items():
            if counts.get(reason, 0) < count:
                self._oracle.violate("unreported", f"{self._name} has {count} ({reason}), and says {counts}")
            if all_readable and reason in NOT_READABLE:
                self._oracle.violate("stalled", f"{self._name} can read {count} batches that it quarantined")

    def report_kept(self) -> None:
        """Its consumer is not open: report messages in its quarantine that it does not know."""
        if not self._drive.path.exists():
            return
        with self._drive.reading() as connection:
            kept = [row for row in quarantine(connection) if row.reason == LATER_VERSION]
            dropped = list(dropped_unverified(connection))
        for one in dropped:
            self._oracle.kept_unreadable(self._group, one.stream, one.epoch, one.seq, one.last)
        for row in kept:
            self._oracle.kept_unreadable(self._group, row.stream, row.epoch, row.first, row.last)
            self._kept |= {(row.stream, row.epoch, seq) for seq in range(row.first, row.last + 1)}

    def report_unreadable(self) -> None:
        """The run has ended: everything that could not be read must still be in the quarantine, unless it was taken in
        since."""
        self.report_kept()
        with self._drive.reading() as connection:
            rows = self._rows(connection)
            kept = quarantine(connection)
        found = {(each.stream, each.epoch, seq) for each in kept for seq in range(each.first, each.last + 1)}
        for row in reversed(rows):
            stream = _stream_of(row)
            numbers = [(stream, row.epoch, seq) for seq in range(row.first, row.last + 1)]
            if row.kind in TAKEN_IN:
                found.update(numbers)
            elif row.kind == "quarantined" and row.reason == UNREADABLE:
                self._kept.update(each for each in numbers if each not in found)
        for number in sorted(self._kept - found):
            self._oracle.violate("lost", f"{number} was in the quarantine of {self._name}")

    def report_dead_letters(self) -> list[MessageId]:
        """The run has ended: report all dead letters, and return them."""
        messages = [message_of(letter) for letter in read_dead_letters(self._drive.path)]
        for message in messages:
            self._oracle.dead_letter_found(self._group, message)
        return messages


def message_of(letter: DeadLetter) -> MessageId:
    """The message that a dead letter is."""
    return MessageId(
        letter.stream.producer, letter.epoch, letter.stream.topic, letter.stream.partition, letter.seq
    )


def _stream_of(row: JournalRow) -> Stream:
    return Stream(row.producer, row.topic, row.partition)
