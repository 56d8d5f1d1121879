"""The content of a producer's journals, and whether a producer that keeps the rules can have written them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reliamsg.checker.journals import Boot, Chain
from reliamsg.checker.named_groups import NamedGroups, names
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import Key, Position, SpanMap, Spans, in_epoch
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["Confirms", "ProducerFacts", "epochs_in", "gather_producer", "key_of", "settled_by", "stream_of"]

_RELEASED = frozenset({"released", "released_unsent"})
_DECLINED = frozenset({"nacked", "returned", "refused"})


def stream_of(row: JournalRow) -> Stream:
    """The stream that a row is about."""
    return Stream(row.producer, row.topic, row.partition)


def key_of(row: JournalRow) -> Key:
    """The stream and epoch that a row is about."""
    return stream_of(row), row.epoch


@dataclass(frozen=True)
class Confirms:
    """The confirms of sites in one chain."""

    incarnations: set[int] = field(default_factory=set)
    """Those of its boots."""
    rows: list[tuple[int, str, Key, int, int]] = field(default_factory=list)
    """Lsn, site, stream and epoch, first and last number."""


class Report(NamedTuple):
    """A group announced messages as settled."""

    key: Key
    first: int
    last: int
    boot: str
    """The opening of the group's inbox by which it had settled them; empty where the row does not say."""
    lsn: int
    """The row of that opening's journal."""
    epoch: int
    """In which the messages were then; they may be in a later one now."""


@dataclass(frozen=True)
class ProducerFacts:
    """One producer, from all its journals."""

    producer: str
    sound: bool
    """Whether no row is missing, so that nothing was sent that is not in the journal. This does not need a ``closed``
    row at the end, because a row is committed before its message is sent."""
    conclusive: bool
    """Whether in addition nothing remains to be read of its last openings: it was read from the file itself, or was
    closed."""
    open_from: int | None
    """The epoch from which on an open journal may have more rows; None if all journals are conclusive."""
    continues: bool
    """Whether everything from `open_from` on that is missing was enqueued after the period that the check is about."""
    rows: dict[int, int] = field(default_factory=dict)
    """By incarnation of an opening, its last row."""
    newest_epoch: int = 0
    """In any of its journals, as written or moved to. A later opening may have left no journal."""
    begun: dict[Key, list[tuple[int, int, int]]] = field(default_factory=dict)
    """The rows that enqueued: first and last number, and the time at which the row began, µs since 1970."""
    epochs: dict[Stream, set[int]] = field(default_factory=dict)
    """By stream, as far as journals show."""
    enqueued: SpanMap = field(default_factory=SpanMap)
    later: SpanMap = field(default_factory=SpanMap)
    """The part of it that was enqueued after the period that the check is about."""
    published: SpanMap = field(default_factory=SpanMap)
    removed: SpanMap = field(default_factory=SpanMap)
    moved: SpanMap = field(default_factory=SpanMap)
    """Messages that are in a later epoch now, by the epoch that they were in first."""
    moved_to: dict[Key, int] = field(default_factory=dict)
    """That later epoch."""
    confirmed: dict[str, SpanMap] = field(default_factory=dict)
    """By site."""
    confirms: list[Confirms] = field(default_factory=list)
    """The same, by chain."""
    declined: dict[tuple[str, str], SpanMap] = field(default_factory=dict)
    """By kind of refusal and site, messages that a site did not accept at some time."""
    parked: dict[Stream, set[str]] = field(default_factory=dict)
    """The sites at which a stream was parked at the end."""
    counted: dict[str, SpanMap] = field(default_factory=dict)
    """By group, messages enqueued while the producer named the group."""
    excused: dict[str, SpanMap] = field(default_factory=dict)
    """By group, messages enqueued after some journal had recorded that the group does not count any more."""
    consumed: dict[str, SpanMap] = field(default_factory=dict)
    """By group, messages that the group has announced as settled."""
    reports: dict[str, list[Report]] = field(default_factory=dict)
    """The same."""
    settled_before_removal: dict[str, dict[Stream, list[tuple[Position, Position]]]] = field(
        default_factory=dict
    )
    """By group that was removed, half-open ranges that the group had announced as settled by then. The producer forgets
    them, and can't announce them to an inbox that is restored from a backup."""
    retained: SpanMap = field(default_factory=SpanMap)
    """The remaining messages of an outbox that keeps messages until they are consumed."""
    groups: dict[str, set[str]] = field(default_factory=dict)
    """By topic, the groups that are named, or were named when something was enqueued for them."""
    contested: set[Key] = field(default_factory=set)
    """Where a sequence number was used twice, so that contents can't be compared."""

    def settled_unseen(self, group: str, key: Key) -> Spans:
        """The part of a stream's epoch that the group had announced as settled before it was removed."""
        return in_epoch(self.settled_before_removal.get(group, {}).get(key[0], ()), key[1])

    def may_follow(self, epoch: int) -> bool:
        """Whether rows about the epoch may follow in an open journal."""
        return self.open_from is not None and epoch >= self.open_from

    def has_all_of(self, epoch: int) -> bool:
        """Whether everything that its openings enqueued in that epoch is in its journals, unless they are copies."""
        return self.sound and epoch <= self.newest_epoch and not self.may_follow(epoch)

    def goes_beyond(self, incarnation: int, lsn: int) -> bool:
        """Whether the journals show everything that an opening had done when that was its newest row. Rows grow until
        they are exported: in a journal that ends there, some may be from before."""
        return self.sound and self.rows.get(incarnation, 0) > lsn > 0

    def final_epoch(self, stream: Stream, epoch: int, seq: int) -> int:
        """The epoch that a message is in finally, given the one that it was in when it was published."""
        while seq in self.moved[stream, epoch] and self.moved_to.get((stream, epoch), epoch) > epoch:
            epoch = self.moved_to[stream, epoch]
        return epoch


