"""Sending control frames to a broker that ends connections over some: what is sent beside what."""

from __future__ import annotations

import random
from collections import deque

import pytest

from reliamsg.transport.mqtt.control_sender import Sending, Telling


class Broker:
    """One connection at a time. It looks at what came when it is told to, and ends the connection over what it
    forbids."""

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = set(forbidden)
        self.taken: list[str] = []
        self.connect()

    def connect(self) -> None:
        self.came: deque[str | int] = deque()
        self.unanswered: list[str] = []
        """Addresses of frames that came since the latest ping that it has answered."""
        self.answered: list[str] = []
        """All others."""
        self.pongs = self._pings = 0
        self.can_write = True

    def tell(self, address: str, _: bytes) -> None:
        self.came.append(address)
        self.unanswered.append(address)

    def ping(self) -> int:
        self._pings += 1
        self.came.append(self._pings)
        return self._pings

    def look(self) -> bool:
        """At the next frame; whether the connection stands."""
        frame = self.came.popleft()
        if isinstance(frame, int):
            self.pongs = frame
            left = sum(isinstance(other, str) for other in self.came)
            done = len(self.unanswered) - left
            self.answered += self.unanswered[:done]
            del self.unanswered[:done]
        elif frame in self.forbidden:
            return False
        else:
            self.taken.append(frame)
        return True


@pytest.mark.parametrize("seed", range(20))
def test_suspects_are_tried_alone_and_the_guilty_are_found(seed: int) -> None:
    rng, now = random.Random(seed), 0.0
    innocent, guilty = [f"p{n}" for n in range(6)], [f"odd{n}" for n in range(2)]
    broker = Broker(*guilty)
    telling = Telling("dc1", lambda: now)
    telling.backlog.open(1_000)
    sending = Sending(broker)
    suspected: set[str] = set()
    for _ in range(1_000):
        now += rng.random() * 0.1
        for address in rng.sample([*innocent, *guilty], rng.randint(0, 3)):
            telling.backlog.put(address, b"state")
        before = len(broker.unanswered)
        telling.send(sending)
        for address in broker.unanswered[before:]:
            if address in suspected:
                assert broker.unanswered == [address], "a suspect is sent to alone"
            else:
                assert broker.unanswered[0] not in suspected, "nobody joins a suspect"
        for _ in range(min(rng.randint(0, 3), len(broker.came))):
            if not broker.look():
                suspected.update(sending.blamed)
                telling.broken(sending, "reset")
                assert set(telling.refused) <= set(guilty)
                broker.connect()
                sending = Sending(broker)
                break
        telling.settle(sending)
        suspected.difference_update(broker.answered)
        broker.answered.clear()
    assert list(telling.refused) == guilty
    assert set(broker.taken) == set(innocent)
