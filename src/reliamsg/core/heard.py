"""What producers said about a stream, and for how long it counts.

A stream has one producer, but two processes may own copies of its outbox, each in an epoch of its own; so what was
said is kept for each such *owner*. The newest status of an owner replaces its earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reliamsg.core.announced import Announced, Position
from reliamsg.core.epochs import MAX_REMOVED
from reliamsg.core.gaps import GapClock
from reliamsg.core.ranges import Span
from reliamsg.core.reorder import Reorder
from reliamsg.core.takeover import Remembered
from reliamsg.message import Prev

__all__ = [
    "GRACE_S",
    "JOIN_GRACE_S",
    "MAX_KEPT",
    "MAX_OWNERS",
    "Heard",
    "Owner",
    "end_of",
    "keeps_any",
    "latest_of",
    "new_from",
    "start_after",
    "start_of",
    "trimmed",
]

GRACE_S = 0.25
"""What a status tells of counts as missing so much later: it may be on its way."""
JOIN_GRACE_S = 1.0
"""The same for a stream that the group is about to join: something from before may be on its way."""
MAX_OWNERS = 3
"""Owners of a stream's outbox of which it is remembered what they said: those heard last."""
MAX_INTERVAL_S = 120.0
"""A producer that promises its next status later than that is not believed."""
MAX_KEPT = 40
"""Epochs of a chain that are remembered: those that matter next. More than are taken in at a time."""


