"""What the streams of a group share."""

from __future__ import annotations

from collections.abc import Callable

from reliamsg.message import Stream
from reliamsg.protocol.receiver.challenges import Challenges
from reliamsg.protocol.receiver.events import CommitWanted, Deliverable, Event
from reliamsg.protocol.receiver.jitter import Jitter
from reliamsg.protocol.receiver.rules import Rules

__all__ = ["GroupContext"]


class GroupContext:
    """The rules of a group, and what its streams want to be done: events for the caller, and lists of streams for
    :class:`~reliamsg.protocol.receiver.group.GroupReceiver`."""

    __slots__ = (
        "_commit", "challenges", "deliverable", "dirty", "emit", "events", "held", "jitter", "repairs_due", "rules",
        "timers",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.rules: Rules = rules
        self.challenges: Challenges = Challenges()
        """Streams whose producers the caller has to challenge."""
        self.jitter: Jitter = Jitter(rules.seed)
        self.events: list[Event] = []
        """Those that the caller has not taken."""
        self.emit: Callable[[Event], None] = self.events.append
        self.dirty: dict[Stream, None] = {}
        """Streams with changes for the next commit."""
        self.timers: dict[Stream, float] = {}
        """When to look at streams that wait for something."""
        self.repairs_due: dict[Stream, None] = {}
        """Streams with due repair requests."""
        self.held: dict[Stream, None] = {}
        """Streams that gaps hold, until the hold ends."""
        self.deliverable: set[Stream] = set()
        """Streams of which `events` says so already."""
        self._commit = 0
        """Whether the next commit is wanted (1), or urgent (2)."""

    def mark(self, stream: Stream, urgent: bool = False) -> None:
        """The stream has changes for the next commit. `urgent`: it is wanted now."""
        self.dirty[stream] = None
        wanted = 2 if urgent else 1
        if wanted > self._commit:
            self._commit = wanted
            self.emit(CommitWanted(urgent))

    def touch(self, stream: Stream) -> None:
        """The stream may have something to deliver."""
        if stream not in self.deliverable:
            self.deliverable.add(stream)
            self.emit(Deliverable(stream))

    def wake(self, stream: Stream) -> None:
        """The next tick has to look at the stream."""
        self.timers[stream] = 0.0

    def forget(self, stream: Stream) -> None:
        """The stream leaves memory."""
        for found in (self.repairs_due, self.timers, self.held):
            found.pop(stream, None)

    def take_dirty(self) -> list[Stream]:
        """The streams with changes, for the commit that is about to be written."""
        found, self._commit = list(self.dirty), 0
        self.dirty.clear()
        return found
