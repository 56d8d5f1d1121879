"""What the journals of a producer say, and whether it can be true of one that keeps the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reliamsg.checker.journals import Boot, Chain
from reliamsg.checker.membership import Membership, names
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import Key, Position, SpanMap, Spans, in_epoch
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["Confirms", "ProducerFacts", "gather_producer", "key_of", "stream_of"]

_RELEASED = frozenset({"released", "released_unsent"})
_DECLINED = frozenset({"nacked", "returned", "refused"})


def stream_of(row: JournalRow) -> Stream:
    """The stream that a row is about."""
    return Stream(row.producer, row.topic, row.partition)


def key_of(row: JournalRow) -> Key:
    """The stream and epoch that a row is about."""
    return stream_of(row), row.epoch


@dataclass
class Confirms:
    """What one chain says that sites confirmed, row by row."""

    incarnations: set[int] = field(default_factory=set)
    """Of its boots."""
    rows: list[tuple[int, str, Key, int, int]] = field(default_factory=list)
    """Lsn, site, stream and epoch, first and last number."""


@dataclass
class ProducerFacts:
    """One producer, from all its journals."""

    producer: str
    sound: bool = True
    """Whether no row is missing, so that what was not journalled did not happen. A row is committed before its
    message is sent, so this does not take a last ``closed``."""
    told: bool = True
    """Whether there is nothing more to read either, so that what was not journalled was never enqueued: the journal
    comes from the file itself, or was closed."""
    going_on: bool = False
    """Whether what can be missing was enqueued after the time that the account is about."""
    epochs: dict[Stream, set[int]] = field(default_factory=dict)
    """Of each stream, as far as journals tell."""
    enqueued: SpanMap = field(default_factory=SpanMap)
    later: SpanMap = field(default_factory=SpanMap)
    """Of it, what was enqueued after the time that the account is about."""
    published: SpanMap = field(default_factory=SpanMap)
    removed: SpanMap = field(default_factory=SpanMap)
    moved: SpanMap = field(default_factory=SpanMap)
    """What numbers were called that have another epoch now."""
    renamed: dict[Key, int] = field(default_factory=dict)
    """Which epoch that is, by the one that they had."""
    confirmed: dict[str, SpanMap] = field(default_factory=dict)
    confirms: list[Confirms] = field(default_factory=list)
    """The same, of each chain."""
    declined: dict[tuple[str, str], SpanMap] = field(default_factory=dict)
    """By how and by which site, what was not taken at some time."""
    parked: dict[Stream, set[str]] = field(default_factory=dict)
    """At which sites a stream was parked at the end."""
    counted: dict[str, SpanMap] = field(default_factory=dict)
    """For each group, what was enqueued while the producer named it."""
    excused: dict[str, SpanMap] = field(default_factory=dict)
    """For each group, what was enqueued when some journal said that it did not count any more."""
    consumed: dict[str, SpanMap] = field(default_factory=dict)
    """For each group, what the producer was told that it is done with."""
    left: dict[str, dict[Stream, list[tuple[Position, Position]]]] = field(default_factory=dict)
    """By group that it stopped counting: from where to before where the group had said that everything is settled. The
    producer forgets that, and can't tell it to an inbox that is put back from a backup."""
    held: SpanMap = field(default_factory=SpanMap)
    """What an outbox that keeps messages until they are consumed has not let go of."""
    groups: dict[str, set[str]] = field(default_factory=dict)
    """For each topic, the groups that are named, or were and have got something."""
    contested: set[Key] = field(default_factory=set)
    """Where a sequence number was used twice: contents can't be compared there."""

    def settled_unseen(self, group: str, key: Key) -> Spans:
        """What of a stream's epoch a group had said to be settled before the producer stopped counting it."""
        return in_epoch(self.left.get(group, {}).get(key[0], ()), key[1])

    def epoch_now(self, stream: Stream, epoch: int, seq: int) -> int:
        """The epoch that a message has, which was told to have this one when it was published."""
        while seq in self.moved[stream, epoch] and self.renamed.get((stream, epoch), epoch) > epoch:
            epoch = self.renamed[stream, epoch]
        return epoch


