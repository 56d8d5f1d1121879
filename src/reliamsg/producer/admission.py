"""Bounds how much a producer holds: one budget of bytes, under one lock.

::

    reserve(owner) ──▶ transfer(owner, stored) ──▶ release(stored)
                  └──▶ give_back(owner)

Accepted messages are first reserved, for the batch that will store them. When the batch is committed, what the file
holds replaces the reservation, in one step; when that need no longer be held, it is released. At every instant, stored
and reserved bytes together are at most `max_bytes`. (Only `remove()`, which is there to make room, may exceed it, by
the envelope of the batch that it makes of the messages behind a hole.)

Any thread may call any method, and so may a signal handler in the middle of another call: a reservation is made first
and counted afterwards, so that an interrupting call sees it; a reservation whose caller was interrupted is given back
with all others of its owner.

No thread that holds the engine's lock waits for this one: a signal handler that asks for the status waits for the
engine's lock, and may have interrupted a thread that holds this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from reliamsg.runtime.wakeup import Waiters

__all__ = ["QUEUE_BYTES", "Admission"]

QUEUE_BYTES = 64 * 1024 * 1024
"""Most that waits in memory for its commit; beyond it, publishing is limited by the disk."""


class Admission:
    """One producer's budget."""

    def __init__(self, max_bytes: int, room: Waiters | None = None) -> None:
        """`room`: where threads wait if there is none."""
        self.max_bytes = max_bytes
        # Reentrant for signal handlers: no step of a caller relies on exclusive access.
        self._lock = threading.RLock()
        self._claims: dict[tuple[object, object], int] = {}
        """By owner and a key of their own, the bytes of each reservation."""
        self._taken = 0
        """All bytes that were ever stored; guarded by the lock."""
        self._released = 0
        """Those of them that need no longer be held; guarded by the engine's lock."""
        self._held = False
        self._room = Waiters() if room is None else room

    # -- what publishing threads call -----------------------------------------------------------------------

    def reserve(self, owner: object, size: int) -> bool:
        """Reserve `size` bytes for what `owner` will store; False where there is no room."""
        claim = owner, object()
        with self._lock:
            if not self._has_room(size):
                return False
            self._claims[claim] = size
            if self._has_room():  # unless an interruption has taken it meanwhile
                return True
            del self._claims[claim]
            return False

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes now."""
        with self._lock:
            return self._has_room(size)

    def _has_room(self, more: int = 0) -> bool:
        """Whether what is reserved, plus `more`, is within the limits. A single reservation may exceed the queue's."""
        reserved = sum(self._claims.values())
        return (
            not self._held
            and self._taken - self._released + reserved + more <= self.max_bytes
            and (reserved + more <= QUEUE_BYTES or len(self._claims) + (more > 0) == 1)
        )

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` is true; it is checked whenever there may be more room."""
        return self._room.wait(condition, timeout)

    @property
    def waiting(self) -> int:
        """The number of threads that wait for room."""
        return self._room.waiting

    # -- reservations that end -------------------------------------------------------------------------------

    def transfer(self, owner: object, stored: int) -> None:
        """What `owner` reserved was stored, and takes `stored` bytes."""
        with self._lock:
            for claim in list(self._claims):  # a copy: a finalizer may run here and publish
                if claim[0] is owner:
                    del self._claims[claim]
            self._taken += stored
        self._room.notify_all()

    def give_back(self, owner: object) -> None:
        """What `owner` reserved will not be stored."""
        self.transfer(owner, 0)

    def release(self, size: int) -> None:
        """`size` bytes that were stored need no longer be held. With the engine's lock held."""
        self._released += size
        self._room.notify_all()

    def hold(self, held: bool) -> None:
        """Behave as if there were no room, or (False) no longer."""
        self._held = held
        self._room.notify_all()

    def look_again(self) -> None:
        """Have waiting threads check their condition again."""
        self._room.notify_all()

    # -- questions ------------------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """Bytes that are committed and must not leave."""
        return self._taken - self._released

    @property
    def reserved(self) -> int:
        """Bytes that are reserved for messages that are accepted and not committed."""
        with self._lock:
            return sum(self._claims.values())

    @property
    def used(self) -> int:
        """Both together."""
        with self._lock:
            return self.stored + sum(self._claims.values())
