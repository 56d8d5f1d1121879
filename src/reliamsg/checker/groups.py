"""What the journals of a group say it was given, replayed row by row.

Rows about what the application was given share one order per stream (see :mod:`reliamsg.store.journal`), so
replaying them shows every step out of order, every hole and every repetition, whatever the client thought of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reliamsg.checker.journals import Boot, Chain
from reliamsg.checker.producers import key_of, stream_of
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import ENDLESS, Key, Position, SpanMap, Spans, as_position, in_epoch
from reliamsg.message import Stream
from reliamsg.store.journal import ORDERED, JournalRow

__all__ = ["GroupFacts", "Proof", "gather_group"]

_REPAIR = "repair"
"""The reason in rows of what did not come out of a queue."""
_STRAYS = frozenset({"late", "before_join", "declared", "quarantined", "let_go"})
_EMPTIED = frozenset({"drained", "connected"})
_FORGED, _UNREMEMBERED = "forged", "unremembered"
"""The reasons in ``forgotten`` rows that send a group back."""
_TOOK_OVER = "took_over"
"""The reason in ``joined`` rows of an inbox that goes on where another one had been."""
_INCARNATION = re.compile("[0-9a-f]{16}")
_SETTLING = frozenset({"acknowledged", "declared", "dead_lettered"})


class Proof(NamedTuple):
    """A site had nothing more for the group, after a producer had told how far its journal was."""

    site: str
    producer: str
    incarnation: int
    lsn: int


@dataclass
class GroupFacts:
    """One group, from all its journals."""

    group: str
    sound: bool = True
    """Whether no row is missing."""
    finished: bool = True
    """Whether nothing can follow."""
    whole: bool = True
    """Whether every journal is there to its end."""
    latest: bool = False
    """Whether it joins streams with what arrives first, whatever producers count it for."""
    handed: SpanMap = field(default_factory=SpanMap)
    """What the application was given, flagged or not."""
    unflagged: SpanMap = field(default_factory=SpanMap)
    """What some inbox gave without a flag, and had not given before."""
    acknowledged: SpanMap = field(default_factory=SpanMap)
    declared: SpanMap = field(default_factory=SpanMap)
    before_join: SpanMap = field(default_factory=SpanMap)
    dead: SpanMap = field(default_factory=SpanMap)
    leaps: dict[Stream, list[Position]] = field(default_factory=dict)
    """Pairs of epochs between which everything was declared lost, whatever epochs there were."""
    late: SpanMap = field(default_factory=SpanMap)
    removed: SpanMap = field(default_factory=SpanMap)
    """Of what was declared, what was said to be removed by its producer."""
    received: dict[str, SpanMap] = field(default_factory=dict)
    """Per site, duplicates and repairs included."""
    arrived: dict[str, SpanMap] = field(default_factory=dict)
    """Per site, what came out of its queue."""
    strays: dict[str, SpanMap] = field(default_factory=dict)
    """Per site, what came out of its queue and had no use any more."""
    repaired: SpanMap = field(default_factory=SpanMap)
    """What producers sent again on request, and nothing else had brought by then."""
    proofs: list[Proof] = field(default_factory=list)
    """Where queues were seen empty, or sessions gone."""
    quarantined: SpanMap = field(default_factory=SpanMap)
    """What was ever put into the inbox's quarantine."""
    discarded: SpanMap = field(default_factory=SpanMap)
    """What an operator discarded there."""
    holds: dict[Stream, list[Position]] = field(default_factory=dict)
    """Where gaps began that ever held the stream."""
    buffered: dict[str, SpanMap] = field(default_factory=dict)
    """Per site that it came from, what was held back in the inbox."""
    joined: dict[Stream, Position] = field(default_factory=dict)
    """Where each stream began for this group: the lowest position that a ``joined`` row names; where none does, the
    lowest with which a chain began."""
    joined_itself: dict[Stream, Position] = field(default_factory=dict)
    """The same without the rows of inboxes that went on where another one had been."""
    unheard: dict[Stream, Position] = field(default_factory=dict)
    """Where it joined without having heard anything of its producer: the lowest position."""
    reached: dict[Stream, Position] = field(default_factory=dict)
    """How far each stream got."""
    behind: dict[Stream, list[tuple[Position, Position]]] = field(default_factory=dict)
    """From where to before where an inbox was told that its group had settled everything, and had not itself."""
    existed: dict[Stream, list[tuple[Position, Position]]] = field(default_factory=dict)
    """From the same places to before where the stream ended then: all that the group may have settled besides."""
    replaced: bool = False
    """Whether such an inbox was told of what no other one's journal has: one is gone together with its journal."""
    met: set[Stream] = field(default_factory=set)
    """The streams that such inboxes heard anything of, from the opening on that was told last."""
    topics: set[str] = field(default_factory=set)
    duplicates: int = 0
    out_of_order: int = 0

    def covered(self, stream: Stream, epoch: int) -> Spans:
        """What is accounted for by the group's own rows."""
        key = (stream, epoch)
        return self.handed[key] | self.declared_in(key) | self.before_join[key] | self.dead[key]

    def declared_in(self, key: Key) -> Spans:
        """What was declared lost of a stream's epoch, be it by name or as something in between."""
        if any(low < key[1] < high for low, high in self.leaps.get(key[0], ())):
            return Spans([(1, ENDLESS)])
        return self.declared[key]

    def taken_in(self, key: Key) -> Spans:
        """What was received, from any site."""
        every = Spans()
        for received in self.received.values():
            every.update(received[key])
        return every

    def set_aside(self, key: Key) -> tuple[Spans, Spans]:
        """What is in quarantine, and what was discarded there, of what was not taken in besides."""
        taken = self.taken_in(key)
        return self.quarantined[key] - self.discarded[key] - taken, self.discarded[key] - taken

    def held_up(self, key: Key) -> Spans:
        """What of a stream's epoch waits for a gap that holds the stream, the gap included."""
        stream, epoch = key
        reached = self.reached.get(stream, (0, 0))
        held = min((place for place in self.holds.get(stream, ()) if place > reached), default=None)
        if held is None or epoch < held[0]:
            return Spans()
        return Spans([(held[1] if epoch == held[0] else 1, ENDLESS)])

    def joined_unheard(self, stream: Stream) -> bool:
        """Whether the stream began for this group where nobody had told it from where on it is counted."""
        return stream in self.unheard and self.unheard[stream] == self.joined.get(stream)

    def settled_unseen(self, key: Key) -> Spans:
        """What of a stream's epoch an inbox was told to be settled, and had not settled itself."""
        return in_epoch(self.behind.get(key[0], ()), key[1])

    def settled_before_joining(self, key: Key, told: Iterable[tuple[Position, Position]]) -> Spans:
        """What of a stream's epoch the group had settled, as somebody was told, before it joined, as the journals say
        that are here: so another inbox had joined earlier, and is gone with its journal. `told`: from where to before
        where that was said to a producer, besides what the group's inboxes were told."""
        joined = self.joined_itself.get(key[0])
        every = (*self.behind.get(key[0], ()), *told)
        return in_epoch([each for each in every if joined is None or each[1] < joined], key[1])

    def perhaps_settled(self, key: Key) -> Spans:
        """What of a stream's epoch there was when an inbox was told that, from its own place on; all of it where one is
        gone, and its successor never heard of the stream."""
        if self.replaced and key[0] not in self.met:
            return Spans([(1, ENDLESS)])
        return in_epoch(self.existed.get(key[0], ()), key[1])


