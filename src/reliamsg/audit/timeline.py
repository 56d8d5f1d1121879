"""Numbers of messages over time, in a bounded number of cells whatever the span of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

__all__ = ["Timeline"]

_SECOND = 1_000_000
_FINEST_US = _SECOND // 10
MAX_CELLS = 1_000
_MAX_BINS = 120
_WIDTHS = [
    *(round(each * _SECOND) for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30)),
    *(each * 60 * _SECOND for each in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 2880, 10080)),
]
"""Widths of a bin for the report, in µs."""


@dataclass(slots=True)
class Timeline:
    """Messages by name and time. Cells become twice as wide whenever there would be too many."""

    width_us: int = _FINEST_US
    cells: dict[str, dict[int, float]] = field(default_factory=dict)
    """By name and cell (time divided by the width), messages."""
    low: int | None = None
    high: int = 0
    """The first and the last cell, over all names."""

    def add(self, name: str, messages: float, start_us: int, end_us: int) -> None:
        """Add messages, spread evenly over a time. After a clock was set back, a row may end before it began."""
        if end_us < start_us:
            start_us, end_us = end_us, start_us
        self._admit(start_us, end_us)
        own = self.cells.setdefault(name, {})
        for cell, share in _spread(start_us, end_us, self.width_us):
            own[cell] = own.get(cell, 0.0) + messages * share

    def merge(self, other: Timeline) -> None:
        """Add all of another one."""
        if other.low is None:
            return
        while self.width_us < other.width_us:
            self._widen()
        self._admit(other.low * other.width_us, (other.high + 1) * other.width_us - 1)
        factor = self.width_us // other.width_us
        for name, cells in other.cells.items():
            own = self.cells.setdefault(name, {})
            for cell, messages in cells.items():
                own[cell // factor] = own.get(cell // factor, 0.0) + messages

    def _admit(self, start_us: int, end_us: int) -> None:
        while True:
            low, high = start_us // self.width_us, end_us // self.width_us
            low = low if self.low is None else min(low, self.low)
            high = high if self.low is None else max(high, self.high)
            if high - low < MAX_CELLS:
                self.low, self.high = low, high
                return
            self._widen()

    def _widen(self) -> None:
        self.width_us *= 2
        for name, cells in self.cells.items():
            wider: dict[int, float] = {}
            for cell, messages in cells.items():
                wider[cell // 2] = wider.get(cell // 2, 0.0) + messages
            self.cells[name] = wider
        if self.low is not None:
            self.low, self.high = self.low // 2, self.high // 2

    @property
    def axis(self) -> tuple[int, int, int]:
        """For bins of a round width: the start of the first one and the width, in µs, and their number."""
        low = (self.low or 0) * self.width_us
        high = (self.high + 1) * self.width_us - 1
        fitting = (
            width for width in _WIDTHS if width >= self.width_us and (high - low) // width < _MAX_BINS - 1
        )
        # Journals of years: a multiple of weeks.
        width = next(fitting, _WIDTHS[-1] * ((high - low) // (_WIDTHS[-1] * (_MAX_BINS - 2)) + 1))
        start = low // width * width
        return start, width, (high - start) // width + 1

    def bins(self, name: str, axis: Sequence[int]) -> list[int]:
        """The messages of a name in bins, as whole numbers with the same sum: the fractions that a row spread over
        several bins leaves in each are passed on to the next."""
        start, width, number = axis
        found = [0.0] * number
        for cell, messages in self.cells.get(name, {}).items():
            begin = cell * self.width_us - start
            for at, share in _spread(begin, begin + self.width_us, width):
                found[min(max(at, 0), number - 1)] += messages * share
        sums = [0, *(round(each) for each in accumulate(found))]
        return [after - before for before, after in pairwise(sums)]


def _spread(start: int, end: int, width: int) -> Iterator[tuple[int, float]]:
    """The cells that a time covers, and the share of it in each."""
    first, last = start // width, end // width
    took = end - start
    if first == last or took == 0:
        yield first, 1.0
        return
    for cell in range(first, last + 1):
        inside = min(end, (cell + 1) * width) - max(start, cell * width)
        if inside > 0:
            yield cell, inside / took
