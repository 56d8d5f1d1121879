"""Control frames that wait for a producer's writer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from reliamsg.core.fair_quota import FairQuota
from reliamsg.wire.control import State, Status

__all__ = ["Letter", "Mailbox"]

MAX_FRAMES = 2_000
"""Frames that wait; what comes beyond is dropped, as snapshots may be."""
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """A frame that came in at an address."""

    address: str
    frame: Status | State
    size: int


class Mailbox:
    """Who floods it takes its own turns and its own room. Guarded by the engine's lock."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Letter]] = {}
        """By source, in the order of their turns."""
        self._frames = FairQuota(MAX_FRAMES)
        self._bytes = FairQuota(MAX_BYTES)

    def __len__(self) -> int:
        return self._frames.total

    def put(self, source: str, letter: Letter) -> bool:
        """Keep a frame; False where its source has no room left."""
        if not (self._frames.has_room(source, 1) and self._bytes.take(source, letter.size)):
            return False
        self._frames.take(source, 1)
        self._waiting.setdefault(source, deque()).append(letter)
        return True

    def take(self) -> Letter:
        """The next frame: of each source in turn, in the order in which they came."""
        source, letters = next(iter(self._waiting.items()))
        del self._waiting[source]
        letter = letters.popleft()
        if letters:
            self._waiting[source] = letters
        self._frames.give_back(source, 1)
        self._bytes.give_back(source, letter.size)
        return letter
