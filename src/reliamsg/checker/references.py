"""Evidence to which journals refer and that no journal has: clients, openings of producers, and parts of them.

If files are left out, the remaining rows need not look wrong: a journal that ends with ``closed`` may have continued in
another opening. But received messages and statuses name the opening that they came from by its incarnation, 64 random
bits. So do outboxes that were fenced, and groups that met two histories. Moreover, a producer had enqueued everything
that a group had, or that was announced to it. If no journal has that, the fate of these messages is unknown.

This does not report producers whose journals lack rows, because those show it themselves, nor rows of a last opening
that may be in segments that have not arrived yet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from reliamsg.checker.journals import Chain, Role
from reliamsg.checker.producers import epochs_in, key_of, settled_by, stream_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import Finding
from reliamsg.checker.spans import ENDLESS, Key, as_position
from reliamsg.store.journal import JournalRow

__all__ = ["find_missing", "find_unfinished", "groups_named_in", "lacking_clients", "producers_named_in"]

_INCARNATION = re.compile("[0-9a-f]{16}")
_HAD = frozenset(
    {"received", "duplicate", "buffered", "late", "before_join", "dead_lettered", "quarantined", "let_go"}
)
"""Kinds of rows about messages that a group had, or that were announced to it, without being a finding themselves."""
_FROM_GROUPS = frozenset({"consumed", "repaired", "surpassed"})
"""Kinds of a producer's rows that an announcement or request of a group caused."""
_REPLACED = "it was not closed, and another file of this producer began after it"


class _Inboxes:
    """The openings of one group's inboxes."""

    def __init__(self) -> None:
        self.broken = False
        self.later = True
        """Whether every journal reaches to the end of the period of the check, so that an unknown opening is later."""
        self._rows: dict[str, int] = {}
        self._growing: set[str] = set()

    def read(self, chain: Chain, until_us: int | None) -> None:
        """Add a journal."""
        reaches = chain.reaches(until_us)
        self.later &= reaches
        self.broken |= bool(chain.broken)
        for boot in chain.boots:
            self._rows[boot.name] = max(boot.last_lsn, self._rows.get(boot.name, 0))
        if reaches or not chain.finished:
            self._growing.update(boot.name for boot in chain.boots[-1:])

    def lacking(self, group: str, boot: str, lsn: int) -> str | None:
        """A line if the journals lack a row that an opening had."""
        if boot not in self._rows:
            return None if self.later else f"no journal of the opening {boot} of group {group}"
        if lsn > self._rows[boot] and boot not in self._growing:
            return f"the journal of the opening {boot} of group {group} lacks rows that it had"
        return None


class _Reference(NamedTuple):
    """An opening of a producer that some row refers to."""

    producer: str
    incarnation: int
    epoch: int | None
    """The opening's epoch, if the row names it."""
    lsn: int = 0
    """The number of rows that its journal had at least."""


