"""What the groups of each stream have acknowledged, as a producer knows it.

*Named* groups are the producer's own setting. They count from a position on (`since`), and with
``release="consumed"`` a message stays until every one of them is past it. *Heard* groups are those that told their
state without being named; they only count for whether anything still has to be announced, are forgotten when they fall
silent, and are bounded in number. All values only ever rise: a state that is repeated or overtaken changes nothing.

Not thread-safe. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from reliamsg.core.announced import Span3
from reliamsg.message import Stream

__all__ = ["FORGET_HEARD_S", "MAX_HEARD", "MAX_HEARD_PER_STREAM", "GroupTable", "Member", "Position"]

Position = tuple[int, int]
"""Epoch and next number; everything before is settled."""

START: Position = (0, 1)
"""Before every message of every epoch."""

MAX_HEARD_PER_STREAM = 100
"""Groups of a stream that are remembered though nobody named them."""
MAX_HEARD = 20_000
"""The same, of all streams together."""
MAX_LACKING = 100
"""Gaps that hold groups up, of which the outbox's file says so."""
FORGET_HEARD_S = 600.0
"""A heard group that says nothing for so long is forgotten."""


@dataclass(slots=True)
class Member:
    """One group of one stream."""

    group: str
    named: bool
    since: Position
    """From where on it counts."""
    position: Position
    """Everything before is settled there, or does not count."""
    entered: tuple[int, int] = (0, 0)
    """The highest epoch that it entered, and its incarnation."""
    heard: float | None = None
    """When it told its state last; None for never since this producer was opened."""
    told: Position = START
    """The highest position that it told itself."""
    handed_out: Position = START
    """Of what was published when it told that, everything before may have been handed out."""
    answered: float = float("-inf")
    """When it was told last how far it was."""
    nonces: tuple[bytes, ...] = ()
    """What that answered."""
    lacks: Span3 | None = None
    """Epoch, first and last number of the gap that held it up when it told its state last."""

    def answer(self, now: float, nonces: tuple[bytes, ...]) -> None:
        """It was told how far it is, in answer to `nonces`."""
        self.answered, self.nonces = now, nonces

    def renumber(self, epochs: Mapping[int, int]) -> None:
        """Epochs have new numbers."""
        self.since = epochs.get(self.since[0], self.since[0]), self.since[1]
        self.position = epochs.get(self.position[0], self.position[0]), self.position[1]

    @property
    def held_up_by(self) -> Span3 | None:
        """The gap that holds it up: everything before is settled, and these have not arrived."""
        return self.lacks if self.lacks is not None and self.lacks[0::2] >= self.position else None

    @property
    def reached(self) -> tuple[Position, Position] | None:
        """What a new inbox of the group has to know of the one before; None for a group that told nothing."""
        if max(self.told, self.handed_out) == START:
            return None
        return self.told, max(self.told, self.handed_out)


