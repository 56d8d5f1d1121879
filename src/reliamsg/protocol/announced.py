"""What a producer's status announces about one stream."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.message import Stream

__all__ = ["Announced", "ChainEntry", "Position", "Span3"]

Position = tuple[int, int]
"""Epoch and number."""
Span3 = tuple[int, int, int]
"""Epoch, first and last number, both inclusive."""
ChainEntry = tuple[int, int, int, int]
"""Epoch, incarnation, the lowest number that the producer still holds (last + 1 if none), and the last number."""


@dataclass(frozen=True, slots=True)
class Announced:
    """One stream of a status, as the group that received it sees it."""

    stream: Stream
    epoch: int
    """The epoch that the producer is in. It may not have published anything in it."""
    incarnation: int
    chain: tuple[ChainEntry, ...]
    """Non-empty epochs, oldest first, each the predecessor of the next. The first epoch of which anything is held
    follows the entry before it; if there is none, it is the stream's very first."""
    removed: tuple[Span3, ...] = ()
    """Ranges that the producer removed: they do not exist any more."""
    since: Position | None = None
    """The position from which the producer counts the receiving group; None if it does not name it."""
    reached: tuple[Position, Position] | None = None
    """What the receiving group reported to the producer earlier: its position, and the position before which it may
    have delivered everything. None if it reported nothing, or the status is not for it alone."""
    interval: float = 60.0
    """The next status follows within this time, in seconds."""
    lsn: int = 0
    """How far the producer's journal was committed."""
    number: int = 0
    """Rises from status to status of one incarnation; lower ones are ignored. 0: unknown."""
    late: bool = False
    """It may predate the time at which this inbox began to read."""
    consumed: bool = False
    """The producer keeps everything until all groups that it names have settled it."""
