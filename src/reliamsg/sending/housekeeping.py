"""What the writer does by and by: store cursors and journal rows, count, and let go of what need not be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reliamsg.core.ranges import RangeSet
from reliamsg.errors import ReliamsgError
from reliamsg.message import Stream
from reliamsg.runtime.journal_buffer import merge
from reliamsg.sending.journalling import RULES
from reliamsg.sending.link import SiteLink
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Cursors, Outbox, Parked

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine

__all__ = ["Housekeeping"]

PROGRESS_S = 0.1
"""Cursors are stored this often while there is something to store; what they lag behind is sent again after a
crash."""
PROGRESS_ROWS = 1_000
"""With so many confirmed rows they are stored at once."""
RETRY_S = 1.0
"""After the disk refused, it is tried again so much later."""


class Housekeeping:
    """One producer's. `published` and `recount` are guarded by the engine's lock; all methods are the writer's."""

    def __init__(self, engine: Engine, outbox: Outbox) -> None:
        self.published = RangeSet()
        """Rows that are published, and not journalled as such yet."""
        self.recount = False
        """What is pending has to be counted anew: rows were published that were not at hand."""
        self._engine = engine
        self._outbox = outbox
        self._stored_at = self._pause_until = engine.clock()

    def begin(self) -> None:
        """The first time, before anything is sent."""
        self.store_progress()
        self._count()
        self._find_oldest()

    @property
    def many_confirmed(self) -> bool:
        """Whether it is worth while to store cursors at once."""
        return self._engine.confirmed_rows >= PROGRESS_ROWS

    def _waiting(self) -> bool:
        engine = self._engine
        return bool(
            engine.confirmed_rows
            or not engine.journal_buffer.empty
            or not self.published.empty
            or engine.membership.progressed
            or engine.proving.changed
            or engine.membership.table.gaps_changed
        )

    def deadline(self, now: float) -> float | None:
        """When :meth:`run` will have something to do. Called with the engine's lock held."""
        at = self._engine.retention.deadline(now)
        if self._waiting():
            progress = self._stored_at + PROGRESS_S
            at = progress if at is None else min(at, progress)
        return None if at is None else max(at, self._pause_until)

    def run(self, now: float) -> None:
        """Do what is due. What the disk refuses is raised, and tried again later."""
        engine = self._engine
        if now < self._pause_until:
            return
        with engine.lock:
            store = self._waiting() and (self.many_confirmed or now >= self._stored_at + PROGRESS_S)
            recount, self.recount = self.recount, False
        try:
            if store:
                self._stored_at = now
                self.store_progress()
                self._store_lacking()
                engine.probe("cursor")
                self._find_oldest()
            if recount:
                self._count()
            self._release(now)
        except ReliamsgError:
            with engine.lock:
                self.recount = True
            self._pause_until = now + RETRY_S
            raise

    def _store_lacking(self) -> None:
        """Keep what holds groups up, for people who look into the outbox."""
        table = self._engine.membership.table
        with self._engine.lock:
            if not table.gaps_changed:
                return
            lacking = table.take_gaps()
        self._outbox.note_lacking(lacking)

    def store_progress(self, last: Sequence[Entry] = ()) -> None:
        """Store how far every site and group is, and all journal rows that wait, then those of `last`."""
        engine = self._engine
        with engine.lock:
            sites = {name: _cursors(link) for name, link in engine.links.items()}
            published, self.published = self.published, RangeSet()
            entries = engine.journal_buffer.take()
            positions, progress = engine.membership.take_progress()
            entries += progress
            proofs = engine.proving.take_changes()
            pages = engine.membership.book.pages
            confirmed, engine.confirmed_rows = engine.confirmed_rows, 0
            cursor = engine.core.confirms.cursor
        try:
            told = self._published_entries(published)
            self._outbox.progress(
                sites, cursor, [*entries, *told, *last], engine.wall_us(), engine.mono_us(), positions,
                {
                    (site, pages[Stream(engine.producer_id, topic, partition)].row.id, group): marked
                    for (site, (topic, partition, group)), marked in proofs.items()
                },
            )  # fmt: skip
        except ReliamsgError:
            with engine.lock:
                engine.journal_buffer.put_back(entries)
                engine.membership.put_back(positions)
                engine.proving.put_back(proofs)
                engine.confirmed_rows += confirmed
                for span in published:
                    self.published.add(*span)
            raise

    def _published_entries(self, published: RangeSet) -> list[Entry]:
        rows = (row for first, last in published for row in self._outbox.rows(first, last, last - first + 1))
        return merge(
            (Entry("published", row.stream, row.epoch, row.incarnation, row.seq, row.last) for row in rows),
            RULES,
        )

    def _release(self, now: float) -> None:
        engine = self._engine
        retention = engine.retention
        with engine.lock:
            need = retention.due(now, engine.admission.stored)
            if need is None:
                return
            consumed = engine.membership.consumed is not None and engine.membership.progressed
            everywhere, partly = engine.core.releasable(retention.released_to, engine.membership.consumed)
            untold = not self.published.empty and bool(need.retained or need.room)
        if (consumed or untold) and (everywhere or partly):
            self.store_progress()  # first, since the journal says why they may leave before it says that they left
        with engine.lock:
            # Also what leaves for its age: after an outage it is old as soon as it is published. What is not journalled
            # as published stays until it is, a moment later.
            everywhere = [part for span in everywhere for part in self.published.missing(*span)]
            partly = [part for span in partly for part in self.published.missing(*span)]
        left, unsent = retention.release(
            self._outbox, everywhere, partly, self._lacking, need, engine.wall_us(), engine.mono_us()
        )
        if left:
            engine.probe("released")
        with engine.lock:
            engine.membership.left(left)
        for name, count in unsent.items():
            engine.log.warning(
                "producer %s: %d batches left the outbox although site %s never confirmed them: it is full",
                engine.producer_id, count, name,
            )  # fmt: skip

    def _lacking(self, row: int) -> list[str]:
        engine = self._engine
        with engine.lock:
            return [name for name, window in engine.core.sites.items() if row not in window.confirmed]

    def _count(self) -> None:
        """Count what is pending and held, from the outbox itself."""
        engine = self._engine
        with engine.lock:
            top, consumed = engine.core.top, engine.membership.consumed
            published = engine.core.confirms.published
            spans = published.missing(1, top) if top else []
            leaving = (
                [] if consumed is None else [part for span in published for part in consumed.overlap(*span)]
            )
            before = engine.pending_messages, engine.admission.stored
        _, stored = self._outbox.totals()
        messages = size = 0
        for first, last in spans:
            some, bytes_ = self._outbox.totals(first, last)
            messages, size = messages + some, size + bytes_
        if consumed is not None:
            size = stored - sum(self._outbox.totals(*span)[1] for span in leaving)
        with engine.lock:
            # What was published meanwhile was taken off the old figures.
            engine.pending_messages += messages - before[0]
            engine.admission.release(before[1] - size)
            engine.retention.stored_bytes = stored

    def _find_oldest(self) -> None:
        """When the oldest message that is not published was stored."""
        engine = self._engine
        with engine.lock:
            cursor, top = engine.core.confirms.cursor, engine.core.top
        rows = self._outbox.rows(cursor, top, 1) if cursor <= top else []
        with engine.lock:
            engine.oldest_pending_us = rows[0].wall_us if rows else None


def _cursors(link: SiteLink) -> Cursors:
    parked = [
        Parked(lane.stream_id, lane.cursor, lane.attempts, lane.reason)
        for lane in link.window.lanes.values()
        if lane.stream_id is not None
    ]
    return Cursors(link.window.main.cursor, parked)