def gather_producer(
    producer: str, chains: Iterable[Chain], until_us: int | None = None
) -> tuple[ProducerFacts, list[Finding]]:
    """Read all journals of one producer. `until_us`: µs since 1970 by its clock, the end of the account."""
    facts = ProducerFacts(producer)
    findings: list[Finding] = []
    seen: set[tuple[str, int, Key]] = set()
    going_on: list[bool] = []
    for chain in chains:
        facts.sound &= not chain.broken
        if not (chain.to_the_end or chain.finished):
            facts.told = False
            going_on.append(chain.goes_beyond(until_us))
        _Reader(facts, findings, chain, seen, until_us).read()
    facts.told &= facts.sound
    facts.going_on = facts.sound and bool(going_on) and all(going_on)
    _check_confirms(facts, findings)
    return facts, findings


class _Reader:
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
        """What was enqueued by files read before: a clone begins with the rows of its original."""
        self.confirmed: dict[str, SpanMap] = {}
        """By site, as far as this chain was read."""
        self.newest_epoch = 0
        self.tips: dict[Stream, tuple[int, int, int]] = {}
        """Per stream the newest (epoch, incarnation, last) that was enqueued."""
        self.now = Renumbering(chain.rows)
        self.membership = Membership(self.now)
        self.confirms = Confirms()
        self.enqueued = SpanMap()
        self.consumed: dict[str, SpanMap] = {}
        self.released = SpanMap()
        """By boots that keep messages until they are consumed, and whose journal is there to its end."""
        self.left = SpanMap()
        """What is not in the outbox any more."""

    def read(self) -> None:
        keeps = False
        parked: set[tuple[Stream, str]] = set()
        for boot in self.chain.boots:
            whole = self.chain.is_whole(boot)
            self.membership.begin(boot)
            for topic in self.membership.topics:
                self.facts.groups.setdefault(topic, set())
            keeps = boot.opened.get("release") == "consumed"
            published: SpanMap = SpanMap()
            parked = set()
            fenced: int | None = None
            for row in boot.rows:
                if row.kind == "fenced":
                    fenced = row.lsn if fenced is None else min(fenced, row.lsn)
                elif row.kind == "enqueued" and fenced is not None and row.lsn > fenced:
                    self._find("enqueued_after_fence", self.now(row), row.first, row.last)
                if row.kind in ("enqueued", "epoch", "renumbered"):
                    self._step(row)
                else:
                    self._other(self.now(row), keeps and whole)
                if row.kind == "parked":
                    parked.add((stream_of(row), row.site))
                elif row.kind == "resumed":
                    parked.discard((stream_of(row), row.site))
                elif row.kind == "published":
                    published.put(key_of(self.now(row)), row.first, row.last)
            self.facts.published.merge(published)
            if whole:
                self._check_policy(boot, published)
        for stream, site in parked:
            self.facts.parked.setdefault(stream, set()).add(site)
        self._settle(keeps)

    def _step(self, row: JournalRow) -> None:
        """What goes on with numbers and epochs, judged as it was written."""
        if row.kind == "epoch":
            self._entered(row)
        elif row.kind == "renumbered":
            self._renumbered(row)
        else:
            self._check_number(row)
            self._enqueued(self.now(row))

    def _other(self, row: JournalRow, keeps: bool) -> None:
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
            self.left.put(key, row.first, row.last)
        elif row.kind == "consumed":
            self.consumed.setdefault(row.group, SpanMap()).put(key, row.first, row.last)
        elif row.kind in _RELEASED:
            self.left.put(key, row.first, row.last)
            if keeps:
                self.released.put(key, row.first, row.last)
        elif row.kind in ("group_added", "group_removed"):
            self.membership.changed(row)

    def _check_number(self, row: JournalRow) -> None:
        """A number follows on the one before it, in an epoch that is not over."""
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
        if self.until_us is not None and row.wall_last_us > self.until_us:
            facts.later.put(key, row.first, row.last)
        self.membership.enqueued(row)

    def _renumbered(self, row: JournalRow) -> None:
        self.facts.moved.put(key_of(row), row.first, row.last)
        new = (row.detail or {}).get("epoch")
        if isinstance(new, int):
            self.facts.renamed[key_of(row)] = new
            self._advance(stream_of(row), new, row.incarnation, row.last)

    def _settle(self, keeps: bool) -> None:
        """The chain is read. `keeps`: its last boot keeps messages until they are consumed."""
        facts = self.facts
        facts.confirms.append(self.confirms)
        for (topic, group), named in self.membership.named.items():
            facts.groups.setdefault(topic, set()).update([group] if named else ())
        counted, excused = self.membership.judge(self.enqueued)
        for group, streams in self.membership.left.items():
            for stream, ranges in streams.items():
                facts.left.setdefault(group, {}).setdefault(stream, []).extend(ranges)
        for group, spans in excused.items():
            facts.excused.setdefault(group, SpanMap()).merge(spans)
        for group, spans in counted.items():
            facts.counted.setdefault(group, SpanMap()).merge(spans)
        for group, spans in self.consumed.items():
            facts.consumed.setdefault(group, SpanMap()).merge(spans)
        if keeps:
            facts.held.merge({key: spans - self.left[key] for key, spans in self.enqueued.items()})
        self._check_released(counted)

    def _check_released(self, counted: dict[str, SpanMap]) -> None:
        """Nothing leaves an outbox that keeps messages for its groups before they are done with it."""
        for group, spans in sorted(counted.items()):
            consumed = self.consumed.get(group, SpanMap())
            for key, released in self.released.items():
                for first, last in (released & spans[key]) - consumed[key]:
                    self.findings.append(
                        Finding("released_early", KINDS["released_early"][1], key[0], group,
                                epoch=key[1], first=first, last=last)
                    )  # fmt: skip

    def _entered(self, row: JournalRow) -> None:
        """An ``epoch`` row: what it calls the previous epoch must be what this journal has."""
        self.facts.epochs.setdefault(stream_of(row), set()).add(row.epoch)
        if row.epoch < self.newest_epoch:
            self._find("old_epoch", row, None, None)
        self.newest_epoch = max(self.newest_epoch, row.epoch)
        if not row.topic or self.chain.broken or "prev" not in (row.detail or {}):
            return
        if key_of(row) in self.now.entered:
            return  # messages moved there, perhaps together with those of the epoch before
        said = _as_prev((row.detail or {})["prev"])
        tip = self.tips.get(stream_of(row))
        if tip is not None and tip[0] >= row.epoch:
            return  # entered again: what matters is the first time
        if said != tip:
            text = f"{KINDS['wrong_prev'][1]}: it names {said}, where the journal has {tip}"
            self.findings.append(Finding("wrong_prev", text, stream_of(row), epoch=row.epoch))

    def _check_policy(self, boot: Boot, published: SpanMap) -> None:
        """What counts as published was confirmed: by every site of the boot under ``all``, else by some site."""
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


def _check_confirms(facts: ProducerFacts, findings: list[Finding]) -> None:
    """What was confirmed was enqueued."""
    if not facts.told:
        return
    for site, confirmed in facts.confirmed.items():
        for (stream, epoch), spans in confirmed.items():
            for first, last in spans - facts.enqueued[stream, epoch]:
                findings.append(
                    Finding("confirmed_unknown", KINDS["confirmed_unknown"][1], stream, site=site, epoch=epoch,
                            first=first, last=last)
                )  # fmt: skip


def _as_prev(value: Any) -> tuple[int, int, int] | None:
    """(epoch, incarnation, last), whose incarnation may be written as hex digits."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        return None
    epoch, incarnation, last = value
    return int(epoch), int(incarnation, 16) if isinstance(incarnation, str) else int(incarnation), int(last)
