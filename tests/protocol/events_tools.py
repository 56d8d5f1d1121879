"""What a group's receiver has reported in events."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from reliamsg.message import Gap, Stream
from reliamsg.protocol.receiver.events import (
    CommitWanted,
    Conflict,
    Event,
    GapHeld,
    GapMissed,
    Moved,
    Note,
    ReportChanged,
)  # fmt: skip
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.stream import Snapshot

_SEEN: WeakKeyDictionary[GroupReceiver, Seen] = WeakKeyDictionary()


class Seen:
    """All events of one receiver, by kind."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.conflicts: list[tuple[Stream, int, str]] = []
        self.missed: list[Gap] = []
        self.held: list[Gap] = []
        self.moves = 0
        self.changed_reports: set[Stream] = set()
        self.urgent = False
        """Whether a commit is wanted now; until :func:`snapshot`."""

    def add(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event)
        elif isinstance(event, Conflict):
            self.conflicts.append((event.stream, event.epoch, event.problem))
        elif isinstance(event, GapMissed):
            self.missed.append(event.gap)
        elif isinstance(event, GapHeld):
            self.held.append(event.gap)
        elif isinstance(event, Moved):
            self.moves += 1
        elif isinstance(event, ReportChanged):
            self.changed_reports.add(event.stream)
        elif isinstance(event, CommitWanted):
            self.urgent |= event.urgent


def seen(core: GroupReceiver) -> Seen:
    """Everything that a receiver has reported by now."""
    found = _SEEN.setdefault(core, Seen())
    for event in core.take_events():
        found.add(event)
    return found


def snapshot(core: GroupReceiver) -> Snapshot:
    """Begin a commit."""
    found = seen(core)
    found.urgent = False
    return core.snapshot()
