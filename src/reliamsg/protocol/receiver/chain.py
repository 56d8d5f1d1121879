"""The epochs of a stream: which follows which, and where two histories fork.

Every batch names the previous non-empty epoch of its stream (`prev`). There are four cases, given the current epoch and
the lowest later one that has arrived:

=========  =========================================================  ==================================
link       when                                                       then
=========  =========================================================  ==================================
ENDS       `prev` is the known epoch, and ends at or after all known  finish it (or pass its gap), enter
UNKNOWN    `prev` is later than the known epoch, or was not announced one gap of unknown extent, enter
FORK       `prev` is missing, earlier, another incarnation, or ends   what is known to exist first, then
           before what is known                                       enter and report a conflict
OPEN       no later epoch has arrived                                 continue
=========  =========================================================  ==================================
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from reliamsg.message import Prev
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer

__all__ = ["MAX_FINISHED", "Finished", "History", "Link", "LinkKind", "follow_on", "link"]

MAX_FINISHED = 1_000
"""Finished epochs of a stream that are remembered. A producer begins one at each start."""
MAX_SUPERSEDED = 100
"""Superseded epochs of a stream whose arrivals are remembered."""
MAX_SUPERSEDED_SPANS = 1_000
"""Ranges of each that are remembered; forgotten ranges are declared again if they arrive again."""


class LinkKind(Enum):
    OPEN = "open"
    ENDS = "ends"
    UNKNOWN = "unknown"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Link:
    """How the known epoch and the lowest later one are related."""

    kind: LinkKind
    last: int = 0
    """ENDS: the last number of the known epoch. FORK: the highest that is known to exist."""
    reason: str = ""
    """FORK: for people."""


def link(known: ReorderBuffer, later: ReorderBuffer | None) -> Link:
    """How `later`, the lowest epoch above `known` that has arrived, continues it."""
    if later is None:
        return Link(LinkKind.OPEN)
    if later.unlinked:
        return Link(LinkKind.UNKNOWN)
    return follow_on(Finished(known.epoch, known.incarnation, known.proven), later.epoch, later.prev)


def follow_on(known: Finished, epoch: int, prev: Prev | None) -> Link:
    """How an epoch, which follows `prev` according to its data, continues an earlier one that is known up to a
    number."""
    if prev is not None and prev.epoch > known.epoch:
        return Link(LinkKind.UNKNOWN)
    if prev is None:
        reason = f"epoch {epoch} knows of no earlier one"
    elif prev.epoch < known.epoch:
        reason = f"epoch {epoch} follows {prev.epoch}, not {known.epoch}"
    elif prev.incarnation != known.incarnation:
        reason = f"epoch {epoch} follows another incarnation of {known.epoch}"
    elif prev.last < known.last:
        reason = f"epoch {epoch} says that {known.epoch} ended at {prev.last}, {known.last} is known"
    else:
        return Link(LinkKind.ENDS, last=prev.last)
    return Link(LinkKind.FORK, known.last, reason)


@dataclass(frozen=True, slots=True, order=True)
class Finished:
    """An epoch that is behind its stream: every number up to `last` is settled."""

    epoch: int
    incarnation: int
    last: int


class History:
    """The epochs behind a stream."""

    def __init__(
        self,
        finished: Iterable[Finished] = (),
        floor: int = 0,
        superseded: Iterable[tuple[int, Iterable[Span]]] = (),
        unended: Iterable[int] = (),
    ) -> None:
        self.finished: list[Finished] = sorted(finished)
        self.floor: int = floor
        """Epochs at or below may have been entered, finished, and forgotten."""
        self.superseded: dict[int, RangeSet] = {epoch: RangeSet(spans) for epoch, spans in superseded}
        """Declared ranges of epochs that were passed over, or beyond the end of an epoch that was left."""
        self.unended: set[int] = set(unended)
        """Epochs that were left by a gap of unknown extent, so that their end is unknown."""
        self.changed: bool = False
        """The next commit has to store a change of this, or of what was passed, joined, or taken over."""
        self._saving = False

    def note_change(self) -> None:
        """The next commit has to store a change."""
        self.changed = True

    def take_change(self) -> bool:
        """Whether the commit that is about to be written has to store a change."""
        self._saving, self.changed = self.changed, False
        return self._saving

    def saved(self) -> None:
        """The commit is durable."""
        self._saving = False

    def not_saved(self, changed: bool) -> None:
        """The commit failed. `changed`: it was to store a change."""
        self.changed |= changed
        self._saving = False

    @property
    def is_safe(self) -> bool:
        """Whether everything known of epochs behind the stream is durable."""
        return not (self.changed or self._saving)

    def add(self, epoch: int, incarnation: int, last: int) -> None:
        """The epoch is finished."""
        self.changed = True
        insort(self.finished, Finished(epoch, incarnation, last))
        if len(self.finished) > MAX_FINISHED:
            self.floor = self.finished.pop(0).epoch
            self.unended = {each for each in self.unended if each > self.floor}

    def find(self, epoch: int) -> Finished | None:
        i = bisect_left(self.finished, Finished(epoch, 0, 0))
        return self.finished[i] if i < len(self.finished) and self.finished[i].epoch == epoch else None

    def before(self, epoch: int) -> Finished | None:
        """The highest finished epoch below."""
        i = bisect_left(self.finished, Finished(epoch, 0, 0))
        return self.finished[i - 1] if i else None

    def after(self, epoch: int) -> list[Finished]:
        """The lowest finished epoch above, if any."""
        i = bisect_left(self.finished, Finished(epoch + 1, 0, 0))
        return self.finished[i : i + 1]

    def has_before(self, epoch: int) -> bool:
        """Whether an earlier epoch is finished."""
        return self.floor > 0 or (bool(self.finished) and self.finished[0].epoch < epoch)

    def supersede(self, epoch: int, first: int, last: int) -> list[Span]:
        """These ranges exist, and can't be delivered any more; return those that are new."""
        seen = self.superseded.setdefault(epoch, RangeSet())
        new = seen.missing(first, last)
        seen.add(first, last)
        if seen.intervals > MAX_SUPERSEDED_SPANS:
            seen.pop_lowest()
        while len(self.superseded) > MAX_SUPERSEDED:
            oldest = min(self.superseded)
            del self.superseded[oldest]
            self.floor = max(self.floor, oldest)
        return new
