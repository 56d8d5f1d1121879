"""The fate of every message of one epoch: at its producer, and at one group.

The numbers are cut wherever rows say something else about them, on either side, so that the same is said about all
numbers of a piece. That decides the fate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from reliamsg.audit.context import Context, GroupContext, ProducerContext
from reliamsg.audit.kinds import LOSSES
from reliamsg.audit.numbers import DECLINED
from reliamsg.audit.order import Bounds, Position
from reliamsg.audit.spans import cut_at, stretches

__all__ = [
    "PRODUCER", "Fate", "GroupView", "StreamView", "Tag", "fates_of_group", "fates_of_producer", "unsettled",
]  # fmt: skip

PRODUCER = ""
"""Used as the group in the producer's own account."""
Tag = tuple[str, str]
"""What a row says about its numbers, and at which site; the site is empty if it does not matter."""
_REPORTED: Tag = ("reported", "")


@dataclass(slots=True)
class Fate:
    """A piece of one epoch."""

    first: int
    last: int
    fate: str
    why: str = ""
    """The known reason of an open fate."""
    place: str = ""
    hop: str = ""
    sites: tuple[str, ...] = ()
    accounted: bool = False
    """Enqueued in the time of the audit."""
    handed: bool = False
    pending: bool = False
    late: bool = False
    dead: bool = False
    """Among the dead letters, and not acknowledged since."""
    unverifiable: bool = False
    """Its content can't be verified, which is no fault."""
    claims: tuple[str, ...] = ()
    """Further kinds of findings about it."""


@dataclass(slots=True)
class StreamView:
    """One epoch of a stream, for all groups."""

    context: Context
    producer: ProducerContext | None
    epoch: int
    ranges: list[tuple[int, int, Tag]]
    """What its producer's journals say."""
    contested: bool
    parked: set[str]
    epochs: set[int]
    """The epochs of the stream that its producer entered."""


@dataclass(slots=True)
class Accounts:
    """For which parts of a stream the journals of a group account."""

    own: list[tuple[Position, Position]] = field(default_factory=list)
    """For each journal, from where it joined or began, to after everything that it dealt with."""
    open_ends: list[Position] = field(default_factory=list)
    """The same ends of those that may have continued; (0, 0) if they have nothing of the stream."""

    def lacks(self, place: Position) -> bool:
        """Whether a journal may have continued to this place, and no other one accounts for it."""
        return any(end <= place for end in self.open_ends) and not any(
            begin <= place < end for begin, end in self.own
        )

    def edges(self) -> Iterator[Position]:
        """All places at which something begins or ends."""
        for own in self.own:
            yield from own
        yield from self.open_ends


@dataclass(slots=True)
class GroupView:
    """One epoch of a stream at a group."""

    context: GroupContext | None
    named: bool
    """Whether the group consumes the topic."""
    bounds: Bounds | None
    """None if it never met the stream."""
    ranges: list[tuple[int, int, Tag]]
    """What its own journals say, and what its producer's journals say about this group only."""
    unseen: list[tuple[Position, Position]] = field(default_factory=list)
    """Half-open ranges that were announced to an inbox or its producer as settled."""
    existed: list[tuple[Position, Position]] = field(default_factory=list)
    """From the same positions, to before the end of all messages at that time."""
    met: bool = True
    """Whether the successor of an inbox that is lost with its journal knew of the stream."""
    accounts: Accounts = field(default_factory=Accounts)
    """The parts of the stream for which its journals account."""
    unmet: bool = False
    """Whether messages of the epoch may have been lost with the outbox's disk, and no inbox that had messages of it met
    an opening afterwards."""