def gather_group(
    group: str, chains: Iterable[Chain], gap_timeout: float | None, tolerance: float
) -> tuple[GroupFacts, list[Finding]]:
    """Read all journals of one group. `gap_timeout` and `tolerance` are in seconds."""
    facts = GroupFacts(group)
    findings: list[Finding] = []
    readers: list[_Reader] = []
    begun: dict[Stream, Position] = {}
    for chain in sorted(chains, key=lambda chain: chain.rows[0].wall_us if chain.rows else 0):
        reader = _Reader(facts, findings, chain, gap_timeout, tolerance, begun)
        reader.read()
        readers.append(reader)
        facts.sound &= not chain.broken
        facts.finished &= chain.finished
        facts.whole &= not chain.broken and (chain.to_the_end or chain.finished)
    unnamed = {stream: place for stream, place in begun.items() if stream not in facts.joined}
    facts.joined_itself |= unnamed
    facts.joined |= unnamed
    for reader in readers:
        told_in = _told_of_the_unaccounted(reader, readers)
        if told_in is not None:
            facts.replaced = True
            since = (row for boot in reader.chain.boots[told_in:] for row in boot.rows)
            facts.met |= {stream_of(row) for row in since if row.kind != "forgotten"}
    for reader in readers:
        reader.finish()
        _check_passed(reader, readers)
    _check_acknowledged(facts, findings, readers)
    return facts, findings


