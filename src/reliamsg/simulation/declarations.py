"""Messages that a group skipped and declared: as a gap, or as published before the group joined."""

from __future__ import annotations

from typing import NamedTuple

from reliamsg.message import Gap, MessageId, Stream

__all__ = ["BeforeJoin", "Declarations", "DeclaredGap", "covers", "names", "stream_of"]


class DeclaredGap(NamedTuple):
    """A gap that a consumer moved past."""

    gap: Gap
    at: float
    consumer: str
    until: int | None = None
    """If the gap's end is unknown: the epoch after it, once the consumer's journal shows that epoch."""

    def covers(self, message: MessageId) -> bool:
        """Whether a message is in the gap, as far as is known."""
        return covers(self.gap, message) and (self.until is None or message.epoch < self.until)


class BeforeJoin(NamedTuple):
    """Messages that were published before the group joined, according to a consumer's journal."""

    stream: Stream
    epoch: int
    first: int
    last: int
    """0: everything that remained of the epoch."""
    at: float
    consumer: str
    blind: bool = False
    """The group had not received any announcement of the producer."""

    def covers(self, message: MessageId) -> bool:
        """Whether a message is one of them."""
        return (
            message.epoch == self.epoch
            and self.first <= message.seq <= (self.last or message.seq)
            and stream_of(message) == self.stream
        )


class Declarations:
    """The declarations of one group."""

    def __init__(self) -> None:
        self._gaps: list[DeclaredGap] = []
        self._before: set[BeforeJoin] = set()
        self._starts: list[tuple[Stream, tuple[int, int], float, str]] = []
        """Stream, place (epoch and number), time and consumer: where consumers joined streams."""
        self._forks: list[tuple[Stream, tuple[int, int], int, float, str]] = []
        """Stream, known place, epoch, time and consumer: where consumers went on to an epoch that did not know it."""

    def __contains__(self, message: MessageId) -> bool:
        return self.gap_of(message) is not None or self.came_before(message)

    def declare(self, gap: Gap, at: float, consumer: str, until: int | None = None) -> None:
        """A consumer moved past a gap. `until`: see :class:`DeclaredGap`."""
        self._gaps.append(DeclaredGap(gap, at, consumer, until))

    def end_before(self, stream: Stream, epoch: int, first: int, consumer: str, until: int) -> None:
        """A consumer's journal shows the epoch in which it continued after a gap of unknown extent. It still delivers
        messages of that epoch and of later ones."""
        place = stream, epoch, first, consumer
        self._gaps = [
            each._replace(until=until)
            if each.gap.last is None
            and (each.gap.stream, each.gap.epoch, each.gap.first, each.consumer) == place
            else each
            for each in self._gaps
        ]

    @property
    def has_open_end(self) -> bool:
        """Whether journals do not yet show where a gap ends."""
        return any(each.gap.last is None and each.until is None for each in self._gaps)

    def withdraw(self, gap: Gap, consumer: str) -> None:
        """A consumer terminated before its acceptance of a gap was durable, so it no longer knows of it."""
        self._gaps = [each for each in self._gaps if (each.gap, each.consumer) != (gap, consumer)]

    def inbox_replaced(self, consumer: str, gone: str, since: float) -> None:
        """A consumer's inbox is in the state of `since` again. Its later actions are attributed to a consumer named
        `gone`."""
        self._gaps = [
            each._replace(consumer=gone) if each.at > since and each.consumer == consumer else each
            for each in self._gaps
        ]
        self._before = {
            each._replace(consumer=gone) if each.at > since and each.consumer == consumer else each
            for each in self._before
        }
        self._starts = [
            (stream, place, at, gone if at > since and by == consumer else by)
            for stream, place, at, by in self._starts
        ]
        self._forks = [
            (stream, known, epoch, at, gone if at > since and by == consumer else by)
            for stream, known, epoch, at, by in self._forks
        ]

    def joined(self, before: BeforeJoin) -> None:
        """A consumer joined a stream behind these messages."""
        self._before.add(before)

    def started(self, stream: Stream, place: tuple[int, int], at: float, consumer: str) -> None:
        """A consumer joined a stream at this place (epoch and number)."""
        self._starts.append((stream, place, at, consumer))

    def forked(self, stream: Stream, known: tuple[int, int], epoch: int, at: float, consumer: str) -> None:
        """A consumer came to an epoch that did not know the place (epoch and number) up to which it had the stream: for
        all that it knows, nothing is between the two."""
        self._forks.append((stream, known, epoch, at, consumer))

    def gap_of(self, message: MessageId) -> DeclaredGap | None:
        """The first declared gap that a message is in."""
        return next((each for each in self._gaps if each.covers(message)), None)

    def was_known(self, consumer: str, message: MessageId, announced: bool) -> bool:
        """Whether this consumer declared a message as a gap, or another one did and `announced` it."""
        return any(
            names(declared.gap, message) and (announced or declared.consumer == consumer)
            for declared in self._gaps
        )

    def was_passed_elsewhere(self, message: MessageId, consumer: str, by: float) -> bool:
        """Whether another consumer had declared a message as a gap by then, had joined behind it, or had gone on to
        another history of its outbox without knowing of it, while this one had not joined behind it."""
        behind = {each.consumer for each in self._before if each.at <= by and each.covers(message)}
        behind |= {
            other
            for stream, place, at, other in self._starts
            if at <= by and stream == stream_of(message) and (message.epoch, message.seq) < place
        }
        passed = {each.consumer for each in self._gaps if each.at <= by and each.covers(message)}
        passed |= {
            other
            for stream, known, epoch, at, other in self._forks
            if at <= by and stream == stream_of(message) and known < (message.epoch, message.seq) < (epoch, 0)
        }
        return consumer not in behind and bool((behind | passed) - {consumer})

    def came_before(self, message: MessageId) -> bool:
        """Whether a message was published before the group joined, as the group declared."""
        return any(each.covers(message) for each in self._before)

    def was_blind(self, message: MessageId) -> bool:
        """Whether the group had no announcement of a message's producer when it declared this message, or a higher one,
        to be published before it joined."""
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
    """Whether a message is in a gap. A gap of unknown extent may include unknown epochs."""
    # Compared without creating a stream: every delivery is compared with all gaps.
    if gap.stream != (message.producer, message.topic, message.partition):
        return False
    if gap.last is None:
        return (message.epoch, message.seq) >= (gap.epoch, gap.first)
    return gap.epoch == message.epoch and gap.first <= message.seq <= gap.last
