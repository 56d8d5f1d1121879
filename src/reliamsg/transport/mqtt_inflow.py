"""What a receiver keeps of messages that arrive faster than they become safe.

A connection that carries control frames is always read, also when as many messages are unacknowledged as the window
allows. A broker that keeps to MQTT 5's Receive Maximum, or has a limit of its own, stops by itself before there are
many more. For the others there is a bounded overflow. What does not fit in it is dropped without an acknowledgement,
together with all that follows on the same connection, since acknowledgements go in order. Once there is room again the
connection is made anew, and the broker delivers what was not acknowledged.
"""

from __future__ import annotations

from collections import deque

from reliamsg.transport.mqtt_packets import Publish

__all__ = ["OVERFLOW_BYTES", "Inflow"]

OVERFLOW_BYTES = 32 * 1024 * 1024
"""Most that is kept of one connection beyond its window."""

_MESSAGE_OVERHEAD = 1024
"""More than a message takes in memory beyond its body."""


class Inflow:
    """The messages of one connection on their way to the events. Not thread-safe."""

    def __init__(self, window: int) -> None:
        """`window`: how many messages the events may hold unacknowledged."""
        self.window = window
        self.dropped = 0
        """Messages that were dropped; they come again on the next connection."""
        self._waiting: deque[Publish] = deque()
        self._bytes = 0

    def push(self, publish: Publish) -> bool:
        """A message arrived; returns False where it is dropped."""
        size = len(publish.body) + _MESSAGE_OVERHEAD
        if self.dropped or (self._waiting and self._bytes + size > OVERFLOW_BYTES):
            self.dropped += 1
            return False
        self._waiting.append(publish)
        self._bytes += size
        return True

    def pull(self, held: int) -> list[Publish]:
        """What the events can be given now, in order of arrival; they hold `held` messages unacknowledged."""
        found: list[Publish] = []
        while self._waiting and held + len(found) < self.window:
            publish = self._waiting.popleft()
            self._bytes -= len(publish.body) + _MESSAGE_OVERHEAD
            found.append(publish)
        return found

    def has_room_again(self, held: int) -> bool:
        """Whether something was dropped, and it is time to have it delivered again."""
        return bool(self.dropped) and not self._waiting and held <= self.window // 2

    def __len__(self) -> int:
        """How many messages wait here."""
        return len(self._waiting)
