"""Faults of messages and control frames at an in-memory broker, exactly as a test requests them."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Literal

from reliamsg.transport.base import Outgoing
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.model import BrokerModel, BrokerSession, Copy, Fate, Refusal, flip_bit

__all__ = ["ControlFaults", "Countable", "MessageFaultsOnDemand"]

Countable = Literal["lose", "ignore", "duplicate", "damage"]


class MessageFaultsOnDemand:
    """The :class:`~reliamsg.transport.memory.model.MessageFaults` of a broker in memory."""

    def __init__(self, chance: random.Random) -> None:
        self.lost: int = 0
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
        """The copies of one message, damaged or duplicated if such a fault is pending."""
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


class ControlFaults:
    """Faults of the control frames of a broker. Any thread may call; nothing waits."""

    def __init__(self, model: BrokerModel[Connection], lock: threading.RLock, chance: random.Random) -> None:
        """`lock` protects `model`."""
        self._model, self._lock, self._random = model, lock, chance
        self._lose = self._duplicate = 0
        self._refused = self._hold = False
        self._held: list[tuple[str, bytes]] = []

    def lose(self, frames: int) -> None:
        """Accept the next `frames` frames and drop them."""
        with self._lock:
            self._lose = frames

    def duplicate(self, frames: int) -> None:
        """Deliver the next `frames` frames twice."""
        with self._lock:
            self._duplicate = frames

    def hold(self) -> None:
        """Hold frames back until ``release()``."""
        with self._lock:
            self._hold = True

    def release(self, *, shuffle: bool = False) -> None:
        """Deliver the frames that were held back to the current subscribers; with ``shuffle`` in random order."""
        with self._lock:
            self._hold = False
            held, self._held = self._held, []
            if shuffle:
                self._random.shuffle(held)
            for address, body in held:
                self._forward(address, body)

    def refuse(self, refused: bool = True) -> None:
        """Carry no control frames from now on, like a site that does not permit them; or carry them again."""
        with self._lock:
            self._refused = refused

    def listeners(self, address: str) -> int:
        """How many clients listen at an address."""
        with self._lock:
            return len(self._model.listeners(address))

    def send_control(self, address: str, body: bytes) -> bool:
        """A frame arrived; returns False if it is dropped."""
        with self._lock:
            if self._refused:
                return False
            if self._lose:
                self._lose -= 1
                return True
            times = 1
            if self._duplicate:
                self._duplicate -= 1
                times = 2
            for _ in range(times):
                if self._hold:
                    self._held.append((address, body))
                else:
                    self._forward(address, body)
            return True

    def _forward(self, address: str, body: bytes) -> None:
        for connection in self._model.listeners(address):
            connection.add_frame(address, body)
