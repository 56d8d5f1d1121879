"""What a receiver takes of messages that arrive faster than they become safe.

A connection that carries control frames is always read, also when as many messages are unacknowledged as the window
allows. A broker that keeps to MQTT 5's Receive Maximum, or has a limit of its own, stops by itself before there are
many more. From the others more is taken as long as all that is held fits within a bound in bytes: what a stream waits
for may be among it. What does not fit is dropped without an acknowledgement, together with all that follows on the same
connection, since acknowledgements go in order. Once there is room again the connection is made anew, and the broker
delivers what was not acknowledged.
"""

from __future__ import annotations

from collections import deque

from reliamsg.config import Site

__all__ = ["HELD_BYTES", "AckLedger", "Inflow", "most_held"]

_HELD_PER_PREFETCH = 4

HELD_BYTES = 32 * 1024 * 1024
"""Beyond the window messages are taken while all that are held have fewer bytes than this."""


MESSAGE_OVERHEAD = 1024
"""More than a message that is held takes in memory beside its body."""


class AckLedger:
    """Passes acknowledgements on in the order of receipt, whatever order they come in (MQTT-4.6.0-2)."""

    def __init__(self) -> None:
        self._first = 0
        self._mids: deque[tuple[int, int]] = deque()
        """Packet id and size."""
        self.bytes = 0
        """Of all messages that were received and not yet released, with what each takes beside its body."""
        self._done: set[int] = set()

    def __len__(self) -> int:
        """How many messages were received and not yet released."""
        return len(self._mids)

    def received(self, mid: int, size: int = 0) -> int:
        """Note a message with packet id `mid` and a body of `size` bytes; returns the number to acknowledge it by."""
        size += MESSAGE_OVERHEAD
        self._mids.append((mid, size))
        self.bytes += size
        return self._first + len(self._mids) - 1

    def acknowledge(self, number: int) -> None:
        """Note an acknowledgement; one that is unknown, or came before, changes nothing."""
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


class Inflow:
    """Decides which messages of one connection are taken. Not thread-safe."""

    def __init__(self, window: int, ledger: AckLedger, held_bytes: int | None = None) -> None:
        """`window`: so many messages are taken whatever their size. `ledger`: those that are held. `held_bytes`:
        instead of :data:`HELD_BYTES`."""
        self.dropped = 0
        """Messages that were dropped; they come again on the next connection."""
        self._window = window
        self._held_bytes = HELD_BYTES if held_bytes is None else held_bytes
        self._ledger = ledger

    def admits(self, size: int) -> bool:
        """Whether a message that arrived is taken; otherwise it counts as dropped."""
        held = self._ledger
        if self.dropped or (len(held) >= self._window and held.bytes + size > self._held_bytes):
            self.dropped += 1
        return not self.dropped

    @property
    def has_room_again(self) -> bool:
        """Whether something was dropped, and it is time to have it delivered again."""
        return bool(self.dropped) and len(self._ledger) <= self._window // 2


def most_held(site: Site) -> int:
    """Unacknowledged messages that are taken from a site whatever their size."""
    return site.prefetch * _HELD_PER_PREFETCH
