"""Messages that consumers left to their producers: did the producers have to keep them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from reliamsg.message import MessageId, Stream

__all__ = ["LeftMessages"]


class LeftMessages:
    """Those of all groups."""

    def __init__(self, groups: Iterable[str], keepers: Collection[str]) -> None:
        """`keepers`: producers that keep everything until the groups that they name have it."""
        self.keepers: frozenset[str] = frozenset(keepers)
        self._left: dict[str, set[MessageId]] = {group: set() for group in groups}
        self._named_at: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._no_longer_named: set[tuple[str, str, str]] = set()

    def was_left(self, group: str, message: MessageId) -> bool:
        """Whether a consumer of a group left a message to its producer, according to its journal."""
        return message in self._left[group]

    def leave(self, group: str, message: MessageId) -> None:
        """A consumer of a group left a message to its producer."""
        self._left[group].add(message)

    def group_named(self, producer: str, topic: str, group: str, now: float) -> None:
        """A producer names a group in addition to those that it named from the start."""
        self._named_at[producer, topic, group].append(now)

    def group_no_longer_named(self, producer: str, topic: str, group: str) -> None:
        """A producer no longer names a group. From then on the group is promised nothing, although it may not know that
        yet."""
        self._no_longer_named.add((producer, topic, group))

    def is_kept(self, group: str, stream: Stream, named: Collection[str], durable_at: float) -> bool:
        """Whether its producer had to keep a message for a group, at least until it stopped naming the group.

        `named`: the groups that it named when the message was published. `durable_at`: 0 if unknown.
        """
        if stream.producer not in self.keepers:
            return False
        place = stream.producer, stream.topic, group
        if group in named or place in self._no_longer_named:
            return True
        # Messages that were being published when the producer began to name the group may count or not.
        begun = self._named_at.get(place, ())
        return bool(begun) and (durable_at == 0.0 or min(begun) <= durable_at)