class Owner:
    """One opening of a producer's outbox, as its latest status has it."""

    __slots__ = ("answered", "cut", "heard_at", "interval", "latest")

    def __init__(self, announced: Announced, now: float, cut: bool) -> None:
        self.answered = False
        """It has said something since this inbox began to read."""
        self.take(announced, now, cut)

    def take(self, announced: Announced, now: float, cut: bool) -> None:
        """Its newest status was heard. `cut`: its chain goes on."""
        self.latest = replace(announced, removed=()) if announced.removed else announced
        self.heard_at = now
        self.interval = min(max(announced.interval, 0.0), MAX_INTERVAL_S)
        self.cut = cut
        self.answered |= not announced.late

    @property
    def top(self) -> int:
        """The last epoch that is remembered."""
        return self.latest.chain[-1][0] if self.latest.chain else 0

    def is_older(self, announced: Announced) -> bool:
        """Whether a status is older than the newest one."""
        latest = self.latest
        return 0 < announced.number < latest.number or announced.lsn < latest.lsn

    def is_fresh(self, now: float) -> bool:
        """Whether it was heard within two intervals."""
        return now - self.heard_at <= 2 * self.interval

    def offers(self, known: Reorder, first: int, last: int) -> Span | None:
        """What of `first` to `last` it may still hold: from some number on. What it has not spoken of yet, it may."""
        for epoch, incarnation, held_from, _ in self.latest.chain:
            if epoch == known.epoch:
                if incarnation != known.incarnation or held_from > last:
                    return None
                return max(first, held_from), last
        return (first, last) if known.epoch > self.top else None

    def holds(self, known: Reorder, first: int, last: int | None) -> bool:
        """Whether it says that it holds any of `first` to `last` (None: any later number of the epoch)."""
        for epoch, incarnation, held_from, end in self.latest.chain:
            if epoch == known.epoch:
                low, high = max(first, held_from), end if last is None else min(last, end)
                return (
                    incarnation == known.incarnation and low <= high and not known.removed.covers(low, high)
                )
        return False

    def keeps(self, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether it has to keep all of `first` to `last` until the group has settled them. What it stored since its
        newest status is kept as well."""
        latest = self.latest
        if not (latest.consumed and self.answered) or self.cut:
            return False
        if latest.since is None or (epoch, first) < latest.since:
            return False
        own = epoch == latest.epoch
        for at, its, held_from, end in latest.chain:
            if at == epoch:
                return its == incarnation and held_from <= first and (own or last <= end)
        return own and incarnation == latest.incarnation


class Heard:
    """All that was said about one stream."""

    __slots__ = ("_silence", "kept", "owners", "proof", "waiting")

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], Owner] = {}
        """By epoch and incarnation."""
        self.waiting: list[tuple[float, Announced]] = []
        """What takes effect at a time to come: of each owner the oldest, and the newest since."""
        self.kept: Announced | None = None
        """What the newest opening said first of messages that it keeps for the group, which begins with the latest and
        has not joined; None where nothing waits for that."""
        self._silence = GapClock()
        """For how long nothing of these came."""
        self.proof: Announced | None = None
        """What the producer said in answer to this group, since it began to read; kept while the stream is not
        joined."""

    def prove(self, announced: Announced) -> None:
        """The producer said this after the group asked: it is no recording."""
        if self.proof is None:
            self.proof = announced

    def drop_proof(self) -> None:
        """The stream is joined, or another inbox may have read meanwhile: what was said before does not count."""
        self.proof = None

    def tick_silence(self, now: float, counts: bool) -> float:
        """Count the time since the last call, if it `counts`; returns for how long nothing came, in seconds."""
        return self._silence.tick(now, counts)

    def drop_kept(self) -> None:
        """Nothing waits for the group to join."""
        self.kept = None

    @property
    def any(self) -> bool:
        """Whether anything was said."""
        return bool(self.owners)

    def was_told_by(self, epoch: int, incarnation: int) -> bool:
        """Whether this opening of the outbox is known."""
        return (epoch, incarnation) in self.owners

    def is_fresh(self, now: float) -> bool:
        """Whether any owner was heard within two of its intervals."""
        return any(owner.is_fresh(now) for owner in self.owners.values())

    @property
    def cuts(self) -> Iterator[int]:
        """The last epoch that is remembered of each chain that goes on."""
        return (owner.top for owner in self.owners.values() if owner.cut)

    def take(self, announced: Announced, now: float, cut: bool, signed: bool = False) -> bool:
        """Note who said what; False where that is older than what is known. It takes no effect here. `signed`: nobody
        else could have said what is known."""
        key = (announced.epoch, announced.incarnation)
        owner = self.owners.get(key)
        if owner is None:
            if len(self.owners) >= MAX_OWNERS:
                del self.owners[min(self.owners, key=lambda other: self.owners[other].heard_at)]
            self.owners[key] = Owner(announced, now, cut)
            return True
        # After a silence anything goes: else one made-up status with a high number would end all others.
        if (signed or owner.is_fresh(now)) and owner.is_older(announced):
            return False
        owner.take(announced, now, cut)
        return True

    def put_off(self, announced: Announced, until: float) -> None:
        """Have what was said take effect at `until`. Of each owner's statuses only the oldest and the newest wait: what
        the one left out said, the newest says as well. One status may come in several parts."""
        key = (announced.epoch, announced.incarnation)
        own = [i for i, (_, other) in enumerate(self.waiting) if (other.epoch, other.incarnation) == key]
        if own:
            at, latest = self.waiting[own[-1]]
            if replace(latest, removed=announced.removed) == announced:
                removed = dict.fromkeys((*latest.removed, *announced.removed))
                self.waiting[own[-1]] = at, replace(latest, removed=tuple(removed)[:MAX_REMOVED])
                return
        if len(own) >= 2:
            del self.waiting[own[-1]]
        elif len(self.waiting) >= 2 * MAX_OWNERS:
            self.waiting.pop()
        self.waiting.append((until, announced))

    def note_kept(self, announced: Announced) -> None:
        """A producer keeps messages for the group until it has joined."""
        if self.kept is None:
            self._silence = GapClock()
        if self.kept is None or announced.epoch > self.kept.epoch:
            self.kept = announced

    def due(self, now: float) -> Announced | None:
        """What takes effect now, if anything; ask until there is nothing."""
        if self.waiting and self.waiting[0][0] <= now:
            return self.waiting.pop(0)[1]
        return None

    def offered(self, known: Reorder, first: int, last: int) -> Span | None:
        """What of missing numbers it makes sense to ask for."""
        if not self.owners:
            return first, last
        parts = [owner.offers(known, first, last) for owner in self.owners.values()]
        return min((part for part in parts if part is not None), default=None)

    def may_hold(self, known: Reorder, first: int, last: int, now: float) -> bool:
        """Whether a producer that was heard lately says that it holds any of these numbers, or has yet to speak of
        them."""
        owners = self.owners.values()
        return any(owner.is_fresh(now) and owner.offers(known, first, last) is not None for owner in owners)

    def holds(self, known: Reorder, first: int, last: int | None, now: float) -> bool:
        """Whether a producer that was heard lately says that it holds any of these numbers."""
        return any(owner.is_fresh(now) and owner.holds(known, first, last) for owner in self.owners.values())

    def keeps(self, epoch: int, incarnation: int, first: int, last: int, ahead: int, now: float) -> bool:
        """Whether the stream's producer, heard lately, has to keep these for the group. Only its latest opening counts,
        and that must be as late as `ahead`, the latest epoch of which anything is known: what an earlier one held may
        have been lost or replaced since."""
        if not self.owners or max(self.owners)[0] < ahead:
            return False
        owner = self.owners[max(self.owners)]
        return owner.is_fresh(now) and owner.keeps(epoch, incarnation, first, last)


def trimmed(announced: Announced, floor: int | None, remembered: Remembered | None) -> tuple[Announced, bool]:
    """What of a chain matters next to a stream: from the epoch before `floor`, the one that it is in, or from where it
    may begin (None). Returns whether the chain goes on behind that."""
    chain = announced.chain
    if len(chain) <= MAX_KEPT:
        return announced, False
    if floor is None:
        start = start_of(announced, remembered)
        floor = chain[-1][0] if start is None else start[0][0]
    at = next((i for i, entry in enumerate(chain) if entry[0] >= floor), len(chain) - 1)
    at = max(0, at - 1)
    return replace(announced, chain=chain[at : at + MAX_KEPT]), len(chain) > at + MAX_KEPT


def end_of(announced: Announced) -> Position:
    """Behind all that exists of the stream."""
    epoch, _, _, last = announced.chain[-1] if announced.chain else (0, 0, 1, 0)
    return epoch, last + 1


def latest_of(announced: Announced) -> tuple[int, int]:
    """The latest epoch of which anything exists, or the opening's own where there is none, and its incarnation."""
    if not announced.chain:
        return announced.epoch, announced.incarnation
    epoch, incarnation, _, _ = announced.chain[-1]
    return epoch, incarnation


def keeps_any(announced: Announced) -> bool:
    """Whether the producer keeps anything of the stream until the group has settled it."""
    since = announced.since
    if since is None or not announced.consumed:
        return False
    return any(first <= last and (epoch, last) >= since for epoch, _, first, last in announced.chain)


def start_of(announced: Announced, remembered: Remembered | None) -> tuple[Position, int, Prev | None] | None:
    """Where a group that knows nothing of the stream starts: with the oldest that is offered, and at the latest where
    the producer counts it from, or where another inbox of the group had come to. Returns the position, its epoch's
    incarnation, and the epoch before; None where nothing is held and the producer does not count the group, or has
    published nothing since it does."""
    since, before = announced.since, None
    if since is not None and remembered is not None:
        since = max(since, remembered.settled_in(announced.chain))  # what is gone from before that is no loss
    for epoch, incarnation, first, last in announced.chain:
        offered = first if first <= last else None
        counted = None
        if since is not None and epoch >= since[0]:
            counted = since[1] if epoch == since[0] else 1
        starts = [number for number in (offered, counted) if number is not None]
        if starts:
            return (epoch, min(starts)), incarnation, before
        before = Prev(epoch, incarnation, last)
    return None


def start_after(announced: Announced, remembered: Remembered) -> tuple[Position, int, Prev | None] | None:
    """Where a group goes on that another inbox of it left, as :func:`start_of` says it; None where that is beyond all
    that the producer knows."""
    position, before = remembered.settled_in(announced.chain), None
    for epoch, incarnation, _, last in announced.chain:
        if epoch >= position[0]:
            return max(position, (epoch, 1)), incarnation, before
        before = Prev(epoch, incarnation, last)
    return None


def new_from(announced: Announced, remembered: Remembered | None, latest: bool) -> Position:
    """From where on a stream is new to a group without a position, as its producer answers it: from where the group is
    counted; else from the oldest that is held, or, with `latest`, behind all that exists."""
    if latest:
        return end_of(announced) if announced.since is None else announced.since
    start = start_of(announced, remembered)
    return end_of(announced) if start is None else start[0]
