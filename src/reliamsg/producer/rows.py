"""Where a site's rows come from: memory for what is new, pages of the outbox for a site that is behind."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from reliamsg.protocol.sender.window import Lane
from reliamsg.store.outbox import Row

__all__ = ["PageCache", "RowReader", "TailCache"]

TAIL_BYTES = 16 * 1024 * 1024
PAGE_BYTES = 1024 * 1024
"""A site that is behind has at most about two pages of each lane in memory."""
CACHED_PAGES = 8
PREFETCH_ROWS = 8
"""When this few rows of a page are left, the next page is requested."""


class TailCache:
    """The rows that were committed last, whatever the sites' states. Guarded by the lock."""

    def __init__(self) -> None:
        self.first: int | None = None
        """The oldest row that is here."""
        self.rows: deque[Row] = deque()
        """In order; ids of committed rows have no holes."""
        self._bytes = 0

    def extend(self, rows: Sequence[Row], size: int) -> None:
        """Rows of `size` bytes in all were committed."""
        self.rows.extend(rows)
        self._bytes += size
        while self._bytes > TAIL_BYTES and len(self.rows) > 1:
            self._bytes -= self.rows.popleft().size
        self.first = self.rows[0].id

    def clear(self) -> None:
        """The outbox no longer has what is here."""
        self.rows.clear()
        self._bytes, self.first = 0, None

    def holds(self, number: int) -> bool:
        """Whether every committed row from `number` on is here."""
        return self.first is not None and number >= self.first

    def next(self, lane: Lane) -> Row | None:
        """The first row of a stream's own lane, of those from ``lane.next`` on, which are here."""
        rows = islice(self.rows, lane.next - self.rows[0].id, None)
        return next((row for row in rows if row.stream_id == lane.stream_id), None)


class PageCache:
    """The pages that were read last, for sites that need them a little later. Only the writer uses it."""

    def __init__(self, read: Callable[[int, int | None, int], list[Row]]) -> None:
        """`read(first, stream_id, max_bytes)` is :meth:`~reliamsg.store.outbox.Outbox.page`."""
        self._read = read
        self._pages: deque[list[Row]] = deque(maxlen=CACHED_PAGES)

    def page(self, first: int, stream_id: int | None) -> list[Row]:
        """Some rows from `first` on, of one stream or (None) all; none if there is none."""
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
        """The outbox no longer has what is here."""
        self._pages.clear()


class _Page:
    """What was read for one lane, and not sent yet."""

    __slots__ = ("end", "requested", "rows")

    def __init__(self, start: int) -> None:
        self.rows: deque[Row] = deque()
        self.end = start
        """The next row to load."""
        self.requested = False


class RowReader:
    """Reads one site's lanes, each in order. Guarded by the lock."""

    def __init__(self, tail: TailCache, request: Callable[[RowReader, Lane, int], None]) -> None:
        """`request(reader, lane, first)` has the writer read rows from `first` on, and then call :meth:`loaded`."""
        self._tail = tail
        self._request = request
        self._pages: dict[Lane, _Page] = {}

    def next(self, lane: Lane, top: int) -> Row | None:
        """The lane's next row to look at; None if there is none up to `top`, or if it has to be loaded first."""
        page = self._pages.get(lane)
        if page is not None:
            while page.rows and page.rows[0].id < lane.next:
                page.rows.popleft()
            if page.rows:
                if len(page.rows) < PREFETCH_ROWS and page.end <= top and not self._tail.holds(page.end):
                    self._load(lane, page)
                return page.rows[0]
            if page.requested:
                return None
        if lane.next > top:
            return None
        tail = self._tail
        if tail.first is not None and lane.next >= tail.first:
            if page is not None:
                del self._pages[lane]
            row = tail.rows[lane.next - tail.first] if lane.stream_id is None else tail.next(lane)
            if row is None:
                lane.skip_to(top + 1)
            return row
        page = self._pages[lane] = _Page(lane.next)
        self._load(lane, page)
        return None

    def loaded(self, lane: Lane, start: int, rows: Sequence[Row], top: int) -> None:
        """Rows from `start` on were read, when `top` was the highest row."""
        page = self._pages.get(lane)
        if page is None or page.end != start:
            return  # the lane went back meanwhile
        page.requested = False
        page.rows.extend(rows)
        page.end = rows[-1].id + 1 if rows else top + 1
        if not page.rows:
            lane.skip_to(page.end)

    def forget(self, lane: Lane) -> None:
        """The lane went back, or is gone."""
        self._pages.pop(lane, None)

    def clear(self) -> None:
        """The outbox no longer has what was read."""
        self._pages.clear()

    def _load(self, lane: Lane, page: _Page) -> None:
        if not page.requested:
            page.requested = True
            self._request(self, lane, page.end)
