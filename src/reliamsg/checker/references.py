"""What journals tell of and no journal has: openings of producers, parts of them, and clients.

Whoever leaves files away takes rows with them, and nothing in the rows that are left need look wrong: a journal that
ends with ``closed`` may well have gone on in another opening. But a message that was received, and a status, name the
opening that they came from by its incarnation, 64 random bits; so do an outbox that was fenced and a group that met
two histories. And what a group had, or was told to exist, its producer had enqueued. Where no journal has that, the
messages of which it would tell are unknown, whatever became of them.

Nothing is said of producers whose journals lack rows, which they show themselves, nor of what may be in segments that
have yet to come.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import key_of, stream_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import Finding
from reliamsg.checker.spans import ENDLESS, Key, as_position
from reliamsg.store.journal import JournalRow

__all__ = ["find_missing", "groups_told_of", "producers_told_of"]

_INCARNATION = re.compile("[0-9a-f]{16}")
_HAD = frozenset(
    {"received", "duplicate", "buffered", "late", "before_join", "dead_lettered", "quarantined", "let_go"}
)
"""Kinds of rows about messages that a group had, or was told of, to which no other finding may be due."""
_SPOKE = frozenset({"consumed", "repaired", "surpassed"})
"""Kinds of a producer's rows that a group's own word, or its asking, brought about."""


class _Told(NamedTuple):
    """An opening of a producer, of which some row tells."""

    producer: str
    incarnation: int
    epoch: int | None
    """In which it was, where that is told."""
    lsn: int = 0
    """How many rows its journal had."""


@dataclass
class _Has:
    """What the journals of one producer have."""

    broken: bool = False
    incarnations: set[int] = field(default_factory=set)
    rows: dict[int, int] = field(default_factory=dict)
    """By opening, its last row."""
    epochs: set[int] = field(default_factory=set)
    last: dict[Key, int] = field(default_factory=dict)
    """What was enqueued, under any name."""
    growing: set[int] = field(default_factory=set)
    """The last openings of journals that go on."""
    goes_on_from: int | None = None
    """The epoch from which on something may have yet to come, if anything may."""

    def read(self, chain: Chain, until_us: int | None) -> None:
        """Take in what one journal has."""
        self.broken |= bool(chain.broken)
        now, end = Renumbering(chain.rows), 0
        for row in chain.rows:
            renumbered = (row.detail or {}).get("epoch") if row.kind == "renumbered" else None
            own = [row.epoch, renumbered] if isinstance(renumbered, int) else [row.epoch]
            self.epochs.update(own)
            end = max(end, *own)
            self.incarnations.add(row.incarnation)
            for key in {key_of(row), key_of(now(row))} if row.kind == "enqueued" else ():
                self.last[key] = max(row.last, self.last.get(key, 0))
        for boot in chain.boots:
            name = boot.rows[0].incarnation
            self.rows[name] = max(boot.rows[-1].lsn, self.rows.get(name, 0))
        if not chain.finished or chain.goes_beyond(until_us):
            self.goes_on_from = end if self.goes_on_from is None else min(end, self.goes_on_from)
            self.growing.update(boot.rows[0].incarnation for boot in chain.boots[-1:])

    def may_come(self, epoch: int | None) -> bool:
        """Whether what lies in an epoch may have yet to come."""
        return self.goes_on_from is not None and (epoch is None or epoch >= self.goes_on_from)

    def lacks_rows(self, told: _Told) -> bool:
        """Whether there were more rows of an opening than its journal has."""
        return told.lsn > self.rows.get(told.incarnation, told.lsn) and told.incarnation not in self.growing


def find_missing(chains: Iterable[Chain], until_us: int | None) -> list[Finding]:
    """``missing``, a line for each opening or epoch of which others tell more than its producer's journals.

    `until_us`: as in :class:`reliamsg.checker.run.Expect`; what a journal that goes on after that may still have is
    not missing.
    """
    chains = list(chains)
    has: dict[str, _Has] = {}
    for chain in chains:
        if chain.role == "producer":
            has.setdefault(chain.client, _Has()).read(chain, until_us)
    openings: dict[str, set[_Told]] = defaultdict(set)
    ends: dict[str, dict[Key, int]] = defaultdict(dict)
    for chain in chains:
        for row in chain.rows:
            for told in _openings(chain, row):
                openings[told.producer].add(told)
            for (stream, epoch), last in _ends(chain, row):
                own = ends[stream.producer]
                own[stream, epoch] = max(last, own.get((stream, epoch), 0))
    lines: set[str] = set()
    for producer, its in has.items():
        if not its.broken:
            lines |= set(_lacking(producer, its, openings[producer], ends[producer]))
    return [Finding("missing", line) for line in sorted(lines)]


def _lacking(producer: str, has: _Has, openings: set[_Told], ends: dict[Key, int]) -> Iterator[str]:
    absent: set[int | None] = set()
    for told in openings:
        opening = f"the opening {told.incarnation:016x} of producer {producer}"
        if told.incarnation in has.incarnations:
            if has.lacks_rows(told):
                yield f"the journal of {opening} lacks rows that it had"
        elif not has.may_come(told.epoch):
            absent.add(told.epoch)
            yield f"no journal of {opening}"
    for key, last in ends.items():
        epoch = key[1]
        if epoch in absent or has.may_come(epoch):
            continue
        if epoch not in has.epochs:
            yield f"no journal of epoch {epoch} of producer {producer}"
        elif last > has.last.get(key, 0):
            yield f"the journal of epoch {epoch} of producer {producer} lacks messages that others tell of"


def producers_told_of(chain: Chain) -> set[str]:
    """The producers of which a group's journal tells."""
    return {row.producer for row in chain.rows if _names_producer(chain, row)} | {
        told.producer for row in chain.rows for told in _openings(chain, row)
    }


