"""Replays the journals of a group row by row, to find its deliveries.

Rows about deliveries share one order per stream (see :mod:`reliamsg.store.journal`). So a replay shows every delivery
out of order, every hole and every repetition, whatever the client itself believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reliamsg.checker.journals import Boot, Chain
from reliamsg.checker.producers import key_of, stream_of
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import ENDLESS, Key, Position, SpanMap, Spans, as_position, in_epoch
from reliamsg.message import Stream
from reliamsg.store.journal import ORDERED, JournalRow

__all__ = ["EmptyQueue", "GroupFacts", "gather_group"]

_REPAIR = "repair"
"""The reason in rows about messages that did not come from a queue."""
_STALE = frozenset({"late", "before_join", "declared", "quarantined", "let_go"})
_EMPTIED = frozenset({"drained", "connected"})
_FORGED, _UNREMEMBERED = "forged", "unremembered"
"""The reasons in ``forgotten`` rows that set a group back."""
_TOOK_OVER = "took_over"
"""The reason in ``joined`` rows of an inbox that continued where another one had been."""
_INCARNATION = re.compile("[0-9a-f]{16}")
_DEALT_WITH = frozenset({"delivered", "redelivered", "declared", "dead_lettered"})
_FAR: Position = (ENDLESS, 0)
_SETTLING = frozenset({"acknowledged", "declared", "dead_lettered"})


class EmptyQueue(NamedTuple):
    """A site had nothing more for the group, after a producer had announced how long its journal was."""

    site: str
    producer: str
    incarnation: int
    lsn: int


class Course(NamedTuple):
    """A history's part in a stream."""

    begin: Position
    """From where on it accounts for messages: where it joined, or the first one that it dealt with."""
    end: Position
    """The position after everything that it dealt with."""
    end_unknown: bool
    """Whether it may have dealt with more: its journal was not closed."""


