"""Whether this inbox is the one of its group that reads."""

from __future__ import annotations

from collections.abc import Callable

from reliamsg.consumer.lease import Lease
from reliamsg.consumer.site_locks import SiteLocks

__all__ = ["GroupRole"]


class GroupRole:
    """Combines the three things that decide it: the lease, the locks of AMQP sites, and whether this inbox stands by.
    Changed under the consumer's lock; the properties need none."""

    def __init__(self, lease: Lease, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lease = lease
        self.locks = SiteLocks()
        self.standing_by = True
        """Another inbox reads, or may, whatever locks say."""

    def stand_by(self) -> None:
        """Another inbox reads, or may."""
        self.standing_by = True

    def read(self) -> None:
        """This inbox reads from now on, as far as locks let it."""
        self.standing_by = False

    @property
    def barred(self) -> bool:
        """Whether nothing may be taken in or delivered, since another inbox reads, or may."""
        return self.standing_by or self.locks.barred

    @property
    def holds(self) -> bool:
        """Whether this inbox is known to be the one that reads, at this instant."""
        return not self.standing_by and self._clock() < self.lease.until

    @property
    def in_charge(self) -> bool:
        """Whether this inbox is known to be the one that reads, and no lock bars it from delivering."""
        return not (self.standing_by or self.locks.barred) and self._clock() < self.lease.until
