"""What is learned of epochs that are behind their stream, and were left before their end or never entered: it can't be
handed out any more, and is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.core.announced import Announced
from reliamsg.core.chain import Finished
from reliamsg.core.forks import find_fork_before
from reliamsg.core.ranges import RangeSet
from reliamsg.core.stream import Note, StreamState
from reliamsg.message import Prev
from reliamsg.wire.limits import MAX_SEQ

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["supersede", "supersede_before", "supersede_told"]


def supersede(
    core: ConsumerCore,
    state: StreamState,
    epoch: int,
    incarnation: int,
    first: int,
    last: int,
    site: str = "",
) -> None:
    """These exist, and are behind the stream: declare what of it was not declared before. `site`: they arrived from
    there, so that what was declared before is late."""
    seen = RangeSet([(first, last)])
    for span in state.history.supersede(epoch, first, last):
        core.note(Note("declared", state.stream, epoch, incarnation, *span, site, "superseded"))
        seen.remove(*span)
        state.history_changed = True
        core.mark(state, urgent=True)
        find_fork_before(core, state, Finished(epoch, incarnation, span[1]))
    for span in seen if site else ():
        core.note(Note("late", state.stream, epoch, incarnation, *span, site, "superseded"))


def supersede_told(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """A producer says that these epochs exist, and up to which number. None of them is given another epoch any more:
    no status names what still may be."""
    for epoch, incarnation, _, last in announced.chain:
        own = incarnation == announced.incarnation
        first = _gone_back_from(core, state, announced, epoch) if own else None
        if first is None:
            first = _behind(state, epoch, incarnation)
        if first is not None and first <= last:
            supersede(core, state, epoch, incarnation, first, last)


def supersede_before(core: ConsumerCore, state: StreamState, prev: Prev | None) -> None:
    """The same of what a batch says that it follows."""
    if prev is not None:
        first = _behind(state, prev.epoch, prev.incarnation)
        if first is not None and first <= prev.last:
            supersede(core, state, prev.epoch, prev.incarnation, first, prev.last)


def _gone_back_from(core: ConsumerCore, state: StreamState, announced: Announced, epoch: int) -> int | None:
    """The first number for which an opening counts this group that speaks to it, in an epoch of its own before the one
    with which the group joined: its outbox went back, and so did its clock, though it may have moved above since. None
    where there is none. (A group that joined without having been told from where on it is counted may hear of what came
    before; one that wants the latest is not owed that.)"""
    since = announced.since
    gone_back = (
        core.rules.begin == "earliest"
        and not (state.unheard or announced.late)
        and state.current is not None
        and state.joined is not None
        and state.history.floor < epoch < state.joined[0]
        and state.history.find(epoch) is None
    )
    if not gone_back or since is None or since[0] > epoch:
        return None
    return since[1] if epoch == since[0] else 1


def _behind(state: StreamState, epoch: int, incarnation: int) -> int | None:
    """The first number of an epoch behind the stream that can't be handed out, since the epoch was left before or never
    entered; None where there is none."""
    if state.current is None or state.is_ahead(epoch):
        return None
    known = state.live.get(epoch) or state.history.find(epoch)
    if known is not None:
        if known.incarnation != incarnation or known.last is None:
            return None
        # What another inbox has left has no end that is known here.
        first = known.last + 1
        return first if state.gaps.closed.overlap(epoch, first, MAX_SEQ) else None
    return None if epoch <= state.history.floor or state.came_before(epoch) else 1
