"""How a stream moves on: joining it, past gaps, and from one epoch into the next.

:func:`follow` is called whenever anything about a stream changed. It finds what holds the stream up, and aims the
gap clock at it; what holds up nothing (an epoch that is complete) it passes itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.core.asking import watch
from reliamsg.core.chain import Finished, Link, LinkKind, link
from reliamsg.core.forks import conflict
from reliamsg.core.gaps import GapKey, is_part
from reliamsg.core.heard import extend
from reliamsg.core.joining import before_joining, join_after_all
from reliamsg.core.reorder import Reorder
from reliamsg.core.stream import Note, StreamState
from reliamsg.core.superseding import supersede_before
from reliamsg.message import Gap
from reliamsg.wire.limits import MAX_SEQ

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = ["declare", "expire", "follow"]


def follow(core: ConsumerCore, state: StreamState, now: float) -> None:
    """Find out what the stream waits for, after anything changed."""
    _finish_drained(core, state)
    while True:
        if state.current is None:
            target = before_joining(core, state)
            if state.current is not None:
                continue
            unproven = state.proof is None and state.takeover.report is None
            if target is not None and core.rules.signed and unproven:
                core.challenges.want(state.stream, now)
            break
        known = state.current
        if known.deliverable() is not None:
            target = None
            core.touch(state)
            break
        later = state.next_epoch()
        joint = link(known, later)
        target = _gap_at_head(known, joint)
        if target is not None and _may_pass(state, target):
            _pass(core, state, known, known.cursor, target[2] or 0)
            continue
        if target is None and later is not None and not state.giving:
            _enter(core, state, later, joint)
            continue
        break
    _aim(core, state, target, now)
    watch(core, state, now)


def _gap_at_head(known: Reorder, joint: Link) -> GapKey | None:
    target = _whole_gap_at_head(known, joint)
    if target is not None and known.elsewhere > target[1]:
        epoch, head, last = target
        last = known.elsewhere - 1 if last is None else min(last, known.elsewhere - 1)
        target = epoch, head, last
    if target is None or known.removed.empty:
        return target
    # What was removed closes at once; the rest may still come.
    epoch, head, last = target
    run = known.removed.run_from(head)
    end = run if run is not None else (known.removed.next_at(head) or MAX_SEQ + 1) - 1
    return target if last is None else (epoch, head, min(last, end))


def _whole_gap_at_head(known: Reorder, joint: Link) -> GapKey | None:
    head = known.cursor
    beyond = known.held.next_at(head)
    settled = known.settled.next_at(head)  # acknowledged before an unclean stop: not missing
    if beyond is not None:
        last = beyond - 1
    elif joint.kind is LinkKind.UNKNOWN and known.announced < head:
        return known.epoch, head, None if settled is None else settled - 1
    else:
        last = joint.last if joint.kind in (LinkKind.ENDS, LinkKind.FORK) else known.highest
    if beyond is None and last < head:
        return None
    return known.epoch, head, last if settled is None else min(last, settled - 1)


def _aim(core: ConsumerCore, state: StreamState, target: GapKey | None, now: float) -> None:
    gaps, clock = state.gaps, state.gaps.clock
    if gaps.held_since is not None and (target is None or target != clock.target):
        _resume(core, state, target)
    if target == clock.target:
        if target is not None:
            core.time(state)
        return
    before, opened = gaps.aim(target)
    if before is not None:
        core.mark(state)
        if opened and state.current is not None:
            known = state.live.get(before[0])
            incarnation = known.incarnation if known is not None else 0
            core.note(
                Note(
                    "gap_closed",
                    state.stream,
                    before[0],
                    incarnation,
                    before[1],
                    before[2] or 0,
                    reason="changed",
                )
            )
    if target is not None:
        clock.tick(now, False)
        core.time(state)


def _resume(core: ConsumerCore, state: StreamState, target: GapKey | None) -> None:
    """The stream waits for something else than before, or for nothing: what held it does not any more. What is left
    of it after a part came is still the same episode."""
    gaps = state.gaps
    gaps.resume()
    if gaps.held_since is None:
        return
    epoch, first, last = gaps.held_since
    known = state.current
    if target is not None:
        rest = is_part(target, gaps.held_since)
    elif known is None or known.epoch != epoch or last is None:
        rest = False
    else:
        first = max(first, known.cursor)
        rest = first <= last and _missing(known, first, last)
    if not rest:
        gaps.end_episode()
        core.holding.pop(state.stream, None)


# -- epochs -------------------------------------------------------------------------------------------------


def _enter(core: ConsumerCore, state: StreamState, later: Reorder, joint: Link) -> None:
    """Everything of the current epoch is handed out or passed: go on with the next."""
    known = state.current
    assert known is not None  # only a joined stream has an epoch to leave
    known.last = known.cursor - 1
    state.gaps.closed.add(known.epoch, known.last + 1, MAX_SEQ)
    state.draining.append(known)
    core.moves += 1
    state.current = later
    state.gaps.enter_epoch()
    state.reserved_at = later.cursor
    state.history_changed = True
    state.flag(later)
    if state.heard is not None:
        for owner in state.heard.owners.values():
            extend(state, owner.latest)
    if joint.kind is LinkKind.FORK:
        left = Finished(known.epoch, known.incarnation, joint.last)
        core.note(conflict(state, later.epoch, later.incarnation, joint.reason, left))
        core.report_conflict(state, later.epoch, later.incarnation, joint.reason)
        supersede_before(core, state, later.prev)
    elif joint.kind is LinkKind.UNKNOWN:
        state.history.unended.add(known.epoch)
    core.mark(state, urgent=True)
    core.touch(state)
    _finish_drained(core, state)


def _finish_drained(core: ConsumerCore, state: StreamState) -> None:
    """Epochs that are settled to their end become history, in order."""
    while state.draining:
        known = state.draining[0]
        if known.last is None or known.position <= known.last:
            return
        state.draining.pop(0)
        del state.live[known.epoch]
        state.finishing.append(known)
        state.history.add(known.epoch, known.incarnation, known.last)
        state.history_changed = True
        core.mark(state)


# -- gaps ---------------------------------------------------------------------------------------------------


def expire(core: ConsumerCore, state: StreamState, now: float) -> None:
    """The gap at the head has had its time."""
    clock = state.gaps.clock
    assert clock.target is not None  # its clock has run
    if state.current is None:
        join_after_all(core, state)
        follow(core, state, now)
        return
    epoch, first, last = clock.target
    known = state.current
    if last is None:
        reason = "extent unknown"
    elif known.removed.covers(first, last):
        reason = "removed"
    else:
        reason = "undecodable" if known.undecodable.overlap(first, last) else "expired"
    gap = Gap(state.stream, epoch, first, last, reason)
    state.gaps.expire()
    if core.rules.skip_gaps:
        declare(core, state, gap, now)
        return
    if core.rules.hold_gaps:
        if reason == "removed":
            declare(core, state, gap, now)
        elif state.gaps.held_by is None:
            _hold(core, state, gap)
        return
    state.gaps.ask(gap)
    core.mark(state)
    core.touch(state)


def _hold(core: ConsumerCore, state: StreamState, gap: Gap) -> None:
    """The stream stays where it is until the gap is filled or accepted."""
    if state.gaps.hold(gap):
        core.holding[state.stream] = state
        core.held_up.append(gap)
        known = state.current
        incarnation = 0 if known is None else known.incarnation
        core.note(
            Note(
                "gap_held", state.stream, gap.epoch, incarnation, gap.first, gap.last or 0, reason=gap.reason
            )
        )
    core.mark(state, urgent=True)
    core.touch(state)


def declare(core: ConsumerCore, state: StreamState, gap: Gap, now: float) -> bool:
    """Pass a gap, as far as it is still one. What of it lies behind data that arrived is passed when its turn comes,
    and nothing of it before all that lies ahead of it is dealt with."""
    known = state.current
    if known is None or known.epoch != gap.epoch:
        return False
    later = state.next_epoch()
    joint = link(known, later)
    target = _gap_at_head(known, joint) if known.deliverable() is None else None
    how = state.gaps.how_accepted(gap)
    if gap.last is None:
        if target is None or target[2] is not None or later is None:
            return False
        if joint.kind is not LinkKind.UNKNOWN or not _is_idle(state):
            return False
        _pass_unknown(core, state, known, later, *how)
        follow(core, state, now)
        return True
    top = min(gap.last, max(known.highest, joint.last))
    first = max(gap.first, known.cursor)
    if first > top or not _missing(known, first, top):
        return False
    state.gaps.accept(first, top, *how)
    state.history_changed = (
        True  # it counts also if the process ends before what comes before it is dealt with
    )
    core.mark(state, urgent=True)
    if target is not None and target[2] is not None and _may_pass(state, target):
        _pass(core, state, known, target[1], target[2])
    follow(core, state, now)
    return True


def _missing(known: Reorder, first: int, last: int) -> bool:
    return any(known.settled.missing(*span) for span in known.held.missing(first, last))


def _may_pass(state: StreamState, target: GapKey) -> bool:
    return target[2] is not None and _is_idle(state) and state.gaps.accepted.covers(target[1], target[2])


def _is_idle(state: StreamState) -> bool:
    """Whether everything that was handed out is dealt with. What is passed earlier would be journalled ahead of
    messages that come before it."""
    return not state.draining and state.unacknowledged == 0


def _pass(core: ConsumerCore, state: StreamState, known: Reorder, first: int, last: int) -> None:
    known.settle(first, last)
    known.head()
    reason, elapsed = state.gaps.close(known.epoch, first, last)
    state.history_changed = True
    if known.removed.covers(first, last):
        reason = "removed"
    detail = None if elapsed is None else {"elapsed": round(elapsed, 3)}
    core.note(
        Note(
            "declared",
            state.stream,
            known.epoch,
            known.incarnation,
            first,
            last,
            reason=reason,
            detail=detail,
        )
    )
    core.mark(state, urgent=True)


def _pass_unknown(
    core: ConsumerCore,
    state: StreamState,
    known: Reorder,
    later: Reorder,
    reason: str,
    elapsed: float | None,
) -> None:
    """Pass the known epoch's open end, and all of what `later` says came directly before it, if it does."""
    prev = later.prev
    detail: dict[str, object] = {"until_epoch": later.epoch, "extent": "unknown"}
    if elapsed is not None:
        detail["elapsed"] = round(elapsed, 3)
    core.note(
        Note("declared", state.stream, known.epoch, known.incarnation, known.cursor, 0, "", reason, detail)
    )
    if prev is not None:
        core.note(Note("declared", state.stream, prev.epoch, prev.incarnation, 1, prev.last, "", reason))
        state.gaps.close_before(prev.epoch, prev.last)
    _enter(core, state, later, Link(LinkKind.UNKNOWN))
