"""What each inbox of a group gave first without a flag, as its journal has it in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from reliamsg.message import MessageId

__all__ = ["Firsts"]


@dataclass(slots=True)
class _First:
    at: float
    flagged: bool
    sure: bool = True
    """Its journal is sure to have it: the process did not crash since, or came to tell of it."""


class Firsts:
    """Of one group."""

    def __init__(self) -> None:
        self._by_consumer: defaultdict[str, dict[MessageId, _First]] = defaultdict(dict)

    def given(self, consumer: str, message: MessageId, at: float, flagged: bool) -> None:
        """A consumer handed a message out, perhaps not for the first time."""
        self._by_consumer[consumer].setdefault(message, _First(at, flagged))

    def ended(self, consumer: str) -> None:
        """A consumer ended, perhaps before its journal told of all that it had handed out."""
        for first in self._by_consumer[consumer].values():
            first.sure = False

    def replaced(self, consumer: str, since: float) -> None:
        """A consumer's inbox, and its journal, are what they were at `since` again."""
        own = self._by_consumer[consumer]
        self._by_consumer[consumer] = {message: first for message, first in own.items() if first.at <= since}

    def apart(self, sure: bool) -> Iterator[MessageId]:
        """What several inboxes gave first without a flag; with `sure`, only what their journals are sure to have."""
        seen: set[MessageId] = set()
        found: set[MessageId] = set()
        for own in self._by_consumer.values():
            unflagged = {
                message for message, first in own.items() if not first.flagged and (first.sure or not sure)
            }
            found |= seen & unflagged
            seen |= unflagged
        yield from sorted(found)
