"""Where a site's rows come from: memory for what is new, pages of the outbox for a site that is behind."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from reliamsg.core.window import Lane
from reliamsg.store.outbox import Row

__all__ = ["Feed", "Shelf", "Tail"]

TAIL_BYTES = 16 * 1024 * 1024
PAGE_BYTES = 1024 * 1024
"""A site that is behind has at most about two pages of each lane in memory."""
SHELF_PAGES = 8
PREFETCH_ROWS = 8
"""When so few rows of a page are left, the next one is asked for."""


class Tail:
    """The rows that were committed last, in memory, whatever the sites' states."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque()
        self._bytes = 0

    def extend(self, rows: Sequence[Row]) -> None:
        self._rows.extend(rows)
        self._bytes += sum(row.size for row in rows)
        while self._bytes > TAIL_BYTES and len(self._rows) > 1:
            self._bytes -= self._rows.popleft().size

    def clear(self) -> None:
        """What is here is not what the outbox has any more."""
        self._rows.clear()
        self._bytes = 0

    @property
    def first(self) -> int | None:
        """The oldest row that is here."""
        return self._rows[0].id if self._rows else None

    def at(self, number: int) -> Row:
        """The row `number`, which is here: ids of committed rows have no holes."""
        return self._rows[number - self._rows[0].id]

    def next_of(self, stream_id: int, number: int) -> Row | None:
        """The stream's first row at or above `number`."""
        start = max(0, number - self._rows[0].id)
        return next((row for row in islice(self._rows, start, None) if row.stream_id == stream_id), None)


class Shelf:
    """The pages that were read last, for sites that come to them a little later. Only the writer uses it."""

    def __init__(self, read: Callable[[int, int | None, int], list[Row]]) -> None:
        """`read(first, stream_id, max_bytes)` is :meth:`~reliamsg.store.outbox.Outbox.page`."""
        self._read = read
        self._pages: deque[list[Row]] = deque(maxlen=SHELF_PAGES)

    def page(self, first: int, stream_id: int | None) -> list[Row]:
        """Some rows from `first` on, of one stream or (None) all; none where there is none."""
        if stream_id is not None:
            return self._read(first, stream_id, PAGE_BYTES)
        for rows in self._pages:
            if rows[0].id <= first <= rows[-1].id:
                return rows[bisect_left(rows, first, key=lambda row: row.id) :]
        rows = self._read(first, None, PAGE_BYTES)
        if rows:
            self._pages.append(rows)
        return rows

    def clear(self) -> None:
        """What is here is not what the outbox has any more."""
        self._pages.clear()


class _Page:
    __slots__ = ("asked", "end", "rows")

    def __init__(self, start: int) -> None:
        self.rows: deque[Row] = deque()
        self.end = start
        """The next row to load."""
        self.asked = False


class Feed:
    """The rows of one site's lanes, in order. Called with the engine's lock held, except the reading
    itself."""

    def __init__(self, tail: Tail, ask: Callable[[Feed, Lane, int], None]) -> None:
        """`ask(feed, lane, first)` has the writer thread load rows from `first` on, and then call
        :meth:`loaded`."""
        self._tail = tail
        self._ask = ask
        self._pages: dict[Lane, _Page] = {}

    def next(self, lane: Lane, top: int) -> Row | None:
        """The lane's next row to look at; None if there is none, or if it has to be loaded first."""
        page = self._pages.get(lane)
        if page is not None:
            while page.rows and page.rows[0].id < lane.next:
                page.rows.popleft()
            if page.rows:
                if len(page.rows) < PREFETCH_ROWS and page.end <= top and not self._in_memory(page.end):
                    self._load(lane, page)
                return page.rows[0]
            if page.asked:
                return None
        if lane.next > top:
            return None
        if self._in_memory(lane.next):
            self._pages.pop(lane, None)
            return self._from_tail(lane, top)
        page = self._pages[lane] = _Page(lane.next)
        self._load(lane, page)
        return None

    def loaded(self, lane: Lane, start: int, rows: Sequence[Row], top: int) -> None:
        """Rows from `start` on were read, when `top` was the highest row."""
        page = self._pages.get(lane)
        if page is None or page.end != start:
            return  # the lane went back meanwhile
        page.asked = False
        page.rows.extend(rows)
        page.end = rows[-1].id + 1 if rows else top + 1
        if not page.rows:
            lane.next = max(lane.next, page.end)

    def forget(self, lane: Lane) -> None:
        """The lane went back, or is gone."""
        self._pages.pop(lane, None)

    def _from_tail(self, lane: Lane, top: int) -> Row | None:
        if lane.stream_id is None:
            return self._tail.at(lane.next)
        row = self._tail.next_of(lane.stream_id, lane.next)
        if row is None:
            lane.next = top + 1
        return row

    def _in_memory(self, number: int) -> bool:
        first = self._tail.first
        return first is not None and number >= first

    def _load(self, lane: Lane, page: _Page) -> None:
        if not page.asked:
            page.asked = True
            self._ask(self, lane, page.end)