def fates_of_producer(view: StreamView) -> Iterator[Fate]:
    """The producer's own account."""
    for first, last, tags in stretches(view.ranges):
        has = _names(tags)
        if has <= {"held"}:
            continue
        after = "after" in has
        accounted = "enqueued" in has and not after
        pending = accounted and "published" not in has and "removed" not in has
        if pending:
            yield Fate(first, last, "pending", _why_pending(tags, view.parked), accounted=True, pending=True)
        elif after:
            yield Fate(first, last, "after")
        elif accounted:
            yield Fate(first, last, "removed" if "removed" in has else "enqueued", accounted=True)
        else:
            yield Fate(first, last, "strange")


def fates_of_group(view: StreamView, group: GroupView) -> Iterator[Fate]:
    """The account of one group."""
    every = [*view.ranges, *group.ranges]
    names = {tag[0] for _, _, tag in every}
    judge = _Judge(view, group, names)
    begun = end = 0
    for first, last, tags in cut_at(stretches(every), judge.edges()):
        piece = judge.piece(first, last, tags)
        if piece.rest:
            begun = begun if end + 1 == first and begun else first
            end = last
        yield judge.fate(piece, begun)


def unsettled(
    view: StreamView, group: GroupView, reported: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What a group can't have settled of the ranges that it reported as settled."""
    every = [*view.ranges, *group.ranges, *((first, last, _REPORTED) for first, last in reported)]
    judge = _Judge(view, group, {tag[0] for _, _, tag in every})
    for first, last, tags in cut_at(stretches(every), judge.edges()):
        if _REPORTED in tags and not judge.may_be_settled(judge.piece(first, last, tags)):
            yield first, last


@dataclass(slots=True)
class _Piece:
    """Numbers of which the journals say the same, and the answers to the questions that decide their fate."""

    first: int
    last: int
    tags: frozenset[Tag]
    has: frozenset[str]
    """The names in `tags`."""
    accounted: bool
    """Enqueued in the time of the audit."""
    original: bool
    """Enqueued at any time."""
    gap: bool
    """Declared, alone or with its epoch."""
    before: bool
    """Before the group joined."""
    aside: bool
    """In quarantine, or discarded there, and not received regularly."""
    held_up: bool
    """In, or behind, a gap that holds the stream."""
    pending: bool
    settled_unseen: bool
    """Settled, certainly or possibly, by an inbox whose journal lacks it."""
    early: bool = False
    """Missing, and the group is owed nothing from before it joined."""
    excused: bool = False
    """Missing, and the group did not count any more."""
    taken_back: bool = False
    """Missing, and removed by its producer."""
    rest: bool = False
    """Missing without any of these reasons."""


class _Judge:
    """Judges the pieces of one epoch at one group."""

    def __init__(self, view: StreamView, group: GroupView, names: set[str]) -> None:
        self._view, self._group = view, group
        self._epoch = epoch = view.epoch
        bounds = group.bounds or Bounds()
        self._joined, self._itself = bounds.joined, bounds.joined_itself
        self._reached, self._lowest, self._held_at = bounds.reached, bounds.lowest, bounds.held_at
        self._joined_unheard = bounds.joined_unheard
        self._leapt = any(low < epoch < high for low, high in bounds.leaps)
        client = group.context
        self._sound = client is not None and client.sound
        self._finished = client is not None and client.finished
        self._latest = client is not None and client.latest
        self._lacks_rows = client is not None and client.lacks_rows
        self._replaced = client is not None and bool(client.replaced)
        producer = view.producer
        self._has_all = producer is not None and producer.has_all_of(epoch)
        self._continues = producer is not None and producer.continues and producer.may_follow(epoch)
        cuts = producer.cuts if producer is not None else []
        self._cut = group.unmet or any(cut.touches(epoch) for cut in cuts)
        self._may_lack = any(epoch <= cut.low for cut in cuts)
        self._has_original = not names.isdisjoint(("enqueued", "after"))
        joined = self._joined
        inside = joined is not None and joined[0] == epoch and joined[1] > 1
        self._unverifiable = (
            view.contested or producer is None or "before_join" in names or "excused" in names or inside
        )

    def edges(self) -> Iterator[int]:
        """Numbers of the epoch at which a piece must begin."""
        places = [place for each in (*self._group.unseen, *self._group.existed) for place in each]
        for place in (*places, *self._group.accounts.edges(), self._joined, self._held_at):
            if place is not None and place[0] == self._epoch:
                yield max(place[1], 1)

    def piece(self, first: int, last: int, tags: frozenset[Tag]) -> _Piece:
        """Answer the questions that decide a fate."""
        has = _names(tags)
        place, joined = (self._epoch, first), self._joined
        after = "after" in has
        accounted = "enqueued" in has and not after and self._group.named
        unseen = [each for each in self._group.unseen if each[0] <= place < each[1]]
        piece = _Piece(
            first, last, tags, has, accounted,
            original="enqueued" in has or after,
            gap="declared" in has or self._leapt,
            before=joined is None or place < joined,
            aside=not has.isdisjoint(("quarantined", "discarded")) and "received" not in has,
            held_up=self._held_at is not None and self._held_at <= place,
            pending=accounted and "published" not in has and "removed" not in has,
            settled_unseen=bool(unseen) or "settled_unseen" in has,
        )  # fmt: skip
        if not accounted or piece.gap or piece.pending or not has.isdisjoint(("handed", "dead")):
            return piece
        # Messages settled before the group joined, according to the available journals, were settled by an inbox that
        # is lost with its journal.
        gone = any(self._itself is None or high < self._itself for _, high in unseen)
        unmet = joined is None and piece.aside
        owed = "counted" in has and not self._latest
        if not owed and ("before_join" in has or piece.before) and not unmet and not gone:
            return replace(piece, early=True)
        if "excused" in has and "counted" not in has:
            return replace(piece, excused=True)
        if "removed" in has and not gone:
            return replace(piece, taken_back=True)
        return replace(piece, rest=True)

    def fate(self, piece: _Piece, begun: int) -> Fate:
        """The fate of a piece. `begun`: where the range of missing messages begins that it belongs to."""
        has = piece.has
        tail = self._is_tail(begun)
        stranger = not piece.original and not self._view.contested and self._view.producer is not None
        beyond = "after" in has or (self._continues and not piece.original)
        stray_gap = (
            stranger and "declared" in has and self._has_all and self._has_original and "moved" not in has
        )
        fate = self._fate(piece, tail, stranger, beyond, stray_gap)
        found = Fate(
            piece.first, piece.last, fate, accounted=piece.accounted,
            handed="handed" in has and not beyond,
            pending=piece.pending,
            late="late" in has and "handed" not in has and not beyond,
            dead=piece.accounted and "dead" in has and "acknowledged" not in has,
            unverifiable=self._unverifiable,
            claims=tuple(self._claims(piece, beyond, stray_gap)),
        )  # fmt: skip
        if fate == "pending":
            found.why = _why_pending(piece.tags, self._view.parked)
        elif fate == "undelivered":
            found.why = (
                "in quarantine" if piece.aside
                else "behind a gap that holds its stream" if piece.held_up else ""
            )  # fmt: skip
        elif fate in LOSSES:
            found.hop = _hop(has)
            found.sites = tuple(sorted({site for name, site in piece.tags if name == found.hop and site}))
            if fate == "lost":
                prefix = self._lowest is None or (self._epoch, piece.last) < self._lowest
                found.place = "tail" if tail else "prefix" if prefix else "middle"
        return found

    def _fate(self, piece: _Piece, tail: bool, stranger: bool, beyond: bool, stray_gap: bool) -> str:
        has = piece.has
        if piece.accounted and "handed" in has:
            return "delivered"
        if piece.accounted and piece.gap:
            return "removed" if "removed" in has else "declared_gap"
        if piece.accounted and "dead" in has:
            return "dead"
        if piece.pending:
            return "pending"
        if piece.early:
            return "never_joined" if self._joined is None and self._sound else "before_join"
        if piece.excused:
            return "excused"
        if piece.taken_back:
            return "removed"
        if piece.rest:
            return self._fate_of_missing(piece, tail)
        if beyond:
            return "after"
        if stranger and "handed" in has:
            proven = self._has_all and not self._cut and not ("moved" in has and self._may_lack)
            return "phantom" if proven else "unproven"
        if stray_gap:
            return "unproven_gap" if self._cut else "phantom_gap"
        return "strange"

    def _fate_of_missing(self, piece: _Piece, tail: bool) -> str:
        has = piece.has
        if piece.aside and "discarded" in has:
            return "discarded"
        if piece.aside or (piece.held_up and "received" in has):
            return "undelivered"
        if tail and self._lacks_rows and piece.settled_unseen:
            return "settled_unseen"
        at_the_end = self._view.context.drained and self._finished and not self._lacks_rows
        certain = self._sound and (not tail or at_the_end)
        kept = "held" in has and "consumed" not in has
        if not certain or (tail and kept):
            return "undelivered"
        place = (self._epoch, piece.first)
        existed = any(low <= place < high for low, high in self._group.existed)
        perhaps = existed or (self._replaced and not self._group.met)
        if piece.settled_unseen or (perhaps if tail else self._group.accounts.lacks(place)):
            return "settled_unseen"
        return "joined_unheard" if piece.before and self._joined_unheard else "lost"

    def _is_tail(self, begun: int) -> bool:
        """Whether the group has not reached it. It has passed an epoch below its current one only if it also passed a
        later one of the same history: if an outbox is lost while clocks are set back, the next epoch is lower."""
        reached = self._reached
        if reached is None or (self._epoch, begun) > reached:
            return True
        if self._epoch >= reached[0]:
            return False
        return not any(self._epoch < other <= reached[0] for other in self._view.epochs)

    def _claims(self, piece: _Piece, beyond: bool, stray_gap: bool) -> Iterator[str]:
        has = piece.has
        if "handed" in has and "acknowledged" not in has and "dead" not in has and not beyond and self._sound:
            yield "unacknowledged"
        if stray_gap:
            yield "unproven_gap" if self._cut else "phantom_gap"
        if "enqueued" not in has or "after" in has or self._view.contested:
            return
        if "removed" not in has:
            if "said_removed" in has and not self._may_lack:
                yield "false_removal"
            if "perhaps_removed" in has or ("said_removed" in has and self._may_lack):
                yield "unproven_removal"
        if "settled_here" in has and not self.may_be_settled(piece):
            yield "consumed_unsettled"

    def may_be_settled(self, piece: _Piece) -> bool:
        """Whether the group may have reported it as settled: it settled it, it joined behind it, or an inbox whose
        journal lacks it settled it or may have settled it."""
        skipped = "before_join" in piece.has or (self._joined is not None and piece.before)
        settled = not piece.has.isdisjoint(("acknowledged", "dead")) or piece.gap
        unseen = piece.settled_unseen or self._group.accounts.lacks((self._epoch, piece.first))
        return skipped or settled or unseen


@lru_cache(maxsize=1_000)
def _names(tags: frozenset[Tag]) -> frozenset[str]:
    return frozenset(name for name, _ in tags)


def _why_pending(tags: Iterable[Tag], parked: set[str]) -> str:
    """The responses of sites that did not confirm it, or where its stream was parked."""
    every = set(tags)
    declined = {
        f"{name} by {site}"
        for name, site in every
        if name in DECLINED and site and ("confirmed", site) not in every
    }
    if declined:
        return ", ".join(sorted(declined))
    return f"parked at {', '.join(sorted(parked))}" if parked else ""


def _hop(has: frozenset[str]) -> str:
    """The last hop that an undelivered range reached."""
    if "received" in has:
        return "buffered" if "buffered" in has else "received"
    return "confirmed" if "confirmed" in has else "enqueued"
