"""Background work of the writer: persist cursors and journal entries, count, and release retained rows."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.errors import ReliamsgError
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.producer.admission import Admission
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.groups import Groups
from reliamsg.producer.journalling import RULES
from reliamsg.producer.retention import Retention
from reliamsg.producer.state import Shared
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.sender.window import SiteWindow
from reliamsg.runtime.journal_buffer import JournalBuffer
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Cursors, Outbox, Parked

__all__ = ["PROGRESS_ROWS", "Maintenance"]

log: Log = Log("reliamsg.producer")

PROGRESS_S = 0.1
"""Cursors are stored this often while there is something to store; what was confirmed since is sent again after a
crash."""
PROGRESS_ROWS = 1_000
"""When this many rows are confirmed, cursors are stored at once."""
RETRY_S = 1.0
"""How long after the disk refused a write it is tried again."""


class Maintenance:
    """One producer's. All methods are the writer's."""

    def __init__(
        self, shared: Shared, outbox: Outbox, groups: Groups, tracker: ConfirmationTracker,
        retention: Retention, admission: Admission,
    ) -> None:  # fmt: skip
        self._shared, self._outbox = shared, outbox
        self._groups, self._tracker = groups, tracker
        self._retention, self._admission = retention, admission
        self._stored_at = self._pause_until = shared.clock.now()

    def begin(self) -> None:
        """Call this first, before anything is sent."""
        self.store_progress()
        self._tracker.count(self._outbox)
        self._tracker.find_oldest(self._outbox)

    def _has_progress(self) -> bool:
        shared = self._shared
        return bool(
            shared.core.confirmed_rows
            or not shared.journal.empty
            or not self._tracker.unjournalled.empty
            or self._groups.progressed
            or shared.table.gaps_changed
            or shared.presence.changed
        )

    def deadline(self) -> float:
        """When :meth:`run` will have something to do. Called with the lock held."""
        at = self._retention.due_at
        if self._has_progress():
            at = min(at, self._stored_at + PROGRESS_S)
        return max(at, self._pause_until)

    def run(self, now: float) -> None:
        """Handle everything that is due. Errors of the disk are raised, and the work is repeated later."""
        shared, tracker = self._shared, self._tracker
        is_early = now < self._stored_at + PROGRESS_S and now < self._retention.due_at
        if now < self._pause_until or (
            is_early and shared.core.confirmed_rows < PROGRESS_ROWS and not tracker.recount
        ):
            return
        with shared.lock:
            is_due = shared.core.confirmed_rows >= PROGRESS_ROWS or now >= self._stored_at + PROGRESS_S
            store = is_due and self._has_progress()
            recount = tracker.take_recount()
        try:
            if store:
                self._stored_at = now
                self.store_progress()
                self._store_lacking()
                shared.probe("cursor")
                tracker.find_oldest(self._outbox)
            if recount:
                tracker.count(self._outbox)
            self._release(now)
        except ReliamsgError:
            with shared.lock:
                tracker.request_recount()
            self._pause_until = now + RETRY_S
            raise

    def _store_lacking(self) -> None:
        """Store the gaps that hold groups up, for people who inspect the outbox."""
        table = self._shared.table
        with self._shared.lock:
            if not table.gaps_changed:
                return
            lacking = table.take_gaps()
        self._outbox.note_lacking(lacking)

    def store_progress(self, last: Sequence[Entry] = ()) -> None:
        """Store how far every site and group is, and all journal entries that wait, then those of `last`."""
        shared = self._shared
        with shared.lock:
            sites = {name: _cursors(window) for name, window in shared.core.sites.items()}
            published = self._tracker.take_unjournalled()
            entries = shared.journal.take()
            positions, progress = self._groups.take_progress()
            entries += progress
            proofs = shared.presence.take_changes()
            streams = shared.streams.by_stream
            confirmed = shared.core.take_confirmed()
            cursor = shared.core.confirms.cursor
        try:
            self._outbox.progress(
                sites, cursor, [*entries, *self._published_entries(published), *last], shared.clock.wall_us(),
                shared.clock.now_us(), positions,
                {
                    (site, streams[Stream(shared.producer_id, topic, partition)].row.id, group): marked
                    for (site, (topic, partition, group)), marked in proofs.items()
                },
            )  # fmt: skip
        except ReliamsgError:
            with shared.lock:
                shared.journal.put_back(entries)
                self._groups.put_back(positions)
                shared.presence.put_back(proofs)
                shared.core.add_confirmed(confirmed)
                self._tracker.put_back(published)
            raise

    def _published_entries(self, published: RangeSet) -> list[Entry]:
        merged = JournalBuffer(RULES)
        for first, last in published:
            for row in self._outbox.rows(first, last, last - first + 1):
                merged.add(Entry("published", row.stream, row.epoch, row.incarnation, row.seq, row.last))
        return merged.take()

    def _release(self, now: float) -> None:
        shared, groups = self._shared, self._groups
        with shared.lock:
            excess = self._retention.due(now, self._admission.stored)
            if excess is None:
                return
            consumed = groups.consumed is not None and groups.progressed
            everywhere, partly = shared.core.releasable(self._retention.released_to, groups.consumed)
            unjournalled = not self._tracker.unjournalled.empty and bool(excess.retained or excess.room)
        if (consumed or unjournalled) and (everywhere or partly):
            self.store_progress()  # first, since the journal says why they may leave before it says that they left
        with shared.lock:
            # Also what leaves for its age: after an outage it is old as soon as it is published. What is not journalled
            # as published stays until it is, a moment later.
            published = self._tracker.unjournalled
            everywhere = [part for span in everywhere for part in published.missing(*span)]
            partly = [part for span in partly for part in published.missing(*span)]
        left, unsent = self._retention.release(
            self._outbox,
            everywhere,
            partly,
            self._lacking,
            excess,
            shared.clock.wall_us(),
            shared.clock.now_us(),
        )
        if left:
            shared.probe("released")
        with shared.lock:
            groups.left(left)
        for name, count in unsent.items():
            log.warning(
                "producer.unconfirmed_released",
                "producer %(producer)s: %(batches)d batches left the outbox although site %(site)s never confirmed"
                " them: it is full",
                producer=shared.producer_id, batches=count, site=name,
            )  # fmt: skip

    def _lacking(self, row: int) -> list[str]:
        with self._shared.lock:
            return self._tracker.lacking(row)


def _cursors(window: SiteWindow) -> Cursors:
    parked = [
        Parked(queue.stream_id, queue.cursor, queue.attempts, queue.reason)
        for queue in window.queues.values()
        if queue.stream_id is not None
    ]
    return Cursors(window.main.cursor, parked)
