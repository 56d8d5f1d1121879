"""Limits what a receiver accepts of messages that arrive faster than they are acknowledged.

A connection that carries control frames is always read, even if the window is full of unacknowledged messages. A broker
that honours MQTT 5's Receive Maximum, or has a limit of its own, stops soon by itself. From other brokers more is
accepted as long as everything held fits within a bound in bytes: what a stream waits for may be among it. What does not
fit is dropped without an acknowledgement, together with everything that follows on the same connection, since
acknowledgements go in order. Once there is room again the connection is renewed, and the broker delivers what was not
acknowledged.
"""

from __future__ import annotations

from collections import deque

from reliamsg.config import Site

__all__ = ["HELD_BYTES", "ReceiveWindow", "window_of"]

_HELD_PER_PREFETCH = 4

HELD_BYTES = 32 * 1024 * 1024
"""Beyond the window, messages are accepted while everything held is smaller than this."""


MESSAGE_OVERHEAD = 1024
"""More than a held message uses in memory beside its body."""


class ReceiveWindow:
    """The messages that arrived on one connection and are not acknowledged to the broker yet. Not thread-safe.

    Decides which messages are accepted, and passes acknowledgements on in the order of receipt, whatever order they
    come in (MQTT-4.6.0-2).
    """

    def __init__(self, window: int, held_bytes: int | None = None) -> None:
        """`window`: how many messages are accepted regardless of their size. `held_bytes`: overrides
        :data:`HELD_BYTES`."""
        self.dropped: int = 0
        """Messages that were dropped; the next connection delivers them again."""
        self.bytes: int = 0
        """Of all messages received and not yet released, with their overhead."""
        self._window = window
        self._held_bytes = HELD_BYTES if held_bytes is None else held_bytes
        self._first = 0
        self._mids: deque[tuple[int, int]] = deque()
        """Packet id and size."""
        self._done: set[int] = set()

    def __len__(self) -> int:
        """How many messages were received and not yet released."""
        return len(self._mids)

    def receive(self, mid: int, size: int = 0) -> int | None:
        """A message with packet id `mid` and a body of `size` bytes arrived. Returns the number to acknowledge it by;
        None if it is dropped."""
        if self.dropped or (len(self._mids) >= self._window and self.bytes + size > self._held_bytes):
            self.dropped += 1
            return None
        size += MESSAGE_OVERHEAD
        self._mids.append((mid, size))
        self.bytes += size
        return self._first + len(self._mids) - 1

    def acknowledge(self, number: int) -> None:
        """Add an acknowledgement; an unknown or repeated one is ignored."""
        if self._first <= number < self._first + len(self._mids):
            self._done.add(number)

    def release(self) -> list[int]:
        """Packet ids to acknowledge to the broker now, in order of receipt."""
        out = []
        while self._mids and self._first in self._done:
            self._done.remove(self._first)
            self._first += 1
            mid, size = self._mids.popleft()
            self.bytes -= size
            out.append(mid)
        return out

    @property
    def has_room_again(self) -> bool:
        """Whether something was dropped and there is room to have it delivered again."""
        return bool(self.dropped) and len(self) <= self._window // 2


def window_of(site: Site) -> int:
    """How many unacknowledged messages are accepted from a site regardless of their size."""
    return site.prefetch * _HELD_PER_PREFETCH