class GroupTable:
    """The groups of all of a producer's streams."""

    def __init__(self) -> None:
        self._members: dict[Stream, dict[str, Member]] = {}
        self._tails: dict[Stream, Position] = {}
        self._moved: dict[tuple[Stream, str], Position] = {}
        self._heard = 0
        self.lacking_changed = False
        """Since :meth:`take_lacking`."""
        self._named: Counter[str] = Counter()
        """For how many streams each group is named."""

    # -- streams and settings -------------------------------------------------------------------------------

    def extend(self, stream: Stream, tail: Position) -> None:
        """The stream exists, and `tail` is behind its last message (START for none). Tails only rise."""
        self._members.setdefault(stream, {})
        if tail > self._tails.get(stream, START):
            self._tails[stream] = tail

    def tail(self, stream: Stream) -> Position:
        """The position behind the last message."""
        return self._tails.get(stream, START)

    def name(self, stream: Stream, group: str, since: Position, position: Position = START) -> None:
        """The group counts from `since` on. `position`: what was stored of it when the producer was opened.

        For one that is named already this changes nothing but a position that is higher now; one that was only heard
        becomes named, and what it acknowledged before counts.
        """
        members = self._members.setdefault(stream, {})
        known = members.get(group)
        if known is None:
            self._named[group] += 1
            known = members[group] = Member(group, True, since, max(since, position))
            if position > since:
                known.told = position
            return
        if not known.named:
            known.named, known.since = True, since
            self._named[group] += 1
            self._heard -= 1
        known.position = max(known.position, since, position)

    def drop(self, stream: Stream, group: str) -> bool:
        """The group does not count any more; False where it was not named. One that was heard is one that was only
        heard from now on: it still reads, and is told of the tail until it has it or falls silent."""
        members = self._members.get(stream, {})
        member = members.get(group)
        if member is None or not member.named:
            return False
        del members[group]
        self._named[group] -= 1
        self._moved.pop((stream, group), None)
        if member.heard is not None and self._make_room(members, member.heard):
            members[group] = replace(member, named=False, since=START, position=member.told)
            self._heard += 1
        return True

    # -- what groups say ------------------------------------------------------------------------------------

    def hear(
        self,
        stream: Stream,
        group: str,
        position: Position,
        entered: tuple[int, int],
        now: float,
        high_water: int = 0,
    ) -> bool:
        """A group told its state; returns whether its position rose. `high_water`: numbers of the entered epoch below
        it may have been handed out; 0 where that is not known.

        A position beyond the tail can't be of this history, and is not believed. Streams that this producer does not
        have are ignored, and so are new groups beyond the bounds.
        """
        members = self._members.get(stream)
        if members is None:
            return False
        member = members.get(group)
        if member is None:
            if not self._make_room(members, now):
                return False
            member = members[group] = Member(group, False, START, START)
            self._heard += 1
        member.heard = now
        member.entered = max(member.entered, entered)
        tail = self.tail(stream)
        if high_water:
            member.handed_out = max(member.handed_out, min((entered[0], high_water), tail))
        if position <= tail:
            member.told = max(member.told, position)
        if position <= member.position or position > tail:
            return False
        member.position = position
        if member.named:
            self._moved[stream, group] = position
        return True

    def lacks(self, stream: Stream, group: str, missing: Sequence[Span3]) -> None:
        """What a group said that it lacks, lowest first: where nothing is unsettled before that, it is held up."""
        member = self.find(stream, group)
        if member is None:
            return
        lowest = missing[0] if missing else None
        lacks = lowest if lowest is not None and lowest[:2] <= member.position else None
        if lacks != member.lacks:
            member.lacks = lacks
            self.lacking_changed |= member.named

    def take_lacking(self) -> list[tuple[Stream, str, Span3]]:
        """The gaps that hold named groups up, some of them at most. ``lacking_changed`` says whether they differ from
        those that were taken last."""
        self.lacking_changed = False
        held_up = (
            (stream, member.group, member.held_up_by)
            for stream, members in self._members.items()
            for member in members.values()
            if member.named
        )
        some = ((stream, group, lacks) for stream, group, lacks in held_up if lacks is not None)
        return list(islice(some, MAX_LACKING))

    def _make_room(self, members: dict[str, Member], now: float) -> bool:
        """Whether one more group may be remembered; those that are silent make room."""
        silent = [
            member.group
            for member in members.values()
            if not member.named and member.heard is not None and now - member.heard >= FORGET_HEARD_S
        ]
        for group in silent:
            del members[group]
        self._heard -= len(silent)
        others = sum(not member.named for member in members.values())
        return others < MAX_HEARD_PER_STREAM and self._heard < MAX_HEARD

    def forget(self, now: float) -> int:
        """Forget heard groups that are silent; returns how many. To be called now and then: it looks at all streams."""
        before = self._heard
        for members in self._members.values():
            if any(not member.named for member in members.values()):
                self._make_room(members, now)
        return before - self._heard

    def take_moved(self) -> dict[tuple[Stream, str], Position]:
        """Positions of named groups that rose since this was called last. The caller must store them, or
        :meth:`put_back` what it could not store."""
        moved, self._moved = self._moved, {}
        return moved

    def put_back(self, moved: dict[tuple[Stream, str], Position]) -> None:
        """These positions were not stored."""
        for (stream, group), position in moved.items():
            if self.is_named(group, stream):
                self._moved[stream, group] = max(position, self._moved.get((stream, group), START))

    # -- questions ------------------------------------------------------------------------------------------

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
        """All groups of a stream, named ones first, in the order of their names."""
        found = self._members.get(stream, {}).values()
        return sorted(found, key=lambda member: (not member.named, member.group))

    def named(self, stream: Stream) -> dict[str, Position]:
        """The named groups of a stream, and since when they count."""
        return {m.group: m.since for m in self._members.get(stream, {}).values() if m.named}

    def slowest(self, stream: Stream) -> Member | None:
        """The named group that is furthest behind; None where none is named. Everything before its position may
        leave."""
        named = (member for member in self._members.get(stream, {}).values() if member.named)
        return min(named, key=lambda member: (member.position, member.group), default=None)

    def settled(self, stream: Stream) -> bool:
        """Whether all groups, named or heard, have acknowledged the tail. With no group at all it is not settled:
        nobody is known to have the messages."""
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
