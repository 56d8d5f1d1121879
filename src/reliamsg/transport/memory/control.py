"""The control frames of a broker in memory, with faults on demand."""

from __future__ import annotations

import random
import threading

from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.model import BrokerModel

__all__ = ["MemoryControl"]


class MemoryControl:
    """A part of :class:`~reliamsg.transport.memory.broker.MemoryBroker`, and like it: any thread may call, and
    nothing waits."""

    def __init__(self, model: BrokerModel[Connection], lock: threading.RLock, chance: random.Random) -> None:
        self._model = model
        self._lock = lock
        self._random = chance
        self._lose = self._duplicate = 0
        self._refused = self._hold = False
        self._held: list[tuple[str, bytes]] = []

    # Faults

    def lose(self, frames: int) -> None:
        """Accept the next `frames` frames and deliver them to nobody."""
        with self._lock:
            self._lose = frames

    def duplicate(self, frames: int) -> None:
        """Deliver the next `frames` frames twice."""
        with self._lock:
            self._duplicate = frames

    def hold(self) -> None:
        """Hold frames back until ``release()``."""
        with self._lock:
            self._hold = True

    def release(self, *, shuffle: bool = False) -> None:
        """Deliver the frames that were held back to those who listen now; with ``shuffle`` in random order."""
        with self._lock:
            self._hold = False
            held, self._held = self._held, []
            if shuffle:
                self._random.shuffle(held)
            for address, body in held:
                self._spread(address, body)

    def refuse(self, refused: bool = True) -> None:
        """Carry no control frames from now on, like a site that does not permit them; or carry them again."""
        with self._lock:
            self._refused = refused

    # What tests look at

    def listeners(self, address: str) -> int:
        """How many clients listen at an address."""
        with self._lock:
            return len(self._model.listeners(address))

    # What the broker calls

    def tell(self, address: str, body: bytes) -> bool:
        """Pass a frame to everyone who listens at its address; returns False if it is dropped."""
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

    def _spread(self, address: str, body: bytes) -> None:
        for connection in self._model.listeners(address):
            connection.add_frame(address, body)
