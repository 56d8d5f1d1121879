"""The epochs of a stream: which follows which, and where two histories fork.

Every batch names the stream's previous non-empty epoch (`prev`). Given the epoch that is being handed out and
the lowest later one that has arrived, there are four cases:

=========  =========================================================  ==================================
link       when                                                       then
=========  =========================================================  ==================================
ENDS       `prev` is the known epoch, and ends at or after all known  finish it (or pass its gap), enter
UNKNOWN    `prev` is newer than the known epoch, or was not told      one gap of unknown extent, enter
FORK       `prev` is missing, older, another incarnation, or ends     what is known to exist first, then
           before what is known                                       enter and report a conflict
OPEN       no later epoch has arrived                                 go on
=========  =========================================================  ==================================
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from reliamsg.core.ranges import RangeSet, Span
from reliamsg.core.reorder import Reorder
from reliamsg.message import Prev

__all__ = ["MAX_FINISHED", "Finished", "History", "Link", "LinkKind", "follow_on", "link"]

MAX_FINISHED = 1_000
"""Finished epochs of a stream that are remembered; a producer enters one at each start."""
MAX_SUPERSEDED = 100
"""Superseded epochs of a stream of which it is remembered what arrived."""
MAX_SUPERSEDED_SPANS = 1_000
"""Ranges of each that are remembered; what was forgotten is declared again if it comes again."""


class LinkKind(Enum):
    OPEN = "open"
    ENDS = "ends"
    UNKNOWN = "unknown"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Link:
    """How the known epoch and the lowest later one hang together."""

    kind: LinkKind
    last: int = 0
    """ENDS: the known epoch's last number. FORK: its highest that is known to exist."""
    reason: str = ""
    """FORK: for people."""


def link(known: Reorder, later: Reorder | None) -> Link:
    """Decide how `later`, the lowest epoch above `known` that has arrived, continues it."""
    if later is None:
        return Link(LinkKind.OPEN)
    if later.unlinked:
        return Link(LinkKind.UNKNOWN)
    return follow_on(Finished(known.epoch, known.incarnation, known.proven), later.epoch, later.prev)


def follow_on(known: Finished, epoch: int, prev: Prev | None) -> Link:
    """Decide how an epoch, of which its data says that it follows `prev`, continues one below it that is known up to a
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
    """An epoch that is behind us: every number up to `last` is settled."""

    epoch: int
    incarnation: int
    last: int


class History:
    """The epochs of a stream that are behind it."""

    def __init__(
        self,
        finished: Iterable[Finished] = (),
        floor: int = 0,
        superseded: Iterable[tuple[int, Iterable[Span]]] = (),
        unended: Iterable[int] = (),
    ) -> None:
        self.finished: list[Finished] = sorted(finished)
        self.floor = floor
        """Epochs at or below may have been entered, finished and forgotten."""
        self.superseded: dict[int, RangeSet] = {epoch: RangeSet(spans) for epoch, spans in superseded}
        """What was declared of epochs that were never entered, although a later one was, or beyond the end of one that
        was left."""
        self.unended = set(unended)
        """Epochs that were left by a gap of unknown extent: nobody said where they end."""
        self.changed = False
        """Something that the next commit has to hold changed here, or in what was passed, joined or taken over."""
        self._saving = False

    def note_change(self) -> None:
        """The next commit has to hold it."""
        self.changed = True

    def take_change(self) -> bool:
        """Whether anything changed that the commit that begins now has to hold."""
        self._saving, self.changed = self.changed, False
        return self._saving

    def saved(self) -> None:
        """The commit is on disk."""
        self._saving = False

    def not_saved(self, changed: bool) -> None:
        """The commit failed. `changed`: it was to hold a change."""
        self.changed |= changed
        self._saving = False

    @property
    def is_safe(self) -> bool:
        """Whether all that is known of epochs behind the stream is on disk."""
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
        """The highest of the finished epochs below."""
        i = bisect_left(self.finished, Finished(epoch, 0, 0))
        return self.finished[i - 1] if i else None

    def after(self, epoch: int) -> list[Finished]:
        """The lowest of the finished epochs above, if there is one."""
        i = bisect_left(self.finished, Finished(epoch + 1, 0, 0))
        return self.finished[i : i + 1]

    def has_before(self, epoch: int) -> bool:
        """Whether an earlier epoch is finished."""
        return self.floor > 0 or (bool(self.finished) and self.finished[0].epoch < epoch)

    def supersede(self, epoch: int, first: int, last: int) -> list[Span]:
        """These exist, and can't be handed out any more; return what of it is new."""
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
