"""The knowledge of a group's consumers of each other, which determines the messages that they must flag when they take
over."""

from __future__ import annotations

from collections.abc import Collection

from reliamsg.message import MessageId, Stream
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.declarations import stream_of

__all__ = ["NEVER", "Readers"]

NEVER = float("inf")


class Readers:
    """Of all groups; consumers have different names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._standbys: set[str] = set()
        self._gone: set[str] = set()
        """Consumers that terminated and were not opened since."""
        self._reading: dict[str, tuple[float, float]] = {}
        """By reading consumer: the period in which another may read as well, and deliver messages unknown to this one.
        That can't be prevented for two that share no reachable site."""
        self._positions: dict[tuple[str, Stream], tuple[int, int]] = {}
        """By consumer: everything before this is settled, according to others of its group."""
        self._marks: dict[tuple[str, Stream], tuple[int, int]] = {}
        """By consumer: everything before this may have been delivered, according to others of its group."""

    def opened(self, consumer: str, *, standby: bool) -> None:
        """A consumer was opened. A `standby` reads only after it found that no other does: it flags whatever another
        may have delivered."""
        self._gone.discard(consumer)
        if standby:
            self._standbys.add(consumer)

    def are_gone(self, consumers: Collection[str]) -> bool:
        """Whether all of these have terminated, and none was opened since."""
        return self._gone.issuperset(consumers)

    def started_reading(self, consumer: str) -> None:
        """A consumer announced that it reads for its group."""
        self._reading.setdefault(consumer, (self._scheduler.now, NEVER))

    def stopped_reading(self, consumer: str) -> None:
        """A consumer terminated, or announced that it waits."""
        self._reading.pop(consumer, None)

    def is_reading(self, consumer: str) -> bool:
        """Whether a consumer announced that it reads."""
        return consumer in self._reading

    def noticed_other(self, consumer: str, yields_in: float) -> None:
        """A consumer learned that another one of its group reads: one of them yields, in `yields_in` seconds at
        most."""
        now = self._scheduler.now
        since, until = self._reading.get(consumer, (now, now))
        if until == NEVER:
            self._reading[consumer] = since, now + yields_in

    def announced(
        self, consumer: str, stream: Stream, position: tuple[int, int], high_water: tuple[int, int]
    ) -> None:
        """A consumer learned from another inbox of its group that everything before `position` is settled, and that
        everything before `high_water` may have been delivered.

                It can't skip or flag anything else when it takes over, unless it waited for the other to terminate; no
        more is promised.
        """
        key = consumer, stream
        self._positions[key] = max(position, self._positions.get(key, (0, 0)))
        self._marks[key] = max(position, high_water, self._marks.get(key, (0, 0)))

    def terminated(self, consumer: str) -> None:
        """A consumer loses this knowledge."""
        self._gone.add(consumer)
        for learned in (self._positions, self._marks):
            for key in [key for key in learned if key[0] == consumer]:
                del learned[key]

    def knows_settled(self, consumer: str, message: MessageId) -> bool:
        """Whether a consumer learned that its group is done with a message."""
        return (message.epoch, message.seq) < self._positions.get((consumer, stream_of(message)), (0, 0))

    def knows_delivered(self, consumer: str, message: MessageId, at: float) -> bool:
        """Whether a consumer has to assume that another one of its group delivered a message, which happened at this
        time: it learned of it, or it waited until no other consumer read."""
        since, until = self._reading.get(consumer, (NEVER, NEVER))
        took_over = consumer in self._standbys and not since <= at < until
        return took_over or (message.epoch, message.seq) < self._marks.get(
            (consumer, stream_of(message)), (0, 0)
        )