@dataclass(frozen=True)
class GroupFacts:
    """One group, from all its journals."""

    group: str
    sound: bool
    """Whether no row is missing."""
    finished: bool
    """Whether no row can follow."""
    whole: bool
    """Whether every journal is complete."""
    latest: bool
    """Whether it joins streams with what arrives first, even if producers count it for earlier messages."""
    delivered: SpanMap = field(default_factory=SpanMap)
    """Messages delivered to the application, flagged or not."""
    unflagged: SpanMap = field(default_factory=SpanMap)
    """Messages that some inbox delivered unflagged, and had not delivered before."""
    unflagged_by: dict[str, SpanMap] = field(default_factory=dict)
    """The same, by the opening that delivered them."""
    acknowledged: SpanMap = field(default_factory=SpanMap)
    declared: SpanMap = field(default_factory=SpanMap)
    before_join: SpanMap = field(default_factory=SpanMap)
    dead: SpanMap = field(default_factory=SpanMap)
    skipped_epochs: dict[Stream, list[Position]] = field(default_factory=dict)
    """Pairs of epochs. Everything between the two was declared lost, without naming epochs."""
    late: SpanMap = field(default_factory=SpanMap)
    removed: SpanMap = field(default_factory=SpanMap)
    """The part of `declared` that the producer had removed, according to the row."""
    removals: list[tuple[Key, int, int, int, int]] = field(default_factory=list)
    """The same, with the opening of the producer that had announced it, and the row of its journal by then; both 0
    where the row does not say."""
    received: dict[str, SpanMap] = field(default_factory=dict)
    """By site, including duplicates and repairs."""
    arrived: dict[str, SpanMap] = field(default_factory=dict)
    """By site, the messages from its queue."""
    stale: dict[str, SpanMap] = field(default_factory=dict)
    """By site, the messages from its queue that were of no use any more."""
    repaired: SpanMap = field(default_factory=SpanMap)
    """Messages that producers resent on request before they arrived in any other way."""
    empty_queues: list[EmptyQueue] = field(default_factory=list)
    """When queues were empty, or sessions gone."""
    quarantined: SpanMap = field(default_factory=SpanMap)
    """Everything that was ever in the inbox's quarantine."""
    discarded: SpanMap = field(default_factory=SpanMap)
    """Messages that an operator discarded there."""
    holds: dict[Stream, list[Position]] = field(default_factory=dict)
    """Where the gaps began that ever held the stream."""
    buffered: dict[str, SpanMap] = field(default_factory=dict)
    """By site of origin, messages that waited in the inbox behind a gap."""
    joined: dict[Stream, Position] = field(default_factory=dict)
    """Where each stream began for this group: the lowest position in a ``joined`` row, or, if there is no such row, the
    lowest position with which a chain begins."""
    joined_first: dict[Stream, Position] = field(default_factory=dict)
    """The same without the rows of inboxes that continued where another one had been."""
    joined_unannounced: dict[Stream, Position] = field(default_factory=dict)
    """The lowest position where it joined without any announcement of the producer."""
    reached: dict[Stream, Position] = field(default_factory=dict)
    """How far each stream got."""
    dealt_with: dict[Stream, list[dict[int, int]]] = field(default_factory=dict)
    """For each history of an inbox whose journal is whole, and each part of it between two ``behind`` rows: the last
    number of each epoch that it delivered, declared or dead-lettered."""
    behind: dict[Stream, list[tuple[Position, Position]]] = field(default_factory=dict)
    """Half-open ranges that the group had settled according to an announcement, and that the inbox that received the
    announcement had not settled itself."""
    existed: dict[Stream, list[tuple[Position, Position]]] = field(default_factory=dict)
    """From the same positions to before the end of the stream at that time: all that the group may have settled."""
    met_by_successors: set[Stream] = field(default_factory=set)
    """The streams in the rows of inboxes that continued for one without a journal."""
    courses: dict[Stream, list[Course]] = field(default_factory=dict)
    """The part of each history in a stream."""
    ends_unknown: int = 0
    """The number of histories that may have continued beyond their journals."""
    topics: set[str] = field(default_factory=set)
    rows: dict[str, int] = field(default_factory=dict)
    """By opening of any inbox, its last row."""
    lost_inbox: bool = False
    """Whether an inbox is lost together with its journal: another one learned of positions that no journal reaches."""
    duplicates: int = 0
    out_of_order: int = 0

    def went_on(self, key: Key, last: int, epochs: Collection[int]) -> bool:
        """Whether an inbox that had messages of a stream's epoch beyond number `last` went on to a later one of these
        epochs."""
        stream, epoch = key
        had = (each for each in self.dealt_with.get(stream, ()) if each.get(epoch, 0) > last)
        return any(later > epoch and later in epochs for each in had for later in each)

    def goes_beyond(self, boot: str, lsn: int) -> bool:
        """Whether the journals show everything that an opening had done when that was its newest row. Rows grow until
        they are exported: in a journal that ends there, some may be from before."""
        return self.sound and self.rows.get(boot, 0) > lsn > 0

    def covered(self, stream: Stream, epoch: int) -> Spans:
        """Everything that the group's own rows explain."""
        key = (stream, epoch)
        return self.delivered[key] | self.declared_in(key) | self.before_join[key] | self.dead[key]

    def declared_in(self, key: Key) -> Spans:
        """Messages of a stream's epoch that were declared lost, by name or as an epoch between two others."""
        if any(low < key[1] < high for low, high in self.skipped_epochs.get(key[0], ())):
            return Spans([(1, ENDLESS)])
        return self.declared[key]

    def received_anywhere(self, key: Key) -> Spans:
        """Messages received from any site."""
        every = Spans()
        for received in self.received.values():
            every.update(received[key])
        return every

    def in_quarantine(self, key: Key) -> tuple[Spans, Spans]:
        """Messages in quarantine, and those discarded there, without those that were also received regularly."""
        received = self.received_anywhere(key)
        return self.quarantined[key] - self.discarded[key] - received, self.discarded[key] - received

    def held(self, key: Key) -> Spans:
        """The part of a stream's epoch that is in, or waits behind, a gap that holds the stream."""
        stream, epoch = key
        reached = self.reached.get(stream, (0, 0))
        held = min((place for place in self.holds.get(stream, ()) if place > reached), default=None)
        if held is None or epoch < held[0]:
            return Spans()
        return Spans([(held[1] if epoch == held[0] else 1, ENDLESS)])

    def began_unannounced(self, stream: Stream) -> bool:
        """Whether the group joined the stream before its producer had announced from where on the group counts."""
        return stream in self.joined_unannounced and self.joined_unannounced[stream] == self.joined.get(
            stream
        )

    def settled_unseen(self, key: Key) -> Spans:
        """The part of a stream's epoch that was announced to an inbox as settled, and was not settled by that inbox."""
        return in_epoch(self.behind.get(key[0], ()), key[1])

    def settled_before_joining(self, key: Key, announced: Iterable[tuple[Position, Position]]) -> Spans:
        """The part of a stream's epoch that the group had settled before the position at which the available journals
        show it to join: another inbox had joined earlier, and is lost with its journal. `announced`: half-open ranges
        that the group announced to the producer as settled, in addition to those that were announced to its own
        inboxes."""
        joined = self.joined_first.get(key[0])
        every = (*self.behind.get(key[0], ()), *announced)
        return in_epoch([each for each in every if joined is None or each[1] < joined], key[1])

    def unaccounted(self, key: Key) -> Spans:
        """The part of a stream's epoch that a history may have settled beyond the end of its journal, and for which no
        other one accounts: those that got further began later."""
        courses = self.courses.get(key[0], ())
        beyond = [(max(each.begin, each.end), _FAR) for each in courses if each.end_unknown]
        if len(beyond) < self.ends_unknown:  # one had not begun with the stream, as far as its journal goes
            beyond.append(((0, 0), _FAR))
        own = [(each.begin, each.end) for each in courses if each.begin < each.end]
        return in_epoch(beyond, key[1]) - in_epoch(own, key[1])

    def perhaps_settled(self, key: Key) -> Spans:
        """The part of a stream's epoch that existed when such an announcement was received, from the inbox's own
        position on; everything if an inbox is lost and its successor never met the stream."""
        if self.lost_inbox and key[0] not in self.met_by_successors:
            return Spans([(1, ENDLESS)])
        return in_epoch(self.existed.get(key[0], ()), key[1])


