"""What the streams of a group share, and what they have the group do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.core.challenges import Challenges
from reliamsg.core.jitter import Jitter
from reliamsg.core.rules import Rules
from reliamsg.message import Gap, Stream

__all__ = ["Effects", "Group", "Note"]


@dataclass(slots=True)
class Note:
    """Something to be journalled; see :mod:`reliamsg.store.journal` for the kinds."""

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
    """Collects what follows from calls of a group's streams, until the group takes it."""

    __slots__ = (
        "ask_queue", "conflicts", "dirty", "held_up", "holding", "missed", "moves", "notes", "timed", "touched",
        "urgent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.notes: list[Note] = []
        """What is to be journalled with the next commit."""
        self.conflicts: list[tuple[Stream, int, str]] = []
        """(stream, epoch, what is wrong), each reported once."""
        self.missed: list[Gap] = []
        """Gaps that were passed by joining, and found out afterwards."""
        self.held_up: list[Gap] = []
        """Gaps that began to hold their streams, each episode once."""
        self.holding: dict[Stream, None] = {}
        """Streams that gaps hold, each until its episode ends."""
        self.touched: dict[Stream, None] = {}
        """Streams that may have something to deliver, in this order."""
        self.dirty: dict[Stream, None] = {}
        """Streams of which the next commit holds something."""
        self.urgent = False
        """The next commit is wanted now."""
        self.timed: dict[Stream, float] = {}
        """Streams that wait for a time, and when each is to be looked at."""
        self.ask_queue: dict[Stream, None] = {}
        """Streams with requests that are due."""
        self.moves = 0
        """How often a stream was joined or went on to another epoch."""

    def note(self, note: Note) -> None:
        """Journal this with the next commit."""
        self.notes.append(note)

    def mark(self, stream: Stream, urgent: bool = False) -> None:
        """The next commit holds something of the stream. `urgent`: it is wanted now."""
        self.dirty[stream] = None
        if urgent:
            self.urgent = True

    def touch(self, stream: Stream) -> None:
        """The stream may have something to deliver."""
        self.touched[stream] = None

    def time(self, stream: Stream) -> None:
        """A clock of the stream is to be looked at by the next tick."""
        self.timed[stream] = 0.0

    def move(self) -> None:
        """A stream was joined, went on to another epoch, or may take in what was put off."""
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
        """The streams that the next commit holds something of: it is being written."""
        found, self.urgent = list(self.dirty), False
        self.dirty.clear()
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """What all streams of a group share."""

    rules: Rules
    effects: Effects
    challenges: Challenges
    """Streams about which the caller asks their producers."""
    jitter: Jitter