class _Journals:
    """The content of one producer's journals."""

    def __init__(self) -> None:
        self.broken = False
        self.incarnations: set[int] = set()
        self.epochs: set[int] = set()
        self.last: dict[Key, int] = {}
        """The last number of each stream's epoch that was enqueued, by the first and the final epoch."""
        self._rows: dict[int, int] = {}
        """By opening, its last row."""
        self._growing: set[int] = set()
        """The last openings of journals that may continue."""
        self._grows_from: int | None = None
        """The epoch of the last opening that may have more rows; None if none can."""
        self._later_from: int | None = None
        """The epoch from which on everything is later than the period of the check, according to a journal that reaches
        to its end; None if none does."""

    def read(self, chain: Chain, until_us: int | None) -> None:
        """Add a journal."""
        self.broken |= bool(chain.broken)
        renumbering = Renumbering(chain.rows)
        own_epochs = epochs_in(chain.rows)
        self.epochs |= own_epochs
        for row in chain.rows:
            self.incarnations.add(row.incarnation)
            for key in {key_of(row), key_of(renumbering(row))} if row.kind == "enqueued" else ():
                self.last[key] = max(row.last, self.last.get(key, 0))
        for boot in chain.boots:
            name = boot.rows[0].incarnation
            self._rows[name] = max(boot.last_lsn, self._rows.get(name, 0))
        end, later = max(own_epochs, default=0), chain.reaches(until_us)
        if later:
            self._later_from = end if self._later_from is None else min(end, self._later_from)
        if later or not chain.finished:
            self._grows_from = end if self._grows_from is None else min(end, self._grows_from)
            self._growing.update(boot.rows[0].incarnation for boot in chain.boots[-1:])

    def is_later(self, epoch: int | None) -> bool:
        """Whether an opening of that epoch, or of an unknown one, may be later than the period of the check."""
        return self._later_from is not None and (epoch is None or epoch >= self._later_from)

    def may_grow(self, epoch: int) -> bool:
        """Whether rows about an epoch may still follow."""
        return self._grows_from is not None and epoch >= self._grows_from

    def lacks_rows(self, reference: _Reference) -> bool:
        """Whether an opening had more rows than its journal has."""
        known = self._rows.get(reference.incarnation, reference.lsn)
        return reference.lsn > known and reference.incarnation not in self._growing


def find_missing(chains: Iterable[Chain], until_us: int | None) -> list[Finding]:
    """``missing``: a line for each opening or epoch of which others refer to more than its client's journals have.

    `until_us` as in :class:`reliamsg.checker.run.Expect`: openings that may follow in a journal that reaches to it are
    not missing.
    """
    every = _missing(list(chains), until_us).values()
    return [Finding("missing", line) for line in sorted(set().union(*every))]


def lacking_clients(chains: Iterable[Chain], until_us: int | None) -> set[tuple[Role, str]]:
    """The clients that such a line is about."""
    return {client for client, lines in _missing(list(chains), until_us).items() if lines}


def _missing(chains: list[Chain], until_us: int | None) -> dict[tuple[Role, str], set[str]]:
    """The lines by client."""
    journals: dict[str, _Journals] = {}
    inboxes: dict[str, _Inboxes] = {}
    for chain in chains:
        if chain.role == "producer":
            journals.setdefault(chain.client, _Journals()).read(chain, until_us)
        else:
            inboxes.setdefault(chain.client, _Inboxes()).read(chain, until_us)
    openings: dict[str, set[_Reference]] = defaultdict(set)
    ends: dict[str, dict[Key, int]] = defaultdict(dict)
    for chain in chains:
        for row in chain.rows:
            for reference in _openings(chain, row):
                openings[reference.producer].add(reference)
            for (stream, epoch), last in _ends(chain, row):
                own = ends[stream.producer]
                own[stream, epoch] = max(last, own.get((stream, epoch), 0))
    lines: dict[tuple[Role, str], set[str]] = defaultdict(set)
    for group, line in _lacking_of_groups(chains, inboxes):
        lines["group", group].add(line)
    for producer, own_journals in journals.items():
        if not own_journals.broken:
            lines["producer", producer] = set(
                _lacking(producer, own_journals, openings[producer], ends[producer])
            )
    return lines


def _lacking_of_groups(chains: Iterable[Chain], inboxes: dict[str, _Inboxes]) -> Iterator[tuple[str, str]]:
    """What groups had settled by rows that their journals lack, according to producers: groups and lines."""
    for chain in chains:
        for row in chain.rows if chain.role == "producer" else ():
            if row.kind == "consumed" and row.group in inboxes and not inboxes[row.group].broken:
                boot, lsn = settled_by(row)
                if boot and (line := inboxes[row.group].lacking(row.group, boot, lsn)):
                    yield row.group, line


