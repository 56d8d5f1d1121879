"""Messages published on a channel in confirm mode and not settled yet, by delivery tag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from reliamsg.transport.base import Outgoing

__all__ = ["InFlight"]


class InFlight:
    """Maps the broker's answers, which name delivery tags or message ids, to tokens.

    Rules: the n-th message published on a channel has tag n. Answers come in any order, for one tag or for
    all up to one. A token is confirmed when all its messages are acknowledged, and refused by the first of
    them that is not; either is reported once. A message that was returned is acknowledged afterwards, which
    settles the tag and confirms nothing.
    """

    def __init__(self) -> None:
        self._next = 1
        self._lowest = 1
        self._messages: dict[int, Outgoing] = {}
        self._tags: dict[str, int | deque[int]] = {}
        self._returned: set[int] = set()
        self._parts: dict[int, int] = {}
        """Messages not settled yet, for tokens with several."""
        self._refused: set[int] = set()
        """Refused tokens of which messages are still unsettled."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Outgoing) -> None:
        """Register `message`, the next one to be published on the channel."""
        tag = self._next
        self._next += 1
        self._messages[tag] = message
        twin = self._tags.get(message.message_id)
        if twin is None:
            self._tags[message.message_id] = tag
        elif isinstance(twin, deque):
            twin.append(tag)
        else:
            self._tags[message.message_id] = deque((twin, tag))
        if message.parts_left and message.token not in self._parts:
            self._parts[message.token] = message.parts_left + 1

    def give_up(self, message: Outgoing) -> None:
        """Neither `message` nor the rest of its token will be published: the token is refused."""
        token = message.token
        left = self._parts.get(token, 0) - message.parts_left - 1
        if left > 0:
            self._parts[token] = left
            self._refused.add(token)
        else:
            self._parts.pop(token, None)
            self._refused.discard(token)

    def acked(self, tag: int, multiple: bool) -> list[int]:
        """The tokens that this acknowledgement completes."""
        confirmed = []
        for number in self._covered(tag, multiple):
            message = self._settle(number)
            if message is None:
                continue
            returned = number in self._returned
            self._returned.discard(number)
            if self._part_done(message) and not returned:
                confirmed.append(message.token)
        return confirmed

    def nacked(self, tag: int, multiple: bool) -> list[int]:
        """The tokens that this refusal affects and that were not refused before."""
        refused = []
        for number in self._covered(tag, multiple):
            message = self._settle(number)
            if message is None:
                continue
            self._returned.discard(number)
            if self._refuse(message):
                refused.append(message.token)
            self._part_done(message)
        return refused

    def returned(self, message_id: str) -> int | None:
        """The token that a return with this id refuses; None if unknown or refused before."""
        found = self._tags.get(message_id)
        # Returns come in the order of publishing, so of several with one id it is the oldest not returned.
        tags: Iterable[int] = () if found is None else found if isinstance(found, deque) else (found,)
        tag = next((tag for tag in tags if tag not in self._returned), None)
        if tag is None:
            return None
        message = self._messages[tag]
        self._returned.add(tag)
        return message.token if self._refuse(message) else None

    def first(self, matches: Callable[[Outgoing], bool]) -> Outgoing | None:
        """The oldest unsettled message that matches, of a token that is not refused."""
        for tag in sorted(self._messages):
            message = self._messages[tag]
            if message.token not in self._refused and tag not in self._returned and matches(message):
                return message
        return None

    def _covered(self, tag: int, multiple: bool) -> Iterable[int]:
        if not multiple:
            return (tag,)
        last = tag if tag else self._next - 1  # 0 means everything so far
        covered = range(self._lowest, min(last, self._next - 1) + 1)
        self._lowest = max(self._lowest, covered.stop)
        return covered

    def _settle(self, tag: int) -> Outgoing | None:
        message = self._messages.pop(tag, None)
        if message is None:
            return None
        tags = self._tags[message.message_id]
        if isinstance(tags, deque):
            tags.remove(tag)
            if not tags:
                del self._tags[message.message_id]
        else:
            del self._tags[message.message_id]
        return message

    def _part_done(self, message: Outgoing) -> bool:
        """Count a settled message; return True if its token is complete and no part was refused."""
        token = message.token
        left = self._parts.get(token)
        if left is None:
            return True
        if left > 1:
            self._parts[token] = left - 1
            return False
        del self._parts[token]
        refused = token in self._refused
        self._refused.discard(token)
        return not refused

    def _refuse(self, message: Outgoing) -> bool:
        """Mark the token as refused; return False if it was already."""
        token = message.token
        if token in self._refused:
            return False
        if token in self._parts:
            self._refused.add(token)
        return True
