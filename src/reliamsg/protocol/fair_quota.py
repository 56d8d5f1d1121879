"""A quota shared by many sources, which no source can exhaust.

Each source may hold at most as much as is left free. A single flooding source gets half, the next one half of the rest,
and so on: however many flood, there is room for another one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FairQuota"]


class FairQuota:
    """How much of `limit` is held by each source."""

    __slots__ = ("_held", "limit", "total")

    def __init__(self, limit: int, held: Mapping[str, int] | None = None) -> None:
        self.limit: int = limit
        self._held = dict(held or {})
        self.total: int = sum(self._held.values())

    def has_room(self, source: str, amount: int) -> bool:
        """Whether the source may hold this much more."""
        return self._held.get(source, 0) + amount <= self.limit - self.total - amount

    def take(self, source: str, amount: int) -> bool:
        """Give the source this much more, if it may hold it; returns whether it may."""
        if not self.has_room(source, amount):
            return False
        self._held[source] = self._held.get(source, 0) + amount
        self.total += amount
        return True

    def give_back(self, source: str, amount: int) -> None:
        """The source holds this much less; not more than it took."""
        left = self._held[source] - amount
        assert left >= 0, source
        self.total -= amount
        if left:
            self._held[source] = left
        else:
            del self._held[source]

    def move(self, source: str, to: str, amount: int) -> None:
        """Transfer what a source holds to another one, even beyond the share of that one."""
        self.give_back(source, amount)
        self._held[to] = self._held.get(to, 0) + amount
        self.total += amount
