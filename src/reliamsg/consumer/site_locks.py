"""The locks of AMQP sites: of several consumers of a group, the one that holds them reads.

A consumer that starts takes the lock at every AMQP site that it reaches. While another consumer holds one of them, it
releases those that it got, and neither takes in nor delivers anything. Otherwise two inboxes could each get the lock of
one site when that returns from an outage, and both would deliver the same messages. Once a consumer holds a lock, and
others hold none, it may be refused elsewhere and continues to read: the newcomer there gives way. A consumer that has
lost all its AMQP connections is a newcomer again. Two consumers that share no reachable site can't be kept apart; once
they do, one of them ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["LockedSite", "SiteLocks"]


class LockedSite(Protocol):
    """What the decision needs of a site."""

    @property
    def state(self) -> str:
        """``connecting``, ``connected``, ``busy``, or that it can't be reached."""

    def give_way(self) -> None:
        """Drop the connection, and with it the lock."""

    def admit(self) -> None:
        """Take in what arrived while the consumer was barred."""


class SiteLocks:
    """Decides whether this consumer reads. Everything is called under the consumer's lock."""

    def __init__(self) -> None:
        self._locking: list[LockedSite] = []
        self._all: list[LockedSite] = []
        self._holding = False
        """A lock has been held without interruption since there was no other reader."""
        self.decided = True
        """Deliveries of AMQP sites may be taken in, as far as locks decide that."""
        self.barred = False
        """Another consumer reads, or that is not known yet: nothing is taken in or delivered."""

    def begin(self, locking: Iterable[LockedSite], others: Iterable[LockedSite]) -> None:
        """Set the sites that have locks, in the order of their names, and the others. Before any connects."""
        self._locking = list(locking)
        self._all = [*self._locking, *others]
        self._holding = False
        self.decided = not self._locking
        self.barred = bool(self._locking)

    @property
    def holding(self) -> bool:
        """Whether a lock has been held without interruption since there was no other reader."""
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
            self.decided = False  # but what has arrived already may be delivered
        else:
            self._holding = "connected" in states
            self.decided, self.barred = True, False
            for site in self._all:
                site.admit()

    def may_stay(self, busy: LockedSite) -> bool:
        """Whether this consumer continues to read although another has held the lock of `busy` for long.

        Two consumers that could not see each other may each hold a lock. The one that holds the first site's stays.
        """
        if not self._holding:
            return False
        first = next((site for site in self._locking if site.state == "connected" or site is busy), busy)
        return first is not busy