def _proofs(row: JournalRow) -> list[Proof]:
    """Of how many producers the row says how far they had told to be."""
    detail = row.detail or {}
    heard = detail.get("heard")
    if not isinstance(heard, dict) or (
        row.kind == "connected" and detail.get("session_present") is not False
    ):
        return []
    return [
        Proof(row.site, producer, incarnation, told[0])
        for producer, told in heard.items()
        if isinstance(told, list | tuple) and len(told) == 2 and isinstance(told[0], int)
        and (incarnation := _hex(told[1])) is not None
    ]  # fmt: skip


def _hex(value: Any) -> int | None:
    """The number that 16 hex digits say."""
    return int(value, 16) if isinstance(value, str) and _INCARNATION.fullmatch(value) else None


@dataclass
class _StreamState:
    """Where a stream is, while its rows are replayed."""

    cursor: Position | None = None
    met: bool = False
    """Whether it began: not by its ``joined`` row, which tells where it will."""
    handed: dict[int, Spans] = field(default_factory=dict)
    skipped: dict[int, Spans] = field(default_factory=dict)
    """Declared, or from before the group joined."""
    holes: dict[int, Spans] = field(default_factory=dict)
    dead: dict[int, Spans] = field(default_factory=dict)
    owed: dict[int, Spans] = field(default_factory=dict)
    """Given before this boot and not acknowledged by then: to be given again, or declared where it is lost by now,
    before anything new."""
    missed: dict[int, Spans] = field(default_factory=dict)
    """Owed, and passed over since it was given last."""
    given_up: dict[int, Spans] = field(default_factory=dict)
    """Owed, and declared."""


def _lowest(spans: dict[int, Spans]) -> Position | None:
    return min(((epoch, found.lowest) for epoch, found in spans.items() if found), default=None)


def _at(spans: dict[int, Spans], epoch: int) -> Spans:
    return spans.setdefault(epoch, Spans())