def gather_group(
    group: str, chains: Iterable[Chain], gap_timeout: float | None, tolerance: float
) -> tuple[GroupFacts, list[Finding]]:
    """Read all journals of one group. `gap_timeout` and `tolerance` are in seconds."""
    chains = sorted(chains, key=lambda chain: chain.rows[0].wall_us if chain.rows else 0)
    facts = GroupFacts(
        group,
        sound=not any(chain.broken for chain in chains),
        finished=all(chain.finished for chain in chains),
        whole=not any(chain.broken or chain.end_unknown for chain in chains),
        latest=any(boot.opened.get("begin") == "latest" for chain in chains for boot in chain.boots),
    )
    for chain in chains:
        for boot in chain.boots:
            facts.rows[boot.name] = max(boot.last_lsn, facts.rows.get(boot.name, 0))
    findings: list[Finding] = []
    readers: list[_ChainReader] = []
    for chain in chains:
        reader = _ChainReader(facts, findings, chain, gap_timeout, tolerance)
        reader.read()
        readers.append(reader)
    unnamed: dict[Stream, Position] = {}
    for reader in readers:
        for stream, place in reader.began.items():
            if stream not in facts.joined:
                unnamed[stream] = min(place, unnamed.get(stream, place))
    facts.joined_first.update(unnamed)
    facts.joined.update(unnamed)
    succeeded = [(reader, _succeeded_in(reader, readers)) for reader in readers]
    for reader, boot_number in succeeded:
        if boot_number is not None:
            since = (row for boot in reader.chain.boots[boot_number:] for row in boot.rows)
            facts.met_by_successors.update(stream_of(row) for row in since if row.kind != "forgotten")
    for reader in readers:
        reader.finish()
        _check_passed(reader, readers)
    _check_acknowledged(facts, findings, readers)
    facts = replace(
        facts,
        ends_unknown=sum(chain.end_unknown for chain in chains),
        lost_inbox=any(boot_number is not None for _, boot_number in succeeded),
        duplicates=sum(reader.duplicates for reader in readers),
        out_of_order=sum(reader.out_of_order for reader in readers),
    )
    return facts, findings


def _heard(row: JournalRow) -> tuple[int, int]:
    """The opening of a producer, and the row of its journal, by which a ``declared`` row says that it had removed the
    messages; 0 and 0 if none."""
    match (row.detail or {}).get("heard"):
        case [int(lsn), name] if (incarnation := _hex(name)) is not None:
            return incarnation, lsn
    return 0, 0


