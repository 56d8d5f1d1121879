"""A consumer's journal rows before they are written: how they are merged, and how arrivals are named in them."""

from __future__ import annotations

from typing import Any

from reliamsg.message import Stream
from reliamsg.protocol.receiver.events import Note
from reliamsg.runtime.journal_buffer import JournalBuffer, MergeRules
from reliamsg.store.journal import ORDERED, Entry

__all__ = ["ConsumerJournal"]

_ARRIVALS = frozenset({"received", "duplicate"})


_RULES = MergeRules(
    frozenset({"received", "duplicate", "delivered", "redelivered", "acknowledged", "buffered"}),
    order=("kind", "stream", "site"),
    ordered=ORDERED,  # what an application was given: its order is evidence
)


class _Arrivals:
    """Names what arrives by the order of each site: what continues where a site had left off is ``received`` from it,
    even if another site was faster. Of two sites in step now one is first and now the other, and there would be a row
    for each batch."""

    def __init__(self) -> None:
        self._ends: dict[Stream, dict[str, tuple[int, int]]] = {}
        """By stream and site, the highest epoch and number that came from there."""

    def kind_of(self, note: Note) -> str:
        """What the journal calls an arrival. To be asked once for each, in their order."""
        kind = note.kind
        if note.reason == "repair":  # repairs come in an order of their own
            return kind
        ends = self._ends.get(note.stream)
        if ends is None:
            ends = self._ends[note.stream] = {}
        end = epoch, last = ends.get(note.site, (0, 0))
        start = note.epoch, note.first
        if not note.reason and (start == (epoch, last + 1) or (note.first == 1 and note.epoch > epoch)):
            kind = "received"
        if (note.epoch, note.last) > end:
            ends[note.site] = note.epoch, note.last
        return kind

    def forget(self, stream: Stream) -> None:
        """The stream left memory."""
        self._ends.pop(stream, None)


class ConsumerJournal(JournalBuffer):
    """The rows of a consumer's journal that wait for the next commit: all of them, however long the disk stays full."""

    def __init__(self, group: str) -> None:
        super().__init__(_RULES)
        self.group = group
        self.committed: dict[str, tuple[int, int]] = {}
        """By producer, the newest committed row of its journal, and its incarnation, as its latest status says."""
        self._arrivals = _Arrivals()

    def note(self, kind: str, **fields: Any) -> None:
        """Add a row of this group."""
        self.add(Entry(kind, group=self.group, **fields))

    def add_note(self, note: Note) -> None:
        """Add what the core wants journalled."""
        kind = self._arrivals.kind_of(note) if note.kind in _ARRIVALS else note.kind
        detail = note.detail
        if kind == "declared" and note.reason == "removed" and note.stream.producer in self.committed:
            lsn, incarnation = self.committed[note.stream.producer]
            if lsn:
                detail = {**(detail or {}), "heard": [lsn, f"{incarnation:016x}"]}
        self.add(
            Entry(
                kind, note.stream, note.epoch, note.incarnation, note.first, note.last,
                note.site, self.group, note.reason, latency=note.latency, detail=detail,
            )
        )  # fmt: skip

    def forget(self, stream: Stream) -> None:
        """The stream left memory."""
        self._arrivals.forget(stream)
