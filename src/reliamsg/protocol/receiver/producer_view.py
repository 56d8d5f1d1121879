"""What producers have announced about a stream, and for how long it counts.

A stream has one producer, but two processes may own copies of its outbox, each in an epoch of its own; so announcements
are kept for each such *owner*. The latest status of an owner replaces its earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reliamsg.message import Prev
from reliamsg.protocol.announced import Announced, Position
from reliamsg.protocol.ranges import Span
from reliamsg.protocol.receiver.epochs import MAX_REMOVED
from reliamsg.protocol.receiver.gaps import GapClock
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.takeover import Remembered

__all__ = [
    "GRACE_S",
    "JOIN_GRACE_S",
    "MAX_KEPT",
    "MAX_OWNERS",
    "Owner",
    "ProducerView",
    "end_of",
    "keeps_any",
    "latest_of",
    "new_from",
    "start_after",
    "start_of",
    "trimmed",
]

GRACE_S = 0.25
"""Announced messages count as missing only after this time, in seconds: they may be in flight."""
JOIN_GRACE_S = 1.0
"""The same for a stream that the group is about to join: earlier messages may be in flight."""
MAX_OWNERS = 3
"""Owners of a stream's outbox whose announcements are remembered: the latest."""
MAX_INTERVAL_S = 120.0
"""The longest interval between two statuses that a producer may promise."""
MAX_KEPT = 40
"""Epochs of a chain that are remembered: those that matter next. More than are accepted at a time."""


