"""What of a stream may be handed out next: order, limits, and attempts that are counted before they are made."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.core.ranges import Span
from reliamsg.core.reorder import Reorder
from reliamsg.core.stream import StreamState

__all__ = ["DeliveryRules", "Offer", "fail", "mark_taken", "offer"]

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0

COUNTED_TOGETHER = 64
"""After an unclean stop, so many messages have an attempt counted in one commit, once, whether it is made or not. From
then on each is counted, and handled, alone, so that one that kills its handler uses up no more deliveries of others."""


@dataclass(frozen=True)
class DeliveryRules:
    """Limits of handing out."""

    max_unacknowledged: int = 1_000
    max_deliveries: int = 5
    halt: bool = False
    """A message that used up its deliveries halts its stream instead of going to the dead letters."""


@dataclass(slots=True)
class Offer:
    """A run of messages that may be handed out."""

    epoch: int
    incarnation: int
    first: int
    last: int
    redelivered: bool = False
    retry: bool = False
    """Again, after handling raised."""
    armed: bool = False
    """Its attempts were counted ahead."""
    spent: bool = False
    """It has used up its deliveries: bury it instead."""
    alone: bool = False
    """Nothing else is to be handled together with it."""
    unjournalled: bool = False
    """It may have been handed out before this process began; no journal says so."""


def offer(rules: DeliveryRules, state: StreamState, now: float, unit: int) -> tuple[Offer | None, bool]:
    """What to hand out next, if anything, and whether a commit is needed before there can be (more)."""
    if state.halted or state.current is None:
        return None, False
    for known in state.entered:
        if not known.retry.empty:
            if now < state.retry_at:
                return None, False
            first = known.retry.first
            assert first is not None  # it is not empty
            return _counted(rules, state, known, first, first, retry=True)
        run = known.deliverable()
        # An epoch that was left has something to offer if a run that was taken came back.
        if run is not None:
            return _in_order(rules, state, known, run, unit)
    return None, False


def _in_order(
    rules: DeliveryRules, state: StreamState, known: Reorder, run: Span, unit: int
) -> tuple[Offer | None, bool]:
    room = rules.max_unacknowledged - state.unacknowledged
    if room <= 0:
        return None, False
    first, last = run
    last = min(last, first + room - 1)
    if first < known.redelivered_below:
        last = _together(rules, state, known, first, last, unit)
        return _counted(rules, state, known, first, last, retry=False)
    last = min(last, known.high_water - 1)
    if last < first:
        return None, True
    return Offer(known.epoch, known.incarnation, first, last), False


def _together(
    rules: DeliveryRules, state: StreamState, known: Reorder, first: int, last: int, unit: int
) -> int:
    """How far the attempts of possibly redelivered messages are counted in one commit."""
    last = min(last, known.redelivered_below - 1)
    if first <= known.journalled:  # so that no row of the journal holds both kinds
        last = min(last, known.journalled)
    if (known.epoch, first) in state.armed:
        while first < last and (known.epoch, first + 1) in state.armed:
            first += 1
        return first
    if _goes_alone(rules, state, known, first):
        return first
    last = min(last, first + max(unit, COUNTED_TOGETHER) - 1)
    for seq in range(first, last):
        if _goes_alone(rules, state, known, seq + 1):
            return seq
    return last


def _goes_alone(rules: DeliveryRules, state: StreamState, known: Reorder, seq: int) -> bool:
    """Whether a message may be the one that ends the process: others with it would use up their deliveries as well."""
    return rules.max_deliveries <= 2 or (known.epoch, seq) in state.attempts


def _counted(
    rules: DeliveryRules, state: StreamState, known: Reorder, first: int, last: int, retry: bool
) -> tuple[Offer | None, bool]:
    """Offer messages whose attempt a commit holds already; otherwise have it committed."""
    keys = [(known.epoch, seq) for seq in range(first, last + 1)]
    found = Offer(known.epoch, known.incarnation, first, last, redelivered=True, retry=retry, armed=True)
    found.unjournalled = known.journalled < first < known.redelivered_below
    found.alone = retry or _goes_alone(rules, state, known, first)
    if all(key in state.armed for key in keys):
        return found, False
    if not rules.halt and state.tries(known, first) >= rules.max_deliveries:
        found.last, found.spent, found.armed = first, True, False
        return found, False
    wanted = {key: state.tries(known, key[1]) + 1 for key in keys if key not in state.armed}
    if all(state.arming.get(key) == count for key, count in wanted.items()):
        return None, True
    state.arming.update(wanted)
    return None, True


def mark_taken(state: StreamState, offered: Offer, last: int) -> None:
    """Messages up to `last` of an offer are handed out now."""
    known = state.live[offered.epoch]
    if offered.armed:
        for seq in range(offered.first, last + 1):
            state.attempts[(known.epoch, seq)] = state.armed.pop((known.epoch, seq))
    if offered.retry:
        known.retry.remove(offered.first, last)
    else:
        known.advance(last)


def fail(
    rules: DeliveryRules,
    state: StreamState,
    known: Reorder,
    span: Span,
    now: float,
    counts: bool = True,
) -> list[int]:
    """Handling of `span` raised: have them handed out again, one by one, after a while. Unless it `counts`, as many
    deliveries are left to them as before."""
    spent: list[int] = []
    most = 1
    first, last = span
    for part in known.held.overlap(first, min(last, known.cursor - 1)) if first < known.cursor else ():
        for seq in range(part[0], part[1] + 1):
            count = state.attempts.setdefault((known.epoch, seq), 1)
            if not counts:
                count = state.attempts[(known.epoch, seq)] = count - 1
            most = max(most, count)
            if count >= rules.max_deliveries:
                spent.append(seq)
            else:
                known.retry.add(seq, seq)
    state.retry_at = now + min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(most - 1, 10))
    return spent
