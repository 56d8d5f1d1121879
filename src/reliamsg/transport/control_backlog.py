"""What transports to real brokers share about control frames: those told and not written yet."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from reliamsg.transport.base import CONTROL_BACKLOG_BYTES

__all__ = ["ControlBacklog"]


class ControlBacklog:
    """Control frames that were told, in order, until the I/O thread writes them. Any thread.

    Closed at first: nothing is taken, and nothing kept from one connection to the next.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, str, bytes]] = deque()
        self._bytes = 0
        self._largest = 0
        """Of a body that is taken, in bytes; 0 takes none."""

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, largest: int) -> None:
        """Take frames from now on, of bodies up to `largest` bytes."""
        with self._lock:
            self._largest = largest

    def close(self) -> None:
        """Take none any more, and forget those that wait."""
        with self._lock:
            self._largest = 0
            self._waiting.clear()
            self._bytes = 0

    def put(self, address: str, body: bytes) -> bool:
        """Take a frame; False where there are too many already, or it is too large, or none are taken."""
        with self._lock:
            if self._bytes >= CONTROL_BACKLOG_BYTES or len(body) > self._largest or not self._largest:
                return False
            self._waiting.append((self._clock(), address, body))
            self._bytes += len(address) + len(body)
            return True

    def take(self, max_age: float = float("inf")) -> tuple[str, bytes] | None:
        """The oldest frame, which is the caller's from now on; None where none waits. Frames that have waited for more
        than `max_age` seconds are dropped."""
        with self._lock:
            while self._waiting:
                at, address, body = self._waiting.popleft()
                self._bytes -= len(address) + len(body)
                if self._clock() - at <= max_age:
                    return address, body
            return None
