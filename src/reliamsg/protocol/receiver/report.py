"""What a group reports to producers about a stream: its committed state, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.protocol.announced import Position, Span3

__all__ = ["Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """A stream at a group, as its last commit left it."""

    position: Position = (0, 1)
    """Everything before it is settled, durably; epoch 0 if the group has not joined the stream."""
    entered: tuple[int, int] = (0, 0)
    """The highest epoch that was entered, and its incarnation."""
    high_water: int = 0
    """Numbers of the entered epoch below may have been delivered."""
    missing: tuple[Span3, ...] = ()
    """Ranges that are known to exist and have not arrived, lowest first; at most ``MAX_MISSING``."""
    declared: tuple[Span3, ...] = ()
    """The latest ranges that were passed without having arrived; at most ``MAX_DECLARED``."""
    accepted: tuple[Span3, ...] = ()
    """Accepted as lost, durably, and not passed yet, because earlier messages are not settled; lowest first."""
