"""What goes wrong with single messages at a broker in memory: exactly what a test asks for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from reliamsg.transport.base import Outgoing
from reliamsg.transport.memory.model import BrokerSession, Copy, Fate, Refusal, flip_bit

__all__ = ["FaultsOnDemand"]

Countable = Literal["lose", "ignore", "duplicate", "damage"]


class FaultsOnDemand:
    """The :class:`~reliamsg.transport.memory.model.MessageFaults` of a broker in memory."""

    def __init__(self, chance: random.Random) -> None:
        self.lost = 0
        """Messages that were confirmed and not kept, once per queue, or once where there was none."""
        self._random = chance
        self._left: dict[Countable, int] = {}
        """How many more messages each fault affects."""
        self._refusals: dict[str, Refusal] = {}
        """By topic."""
        self._window = 1

    def arm(self, fault: Countable, messages: int) -> None:
        """Have a fault affect the next `messages` messages."""
        self._left[fault] = messages

    def refuse(self, topic: str, refusal: Refusal | None) -> None:
        """Refuse every message of a topic, or (None) no more."""
        if refusal is None:
            self._refusals.pop(topic, None)
        else:
            self._refusals[topic] = refusal

    def reorder(self, window: int) -> None:
        """Deliver a random one of the next `window` messages each time."""
        self._window = max(1, window)

    def count_lost(self, messages: int) -> None:
        """Messages were lost with their queues."""
        self.lost += messages

    def before_routing(self, message: Outgoing) -> Fate | None:
        if self._strikes("ignore"):
            return Fate(answered=False)
        refusal = self._refusals.get(message.topic)
        return None if refusal is None else Fate(refusal=refusal)

    def fate(self, session: BrokerSession, message: Outgoing, copies: Sequence[Copy]) -> Fate:
        if not copies:
            self.lost += 1
            return Fate()
        if self._strikes("lose"):
            self.lost += len(copies)
            return Fate()
        return Fate(self.spoil(copies))

    def spoil(self, copies: Sequence[Copy]) -> list[Copy]:
        """The copies of one message, damaged or duplicated if that is due."""
        if copies[0].delivery.body and self._strikes("damage"):
            damaged = flip_bit(copies[0].delivery, self._random)
            copies = [Copy(copy.queue, damaged) for copy in copies]
        times = 2 if self._strikes("duplicate") else 1
        return [copy for copy in copies for _ in range(times)]

    def pick(self, waiting: int) -> int:
        return self._random.randrange(min(waiting, self._window))

    def _strikes(self, fault: Countable) -> bool:
        left = self._left.get(fault, 0)
        self._left[fault] = max(0, left - 1)
        return left > 0
