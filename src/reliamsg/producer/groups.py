"""Which groups are named for which topics, how far they are, and which batches all of them are done with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from reliamsg.config import check_name
from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.logs import Log
from reliamsg.message import Gap, Stream
from reliamsg.producer.admission import Admission
from reliamsg.producer.presence import advice
from reliamsg.producer.state import Shared
from reliamsg.producer.status import GroupStatus
from reliamsg.producer.streams import StreamInfo
from reliamsg.producer.watchers import Watchers
from reliamsg.protocol.announced import Span3
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.sender.group_progress import Member as GroupMember
from reliamsg.protocol.sender.group_progress import before_moved
from reliamsg.store.journal import Entry
from reliamsg.store.members import Member, Position
from reliamsg.store.outbox import Outbox
from reliamsg.store.rewriting import Taken
from reliamsg.store.rows import Row
from reliamsg.wire.control import StreamState
from reliamsg.wire.limits import MAX_NAMED_GROUPS

__all__ = ["Groups"]

log: Log = Log("reliamsg.producer")

WALK_ROWS = 500
"""Batches examined at a time when a group has come further."""
START: Position = (0, 1)


class Groups:
    """One producer's groups. Attributes are guarded by the lock; methods that use the outbox are the writer's."""

    def __init__(self, shared: Shared, outbox: Outbox, admission: Admission, watchers: Watchers) -> None:
        self.consumed: RangeSet | None = RangeSet() if shared.settings.release == "consumed" else None
        """With ``release="consumed"``: rows that are held though every named group is done with them. Otherwise
        None."""
        self.moved: set[int] = set()
        """Streams whose slowest group may be further than `_walks` says: :meth:`walk` has something to do."""
        self.progressed: bool = False
        """Whether :meth:`take_progress` has something."""
        self._shared, self._outbox, self._admission = shared, outbox, admission
        self._watchers = watchers
        self._streams, self._table = shared.streams, shared.table
        self._walks: dict[int, int] = {}
        """By stream id: the lowest row that some named group is not done with, if there is one."""
        self._journalled: dict[tuple[Stream, str], Position] = {}
        """Up to where a group's progress is in the journal."""

    # -- opening ----------------------------------------------------------------------------------------------

    def open(
        self, groups: Mapping[str, Sequence[str]], held: Iterable[Span], entries: list[Entry]
    ) -> tuple[dict[str, list[str]], dict[tuple[int, str], Member | None]]:
        """Name `groups`, by topic. Returns all that are named now, and what has to be stored, with `entries`. `held`:
        the rows that the outbox holds.

        A group that the outbox names and `groups` does not is no longer named, except with ``release="consumed"``:
        messages are kept for it until :meth:`remove`.
        """
        outbox = self._outbox
        stored, removed = outbox.members(), outbox.removed()
        outbox.make_streams((topic, 0) for topic in groups)
        for row in outbox.streams.values():
            info = self._streams.open(row, outbox.chain(row.id), removed.get(row.id, ()))
            self._table.extend(row.stream, info.tail)
            for group, member in stored.get(row.id, {}).items():
                self._name(row.stream, group, member)
        changes = self._changes(groups, entries)
        named: dict[str, list[str]] = {topic: [] for topic in groups}
        for stream in self._streams.by_stream:
            if found := self._table.named(stream):
                named[stream.topic] = sorted(found)
        self._find_unconsumed(held)
        return named, changes

    def _changes(
        self, groups: Mapping[str, Sequence[str]], entries: list[Entry]
    ) -> dict[tuple[int, str], Member | None]:
        changes: dict[tuple[int, str], Member | None] = {}
        for stream, info in self._streams.by_stream.items():
            named, wanted = self._table.named(stream), groups.get(stream.topic, ())
            for group in wanted:
                if group not in named:
                    changes[info.row.id, group] = self._add(info, group, entries)
            for group in set(named) - set(wanted):
                if self.consumed is None:
                    changes[info.row.id, group] = None
                    self._drop(stream, group, entries)
                else:
                    log.warning(
                        "producer.group_not_named",
                        "producer %(producer)s: the outbox still names group %(group)s for topic %(topic)s and keeps"
                        " messages for it, though it was opened without; remove_group() ends that",
                        producer=self._shared.producer_id, group=group, topic=stream.topic, partition=stream.partition,
                    )  # fmt: skip
        return changes

    def _find_unconsumed(self, held: Iterable[Span]) -> None:
        if self.consumed is None:
            return
        for first, last in held:
            self.consumed.add(first, last)
        for stream in self._streams.by_stream:
            self._find_unconsumed_of(stream)

    def _find_unconsumed_of(self, stream: Stream, stay: RangeSet | None = None) -> None:
        """Find the rows of a stream that a group is not done with. `stay`: these rows are as they were."""
        assert self.consumed is not None
        with self._shared.lock:
            stream_id, slowest = self._streams.by_stream[stream].row.id, self._table.slowest(stream)
        low = None if slowest is None else self._outbox.unsettled(stream_id, slowest.position)
        if low is not None:
            unsettled = self._outbox.stream_ids(stream_id, low)
            with self._shared.lock:
                self._walks[stream_id] = low
                for number in unsettled:
                    if stay is None or number not in stay:
                        self.consumed.remove(number, number)

    def _name(self, stream: Stream, group: str, member: Member) -> None:
        self._table.name(stream, group, member.since, member.position)
        self._journalled[stream, group] = max(member.since, member.position)

    def _add(self, info: StreamInfo, group: str, entries: list[Entry]) -> Member:
        """Count a group from the stream's next message on."""
        since = (self._outbox.epoch, info.row.next_seq)
        member = Member(since, since)
        self._name(info.row.stream, group, member)
        if not self._outbox.fresh:  # else the ``opened`` row says it
            entries.append(_entry("group_added", info.row.stream, group, since))
        return member

    def _drop(self, stream: Stream, group: str, entries: list[Entry]) -> None:
        member = self._table.find(stream, group)
        if member is None or not self._table.drop(stream, group):
            return
        self._journalled.pop((stream, group), None)
        entries.append(_group_removed(stream, member))

    # -- changes, by the writer ---------------------------------------------------------------------------------

    def add(self, topic: str, group: str) -> bool:
        """Name one more group for a topic; returns whether it was not named before."""
        check_name("topic", topic)
        check_name("group", group)
        row = self._outbox.stream(topic, 0)
        with self._shared.lock:
            info = self._streams.open(row)
            self._table.extend(row.stream, info.tail)
            named = self._table.named(row.stream)
        if group in named:
            return False
        if len(named) >= MAX_NAMED_GROUPS:
            raise ConfigError(f"topic {topic!r} has {len(named)} groups; more can't be named")
        since = (self._outbox.epoch, row.next_seq)
        member = Member(since, since)
        self._store({(row.id, group): member}, [_entry("group_added", row.stream, group, since)])
        with self._shared.lock:
            self._name(row.stream, group, member)
            self._review(row.stream)
        return True

    def remove(self, topic: str, group: str) -> None:
        """Name a group no longer for a topic."""
        row = self._outbox.streams.get((topic, 0))
        with self._shared.lock:
            member = None if row is None else self._table.find(row.stream, group)
        if row is None or member is None or not member.named:
            raise ConfigError(f"group {group!r} is not named for topic {topic!r}")
        # What it was done with may have left already: the journal says why first.
        before = self._journalled.get((row.stream, group), START)
        consumed = self._consumed(row.stream, group, before, member.position)
        self._store({(row.id, group): None}, [*consumed, _group_removed(row.stream, member)])
        with self._shared.lock:
            self._table.drop(row.stream, group)
            self._journalled.pop((row.stream, group), None)
            self.moved.add(row.id)
            self._shared.presence.forget((topic, 0, group))
            self._review(row.stream)
            self._advanced(row.stream)

    def _store(self, changes: Mapping[tuple[int, str], Member | None], entries: Iterable[Entry]) -> None:
        """Entries that wait for the journal come first: some may say what a group was done with that is dropped now,
        and whose messages may leave from then on."""
        shared = self._shared
        with shared.lock:
            waiting = shared.journal.take()
        try:
            self._outbox.name_groups(
                changes, [*waiting, *entries], shared.clock.wall_us(), shared.clock.now_us()
            )
        except ReliamsgError:
            with shared.lock:
                shared.journal.put_back(waiting)
            raise
        shared.probe("named")

    def _review(self, stream: Stream) -> None:
        for site in self._shared.core.sites:
            self._shared.review(site, [stream])

    # -- as messages are stored and groups advance, with the lock held ---------------------------------------------

    def stored(self, rows: Sequence[Row]) -> None:
        """More batches were committed."""
        for row in rows:
            info = self._streams.by_id[row.stream_id]
            if (row.epoch, row.last) >= info.tail:
                info.extend(row.epoch, row.incarnation, row.last)
            self._table.extend(row.stream, info.tail)
            if self.consumed is None:
                continue
            if self._table.slowest(row.stream) is None:
                self.consumed.add(row.id, row.id)
            else:
                self._walks.setdefault(row.stream_id, row.id)

    def on_report(
        self, stream: Stream, group: str, position: Position, reported: StreamState, now: float, known: bool,
        journal: tuple[int, int] | None,
    ) -> bool:  # fmt: skip
        """A group reported how far it is: at `position`, which may differ from its report. Returns whether it came
        further. `known`: the epoch that it has entered is of this history. `journal`: the opening of its inbox and the
        row of its journal by which it had settled that."""
        high_water = reported.high_water if known else 0
        if not self._table.on_report(stream, group, position, reported.entered, now, high_water, journal):
            return False
        self.progressed = True
        self.moved.add(self._streams.by_stream[stream].row.id)
        self._advanced(stream)
        return True

    def _advanced(self, stream: Stream) -> None:
        """Groups are further, or one is no longer named: see :meth:`behind`."""
        named = (member for member in self._table.members(stream) if member.named)
        slowest = min((max(member.since, member.position) for member in named), default=None)
        self._watchers.advanced(stream, slowest)
        self._shared.changed.notify_all()

    def renumbered(self, epochs: Mapping[int, int]) -> None:
        """Epochs have new numbers, and nothing of them was ever sent. Only this producer knows of the old ones."""
        for stream, info in self._streams.by_stream.items():
            lasts = {link.epoch: link.last for link in info.chain}
            moves = {old: (new, lasts.get(old, 0)) for old, new in epochs.items()}
            info.renumber(epochs)
            self._table.extend(stream, info.tail)
            self._table.renumber(stream, moves)
            for group, since in self._table.named(stream).items():
                self._journalled[stream, group] = max(
                    since, before_moved(self._journalled[stream, group], moves)
                )

    def left(self, rows: Iterable[int]) -> None:
        """These rows are no longer held."""
        if self.consumed is not None:
            for number in rows:
                self.consumed.remove(number, number)

    def look_again(self, taken: Taken) -> None:
        """Rows were removed, cut, or added out of order: find anew what the groups are done with."""
        self.moved.update(
            row.stream_id for row in (*taken.gone, *(row for row, _ in taken.cut), *taken.added)
        )

    def behind(self, stream: Stream, epoch: int, last: int) -> list[str]:
        """The named groups that are not past a message, and count for it."""
        return [
            member.group
            for member in self._table.members(stream)
            if member.named and member.position <= (epoch, last) and member.since <= (epoch, last)
        ]

    def unsettled(self, stream: Stream, epoch: int, spans: Iterable[Span]) -> list[Span]:
        """Those numbers of an epoch that some named group has not settled."""
        slowest = self._table.slowest(stream)
        if slowest is None:
            return []
        position = slowest.position
        low = position[1] if position[0] == epoch else 1 if position[0] < epoch else None
        return [] if low is None else [(max(low, first), last) for first, last in spans if last >= low]

    # -- for the writer ---------------------------------------------------------------------------------------------

    def find_moved(self, epochs: Iterable[int]) -> None:
        """Messages were renumbered into these epochs. Some groups may have been done with them."""
        if self.consumed is None:
            return
        new = frozenset(epochs)
        for stream, info in self._streams.by_stream.items():
            if not new.isdisjoint(link.epoch for link in info.chain):
                # What was published does not move, and its room was given back if groups are done with it.
                self._find_unconsumed_of(stream, self._shared.core.confirms.published)
                self.moved.add(info.row.id)

    def walk(self) -> None:
        """Find some of the batches that all groups are done with now; the others another time."""
        if self.consumed is None:
            self.moved.clear()
            return
        lock, examined = self._shared.lock, 0
        while self.moved and examined < WALK_ROWS:
            with lock:
                stream_id = self.moved.pop()
                first = self._walks.get(stream_id)
                slowest = self._table.slowest(self._streams.by_id[stream_id].row.stream)
            if first is None:
                continue
            rows = self._outbox.rows_of_stream(stream_id, first, WALK_ROWS)
            examined += len(rows)
            with lock:
                done = self._settle(stream_id, rows, None if slowest is None else slowest.position)
                if done and len(rows) == WALK_ROWS:
                    self.moved.add(stream_id)

    def _settle(self, stream_id: int, rows: Sequence[Row], position: Position | None) -> bool:
        """Whether all of `rows`, a stream's next ones, are behind `position`."""
        assert self.consumed is not None
        published = self._shared.core.confirms.published
        for row in rows:
            if position is not None and position <= (row.epoch, row.last):
                self._walks[stream_id] = row.id
                return False
            if row.id not in self.consumed:
                self.consumed.add(row.id, row.id)
                if row.id in published:
                    self._admission.release(row.size)
        if len(rows) == WALK_ROWS:
            self._walks[stream_id] = rows[-1].id + 1
        else:
            del self._walks[stream_id]
        return True

    def take_progress(self) -> tuple[dict[tuple[int, str], Position], list[Entry]]:
        """Positions to store, by stream id and group, and their journal entries. With the lock held."""
        positions: dict[tuple[int, str], Position] = {}
        entries: list[Entry] = []
        self.progressed = False
        for (stream, group), position in self._table.take_moved().items():
            info = self._streams.by_stream[stream]
            positions[info.row.id, group] = position
            before = self._journalled.get((stream, group), START)
            self._journalled[stream, group] = max(before, position)
            entries += self._consumed(stream, group, before, position)
        return positions, entries

    def _consumed(self, stream: Stream, group: str, before: Position, position: Position) -> list[Entry]:
        """The journal entries for a group that came from one position to another."""
        member = self._table.find(stream, group)
        detail = None
        if member is not None and member.journal is not None:
            boot, lsn = member.journal
            detail = {"journal": [f"{boot:016x}", lsn]}
        return [
            Entry("consumed", stream, link.epoch, link.incarnation, first, last, group=group, detail=detail)
            for link, first, last in self._streams.by_stream[stream].between(before, position)
        ]

    def put_back(self, positions: Mapping[tuple[int, str], Position]) -> None:
        """These could not be stored; the caller keeps their journal entries."""
        self.progressed |= bool(positions)
        self._table.put_back(
            {(self._streams.by_id[number].row.stream, group): at for (number, group), at in positions.items()}
        )

    # -- for people, with the lock held -----------------------------------------------------------------------------

    def status(self, now: float) -> tuple[GroupStatus, ...]:
        """Every group that is named, or was heard."""
        return tuple(
            GroupStatus(
                member.group, stream.topic, stream.partition, member.named, member.since, member.position,
                info.count_from(member.position),
                None if member.reported_at is None else max(0.0, now - member.reported_at),
                None if member.held_up_by is None else Gap(stream, *member.held_up_by, "missing"),
            )
            for stream, info in self._streams.by_stream.items()
            for member in self._table.members(stream)
        )  # fmt: skip

    def unacknowledged(self) -> int:
        """How many messages are kept for some group."""
        if self.consumed is None:
            return 0
        slowest = {stream: self._table.slowest(stream) for stream in self._streams.by_stream}
        return sum(
            self._streams.by_stream[stream].count_from(member.position)
            for stream, member in slowest.items()
            if member is not None
        )

    def lagging(self) -> str:
        """Which groups the outbox is waiting for, the slowest first; empty where it waits for none."""
        return "; ".join(part for part in (self._behind(), *self._unseen()) if part)

    def _unseen(self) -> Iterator[str]:
        """What to do about named groups that are not proven at sites, for up to three topics."""
        found = (
            advice(
                {site: self._shared.unseen(site, stream) for site in self._shared.core.sites}, stream.topic
            )
            for stream in self._streams.by_stream
        )
        return islice(filter(None, found), 3)

    def _behind(self) -> str:
        if self.consumed is None:
            return ""
        behind = [
            (self._streams.by_stream[stream].count_from(member.position), member, stream)
            for stream, member in self._table.lagging()
        ]
        behind.sort(key=lambda each: -each[0])
        return ", ".join(
            f"group {member.group} is {count} messages behind on {stream.topic}"
            + (" and was never heard" if member.reported_at is None else _held_up(member.held_up_by))
            for count, member, stream in behind[:3]
        )


def _entry(kind: str, stream: Stream, group: str, since: Position) -> Entry:
    return Entry(kind, stream, since[0], 0, since[1], since[1], group=group)


def _group_removed(stream: Stream, member: GroupMember) -> Entry:
    entry = _entry("group_removed", stream, member.group, member.since)
    return replace(entry, detail={"position": list(member.position)})


def _held_up(gap: Span3 | None) -> str:
    if gap is None:
        return ""
    epoch, first, last = gap
    return f", held up by a gap: it lacks {first} to {last} of epoch {epoch}"