def gather_producer(
    producer: str, chains: Iterable[Chain], until_us: int | None = None, drained: bool = False
) -> tuple[ProducerFacts, list[Finding]]:
    """Read all journals of one producer. `until_us` is the end of the period that the check is about, in µs since 1970
    by the producer's clock. `drained`: the period has no end, and nothing is to follow."""
    chains = list(chains)
    sound = not any(chain.broken for chain in chains)
    unfinished = [chain for chain in chains if chain.end_unknown]
    lasts = list(map(_last_epoch, chains))
    facts = ProducerFacts(
        producer,
        sound,
        conclusive=sound and not unfinished,
        open_from=min(
            (last for chain, last in zip(chains, lasts, strict=True) if chain.end_unknown), default=None
        ),
        continues=sound
        and bool(unfinished)
        and (not drained if until_us is None else all(chain.reaches(until_us) for chain in unfinished)),
        newest_epoch=max(lasts, default=0),
    )
    for chain in chains:
        for boot in chain.boots:
            name = boot.rows[0].incarnation
            facts.rows[name] = max(boot.last_lsn, facts.rows.get(name, 0))
    findings: list[Finding] = []
    seen: set[tuple[str, int, Key]] = set()
    readers = [_ChainReader(facts, findings, chain, seen, until_us) for chain in chains]
    for reader in readers:
        reader.read()
    _merge_counts(facts, zip(lasts, readers, strict=True))
    findings += _check_confirms(facts)
    return facts, findings


