"""Where a group joins a stream: where the producer says that it begins, or with what arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reliamsg.core.announced import Announced, ChainEntry, Position
from reliamsg.core.forks import find_fork
from reliamsg.core.gaps import GapKey
from reliamsg.core.heard import extend, keeps_any, new_from, start_after, start_of
from reliamsg.core.reorder import Reorder
from reliamsg.core.stream import Note, StreamState
from reliamsg.core.takeover import LastReport, Remembered
from reliamsg.message import Gap, Prev

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore

__all__ = [
    "JOINED_LATE", "adopt", "before_joining", "believed", "declare_missed", "flag_handed_out", "join_after_all",
    "join_as_told", "join_behind", "joins_soon", "skip_settled",
]  # fmt: skip

JOINED_LATE = "joined late"
"""The reason of a gap that was passed by joining, and is found out afterwards."""


def before_joining(core: ConsumerCore, state: StreamState) -> GapKey | None:
    """Join the stream if it is clear where; else say what is waited for."""
    lowest = state.lowest_arrived()
    if lowest is None:
        return None
    assert lowest.held.first is not None  # it arrived
    first = lowest.held.first
    report = state.takeover.report
    if report is not None and lowest.epoch == report.position[0]:
        _take_over(core, state, lowest)
        return None
    if report is not None and lowest.prev is not None and lowest.prev.epoch == report.position[0]:
        epoch, incarnation, last = lowest.prev
        known = state.live[epoch] = Reorder(epoch, incarnation, None)
        known.told, known.announced = True, last
        _take_over(core, state, known)
        return None
    at_the_start = first == 1 and lowest.prev is None
    proven = state.proof is not None or not core.rules.signed
    at_once = at_the_start or (core.rules.begin == "latest" and _left_by_another(state) is None)
    if report is None and proven and at_once:
        join(core, state, lowest, first, late=not at_the_start)
        return None
    # The number 0 stands for "anything before": a lower arrival is another target, and starts the clock anew.
    return lowest.epoch, 0, first - 1


def believed(core: ConsumerCore, state: StreamState, announced: Announced) -> Announced | None:
    """By what the group may join once this takes effect: with keys only what its producer says to this group, now."""
    if core.rules.signed and announced.late and state.takeover.report is None:
        return state.proof
    return announced


def joins_soon(core: ConsumerCore, state: StreamState) -> bool:
    """Whether a status waits to take effect by which the group will join the stream."""
    if state.current is not None or state.heard is None:
        return False
    said = [believed(core, state, announced) for _, announced in state.heard.waiting]
    if core.rules.begin == "latest" and state.heard.kept is not None:
        return True
    return any(told is not None and _is_told_where(core, state, told) for told in said)


def _is_told_where(core: ConsumerCore, state: StreamState, announced: Announced) -> bool:
    """Whether the group will join by this, if nothing arrives."""
    kept = core.rules.begin == "latest" and keeps_any(announced)
    return kept or _start(core, state, announced) is not None


def _start(
    core: ConsumerCore, state: StreamState, announced: Announced
) -> tuple[Position, int, Prev | None] | None:
    """Where the group is to begin by this; see :func:`start_of`. One that begins with the latest is told only where
    another inbox of it was."""
    if core.rules.begin == "earliest":
        return start_of(announced, state.takeover.remembered)
    left = _left_by_another(state)
    return None if left is None else start_after(announced, left)


def _left_by_another(state: StreamState) -> Remembered | None:
    """Where another inbox of the group was, if the producer said so."""
    remembered = state.takeover.remembered
    return None if remembered is None or remembered.position[0] < 1 else remembered


def join_as_told(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """Join the stream where its producer says that it begins, or with what arrived from before that."""
    if state.takeover.report is not None:
        _adopt_as_told(core, state, state.takeover.report, announced)
        return
    found = _start(core, state, announced)
    if found is None:
        if core.rules.begin == "latest" and state.heard is not None and keeps_any(announced):
            state.heard.note_kept(announced)
        return
    (epoch, first), incarnation, prev = found
    lowest = state.lowest_arrived()
    if lowest is not None:
        assert lowest.held.first is not None  # it arrived
        arrived = lowest.epoch, lowest.held.first
        if arrived <= (epoch, first):
            join(core, state, lowest, arrived[1], late=not _tells_of(announced, lowest.epoch))
            return
    known = state.live.get(epoch)
    if known is None:
        known = state.live[epoch] = Reorder(epoch, incarnation, prev)
        known.told = True
    join(core, state, known, first)


def join_behind(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """Nothing of a stream came, of which the producer keeps messages until the group has settled them: begin behind all
    that it told of, unless it has said since where the group was."""
    join_as_told(core, state, announced)
    if state.current is not None:
        return
    prev: Prev | None = None
    for epoch, incarnation, _, last in announced.chain[-2:-1]:
        prev = Prev(epoch, incarnation, last)
    epoch, incarnation, _, last = announced.chain[-1]
    known = state.live[epoch] = Reorder(epoch, incarnation, prev)
    known.told = True
    join(core, state, known, last + 1)


def join(core: ConsumerCore, state: StreamState, lowest: Reorder, first: int, late: bool = False) -> None:
    """The stream begins with number `first` of its lowest epoch. What came before is no loss, unless its producer
    counts the group for it, or saw another inbox of it there: where nothing is known of that (`late`: it was not heard,
    or its outbox does not know of the epoch), it may say so yet."""
    earliest = core.rules.begin == "earliest"
    lowest.place_at(first)
    prev = lowest.prev
    if prev is not None:
        core.note(
            Note("before_join", state.stream, prev.epoch, prev.incarnation, 1, prev.last, reason="begin")
        )
        if earliest:
            state.gaps.closed.add(prev.epoch, 1, prev.last)
    if first > 1:
        core.note(
            Note("before_join", state.stream, lowest.epoch, lowest.incarnation, 1, first - 1, reason="begin")
        )
        if earliest:
            state.gaps.closed.add(lowest.epoch, 1, first - 1)
    _begin(core, state, lowest, first, "", late)


def join_after_all(core: ConsumerCore, state: StreamState) -> None:
    """What comes before the lowest that arrived has had its time. What its producer has said by now counts, also if
    that was before it published what arrived."""
    lowest = state.lowest_arrived()
    assert lowest is not None  # it is what waited
    assert lowest.held.first is not None
    heard = state.heard
    said = () if heard is None else [told for _, told in heard.waiting]
    counted = () if heard is None else [_with(owner.latest, lowest) for owner in heard.owners.values()]
    for announced in (*said, *counted):
        join_as_told(core, state, announced)
        if state.current is not None:
            return
    report = state.takeover.report
    if report is not None:
        # The other inbox was still in an earlier epoch, of which it is not even known which one it was.
        epoch, first = report.position
        detail = {"until_epoch": lowest.epoch, "extent": "unknown"}
        core.note(Note("declared", state.stream, epoch, 0, first, 0, "", "extent unknown", detail))
    join(core, state, lowest, lowest.held.first, late=report is None)


def declare_missed(core: ConsumerCore, state: StreamState, announced: Announced) -> None:
    """The producer of a stream that was joined without a word from it is heard. What it counted the group for, and the
    group began behind, is a gap after all. To one that begins with the latest that goes for where another inbox was."""
    joined, since = state.joined, announced.since
    if joined is None or not announced.chain:
        return
    if core.rules.begin == "latest":
        reached = announced.reached
        if announced.late and reached is None:
            return
        since = None if reached is None or reached[0][0] < 1 else reached[0]
    if _tells_of(announced, joined[0]):
        state.unheard, state.history_changed = False, True
        core.mark(state)
    # Else it may not have told of what arrived yet, or has lost it, or has gone back behind that.
    if since is None:
        return
    if state.takeover.remembered is not None:
        since = max(since, state.takeover.remembered.settled_in(announced.chain))
    for epoch, incarnation, _, last in announced.chain:
        first = since[1] if epoch == since[0] else 1
        end = joined[1] - 1 if epoch == joined[0] else last
        if since[0] <= epoch <= joined[0] and first <= end:
            for span in state.history.supersede(epoch, first, end):
                core.note(Note("declared", state.stream, epoch, incarnation, *span, reason=JOINED_LATE))
                core.missed.append(Gap(state.stream, epoch, *span, JOINED_LATE))
                state.history_changed = True
                core.mark(state, urgent=True)


def _tells_of(announced: Announced, epoch: int) -> bool:
    """Whether a producer knows of an epoch: an outbox that was lost, or is an older copy, does not."""
    return any(entry[0] == epoch for entry in announced.chain)


def _with(announced: Announced, arrived: Reorder) -> Announced:
    """What a producer would have said, had it known of an epoch of which something arrived since."""
    chain = {entry[0]: entry for entry in announced.chain}
    if arrived.prev is not None:
        epoch, incarnation, last = arrived.prev
        chain.setdefault(epoch, (epoch, incarnation, last + 1, last))
    first = arrived.held.first or arrived.position
    chain.setdefault(arrived.epoch, (arrived.epoch, arrived.incarnation, first, max(first, arrived.highest)))
    return replace(announced, chain=tuple(chain[epoch] for epoch in sorted(chain)))


def adopt(core: ConsumerCore, state: StreamState, report: LastReport) -> bool:
    """Start where another inbox of the group stopped; see :meth:`ConsumerCore.adopt`."""
    own = state.position
    if not _go_on_at(core, state, report):
        return False
    _note_behind(core, state, report.position, own)
    return True


def _go_on_at(core: ConsumerCore, state: StreamState, report: LastReport) -> bool:
    """Start there, unless this inbox is as far itself."""
    position, entered = report.position, report.entered
    if position[0] < 1:
        return False
    if state.current is not None and position <= state.position:
        _flag_entered(core, state, report)
        return False
    known = state.live.get(position[0])
    if known is not None and position[0] == entered[0] and known.incarnation != entered[1]:
        return False
    _leave_behind(core, state, position)
    state.takeover.succeed(report)
    if known is None and position[0] == entered[0]:
        known = state.live[position[0]] = Reorder(*entered, None)
        known.told = True
    if known is not None:
        _take_over(core, state, known)
    return True


def _flag_entered(core: ConsumerCore, state: StreamState, report: LastReport) -> None:
    """The other inbox had settled no more than this one, but may have handed out more."""
    state.takeover.succeed(report)
    state.take_accepted()
    state.flag_entered()
    core.mark(state, urgent=True)


def flag_handed_out(core: ConsumerCore, state: StreamState, announced: Announced, end: Position) -> bool:
    """The producer says how far the group was. If this inbox never was there, it takes the place of one that was lost,
    is an old copy of it, or another one has read meanwhile: what that one may have handed out is flagged when it comes
    again. That is everything up to `end`, where nobody knows. Returns whether this inbox is behind."""
    if announced.reached is None:
        return False
    position, mark = announced.reached
    if state.current is not None and position <= state.committed[0]:
        return False
    before = state.takeover.remembered
    if before is not None and before.position == position:
        mark = max(mark, (before.epoch, before.below))
    elif mark <= position:
        mark = max(mark, end)
    epoch, below = mark
    incarnation = next((link[1] for link in announced.chain if link[0] == epoch), None)
    knows = tuple(link[:2] for link in announced.chain if link[0] <= position[0])
    remembered = Remembered(position, epoch, incarnation, below, knows)
    if remembered != before:
        if before is None or before.position < position or before.knows != knows:
            _note_behind(core, state, position, state.committed[0], announced.chain, end)
        state.takeover.remember(remembered)
        state.flag_entered()
        if state.current is not None:
            core.mark(state, urgent=True)
    return True


def skip_settled(core: ConsumerCore, state: StreamState, announced: Announced) -> bool:
    """Of what another inbox has settled, and this one has not, go on with the first that the producer still holds:
    what it has let go since, whoever the status is for, is no gap. Returns whether there was any of that."""
    remembered = state.takeover.remembered
    if state.current is None or state.draining or remembered is None:
        return False  # with epochs that are left and not settled, a later status finds it done
    position = remembered.settled_in(announced.chain)
    handed_out_to = state.current.epoch, state.current.cursor
    held = (
        max((epoch, first), handed_out_to)
        for epoch, _, first, last in announced.chain
        if first <= last and handed_out_to <= (epoch, last)
    )
    position = min(position, next(held, position))
    if not any(link[0] == position[0] for link in announced.chain):
        # The group was in an epoch that the outbox has lost: of what that has, it was done with all before.
        ends = ((epoch, last + 1) for epoch, _, _, last in announced.chain if epoch < position[0])
        position = max(ends, default=position)
    incarnation = next((link[1] for link in announced.chain if link[0] == position[0]), None)
    if position <= handed_out_to or incarnation is None:
        return False  # what this inbox has handed out itself it settles itself
    if not _go_on_at(core, state, LastReport(position, (position[0], incarnation), 0)):
        return False
    before = (epoch for epoch, _ in remembered.knows if epoch < position[0])
    state.joined_after = max(before, default=state.joined_after)
    return True


def _note_behind(
    core: ConsumerCore,
    state: StreamState,
    position: Position,
    own: Position,
    chain: Sequence[ChainEntry] = (),
    existed: Position = (0, 0),
) -> None:
    """The group had settled everything before `position`, and this inbox nothing from `own` on. If nobody's journal
    tells of what lies between, it went with the disk of an inbox. `chain`: which epochs that is, as far as it tells;
    what another history has between them nobody settled. Of the epoch of the position an outbox that is an older copy
    tells too little. `existed`: behind all that there was by then, of which that
    inbox may have settled more than it told."""
    found = [
        (
            max(own, (epoch, 1) if number else (0, 1)),
            position if epoch == position[0] else min(position, (epoch, last + 1)),
        )
        for number, (epoch, _, _, last) in enumerate(chain)
    ]
    if not any(epoch == position[0] for epoch, *_ in chain):
        found.append((max(own, (position[0], 1) if chain else (0, 1)), position))
    for first, end in found:
        if first < end:
            detail = {"from": list(first)}
            if existed > end:
                detail["existed"] = list(existed)
            core.note(Note("behind", state.stream, end[0], 0, end[1], end[1], detail=detail))


def _leave_behind(core: ConsumerCore, state: StreamState, position: Position) -> None:
    """The other inbox has dealt with everything before `position`."""
    epoch = position[0]
    for number in sorted(number for number in state.live if number < epoch):
        known = _leave(state, number)
        state.history.add(number, known.incarnation, known.highest)
        state.history_changed = True
    state.draining.clear()
    if state.current is not None and state.current.epoch < epoch:
        state.current = None
    state.gaps.drop()
    state.redelivery.drop_before(position)
    core.mark(state)


def _adopt_as_told(core: ConsumerCore, state: StreamState, report: LastReport, announced: Announced) -> None:
    """The other inbox had left messages of an earlier epoch undone: the chain says which incarnation that was."""
    prev: Prev | None = None
    for epoch, incarnation, _, last in announced.chain:
        if epoch >= report.position[0]:
            known = state.live.get(epoch)
            if known is None:
                known = state.live[epoch] = Reorder(epoch, incarnation, prev)
                known.told = True
            _take_over(core, state, known)
            return
        prev = Prev(epoch, incarnation, last)


def _take_over(core: ConsumerCore, state: StreamState, known: Reorder) -> None:
    report = state.takeover.report
    assert report is not None  # it is what is taken over
    first = report.position[1] if known.epoch == report.position[0] else 1
    first = max(first, known.position)  # what this inbox settled itself does not come again
    known.place_at(first)
    if known is not state.current and not known.told:
        find_fork(core, state, known.epoch, known.incarnation, known.prev)
    _begin(core, state, known, first, "took_over")


def _begin(
    core: ConsumerCore, state: StreamState, known: Reorder, first: int, reason: str, unheard: bool = False
) -> None:
    core.moves += 1
    if core.rules.signed and not reason:
        reason = _doubt_unproven(state, core.rules.begin == "latest")
    _forget_below(state, known.epoch)
    state.current, state.proof = known, None
    if reason != "took_over":
        state.joined_after = _epoch_before(known)
    elif state.joined is None or state.joined[0] != known.epoch:
        state.joined_after = None  # in the same epoch what came before it is as well known as it was
    state.joined, state.unheard = (known.epoch, first), unheard
    state.history_changed = True
    state.take_accepted()
    state.flag(known)
    at = known.epoch, known.incarnation, first, first
    owed = unheard and core.rules.begin == "earliest"
    detail = {"unheard": True} if owed and state.heard is None else None
    core.note(Note("joined", state.stream, *at, reason=reason, detail=detail))
    if state.heard is not None:
        for owner in state.heard.owners.values():
            extend(state, owner.latest)
    core.mark(state, urgent=True)
    core.touch(state)


def _forget_below(state: StreamState, epoch: int) -> None:
    """Nothing is here of epochs below the one with which the stream begins: what comes of them came before."""
    for number in [number for number in state.live if number < epoch]:
        _leave(state, number)


def _leave(state: StreamState, epoch: int) -> Reorder:
    """Nothing of an epoch is waited for any more."""
    known = state.live.pop(epoch)
    known.last = known.proven
    known.place_at(known.last + 1)
    state.finishing.append(known)
    return known


def _epoch_before(known: Reorder) -> int | None:
    """Which epoch came before one, 0 for none; None where nobody said so."""
    if known.prev is not None:
        return known.prev.epoch
    return None if known.told else 0


def _doubt_unproven(state: StreamState, latest: bool) -> str:
    """Anybody may have sent again what arrived: what its producer does not vouch for may have been handed out before.
    Returns what the journal says."""
    if state.proof is None:
        state.takeover.note_unproven()
        return "unproven"
    state.takeover.note_proven(new_from(state.proof, state.takeover.remembered, latest))
    return ""
