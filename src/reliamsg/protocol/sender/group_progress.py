"""How far the groups of each stream are, as their producer knows it.

*Named* groups are configured at the producer. They count from a position on (`since`), and with ``release="consumed"``
a message stays until each of them is past it. *Unnamed* groups have reported their state without being configured. They
only delay the moment when a stream falls silent; they are forgotten when they stop reporting, and are limited in
number. All values only increase: a repeated or overtaken state changes nothing.

Not thread-safe. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from reliamsg.message import Stream
from reliamsg.protocol.announced import Position, Span3

__all__ = [
    "FORGET_UNNAMED_S",
    "MAX_UNNAMED",
    "MAX_UNNAMED_PER_STREAM",
    "GroupTable",
    "Member",
    "before_moved",
]

START: Position = (0, 1)
"""Before every message of every epoch."""

MAX_UNNAMED_PER_STREAM = 100
"""The most unnamed groups that are remembered per stream."""
MAX_UNNAMED = 20_000
"""The same for all streams together."""
MAX_GAPS = 100
"""The most gaps holding up groups that the outbox's file records."""
FORGET_UNNAMED_S = 600.0
"""An unnamed group that is silent this long is forgotten."""


@dataclass(slots=True)
class Member:
    """One group of one stream."""

    group: str
    named: bool
    since: Position
    """It counts from here on."""
    position: Position
    """Everything before is settled there, or does not count."""
    entered: tuple[int, int] = (0, 0)
    """The highest epoch that it entered, and its incarnation."""
    reported_at: float | None = None
    """Its latest report; None if there was none since this producer was opened."""
    reported: Position = START
    """The highest position that it reported itself."""
    delivered: Position = START
    """Everything published by its latest reports and before this position may have been delivered."""
    answered_at: float = float("-inf")
    """When it was last sent its own position."""
    nonces: tuple[bytes, ...] = ()
    """The nonces which that answered."""
    journal: tuple[int, int] | None = None
    """The opening of an inbox, and the row of its journal by which the position was settled; None if not known."""
    gap: Span3 | None = None
    """Epoch, first and last number of the gap that held it up at its latest report."""

    @property
    def held_up_by(self) -> Span3 | None:
        """The gap that holds it up: everything before it is settled, and its messages have not arrived."""
        return self.gap if self.gap is not None and self.gap[0::2] >= self.position else None

    @property
    def reached(self) -> tuple[Position, Position] | None:
        """What a new inbox of the group must know about the previous one; None if the group never reported."""
        if max(self.reported, self.delivered) == START:
            return None
        return self.reported, max(self.reported, self.delivered)


def _moved(position: Position, moves: Mapping[int, tuple[int, int]]) -> Position:
    """Where a group counts from after epochs were given new numbers, at most behind the last message. `moves` as for
    :meth:`GroupTable.renumber`."""
    epoch, last = moves.get(position[0], (position[0], position[1]))
    return epoch, min(position[1], last + 1)


def before_moved(position: Position, moves: Mapping[int, tuple[int, int]]) -> Position:
    """How far a group is after epochs were given new numbers: it has settled nothing under these. `moves` as for
    :meth:`GroupTable.renumber`."""
    return (min(new for new, _ in moves.values()), 1) if position[0] in moves else position