def groups_told_of(chain: Chain) -> set[str]:
    """The groups that a producer's journal says to have said something."""
    return {row.group for row in chain.rows if chain.role == "producer" and row.kind in _SPOKE and row.group}


def _names_producer(chain: Chain, row: JournalRow) -> bool:
    return chain.role == "group" and row.kind != "rejected" and bool(row.producer)


def _openings(chain: Chain, row: JournalRow) -> Iterator[_Told]:
    """Of which openings a row tells."""
    detail = row.detail or {}
    if chain.role == "producer":
        if row.kind == "fenced":
            epoch, incarnation = detail.get("epoch"), _incarnation(detail.get("incarnation"))
            if isinstance(epoch, int) and incarnation:
                yield _Told(chain.client, incarnation, epoch)
        return
    if _names_producer(chain, row) and row.incarnation:
        lsn = detail.get("lsn") if row.kind == "heard" else None
        yield _Told(row.producer, row.incarnation, row.epoch, lsn if isinstance(lsn, int) else 0)
    if row.kind == "conflict":
        match detail.get("known"):
            case [int(epoch), name, int(_)] if (incarnation := _incarnation(name)) and row.producer:
                yield _Told(row.producer, incarnation, epoch)
    if row.kind in ("drained", "connected") and isinstance(heard := detail.get("heard"), dict):
        for producer, said in heard.items():
            match said:
                case [int(lsn), name] if incarnation := _incarnation(name):
                    yield _Told(producer, incarnation, None, lsn)


def _ends(chain: Chain, row: JournalRow) -> Iterator[tuple[Key, int]]:
    """Up to which number there were messages of streams' epochs, as a row tells; 0: there was the epoch."""
    for (stream, epoch), last in _places(chain, row) if row.topic else ():
        if epoch > 0:
            yield (stream, epoch), last if last < ENDLESS - 1 else 0


def _places(chain: Chain, row: JournalRow) -> Iterator[tuple[Key, int]]:
    stream, detail = stream_of(row), row.detail or {}
    if row.kind == ("surpassed" if chain.role == "producer" else "conflict"):
        entered = detail.get("entered")
        if isinstance(entered, int):
            yield (stream, entered), 0
    if row.kind in ("surpassed", "behind"):
        for position in (as_position(detail.get(name)) for name in ("position", "existed")):
            if position is not None:
                yield (stream, position[0]), position[1] - 1
    if chain.role != "group" or row.kind == "rejected":
        return
    if row.kind == "conflict":
        match detail.get("known"):
            case [int(epoch), name, int(last)] if _incarnation(name):
                yield (stream, epoch), last
    elif row.kind == "behind":
        yield (stream, row.epoch), row.last - 1
    else:
        yield (stream, row.epoch), row.last if row.kind in _HAD else 0


def _incarnation(value: Any) -> int:
    """The number that 16 hex digits say, else 0."""
    return int(value, 16) if isinstance(value, str) and _INCARNATION.fullmatch(value) else 0
