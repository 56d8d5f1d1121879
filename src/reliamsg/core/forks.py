"""Openings of a producer's outbox that did not know what a group had been given: it was lost, or is an older copy.

Each is reported, and journalled with what was known: so an audit can tell what went with the disk from what was never
published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reliamsg.core.chain import Finished, LinkKind, follow_on
from reliamsg.core.stream import Note, StreamState
from reliamsg.message import Prev

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["conflict", "find_fork", "find_fork_before"]


def conflict(
    state: StreamState, epoch: int, incarnation: int, reason: str, known: Finished, further: bool = True
) -> Note:
    """What the journal says of an opening that did not know of an epoch, or not up to that number. `further`: the
    stream may have gone beyond the opening's epoch."""
    detail: dict[str, Any] = {"known": [known.epoch, f"{known.incarnation:016x}", known.last]}
    if further and state.current is not None and state.current.epoch > epoch:
        detail["entered"] = state.current.epoch  # of what the other history had, nobody else need know
    return Note("conflict", state.stream, epoch, incarnation, 0, 0, "", reason, detail)


def find_fork(
    core: ConsumerCore, state: StreamState, epoch: int, incarnation: int, prev: Prev | None
) -> None:
    """Data says what its epoch follows, which is not told by entering it: it is behind the stream, or was gone on with
    where another inbox had stopped. Hold that against what is known of the epochs before."""
    known = _before(state, epoch)
    if known is None:
        return
    joint = follow_on(known, epoch, prev)
    if joint.kind is LinkKind.FORK:
        _report(core, state, epoch, incarnation, joint.reason, known)


def find_fork_before(core: ConsumerCore, state: StreamState, known: Finished) -> None:
    """Of an epoch that is behind the stream more exists than was handed out, up to that number. Whatever was entered
    next did not know of it, unless the gap before that was of unknown extent."""
    left = state.history.find(known.epoch) or _before(state, known.epoch + 1)
    if left is not None and left.epoch in state.history.unended:
        return
    following = [(one.epoch, one.incarnation) for one in state.history.after(known.epoch)]
    following += [
        (one.epoch, one.incarnation)
        for one in state.live.values()
        if one.epoch > known.epoch and not state.is_ahead(one.epoch)
    ]
    if following:
        epoch, incarnation = min(following)
        reason = f"epoch {epoch} does not know of {known.epoch} up to {known.last}"
        _report(core, state, epoch, incarnation, reason, known)


def _report(
    core: ConsumerCore, state: StreamState, epoch: int, incarnation: int, reason: str, known: Finished
) -> None:
    if core.report_conflict(state, epoch, incarnation, reason):
        core.note(conflict(state, epoch, incarnation, reason, known))
        core.mark(state, urgent=True)


def _before(state: StreamState, epoch: int) -> Finished | None:
    """The highest of the epochs below of which anything is known from their data."""
    found = [
        Finished(known.epoch, known.incarnation, known.proven)
        for known in state.live.values()
        if known.epoch < epoch and not known.told
    ]
    finished = state.history.before(epoch)
    return max([*found, *([] if finished is None else [finished])], default=None)
