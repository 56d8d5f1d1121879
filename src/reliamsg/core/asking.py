"""What a group lacks, and when it asks the producer for it.

A number is asked for when it has been missing for ``nak_delay``: sites run ahead of each other, and most of what is
missing is on its way. Instead of a time for each range there is one bound: when it was taken nothing above it was
known, so what is missing at or below it has been so since then, at least.

Requests are bounded: a window of numbers is wanted at a time, lowest first. When half of it has arrived the next is
asked for; what does not come is asked for again, with backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from reliamsg.core.announced import Position, Span3
from reliamsg.core.chain import LinkKind, link
from reliamsg.core.ranges import Span
from reliamsg.core.reorder import Reorder
from reliamsg.message import Stream

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore
    from reliamsg.core.stream import StreamState

__all__ = [
    "MAX_MISSING", "WINDOW_NUMBERS", "WINDOW_SPANS", "Ask", "Asking", "Jitter", "ask", "hurry", "lacking", "look",
    "watch",
]  # fmt: skip

MAX_MISSING = 100
"""Missing ranges that a producer is told of: the lowest."""
WINDOW_NUMBERS = 20_000
"""Numbers of a stream that are asked for and have not come."""
WINDOW_SPANS = 64
"""The same in ranges."""
BACKOFF_MAX_S = 10.0
"""Between requests to which nothing comes."""
MAX_ASKED = 1_000
"""Ranges of an epoch of which it is remembered that they were journalled as asked for."""
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to a stream's producer, to be sent now."""

    stream: Stream
    missing: tuple[Span3, ...] = ()
    """What is known to exist and has not arrived, lowest first."""
    wanted: tuple[Span3, ...] = ()
    """What of it is to be sent now. Empty: only a status is wanted, since it is not known what is missing."""


