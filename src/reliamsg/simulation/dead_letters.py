"""Messages that a group gave up on: at the end of a run they must be among its dead letters."""

from __future__ import annotations

from collections import Counter

from reliamsg.message import MessageId, Stream
from reliamsg.simulation.declarations import stream_of

__all__ = ["DeadLetters"]


class DeadLetters:
    """The dead letters of one group."""

    def __init__(self) -> None:
        self._all: set[MessageId] = set()
        self._awaited: set[MessageId] = set()
        """Messages that were not delivered again since: at the end they must be in an inbox."""
        self._revived: set[MessageId] = set()
        """Messages that were acknowledged after they had been dead letters."""
        self._found: set[MessageId] = set()
        self._early: Counter[Stream] = Counter()

    def __contains__(self, message: MessageId) -> bool:
        return message in self._all

    def add(self, message: MessageId) -> None:
        """A message became a dead letter."""
        self._all.add(message)
        if message not in self._revived:  # else this was learned only afterwards
            self._awaited.add(message)

    def count_early(self, message: MessageId) -> int:
        """A message becomes a dead letter after fewer attempts than configured. Returns how many did in its stream:
        attempts are counted ahead for each stream."""
        self._early[stream_of(message)] += 1
        return self._early[stream_of(message)]

    def delivered_again(self, message: MessageId) -> None:
        """A message is delivered, though it may be a dead letter: it need not be one at the end."""
        self._awaited.discard(message)

    def revived(self, message: MessageId) -> None:
        """A dead letter was delivered again and acknowledged: it need not be one at the end."""
        self._revived.add(message)
        self._awaited.discard(message)

    def inbox_replaced(self) -> None:
        """An inbox of the group was replaced by an older copy: its dead letters are unknown."""
        self._awaited.clear()

    def find(self, message: MessageId) -> None:
        """The run has ended, and an inbox of the group has this dead letter."""
        self._found.add(message)

    def missing(self) -> list[MessageId]:
        """Messages that are not among the dead letters, though they must be."""
        return sorted(self._awaited - self._found)
