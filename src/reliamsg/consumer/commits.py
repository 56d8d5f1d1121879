"""The consumer's commits: when one is due, what it holds, and what follows from it.

A commit is planned under the lock, written without it, and applied under it again; only then do brokers get their
acknowledgements. :class:`Committer` runs on one thread, the one that owns the inbox.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from reliamsg.consumer.buffer import BufferedBatch, StreamBuffer
from reliamsg.consumer.durability import Pending
from reliamsg.consumer.shared import Shared
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import FatalError, InboxWriteError, StoreCorrupt
from reliamsg.logs import Log
from reliamsg.message import Gap, Stream
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.receiver.stream import Snapshot, StreamChange
from reliamsg.protocol.receiver.unacked import QUARANTINE, Waiting
from reliamsg.runtime.clock import microseconds
from reliamsg.runtime.environment import Probe
from reliamsg.store.inbox import QuarantineChange
from reliamsg.store.inbox_rows import Batch, EpochRow, GapRow, HeldFrame, History, HistoryRow
from reliamsg.store.journal import Entry
from reliamsg.wire.data import Frame, open_frame

__all__ = ["MAX_CACHED_BYTES", "Committer", "unreserved"]

log: Log = Log("reliamsg.consumer")

COMMIT_EVERY_S = 0.01
"""How long acknowledgements are gathered, unless a caller waits for the commit."""
JOURNAL_EVERY_S = 0.25
"""The same if there are only journal rows to write."""
MAX_SPILL_BYTES = 8 * 1024 * 1024
MIN_SPILL_BYTES = 16 * 1024
RETRY_WRITE_S = 0.5
"""How long after a commit that failed for lack of room the next one is tried."""
RESERVED_PART = 4
"""One part in this many of the inbox is reserved: for deliveries that use up a site's window while messages are
missing."""
FULL_POLL_S = 0.05
"""How often a full inbox is checked for room."""
MAX_CACHED_BYTES = 8 * 1024 * 1024
"""Frames in memory that the inbox has as well."""


def unreserved(max_inbox_bytes: int) -> int:
    """The part of the inbox's room that any message may use, in bytes."""
    return max_inbox_bytes - max_inbox_bytes // RESERVED_PART


@dataclass(slots=True)
class _Plan:
    """One commit, from when it is decided until it is applied."""

    snapshot: Snapshot
    batch: Batch
    pending: Pending
    entries: list[Entry]
    spilled: list[tuple[Stream, BufferedBatch]]
    """Batches that are persisted early, before they are acknowledged."""
    spilling: list[Waiting]
    missed: list[Gap]
    """Gaps that it declares, of which the application is told afterwards."""
    sync: int


