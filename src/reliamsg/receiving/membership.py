"""Which inbox reads for a group: one at a time, as far as the locks at AMQP sites can tell.

A newcomer takes the lock at every AMQP site that it reaches. While another consumer holds one of them, it gives up
those it got, takes nothing in and hands nothing out. Otherwise two inboxes could each get the lock of one site, when
that returns from an outage, and both would hand out the same messages. Once a consumer holds a lock, with none held
by others, it may be refused elsewhere and reads on: the newcomer there gives way. A consumer that has lost all its
AMQP connections is a newcomer again. Two that share no reachable site can't be kept apart; once they do, one ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["Member", "Membership"]


class Member(Protocol):
    """A site, as far as it matters here."""

    @property
    def state(self) -> str:
        """``connecting``, ``connected``, ``busy``, or that it can't be reached."""

    def give_way(self) -> None:
        """Drop the connection, and with it the lock."""

    def admit(self) -> None:
        """Take in what arrived while that was not allowed."""


class Membership:
    """Decides whether this consumer reads. Everything is called under the consumer's lock."""

    def __init__(self) -> None:
        self._locking: list[Member] = []
        self._all: list[Member] = []
        self._holding = False
        """A lock is held without a break since there was no other reader."""
        self.decided = True
        """Nothing is to be found out before deliveries of AMQP sites are taken in."""
        self.barred = False
        """Somebody else reads, or it is not known yet: nothing is taken in or handed out."""

    def begin(self, locking: Iterable[Member], others: Iterable[Member]) -> None:
        """Say which sites have locks, in the order of their names, and which do not. Before any connects."""
        self._locking = list(locking)
        self._all = [*self._locking, *others]
        self._holding = False
        self.decided = not self._locking
        self.barred = bool(self._locking)

    @property
    def holding(self) -> bool:
        """Whether a lock is held without a break since there was no other reader."""
        return self._holding

    def review(self) -> None:
        """The state of a site has changed."""
        states = {site.state for site in self._locking}
        if not states or (self._holding and "connected" in states):
            return
        self._holding = False
        if "busy" in states:
            self.decided, self.barred = False, True
            for site in self._locking:
                if site.state == "connected":
                    site.give_way()
        elif "connecting" in states:
            self.decided = False  # but what is here already may go on
        else:
            self._holding = "connected" in states
            self.decided, self.barred = True, False
            for site in self._all:
                site.admit()

    def may_stay(self, busy: Member) -> bool:
        """Whether this consumer reads on although another has held the lock of `busy` for long.

        Two that could not see each other may each hold a lock. Of these the one at the first site stays.
        """
        if not self._holding:
            return False
        first = next((site for site in self._locking if site.state == "connected" or site is busy), busy)
        return first is not busy
