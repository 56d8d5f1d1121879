"""Control frames that wait until a transport's I/O thread writes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from reliamsg.transport.base import CONTROL_BACKLOG_BYTES

__all__ = ["ControlBacklog"]


class ControlBacklog:
    """A queue of control frames. Any thread.

    Closed at first: it accepts nothing, and keeps nothing from one connection to the next.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, str, bytes]] = deque()
        self._bytes = 0
        self._largest = 0
        """Largest body that is accepted, in bytes; 0 accepts none."""

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, largest: int) -> None:
        """Accept frames from now on, with bodies of up to `largest` bytes."""
        with self._lock:
            self._largest = largest

    def close(self) -> None:
        """Accept no more frames, and drop those that wait."""
        with self._lock:
            self._largest = 0
            self._waiting.clear()
            self._bytes = 0

    def put(self, address: str, body: bytes) -> bool:
        """Add a frame; return False if there are too many already, it is too large, or the queue is closed."""
        with self._lock:
            if self._bytes >= CONTROL_BACKLOG_BYTES or len(body) > self._largest or not self._largest:
                return False
            self._waiting.append((self._clock(), address, body))
            self._bytes += len(address) + len(body)
            return True

    def take(self, max_age: float = float("inf")) -> tuple[str, bytes] | None:
        """Remove and return the oldest frame, None if there is none. Frames that have waited for more than `max_age`
        seconds are dropped."""
        with self._lock:
            while self._waiting:
                at, address, body = self._waiting.popleft()
                self._bytes -= len(address) + len(body)
                if self._clock() - at <= max_age:
                    return address, body
            return None
