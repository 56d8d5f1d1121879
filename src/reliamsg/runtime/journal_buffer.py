"""Journal rows that wait for the next commit, already merged where the journal would merge them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from reliamsg.store.journal import Entry

__all__ = ["JournalBuffer", "MergeRules", "merge"]


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which entries become one row: an entry of one of these `kinds` lengthens the newest entry of its `order` if it
    begins where that ends, and agrees with it in kind, epoch, incarnation, reason and detail."""

    kinds: frozenset[str]
    order: tuple[str, ...]
    """Fields: entries that agree in these are of one order. They include those that say what an entry is about."""
    ordered: frozenset[str] = frozenset()
    """Kinds that have one order together for each stream."""


class JournalBuffer:
    """Collects entries in the order in which things happened. Not thread-safe.

    Entries that are added belong to the buffer, which may lengthen them until they are taken. With `max_rows`, the
    oldest entries are given up when more wait than that; a ``truncated`` row then says how many.
    """

    def __init__(self, rules: MergeRules, max_rows: int | None = None) -> None:
        self._kinds = rules.kinds
        self._ordered = rules.ordered
        self._fields = attrgetter(*rules.order)
        self._max_rows = max_rows
        self._entries: list[Entry] = []
        self._newest: dict[Hashable, Entry] = {}
        """By order."""
        self._given_up = 0
        self.empty = True
        """Whether nothing waits."""

    def add(self, entry: Entry) -> None:
        """Append an entry, or lengthen the newest of its order by it."""
        order: Hashable = ("ordered", entry.stream) if entry.kind in self._ordered else self._fields(entry)
        newest = self._newest.get(order)
        if newest is not None and entry.kind in self._kinds and newest.extend(entry):
            return
        self._newest[order] = entry
        self._entries.append(entry)
        self.empty = False
        if self._max_rows is not None:
            self._limit(self._max_rows)

    def take(self) -> list[Entry]:
        """Take all entries out; later ones do not lengthen them."""
        taken, self._entries, self.empty = self._entries, [], True
        self._newest.clear()
        if self._given_up:
            taken.insert(0, Entry("truncated", reason="too much waited", detail={"rows": self._given_up}))
            self._given_up = 0
        return taken

    def put_back(self, entries: Iterable[Entry]) -> None:
        """These were taken and could not be written: they come before everything that was added since."""
        self._entries[:0] = entries
        self.empty = not self._entries
        if self._max_rows is not None:
            self._limit(self._max_rows)

    def _limit(self, most: int) -> None:
        """Give up the older half where there are too many: not for each row anew."""
        if len(self._entries) > most:
            gone = len(self._entries) - most // 2
            self._given_up += sum(map(_rows, self._entries[:gone]))
            del self._entries[:gone]
            self._newest.clear()


def merge(entries: Iterable[Entry], rules: MergeRules) -> list[Entry]:
    """The entries, with those made one that a buffer would merge."""
    buffer = JournalBuffer(rules)
    for entry in entries:
        buffer.add(entry)
    return buffer.take()


def _rows(entry: Entry) -> int:
    """How many rows go with this one: it may stand for some that were given up before and could not be written."""
    return int((entry.detail or {}).get("rows", 1)) if entry.kind == "truncated" else 1