class _ChainReader:
    """Reads one chain of a producer."""

    def __init__(
        self,
        facts: ProducerFacts,
        findings: list[Finding],
        chain: Chain,
        seen: set[tuple[str, int, Key]],
        until_us: int | None,
    ) -> None:
        self.until_us = until_us
        self.facts = facts
        self.findings = findings
        self.chain = chain
        self.seen = seen
        """Messages that earlier chains enqueued: a clone begins with the rows of its original."""
        self.confirmed: dict[str, SpanMap] = {}
        """By site, in this chain so far."""
        self.newest_epoch = 0
        self.tips: dict[Stream, tuple[int, int, int]] = {}
        """By stream, epoch, incarnation and number of the newest message."""
        self.renumbering = Renumbering(chain.rows)
        self.used = {key_of(row) for row in chain.rows if row.kind == "enqueued"}
        """Streams and epochs in which messages were enqueued."""
        self.groups = NamedGroups(self.renumbering)
        self.confirms = Confirms()
        self.enqueued = SpanMap()
        self.consumed: dict[str, SpanMap] = {}
        self.counted: dict[str, SpanMap] = {}
        """By group, the messages for which it counts; once everything was read."""
        self.excused: dict[str, SpanMap] = {}
        """By group, the messages for which it counts no more; once everything was read."""
        self.released = SpanMap()
        """By boots that keep messages until they are consumed and have a complete journal."""
        self.gone = SpanMap()
        """Messages that have left the outbox."""

    def read(self) -> None:
        keeps = False
        parked: set[tuple[Stream, str]] = set()
        for boot in self.chain.boots:
            whole = self.chain.is_whole(boot)
            self.groups.begin(boot)
            for topic in self.groups.topics:
                self.facts.groups.setdefault(topic, set())
            keeps = boot.opened.get("release") == "consumed"
            published: SpanMap = SpanMap()
            parked = set()
            fenced: int | None = None
            for row in boot.rows:
                if row.kind == "fenced":
                    fenced = row.lsn if fenced is None else min(fenced, row.lsn)
                elif row.kind == "enqueued" and fenced is not None and row.lsn > fenced:
                    self._find("enqueued_after_fence", self.renumbering(row), row.first, row.last)
                if row.kind in ("enqueued", "epoch", "renumbered"):
                    self._step(row)
                else:
                    self._other(self.renumbering(row), keeps and whole, row.epoch)
                if row.kind == "parked":
                    parked.add((stream_of(row), row.site))
                elif row.kind == "resumed":
                    parked.discard((stream_of(row), row.site))
                elif row.kind == "published":
                    published.put(key_of(self.renumbering(row)), row.first, row.last)
            self.facts.published.merge(published)
            if whole:
                self._check_policy(boot, published)
        for stream, site in parked:
            self.facts.parked.setdefault(stream, set()).add(site)
        self._settle(keeps)

    def _step(self, row: JournalRow) -> None:
        """A row that uses numbers or enters an epoch. It is judged as it was written."""
        if row.kind == "epoch":
            self._entered(row)
        elif row.kind == "renumbered":
            self._renumbered(row)
        else:
            self._check_number(row)
            self._enqueued(self.renumbering(row))

    def _other(self, row: JournalRow, keeps: bool, epoch: int) -> None:
        """`epoch`: the row's own, before renumbering."""
        key = key_of(row)
        if row.kind == "opened":
            self.confirms.incarnations.add(row.incarnation)
        elif row.kind == "confirmed":
            for confirmed in (self.facts.confirmed, self.confirmed):
                confirmed.setdefault(row.site, SpanMap()).put(key, row.first, row.last)
            self.confirms.rows.append((row.lsn, row.site, key, row.first, row.last))
        elif row.kind in _DECLINED and row.site:
            self.facts.declined.setdefault((row.kind, row.site), SpanMap()).put(key, row.first, row.last)
        elif row.kind == "removed":
            self.facts.removed.put(key, row.first, row.last)
            self.gone.put(key, row.first, row.last)
        elif row.kind == "consumed":
            if epoch == row.epoch:  # what was moved afterwards is to be settled again (P11)
                self.consumed.setdefault(row.group, SpanMap()).put(key, row.first, row.last)
            report = Report(key, row.first, row.last, *settled_by(row), epoch)
            self.facts.reports.setdefault(row.group, []).append(report)
        elif row.kind in _RELEASED:
            self.gone.put(key, row.first, row.last)
            if keeps:
                self.released.put(key, row.first, row.last)
        elif row.kind in ("group_added", "group_removed"):
            self.groups.changed(row)

    def _check_number(self, row: JournalRow) -> None:
        """A number follows the one before it, in an epoch that is not over."""
        stream = stream_of(row)
        tip = self.tips.get(stream)
        expected = tip[2] + 1 if tip is not None and tip[0] == row.epoch else 1
        if row.epoch < self.newest_epoch:
            self._find("old_epoch", row, row.first, row.last)
        elif row.first > expected and not self.chain.broken:
            self._find("seq_skipped", row, expected, row.first - 1)
        self._advance(stream, row.epoch, row.incarnation, row.last)

    def _advance(self, stream: Stream, epoch: int, incarnation: int, last: int) -> None:
        self.newest_epoch = max(self.newest_epoch, epoch)
        tip = self.tips.get(stream)
        if tip is None or (epoch, last) > (tip[0], tip[2]):
            self.tips[stream] = (epoch, incarnation, last)

    def _enqueued(self, row: JournalRow) -> None:
        key, facts = key_of(row), self.facts
        again = facts.enqueued[key].within(row.first, row.last)
        if again and (row.boot, row.lsn, key) not in self.seen:
            facts.contested.add(key)
            for first, last in again:
                self._find("seq_reused", row, first, last)
        self.seen.add((row.boot, row.lsn, key))
        facts.enqueued.put(key, row.first, row.last)
        self.enqueued.put(key, row.first, row.last)
        facts.begun.setdefault(key, []).append((row.first, row.last, row.wall_us))
        if self.until_us is not None and row.wall_us > self.until_us:
            facts.later.put(key, row.first, row.last)
        self.groups.enqueued(row)

    def _renumbered(self, row: JournalRow) -> None:
        self.facts.moved.put(key_of(row), row.first, row.last)
        new = (row.detail or {}).get("epoch")
        if isinstance(new, int):
            self.facts.moved_to[key_of(row)] = new
            self._advance(stream_of(row), new, row.incarnation, row.last)

    def _settle(self, keeps: bool) -> None:
        """After the last row. `keeps`: the last boot keeps messages until they are consumed."""
        facts = self.facts
        facts.confirms.append(self.confirms)
        for (topic, group), named in self.groups.named.items():
            facts.groups.setdefault(topic, set()).update([group] if named else ())
        self.counted, self.excused = self.groups.judge(self.enqueued)
        for group, streams in self.groups.settled_before_removal.items():
            for stream, ranges in streams.items():
                facts.settled_before_removal.setdefault(group, {}).setdefault(stream, []).extend(ranges)
        for group, spans in self.consumed.items():
            facts.consumed.setdefault(group, SpanMap()).merge(spans)
        if keeps:
            facts.retained.merge({key: spans - self.gone[key] for key, spans in self.enqueued.items()})
        self._check_released()

    def _check_released(self) -> None:
        """A message leaves an outbox that keeps messages for its groups only once they have settled it."""
        for group, spans in sorted(self.counted.items()):
            consumed = self.consumed.get(group, SpanMap())
            for key, released in self.released.items():
                for first, last in (released & spans[key]) - consumed[key]:
                    self.findings.append(
                        Finding("released_early", KINDS["released_early"][1], key[0], group,
                                epoch=key[1], first=first, last=last)
                    )  # fmt: skip

    def _entered(self, row: JournalRow) -> None:
        """An ``epoch`` row names the epoch before it; this must be the one that the journal has."""
        self.facts.epochs.setdefault(stream_of(row), set()).add(row.epoch)
        if row.epoch < self.newest_epoch:
            self._find("old_epoch", row, None, None)
        self.newest_epoch = max(self.newest_epoch, row.epoch)
        if not row.topic or self.chain.broken or "prev" not in (row.detail or {}):
            return
        if key_of(row) in self.renumbering.entered or key_of(row) not in self.used:
            # Messages were moved there, perhaps together with those of the epoch before. Where none were enqueued
            # either, the journal may have ended before the row that says which were moved.
            return
        said = _as_prev((row.detail or {})["prev"])
        tip = self.tips.get(stream_of(row))
        if tip is not None and tip[0] >= row.epoch:
            return  # entered again; only the first time counts
        if said != tip:
            text = f"{KINDS['wrong_prev'][1]}: it names {said}, where the journal has {tip}"
            self.findings.append(Finding("wrong_prev", text, stream_of(row), epoch=row.epoch))

    def _check_policy(self, boot: Boot, published: SpanMap) -> None:
        """Published messages are confirmed: with ``all`` by every site of the boot, otherwise by some site."""
        needed: dict[str, SpanMap] = {}
        if boot.opened.get("confirm") == "all":
            needed = {s: self.confirmed.get(s, SpanMap()) for s in names(boot.opened.get("sites"))}
        if not needed:
            needed[""] = SpanMap()
            for confirmed in self.confirmed.values():
                needed[""].merge(confirmed)
        for site, confirmed in needed.items():
            for (stream, epoch), spans in published.items():
                for first, last in spans - confirmed[stream, epoch]:
                    self.findings.append(
                        Finding("published_unconfirmed", KINDS["published_unconfirmed"][1], stream, site=site,
                                epoch=epoch, first=first, last=last)
                    )  # fmt: skip

    def _find(self, kind: str, row: JournalRow, first: int | None, last: int | None) -> None:
        stream = stream_of(row) if row.topic else None
        self.findings.append(Finding(kind, KINDS[kind][1], stream, epoch=row.epoch, first=first, last=last))


