"""Streams that are in the inbox and not in memory, and the messages and statuses that wait until they are loaded.

Only streams with unsettled messages need memory. The others are loaded when a message or a status of them arrives. It
waits here, so that one query serves a burst of arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from reliamsg.message import Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.unacked import QUARANTINE
from reliamsg.store.inbox import Inbox

__all__ = ["AbsentStreams"]

MAX_STATUSES = 10_000
"""Statuses and repairs that wait; any more are dropped, since they are said, or asked for, again."""

MAX_REPLAYS = 10_000
"""While this many deliveries from the quarantine wait, no others are replayed."""

Take = Callable[[bool], None]
"""Called when the stream is in memory, or (False) there was no room for it there."""


class AbsentStreams:
    """Keeps arrivals until their streams are loaded. Under the consumer's lock."""

    def __init__(self, core: GroupReceiver, inbox: Inbox) -> None:
        self._core = core
        self._inbox = inbox
        self.waiting: dict[Stream, list[tuple[str | None, Take]]] = {}
        """By stream, in the order of arrival: sites, and what to call."""
        self._statuses = self._replays = 0
        self.left: list[Stream] = []
        """Streams that left memory since the last call."""
        self.taking: bool = False
        """What waited is being taken in: streams that are not in memory by now are new."""

    def may_know(self, stream: Stream) -> bool:
        """Whether the inbox may know a stream that is not in memory: it must be loaded before anything is done."""
        if stream in self._core.streams or self.taking:
            return False
        return self._core.known_elsewhere > 0 or self._inbox.tombstone_count > 0

    def wait(self, stream: Stream, site: str | None, take: Take) -> None:
        """Something came for a stream. `site`: of a delivery that its broker keeps meanwhile, or
        :data:`~reliamsg.protocol.receiver.unacked.QUARANTINE`."""
        if site is None:
            if self._statuses >= MAX_STATUSES:
                return
            self._statuses += 1
        self._replays += site == QUARANTINE
        self.waiting.setdefault(stream, []).append((site, take))

    def __contains__(self, stream: object) -> bool:
        return stream in self.waiting

    def disconnected(self, site: str) -> None:
        """The site's broker delivers unacknowledged messages again."""
        for stream in list(self.waiting):
            left = [one for one in self.waiting[stream] if one[0] != site]
            if left:
                self.waiting[stream] = left
            else:
                del self.waiting[stream]

    @property
    def is_full(self) -> bool:
        """Whether as many deliveries from quarantine wait as may."""
        return self._replays >= MAX_REPLAYS

    def pending(self, site: str) -> int:
        """How many deliveries of a site wait."""
        return sum(one[0] == site for some in self.waiting.values() for one in some) if self.waiting else 0

    def streams(self, most: int) -> list[Stream]:
        """Those that are to be loaded next."""
        return list(islice(self.waiting, most))

    def take(self, stream: Stream, there_is_room: bool) -> None:
        """Have what waited for a stream taken in, in its order."""
        some = self.waiting.pop(stream, [])
        self._statuses -= sum(site is None for site, _ in some)
        self._replays -= sum(site == QUARANTINE for site, _ in some)
        self.taking = True
        try:
            for _, take in some:
                take(there_is_room)
        finally:
            self.taking = False