class Committer:
    """Decides on commits, and makes them."""

    def __init__(
        self, shared: Shared, sites: Mapping[str, SiteReceiver], max_inbox_bytes: int, probe: Probe
    ) -> None:
        self._shared = shared
        self._sites = sites
        self._max_inbox_bytes = max_inbox_bytes
        self._usual_bytes = unreserved(max_inbox_bytes)
        self._probe = probe
        self._committed_at = -1.0
        self._retry_at = 0.0
        self._unread: InboxWriteError | None = None
        """Why frames could not be read back: the disk had no room even for that."""
        self._full = False
        self.short_of_room: bool = False
        """Something is overdue to be persisted, and the inbox has no room for it."""
        self._spill_at = 0.0
        """Nothing is persisted early before that, for lack of room; smaller commits may still fit."""
        self._spill_limit = MAX_SPILL_BYTES
        """Most bytes to persist early in one commit; fewer after a failure, since a part may fit where all does not."""
        self._reported = False
        """The current lack of room was reported."""

    # -- planning -----------------------------------------------------------------------------------------

    def plan(self, now: float, closing: bool = False) -> _Plan | None:
        """Decide under the lock whether to commit now, and what. `closing`: it is the last commit, and its last journal
        row says so."""
        shared = self._shared
        if shared.durability.write_error is not None and now < self._retry_at and not closing:
            return None
        due, _ = shared.core.waiting.overdue(now)
        self._full, self.short_of_room = now < self._spill_at, False
        full = self._full or shared.inbox.held_bytes >= self._usual_bytes
        if full != shared.durability.inbox_full:
            shared.durability.note_room(full)
        spilled, spilling = self._spill(due) if due and not self._full else ([], [])
        at = self._due_at(now)
        # What could not be written may have gone since, with a connection; only a commit shows that there is room.
        error = shared.durability.write_error
        retries = error not in (None, self._unread) and now >= max(self._retry_at, self._spill_at)
        if not (spilling or closing or retries) and (at is None or at > now):
            return None
        shared.events.journal_all()
        for site in self._sites.values():
            if site.any_rejected:
                site.report_rejected(now, closing)
        snapshot = shared.core.snapshot(closing)
        missed = shared.events.commit_planned()
        for waiting in spilling:
            shared.core.waiting.spilling(waiting, True)
            snapshot.also.add(waiting.stream)
        # Where there was no room on the disk, the smaller part goes first.
        pending = shared.durability.take(small=now < self._spill_at)
        entries = shared.journal.take()
        sync = shared.durability.sync_wanted
        batch = self._batch(snapshot, pending, entries, missed)
        for stream, b in spilled:
            batch.entries.append(Entry("buffered", stream, b.epoch, 0, b.first, b.last, b.site, shared.group))
        if closing:
            batch.entries.append(Entry("closed", group=shared.group))
        return _Plan(snapshot, batch, pending, entries, spilled, spilling, missed, sync)

    def deadline(self, now: float) -> float | None:
        """When the next commit is due, unless something else happens."""
        shared = self._shared
        if shared.durability.write_error is not None:
            return max(now, self._retry_at, self._spill_at)
        due, next_spill = shared.core.waiting.overdue(now)
        if due:
            next_spill = now + FULL_POLL_S if self._full else now
        at = self._due_at(now)
        if at is None or (next_spill is not None and next_spill < at):
            return next_spill
        return at

    def _due_at(self, now: float) -> float | None:
        """When the next commit is due because of waiting changes; None if there are none."""
        shared = self._shared
        if shared.events.commit_urgent or shared.durability.awaited:
            return now
        inbox = shared.inbox
        stands = (shared.durability.standing, shared.core.takeover) == (inbox.standing, inbox.takeovers)
        if (
            shared.events.commit_wanted
            or shared.numbers.wanted
            or shared.events.notes
            or shared.buffers.acknowledged
            or not (shared.durability.pending.empty and stands)
        ):
            return self._committed_at + COMMIT_EVERY_S
        if shared.buffers.slices or not shared.journal.empty:
            return self._committed_at + JOURNAL_EVERY_S
        return None

    def _spill(self, due: list[Waiting]) -> tuple[list[tuple[Stream, BufferedBatch]], list[Waiting]]:
        """Choose what to persist early: whole batches, even if only a part is due."""
        shared = self._shared
        spilled: list[tuple[Stream, BufferedBatch]] = []
        spilling: list[Waiting] = []
        size = before = shared.inbox.held_bytes
        planned: defaultdict[int, RangeSet] = defaultdict(RangeSet)
        for waiting in due:
            if size - before >= self._spill_limit:
                break
            known = waiting.known
            assert known is not None  # the others wait for nothing but a commit
            ours = planned[id(known)]
            spans = [
                part
                for span in known.unsafe_held(waiting.first, waiting.last)
                for part in ours.missing(*span)
            ]
            # Deliveries that arrived before a gap held their stream must not use up windows while it is held.
            state = shared.core.streams[waiting.stream]
            fills_head = state.is_held or (known is state.epochs.current and waiting.first <= known.cursor)
            crowds = bool(spans) and not fills_head and size >= self._usual_bytes
            if crowds and not self._takes_reserve(waiting, size):
                self._full = self.short_of_room = True
                continue
            buffer = shared.buffers.of(waiting.stream)
            for span in spans:
                for each in buffer.overlapping(known.epoch, *span):
                    if ours.run_from(each.first) is None:
                        ours.add(each.first, each.last)
                        spilled.append((waiting.stream, each))
                        size += each.stored_size
            # Settled messages that are not committed are released by this commit as well.
            shared.core.mark(waiting.stream)
            spilling.append(waiting)
        return spilled, spilling

    def _takes_reserve(self, waiting: Waiting, size: int) -> bool:
        """Whether a delivery uses up its site's window while some stream lacks messages, which may be behind it, and
        the inbox, of `size` bytes, has some of its reserve left."""
        core = self._shared.core
        return size < self._max_inbox_bytes and core.waiting.is_used_up(waiting.site) and core.any_gap

    def _batch(self, snapshot: Snapshot, pending: Pending, entries: list[Entry], missed: list[Gap]) -> Batch:
        batch = Batch(
            discarded=pending.discarded, late=pending.late, seen_late=pending.seen_late, dead=pending.dead,
            revived=pending.revived, quarantine=pending.quarantine,
            quarantined=[one.delivery for one in pending.quarantined] if pending.quarantined else [],
            unquarantined=pending.unquarantined,
            entries=list(entries), standing=self._shared.durability.standing, takeovers=self._shared.core.takeover,
            states_until=self._shared.numbers.wanted, untold=missed,
        )  # fmt: skip
        for change in snapshot.changes:
            _add_change(batch, change)
        return batch

    # -- committing ---------------------------------------------------------------------------------------

    def commit(self, plan: _Plan, now: float) -> bool:
        """Write a plan, without the lock, and apply it. False if it could not be written."""
        shared = self._shared
        spills, kept = bool(plan.spilled), []
        for stream, b in plan.spilled:
            held = HeldFrame(stream, b.epoch, b.first, b.last, b.site, b.received_us, b.stored())
            plan.batch.held.append(held)
            kept.append(open_frame(held.frame))
        try:
            before = partial(self._probe, "spill") if spills else None
            # Both clocks are read now: a step may take long, and the clock was not set meanwhile.
            left = shared.inbox.commit(plan.batch, shared.wall_us(), microseconds(shared.clock()), before)
        except InboxWriteError as error:
            self._failed(plan, error)
            return False
        except FatalError as error:
            shared.health.fail(error)
            return False
        if spills:
            self._probe("spilled")
        self._probe("position" if plan.batch.epochs else "noted")
        self._apply(plan, kept, left)
        return True

    def _failed(self, plan: _Plan, error: InboxWriteError) -> None:
        shared = self._shared
        with shared.lock:
            shared.core.commit_failed(plan.snapshot)
            for waiting in plan.spilling:
                shared.core.waiting.spilling(waiting, False)
            shared.durability.put_back(plan.pending)
            shared.journal.put_back(plan.entries)
            shared.events.commit_failed(plan.missed)
            again = shared.clock() + RETRY_WRITE_S
            large = bool(plan.spilled or plan.pending.quarantined)
            if large:
                self._spill_at = again
                self._spill_limit = max(MIN_SPILL_BYTES, self._spill_limit // 4)
            else:
                self._retry_at = again
            if not self._reported:
                self._reported = True
                shared.health.report(error)
                log.error(
                    "consumer.inbox_not_written", "%(reason)s; nothing is acknowledged until it can be",
                    group=shared.group, inbox=str(shared.inbox.path), reason=str(error),
                )  # fmt: skip
            shared.durability.write_failed(error, large=large)

    def _apply(self, plan: _Plan, kept: list[Frame], left: QuarantineChange) -> None:
        shared = self._shared
        released: defaultdict[str, list[object]] = defaultdict(list)
        with shared.lock:
            if plan.spilled:
                self._spill_limit = min(MAX_SPILL_BYTES, 2 * self._spill_limit)
            for (stream, batch), frame in zip(plan.spilled, kept, strict=True):
                self._persisted(stream, batch, frame)
            for site, token in (*shared.core.committed(plan.snapshot), *plan.pending.tokens):
                released[site].append(token)
            shared.durability.pending.unquarantined.extend(map(int, map(str, released.pop(QUARANTINE, ()))))
            if plan.pending.quarantined or left.known or left.removed:
                shared.quarantine.committed([one.delivery for one in plan.pending.quarantined], left)
            for one in plan.pending.quarantined:
                if one.token is not None:
                    released[one.site].append(one.token)
            if shared.buffers.cached_bytes > MAX_CACHED_BYTES:
                shared.buffers.shed(MAX_CACHED_BYTES // 2)
            if plan.spilled or plan.pending.quarantined or shared.clock() >= self._spill_at + RETRY_WRITE_S:
                self._reported = False
                if shared.durability.spill_error is not None:
                    shared.durability.stores_again()
            if shared.durability.write_error is not None:
                self._written()
            shared.numbers.reserved(plan.batch.states_until)
            shared.events.committed(plan.missed)
            self._committed_at = shared.clock()
            shared.durability.committed(plan.sync, plan.pending, self._committed_at + COMMIT_EVERY_S)
            shared.events.handle()
            shared.changed.notify_all()
        for name, tokens in released.items():
            transport = self._sites[name].connections.transport
            if transport is not None:
                transport.acknowledge(tokens)
        if released:
            self._probe("acknowledged")

    def _written(self) -> None:
        """The inbox has room again."""
        self._unread = None
        self._shared.durability.written_again()
        self._shared.events.handle()
        self._shared.buffers.queue_all()

    def _persisted(self, stream: Stream, batch: BufferedBatch, frame: Frame) -> None:
        """The inbox has a batch now, as this frame."""
        shared = self._shared
        buffer = shared.buffers.of(stream)
        if batch.dropped:  # it turned out unreadable meanwhile; another copy may have arrived
            shared.durability.pending.discarded.append((stream, batch.epoch, batch.first, batch.last))
            return
        shared.core.streams[stream].persisted(batch.epoch, batch.first, batch.last)
        shared.buffers.persisted(buffer, batch, frame)

    # -- reading back ---------------------------------------------------------------------------------------

    def page_in(self, max_bytes: int, now: float) -> None:
        """Read the frames that are to be delivered next."""
        shared = self._shared
        with shared.lock:
            if shared.durability.write_error is not None and now < self._retry_at:
                return
            wanted = shared.buffers.take_pages()
        for buffer, place in wanted.items():
            self._page_in(buffer, place, max_bytes)
        with shared.lock:
            if (
                self._unread is not None
                and shared.durability.write_error is self._unread
                and not shared.buffers.pages
            ):
                self._written()  # there may be no commit to show it

    def _page_in(self, buffer: StreamBuffer, place: tuple[int, int], max_bytes: int) -> None:
        shared = self._shared
        stream, (epoch, seq) = buffer.state.stream, place
        try:
            frames = shared.inbox.page(stream, epoch, seq, max_bytes)
        except InboxWriteError as error:
            with shared.lock:
                shared.buffers.want_page(buffer, epoch, seq)
                if not self._reported:
                    self._reported = True
                    shared.health.report(error)
                self._retry_at = shared.clock() + RETRY_WRITE_S
                self._unread = error
                shared.durability.write_failed(error)
            return
        except FatalError as error:
            shared.health.fail(error)
            return
        with shared.lock:
            known = buffer.state.epochs.live.get(epoch)
            for row in frames:
                if known is None or buffer.find(epoch, row.first) is not None:
                    continue
                if not known.persisted.overlap(row.first, row.last):
                    continue  # settled, or unreadable and about to be discarded
                shared.buffers.add_read(buffer, BufferedBatch.read(row))
            if known is not None and seq in known.held and buffer.find(epoch, seq) is None:
                # The inbox should have it. Looking again would not help.
                shared.health.fail(_lost(shared, stream, epoch, seq))
            shared.buffers.queue(buffer)
            shared.changed.notify_all()


def _lost(shared: Shared, stream: Stream, epoch: int, seq: int) -> FatalError:
    return StoreCorrupt(f"{shared.inbox.path}: message {seq} of epoch {epoch} of {stream} is missing")


def _add_change(batch: Batch, change: StreamChange) -> None:
    stream = change.stream
    if change.history:
        batch.streams.append(HistoryRow(stream, change.stored.epochs.joined, _history(change)))
    finished = [known.epoch for known in change.finished] if change.finished else ()
    for item in change.epochs:
        known = item.known
        if known.epoch not in finished:
            batch.epochs.append(
                EpochRow(
                    stream, known.epoch, known.incarnation, known.prev, item.position, item.high_water, item.settled,
                    item.last, item.entered, let_go=item.let_go,
                )
            )  # fmt: skip
    for epoch in finished:
        batch.finished.append((stream, epoch))
    if change.gap is not None:
        (epoch, first, last), elapsed, waited = change.gap
        batch.gaps.append(GapRow(stream, epoch, first, last, elapsed, waited))
    else:
        batch.no_gap.append(stream)
    for (epoch, seq), count in change.attempts.items():
        batch.attempts.append((stream, epoch, seq, count))


def _history(change: StreamChange) -> History:
    epochs, closed, takeover = change.stored.epochs, change.stored.gaps.closed, change.stored.takeover
    history, uncertainty = epochs.history, takeover.uncertainty
    superseded = [(epoch, list(seen)) for epoch, seen in history.superseded.items()]
    doubt, link = (
        (None, None) if uncertainty is None else ((uncertainty.after, uncertainty.end), uncertainty.link)
    )
    return History(
        [(f.epoch, f.incarnation, f.last) for f in history.finished],
        history.floor, superseded, closed.spans(), closed.forgotten, epochs.unheard, doubt, change.vouched,
        list(change.accepted),
        takeover.number, epochs.joined_after, sorted(history.unended), link,
    )  # fmt: skip
