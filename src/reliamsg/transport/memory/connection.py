"""One client's connection to a broker in memory: what waits for the client, and how to wake it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from reliamsg.transport.memory.model import BrokerSession, Refusal

__all__ = ["MOST_WAITING_BYTES", "Connection"]

MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Control frames that wait for a client beyond this push out the oldest."""


class Connection(BrokerSession):
    """A session as :class:`~reliamsg.transport.memory.broker.MemoryBroker` keeps it, under its lock. Clients read
    `alive` and `reason`, nothing else."""

    def __init__(self, client: str, wake: Callable[[], None]) -> None:
        """`wake` makes the client look at what waits for it."""
        super().__init__(client)
        self.alive: bool = True
        self.reason: str = ""
        """Why it was closed."""
        self.wake = wake
        self._results: list[tuple[int, Refusal | None]] = []
        """Tokens with their outcome."""
        self._frames: deque[tuple[str, bytes]] = deque()
        self._frame_bytes = 0

    def close(self, reason: str) -> None:
        """It is gone."""
        self.alive = False
        self.reason = reason

    @property
    def unconfirmed(self) -> int:
        """How many outcomes wait for :meth:`take_results`."""
        return len(self._results)

    def add_result(self, token: int, refusal: Refusal | None) -> None:
        """A batch has its outcome."""
        self._results.append((token, refusal))

    def take_results(self) -> list[tuple[int, Refusal | None]]:
        """The outcomes that the client does not know yet."""
        results, self._results = self._results, []
        return results

    def add_frame(self, address: str, body: bytes) -> None:
        """A control frame arrived for the client."""
        self._frames.append((address, body))
        self._frame_bytes += len(body)
        while self._frame_bytes > MOST_WAITING_BYTES and len(self._frames) > 1:
            self._frame_bytes -= len(self._frames.popleft()[1])
        self.wake()

    def take_frames(self) -> list[tuple[str, bytes]]:
        """The control frames that arrived since the last call, except at addresses that the client has left."""
        frames = [frame for frame in self._frames if frame[0] in self.addresses]
        self._frames.clear()
        self._frame_bytes = 0
        return frames