def _empty_queues(row: JournalRow) -> list[EmptyQueue]:
    """What a row shows of the producers whose announcements it names."""
    detail = row.detail or {}
    heard = detail.get("heard")
    if not isinstance(heard, dict) or (
        row.kind == "connected" and detail.get("session_present") is not False
    ):
        return []
    return [
        EmptyQueue(row.site, producer, incarnation, announced[0])
        for producer, announced in heard.items()
        if isinstance(announced, list | tuple) and len(announced) == 2 and isinstance(announced[0], int)
        and (incarnation := _hex(announced[1])) is not None
    ]  # fmt: skip


def _hex(value: Any) -> int | None:
    """The number that 16 hex digits stand for; None for anything else."""
    return int(value, 16) if isinstance(value, str) and _INCARNATION.fullmatch(value) else None


@dataclass
class _StreamState:
    """The state of one stream during the replay. Sets are by epoch."""

    cursor: Position | None = None
    begun: bool = False
    """Whether the stream has begun. A ``joined`` row only names the place where it will begin."""
    delivered: dict[int, Spans] = field(default_factory=dict)
    skipped: dict[int, Spans] = field(default_factory=dict)
    """Declared, or from before the group joined."""
    holes: dict[int, Spans] = field(default_factory=dict)
    dead: dict[int, Spans] = field(default_factory=dict)
    owed: dict[int, Spans] = field(default_factory=dict)
    """Delivered before this boot and not acknowledged by then. It must be delivered again, or declared if it is lost by
    now, before anything new."""
    missed: dict[int, Spans] = field(default_factory=dict)
    """Owed, and skipped since its last delivery."""
    given_up: dict[int, Spans] = field(default_factory=dict)
    """Owed, and declared."""


def _lowest(spans: dict[int, Spans]) -> Position | None:
    return min(((epoch, found.lowest) for epoch, found in spans.items() if found), default=None)


def _at(spans: dict[int, Spans], epoch: int) -> Spans:
    return spans.setdefault(epoch, Spans())


