"""What a producer's status says about one stream."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.message import Stream

__all__ = ["Announced", "ChainEntry", "Position", "Span3"]

Position = tuple[int, int]
"""Epoch and number."""
Span3 = tuple[int, int, int]
"""Epoch, first and last number, both inclusive."""
ChainEntry = tuple[int, int, int, int]
"""Epoch, incarnation, the lowest number that the producer still holds (last + 1 where none), and the last number."""


@dataclass(frozen=True, slots=True)
class Announced:
    """One stream of a status, as the group that heard it sees it."""

    stream: Stream
    epoch: int
    """The epoch that the producer is in; it need not have published anything in it."""
    incarnation: int
    chain: tuple[ChainEntry, ...]
    """Non-empty epochs, oldest first, each the one before the next. The first of which anything is held follows
    the entry before it, if there is one; if there is none, it is the stream's very first."""
    removed: tuple[Span3, ...] = ()
    """What the producer took back: it exists nowhere any more."""
    since: Position | None = None
    """Since when the producer counts the hearing group; None where it does not name it."""
    reached: tuple[Position, Position] | None = None
    """What the hearing group told the producer earlier: its position, and the one before which it may have handed out
    everything. None where it told nothing, or the status is not for it alone."""
    interval: float = 60.0
    """The next status comes within so many seconds."""
    lsn: int = 0
    """How far the producer's journal was committed."""
    number: int = 0
    """Rises from status to status of one incarnation; one below the last is not looked at. 0: not known."""
    late: bool = False
    """It may have been said before this inbox began to read, as far as anybody can tell."""
    consumed: bool = False
    """The producer keeps everything until all groups that it names have settled it."""