class _Reader:
    """Replays one chain of a group."""

    def __init__(
        self,
        facts: GroupFacts,
        findings: list[Finding],
        chain: Chain,
        gap_timeout: float | None,
        tolerance: float,
        begun: dict[Stream, Position],
    ) -> None:
        self.facts = facts
        self.findings = findings
        self.chain = chain
        self.gap_timeout = gap_timeout
        self.tolerance = tolerance
        self.begun = begun
        """Where each stream began, by its first row; shared by the group's chains."""
        self.streams: dict[Stream, _StreamState] = {}
        self.acknowledged: SpanMap = SpanMap()
        """By the boots before the current one: durable then."""
        self.replays = SpanMap()
        self.again = SpanMap()
        """Acknowledged more than once in this chain."""
        self.passed = SpanMap()
        """Owed, and passed over."""
        self.settled_to: dict[Stream, Position] = {}
        """The last number of each stream that it acknowledged, declared or set aside."""
        self.told_of: list[tuple[int, Stream, Position]] = []
        """In which boot it was told, and before which positions others had settled everything."""
        self.latest = True
        self.before = SpanMap()
        """Handed out unflagged by chains read before this one."""
        self.before.merge(facts.unflagged)

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

    def _begin(self, boot: Boot) -> None:
        topics = boot.opened.get("topics")
        self.facts.topics.update(topics if isinstance(topics, list | dict) else ())
        self.latest = boot.opened.get("begin") == "latest"
        self.facts.latest |= self.latest
        for stream, state in self.streams.items():
            state.owed = {
                epoch: handed
                - self.acknowledged[stream, epoch]
                - _at(state.dead, epoch)
                - _at(state.given_up, epoch)
                - _at(state.missed, epoch)
                for epoch, handed in state.handed.items()
            }

    def _joined(self, row: JournalRow) -> None:
        stream, position = stream_of(row), (row.epoch, max(row.first, 1))
        facts = self.facts
        for joined in (facts.joined, facts.joined_itself)[: 1 if row.reason == _TOOK_OVER else 2]:
            joined[stream] = min(position, joined.get(stream, position))
        if (row.detail or {}).get("unheard") is True:
            self.facts.unheard[stream] = min(position, self.facts.unheard.get(stream, position))
        state = self.streams.get(stream)
        if self.latest and (state is None or not state.met):
            # What came before the first to arrive was asked not to be delivered.
            state = self.streams.setdefault(stream, _StreamState())
            state.cursor, state.met = (row.epoch, position[1] - 1), True

    def _forgotten(self, row: JournalRow) -> None:
        """Below epochs that were made up the group is where it was before them, or nowhere; never further on."""
        state = self.streams.setdefault(stream_of(row), _StreamState())
        if row.reason == _UNREMEMBERED:
            state.cursor, state.met = None, False
        elif row.reason == _FORGED:
            state.met = True
            if state.cursor is not None:
                state.cursor = min(state.cursor, (row.epoch, max(row.first, 1) - 1))

    def _behind(self, row: JournalRow, boot: int) -> None:
        own, existed = (as_position((row.detail or {}).get(name)) for name in ("from", "existed"))
        if own is None:
            return
        stream, end = stream_of(row), (row.epoch, row.last)
        self.told_of.append((boot, stream, end))
        self.facts.behind.setdefault(stream, []).append((own, end))
        if existed is not None:
            self.facts.existed.setdefault(stream, []).append((own, existed))

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
        elif row.kind in _STRAYS and row.site and row.reason != _REPAIR:
            places.append(facts.strays)
        elif row.kind in _EMPTIED:
            facts.proofs += _proofs(row)
        if row.kind == "quarantined":
            facts.quarantined.put(key_of(row), row.first, row.last)
        elif row.kind == "quarantine_discarded":
            facts.discarded.put(key_of(row), row.first, row.last)
        for place in places:
            place.setdefault(row.site, SpanMap()).put(key_of(row), row.first, row.last)

    def _ordered(self, row: JournalRow, ack_starts: SpanMap) -> None:
        stream = stream_of(row)
        state = self.streams.setdefault(stream, _StreamState())
        state.met = True
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
                self._find("false_replay", row, *piece)
            self.replays.put(key_of(row), row.first, row.last)
        else:
            self.facts.late.put(key_of(row), row.first, row.last)

    def _delivered(self, row: JournalRow, state: _StreamState) -> None:
        handed, skipped, holes = (_at(m, row.epoch) for m in (state.handed, state.skipped, state.holes))
        known = handed.within(row.first, row.last)
        # Which of two inboxes was first, and what it had told the other one by then, no journal says.
        elsewhere = self.before[key_of(row)].within(row.first, row.last) - known
        for kind, again in (("duplicate", known), ("duplicate_apart", elsewhere)):
            for first, last in again:
                self._find(kind, row, first, last)
                self.facts.duplicates += last - first + 1
        for piece in handed.lacking(row.first, row.last):
            self.facts.unflagged.put(key_of(row), *piece)
        for piece in skipped.within(row.first, row.last) - handed:
            self._find("delivered_after_gap", row, *piece)
        fresh = handed.lacking(row.first, row.last) - skipped
        start = self._ahead(row, state)
        for first, last in fresh.within(row.first, start - 1):
            self._find("out_of_order", row, first, last)
            self.facts.out_of_order += last - first + 1
            holes.discard(first, last)
        self._hand(row, state, start)

    def _redelivered(self, row: JournalRow, state: _StreamState, ack_starts: SpanMap) -> None:
        key = key_of(row)
        acknowledged = self.acknowledged[key].within(row.first, row.last)
        acknowledged.update(ack_starts[key].within(row.first, row.last))
        for piece in acknowledged - self.replays[key]:
            self._find("redelivered_after_ack", row, *piece)
        skipped = _at(state.skipped, row.epoch).within(row.first, row.last)
        for piece in skipped - (_at(state.handed, row.epoch) - _at(state.given_up, row.epoch)):
            self._find("delivered_after_gap", row, *piece)
        self._hand(row, state, self._ahead(row, state))

    def _skipped(self, row: JournalRow, state: _StreamState) -> None:
        # An end that is not known, or below the start, means: all that the epoch still had.
        last = row.last if row.last >= row.first else ENDLESS - 1
        given = _at(state.handed, row.epoch).within(row.first, last)
        if row.kind == "declared":
            given_up, owed = _at(state.given_up, row.epoch), _at(state.owed, row.epoch)
            given_up.update(owed.within(row.first, last))
            owed.discard(row.first, last)
            given -= given_up
        for piece in given:
            self._find("false_gap", row, *piece)
        if row.kind == "before_join" and (begin := _lowest(state.handed)) is not None:
            # What arrives from before the place of joining may do so at any time; nothing else may be called so.
            first = row.first if row.epoch > begin[0] else max(row.first, begin[1])
            if row.epoch >= begin[0] and first <= last:
                self._find("false_before_join", row, first, last)
        until = (row.detail or {}).get("until_epoch")
        if row.kind == "declared" and isinstance(until, int):
            self.facts.leaps.setdefault(stream_of(row), []).append((row.epoch, until))
        holes = _at(state.holes, row.epoch)
        for piece in holes.within(row.first, last) if row.kind == "declared" else ():
            self._find("declared_late", row, *piece)
        holes.discard(row.first, last)
        _at(state.skipped, row.epoch).add(row.first, last)
        facts = self.facts.declared if row.kind == "declared" else self.facts.before_join
        facts.put(key_of(row), row.first, last)
        if row.kind == "declared" and row.reason == "removed":
            self.facts.removed.put(key_of(row), row.first, last)
        if (start := self._ahead(row, state, last)) <= last:
            self._advance(row, state, start, last)

    def given(self, stream: Stream, epoch: int) -> Spans:
        """What it gave, or set aside."""
        state = self.streams.get(stream)
        return Spans() if state is None else _at(state.handed, epoch) | _at(state.dead, epoch)

    def dead(self, stream: Stream, epoch: int) -> Spans:
        """What it set aside."""
        state = self.streams.get(stream)
        return Spans() if state is None else _at(state.dead, epoch)

    def _dead_lettered(self, row: JournalRow, state: _StreamState) -> None:
        _at(state.dead, row.epoch).add(row.first, row.last)
        self.facts.dead.put(key_of(row), row.first, row.last)
        _at(state.owed, row.epoch).discard(row.first, row.last)
        if (start := self._ahead(row, state)) <= row.last:
            self._advance(row, state, start, row.last)

    def _ahead(self, row: JournalRow, state: _StreamState, last: int | None = None) -> int:
        """The first number of the row that lies beyond the cursor; one past its end where none does."""
        end = row.last if last is None else last
        if state.cursor is None or row.epoch > state.cursor[0]:
            return row.first
        if row.epoch < state.cursor[0]:
            return end + 1
        return min(max(row.first, state.cursor[1] + 1), end + 1)

    def _hand(self, row: JournalRow, state: _StreamState, start: int) -> None:
        """The application was given the row's messages; those from `start` are beyond the cursor."""
        for settled in (state.owed, state.missed):
            _at(settled, row.epoch).discard(row.first, row.last)
        _at(state.handed, row.epoch).add(row.first, row.last)
        self.facts.handed.put(key_of(row), row.first, row.last)
        if start <= row.last:
            self._advance(row, state, start, row.last)

    def _advance(self, row: JournalRow, state: _StreamState, start: int, last: int) -> None:
        """Move the cursor to `last`; what lies between it and `start` is a hole."""
        if row.kind in ("delivered", "redelivered"):
            self._check_owed(row, state)
        same = state.cursor is not None and state.cursor[0] == row.epoch
        expected = state.cursor[1] + 1 if same and state.cursor is not None else 1
        # What comes from before the place of joining does so in any order, and not all of it need come.
        if start > expected and row.kind != "before_join":
            for piece in _at(state.skipped, row.epoch).lacking(expected, start - 1):
                _at(state.holes, row.epoch).add(*piece)
        if state.cursor is None:
            stream, position = stream_of(row), (row.epoch, row.first)
            self.begun[stream] = min(position, self.begun.get(stream, position))
        state.cursor = (row.epoch, last)

    def _check_owed(self, row: JournalRow, state: _StreamState) -> None:
        """Something new is given, and so comes after all that is owed."""
        for epoch, passed in sorted(state.owed.items()):
            self.passed.merge({(stream_of(row), epoch): passed})
            _at(state.missed, epoch).update(passed)
            state.owed[epoch] = Spans()

    def _acknowledge(self, rows: list[JournalRow]) -> None:
        for row in rows:
            key = key_of(row)
            for first, last in self.acknowledged[key].within(row.first, row.last) - self.replays[key]:
                self.again.put(key, first, last)
            self.acknowledged.put(key, row.first, row.last)

    def _check_clock(self, row: JournalRow, opened: list[JournalRow], boot: Boot) -> None:
        """A gap that expired did so no sooner than its clock could have run out.

        The clock may have stood still for any time, so only a journal that gives the clock's reading (`elapsed`,
        in seconds) shows one that ran too long.
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
        """Once all chains of the group are read: what stayed a hole, unless another inbox has it."""
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


def _told_of_the_unaccounted(reader: _Reader, readers: list[_Reader]) -> int | None:
    """In which boot an inbox was told last of what no other inbox's journal comes up to."""
    others = [other.settled_to for other in readers if other is not reader]
    told_in = [
        boot
        for boot, stream, (epoch, number) in reader.told_of
        if all(settled.get(stream, (0, 0)) < (epoch, number - 1) for settled in others)
    ]
    return max(told_in, default=None)


def _check_passed(reader: _Reader, readers: list[_Reader]) -> None:
    """What was owed and passed over was dealt with by another inbox, or should have come again."""
    for (stream, epoch), spans in reader.passed.items():
        for other in readers:
            if other is not reader:
                spans -= other.acknowledged[stream, epoch]  # noqa: PLW2901
                spans -= other.dead(stream, epoch)  # noqa: PLW2901
        for first, last in spans - reader.facts.settled_unseen((stream, epoch)):
            reader.findings.append(
                Finding("not_redelivered", KINDS["not_redelivered"][1], stream, reader.facts.group,
                        epoch=epoch, first=first, last=last)
            )  # fmt: skip


def _check_acknowledged(facts: GroupFacts, findings: list[Finding], readers: list[_Reader]) -> None:
    """Each inbox acknowledges at most once, and only what it gave.

    What one acknowledged, and another one could not know of, that one gives and acknowledges again.
    """
    facts.acknowledged = SpanMap()
    twice, undelivered = SpanMap(), SpanMap()
    for reader in readers:
        twice.merge(reader.again)
        for key, spans in reader.acknowledged.items():
            undelivered.merge({key: spans - reader.given(*key)})
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