def _lacking(
    producer: str, journals: _Journals, openings: set[_Reference], ends: dict[Key, int]
) -> Iterator[str]:
    absent: set[int | None] = set()
    for reference in openings:
        opening = f"the opening {reference.incarnation:016x} of producer {producer}"
        if reference.incarnation in journals.incarnations:
            if journals.lacks_rows(reference):
                yield f"the journal of {opening} lacks rows that it had"
        elif not journals.is_later(reference.epoch):
            absent.add(reference.epoch)
            yield f"no journal of {opening}"
    for key, last in ends.items():
        epoch = key[1]
        if epoch in absent:
            continue
        if epoch not in journals.epochs:
            if not journals.is_later(epoch):
                yield f"no journal of epoch {epoch} of producer {producer}"
        elif last > journals.last.get(key, 0) and not journals.may_grow(epoch):
            yield f"the journal of epoch {epoch} of producer {producer} lacks messages to which others refer"


def find_unfinished(chains: Iterable[Chain]) -> list[Finding]:
    """``missing``: the ends of producers' journals that were followed by another file's, and never closed. A disk may
    have failed, with rows that had not been exported."""
    by_producer: dict[str, list[Chain]] = defaultdict(list)
    for chain in chains:
        if chain.role == "producer" and chain.rows and chain.rows[0].lsn == 1:
            by_producer[chain.client].append(chain)
    found: list[Finding] = []
    for producer, own in sorted(by_producer.items()):
        newest = max(own, key=lambda chain: (chain.rows[0].wall_us, chain.rows[0].boot)).rows[0].boot
        found += [
            Finding(
                "missing", f"the end of the journal {chain.rows[0].boot} of producer {producer}: {_REPLACED}"
            )
            for chain in own
            if chain.rows[0].boot != newest and not chain.finished
        ]
    return list(dict.fromkeys(found))


def producers_named_in(chain: Chain) -> set[str]:
    """The producers that a journal refers to."""
    return {row.producer for row in chain.rows if _names_producer(chain, row)} | {
        reference.producer for row in chain.rows for reference in _openings(chain, row)
    }


def groups_named_in(chain: Chain) -> set[str]:
    """The groups whose announcements or requests a producer's journal refers to."""
    return {
        row.group for row in chain.rows if chain.role == "producer" and row.kind in _FROM_GROUPS and row.group
    }


def _names_producer(chain: Chain, row: JournalRow) -> bool:
    return chain.role == "group" and row.kind != "rejected" and bool(row.producer)


def _openings(chain: Chain, row: JournalRow) -> Iterator[_Reference]:
    """The openings that a row refers to."""
    detail = row.detail or {}
    if chain.role == "producer":
        if row.kind == "fenced":
            epoch, incarnation = detail.get("epoch"), _incarnation(detail.get("incarnation"))
            if isinstance(epoch, int) and incarnation:
                yield _Reference(chain.client, incarnation, epoch)
        return
    if _names_producer(chain, row) and row.incarnation:
        lsn = detail.get("lsn") if row.kind == "heard" else None
        yield _Reference(row.producer, row.incarnation, row.epoch, lsn if isinstance(lsn, int) else 0)
    if row.kind == "conflict":
        match detail.get("known"):
            case [int(epoch), name, int(_)] if (incarnation := _incarnation(name)) and row.producer:
                yield _Reference(row.producer, incarnation, epoch)
    if row.kind in ("drained", "connected") and isinstance(heard := detail.get("heard"), dict):
        for producer, announced in heard.items():
            match announced:
                case [int(lsn), name] if incarnation := _incarnation(name):
                    yield _Reference(producer, incarnation, None, lsn)


def _ends(chain: Chain, row: JournalRow) -> Iterator[tuple[Key, int]]:
    """Streams' epochs that a row refers to, with the last number that existed; 0 if only the epoch is known."""
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
    """The number that 16 hex digits stand for; 0 for anything else."""
    return int(value, 16) if isinstance(value, str) and _INCARNATION.fullmatch(value) else 0
