"""From the inbox's rows back to the core's state."""

from __future__ import annotations

from reliamsg.core.chain import Finished, History
from reliamsg.core.gaps import ClosedGaps, GapTracker
from reliamsg.core.ranges import RangeSet
from reliamsg.core.redelivery import Redelivery
from reliamsg.core.reorder import Reorder
from reliamsg.core.stream import StreamState
from reliamsg.core.takeover import TakeoverBounds, Uncertainty
from reliamsg.store.inbox_rows import EpochRow, SavedStream

__all__ = ["restored"]


def restored(saved: SavedStream) -> StreamState:
    """A stream's state as its last commit left it; what was only in memory comes again from the brokers."""
    state = StreamState(saved.stream)
    history = saved.history
    state.history = History(
        (Finished(*row) for row in history.finished), history.floor, history.superseded, history.unended
    )
    state.gaps = GapTracker(ClosedGaps(history.closed, history.forgotten))
    state.joined, state.unheard, state.vouched = saved.joined, history.unheard, history.vouched
    state.joined_after = history.joined_after
    uncertainty = None if history.doubt is None else Uncertainty(*history.doubt, history.answered)
    state.takeover = TakeoverBounds(uncertainty, history.takeover)
    for row in saved.epochs:
        known = _epoch(row)
        state.live[row.epoch] = known
        state.entered_to = max(state.entered_to, row.epoch if row.entered else 0)
        if row.entered and (state.current is None or _drained(state.current)):
            if state.current is not None:
                state.draining.append(state.current)
            state.current = known
        # Otherwise an earlier epoch was left while messages of it were being handled. They come again, and have
        # to come first: the later epoch is entered anew after them, and none between the two.
    for epoch, first, last in saved.held:
        _hold(state, epoch, first, last)
    current = state.current
    for epoch, first, last in history.accepted:
        if current is not None and current.epoch == epoch:
            state.gaps.accept(first, last, "expired", None)
    state.redelivery = Redelivery(saved.attempts)
    if saved.gap is not None:
        gap = saved.gap
        state.gaps.clock.restore((gap.epoch, gap.first, gap.last), gap.elapsed_s, gap.waited_s)
    for known in state.entered:
        state.flag_moved(known)
    if not saved.stream.producer and state.current is not None:
        _void_missing(state.current)
    return state


def _drained(known: Reorder) -> bool:
    """Whether everything of an epoch that was left is settled."""
    return known.last is not None and known.position > known.last


def _epoch(row: EpochRow) -> Reorder:
    known = Reorder(row.epoch, row.incarnation, row.prev, row.position)
    known.settled = RangeSet(row.settled)
    known.safe = RangeSet(row.settled)
    known.high_water = row.high_water
    known.redelivered_below = row.high_water
    known.journalled = row.journalled
    known.last = row.last
    known.let_go = row.let_go
    if row.last is None:
        known.announced = row.let_go
    return known


def _hold(state: StreamState, epoch: int, first: int, last: int) -> None:
    """Rows may reach below the position, or into what is settled: they go in whole."""
    known = state.live.get(epoch)
    if known is None:
        return
    for span in known.place(first, last):
        known.persisted.add(*span)


def _void_missing(known: Reorder) -> None:
    """Messages without identity that were not persisted come again under new numbers."""
    top = max(known.high_water - 1, known.highest)
    if top < known.position:
        return
    for span in known.held.missing(known.position, top):
        for part in known.settled.missing(*span):
            known.settle(*part)
