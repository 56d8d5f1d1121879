"""Sending control frames to a broker that ends connections over some: what is sent beside what, on a link by hand."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reliamsg.config import Site
from reliamsg.transport import mqtt_teller
from reliamsg.transport.mqtt_teller import Teller
from reliamsg.transport.session import Backoff

SITE = Site("dc1", "mqtt://h", backoff_min=0.05, backoff_max=0.2)


class Broker:
    """One connection at a time. It looks at what came when it is told to, and ends the connection over what it
    forbids."""

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = set(forbidden)
        self.taken: list[str] = []
        self.connect()

    def connect(self) -> None:
        self.came: deque[str | int] = deque()
        self.unseen: list[str] = []
        """Addresses of frames at which it has not looked, or the answer to which is not there."""
        self.pongs = self._pings = 0
        self.can_write = True
        self.reason = "reset"

    def beside(self, *_: Any) -> Broker:
        return self

    def tell(self, address: str, _: bytes) -> None:
        self.came.append(address)
        self.unseen.append(address)

    def ping(self) -> int:
        self._pings += 1
        self.came.append(self._pings)
        return self._pings

    def look(self) -> bool:
        """At the next frame; whether the connection stands."""
        frame = self.came.popleft()
        if isinstance(frame, int):
            self.pongs = frame
            self.unseen = [address for address in self.came if isinstance(address, str)]
        elif frame in self.forbidden:
            return False
        else:
            self.taken.append(frame)
        return True


@contextmanager
def telling(broker: Broker) -> Iterator[Teller]:
    teller = Teller(SITE, broker, "c:ctl", "unused")  # type: ignore[arg-type]
    teller.begin(None)
    try:
        yield teller
    finally:
        teller._waker.close()


@pytest.mark.parametrize("seed", range(20))
def test_suspects_are_tried_alone_and_the_guilty_are_found(seed: int) -> None:
    rng = random.Random(seed)
    innocent, guilty = [f"p{n}" for n in range(6)], [f"odd{n}" for n in range(2)]
    broker, backoff = Broker(*guilty), Backoff(SITE)
    with telling(broker) as teller:
        sending = mqtt_teller._Sending(broker)  # type: ignore[arg-type]
        tried: set[str] = set()
        for _ in range(4_000):
            for address in rng.sample([*innocent, *guilty], rng.randint(0, 3)):
                teller.tell(address, b"state")
            before = len(broker.unseen)
            teller._send(sending)
            for address in broker.unseen[before:]:
                if address in teller._suspects:
                    tried.add(address)
                    assert broker.unseen == [address], "a suspect is alone"
                else:
                    assert broker.unseen[0] not in teller._suspects, "nobody joins a suspect"
            for _ in range(min(rng.randint(0, 3), len(broker.came))):
                if not broker.look():
                    teller._broken(sending, backoff)
                    assert set(teller.refused) <= set(guilty)
                    broker.connect()
                    sending = mqtt_teller._Sending(broker)  # type: ignore[arg-type]
                    break
            teller._settle(sending, backoff)
        assert list(teller.refused) == guilty
        assert tried >= set(guilty)
        assert set(broker.taken) == set(innocent)
