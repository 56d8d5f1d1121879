"""Sending control frames to a broker that closes the connection over some of them."""

from __future__ import annotations

import random
from collections import deque

import pytest

from reliamsg.transport.mqtt.control_sender import ControlSender, SentFrames


class Broker:
    """One connection at a time. It processes frames on request, and closes the connection over those that it
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

    def send_control(self, address: str, _: bytes) -> None:
        self.came.append(address)
        self.unanswered.append(address)

    def ping(self) -> int:
        self._pings += 1
        self.came.append(self._pings)
        return self._pings

    def process(self) -> bool:
        """Process the next frame; return whether the connection survives."""
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
def test_isolated_addresses_are_tried_alone_and_the_cause_is_found(seed: int) -> None:
    rng, now = random.Random(seed), 0.0
    accepted, refused = [f"p{n}" for n in range(6)], [f"odd{n}" for n in range(2)]
    broker = Broker(*refused)
    sender = ControlSender("dc1", lambda: now)
    sender.backlog.open(1_000)
    sent = SentFrames(broker)
    isolated: set[str] = set()
    for _ in range(1_000):
        now += rng.random() * 0.1
        for address in rng.sample([*accepted, *refused], rng.randint(0, 3)):
            sender.backlog.put(address, b"state")
        before = len(broker.unanswered)
        sender.send(sent)
        for address in broker.unanswered[before:]:
            if address in isolated:
                assert broker.unanswered == [address], "an isolated address is sent to alone"
            else:
                assert broker.unanswered[0] not in isolated, "no other address joins an isolated one"
        for _ in range(min(rng.randint(0, 3), len(broker.came))):
            if not broker.process():
                isolated.update(sent.blamed)
                sender.connection_ended(sent, "reset")
                assert set(sender.refused) <= set(refused)
                broker.connect()
                sent = SentFrames(broker)
                break
        sender.settle(sent)
        isolated.difference_update(broker.answered)
        broker.answered.clear()
    assert list(sender.refused) == refused
    assert set(broker.taken) == set(accepted)
