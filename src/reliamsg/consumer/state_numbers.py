"""The numbers of the states that an inbox sends."""

from __future__ import annotations

from reliamsg.store.inbox import STATES_RESERVED, Inbox

__all__ = ["StateNumbers"]


class StateNumbers:
    """They increase over all openings of an inbox, whatever the clock shows: a number is sent only once the inbox has
    reserved it. An older copy of the inbox begins with the wall clock again, which must be above all numbers that were
    sent by then. So few are reserved at a time, and more with a commit when half of them are left.

    Guarded by the consumer's lock.
    """

    def __init__(self, inbox: Inbox, wall_us: int) -> None:
        """Raises errors of the inbox."""
        self.latest: int = inbox.reserve_states(wall_us)
        self._until = self.latest + STATES_RESERVED

    def take(self) -> int:
        """The next number."""
        self.latest += 1
        return self.latest

    def may_send(self, number: int) -> bool:
        """Whether a number is reserved: not if nothing could be committed for very long."""
        return number <= self._until

    @property
    def wanted(self) -> int:
        """The number up to which the next commit has to reserve them; 0 if enough are left."""
        if self._until - self.latest >= STATES_RESERVED // 2:
            return 0
        return max(self._until, self.latest) + STATES_RESERVED

    def reserved(self, until: int) -> None:
        """A commit has reserved the numbers up to that one."""
        self._until = max(until, self._until)