class Asking:
    """The requests for one stream."""

    __slots__ = (
        "asked_to", "head", "interval", "look", "next_at", "queued", "ripe", "ripens_at", "young", "young_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.young: Position = (0, 0)
        """What is missing up to here may be asked for from `ripens_at` on."""
        self.young_until = 0.0
        """What is found to be missing before that ripens with the rest."""
        self.ripens_at: float | None = None
        """None: nothing above `ripe` is known."""
        self.ripe: Position = (0, 0)
        """What is missing up to here may be asked for."""
        self.asked_to: Position | None = None
        """Of what is missing up to here everything possible was asked for; None where nothing was."""
        self.head: Position = (0, 0)
        """The lowest number that was asked for and has not come."""
        self.next_at = 0.0
        """When everything is asked for again, if that has not come."""
        self.interval = 0.0
        self.look = False
        """There may be room for more in the window."""
        self.queued = False

    def arrived(self, epoch: int, first: int) -> None:
        """Numbers from `first` on were missing until now."""
        if self.asked_to is not None and (epoch, first) <= self.asked_to:
            self.look = True


class Jitter:
    """Pseudo-random factors around 1, so that groups which lack the same do not ask in step."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & 0xFFFFFFFFFFFFFFFF

    def spread(self, seconds: float) -> float:
        """`seconds`, more or less."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return seconds * (1 - JITTER + 2 * JITTER * (self._state >> 11) / (1 << 53))


# -- what is missing ----------------------------------------------------------------------------------------


def _epochs(state: StreamState) -> list[Reorder]:
    """The epochs of which anything may be missing, in order."""
    current = state.current
    if current is not None and len(state.live) == len(state.draining) + 1:
        return [current]
    return [state.live[epoch] for epoch in sorted(state.live) if current is None or epoch >= current.epoch]


def _end(known: Reorder, later: Reorder | None) -> int:
    """The last number of an epoch that is known to exist."""
    prev = None if later is None else later.prev
    if prev is None or (prev.epoch, prev.incarnation) != (known.epoch, known.incarnation):
        return known.highest
    return max(known.highest, prev.last)


def _holes(known: Reorder, end: int, most: int) -> list[Span]:
    """The lowest `most` missing ranges of an epoch up to `end`, without what was removed."""
    head = known.head()
    if end < head or known.held.run_from(head) == end:
        return []
    found: list[Span] = []
    spans = known.held.missing(head, end, most)
    while spans:
        for span in spans:
            for part in known.settled.missing(*span):
                found += known.removed.missing(*part)
                if len(found) >= most:
                    return found[:most]
        last = spans[-1][1]
        spans = known.held.missing(last + 1, end, most) if last < end and len(spans) == most else []
    return found


def lacking(state: StreamState, most: int = MAX_MISSING) -> list[tuple[Reorder, int, int]]:
    """The lowest `most` ranges that are known to exist and have not arrived: epoch, first and last number."""
    found: list[tuple[Reorder, int, int]] = []
    if state.current is None:
        return found
    epochs = _epochs(state)
    for i, known in enumerate(epochs):
        later = epochs[i + 1] if i + 1 < len(epochs) else None
        for first, last in _holes(known, _end(known, later), most - len(found)):
            found.append((known, first, last))
        if len(found) >= most:
            break
    return found


def _is_in_order(state: StreamState) -> bool:
    """Whether nothing is missing, for the usual case: one epoch, in one piece."""
    known = state.current
    return known is not None and len(state.live) == len(state.draining) + 1 and known.in_order


def _is_puzzled(state: StreamState) -> bool:
    """Whether only a status can tell what is missing."""
    if state.current is None:
        return bool(state.live)
    epochs = _epochs(state)
    if state.heard is not None and any(
        owner.cut and owner.top <= epochs[-1].epoch for owner in state.heard.owners.values()
    ):
        return True  # there are more epochs than were remembered
    return any(link(a, b).kind is LinkKind.UNKNOWN for a, b in pairwise(epochs))


def _top(state: StreamState) -> Position:
    if len(state.live) == 1 or (state.current is not None and len(state.live) == len(state.draining) + 1):
        known = state.current or next(iter(state.live.values()))
    else:
        known = state.live[max(state.live)]
    return known.epoch, max(known.highest, 1)


# -- when to ask --------------------------------------------------------------------------------------------


def watch(core: ConsumerCore, state: StreamState, now: float) -> None:
    """Notice that something is missing, or that nothing is any more. To be called after anything changed."""
    asking = state.asking
    if asking is None and _is_in_order(state):
        return
    if not state.stream.producer or not (lacking(state, 1) or _is_puzzled(state)):
        if asking is not None:
            state.asking = None
            core.ask_queue.pop(state.stream, None)
        return
    if asking is None:
        asking = state.asking = Asking()
        asking.interval = core.rules.nak_delay
    if asking.ripens_at is None:
        top = _top(state)
        if top > asking.ripe:
            asking.young = top
            asking.young_until = now + core.rules.nak_delay / 10
            asking.ripens_at = now + core.jitter.spread(core.rules.nak_delay)
    elif now <= asking.young_until:
        asking.young = max(asking.young, _top(state))
    core.time(state)


def hurry(core: ConsumerCore, state: StreamState, now: float) -> None:
    """A producer is there that was not, a moment ago: ask it soon, whatever the backoff says."""
    asking = state.asking
    if asking is not None and asking.asked_to is not None:
        asking.interval = core.rules.nak_delay
        asking.next_at = min(asking.next_at, now + core.jitter.spread(core.rules.nak_delay))
        core.time(state)


def look(core: ConsumerCore, state: StreamState, now: float, connected: bool) -> float | None:
    """Put a stream into the queue if it is time to ask. Returns when to look again."""
    asking = state.asking
    if asking is None or asking.queued:
        return None
    if not connected:
        return now + 0.5
    if asking.ripens_at is not None and now >= asking.ripens_at:
        asking.ripe, asking.ripens_at = asking.young, None
        asking.look = True
        watch(core, state, now)
        if state.asking is None:
            return None
    if asking.ripe == (0, 0):
        return asking.ripens_at
    if now >= asking.next_at and _has_come_on(state, asking):
        asking.interval = core.rules.nak_delay
        asking.next_at = now + core.jitter.spread(asking.interval)
    due = asking.asked_to is None or now >= asking.next_at
    if due or (asking.look and _has_window(state, asking)):
        asking.queued = True
        core.ask_queue[state.stream] = state
        return asking.ripens_at
    asking.look = False
    at = asking.next_at
    return at if asking.ripens_at is None else min(at, asking.ripens_at)


def _has_come_on(state: StreamState, asking: Asking) -> bool:
    """Whether the lowest number that was asked for has come since the last look. Producers send in order: while it
    does, the rest is on its way."""
    if asking.asked_to is None:
        return False
    found = asking.asked_to
    for known, first, last in lacking(state):
        if (known.epoch, last) >= asking.head:
            found = max(asking.head, (known.epoch, first))
            break
    came, asking.head = found > asking.head, found
    return came


def _has_window(state: StreamState, asking: Asking) -> bool:
    """Whether half of the window is free, and there is more to ask for."""
    spans, count, more = _outstanding(lacking(state), asking)
    return more and 2 * spans <= WINDOW_SPANS and 2 * count <= WINDOW_NUMBERS


def _outstanding(missing: list[tuple[Reorder, int, int]], asking: Asking) -> tuple[int, int, bool]:
    """Of what is missing: ranges and numbers that were asked for, and whether there are others that may be."""
    spans = count = 0
    assert asking.asked_to is not None  # else it is due anyway
    for known, first, last in missing:
        if (known.epoch, first) > asking.asked_to:
            return spans, count, (known.epoch, first) <= asking.ripe
        if (known.epoch, last) > asking.asked_to:
            return spans + 1, count + asking.asked_to[1] - first + 1, asking.asked_to < asking.ripe
        spans += 1
        count += last - first + 1
    return spans, count, False


def ask(core: ConsumerCore, state: StreamState, now: float, only_head: bool) -> Ask | None:
    """The request for what a stream lacks, if there is anything to ask for."""
    asking = state.asking
    if asking is None:
        return None
    asking.queued = asking.look = False
    missing = lacking(state)
    again = asking.asked_to is None or now >= asking.next_at
    wanted = _wanted(state, asking, missing, again, only_head)
    if only_head and not wanted:
        asking.asked_to, asking.next_at = (0, 0), now + core.rules.nak_delay  # until there is room
        return None
    if again:
        asking.asked_to = (0, 0)
        asking.interval = min(max(2 * asking.interval, 0.1), BACKOFF_MAX_S)
        asking.next_at = now + core.jitter.spread(asking.interval)
    if wanted:
        asking.asked_to = wanted[-1][0], wanted[-1][2]
        if again:
            asking.head = wanted[0][:2]
        _journal(core, state, wanted)
    elif not (again and _is_puzzled(state)):
        return None
    return Ask(state.stream, tuple((known.epoch, a, b) for known, a, b in missing), tuple(wanted))


def _wanted(
    state: StreamState, asking: Asking, missing: list[tuple[Reorder, int, int]], again: bool, only_head: bool
) -> list[Span3]:
    """What to ask for: from the lowest on, or beyond what was asked for, as far as the window goes."""
    spans, numbers, beyond = WINDOW_SPANS, WINDOW_NUMBERS, (0, 0)
    if not again and asking.asked_to is not None:
        used, count, _ = _outstanding(missing, asking)
        spans, numbers, beyond = spans - used, numbers - count, asking.asked_to
    wanted: list[Span3] = []
    for known, first, last in missing:
        epoch = known.epoch
        if only_head and (known is not state.current or first > known.cursor):
            break
        if epoch > asking.ripe[0] or len(wanted) >= spans or numbers <= 0:
            break
        low = max(first, beyond[1] + 1) if epoch == beyond[0] else first
        high = min(last, asking.ripe[1]) if epoch == asking.ripe[0] else last
        if epoch < beyond[0] or low > high:
            continue
        offered = (low, high) if state.heard is None else state.heard.offered(known, low, high)
        if offered is not None:
            low, high = offered[0], min(offered[1], offered[0] + numbers - 1)
            wanted.append((epoch, low, high))
            numbers -= high - low + 1
    return wanted


def _journal(core: ConsumerCore, state: StreamState, wanted: list[Span3]) -> None:
    """Note what is asked for, the first time that it is."""
    for epoch, first, last in wanted:
        known = state.live[epoch]
        for new in known.asked.missing(first, last):
            core.note_range("asked", state, epoch, known.incarnation, *new)
        if known.asked.intervals < MAX_ASKED:
            known.asked.add(first, last)
