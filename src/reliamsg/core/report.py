"""What a group tells producers about a stream: only what is committed, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.core.announced import Position, Span3

__all__ = ["Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """A stream at a group, as its last commit left it."""

    position: Position = (0, 1)
    """Everything before it is settled, durably; epoch 0 where the group has not joined the stream."""
    entered: tuple[int, int] = (0, 0)
    """The highest epoch that was entered, and its incarnation."""
    high_water: int = 0
    """Numbers below, of the epoch entered, may have been handed out."""
    missing: tuple[Span3, ...] = ()
    """What is known to exist and has not arrived, lowest first; at most ``MAX_MISSING`` ranges."""
    declared: tuple[Span3, ...] = ()
    """The latest ranges that were passed without having arrived; at most ``MAX_DECLARED``."""
    accepted: tuple[Span3, ...] = ()
    """Accepted as lost, durably, and not passed yet, since messages before them are not settled; lowest first."""
