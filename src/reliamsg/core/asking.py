"""What a group lacks, and when it asks the producer for it."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.core.announced import Span3
from reliamsg.message import Stream

__all__ = ["Ask"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to a stream's producer, to be sent now."""

    stream: Stream
    missing: tuple[Span3, ...] = ()
    """What is known to exist and has not arrived, lowest first."""
    wanted: tuple[Span3, ...] = ()
    """What of it is to be sent now. Empty: only a status is wanted, since it is not known what is missing."""
