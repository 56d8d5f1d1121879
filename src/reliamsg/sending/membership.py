"""Which groups must get what, how far they are, and which batches all of them are done with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from reliamsg.config import check_name
from reliamsg.core.announced import Span3
from reliamsg.core.group_progress import GroupTable
from reliamsg.core.ranges import RangeSet, Span
from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.message import Gap, Stream
from reliamsg.sending.book import Book, Page
from reliamsg.sending.proving import advice
from reliamsg.sending.status import GroupStatus
from reliamsg.store.journal import Entry
from reliamsg.store.members import Member, Position
from reliamsg.store.outbox import Outbox, StreamRow
from reliamsg.store.rewriting import Taken
from reliamsg.store.rows import Row
from reliamsg.transport.base import Binding
from reliamsg.wire.limits import MAX_NAMED_GROUPS

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine

__all__ = ["Membership"]

WALK_ROWS = 500
"""Batches looked at in one go when a group is further than it was."""
START: Position = (0, 1)


def _moved(position: Position, epochs: Mapping[int, int]) -> Position:
    return epochs.get(position[0], position[0]), position[1]


class Membership:
    """One producer's groups. The table, the book and `consumed` are guarded by the engine's lock; methods that use the
    outbox are the writer's."""

    def __init__(self, engine: Engine, outbox: Outbox, consumed: bool) -> None:
        self.table = GroupTable()
        self.book = Book()
        self.consumed: RangeSet | None = RangeSet() if consumed else None
        """With ``release="consumed"``: rows that are held though every named group is done with them. Otherwise
        None."""
        self._engine = engine
        self._outbox = outbox
        self._walks: dict[int, int] = {}
        """By stream id: the lowest row that some named group is not done with, where there is one."""
        self._moved: set[int] = set()
        """Streams whose slowest group may be further than `_walks` says."""
        self.progressed = False
        """Whether :meth:`take_progress` has something."""
        self._told: dict[tuple[Stream, str], Position] = {}
        """Up to where a group's progress is in the journal."""

    # -- opening ----------------------------------------------------------------------------------------------

    def open(
        self, groups: Mapping[str, Sequence[str]], held: Iterable[Span], entries: list[Entry]
    ) -> tuple[dict[str, list[str]], dict[tuple[int, str], Member | None]]:
        """Name `groups`, by topic. Returns all that are named now, and what has to be stored, with `entries`. `held`:
        the rows that the outbox holds.

        What the outbox names and `groups` does not is named no longer, except with ``release="consumed"``, where that
        has to be said (:meth:`remove_group`), since messages are kept for it.
        """
        outbox = self._outbox
        stored, removed = outbox.members(), outbox.removed()
        outbox.make_streams((topic, 0) for topic in groups)
        for row in outbox.streams.values():
            page = self.book.open(row, outbox.chain(row.id), removed.get(row.id, ()))
            self.table.extend(row.stream, page.tail)
            for group, member in stored.get(row.id, {}).items():
                self._name(row.stream, group, member)
        changes = self._changes(groups, entries)
        named: dict[str, list[str]] = {topic: [] for topic in groups}
        for stream in self.book.pages:
            if found := self.table.named(stream):
                named[stream.topic] = sorted(found)
        self._find_unconsumed(held)
        return named, changes

    def _changes(
        self, groups: Mapping[str, Sequence[str]], entries: list[Entry]
    ) -> dict[tuple[int, str], Member | None]:
        changes: dict[tuple[int, str], Member | None] = {}
        for stream, page in self.book.pages.items():
            named, wanted = self.table.named(stream), groups.get(stream.topic, ())
            for group in wanted:
                if group not in named:
                    changes[page.row.id, group] = self._add(page, group, entries)
            for group in set(named) - set(wanted):
                if self.consumed is None:
                    changes[page.row.id, group] = None
                    self._drop(stream, group, entries)
                else:
                    self._engine.log.warning(
                        "producer %s: the outbox still names group %s for topic %s and keeps messages for it, though"
                        " it was opened without; remove_group() ends that",
                        self._engine.producer_id, group, stream.topic,
                    )  # fmt: skip
        return changes

    def _find_unconsumed(self, held: Iterable[Span]) -> None:
        consumed = self.consumed
        if consumed is None:
            return
        for first, last in held:
            consumed.add(first, last)
        for stream, page in self.book.pages.items():
            slowest = self.table.slowest(stream)
            low = None if slowest is None else self._outbox.unsettled(page.row.id, slowest.position)
            if low is not None:
                self._walks[page.row.id] = low
                for number in self._outbox.stream_ids(page.row.id, low):
                    consumed.remove(number, number)

    def _name(self, stream: Stream, group: str, member: Member) -> None:
        self.table.name(stream, group, member.since, member.position)
        self._told[stream, group] = max(member.since, member.position)

    def _add(self, page: Page, group: str, entries: list[Entry]) -> Member:
        """Count a group from the stream's next message on."""
        since = (self._outbox.epoch, page.row.next_seq)
        member = Member(since, since)
        self._name(page.row.stream, group, member)
        if not self._outbox.fresh:  # else that it was opened with them says it
            entries.append(self._entry("group_added", page.row.stream, group, since))
        return member

    def _drop(self, stream: Stream, group: str, entries: list[Entry]) -> None:
        member = self.table.find(stream, group)
        if member is None or not self.table.drop(stream, group):
            return
        self._told.pop((stream, group), None)
        entry = self._entry("group_removed", stream, group, member.since)
        entry.detail = {"position": list(member.position)}
        entries.append(entry)

    # -- changes, by the writer ---------------------------------------------------------------------------------

    def add_group(self, topic: str, group: str) -> None:
        """See :meth:`reliamsg.sending.producer.Producer.add_group`."""
        check_name("topic", topic)
        check_name("group", group)
        row = self._outbox.stream(topic, 0)
        with self._engine.lock:
            page = self.book.open(row)
            self.table.extend(row.stream, page.tail)
            named = self.table.named(row.stream)
        if group in named:
            return
        if len(named) >= MAX_NAMED_GROUPS:
            raise ConfigError(f"topic {topic!r} has {len(named)} groups; more can't be named")
        entries: list[Entry] = []
        since = (self._outbox.epoch, row.next_seq)
        entries.append(self._entry("group_added", row.stream, group, since))
        self._store({(row.id, group): Member(since, since)}, entries)
        with self._engine.lock:
            self._name(row.stream, group, Member(since, since))
            for link in self._engine.links.values():
                link.review([row.stream])
        self._bind()

    def remove_group(self, topic: str, group: str) -> None:
        """See :meth:`reliamsg.sending.producer.Producer.remove_group`."""
        row = self._outbox.streams.get((topic, 0))
        with self._engine.lock:
            member = None if row is None else self.table.find(row.stream, group)
        if row is None or member is None or not member.named:
            raise ConfigError(f"group {group!r} is not named for topic {topic!r}")
        entry = self._entry("group_removed", row.stream, group, member.since)
        entry.detail = {"position": list(member.position)}
        # What it was done with may have left already: the journal says why first.
        before = self._told.get((row.stream, group), START)
        consumed = self._consumed(row.stream, group, before, member.position)
        self._store({(row.id, group): None}, [*consumed, entry])
        with self._engine.lock:
            self.table.drop(row.stream, group)
            self._told.pop((row.stream, group), None)
            self._moved.add(row.id)
            self._engine.proving.forget((topic, 0, group))
            for link in self._engine.links.values():
                link.review([row.stream])
            self._engine.outcomes.changed()
        self._bind()

    def _store(self, changes: Mapping[tuple[int, str], Member | None], entries: Iterable[Entry]) -> None:
        """What else waits for the journal comes first: some of it may say what a group was done with that is dropped
        now, and whose messages may leave from then on."""
        engine = self._engine
        with engine.lock:
            waiting = engine.journal_buffer.take()
        try:
            self._outbox.name_groups(changes, [*waiting, *entries], engine.wall_us(), engine.mono_us())
        except ReliamsgError:
            with engine.lock:
                engine.journal_buffer.put_back(waiting)
            raise
        engine.probe("named")

    def _entry(self, kind: str, stream: Stream, group: str, since: Position) -> Entry:
        return Entry(kind, stream, since[0], 0, since[1], since[1], group=group)

    def _bind(self) -> None:
        """Have the queues of all named groups declared."""
        bindings = self.bindings()
        for link in self._engine.links.values():
            link.transport.bind(bindings)

    def bindings(self) -> list[Binding]:
        """Who must get what, for transports."""
        return [
            Binding(stream.topic, stream.partition, group)
            for stream in self.book.pages
            for group in self.table.named(stream)
        ]

    # -- as messages come and groups go on, with the lock held ----------------------------------------------------

    def stored(self, rows: Sequence[Row]) -> None:
        """More batches were committed."""
        for row in rows:
            page = self.book.by_id[row.stream_id]
            if (row.epoch, row.last) >= page.tail:
                page.extend(row.epoch, row.incarnation, row.last)
            self.table.extend(row.stream, page.tail)
            if self.consumed is None:
                continue
            if self.table.slowest(row.stream) is None:
                self.consumed.add(row.id, row.id)
            else:
                self._walks.setdefault(row.stream_id, row.id)

    def opened(self, row: StreamRow) -> None:
        """There is a stream, perhaps a new one."""
        self.book.open(row)

    def hear(
        self,
        stream: Stream,
        group: str,
        position: Position,
        entered: tuple[int, int],
        now: float,
        high_water: int,
    ) -> bool:
        """A group told how far it is; returns whether that is news."""
        if not self.table.on_report(stream, group, position, entered, now, high_water):
            return False
        self.progressed = True
        self._moved.add(self.book.pages[stream].row.id)
        self._engine.outcomes.changed()
        return True

    def renumbered(self, epochs: Mapping[int, int]) -> None:
        """Epochs have other numbers. Nobody but this producer knows of the old ones."""
        for stream, page in self.book.pages.items():
            page.renumber(epochs)
            self.table.extend(stream, page.tail)
            for member in self.table.members(stream):
                member.since = _moved(member.since, epochs)
                member.position = _moved(member.position, epochs)
        self._told = {key: _moved(at, epochs) for key, at in self._told.items()}

    def left(self, rows: Iterable[int]) -> None:
        """These rows are not held any more."""
        if self.consumed is not None:
            for number in rows:
                self.consumed.remove(number, number)

    def look_again(self, taken: Taken) -> None:
        """Rows were removed, cut, or added out of order: what their groups are done with is found anew."""
        self._moved.update(
            row.stream_id for row in (*taken.gone, *(row for row, _ in taken.cut), *taken.added)
        )

    def may_leave(self, row: int) -> bool:
        """Whether the groups are done with a row that is held."""
        return self.consumed is None or row in self.consumed

    def behind(self, stream: Stream, epoch: int, last: int) -> list[str]:
        """The named groups that are not past a message, and count it."""
        return [
            member.group
            for member in self.table.members(stream)
            if member.named and member.position <= (epoch, last) and member.since <= (epoch, last)
        ]

    def unsettled(self, stream: Stream, epoch: int, spans: Iterable[Span]) -> list[Span]:
        """Those numbers of an epoch that some named group has not settled."""
        slowest = self.table.slowest(stream)
        if slowest is None:
            return []
        position = slowest.position
        low = position[1] if position[0] == epoch else 1 if position[0] < epoch else None
        return [] if low is None else [(max(low, first), last) for first, last in spans if last >= low]

    # -- the writer's share ---------------------------------------------------------------------------------------

    @property
    def moved(self) -> bool:
        """Whether :meth:`walk` has something to do."""
        return bool(self._moved)

    def walk(self) -> None:
        """Find the batches that all groups are done with now. A bounded number; the rest another time."""
        if self.consumed is None:
            self._moved.clear()
            return
        engine, looked = self._engine, 0
        while self._moved and looked < WALK_ROWS:
            with engine.lock:
                stream_id = self._moved.pop()
                first = self._walks.get(stream_id)
                slowest = self.table.slowest(self.book.by_id[stream_id].row.stream)
            if first is None:
                continue
            rows = self._outbox.rows_of_stream(stream_id, first, WALK_ROWS)
            looked += len(rows)
            with engine.lock:
                done = self._settle(stream_id, rows, None if slowest is None else slowest.position)
                if done and len(rows) == WALK_ROWS:
                    self._moved.add(stream_id)

    def _settle(self, stream_id: int, rows: Sequence[Row], position: Position | None) -> bool:
        """Whether all of `rows`, a stream's next ones, are behind `position`."""
        assert self.consumed is not None
        published = self._engine.core.confirms.published
        for row in rows:
            if position is not None and position <= (row.epoch, row.last):
                self._walks[stream_id] = row.id
                return False
            self.consumed.add(row.id, row.id)
            if row.id in published:
                self._engine.admission.release(row.size)
        if len(rows) == WALK_ROWS:
            self._walks[stream_id] = rows[-1].id + 1
        else:
            del self._walks[stream_id]
        return True

    def take_progress(self) -> tuple[dict[tuple[int, str], Position], list[Entry]]:
        """Positions to store, by stream id and group, and what the journal says of them. With the lock held."""
        positions: dict[tuple[int, str], Position] = {}
        entries: list[Entry] = []
        self.progressed = False
        for (stream, group), position in self.table.take_moved().items():
            page = self.book.pages[stream]
            positions[page.row.id, group] = position
            before = self._told.get((stream, group), START)
            self._told[stream, group] = max(before, position)
            entries += self._consumed(stream, group, before, position)
        return positions, entries

    def _consumed(self, stream: Stream, group: str, before: Position, position: Position) -> list[Entry]:
        """What the journal says of a group that came from one position to another."""
        return [
            Entry("consumed", stream, link.epoch, link.incarnation, first, last, group=group)
            for link, first, last in self.book.pages[stream].between(before, position)
        ]

    def put_back(self, positions: Mapping[tuple[int, str], Position]) -> None:
        """These could not be stored; what the journal says of them is kept by the caller."""
        self.progressed |= bool(positions)
        self.table.put_back(
            {(self.book.by_id[number].row.stream, group): at for (number, group), at in positions.items()}
        )

    # -- for people, with the lock held -----------------------------------------------------------------------------

    def status(self, now: float) -> tuple[GroupStatus, ...]:
        """Every group that is named, or was heard."""
        return tuple(
            GroupStatus(
                member.group, stream.topic, stream.partition, member.named, member.since, member.position,
                page.count_from(member.position),
                None if member.reported_at is None else max(0.0, now - member.reported_at),
                None if member.held_up_by is None else Gap(stream, *member.held_up_by, "missing"),
            )
            for stream, page in self.book.pages.items()
            for member in self.table.members(stream)
        )  # fmt: skip

    def unacknowledged(self) -> int:
        """How many messages are kept for some group."""
        if self.consumed is None:
            return 0
        slowest = {stream: self.table.slowest(stream) for stream in self.book.pages}
        return sum(
            self.book.pages[stream].count_from(member.position)
            for stream, member in slowest.items()
            if member is not None
        )

    def lagging(self) -> str:
        """Which groups the outbox is waiting for, the slowest first; empty where it waits for none."""
        return "; ".join(part for part in (self._behind(), *self._unseen()) if part)

    def _unseen(self) -> Iterator[str]:
        """What to do about named groups that are not proven at sites; of three topics at most."""
        links = self._engine.links
        told = (
            advice({name: link.unseen(stream) for name, link in links.items()}, stream.topic)
            for stream in self.book.pages
        )
        return islice(filter(None, told), 3)

    def _behind(self) -> str:
        if self.consumed is None:
            return ""
        behind = [
            (
                sum(last - first + 1 for _, first, last in page.between(member.position, page.tail)),
                member,
                stream,
            )
            for stream, member in self.table.lagging()
            for page in [self.book.pages[stream]]
        ]
        behind.sort(key=lambda each: -each[0])
        return ", ".join(
            f"group {member.group} is {count} messages behind on {stream.topic}"
            + (" and was never heard" if member.reported_at is None else _held_up(member.held_up_by))
            for count, member, stream in behind[:3]
        )


def _held_up(gap: Span3 | None) -> str:
    if gap is None:
        return ""
    epoch, first, last = gap
    return f", held up by a gap: it lacks {first} to {last} of epoch {epoch}"
