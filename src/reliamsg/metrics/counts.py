"""Adds up committed journal entries: what the metrics count is what the audit counts.

One :class:`Counts` belongs to one opening of one client. Only the writer's thread of the client adds to it, so there is
no lock to wait for; any thread may take a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reliamsg.message import Stream
from reliamsg.store.journal import Entry

__all__ = ["DECLARED_REMOVED", "FILLED", "REPAIRED", "Counts", "Totals"]

Key = tuple[str, str]
"""A kind of entry, and a site; the site is empty where entries of the kind have none."""

REPAIRED = "received:repair"
"""Instead of ``received``, for messages that a producer sent again on request."""
FILLED = "gap_filled"
"""Instead of ``gap_closed``, for gaps that ended otherwise than by a declaration."""
DECLARED_REMOVED = "declared:removed"
"""Instead of ``declared``, for messages that their producer had removed."""
_EVENTS = frozenset({"gap_opened", "gap_held", "gap_closed", "declared", "conflict"})
"""Kinds of which entries are counted, too."""
_SPECIAL = _EVENTS | {"rejected"}


def _zeros() -> defaultdict[Any, int]:
    return defaultdict(int)


def _histograms() -> defaultdict[Key, defaultdict[int, int]]:
    return defaultdict(_zeros)


@dataclass(slots=True)
class Totals:
    """Sums of entries."""

    messages: defaultdict[Key, int] = field(default_factory=_zeros)
    """How many messages entries were about; 1 for each entry that is not about messages."""
    events: defaultdict[str, int] = field(default_factory=_zeros)
    """How many entries there were, for kinds of which that matters."""
    latencies: defaultdict[Key, defaultdict[int, int]] = field(default_factory=_histograms)
    """Histograms, see :mod:`reliamsg.protocol.histogram`."""

    def add(self, other: Totals) -> None:
        """Add the sums of others."""
        for key, count in other.messages.items():
            self.messages[key] += count
        for kind, count in other.events.items():
            self.events[kind] += count
        for key, histogram in other.latencies.items():
            mine = self.latencies[key]
            for bucket, count in histogram.items():
                mine[bucket] += count

    def copy(self) -> Totals:
        """A copy. Another thread may be adding: each dict is copied in one step of the interpreter."""
        latencies = _histograms()
        for key, histogram in self.latencies.copy().items():
            latencies[key] = histogram.copy()
        return Totals(self.messages.copy(), self.events.copy(), latencies)


class Counts:
    """The sums of one client's entries. Call it with the entries of each commit."""

    def __init__(self) -> None:
        self._totals = Totals()

    def totals(self) -> Totals:
        """The sums by now."""
        return self._totals.copy()

    def __call__(self, entries: Sequence[Entry]) -> None:
        messages, latencies = self._totals.messages, self._totals.latencies
        declared: dict[Stream | None, list[Entry]] = {}
        for entry in entries:
            kind, last = entry.kind, entry.last
            count = last - entry.first + 1 if last else 1
            if entry.reason or kind in _SPECIAL:
                kind, count = self._special(entry, declared, count)
            key = kind, entry.site
            messages[key] += count
            if entry.latency:
                histogram = latencies[key]
                for bucket, number in entry.latency.items():
                    histogram[bucket] += number

    def _special(
        self, entry: Entry, declared: dict[Stream | None, list[Entry]], count: int
    ) -> tuple[str, int]:
        """The name of a kind that is not counted as it is, and its count. `declared`: the gaps that the same commit
        has declared before, by stream."""
        kind = entry.kind
        if kind == "received" and entry.reason == "repair":
            return REPAIRED, count
        if kind == "rejected":
            return kind, int((entry.detail or {}).get("count", 1))
        if kind not in _EVENTS:
            return kind, count
        if kind == "declared":
            declared.setdefault(entry.stream, []).append(entry)
            if entry.reason == "removed":
                kind = DECLARED_REMOVED
        elif kind == "gap_closed" and not any(
            _covers(each, entry) for each in declared.get(entry.stream, ())
        ):
            kind = FILLED
        self._totals.events[kind] += 1
        return kind, count if entry.last else 0  # the extent may be unknown


def _covers(declared: Entry, closed: Entry) -> bool:
    """Whether a gap that was closed begins in a range that was declared."""
    return (
        declared.epoch == closed.epoch
        and declared.first <= closed.first
        and (declared.last == 0 or closed.first <= declared.last)
    )
