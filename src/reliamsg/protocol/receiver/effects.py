"""What the streams of a group share, and what they want the group to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from reliamsg.message import Gap, Stream
from reliamsg.protocol.receiver.challenges import Challenges
from reliamsg.protocol.receiver.jitter import Jitter
from reliamsg.protocol.receiver.rules import Rules

__all__ = ["Effects", "Group", "Note"]


class Note(msgspec.Struct, frozen=True):
    """A journal row; see :mod:`reliamsg.store.journal` for the kinds."""

    kind: str
    stream: Stream
    epoch: int
    incarnation: int
    first: int
    last: int
    site: str = ""
    reason: str = ""
    detail: Mapping[str, Any] | None = None


class Effects:
    """Collects the effects of calls on a group's streams until the group handles them."""

    __slots__ = (
        "ask_queue", "conflicts", "dirty", "held_up", "holding", "missed", "moves", "notes", "timed", "touched",
        "urgent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.notes: list[Note] = []
        """To be journalled with the next commit."""
        self.conflicts: list[tuple[Stream, int, str]] = []
        """(stream, epoch, problem), each reported once."""
        self.missed: list[Gap] = []
        """Gaps that were passed by joining, and detected afterwards."""
        self.held_up: list[Gap] = []
        """Gaps that began to hold their streams, once for each hold."""
        self.holding: dict[Stream, None] = {}
        """Streams that gaps hold, until the hold ends."""
        self.touched: dict[Stream, None] = {}
        """Streams that may have something to deliver, in this order."""
        self.dirty: dict[Stream, None] = {}
        """Streams with changes for the next commit."""
        self.urgent = False
        """The next commit is wanted now."""
        self.timed: dict[Stream, float] = {}
        """Streams with a timer, and when to look at each."""
        self.ask_queue: dict[Stream, None] = {}
        """Streams with due requests."""
        self.moves = 0
        """How often a stream was joined or entered another epoch."""

    def note(self, note: Note) -> None:
        """Journal this with the next commit."""
        self.notes.append(note)

    def mark(self, stream: Stream, urgent: bool = False) -> None:
        """The stream has changes for the next commit. `urgent`: it is wanted now."""
        self.dirty[stream] = None
        if urgent:
            self.urgent = True

    def touch(self, stream: Stream) -> None:
        """The stream may have something to deliver."""
        self.touched[stream] = None

    def time(self, stream: Stream) -> None:
        """The next tick has to look at the stream."""
        self.timed[stream] = 0.0

    def move(self) -> None:
        """A stream was joined, entered another epoch, or may accept what was put off."""
        self.moves += 1

    def hold(self, stream: Stream, gap: Gap) -> None:
        """A gap begins to hold its stream."""
        self.holding[stream] = None
        self.held_up.append(gap)

    def forget(self, stream: Stream) -> None:
        """The stream leaves memory."""
        for found in (self.touched, self.ask_queue, self.timed, self.holding):
            found.pop(stream, None)

    def take_dirty(self) -> list[Stream]:
        """The streams with changes, for the commit that is about to be written."""
        found, self.urgent = list(self.dirty), False
        self.dirty.clear()
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """Shared by all streams of a group."""

    rules: Rules
    effects: Effects
    challenges: Challenges
    """Streams whose producers the caller has to challenge."""
    jitter: Jitter