def epochs_in(rows: Iterable[JournalRow]) -> set[int]:
    """The epochs of rows, and those to which they moved messages."""
    found: set[int] = set()
    for row in rows:
        moved = (row.detail or {}).get("epoch") if row.kind == "renumbered" else None
        found.update((row.epoch, moved) if isinstance(moved, int) else (row.epoch,))
    return found


def settled_by(row: JournalRow) -> tuple[str, int]:
    """The opening of an inbox, and the row of its journal, that a ``consumed`` row names; empty and 0 if none."""
    match (row.detail or {}).get("journal"):
        case [str(boot), int(lsn)]:
            return boot, lsn
    return "", 0


def _last_epoch(chain: Chain) -> int:
    return max(epochs_in(chain.rows), default=0)


def _merge_counts(facts: ProducerFacts, readers: Iterable[tuple[int, _ChainReader]]) -> None:
    """For messages in several histories of an outbox, the one that went on last decides whether a group counts: only
    that one may still send them. `readers`: of all of them, each with its last epoch."""
    by_epoch: dict[int, list[_ChainReader]] = {}
    for last, reader in readers:
        by_epoch.setdefault(last, []).append(reader)
    for _, own in sorted(by_epoch.items()):
        for group, spans in (each for reader in own for each in reader.excused.items()):
            facts.excused.setdefault(group, SpanMap()).merge(spans)
            counted = facts.counted.setdefault(group, SpanMap())
            for key in counted.keys() & spans.keys():
                counted[key] = counted[key] - spans[key]
        for group, spans in (each for reader in own for each in reader.counted.items()):
            facts.counted.setdefault(group, SpanMap()).merge(spans)


def _check_confirms(facts: ProducerFacts) -> Iterator[Finding]:
    """Confirmed messages were enqueued."""
    for site, confirmed in facts.confirmed.items():
        for (stream, epoch), spans in confirmed.items():
            if not facts.has_all_of(epoch):
                continue
            for first, last in spans - facts.enqueued[stream, epoch]:
                yield Finding(
                    "confirmed_unknown", KINDS["confirmed_unknown"][1], stream, site=site, epoch=epoch,
                    first=first, last=last,
                )  # fmt: skip


def _as_prev(value: Any) -> tuple[int, int, int] | None:
    """Epoch, incarnation (which may be in hex digits) and last number."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        return None
    epoch, incarnation, last = value
    return int(epoch), int(incarnation, 16) if isinstance(incarnation, str) else int(incarnation), int(last)
