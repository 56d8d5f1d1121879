"""The messages that each inbox of a group delivered first without a flag, according to its final journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from reliamsg.message import MessageId

__all__ = ["FirstDeliveries"]


@dataclass(slots=True)
class _First:
    at: float
    flagged: bool
    journalled: bool = True
    """Whether its journal certainly contains it: the process has not crashed since, unless the journal shows it."""


class FirstDeliveries:
    """The first deliveries of one group. Each inbox that was replaced counts as one of its own."""

    def __init__(self) -> None:
        self._by_consumer: defaultdict[str, dict[MessageId, _First]] = defaultdict(dict)
        self._replaced = 0

    def delivered(self, consumer: str, message: MessageId, at: float, flagged: bool) -> None:
        """A consumer delivered a message, perhaps not for the first time."""
        self._by_consumer[consumer].setdefault(message, _First(at, flagged))

    def crashed(self, consumer: str) -> None:
        """A consumer crashed, perhaps before its journal contained everything that it had delivered."""
        for first in self._by_consumer[consumer].values():
            first.journalled = False

    def inbox_replaced(self, consumer: str, since: float) -> None:
        """A consumer's inbox and journal are in the state of `since` again. What it delivered later may be in a journal
        that it exported."""
        own = self._by_consumer[consumer]
        self._by_consumer[consumer] = {message: first for message, first in own.items() if first.at <= since}
        self._replaced += 1
        self._by_consumer[f"{consumer}, replaced {self._replaced}"] = {
            message: replace(first, journalled=False) for message, first in own.items() if first.at > since
        }

    def delivered_apart(self, *, journalled: bool) -> Iterator[MessageId]:
        """Messages that several inboxes delivered first without a flag. `journalled`: only those that their journals
        certainly contain."""
        seen: set[MessageId] = set()
        found: set[MessageId] = set()
        for own in self._by_consumer.values():
            unflagged = {
                message
                for message, first in own.items()
                if not first.flagged and (first.journalled or not journalled)
            }
            found |= seen & unflagged
            seen |= unflagged
        yield from sorted(found)
