"""Waking and waiting that survive interruptions.

An application's thread may be interrupted anywhere: by a signal handler, which may call the very method that it
interrupted, or by a ``KeyboardInterrupt``, which abandons it. `threading.Event` and `threading.Condition` are Python
code around a lock, and an interruption inside them leaves that lock taken for ever. What is here consists of single
operations of C: none can be interrupted half way, and none waits for a lock that an interrupted caller may hold.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Waiters", "Wakeup"]


class Wakeup:
    """Wakes one thread. :meth:`set` may be called from anywhere: any thread, a signal handler, a finalizer."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Have the next, or current, :meth:`wait` return at once."""
        if self._queue.empty():  # else it is set already, and what was done before this call will be seen
            self._queue.put(None)

    def clear(self) -> None:
        """Forget what was set. To be called by the thread that waits, before it looks at what there is to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def wait(self, timeout: float | None) -> None:
        """Wait until :meth:`set` is called, at most `timeout` seconds; not at all if it was since this was cleared."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        with contextlib.suppress(queue.Empty):
            self._queue.get(timeout=timeout)


class Waiters:
    """Threads that wait for something to become true. Whoever makes it true calls :meth:`notify_all` afterwards.

    Each waits for a lock of its own, which nobody else takes: a thread that is interrupted while it waits leaves
    nothing behind but an entry that the next :meth:`notify_all` removes.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        """About how many threads wait."""
        return len(self._locks)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `condition` is true, at most `timeout` seconds (None: without limit); returns whether it is."""
        if condition():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = threading.Lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                if condition():  # it may have become true before the lock was there to be released
                    return True
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    return False
                lock.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            finally:
                with contextlib.suppress(ValueError):
                    self._locks.remove(lock)
            if condition():
                return True

    def notify_all(self) -> None:
        """Have everybody who waits look again."""
        while self._locks:
            try:
                self._locks.popleft().release()
            except IndexError:  # somebody else took the last one
                return
