"""What becomes of a batch that arrives: new, a duplicate, late, another history's, or too far ahead.

Only ranges are looked at here. A batch of an epoch that is being handed out, or is still to come, is placed; one of
an epoch that is behind its stream can't be handed out any more, and is accounted for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reliamsg.core.forks import find_fork
from reliamsg.core.passage import follow
from reliamsg.core.ranges import Span
from reliamsg.core.reorder import Reorder
from reliamsg.core.stream import MAX_EPOCHS_AHEAD, Note, StreamState
from reliamsg.core.superseding import supersede, supersede_before
from reliamsg.message import Prev

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["MAX_EPOCHS_AHEAD", "Arrival", "arrive", "confirm"]

_Epoch = tuple[int, int, Prev | None]
"""Number, incarnation, and the one before."""


@dataclass(slots=True)
class Arrival:
    """What became of a delivery."""

    new: Sequence[Span] = ()
    """Keep the bytes of these."""
    late: Sequence[Span] = ()
    """These were passed before; they can't be handed out in order any more."""
    quarantine: bool = False
    """Another history's: keep the bytes aside."""
    release: bool = False
    """The broker may forget it already."""
    deferred: bool = False
    """Too far ahead: give it again later, and have its broker keep it until then."""
    far: bool = False
    """Its epoch is too far ahead to be believed: keep it until its producer was asked."""
    refused: str = ""
    """Why there is no room for its stream at all; empty where there is."""


def arrive(
    core: ConsumerCore,
    state: StreamState,
    site: str,
    of: _Epoch,
    first: int,
    last: int,
    now: float,
    reason: str = "",
) -> tuple[Reorder | None, Arrival]:
    """Numbers `first` to `last` arrived; returns their epoch too, unless it is behind the stream. `reason` goes into
    the journal."""
    epoch, incarnation, prev = of
    known = state.live.get(epoch)
    if known is not None and known.told:
        known = confirm(core, state, known, incarnation, prev)
    if known is None and state.is_behind_other(epoch):
        core.note(Note("duplicate", state.stream, epoch, incarnation, first, last, site, reason))
        return None, Arrival(release=True)
    if known is None and state.is_ahead(epoch):
        if not state.has_room(epoch):
            return None, Arrival(deferred=True)
        known = state.live[epoch] = Reorder(epoch, incarnation, prev)
        core.mark(state)
    if known is None:
        supersede_before(core, state, prev)
        if state.was_passed_over(epoch):
            find_fork(core, state, epoch, incarnation, prev)
        return None, _past(core, state, site, epoch, incarnation, first, last, reason)
    if known.incarnation != incarnation:
        return known, _conflict(core, state, site, epoch, incarnation, first, last)
    return known, _place(core, state, known, site, first, last, now, reason)


def confirm(
    core: ConsumerCore, state: StreamState, known: Reorder, incarnation: int, prev: Prev | None
) -> Reorder | None:
    """Data of an epoch arrives that was only said to exist: from now on the data's word counts."""
    if known.incarnation == incarnation:
        known.told, known.unlinked, known.prev = False, False, prev
        if not state.is_ahead(known.epoch):
            find_fork(core, state, known.epoch, incarnation, prev)
        core.mark(state)
    elif state.is_ahead(known.epoch):
        core.report_conflict(state, known.epoch, known.incarnation, "another incarnation of a known epoch")
        del state.live[known.epoch]
        return None
    return known


