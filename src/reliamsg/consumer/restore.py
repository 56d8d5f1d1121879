"""From the inbox's rows back to the core's state."""

from __future__ import annotations

from reliamsg.protocol.receiver.chain import Finished, History
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.epochs import EpochChain
from reliamsg.protocol.receiver.gaps import ClosedGaps, GapTracker
from reliamsg.protocol.receiver.redelivery import Redelivery
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.stored_state import StoredState
from reliamsg.protocol.receiver.stream import StreamReceiver
from reliamsg.protocol.receiver.takeover import TakeoverBounds, Uncertainty
from reliamsg.store.inbox_rows import EpochRow, SavedStream

__all__ = ["restored"]


def restored(saved: SavedStream, context: GroupContext) -> StreamReceiver:
    """A stream's state as its last commit left it; what was only in memory comes again from the brokers."""
    epochs = _epochs(saved)
    uncertainty = saved.history.doubt
    takeover = TakeoverBounds(
        None if uncertainty is None else Uncertainty(*uncertainty, saved.history.answered),
        saved.history.takeover,
    )
    parts = StoredState(epochs, _gaps(saved, epochs), Redelivery(saved.attempts), takeover)
    for known in epochs.entered:
        epochs.flag_moved(known)
    if not saved.stream.producer and epochs.current is not None:
        _void_missing(epochs.current)
    return StreamReceiver(saved.stream, context, parts, saved.history.vouched)


def _epochs(saved: SavedStream) -> EpochChain:
    history = saved.history
    epochs = EpochChain(
        History(
            (Finished(*row) for row in history.finished), history.floor, history.superseded, history.unended
        ),
        (saved.joined, history.joined_after, history.unheard),
    )
    epochs.restore((_epoch(row), row.entered) for row in saved.epochs)
    for epoch, first, last in saved.held:
        known = epochs.live.get(epoch)
        # Rows may begin below the position, or overlap settled ranges: they are restored whole.
        for span in () if known is None else known.place(first, last):
            epochs.live[epoch].persisted.add(*span)
    return epochs


def _gaps(saved: SavedStream, epochs: EpochChain) -> GapTracker:
    gaps = GapTracker(ClosedGaps(saved.history.closed, saved.history.forgotten))
    for epoch, first, last in saved.history.accepted:
        if epochs.current is not None and epochs.current.epoch == epoch:
            gaps.accept(first, last, "expired", None)
    if saved.gap is not None:
        gap = saved.gap
        gaps.clock.restore((gap.epoch, gap.first, gap.last), gap.elapsed_s, gap.waited_s)
    return gaps


def _epoch(row: EpochRow) -> ReorderBuffer:
    known = ReorderBuffer(row.epoch, row.incarnation, row.prev, row.position)
    known.restore(row.settled, row.high_water, row.journalled, row.last, row.let_go)
    return known


def _void_missing(known: ReorderBuffer) -> None:
    """Messages without identity that were not persisted come again under new numbers."""
    top = max(known.high_water - 1, known.highest)
    if top < known.position:
        return
    for span in known.held.missing(known.position, top):
        for part in known.settled.missing(*span):
            known.settle(*part)
