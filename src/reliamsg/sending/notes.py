"""Journal rows that wait for the next commit, adjoining ranges made one."""

from __future__ import annotations

from dataclasses import replace

from reliamsg.core.histogram import merged
from reliamsg.store.journal import Entry

__all__ = ["Notes"]

MAX_NOTES = 10_000
"""Most rows that wait; beyond it (a disk that stays full) the oldest are given up, and the journal says
so."""


class Notes:
    """Collects entries in order. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._tips: dict[tuple[object, ...], Entry] = {}
        self._truncated = 0

    def add(self, entry: Entry) -> None:
        """Append an entry as it is."""
        self._entries.append(entry)
        self._limit()

    def extend(self, entry: Entry) -> None:
        """Append an entry with a range, or lengthen the latest one of its kind by it."""
        key = (entry.kind, entry.stream, entry.epoch, entry.site, entry.group, entry.reason)
        tip = self._tips.get(key)
        if tip is not None and tip.last + 1 == entry.first and tip.detail == entry.detail:
            tip.last = entry.last
            if entry.latency:
                tip.latency = merged(tip.latency, entry.latency)
            return
        self._tips[key] = entry
        self.add(entry)

    def take(self) -> list[Entry]:
        """Everything that waits; nothing is kept."""
        entries, self._entries = self._entries, []
        self._tips.clear()
        if self._truncated:
            entries.insert(0, Entry("truncated", reason="too much waited", detail={"rows": self._truncated}))
            self._truncated = 0
        return entries

    def put_back(self, entries: list[Entry]) -> None:
        """What was taken could not be written."""
        self._entries = [replace(entry) for entry in entries] + self._entries
        self._limit()

    def __len__(self) -> int:
        return len(self._entries)

    def _limit(self) -> None:
        if len(self._entries) > MAX_NOTES:
            self._truncated += len(self._entries) - MAX_NOTES // 2
            del self._entries[: len(self._entries) - MAX_NOTES // 2]
            self._tips.clear()
