"""Where a site's rows come from: memory for new rows, pages of the outbox for a site that is behind."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from reliamsg.protocol.sender.window import SendQueue
from reliamsg.store.outbox import Row

__all__ = ["PageCache", "RowReader", "TailCache"]

TAIL_BYTES = 16 * 1024 * 1024
PAGE_BYTES = 1024 * 1024
"""A site that is behind has at most about two pages of each queue in memory."""
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
        """The outbox no longer has these rows."""
        self.rows.clear()
        self._bytes, self.first = 0, None

    def holds(self, number: int) -> bool:
        """Whether every committed row from `number` on is here."""
        return self.first is not None and number >= self.first

    def rows_of(self, queue: SendQueue, top: int, most: int) -> list[Row]:
        """The next rows of a queue up to `top`, at most `most`; all from ``queue.next`` on are here."""
        first = self.rows[0].id
        if queue.stream_id is None:
            start = queue.next - first
            return list(islice(self.rows, start, min(start + most, top + 1 - first)))
        rows = islice(self.rows, queue.next - first, top + 1 - first)
        return list(islice((row for row in rows if row.stream_id == queue.stream_id), most))


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
        """The outbox no longer has these rows."""
        self._pages.clear()


class _Page:
    """What was read for one queue, and not sent yet."""

    __slots__ = ("end", "requested", "rows", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """All rows of the queue from this one on, up to `end`, are here."""
        self.rows: deque[Row] = deque()
        self.end = start
        """The next row to load."""
        self.requested = False

    def advance(self, number: int) -> None:
        """Rows before this one are not needed any more."""
        while self.rows and self.rows[0].id < number:
            self.start = self.rows.popleft().id + 1


class RowReader:
    """Reads one site's queues, each in order. Guarded by the lock."""

    def __init__(self, tail: TailCache, request: Callable[[RowReader, SendQueue, int], None]) -> None:
        """`request(reader, queue, first)` has the writer read rows from `first` on, and then call :meth:`loaded`."""
        self._tail = tail
        self._request = request
        self._pages: dict[SendQueue, _Page] = {}

    def next(self, queue: SendQueue, top: int, most: int) -> list[Row]:
        """The queue's next rows, at most `most`; none if there are none up to `top`, or if they have to be loaded
        first."""
        page = self._pages.get(queue) if self._pages else None
        if page is not None and page.start <= queue.next:  # else the queue went back
            page.advance(queue.next)
            if page.rows:
                found = [row for row in islice(page.rows, most) if row.id <= top]
                if (
                    len(page.rows) - len(found) < PREFETCH_ROWS
                    and page.end <= top
                    and not self._tail.holds(page.end)
                ):
                    self._load(queue, page)
                return found
            if page.requested:
                return []
        if queue.next > top:
            return []
        tail = self._tail
        if tail.first is not None and queue.next >= tail.first:
            if page is not None:
                del self._pages[queue]
            rows = tail.rows_of(queue, top, most)
            if not rows:
                queue.skip_to(top + 1)
            return rows
        page = self._pages[queue] = _Page(queue.next)
        self._load(queue, page)
        return []

    def loaded(self, queue: SendQueue, start: int, rows: Sequence[Row], top: int) -> None:
        """Rows from `start` on were read, when `top` was the highest row."""
        page = self._pages.get(queue)
        if page is None or page.end != start:
            return  # the queue went back meanwhile
        page.requested = False
        page.rows.extend(rows)
        page.end = rows[-1].id + 1 if rows else top + 1
        if not page.rows:
            queue.skip_to(page.end)

    def forget(self, queue: SendQueue) -> None:
        """The queue is gone, or has to be read again."""
        self._pages.pop(queue, None)

    def clear(self) -> None:
        """The outbox no longer has what was read."""
        self._pages.clear()

    def _load(self, queue: SendQueue, page: _Page) -> None:
        if not page.requested:
            page.requested = True
            self._request(self, queue, page.end)
