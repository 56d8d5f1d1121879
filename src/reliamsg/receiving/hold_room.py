"""What streams that gaps hold may use of the inbox, so that the others go on however long that lasts."""

from __future__ import annotations

from reliamsg.core.consumer import ConsumerCore
from reliamsg.receiving.quarantine import Quarantine
from reliamsg.store.inbox import Inbox

__all__ = ["HoldRoom"]


class HoldRoom:
    """Such streams, and those that were held and have not caught up, may together hold as many bytes of the inbox as
    they leave free. Under the consumer's lock."""

    def __init__(self, core: ConsumerCore, inbox: Inbox, quarantine: Quarantine, limit: int) -> None:
        """`limit`: what of the inbox's room is for all that arrives, in bytes."""
        self._core = core
        self._inbox = inbox
        self._quarantine = quarantine
        self._limit = limit
        self._left = 0
        """Bytes that may still be taken in."""
        self._looked = (-1, -1)

    def look(self) -> None:
        """Take account of what the inbox holds. To be called after each commit, before anything else is taken in."""
        if not (self._core.effects.holding or self._quarantine.held):
            self._looked = (-1, -1)
            return
        streams = self._core.effects.holding.keys() | self._quarantine.held.keys()
        looked = self._inbox.held_bytes, len(streams)
        if looked == self._looked:
            return
        self._looked = looked
        held = sum(self._inbox.held_bytes_of(stream) for stream in streams)
        self._left = self._limit - self._inbox.held_bytes - held

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may be taken in; then they count."""
        if 2 * size > self._left:
            return False
        self._left -= 2 * size  # they are held, and free no longer
        return True