def _place(
    core: ConsumerCore,
    state: StreamState,
    known: Reorder,
    site: str,
    first: int,
    last: int,
    now: float,
    reason: str,
) -> Arrival:
    late: list[Span] = []
    top = last if known.last is None else min(last, known.last)
    if not state.gaps.closed.empty:
        late = state.gaps.closed.arrived(known.epoch, first, last)
    new = known.place(first, top) if first <= top else []
    for span in new:
        core.note(Note("received", state.stream, known.epoch, known.incarnation, *span, site, reason))
    if late:
        _late(core, state, site, known.epoch, known.incarnation, known.last, late)
    seen = sum(b - a + 1 for a, b in (*new, *late))
    if seen < last - first + 1:
        _duplicates(core, state, known, site, first, last, [*new, *late], reason)
    if new:
        if state.asking is not None:
            state.asking.arrived(known.epoch, new[0][0])
        follow(core, state, now)
    release = not new and not late and known.is_safe(first, last)
    ended = known.last is not None and known.last < last  # the epoch was left, and ended before this
    if ended and not (release and state.history_is_safe):
        core.mark(state)  # a crash before the next commit would make it unknown what became of it
        release = False
    return Arrival(new, late, release=release)


def _duplicates(
    core: ConsumerCore,
    state: StreamState,
    known: Reorder,
    site: str,
    first: int,
    last: int,
    fresh: list[Span],
    reason: str,
) -> None:
    at = first
    if state.gaps.closed.may_have_forgotten(known.epoch, first):
        reason = "late_or_duplicate"
    for span in [*sorted(fresh), (last + 1, last + 1)]:
        if at < span[0]:
            core.note(
                Note("duplicate", state.stream, known.epoch, known.incarnation, at, span[0] - 1, site, reason)
            )
        at = span[1] + 1


def _past(
    core: ConsumerCore,
    state: StreamState,
    site: str,
    epoch: int,
    incarnation: int,
    first: int,
    last: int,
    reason: str,
) -> Arrival:
    """Data of an epoch that is behind the stream."""
    done = state.history.find(epoch)
    if done is not None and done.incarnation != incarnation:
        return _conflict(core, state, site, epoch, incarnation, first, last)
    late = state.gaps.closed.arrived(epoch, first, last)
    if late:
        _late(core, state, site, epoch, incarnation, None if done is None else done.last, late)
    elif done is not None or epoch <= state.history.floor:
        forgotten = done is None or state.gaps.closed.may_have_forgotten(epoch, first)
        reason = "late_or_duplicate" if forgotten else reason
        core.note(Note("duplicate", state.stream, epoch, incarnation, first, last, site, reason))
        if state.history_is_safe:
            return Arrival(release=True)
        # A crash before the next commit would bring the epoch back, without what its broker had let go.
        core.mark(state)
        return Arrival()
    elif state.came_before(epoch):
        # Where this inbox had begun earlier, another one has dealt with it, and this one took over behind it.
        kind, reason = ("duplicate", reason) if state.history.has_before(epoch) else ("before_join", "begin")
        core.note(Note(kind, state.stream, epoch, incarnation, first, last, site, reason))
    else:
        if first > 1:  # all that comes before it exists as well, and is told in order
            supersede(core, state, epoch, incarnation, 1, first - 1)
        supersede(core, state, epoch, incarnation, first, last, site)
    state.history_changed = True
    core.mark(state, urgent=True)
    return Arrival(late=late)


def _late(
    core: ConsumerCore,
    state: StreamState,
    site: str,
    epoch: int,
    incarnation: int,
    end: int | None,
    spans: list[Span],
) -> None:
    """Account for what can't be handed out in order any more.

    What lies beyond the end of an epoch that was left was never known to exist, and so never declared; nor was what
    lies between, which existed as well.
    """
    for first, last in spans:
        if end is not None and last > end:
            supersede(core, state, epoch, incarnation, end + 1, last)
        core.note(Note("late", state.stream, epoch, incarnation, first, last, site, "expired"))
    state.history_changed = True
    core.mark(state, urgent=True)


def _conflict(
    core: ConsumerCore, state: StreamState, site: str, epoch: int, incarnation: int, first: int, last: int
) -> Arrival:
    reason = "another incarnation of a known epoch"
    if core.report_conflict(state, epoch, incarnation, reason):
        core.note(Note("conflict", state.stream, epoch, incarnation, first, last, site, reason))
    core.mark(state, urgent=True)
    return Arrival(quarantine=True)
