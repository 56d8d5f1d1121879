"""Deliveries that can't be taken in now, and that their broker keeps meanwhile."""

from __future__ import annotations

from reliamsg.transport.base import Delivery
from reliamsg.wire.data import Frame

__all__ = ["Deferred"]


class Deferred:
    """Those of one site, at most as many as its broker lets wait. Under the consumer's lock."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Delivery, Frame]] = []
        self._moves = 0
        self.retry_at = float("inf")
        """When to look at them again, whatever happens until then."""

    def put(self, delivery: Delivery, frame: Frame, retry_at: float = float("inf")) -> None:
        """It is looked at again when any stream has gone on, and at `retry_at`."""
        self.waiting.append((delivery, frame))
        self.retry_at = min(self.retry_at, retry_at)

    def take(self, moves: int, now: float) -> list[tuple[Delivery, Frame]]:
        """What is to be looked at again: put back what has to wait still. `moves`: how often streams went on so far."""
        if moves == self._moves and now < self.retry_at:
            return []
        self._moves, self.retry_at = moves, float("inf")
        again, self.waiting = self.waiting, []
        return again

    def clear(self) -> None:
        """The connection is gone: the broker delivers them again."""
        self.waiting.clear()
        self.retry_at = float("inf")
