"""For which messages a producer counts which groups, according to its journal."""

from __future__ import annotations

from typing import Any

from reliamsg.checker.journals import Boot
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.spans import ENDLESS, Position, SpanMap, Spans, as_position
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["NamedGroups", "names"]

_FOREVER: Position = (ENDLESS, 0)


class NamedGroups:
    """The groups that one chain of a producer names. Give it the rows one by one.

    A group counts for everything that is enqueued by a boot that names it. A ``group_added`` row makes it count from a
    position on, and a ``group_removed`` row makes it not count from a position on, until it is added again.
    """

    def __init__(self, renumbering: Renumbering) -> None:
        self.named: dict[tuple[str, str], bool] = {}
        """By topic and group: whether the group is named, or was named when something was enqueued for it."""
        self._renumbering = renumbering
        self._boot: dict[str, set[str]] = {}
        self._by_boot: dict[str, SpanMap] = {}
        self._changes: dict[tuple[Stream, str], list[tuple[int, bool, Position]]] = {}
        self.settled_before_removal: dict[str, dict[Stream, list[tuple[Position, Position]]]] = {}
        """By group that was removed, half-open ranges that the group had announced as settled by then."""

    def begin(self, boot: Boot) -> None:
        """Start the next boot."""
        groups = boot.opened.get("groups")
        self._boot = {t: set(names(g)) for t, g in groups.items()} if isinstance(groups, dict) else {}
        for topic, own in self._boot.items():
            self.named.update({(topic, group): True for group in own})

    @property
    def topics(self) -> set[str]:
        """The topics that the boot names, with or without groups."""
        return set(self._boot)

    def enqueued(self, row: JournalRow) -> None:
        """Add an ``enqueued`` row of the boot, with the epoch that its messages are in finally."""
        key = (Stream(row.producer, row.topic, row.partition), row.epoch)
        for group in self._boot.get(row.topic, ()):
            self._by_boot.setdefault(group, SpanMap()).put(key, row.first, row.last)

    def changed(self, row: JournalRow) -> None:
        """Add a ``group_added`` or ``group_removed`` row, as it was written."""
        stream, added = Stream(row.producer, row.topic, row.partition), row.kind == "group_added"
        since = at = (row.epoch, row.first)
        if not added:
            at = as_position((row.detail or {}).get("position")) or since
        if added:
            self.named[row.topic, row.group] = True
        elif at == since:
            self.named[row.topic, row.group] = False
        # A group that is removed is owed nothing that moves later, whatever it had settled by then.
        place = self._renumbering.position(stream, at, row.lsn) if added else at
        self._changes.setdefault((stream, row.group), []).append((row.lsn, added, place))
        if at != since:
            self.settled_before_removal.setdefault(row.group, {}).setdefault(stream, []).append((since, at))

    def judge(self, enqueued: SpanMap) -> tuple[dict[str, SpanMap], dict[str, SpanMap]]:
        """By group, the messages of the chain for which it counts, and those from which it was excused."""
        counted: dict[str, SpanMap] = {}
        for group, spans in self._by_boot.items():
            counted.setdefault(group, SpanMap()).merge(spans)
        excused: dict[str, SpanMap] = {}
        for (stream, group), changes in self._changes.items():
            changes.sort()
            for i, (_, added, at) in enumerate(changes):
                until = changes[i + 1][2] if i + 1 < len(changes) else _FOREVER
                into = (counted if added else excused).setdefault(group, SpanMap())
                _put_between(into, enqueued, stream, at, until)
        for group, spans in excused.items():
            for key in counted.get(group, SpanMap()):
                counted[group][key] = counted[group][key] - spans[key]
        return counted, excused


def _put_between(into: SpanMap, enqueued: SpanMap, stream: Stream, first: Position, until: Position) -> None:
    """Add messages enqueued to a stream from position `first` to before `until`."""
    for key, spans in enqueued.items():
        if key[0] == stream and first[0] <= key[1] <= until[0]:
            low = first[1] if key[1] == first[0] else 1
            high = until[1] - 1 if key[1] == until[0] else ENDLESS
            if low <= high:
                into.merge({key: spans & Spans([(low, high)])})


def names(value: Any) -> list[str]:
    """The names in a list, or those that are the keys of an object."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []
