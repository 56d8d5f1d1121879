"""The control frames of a broker in memory: who listens, what waits to be handed out, and faults on demand."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["MemoryControl"]

MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Frames that wait for a listener beyond this push out the oldest."""


@dataclass(eq=False, slots=True)
class _Listener:
    addresses: frozenset[str]
    wake: Callable[[], None]
    waiting: deque[tuple[str, bytes]] = field(default_factory=deque)
    waiting_bytes: int = 0


class MemoryControl:
    """A part of :class:`~reliamsg.transport.memory.broker.MemoryBroker`, and like it: any thread may call, and
    nothing waits."""

    def __init__(self, lock: threading.RLock, chance: random.Random) -> None:
        self._lock = lock
        self._random = chance
        self._listeners: dict[object, _Listener] = {}
        """By connection, in the order in which they began."""
        self._lose = self._duplicate = 0
        self._refused = self._hold = False
        self._held: list[tuple[str, bytes]] = []

    # Faults

    def lose(self, frames: int) -> None:
        """Take the next so many frames and hand them to nobody."""
        with self._lock:
            self._lose = frames

    def duplicate(self, frames: int) -> None:
        """Hand out the next so many frames twice."""
        with self._lock:
            self._duplicate = frames

    def hold(self) -> None:
        """Keep frames back until ``release()``."""
        with self._lock:
            self._hold = True

    def release(self, *, shuffle: bool = False) -> None:
        """Hand out what was kept back, to those who listen now; with ``shuffle`` in random order."""
        with self._lock:
            self._hold = False
            held, self._held = self._held, []
            if shuffle:
                self._random.shuffle(held)
            for address, body in held:
                self._spread(address, body)

    def refuse(self, refused: bool = True) -> None:
        """Carry no control frames from now on, as a site that does not permit them; or do again."""
        with self._lock:
            self._refused = refused

    # What tests look at

    def listeners(self, address: str) -> int:
        """How many clients listen at an address."""
        with self._lock:
            return sum(address in listener.addresses for listener in self._listeners.values())

    # What the broker and the transports call

    def listen(self, connection: object, wake: Callable[[], None], addresses: Iterable[str]) -> None:
        """Replace the addresses at which a client listens."""
        with self._lock:
            listener = self._listeners.setdefault(connection, _Listener(frozenset(), wake))
            listener.addresses = frozenset(addresses)

    def leave(self, connection: object) -> None:
        """A client is gone, and so is what waits for it."""
        with self._lock:
            self._listeners.pop(connection, None)

    def tell(self, address: str, body: bytes) -> bool:
        """Hand a frame to all who listen at its address; False where it is dropped."""
        with self._lock:
            if self._refused:
                return False
            if self._lose:
                self._lose -= 1
                return True
            times = 1
            if self._duplicate:
                self._duplicate -= 1
                times = 2
            for _ in range(times):
                if self._hold:
                    self._held.append((address, body))
                else:
                    self._spread(address, body)
            return True

    def heard(self, connection: object) -> list[tuple[str, bytes]]:
        """The frames that came for a client since it was last asked."""
        with self._lock:
            listener = self._listeners.get(connection)
            if listener is None or not listener.waiting:
                return []
            # What came before it stopped listening at an address is not for it any more.
            found = [frame for frame in listener.waiting if frame[0] in listener.addresses]
            listener.waiting.clear()
            listener.waiting_bytes = 0
            return found

    def _spread(self, address: str, body: bytes) -> None:
        for listener in self._listeners.values():
            if address not in listener.addresses:
                continue
            listener.waiting.append((address, body))
            listener.waiting_bytes += len(body)
            while listener.waiting_bytes > MOST_WAITING_BYTES and len(listener.waiting) > 1:
                listener.waiting_bytes -= len(listener.waiting.popleft()[1])
            listener.wake()
