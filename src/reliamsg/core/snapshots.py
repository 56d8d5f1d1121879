"""What one commit takes from a stream, and what follows when it is on disk."""

from __future__ import annotations

from reliamsg.core.announced import Span3
from reliamsg.core.asking import lacking
from reliamsg.core.report import Report
from reliamsg.core.stream import EpochChange, StreamChange, StreamState
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["RESERVE", "change_of", "is_committed", "report_of", "restore_report", "was_not_committed"]

RESERVE = 2_000
"""Numbers that are committed ahead as perhaps handed out; more for a stream that uses them up fast."""


def change_of(state: StreamState, closing: bool) -> StreamChange:
    """The stream as a commit must hold it. With `closing`, high-water marks become exact."""
    epochs = []
    for known in (*state.live.values(), *state.finishing):
        entered = state.has_entered(known.epoch)
        if known.told and not entered:
            continue  # the producer will say so again
        high = known.high_water
        if closing:
            high = known.cursor if entered else 0
        elif entered and known.more_to_come and known.cursor + state.reserve // 2 > high:
            high = known.cursor + state.reserve
        # Also of an epoch that was entered before this start, and not since: earlier messages came first again.
        # And no number beyond the highest can be handed out: nor could a mark that says so be told to others.
        high = min(max(high, known.redelivered_below), MAX_SEQ + 1)
        entered |= state.had_entered(known.epoch)
        epochs.append(
            EpochChange(known, known.position, high, list(known.settled), known.last, entered, known.let_go)
        )
    if state.current is not None:
        # As many again as went in the time of one commit, several times over.
        used = state.current.cursor - state.reserved_at
        state.reserve = max(RESERVE, min(8 * used, 100_000))
        state.reserved_at = state.current.cursor
    gap = None
    clock = state.gaps.clock
    if clock.target is not None and state.current is not None:
        gap = (clock.target, clock.elapsed, clock.waited)
    change = StreamChange(
        state,
        epochs,
        list(state.finishing),
        gap,
        state.redelivery.take_pending(),
        state.history_changed,
        state.gaps.take_passing(),
        accepted_of(state),
    )
    state.finishing.clear()
    state.saving_history, state.history_changed = state.history_changed, False
    return change


def is_committed(change: StreamChange) -> bool:
    """The change is on disk. Returns whether what is told to producers differs from before."""
    state = change.state
    state.saving_history = False
    for epoch in change.epochs:
        epoch.known.committed(epoch.position, epoch.settled)
        epoch.known.high_water = epoch.high_water
    state.redelivery.grant(change.attempts, state.live)
    if change.gap is not None:
        state.gaps.clock.committed(*change.gap)
    before = state.committed
    _note_position(change)
    accepts = state.gaps.committed(change.declared, change.accepted)
    return bool(change.declared) or state.committed != before or accepts


def _note_position(change: StreamChange) -> None:
    """Remember what the commit holds of the stream's position."""
    entered = [epoch for epoch in change.epochs if epoch.entered]
    if not entered:
        return
    if len(entered) > 1:
        entered.sort(key=lambda epoch: epoch.known.epoch)
    top = entered[-1]
    lowest = next((one for one in entered if one.last is None or one.position <= one.last), top)
    change.state.committed = (
        (lowest.known.epoch, lowest.position),
        (top.known.epoch, top.known.incarnation),
        top.high_water,
    )


def was_not_committed(change: StreamChange) -> None:
    """Nothing of the change was stored: all of it belongs to the next one."""
    state = change.state
    state.finishing[:0] = change.finished
    state.gaps.put_back(change.declared)
    state.redelivery.put_back(change.attempts)
    state.history_changed |= change.history
    state.saving_history = False


def report_of(state: StreamState) -> Report:
    """What is committed of a stream, and what it lacks now."""
    missing = tuple((known.epoch, first, last) for known, first, last in lacking(state))
    return Report(*state.committed, missing, state.gaps.passed, state.gaps.accepted_committed)


def accepted_of(state: StreamState) -> tuple[Span3, ...]:
    """What is accepted as lost and not passed yet: epoch, first and last number."""
    epoch = 0 if state.current is None else state.current.epoch
    return tuple((epoch, *span) for span in state.gaps.accepted)


def restore_report(state: StreamState) -> None:
    """The stream is as its inbox holds it: all of that is committed."""
    known = state.current
    if known is None:
        return
    state.committed = (state.position, (known.epoch, known.incarnation), known.high_water)
    passed: list[Span3] = []
    if state.joined is not None:
        passed = [
            span for span in state.gaps.closed.spans() if span[:2] >= state.joined and span[2] < MAX_SEQ
        ]
    state.gaps.committed(passed, accepted_of(state))
    target = state.gaps.clock.target
    if target is not None and target[0] == known.epoch and target[2] is not None:
        known.announced = max(known.announced, target[2])  # that much is known to exist