class _ChainReader:
    """Replays one chain of a group."""

    def __init__(
        self,
        facts: GroupFacts,
        findings: list[Finding],
        chain: Chain,
        gap_timeout: float | None,
        tolerance: float,
    ) -> None:
        self.facts = facts
        self.findings = findings
        self.chain = chain
        self.gap_timeout = gap_timeout
        self.tolerance = tolerance
        self.streams: dict[Stream, _StreamState] = {}
        self.acknowledged: SpanMap = SpanMap()
        """What the boots before the current one acknowledged, which was durable by then."""
        self.replays = SpanMap()
        self.acknowledged_twice = SpanMap()
        """Acknowledged more than once in this chain."""
        self.passed = SpanMap()
        """Owed, and skipped."""
        self.said: dict[Stream, Position] = {}
        """The lowest position in its own ``joined`` rows."""
        self.began: dict[Stream, Position] = {}
        """The lowest position with which it began without one."""
        self.settled_to: dict[Stream, Position] = {}
        """The highest position of each stream that it acknowledged, declared or dead-lettered."""
        self.dealt_with: dict[Stream, dict[int, int]] = {}
        """The latest part of those in the facts."""
        self.announced: list[tuple[int, Stream, Position]] = []
        """Announcements that the group had settled everything before a position: in which boot they were received, for
        which stream, and that position."""
        self.left: dict[Stream, list[tuple[Position, Position]]] = {}
        """From its own position to the one of its group, where other epochs are between them. Its group had dealt with
        what it owed there."""
        self.latest = True
        self.before = SpanMap()
        """Messages that earlier chains delivered unflagged."""
        self.before.merge(facts.unflagged)
        self.shared: dict[str, SpanMap] = {}
        """The same, by the opening: histories of a file that was copied share their first openings."""
        for opening, spans in facts.unflagged_by.items():
            self.shared.setdefault(opening, SpanMap()).merge(spans)
        self.duplicates = 0
        self.out_of_order = 0

    def read(self) -> None:
        for number, boot in enumerate(self.chain.boots):
            self._begin(boot)
            acks: list[JournalRow] = []
            ack_starts = SpanMap()
            opened_gaps: list[JournalRow] = []
            for row in boot.rows:
                self._site_row(row)
                if row.kind in _SETTLING and row.first <= row.last:
                    stream, place = stream_of(row), (row.epoch, row.last)
                    self.settled_to[stream] = max(place, self.settled_to.get(stream, place))
                if row.kind in _DEALT_WITH:
                    self._deal_with(row)
                if row.kind in ORDERED:
                    self._ordered(row, ack_starts)
                    if row.kind == "declared":
                        self._check_clock(row, opened_gaps, boot)
                elif row.kind == "acknowledged":
                    acks.append(row)
                    # The row may have grown since; its first number was there when it was written.
                    ack_starts.put(key_of(row), row.first, row.first)
                elif row.kind == "gap_opened":
                    opened_gaps.append(row)
                elif row.kind == "joined":
                    self._joined(row)
                elif row.kind == "behind":
                    self._behind(row, number)
                elif row.kind == "gap_held":
                    self.facts.holds.setdefault(stream_of(row), []).append((row.epoch, max(row.first, 1)))
                elif row.kind == "forgotten":
                    self._forgotten(row)
            self._acknowledge(acks)

    def _deal_with(self, row: JournalRow) -> None:
        if self.chain.broken:  # the missing rows may say what it met
            return
        stream = stream_of(row)
        if stream not in self.dealt_with:
            self.dealt_with[stream] = {}
            self.facts.dealt_with.setdefault(stream, []).append(self.dealt_with[stream])
        lasts = self.dealt_with[stream]
        ends = row.last >= row.first
        lasts[row.epoch] = max(row.last if ends else ENDLESS, lasts.get(row.epoch, 0))
        if not ends:  # what follows meets nothing that is before this gap
            del self.dealt_with[stream]

    def _begin(self, boot: Boot) -> None:
        topics = boot.opened.get("topics")
        self.facts.topics.update(topics if isinstance(topics, list | dict) else ())
        self.latest = boot.opened.get("begin") == "latest"
        for stream, state in self.streams.items():
            state.owed = {
                epoch: delivered
                - self.acknowledged[stream, epoch]
                - _at(state.dead, epoch)
                - _at(state.given_up, epoch)
                - _at(state.missed, epoch)
                for epoch, delivered in state.delivered.items()
            }

    def _joined(self, row: JournalRow) -> None:
        stream, position = stream_of(row), (row.epoch, max(row.first, 1))
        self.said[stream] = min(position, self.said.get(stream, position))
        facts = self.facts
        for joined in (facts.joined, facts.joined_first)[: 1 if row.reason == _TOOK_OVER else 2]:
            joined[stream] = min(position, joined.get(stream, position))
        if (row.detail or {}).get("unheard") is True:
            facts.joined_unannounced[stream] = min(position, facts.joined_unannounced.get(stream, position))
        state = self.streams.get(stream)
        if self.latest and (state is None or not state.begun):
            # The application asked not to be given what precedes the first message to arrive.
            state = self.streams.setdefault(stream, _StreamState())
            state.cursor, state.begun = (row.epoch, position[1] - 1), True

    def _forgotten(self, row: JournalRow) -> None:
        """The group returns to where it was before forged epochs, or to nowhere; never to a later position."""
        state = self.streams.setdefault(stream_of(row), _StreamState())
        if row.reason == _UNREMEMBERED:
            state.cursor, state.begun = None, False
        elif row.reason == _FORGED:
            state.begun = True
            if state.cursor is not None:
                state.cursor = min(state.cursor, (row.epoch, max(row.first, 1) - 1))

    def _behind(self, row: JournalRow, boot: int) -> None:
        begin, own, existed = (
            as_position((row.detail or {}).get(name)) for name in ("from", "own", "existed")
        )
        if begin is None:
            return
        stream, end = stream_of(row), (row.epoch, row.last)
        self.dealt_with.pop(stream, None)
        if own is not None:
            self.left.setdefault(stream, []).append((own, begin))
        self.announced.append((boot, stream, end))
        self.facts.behind.setdefault(stream, []).append((begin, end))
        if existed is not None:
            self.facts.existed.setdefault(stream, []).append((begin, existed))

    def _site_row(self, row: JournalRow) -> None:
        facts, places = self.facts, []
        if row.kind in ("received", "duplicate"):
            places.append(facts.received)
            if row.reason != _REPAIR:
                places.append(facts.arrived)
            elif row.kind == "received":
                facts.repaired.put(key_of(row), row.first, row.last)
        elif row.kind == "buffered":
            places.append(facts.buffered)
        elif row.kind in _STALE and row.site and row.reason != _REPAIR:
            places.append(facts.stale)
        elif row.kind in _EMPTIED:
            facts.empty_queues.extend(_empty_queues(row))
        if row.kind == "quarantined":
            facts.quarantined.put(key_of(row), row.first, row.last)
        elif row.kind == "quarantine_discarded":
            facts.discarded.put(key_of(row), row.first, row.last)
        for place in places:
            place.setdefault(row.site, SpanMap()).put(key_of(row), row.first, row.last)

    def _ordered(self, row: JournalRow, ack_starts: SpanMap) -> None:
        stream = stream_of(row)
        state = self.streams.setdefault(stream, _StreamState())
        state.begun = True
        if row.kind == "delivered":
            self._delivered(row, state)
        elif row.kind == "redelivered":
            self._redelivered(row, state, ack_starts)
        elif row.kind in ("declared", "before_join"):
            self._skipped(row, state)
        elif row.kind == "dead_lettered":
            self._dead_lettered(row, state)
        elif row.kind == "replayed":
            for piece in _at(state.dead, row.epoch).lacking(row.first, row.last):
                if not self.chain.broken:
                    self._find("false_replay", row, *piece)
            self.replays.put(key_of(row), row.first, row.last)
        else:
            self.facts.late.put(key_of(row), row.first, row.last)

    def _delivered(self, row: JournalRow, state: _StreamState) -> None:
        delivered, skipped, holes = (_at(m, row.epoch) for m in (state.delivered, state.skipped, state.holes))
        known = delivered.within(row.first, row.last)
        # No journal records which of two inboxes was first, nor how much the other one knew of it by then.
        elsewhere = self.before[key_of(row)].within(row.first, row.last) - known
        elsewhere = elsewhere - self.shared.get(row.boot, SpanMap())[key_of(row)]
        for kind, again in (("duplicate", known), ("duplicate_apart", elsewhere)):
            for first, last in again:
                self._find(kind, row, first, last)
                self.duplicates += last - first + 1
        for piece in delivered.lacking(row.first, row.last):
            self.facts.unflagged.put(key_of(row), *piece)
            self.facts.unflagged_by.setdefault(row.boot, SpanMap()).put(key_of(row), *piece)
        for piece in skipped.within(row.first, row.last) - delivered:
            self._find("delivered_after_gap", row, *piece)
        fresh = delivered.lacking(row.first, row.last) - skipped
        start = self._ahead(row, state)
        for first, last in fresh.within(row.first, start - 1):
            self._find("out_of_order", row, first, last)
            self.out_of_order += last - first + 1
            holes.discard(first, last)
        self._record_delivery(row, state, start)

    def _redelivered(self, row: JournalRow, state: _StreamState, ack_starts: SpanMap) -> None:
        key = key_of(row)
        acknowledged = self.acknowledged[key].within(row.first, row.last)
        acknowledged.update(ack_starts[key].within(row.first, row.last))
        for piece in acknowledged - self.replays[key]:
            self._find("redelivered_after_ack", row, *piece)
        skipped = _at(state.skipped, row.epoch).within(row.first, row.last)
        for piece in skipped - (_at(state.delivered, row.epoch) - _at(state.given_up, row.epoch)):
            self._find("delivered_after_gap", row, *piece)
        self._record_delivery(row, state, self._ahead(row, state))

    def _skipped(self, row: JournalRow, state: _StreamState) -> None:
        # An end that is unknown, or below the start, stands for the rest of the epoch.
        last = row.last if row.last >= row.first else ENDLESS - 1
        given = _at(state.delivered, row.epoch).within(row.first, last)
        if row.kind == "declared":
            given_up, owed = _at(state.given_up, row.epoch), _at(state.owed, row.epoch)
            given_up.update(owed.within(row.first, last))
            owed.discard(row.first, last)
            given -= given_up
        for piece in given:
            self._find("false_gap", row, *piece)
        if row.kind == "before_join" and (begin := _lowest(state.delivered)) is not None:
            # Messages from before the place of joining may arrive at any time, but no others may be called that.
            first = row.first if row.epoch > begin[0] else max(row.first, begin[1])
            if row.epoch >= begin[0] and first <= last:
                self._find("false_before_join", row, first, last)
        until = (row.detail or {}).get("until_epoch")
        if row.kind == "declared" and isinstance(until, int):
            self.facts.skipped_epochs.setdefault(stream_of(row), []).append((row.epoch, until))
        holes = _at(state.holes, row.epoch)
        # Without the rows that are missing, it is unknown where a hole begins.
        for piece in (
            holes.within(row.first, last) if row.kind == "declared" and not self.chain.broken else ()
        ):
            self._find("declared_late", row, *piece)
        holes.discard(row.first, last)
        _at(state.skipped, row.epoch).add(row.first, last)
        facts = self.facts.declared if row.kind == "declared" else self.facts.before_join
        facts.put(key_of(row), row.first, last)
        if row.kind == "declared" and row.reason == "removed":
            self.facts.removed.put(key_of(row), row.first, last)
            self.facts.removals.append((key_of(row), row.first, last, *_heard(row)))
        if (start := self._ahead(row, state, last)) <= last:
            self._advance(row, state, start, last)

    def delivered_or_dead(self, stream: Stream, epoch: int) -> Spans:
        """Messages that it delivered or dead-lettered."""
        state = self.streams.get(stream)
        return Spans() if state is None else _at(state.delivered, epoch) | _at(state.dead, epoch)

    def dead(self, stream: Stream, epoch: int) -> Spans:
        """Messages that it dead-lettered."""
        state = self.streams.get(stream)
        return Spans() if state is None else _at(state.dead, epoch)

    def _dead_lettered(self, row: JournalRow, state: _StreamState) -> None:
        _at(state.dead, row.epoch).add(row.first, row.last)
        self.facts.dead.put(key_of(row), row.first, row.last)
        _at(state.owed, row.epoch).discard(row.first, row.last)
        if (start := self._ahead(row, state)) <= row.last:
            self._advance(row, state, start, row.last)

    def _ahead(self, row: JournalRow, state: _StreamState, last: int | None = None) -> int:
        """The first number of the row beyond the cursor; one past its end if there is none."""
        end = row.last if last is None else last
        if state.cursor is None or row.epoch > state.cursor[0]:
            return row.first
        if row.epoch < state.cursor[0]:
            return end + 1
        return min(max(row.first, state.cursor[1] + 1), end + 1)

    def _record_delivery(self, row: JournalRow, state: _StreamState, start: int) -> None:
        """The row's messages were delivered; those from `start` are beyond the cursor."""
        for settled in (state.owed, state.missed):
            _at(settled, row.epoch).discard(row.first, row.last)
        _at(state.delivered, row.epoch).add(row.first, row.last)
        self.facts.delivered.put(key_of(row), row.first, row.last)
        if start <= row.last:
            self._advance(row, state, start, row.last)

    def _advance(self, row: JournalRow, state: _StreamState, start: int, last: int) -> None:
        """Move the cursor to `last`; the range between it and `start` is a hole."""
        if row.kind in ("delivered", "redelivered"):
            self._check_owed(row, state)
        same = state.cursor is not None and state.cursor[0] == row.epoch
        expected = state.cursor[1] + 1 if same and state.cursor is not None else 1
        # Messages from before the place of joining arrive in any order, and some never do.
        if start > expected and row.kind != "before_join":
            for piece in _at(state.skipped, row.epoch).lacking(expected, start - 1):
                _at(state.holes, row.epoch).add(*piece)
        if state.cursor is None:
            stream, position = stream_of(row), (row.epoch, row.first)
            self.began[stream] = min(position, self.began.get(stream, position))
        state.cursor = (row.epoch, last)

    def _check_owed(self, row: JournalRow, state: _StreamState) -> None:
        """Something new is delivered, so nothing may be owed any more."""
        for epoch, passed in sorted(state.owed.items()):
            self.passed.merge({(stream_of(row), epoch): passed})
            _at(state.missed, epoch).update(passed)
            state.owed[epoch] = Spans()

    def _acknowledge(self, rows: list[JournalRow]) -> None:
        for row in rows:
            key = key_of(row)
            for first, last in self.acknowledged[key].within(row.first, row.last) - self.replays[key]:
                self.acknowledged_twice.put(key, first, last)
            self.acknowledged.put(key, row.first, row.last)

    def _check_clock(self, row: JournalRow, opened: list[JournalRow], boot: Boot) -> None:
        """A gap expires no sooner than its clock can have run out.

        A clock may be stopped for any time, so only its reading in the journal (`elapsed`, in seconds) can show that it
        ran for too long.
        """
        timeout = self.gap_timeout
        if timeout is None and isinstance(boot.opened.get("gap_timeout"), int | float):
            timeout = float(boot.opened["gap_timeout"])
        if timeout is None or row.reason != "expired":
            return
        elapsed = (row.detail or {}).get("elapsed")
        if isinstance(elapsed, int | float):
            if elapsed < timeout - self.tolerance:
                self._find("gap_closed_early", row, row.first, row.last)
            elif elapsed > timeout + self.tolerance:
                self._find("gap_closed_late", row, row.first, row.last)
            return
        starts = [
            gap.mono_us
            for gap in opened
            if key_of(gap) == key_of(row) and gap.first <= row.last and row.first <= max(gap.last, gap.first)
        ]
        if starts and (row.mono_us - min(starts)) / 1e6 < timeout - self.tolerance:
            self._find("gap_closed_early", row, row.first, row.last)

    def _find(self, kind: str, row: JournalRow, first: int, last: int) -> None:
        self.findings.append(
            Finding(kind, KINDS[kind][1], stream_of(row), self.facts.group,
                    epoch=row.epoch, first=first, last=last)
        )  # fmt: skip

    def finish(self) -> None:
        """After all chains of the group were read: find the holes that no other inbox explains."""
        for stream, begin in (self.began | self.said).items():
            state = self.streams.get(stream)
            cursor = None if state is None else state.cursor
            end = (0, 0) if cursor is None else (cursor[0], cursor[1] + 1)
            course = Course(begin, end, self.chain.end_unknown)
            self.facts.courses.setdefault(stream, []).append(course)
        for stream, state in self.streams.items():
            for epoch, holes in state.holes.items():
                if self.chain.broken:
                    continue
                unseen = self.facts.settled_unseen((stream, epoch))
                for first, last in holes - self.facts.covered(stream, epoch) - unseen:
                    self.findings.append(
                        Finding("undeclared_gap", KINDS["undeclared_gap"][1], stream, self.facts.group,
                                epoch=epoch, first=first, last=last)
                    )  # fmt: skip
            if state.cursor is not None:
                self.facts.reached[stream] = max(state.cursor, self.facts.reached.get(stream, (0, 0)))


