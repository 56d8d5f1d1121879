"""Which batches leave the outbox, and when.

A published batch that every site has leaves at the first of `retain_seconds` and `retain_bytes`, and earlier
when its room is needed. One that a site has not confirmed yet stays until the outbox is full. What is not
published never leaves. The batches of a stream leave in order: what is held of it is its end, as its status says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from reliamsg.message import Stream
from reliamsg.producer.journalling import RULES
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.runtime.journal_buffer import JournalBuffer
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox, Row

__all__ = ["Excess", "Retention"]

ROWS = 500
"""Most rows released in one step, so that publishing is not held up."""
EVERY_S = 1.0
ROOM_EVERY_S = 0.05


@dataclass(frozen=True)
class Excess:
    """Bytes that should leave: `retained` beyond what is to be kept, `room` beyond what may be held."""

    retained: int
    room: int


class Retention:
    """Decides and deletes. Only :meth:`release` uses the outbox."""

    def __init__(self, max_bytes: int, retain_seconds: float, retain_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._retain_seconds = retain_seconds
        self._retain_bytes = retain_bytes
        self.stored_bytes: int = 0
        """Bytes of all batches that are held."""
        self.released_to: int = 0
        """Every row up to here has left."""
        self._unsent = RangeSet()
        self.due_at: float = inf
        """Before this time nothing leaves."""
        self._checked_at = float("-inf")
        self._again = False

    def stored(self, size: int) -> None:
        """Batches of `size` bytes in all were stored."""
        self.stored_bytes += size
        if self.stored_bytes > self._max_bytes or self.due_at == inf:
            self._schedule()

    def counted(self, size: int) -> None:
        """All batches that are held have `size` bytes together."""
        self.stored_bytes = size
        self._schedule()

    def _schedule(self) -> None:
        soon = self._again or self.stored_bytes > self._max_bytes
        self.due_at = self._checked_at + (ROOM_EVERY_S if soon else EVERY_S) if self.stored_bytes else inf

    def released_unsent(self, row: int) -> bool:
        """Whether the row left before every site had it."""
        return row in self._unsent

    def due(self, now: float, pending_bytes: int) -> Excess | None:
        """What should leave now; None for nothing yet."""
        if now < self.due_at:
            return None
        self._checked_at, self._again = now, False
        self._schedule()
        retained = self.stored_bytes - pending_bytes - self._retain_bytes
        return Excess(max(0, retained), max(0, self.stored_bytes - self._max_bytes))

    def release(
        self, outbox: Outbox, everywhere: Sequence[Span], partly: Sequence[Span],
        lacking: Callable[[int], Sequence[str]], excess: Excess, wall_us: int, mono_us: int,
    ) -> tuple[list[int], Counter[str]]:  # fmt: skip
        """Delete what may and should leave, a bounded number of rows.

        `lacking` returns the sites that do not have a row. Returns the rows that left, and by site, how many of them it
        does not have.
        """
        cutoff = wall_us - int(self._retain_seconds * 1e6)
        wanted = max(excess.retained, excess.room)
        entries = JournalBuffer(RULES)
        fronts = _Fronts(outbox)
        ids: list[int] = []
        size = 0
        for row in _rows(outbox, everywhere):
            if row.wall_us > cutoff and size >= wanted:
                break
            if len(ids) >= ROWS:
                self._again = True
                break
            if not fronts.pass_by(row):
                continue
            ids.append(row.id)
            size += row.size
            entries.add(_entry("released", row))
        unsent: Counter[str] = Counter()
        early: list[int] = []
        if size < excess.room and not self._again:
            for row in _rows(outbox, partly):
                if size >= excess.room or len(early) >= ROWS:
                    break
                if not fronts.pass_by(row):
                    continue
                early.append(row.id)
                size += row.size
                for site in lacking(row.id):
                    unsent[site] += 1
                    entries.add(_entry("released_unsent", row, site))
        if ids or early:
            # Behind those that leave there may be others that can.
            self._again |= fronts.kept_back and size < wanted
            self._schedule()
            outbox.remove([*ids, *early], entries.take(), wall_us, mono_us)
            for number in early:
                self._unsent.add(number, number)
            self.stored_bytes -= size
            self.released_to = max(self.released_to, outbox.bounds()[0] - 1)
        self._schedule()
        return [*ids, *early], unsent


class _Fronts:
    """The first batch of each stream that stays. Nothing is deleted meanwhile."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._fronts: dict[Stream, Iterator[int]] = {}
        self._next: dict[Stream, int | None] = {}
        self.kept_back = False
        """A batch may not leave, since an earlier one of its stream stays."""

    def pass_by(self, row: Row) -> bool:
        """Whether a batch is the first of its stream; then the next one is the first from now on."""
        stream = row.stream
        if stream not in self._fronts:
            self._fronts[stream] = self._outbox.in_order(row.stream_id)
            self._next[stream] = next(self._fronts[stream], None)
        if self._next[stream] != row.id:
            self.kept_back = True
            return False
        self._next[stream] = next(self._fronts[stream], None)
        return True


def _rows(outbox: Outbox, spans: Sequence[Span]) -> Iterator[Row]:
    """The rows of some spans that are still held, read in pages."""
    for first, last in spans:
        at = first
        while at <= last:
            rows = outbox.rows(at, last, ROWS)
            yield from rows
            if len(rows) < ROWS:
                break
            at = rows[-1].id + 1


def _entry(kind: str, row: Row, site: str = "") -> Entry:
    return Entry(kind, row.stream, row.epoch, row.incarnation, row.seq, row.last, site)
