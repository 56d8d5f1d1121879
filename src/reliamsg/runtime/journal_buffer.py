"""Journal rows that wait for the next commit, merged as the journal would merge them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from reliamsg.store.journal import Entry, joined

__all__ = ["JournalBuffer", "MergeRules", "merge"]


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Decides which entries become one row: an entry of one of these `kinds` extends the newest entry of its `order` if
    :func:`~reliamsg.store.journal.joined` accepts both."""

    kinds: frozenset[str]
    order: tuple[str, ...]
    """Fields: entries that agree in these are of one order. They include all fields that identify the subject."""
    ordered: frozenset[str] = frozenset()
    """Kinds that share one order for each stream."""


class JournalBuffer:
    """Collects entries in the order of the events. Not thread-safe.

    With `max_rows`, the oldest entries are discarded when more are waiting; a ``truncated`` row records their number.
    """

    def __init__(self, rules: MergeRules, max_rows: int | None = None) -> None:
        self._rules = rules
        self._max_rows = max_rows
        self._returned: list[Entry] = []
        """Merged entries, which later ones do not extend."""
        self._added: list[Entry] = []
        self._discarded = 0
        self.add: Callable[[Entry], None] = self._added.append if max_rows is None else self._add_limited
        """Append an entry."""

    @property
    def empty(self) -> bool:
        """Whether no entries are waiting."""
        return not self._added and not self._returned

    def take(self) -> list[Entry]:
        """Remove and return all entries."""
        taken = self._merged()
        if self._discarded:
            taken.insert(0, Entry("truncated", reason="too much waited", detail={"rows": self._discarded}))
            self._discarded = 0
        return taken

    def put_back(self, entries: Collection[Entry]) -> None:
        """Return entries that were taken and could not be written. They precede all that were added since."""
        self._returned[:0] = entries
        self._limit()

    def _add_limited(self, entry: Entry) -> None:
        self._added.append(entry)
        if len(self._returned) + len(self._added) > (self._max_rows or 0):
            self._limit()

    def _limit(self) -> None:
        """Discard the older half if there are too many: not one by one, because each time shifts the others."""
        most = self._max_rows
        if most is None or len(self._returned) + len(self._added) <= most:
            return
        self._returned = self._merged()
        if len(self._returned) > most:
            excess = len(self._returned) - most // 2
            self._discarded += sum(map(_rows, self._returned[:excess]))
            del self._returned[:excess]

    def _merged(self) -> list[Entry]:
        merged = self._returned + merge(self._added, self._rules)
        self._returned = []
        self._added.clear()
        return merged


def merge(entries: Iterable[Entry], rules: MergeRules) -> list[Entry]:
    """The entries in order, those merged that `rules` allow to merge."""
    fields = attrgetter(*rules.order)
    merged: list[Entry] = []
    newest: dict[Hashable, int] = {}
    """By order, the index of the newest entry."""
    for entry in entries:
        order: Hashable = ("ordered", entry.stream) if entry.kind in rules.ordered else fields(entry)
        at = newest.get(order)
        if at is not None and entry.kind in rules.kinds:
            both = joined(merged[at], entry)
            if both is not None:
                merged[at] = both
                continue
        newest[order] = len(merged)
        merged.append(entry)
    return merged


def _rows(entry: Entry) -> int:
    """The number of rows lost with an entry, which may stand for rows that were discarded before."""
    return int((entry.detail or {}).get("rows", 1)) if entry.kind == "truncated" else 1
