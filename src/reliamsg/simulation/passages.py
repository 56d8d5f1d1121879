"""What a group of a simulated run passed over, and in whose words: what was handed out needs none."""

from __future__ import annotations

from typing import NamedTuple

from reliamsg.message import Gap, MessageId, Stream

__all__ = ["Before", "Declared", "Passages", "covers", "names", "stream_of"]


class Declared(NamedTuple):
    """A gap that a consumer moved past."""

    gap: Gap
    at: float
    consumer: str
    until: int | None = None
    """Where the gap's end is not known: the epoch that came after it, once the consumer's journal tells."""

    def covers(self, message: MessageId) -> bool:
        """Whether a message is in the gap, as far as is known by now."""
        return covers(self.gap, message) and (self.until is None or message.epoch < self.until)


class Before(NamedTuple):
    """What came before the group joined, as a consumer's journal says."""

    stream: Stream
    epoch: int
    first: int
    last: int
    """0: all that the epoch still had."""
    at: float
    consumer: str
    blind: bool = False
    """The group had heard nothing of the producer."""

    def covers(self, message: MessageId) -> bool:
        """Whether a message is part of it."""
        return (
            message.epoch == self.epoch
            and self.first <= message.seq <= (self.last or message.seq)
            and stream_of(message) == self.stream
        )


class Passages:
    """Of one group. What lies in it was passed with a word about it."""

    def __init__(self) -> None:
        self._declared: list[Declared] = []
        self._before: set[Before] = set()

    def __contains__(self, message: MessageId) -> bool:
        return self.declared(message) is not None or self.came_before(message)

    def declare(self, gap: Gap, at: float, consumer: str, until: int | None = None) -> None:
        """A consumer moved past a gap. `until`: see :class:`Declared`."""
        self._declared.append(Declared(gap, at, consumer, until))

    def ends_before(self, stream: Stream, epoch: int, first: int, consumer: str, until: int) -> None:
        """A consumer's journal says with which epoch it went on after a gap of unknown extent. What it had of that one,
        and later ones, it delivers yet."""
        self._declared = [
            each._replace(until=until)
            if each.gap.last is None
            and (each.gap.stream, each.gap.epoch, each.gap.first, each.consumer)
            == (stream, epoch, first, consumer)
            else each
            for each in self._declared
        ]

    @property
    def is_open(self) -> bool:
        """Whether it is to be read in journals yet where a gap ends."""
        return any(each.gap.last is None and each.until is None for each in self._declared)

    def not_accepted(self, gap: Gap, consumer: str) -> None:
        """A consumer ended before it was durable that it moved past a gap: it knows nothing of that."""
        self._declared = [each for each in self._declared if (each.gap, each.consumer) != (gap, consumer)]

    def replaced(self, consumer: str, gone: str, since: float) -> None:
        """A consumer's inbox is what it was at `since` again. What it did after that was done by one called `gone`."""
        self._declared = [
            each._replace(consumer=gone) if each.at > since and each.consumer == consumer else each
            for each in self._declared
        ]
        self._before = {
            each._replace(consumer=gone) if each.at > since and each.consumer == consumer else each
            for each in self._before
        }

    def joined(self, before: Before) -> None:
        """A consumer joined a stream behind these."""
        self._before.add(before)

    def declared(self, message: MessageId) -> Declared | None:
        """By whom a message was declared as a gap first, if it was."""
        return next((each for each in self._declared if each.covers(message)), None)

    def knows_declared(self, consumer: str, message: MessageId, told: bool) -> bool:
        """Whether the message was declared as a gap by this consumer, or by another that had `told` it so."""
        return any(
            names(declared.gap, message) and (told or declared.consumer == consumer)
            for declared in self._declared
        )

    def was_passed(self, message: MessageId, consumer: str, by: float) -> bool:
        """Whether another consumer had declared a message as a gap by then, or had joined behind it, and this one had
        not joined behind it."""
        behind = {each.consumer for each in self._before if each.at <= by and each.covers(message)}
        passed = {each.consumer for each in self._declared if each.at <= by and each.covers(message)}
        return consumer not in behind and bool((behind | passed) - {consumer})

    def came_before(self, message: MessageId) -> bool:
        """Whether a message came before the group joined, as it says."""
        return any(each.covers(message) for each in self._before)

    def is_blind(self, message: MessageId) -> bool:
        """Whether the group had heard nothing of the producer of a message when it took that, or what is higher, for
        what came before."""
        return any(
            each.blind
            and each.stream == stream_of(message)
            and (message.epoch, message.seq) <= (each.epoch, each.last or message.seq)
            for each in self._before
        )


def stream_of(message: MessageId) -> Stream:
    """The stream that a message belongs to."""
    return Stream(message.producer, message.topic, message.partition)


def names(gap: Gap, message: MessageId) -> bool:
    """Whether a message is one of those that a gap names."""
    return message.epoch == gap.epoch and covers(gap, message)


def covers(gap: Gap, message: MessageId) -> bool:
    """Whether a message lies in a gap. One whose end is not known may reach over epochs of which nothing is known
    either."""
    # Compared without making a stream for it: what is handed out is held against all gaps.
    if gap.stream != (message.producer, message.topic, message.partition):
        return False
    if gap.last is None:
        return (message.epoch, message.seq) >= (gap.epoch, gap.first)
    return gap.epoch == message.epoch and gap.first <= message.seq <= gap.last
