"""Journal entries that wait for the next commit, already merged where the journal would merge them."""

from __future__ import annotations

from typing import Any

from reliamsg.core.histogram import merged
from reliamsg.message import Stream
from reliamsg.store.journal import ORDERED, Entry

__all__ = ["Ledger"]

_ARRIVALS = frozenset({"received", "duplicate"})
_MERGED = frozenset({"received", "duplicate", "delivered", "redelivered", "acknowledged", "buffered"})


class Ledger:
    """Entries in the order in which things happened. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._tips: dict[tuple[Any, ...], Entry] = {}
        self._arrived: dict[Stream | None, dict[str, tuple[int, int]]] = {}
        """By stream and site, the highest epoch and number that came from there."""

    def add(self, entry: Entry) -> None:
        """Append an entry, or extend the newest of its order if it is the direct predecessor."""
        if entry.kind in _ARRIVALS:
            self._name_arrival(entry)
        if entry.kind in ORDERED:
            order: tuple[Any, ...] = ("ordered", entry.stream)
        else:
            order = (entry.kind, entry.stream, entry.site)
        tip = self._tips.get(order)
        if (
            tip is not None
            and entry.kind in _MERGED
            and tip.last + 1 == entry.first
            and tip.kind == entry.kind
            and tip.epoch == entry.epoch
            and tip.incarnation == entry.incarnation
            and tip.reason == entry.reason
        ):
            tip.last = entry.last
            if entry.digest is not None:
                tip.digest = (tip.digest or 0) + entry.digest
            if entry.latency:
                tip.latency = merged(tip.latency, entry.latency)
            return
        self._tips[order] = entry
        self._entries.append(entry)

    def _name_arrival(self, entry: Entry) -> None:
        """What goes on where a site had left off is ``received`` from it, also if another site was faster: of two
        sites in step, now one is first and now the other, and there would be a row for each batch."""
        if entry.reason == "repair":  # repairs come in an order of their own
            return
        start = entry.epoch, entry.first
        arrived = self._arrived.setdefault(entry.stream, {})
        epoch, last = arrived.get(entry.site, (0, 0))
        if start in ((epoch, last + 1), (max(epoch + 1, entry.epoch), 1)) and not entry.reason:
            entry.kind = "received"
        arrived[entry.site] = max((epoch, last), (entry.epoch, entry.last))

    def forget(self, stream: Stream) -> None:
        """The stream left memory."""
        self._arrived.pop(stream, None)

    def take(self) -> list[Entry]:
        """Take all entries out; later ones do not extend them."""
        taken, self._entries = self._entries, []
        self._tips.clear()
        return taken

    def put_back(self, entries: list[Entry]) -> None:
        """They were not written: they come before all that happened since."""
        self._entries[:0] = entries

    @property
    def empty(self) -> bool:
        return not self._entries
