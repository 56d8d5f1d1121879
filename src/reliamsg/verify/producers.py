"""What the journals of a producer say, and whether it can be true of one that keeps the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow
from reliamsg.verify.journals import Boot, Chain
from reliamsg.verify.report import KINDS, Finding
from reliamsg.verify.spans import Key, SpanMap

__all__ = ["ProducerFacts", "gather_producer", "key_of", "stream_of"]

_REMOVED = frozenset({"removed", "renumbered"})


def stream_of(row: JournalRow) -> Stream:
    """The stream that a row is about."""
    return Stream(row.producer, row.topic, row.partition)


def key_of(row: JournalRow) -> Key:
    """The stream and epoch that a row is about."""
    return stream_of(row), row.epoch


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
    enqueued: SpanMap = field(default_factory=SpanMap)
    later: SpanMap = field(default_factory=SpanMap)
    """Of it, what was enqueued after the time that the account is about."""
    published: SpanMap = field(default_factory=SpanMap)
    removed: SpanMap = field(default_factory=SpanMap)
    confirmed: dict[str, SpanMap] = field(default_factory=dict)
    counted: dict[str, SpanMap] = field(default_factory=dict)
    """For each group, what was enqueued while the producer named it."""
    groups: dict[str, set[str]] = field(default_factory=dict)
    """For each topic, the groups that were ever named."""
    contested: set[Key] = field(default_factory=set)
    """Where a sequence number was used twice: contents can't be compared there."""


def gather_producer(
    producer: str, chains: Iterable[Chain], until_us: int | None = None
) -> tuple[ProducerFacts, list[Finding]]:
    """Read all journals of one producer. `until_us`: µs since 1970 by its clock, the end of the account."""
    facts = ProducerFacts(producer)
    findings: list[Finding] = []
    seen: set[tuple[str, int]] = set()
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
        seen: set[tuple[str, int]],
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

    def read(self) -> None:
        for boot in self.chain.boots:
            named = _named_groups(boot)
            for topic, groups in named.items():
                self.facts.groups.setdefault(topic, set()).update(groups)
            published: SpanMap = SpanMap()
            for row in boot.rows:
                if row.kind == "enqueued":
                    known = (row.boot, row.lsn) in self.seen
                    self.seen.add((row.boot, row.lsn))
                    self._enqueued(row, named, known)
                elif row.kind == "epoch":
                    self._entered(row)
                elif row.kind == "confirmed":
                    for confirmed in (self.facts.confirmed, self.confirmed):
                        confirmed.setdefault(row.site, SpanMap()).put(key_of(row), row.first, row.last)
                elif row.kind == "published":
                    published.put(key_of(row), row.first, row.last)
                elif row.kind in _REMOVED:
                    self.facts.removed.put(key_of(row), row.first, row.last)
            self.facts.published.merge(published)
            self._check_policy(boot, published)

    def _enqueued(self, row: JournalRow, named: dict[str, set[str]], known: bool) -> None:
        key, facts = key_of(row), self.facts
        again = facts.enqueued[key].within(row.first, row.last)
        if again and not known:
            facts.contested.add(key)
            for first, last in again:
                self._find("seq_reused", row, first, last)
        tip = self.tips.get(key[0])
        expected = tip[2] + 1 if tip is not None and tip[0] == row.epoch else 1
        if row.epoch < self.newest_epoch:
            self._find("old_epoch", row, row.first, row.last)
        elif row.first > expected and not self.chain.broken:
            self._find("seq_skipped", row, expected, row.first - 1)
        self.newest_epoch = max(self.newest_epoch, row.epoch)
        if tip is None or (row.epoch, row.last) > (tip[0], tip[2]):
            self.tips[key[0]] = (row.epoch, row.incarnation, row.last)
        facts.enqueued.put(key, row.first, row.last)
        if self.until_us is not None and row.wall_last_us > self.until_us:
            facts.later.put(key, row.first, row.last)
        for group in named.get(row.topic, ()):
            facts.counted.setdefault(group, SpanMap()).put(key, row.first, row.last)

    def _entered(self, row: JournalRow) -> None:
        """An ``epoch`` row: what it calls the previous epoch must be what this journal has."""
        if row.epoch < self.newest_epoch:
            self._find("old_epoch", row, None, None)
        self.newest_epoch = max(self.newest_epoch, row.epoch)
        if not row.topic or self.chain.broken or "prev" not in (row.detail or {}):
            return
        said = _as_prev((row.detail or {})["prev"])
        tip = self.tips.get(stream_of(row))
        if tip is not None and tip[0] >= row.epoch:
            return  # entered again: what matters is the first time
        if said != tip:
            text = f"{KINDS['wrong_prev'][1]}: it names {said}, where the journal has {tip}"
            self.findings.append(Finding("wrong_prev", text, stream_of(row), epoch=row.epoch))

    def _check_policy(self, boot: Boot, published: SpanMap) -> None:
        """What counts as published was confirmed: by every site of the boot under ``all``, else by some site."""
        if self.chain.broken:
            return
        needed: dict[str, SpanMap] = {}
        if boot.opened.get("confirm") == "all":
            needed = {s: self.confirmed.get(s, SpanMap()) for s in _names(boot.opened.get("sites"))}
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
    if not facts.sound:
        return
    for site, confirmed in facts.confirmed.items():
        for (stream, epoch), spans in confirmed.items():
            for first, last in spans - facts.enqueued[stream, epoch]:
                findings.append(
                    Finding("confirmed_unknown", KINDS["confirmed_unknown"][1], stream, site=site, epoch=epoch,
                            first=first, last=last)
                )  # fmt: skip


def _named_groups(boot: Boot) -> dict[str, set[str]]:
    groups = boot.opened.get("groups")
    if not isinstance(groups, dict):
        return {}
    return {topic: set(_names(names)) for topic, names in groups.items()}


def _names(value: Any) -> list[str]:
    """Names from a list of them, or from an object whose keys they are."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []


def _as_prev(value: Any) -> tuple[int, int, int] | None:
    """(epoch, incarnation, last), whose incarnation may be written as hex digits."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        return None
    epoch, incarnation, last = value
    return int(epoch), int(incarnation, 16) if isinstance(incarnation, str) else int(incarnation), int(last)