class Owner:
    """One opening of a producer's outbox, as its latest status describes it."""

    __slots__ = ("answered", "cut", "interval", "latest", "received_at")

    def __init__(self, announced: Announced, now: float, cut: bool) -> None:
        self.answered: bool = False
        """It has announced something since this inbox began to read."""
        self.take(announced, now, cut)

    def take(self, announced: Announced, now: float, cut: bool) -> None:
        """Its latest status was received. `cut`: its chain continues beyond what is kept."""
        self.latest: Announced = replace(announced, removed=()) if announced.removed else announced
        self.received_at: float = now
        self.interval: float = min(max(announced.interval, 0.0), MAX_INTERVAL_S)
        self.cut: bool = cut
        self.answered |= not announced.late

    @property
    def top(self) -> int:
        """The last epoch that is remembered."""
        return self.latest.chain[-1][0] if self.latest.chain else 0

    def is_older(self, announced: Announced) -> bool:
        """Whether a status is older than the latest one."""
        latest = self.latest
        return 0 < announced.number < latest.number or announced.lsn < latest.lsn

    def is_fresh(self, now: float) -> bool:
        """Whether its latest status arrived within two intervals."""
        return now - self.received_at <= 2 * self.interval

    def offers(self, known: ReorderBuffer, first: int, last: int) -> Span | None:
        """The numbers among `first` to `last` that it may still hold: from some number on. It may hold those that it
        has not announced yet."""
        for epoch, incarnation, held_from, _ in self.latest.chain:
            if epoch == known.epoch:
                if incarnation != known.incarnation or held_from > last:
                    return None
                return max(first, held_from), last
        return (first, last) if known.epoch > self.top else None

    def holds(self, known: ReorderBuffer, first: int, last: int | None) -> bool:
        """Whether it announces that it holds any of `first` to `last` (None: any later number of the epoch)."""
        for epoch, incarnation, held_from, end in self.latest.chain:
            if epoch == known.epoch:
                low, high = max(first, held_from), end if last is None else min(last, end)
                return (
                    incarnation == known.incarnation and low <= high and not known.removed.covers(low, high)
                )
        return False

    def keeps(self, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether it has to keep all of `first` to `last` until the group has settled them. This includes messages that
        it stored since its latest status."""
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


class ProducerView:
    """Everything that was announced about one stream."""

    __slots__ = ("_silence", "kept", "owners", "proof", "waiting")

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], Owner] = {}
        """By epoch and incarnation."""
        self.waiting: list[tuple[float, Announced]] = []
        """Announcements that take effect later: of each owner the oldest, and the latest since."""
        self.kept: Announced | None = None
        """The first announcement by the latest opening of messages that it keeps for the group, which begins with the
        latest message and has not joined; None if there is none."""
        self._silence = GapClock()
        """For how long none of these arrived."""
        self.proof: Announced | None = None
        """What the producer announced in answer to this group, since it began to read. Kept until the stream is
        joined."""

    def prove(self, announced: Announced) -> None:
        """The producer announced this after the group asked, so it is not a recording."""
        self.proof = announced

    def drop_proof(self) -> None:
        """Earlier announcements do not count any more: the stream is joined, or another inbox may have read
        meanwhile."""
        self.proof = None

    def tick_silence(self, now: float, counts: bool) -> float:
        """Count the time since the last call, if it `counts`; return the seconds for which nothing arrived."""
        return self._silence.tick(now, counts)

    def drop_kept(self) -> None:
        """The group does not wait to join any more."""
        self.kept = None

    @property
    def any(self) -> bool:
        """Whether anything was announced."""
        return bool(self.owners)

    def knows(self, epoch: int, incarnation: int) -> bool:
        """Whether this opening of the outbox is known."""
        return (epoch, incarnation) in self.owners

    def is_fresh(self, now: float) -> bool:
        """Whether any owner's latest status arrived within two of its intervals."""
        return any(owner.is_fresh(now) for owner in self.owners.values())

    @property
    def cuts(self) -> Iterator[int]:
        """The last epoch that is remembered of each chain that continues."""
        return (owner.top for owner in self.owners.values() if owner.cut)

    def take(self, announced: Announced, now: float, cut: bool, signed: bool = False) -> bool:
        """Record an announcement, without effect; False if it is older than what is known. `signed`: nobody else could
        have announced what is known."""
        key = (announced.epoch, announced.incarnation)
        owner = self.owners.get(key)
        if owner is None:
            if len(self.owners) >= MAX_OWNERS:
                del self.owners[min(self.owners, key=lambda other: self.owners[other].received_at)]
            self.owners[key] = Owner(announced, now, cut)
            return True
        # After a silence anything goes: else one made-up status with a high number would end all others.
        if (signed or owner.is_fresh(now)) and owner.is_older(announced):
            return False
        owner.take(announced, now, cut)
        return True

    def put_off(self, announced: Announced, until: float) -> None:
        """Have an announcement take effect at `until`. Only the oldest and the latest of each owner wait: the latest
        includes those between. One status may arrive in several parts."""
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
        """The announcement that takes effect now, if any; call until there is none."""
        if self.waiting and self.waiting[0][0] <= now:
            return self.waiting.pop(0)[1]
        return None

    def offered(self, known: ReorderBuffer, first: int, last: int) -> Span | None:
        """The missing numbers that are worth requesting."""
        if not self.owners:
            return first, last
        parts = [owner.offers(known, first, last) for owner in self.owners.values()]
        return min((part for part in parts if part is not None), default=None)

    def may_hold(self, known: ReorderBuffer, first: int, last: int, now: float) -> bool:
        """Whether a producer that was heard recently announces that it holds any of these numbers, or has not announced
        them yet."""
        owners = self.owners.values()
        return any(owner.is_fresh(now) and owner.offers(known, first, last) is not None for owner in owners)

    def holds(self, known: ReorderBuffer, first: int, last: int | None, now: float) -> bool:
        """Whether a producer that was heard recently announces that it holds any of these numbers."""
        return any(owner.is_fresh(now) and owner.holds(known, first, last) for owner in self.owners.values())

    def keeps(self, epoch: int, incarnation: int, first: int, last: int, ahead: int, now: float) -> bool:
        """Whether the stream's producer, heard recently, has to keep these for the group. Only its latest opening
        counts, and must be as late as `ahead`, the latest known epoch: messages that an earlier one held may be lost or
        replaced."""
        if not self.owners or max(self.owners)[0] < ahead:
            return False
        owner = self.owners[max(self.owners)]
        return owner.is_fresh(now) and owner.keeps(epoch, incarnation, first, last)


def trimmed(announced: Announced, floor: int | None, remembered: Remembered | None) -> tuple[Announced, bool]:
    """The part of a chain that matters next to a stream: from the epoch before `floor`, the current one, or from where
    it may begin (None). Returns whether the chain continues beyond that."""
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
    """The end of everything that exists of the stream."""
    epoch, _, _, last = announced.chain[-1] if announced.chain else (0, 0, 1, 0)
    return epoch, last + 1


def latest_of(announced: Announced) -> tuple[int, int]:
    """The latest epoch that is not empty, or else the epoch of the opening, and its incarnation."""
    if not announced.chain:
        return announced.epoch, announced.incarnation
    epoch, incarnation, _, _ = announced.chain[-1]
    return epoch, incarnation


def keeps_any(announced: Announced) -> bool:
    """Whether the producer keeps any messages of the stream until the group has settled them."""
    since = announced.since
    if since is None or not announced.consumed:
        return False
    return any(first <= last and (epoch, last) >= since for epoch, _, first, last in announced.chain)


def start_of(announced: Announced, remembered: Remembered | None) -> tuple[Position, int, Prev | None] | None:
    """Where a group without a position starts: with the oldest message that is held, but not after the position from
    which the producer counts it, or where another inbox of the group was.

    Returns the position, the incarnation of its epoch, and the epoch before; None if nothing is held and the producer
    does not count the group, or has published nothing since it does.
    """
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
    """Where a group continues that another inbox of it left, in the form of :func:`start_of`; None if that is beyond
    everything that the producer knows."""
    position, before = remembered.settled_in(announced.chain), None
    for epoch, incarnation, _, last in announced.chain:
        if epoch >= position[0]:
            return max(position, (epoch, 1)), incarnation, before
        before = Prev(epoch, incarnation, last)
    return None


def new_from(announced: Announced, remembered: Remembered | None, latest: bool) -> Position:
    """The position from which a stream is new to a group without one, according to its producer: from where the group
    is counted; otherwise from the oldest message that is held, or, with `latest`, behind everything that exists."""
    if latest:
        return end_of(announced) if announced.since is None else announced.since
    start = start_of(announced, remembered)
    return end_of(announced) if start is None else start[0]
