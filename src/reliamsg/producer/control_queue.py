"""Control frames that wait for a producer's writer."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from reliamsg.keys import KeyRing
from reliamsg.protocol.duplicate_filter import DuplicateFilter
from reliamsg.protocol.fair_quota import FairQuota
from reliamsg.wire.control import State, Status, open_control
from reliamsg.wire.data import FrameError

__all__ = ["ControlFrame", "ControlQueue"]

MAX_FRAMES = 2_000
"""Frames that wait; any more are dropped: later frames supersede them."""
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A frame that arrived at an address."""

    address: str
    content: Status | State
    size: int


class ControlQueue:
    """A flooding source consumes only its own share of turns and memory. :meth:`decode` and :attr:`copies` may be used
    by several I/O threads at once; the caller serializes everything else."""

    def __init__(self, keys: KeyRing | None) -> None:
        self.rejected: Counter[str] = Counter()
        """Frames that were refused, by reason."""
        self.copies: DuplicateFilter = DuplicateFilter()
        """Frames that arrived over one site need no second look when they arrive over another."""
        self.connected: set[str] = set()
        """Sites that were connected since the writer last looked."""
        self.disconnected: set[str] = set()
        """Sites whose connection was lost since then."""
        self.count: int = 0
        """How many frames wait."""
        self._keys = keys
        self._waiting: dict[str, deque[ControlFrame]] = {}
        """By source, in the order of their turns."""
        self._frames = FairQuota(MAX_FRAMES)
        self._bytes = FairQuota(MAX_BYTES)

    def decode(self, address: str, body: bytes) -> ControlFrame | str:
        """The frame; the reason why it is not accepted if it is malformed, or unsigned where it must be signed."""
        try:
            return ControlFrame(address, open_control(body, address, self._keys), len(body))
        except FrameError as error:
            return error.reason

    def put(self, source: str, frame: ControlFrame) -> bool:
        """Keep a frame; False if its source has no room left."""
        if not (self._frames.has_room(source, 1) and self._bytes.take(source, frame.size)):
            return False
        self._frames.take(source, 1)
        self._waiting.setdefault(source, deque()).append(frame)
        self.count += 1
        return True

    def take(self) -> ControlFrame:
        """The next frame: of each source in turn, in the order in which they arrived."""
        source, frames = next(iter(self._waiting.items()))
        del self._waiting[source]
        frame = frames.popleft()
        if frames:
            self._waiting[source] = frames
        self._frames.give_back(source, 1)
        self._bytes.give_back(source, frame.size)
        self.count -= 1
        return frame
