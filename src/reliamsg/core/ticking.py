"""What time does to one stream: gap clocks, backoff, what was said and takes effect, requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reliamsg.core.asking import look
from reliamsg.core.hearing import settle_heard
from reliamsg.core.joining import join_behind
from reliamsg.core.passage import expire, follow
from reliamsg.core.stream import StreamState
from reliamsg.message import Stream

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["Kept", "tick_stream"]

Kept = Callable[[Stream, tuple[int, int]], bool]
"""Whether who calls keeps anything of a stream, up to this epoch and number, that was not taken in yet."""

POLL_S = 0.5
"""Clocks that stand still are looked at as often: what sets them going again need not tell."""


def tick_stream(
    core: ConsumerCore, state: StreamState, now: float, connected: bool, paused: bool, kept: Kept | None
) -> float | None:
    """Let a stream's clocks run up to `now`; returns when to look at it again, None when nothing of it is timed."""
    times = [
        settle_heard(core, state, now),
        _retry(core, state, now),
        _tick_silence(core, state, now, connected and not paused),
        _tick_clock(core, state, now, connected and not paused, kept),
        look(core, state, now, connected),
    ]
    return min((at for at in times if at is not None), default=None)


def _retry(core: ConsumerCore, state: StreamState, now: float) -> float | None:
    if not state.failing or state.redelivery.halted:
        return None
    if now < state.redelivery.retry_at:
        return state.redelivery.retry_at
    core.touch(state)
    return None


def _tick_silence(core: ConsumerCore, state: StreamState, now: float, counts: bool) -> float | None:
    """Let the time run for which a group that begins with the latest was given nothing of what is kept for it."""
    heard = state.heard
    if heard is None or heard.kept is None:
        return None
    if state.current is None and not state.live and state.takeover.report is None:
        left = core.rules.gap_timeout - heard.silence.tick(now, counts)
        if left > 0:
            return now + min(left, POLL_S)
        join_behind(core, state, heard.kept)
        follow(core, state, now)
    heard.kept = None
    return None


def _tick_clock(
    core: ConsumerCore, state: StreamState, now: float, counts: bool, kept: Kept | None
) -> float | None:
    gaps, clock = state.gaps, state.gaps.clock
    idle = not state.draining and state.unacknowledged == 0
    while idle and _is_removed(state) and not clock.decided and not _is_kept(state, kept):
        clock.decided = True
        expire(core, state, now)
        idle = not state.draining and state.unacknowledged == 0
    if clock.target is None or gaps.held_by is not None:
        return None  # a stream that is held is looked at again when anything changes
    running = idle and counts
    waiting = running and clock.waited < core.rules.repair_timeout and _is_promised(state, now)
    elapsed = clock.tick(now, running, waiting)
    if running and not clock.opened and state.current is not None and clock.counted > 0:
        clock.opened = True
        epoch, first, last = clock.target
        known = state.live.get(epoch)
        core.note_range("gap_opened", state, epoch, known.incarnation if known else 0, first, last or 0)
    if elapsed >= core.rules.gap_timeout:
        if _is_kept(state, kept):
            clock.rewind()
            return now + POLL_S
        expire(core, state, now)
        if clock.target is None or gaps.held_by is not None:
            return None
    elif clock.counted - clock.saved >= 1.0:
        core.mark(state)
    left = core.rules.gap_timeout - clock.elapsed
    return now + min(max(left, 0.001), POLL_S)


def _is_kept(state: StreamState, kept: Kept | None) -> bool:
    """Whether anything of the gap at the head need not be waited for: who calls has it, and will have it taken in."""
    target = state.gaps.clock.target
    if kept is None or target is None:
        return False
    epoch, _, last = target
    if last is not None:
        return kept(state.stream, (epoch, last))
    later = state.next_epoch()
    return later is not None and kept(state.stream, (later.epoch, 0))


def _is_removed(state: StreamState) -> bool:
    """Whether the messages of the gap at the head are gone for good: the producer took them back."""
    target, known = state.gaps.clock.target, state.current
    if target is None or known is None or target[2] is None or known.epoch != target[0]:
        return False
    return known.removed.covers(target[1], target[2])


def _is_promised(state: StreamState, now: float) -> bool:
    """Whether a producer that was heard lately says that it holds what the gap at the head lacks."""
    target, known = state.gaps.clock.target, state.current
    if target is None or known is None or state.heard is None or known.epoch != target[0]:
        return False
    return state.heard.holds(known, target[1], target[2], now)
