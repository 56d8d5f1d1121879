"""Whether this inbox is the one of its group that reads: locks of AMQP sites, the lease, and standing by.

A consumer that starts takes the lock at every AMQP site that it reaches. While another consumer holds one of them, it
releases those that it got, and neither takes in nor delivers anything. Otherwise two inboxes could each get the lock of
one site when that returns from an outage, and both would deliver the same messages. Once a consumer holds a lock, and
others hold none, it may be refused elsewhere and continues to read: the newcomer there gives way. A consumer that has
lost all its AMQP connections is a newcomer again. Two consumers that share no reachable site can't be kept apart; once
they do, one of them terminates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from reliamsg.consumer.lease import Lease

__all__ = ["GroupRole", "LockedSite"]


class LockedSite(Protocol):
    """What the decision needs of a site."""

    @property
    def state(self) -> str:
        """``connecting``, ``connected``, ``busy``, or that it can't be reached."""

    def give_way(self) -> None:
        """Drop the connection, and with it the lock."""

    def admit(self) -> None:
        """Take in what arrived while the consumer was barred."""


class GroupRole:
    """Combines the three things that decide it. Changed under the consumer's lock; reading needs none."""

    def __init__(self, lease: Lease, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lease = lease
        self.standing_by: bool = True
        """Another inbox reads, or may, whatever locks say."""
        self.locked_out: bool = False
        """By locks, another consumer reads, or that is not known yet."""
        self.barred: bool = True
        """Either of the two: nothing is taken in or delivered."""
        self.decided: bool = True
        """Deliveries of AMQP sites may be taken in, as far as locks decide that."""
        self.holding: bool = False
        """A lock has been held without interruption since there was no other reader."""
        self.changed: bool = True
        """Something has changed that :class:`~reliamsg.consumer.standby.StandbyLease` has to look at."""
        self._locking: list[LockedSite] = []
        self._all: list[LockedSite] = []

    # -- changes ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Something has changed that may decide who reads."""
        self.changed = True

    def looked(self) -> None:
        """All changes so far are taken into account."""
        self.changed = False

    def stand_by(self) -> None:
        """Another inbox reads, or may."""
        self.standing_by = self.barred = True

    def read(self) -> None:
        """This inbox reads from now on, as far as locks let it."""
        self.standing_by, self.barred = False, self.locked_out

    def begin(self, locking: Iterable[LockedSite], others: Iterable[LockedSite]) -> None:
        """Set the sites that have locks, in the order of their names, and the others. Before any connects."""
        self._locking = list(locking)
        self._all = [*self._locking, *others]
        self.holding = False
        self._lock_out(bool(self._locking), decided=not self._locking)

    def review(self) -> None:
        """The state of a site has changed."""
        self.changed = True
        states = {site.state for site in self._locking}
        if not states or (self.holding and "connected" in states):
            return
        self.holding = False
        if "busy" in states:
            self._lock_out(True, decided=False)
            for site in self._locking:
                if site.state == "connected":
                    site.give_way()
        elif "connecting" in states:
            self.decided = False  # but messages that have arrived already may be delivered
        else:
            self.holding = "connected" in states
            self._lock_out(False, decided=True)
            for site in self._all:
                site.admit()

    def _lock_out(self, locked_out: bool, decided: bool) -> None:
        self.locked_out, self.decided = locked_out, decided
        self.barred = self.standing_by or locked_out

    # -- questions ----------------------------------------------------------------------------------------

    def may_stay(self, busy: LockedSite) -> bool:
        """Whether this consumer continues to read although another has held the lock of `busy` for long.

        Two consumers that could not see each other may each hold a lock. The one that holds the first site's stays.
        """
        if not self.holding:
            return False
        first = next((site for site in self._locking if site.state == "connected" or site is busy), busy)
        return first is not busy

    @property
    def holds(self) -> bool:
        """Whether this inbox is known to be the one that reads, at this instant."""
        return not self.standing_by and self._clock() < self.lease.until

    @property
    def in_charge(self) -> bool:
        """Whether this inbox is known to be the one that reads, and no lock bars it from delivering."""
        return not self.barred and self._clock() < self.lease.until
