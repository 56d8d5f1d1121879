"""Calls that wait for messages to be published or consumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from reliamsg.message import Stream
from reliamsg.runtime.callbacks import CallbackThread
from reliamsg.store.members import Position

__all__ = ["Watchers"]

_Call = Callable[[], None]


class Watchers:
    """One producer's calls. Each is made once, on the thread of callbacks, when it may find what it waits for; if it
    does not, it has to be added again. Guarded by the producer's lock.

    A call waits for one row, or for one position of its stream: so a confirm, or a group's report, only concerns the
    calls that are next, however many others there are.
    """

    def __init__(self, callbacks: CallbackThread) -> None:
        self._callbacks = callbacks
        self._rows: dict[int, list[_Call]] = {}
        self._positions: dict[Stream, list[tuple[Position, int, _Call]]] = {}
        """A heap for each stream."""
        self._order = count()

    def soon(self, call: _Call) -> None:
        """Make `call` now, on the thread of callbacks. Does not block, and needs no lock."""
        self._callbacks.put(call)

    def add_row(self, row: int, call: _Call) -> None:
        """Make `call` when the row is published or removed."""
        self._rows.setdefault(row, []).append(call)

    def add_position(self, stream: Stream, position: Position, call: _Call) -> None:
        """Make `call` when no named group is at or before `position` any more, or the stream's messages or groups have
        changed."""
        heappush(self._positions.setdefault(stream, []), (position, next(self._order), call))

    def rows(self, rows: Sequence[int]) -> None:
        """These rows were published or removed."""
        if self._rows:
            for row in rows:
                for call in self._rows.pop(row, ()):
                    self._callbacks.put(call)

    def advanced(self, stream: Stream, slowest: Position | None) -> None:
        """The slowest named group of a stream is at `slowest` (None: there is none)."""
        waiting = self._positions.get(stream, [])
        while waiting and (slowest is None or waiting[0][0] < slowest):
            self._callbacks.put(heappop(waiting)[2])
        if not waiting:
            self._positions.pop(stream, None)

    def look_again(self, stream: Stream) -> None:
        """Messages of a stream were removed or renumbered."""
        self.advanced(stream, None)

    def all(self) -> None:
        """Nothing more will happen: the producer has stopped."""
        rows, self._rows = self._rows, {}
        positions, self._positions = self._positions, {}
        for calls in rows.values():
            for call in calls:
                self._callbacks.put(call)
        for waiting in positions.values():
            for _, _, call in sorted(waiting, key=lambda each: each[:2]):
                self._callbacks.put(call)
