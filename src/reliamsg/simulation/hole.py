"""A hole in a stream: messages that no site keeps, and whose repairs are lost too, until faults end."""

from __future__ import annotations

import random

from reliamsg.message import Stream
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Faults
from reliamsg.wire.data import Frame

__all__ = ["Hole"]

NAME = "hole"
AFTER_S = (1.0, 4.0)
"""When it begins, in seconds after the start of the run."""
MOST = 3
"""The maximum number of lost messages, not counting others in the same batch."""


class Hole:
    """A run has at most one. It begins with a batch that a site accepts, and is the same at all sites."""

    def __init__(self, scheduler: Scheduler, faults: Faults, seed: int) -> None:
        chance = random.Random(f"{seed}/hole")
        self._scheduler, self._chances = scheduler, faults.at("every site")
        self._at = scheduler.now + chance.uniform(*AFTER_S) if NAME in faults.enabled else None
        self._more = chance.randrange(MOST)
        self._stream: Stream | None = None
        self._epoch = self._first = self._last = 0

    def swallows(self, frame: Frame | None) -> bool:
        """Whether a batch is in it, and thus lost."""
        if self._at is None or frame is None or self._scheduler.now < self._at or self._chances.over:
            return False
        envelope = frame.envelope
        if self._stream is None:
            if envelope.seq == 1 or not self._chances.bites(NAME):
                return False
            self._stream, self._epoch, self._first = envelope.stream, envelope.epoch, envelope.seq
            self._last = envelope.seq + self._more
        if (envelope.stream, envelope.epoch) != (self._stream, self._epoch):
            return False
        if envelope.seq > self._last or envelope.last < self._first:
            return False
        self._chances.strikes(NAME, envelope.producer)
        return True
