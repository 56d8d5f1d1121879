"""What consumers say that they left to producers, which have to keep it: whether that is so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from reliamsg.message import MessageId, Stream

__all__ = ["Leaving"]


class Leaving:
    """Of all groups."""

    def __init__(self, groups: Iterable[str], keepers: Collection[str]) -> None:
        """`keepers`: producers that hold everything until the groups that they name have it."""
        self.keepers = frozenset(keepers)
        self.said: dict[str, set[MessageId]] = {group: set() for group in groups}
        """By group, what its consumers say that they left."""
        self.looks: dict[str, Callable[[], None]] = {}
        """By consumer: has the judge told of all that it says by now."""
        self._named_at: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._no_longer: set[tuple[str, str, str]] = set()

    def naming(self, producer: str, topic: str, group: str, now: float) -> None:
        """A producer names a group, beyond those that it named from the start."""
        self._named_at[producer, topic, group].append(now)

    def no_longer(self, producer: str, topic: str, group: str) -> None:
        """A producer names a group no more. Nothing is promised to it then, and it may not have heard that yet."""
        self._no_longer.add((producer, topic, group))

    def is_kept(self, group: str, stream: Stream, named: Collection[str], durable_at: float) -> bool:
        """Whether its producer had to keep a message for a group, at least until it was told not to name it. `named`:
        the groups that it named when the message was published. `durable_at`: 0 where that is not known."""
        if stream.producer not in self.keepers:
            return False
        place = stream.producer, stream.topic, group
        if group in named or place in self._no_longer:
            return True
        # What was in hand when the group began to be named may count or not.
        begun = self._named_at.get(place, ())
        return bool(begun) and (durable_at == 0.0 or min(begun) <= durable_at)
