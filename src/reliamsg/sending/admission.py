"""How much a producer may still take on: one budget of bytes, under one lock.

::

    reserve(owner) ──▶ transfer(owner, stored) ──▶ release(stored)
                  └──▶ give_back(owner)

What is accepted is reserved first, and belongs to whoever will store it. When that is committed, exactly what the file
holds takes the place of the reservation, in one step; when that need not be held any more it is released. At every
instant what is stored and what is reserved are at most `max_bytes` together. (Only `remove()`, which is there to make
room, may go beyond it, by the envelope of the batch that it makes of what is left behind a hole.)

Any thread may call any method, a signal handler in the middle of any other call included: a reservation is made first
and counted afterwards, so that whoever interrupts sees it, and one whose caller was interrupted is given back with all
others of its owner.

Its lock is never waited for by a thread that holds the engine's. A signal handler that asks for the status waits for
the engine's lock, and may have interrupted a thread that holds this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from reliamsg.runtime.wakeup import Waiters

__all__ = ["QUEUE_BYTES", "Admission"]

QUEUE_BYTES = 64 * 1024 * 1024
"""Most that waits in memory for its commit; beyond it, publishing is as fast as the disk."""


class Admission:
    """One producer's budget."""

    def __init__(self, max_bytes: int, room: Waiters | None = None) -> None:
        """`room`: where threads wait that find none."""
        self.max_bytes = max_bytes
        self._lock = (
            threading.RLock()
        )  # reentrant for signal handlers; no step of a caller relies on being alone in it
        self._claims: dict[tuple[object, object], int] = {}
        """By owner and a key of their own, the bytes of each reservation."""
        self._taken = 0
        """All that was stored so far, in bytes; guarded by the lock."""
        self._released = 0
        """What of it need not be held any more; guarded by the engine's lock."""
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
        """Whether what is reserved, and `more`, is within the limits. What waits alone may be larger than the queue."""
        reserved = sum(self._claims.values())
        return (
            not self._held
            and self._taken - self._released + reserved + more <= self.max_bytes
            and (reserved + more <= QUEUE_BYTES or len(self._claims) + (more > 0) == 1)
        )

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` is true, which is looked at whenever there may be more room."""
        return self._room.wait(condition, timeout)

    @property
    def waiting(self) -> int:
        """How many threads wait for room."""
        return self._room.waiting

    # -- what becomes of reservations -----------------------------------------------------------------------

    def transfer(self, owner: object, stored: int) -> None:
        """What `owner` had reserved is stored now, and takes `stored` bytes."""
        with self._lock:
            for claim in list(self._claims):  # a copy: a finalizer may run here and publish
                if claim[0] is owner:
                    del self._claims[claim]
            self._taken += stored
        self._room.notify_all()

    def give_back(self, owner: object) -> None:
        """What `owner` had reserved will not be stored."""
        self.transfer(owner, 0)

    def release(self, size: int) -> None:
        """`size` bytes that were stored need not be held any more. With the engine's lock held."""
        self._released += size
        self._room.notify_all()

    def hold(self, held: bool) -> None:
        """Let nothing in, as if there were no room, or go on."""
        self._held = held
        self._room.notify_all()

    def look_again(self) -> None:
        """Something else has changed that threads wait for."""
        self._room.notify_all()

    # -- questions ------------------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """Bytes of what is committed and must not leave."""
        return self._taken - self._released

    @property
    def reserved(self) -> int:
        """Bytes that are reserved for what is accepted and not committed."""
        with self._lock:
            return sum(self._claims.values())

    @property
    def used(self) -> int:
        """Both together."""
        with self._lock:
            return self.stored + sum(self._claims.values())