class GroupTable:
    """The groups of all of a producer's streams."""

    def __init__(self) -> None:
        self._members: dict[Stream, dict[str, Member]] = {}
        self._tails: dict[Stream, Position] = {}
        self._moved: dict[tuple[Stream, str], Position] = {}
        self._unnamed = 0
        self.gaps_changed: bool = False
        """Since :meth:`take_gaps`."""
        self._named: Counter[str] = Counter()
        """By group, the number of streams that it is named for."""

    # -- streams and settings -------------------------------------------------------------------------------

    def extend(self, stream: Stream, tail: Position) -> None:
        """The stream exists, and `tail` follows its last message (START for none). Tails only increase."""
        self._members.setdefault(stream, {})
        if tail > self._tails.get(stream, START):
            self._tails[stream] = tail

    def tail(self, stream: Stream) -> Position:
        """The position after the last message."""
        return self._tails.get(stream, START)

    def name(self, stream: Stream, group: str, since: Position, position: Position = START) -> None:
        """The group counts from `since` on. `position`: its position as stored when the producer was opened.

        If the group is named already, only its position may increase. An unnamed group becomes named, and keeps what it
        has acknowledged.
        """
        members = self._members.setdefault(stream, {})
        known = members.get(group)
        if known is None:
            self._named[group] += 1
            known = members[group] = Member(group, True, since, max(since, position))
            if position > since:
                known.reported = position
            return
        if not known.named:
            known.named, known.since = True, since
            self._named[group] += 1
            self._unnamed -= 1
        known.position = max(known.position, since, position)

    def drop(self, stream: Stream, group: str) -> bool:
        """The group does not count any more; False if it was not named. If it has reported, it still reads the stream:
        it is unnamed from now on, and the tail is announced until it has it or falls silent."""
        members = self._members.get(stream, {})
        member = members.get(group)
        if member is None or not member.named:
            return False
        del members[group]
        self._named[group] -= 1
        self._moved.pop((stream, group), None)
        if member.reported_at is not None and self._make_room(members, member.reported_at):
            members[group] = replace(member, named=False, since=START, position=member.reported)
            self._unnamed += 1
        return True

    def renumber(self, stream: Stream, moves: Mapping[int, tuple[int, int]]) -> None:
        """Epochs have new numbers. `moves`: the new number and the last message, by the old number.

        If the outbox is an older copy, a group may have settled messages under their old numbers. They are sent again
        under the new ones, so they count as not settled (P11).
        """
        for member in self._members.get(stream, {}).values():
            member.since = _moved(member.since, moves)
            member.position = max(member.since, before_moved(member.position, moves))
            if (stream, member.group) in self._moved:
                self._moved[stream, member.group] = member.position

    # -- what groups report ---------------------------------------------------------------------------------

    def on_report(
        self,
        stream: Stream,
        group: str,
        position: Position,
        entered: tuple[int, int],
        now: float,
        high_water: int = 0,
        journal: tuple[int, int] | None = None,
    ) -> bool:
        """A group reported its state; returns whether its position increased. `high_water`: lower numbers of the
        entered epoch may have been delivered; 0 if that is not known. `journal`: the opening of its inbox, and the row
        of its journal by which it had settled everything before the position; None if that is not known.

        A position beyond the tail can't belong to this history and is ignored. So are streams that this producer does
        not have, and new groups beyond the limits.
        """
        members = self._members.get(stream)
        if members is None:
            return False
        member = members.get(group)
        if member is None:
            if not self._make_room(members, now):
                return False
            member = members[group] = Member(group, False, START, START)
            self._unnamed += 1
        member.reported_at = now
        member.entered = max(member.entered, entered)
        tail = self.tail(stream)
        if high_water:
            member.delivered = max(member.delivered, min((entered[0], high_water), tail))
        if position <= tail:
            member.reported = max(member.reported, position)
        if position <= member.position or position > tail:
            return False
        member.position, member.journal = position, journal
        if member.named:
            self._moved[stream, group] = position
        return True

    def on_missing(self, stream: Stream, group: str, missing: Sequence[Span3]) -> None:
        """A group reported what it is missing, lowest first: if everything before that is settled, it is held up."""
        member = self.find(stream, group)
        if member is None:
            return
        lowest = missing[0] if missing else None
        gap = lowest if lowest is not None and lowest[:2] <= member.position else None
        if gap != member.gap:
            member.gap = gap
            self.gaps_changed |= member.named

    def on_answer(self, stream: Stream, group: str, nonces: Sequence[bytes], now: float) -> None:
        """The group is sent its position, in answer to `nonces`."""
        member = self.find(stream, group)
        if member is not None:
            member.answered_at, member.nonces = now, tuple(nonces)

    def take_gaps(self) -> list[tuple[Stream, str, Span3]]:
        """The gaps that hold named groups up, as far as the limit allows. ``gaps_changed`` tells whether they may
        differ from those that were taken last."""
        self.gaps_changed = False
        held_up = (
            (stream, member.group, member.held_up_by)
            for stream, members in self._members.items()
            for member in members.values()
            if member.named
        )
        some = ((stream, group, gap) for stream, group, gap in held_up if gap is not None)
        return list(islice(some, MAX_GAPS))

    def _make_room(self, members: dict[str, Member], now: float) -> bool:
        """Whether one more unnamed group may be remembered, once silent ones are forgotten."""
        silent = [
            member.group
            for member in members.values()
            if not member.named
            and member.reported_at is not None
            and now - member.reported_at >= FORGET_UNNAMED_S
        ]
        for group in silent:
            del members[group]
        self._unnamed -= len(silent)
        others = sum(not member.named for member in members.values())
        return others < MAX_UNNAMED_PER_STREAM and self._unnamed < MAX_UNNAMED

    def forget(self, now: float) -> int:
        """Forget unnamed groups that are silent; returns how many. To be called periodically: it visits all streams."""
        before = self._unnamed
        for members in self._members.values():
            if any(not member.named for member in members.values()):
                self._make_room(members, now)
        return before - self._unnamed

    def take_moved(self) -> dict[tuple[Stream, str], Position]:
        """Positions of named groups that increased since the last call. The caller must store them, or :meth:`put_back`
        those that it could not store."""
        moved, self._moved = self._moved, {}
        return moved

    def put_back(self, moved: dict[tuple[Stream, str], Position]) -> None:
        """These positions were not stored."""
        for (stream, group), position in moved.items():
            if self.is_named(group, stream):
                self._moved[stream, group] = max(position, self._moved.get((stream, group), START))

    # -- queries --------------------------------------------------------------------------------------------

    def find(self, stream: Stream, group: str) -> Member | None:
        """A group of a stream."""
        return self._members.get(stream, {}).get(group)

    def is_named(self, group: str, stream: Stream | None = None) -> bool:
        """Whether the group is named for a stream, or for any."""
        if stream is None:
            return self._named[group] > 0
        member = self.find(stream, group)
        return member is not None and member.named

    def members(self, stream: Stream) -> list[Member]:
        """All groups of a stream by name, named ones first."""
        found = self._members.get(stream, {}).values()
        return sorted(found, key=lambda member: (not member.named, member.group))

    def named(self, stream: Stream) -> dict[str, Position]:
        """The named groups of a stream, and the positions from which they count."""
        return {m.group: m.since for m in self._members.get(stream, {}).values() if m.named}

    def slowest(self, stream: Stream) -> Member | None:
        """The named group that is furthest behind; None if none is named. Everything before its position may be
        deleted."""
        named = (member for member in self._members.get(stream, {}).values() if member.named)
        return min(named, key=lambda member: (member.position, member.group), default=None)

    def settled(self, stream: Stream) -> bool:
        """Whether all groups, named or not, have acknowledged the tail. False without any group: nobody is known to
        have the messages."""
        members = self._members.get(stream)
        if not members:
            return False
        tail = self.tail(stream)
        return all(member.position >= tail for member in members.values())

    def lagging(self) -> Iterator[tuple[Stream, Member]]:
        """Named groups that have not acknowledged their stream's tail."""
        for stream, members in self._members.items():
            tail = self.tail(stream)
            for member in members.values():
                if member.named and member.position < tail:
                    yield stream, member
