"""What becomes of a status: what it tells of is missing from a moment later on, unless it arrives.

Nothing that it says ever sinks: an older status that comes after a newer one is not looked at, and the end of an
epoch that was announced stays known. What arrives outweighs what is said: an epoch that is only said to exist gives way
to data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.core.announced import Announced
from reliamsg.core.asking import hurry, watch
from reliamsg.core.chain import Finished
from reliamsg.core.forks import conflict
from reliamsg.core.heard import GRACE_S, JOIN_GRACE_S, Heard, end_of, extend, latest_of, start_of, trimmed
from reliamsg.core.joining import believed, declare_missed, flag_handed_out, join_as_told, skip_settled
from reliamsg.core.passage import follow
from reliamsg.core.stream import Note, StreamState
from reliamsg.core.superseding import supersede_told
from reliamsg.wire.limits import MAX_SEQ

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["MAX_CHAIN", "hear", "settle_heard"]

MAX_CHAIN = 10_000
"""Epochs in a chain that is looked at."""


def hear(core: ConsumerCore, announced: Announced, site: str, now: float) -> str:
    """Take in what was said about a stream; returns why there is no room for it."""
    if not _is_sound(announced):
        return "malformed"
    if core.is_far(announced.stream, announced.epoch):
        if announced.late:
            core.doubt(announced.stream, announced.epoch, now)
            return "far-epoch"
        if not core.vouch(announced.stream, announced.epoch):
            return "too-many-streams"
    core.horizon.learn(announced.epoch)
    core.adopt_after_all(announced.stream, now)
    state = core.streams.get(announced.stream)
    if state is None:
        if not announced.chain and announced.since is None:
            return ""
        state = core.open(announced.stream)
        if state is None:
            return "too-many-streams"
    if _is_another_history(core, state, announced, site):
        return ""
    state.used_at = now
    heard = state.heard
    if heard is None:
        heard = state.heard = Heard()
    was_there = any(owner.is_fresh(now) for owner in heard.owners.values())
    is_known = (announced.epoch, announced.incarnation) in heard.owners
    end = end_of(announced)
    whole = announced
    announced, cut = trimmed(state, announced)
    if not announced.late:
        _is_answered(core, state, announced)
    elif core.rules.signed and _wants_answer(core, state, announced):
        core.challenges.want(state.stream, now)
    if not heard.take(announced, now, cut, core.rules.signed):
        return ""
    supersede_told(core, state, whole)
    if state.doubt is not None and state.doubt.end is None and not announced.late:
        for known in state.live.values():
            state.doubt.flag(
                known
            )  # whatever has arrived existed, also of a history that the producer has lost
        state.doubt.end = max(end, (announced.epoch, 1))  # of earlier epochs nothing is published any more
        state.doubt.link, state.history_changed = latest_of(whole), True
        state.flag_entered()
        core.mark(state)
    flagged = flag_handed_out(core, state, announced, end)
    if state.current is None and state.proof is announced:
        follow(core, state, now)
    if skip_settled(core, state, announced) or flagged:
        follow(core, state, now)
    if state.unheard:
        declare_missed(core, state, announced)
    if not (was_there and is_known):
        hurry(core, state, now)
    if not _is_settled(state, announced):
        heard.put_off(announced, now + (GRACE_S if state.current is not None else JOIN_GRACE_S))
        core.time(state)
    return ""


def _is_answered(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """The producer said this after the group asked: it is no recording."""
    core.challenges.answered(state.stream)
    if state.current is None and (state.proof is None or _leads_nowhere(core, state)):
        state.proof = announced


def _leads_nowhere(core: ConsumerCore, state: StreamState) -> bool:
    """Whether the producer's answer names no beginning for a group that begins with the earliest: nothing was held by
    then, so everything that is published later is new to it."""
    proof = state.proof
    return core.rules.begin == "earliest" and proof is not None and start_of(proof, state.handed_out) is None


def _wants_answer(core: ConsumerCore, state: StreamState, announced: Announced) -> bool:
    """Whether it is not known what of a stream is new to the group."""
    if state.current is None:
        if state.adopted is not None:
            return False
        # More was published since the answer; if none of it arrives, only another answer shows where to begin.
        proof = state.proof
        return proof is None or (_leads_nowhere(core, state) and end_of(announced) > end_of(proof))
    return state.doubt is not None and state.doubt.end is None


def settle_heard(core: ConsumerCore, state: StreamState, now: float) -> float | None:
    """Have what was said take effect, as far as it is time; returns when there will be more."""
    heard = state.heard
    if heard is None:
        return None
    while (announced := heard.due(now)) is not None:
        if state.current is None:
            _join(core, state, announced)
        if state.current is not None:
            extend(state, announced)
            _report_fork(core, state, announced)
            follow(core, state, now)
        else:
            watch(core, state, now)
    return heard.waiting[0][0] if heard.waiting else None


def _join(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """Begin where the producer says; with keys only where it says so to this group, now."""
    told = believed(core, state, announced)
    if told is not None:
        join_as_told(core, state, told)


def _is_sound(announced: Announced) -> bool:
    """Whether the numbers make sense at all."""
    below = 0
    if len(announced.chain) > MAX_CHAIN:
        return False
    for epoch, _, first, last in announced.chain:
        if not (below < epoch <= announced.epoch and 1 <= first <= last + 1 and 1 <= last <= MAX_SEQ):
            return False
        below = epoch
    if announced.since is not None and not (
        1 <= announced.since[0] <= MAX_SEQ and 1 <= announced.since[1] <= MAX_SEQ
    ):
        return False
    if announced.reached is not None and not all(
        0 <= epoch <= MAX_SEQ and 1 <= number <= MAX_SEQ + 1 for epoch, number in announced.reached
    ):
        return False
    return announced.epoch <= MAX_SEQ and all(
        1 <= first <= last <= MAX_SEQ for _, first, last in announced.removed
    )


def _is_settled(state: StreamState, announced: Announced) -> bool:
    """Whether all that it tells of is known, and arrived: the usual case."""
    current = state.current
    if current is None or announced.removed or not announced.chain:
        return current is not None and not announced.removed
    epoch, _, _, last = announced.chain[-1]
    if state.asking is not None:
        return False
    return epoch == current.epoch == announced.epoch and last <= current.highest


def _is_another_history(core: ConsumerCore, state: StreamState, announced: Announced, site: str) -> bool:
    """Whether it names a known epoch with another incarnation; that is reported."""
    own = (announced.epoch, announced.incarnation, 1, 0)
    for epoch, incarnation, _, last in (*announced.chain, own):
        known = state.live.get(epoch)
        other = None if known is None else known.incarnation
        if known is None:
            done = state.history.find(epoch)
            other = None if done is None else done.incarnation
        if other is not None and other != incarnation:
            reason = "another incarnation of a known epoch"
            if core.report_conflict(state, epoch, incarnation, reason):
                core.note(Note("conflict", state.stream, epoch, incarnation, 1, last, site, reason))
                core.mark(state)
            return True
    return False


def _report_fork(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """Tell of a producer that has gone back behind what arrived from it, though it has sent nothing new yet."""
    for epoch, incarnation, _, last in announced.chain:
        known = _reached(state, epoch)
        if epoch < announced.epoch and last < known:
            own = announced.epoch, announced.incarnation
            reason = f"epoch {announced.epoch} says that {epoch} ended at {last}, {known} is known"
            if core.report_conflict(state, *own, reason):
                core.note(conflict(state, *own, reason, Finished(epoch, incarnation, known)))
                core.mark(state)


def _reached(state: StreamState, epoch: int) -> int:
    """The last number of an epoch that came to the group, or was passed; 0 where nothing is known of it."""
    if state.current is not None and epoch == state.current.epoch:
        return state.current.arrived
    done = state.history.find(epoch)
    return 0 if done is None else done.last
