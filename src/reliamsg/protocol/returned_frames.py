"""Control frames that a broker returns because nobody listens at their address, although somebody does (rule S11).

After a partition, nodes of a RabbitMQ cluster can disagree on the bindings that there are. What is published through a
node that does not know a listener's binding never reaches the listener, who receives everything else. Only the sender
can notice: the broker returns its frames, while the peer that they are for is heard. It then needs another connection,
to another node if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["ReturnedFrames"]

ROUNDS = 2
"""How often a peer is heard, and its answer returned, before a new connection is made. A peer that has just gone may
be heard once after its queue was deleted."""
LEAST_S = 2.0
"""The minimum time between the first of those and the new connection."""
WITHIN_S = 60.0
"""The maximum time. A peer that goes and comes back now and then is heard, and its frames are returned, but not in such
a short time: requests are repeated after ten seconds at most (A1)."""
PAUSE_S = (60.0, 600.0)
"""The time between two new connections: at first, and at most. It doubles, since there may be no better node."""
MAX_ADDRESSES = 1_000
"""Those of which the latest returned frames are remembered."""


@dataclass(slots=True)
class _Address:
    since: float
    """When the first frame was returned."""
    rounds: int = 0
    heard: bool = False
    """The peer was heard since the latest returned frame."""


class ReturnedFrames:
    """Those of one site. Not thread-safe."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._pause = PAUSE_S[0]
        self._not_before = float("-inf")

    @property
    def any(self) -> bool:
        """Whether frames were returned, so that it matters who is heard."""
        return bool(self._addresses)

    def heard(self, address: str) -> None:
        """The peer that listens at `address` was heard at this site."""
        found = self._addresses.get(address)
        if found is not None:
            found.heard = True

    def returned(self, address: str, now: float) -> bool:
        """A frame for `address` was returned. Returns whether a new connection is due."""
        found = self._addresses.get(address)
        if found is None or now - found.since > WITHIN_S:
            self._addresses[address] = _Address(now)
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.popitem(last=False)
            return False
        if found.heard:
            found.rounds += 1
            found.heard = False
        if found.rounds < ROUNDS or now - found.since < LEAST_S or now < self._not_before:
            return False
        self._addresses.clear()
        if now - self._not_before > PAUSE_S[1]:
            self._pause = PAUSE_S[0]
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_S[1])
        return True