def _succeeded_in(reader: _ChainReader, readers: list[_ChainReader]) -> int | None:
    """The last boot in which an inbox received an announcement beyond every other inbox's journal; None if none."""
    others = [other.settled_to for other in readers if other is not reader]
    boots = [
        boot
        for boot, stream, (epoch, number) in reader.announced
        if all(settled.get(stream, (0, 0)) < (epoch, number - 1) for settled in others)
    ]
    return max(boots, default=None)


def _check_passed(reader: _ChainReader, readers: list[_ChainReader]) -> None:
    """Skipped messages that were owed should have been delivered again, unless another inbox settled them, or rows are
    missing that may show that."""
    if not reader.facts.sound:
        return
    for (stream, epoch), spans in reader.passed.items():
        spans -= in_epoch(reader.left.get(stream, ()), epoch)  # noqa: PLW2901
        for other in readers:
            if other is not reader:
                spans -= other.acknowledged[stream, epoch]  # noqa: PLW2901
                spans -= other.dead(stream, epoch)  # noqa: PLW2901
        for first, last in spans - reader.facts.settled_unseen((stream, epoch)):
            reader.findings.append(
                Finding("not_redelivered", KINDS["not_redelivered"][1], stream, reader.facts.group,
                        epoch=epoch, first=first, last=last)
            )  # fmt: skip


def _check_acknowledged(facts: GroupFacts, findings: list[Finding], readers: list[_ChainReader]) -> None:
    """Each inbox acknowledges a message at most once, and only after delivering it.

    An inbox that can't know what another one acknowledged delivers and acknowledges it again.
    """
    twice, undelivered = SpanMap(), SpanMap()
    for reader in readers:
        twice.merge(reader.acknowledged_twice)
        for key, spans in reader.acknowledged.items():
            undelivered.merge({key: spans - reader.delivered_or_dead(*key)})
        facts.acknowledged.merge(reader.acknowledged)
    wrong: list[tuple[str, SpanMap]] = [("acknowledged_twice", twice)]
    if facts.whole:
        wrong.append(("acknowledged_undelivered", undelivered))
    for kind, found in wrong:
        for (stream, epoch), spans in found.items():
            for first, last in spans:
                findings.append(
                    Finding(kind, KINDS[kind][1], stream, facts.group, epoch=epoch, first=first, last=last)
                )
