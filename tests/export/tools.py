"""Shared by the tests of export: clients in memory, and their chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg import Consumer, Producer
from reliamsg.export.target import Target, open_target
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import Header, decode, digest_of, parse_name
from reliamsg.testing import MemoryNetwork, inject

TOPICS = ["orders", *(f"t{number}" for number in range(60))]
GROUPS = {topic: ["billing"] for topic in TOPICS}


@dataclass(frozen=True)
class Found:
    """A segment at a target."""

    path: str
    header: Header
    rows: list[JournalRow]
    digest: str


def producer(network: MemoryNetwork, outbox: Path, **options: Any) -> Producer:
    """A producer at all sites of `network`; `probe` is injected."""
    name = options.pop("producer_id", "gateway")
    with inject(probe=options.pop("probe", None)):
        return Producer(name, network.sites, outbox=outbox, groups=GROUPS, **options)


def consumer(network: MemoryNetwork, inbox: Path, **options: Any) -> Consumer:
    """A consumer of all sites of `network`; `probe` is injected."""
    group = options.pop("group", "billing")
    options.setdefault("topics", ["orders"])
    with inject(probe=options.pop("probe", None)):
        return Consumer(group, network.sites, inbox=inbox, **options)


def segments(target: str | Path | Target) -> list[Found]:
    """All segments at a target, each checked alone: name, digest, path."""
    place = target if isinstance(target, Target) else open_target(target)
    found = []
    for path in place.paths():
        data = place.read(path)
        header, rows = decode(data)
        name = parse_name(path.rpartition("/")[2])
        assert name is not None, path
        assert (name.boot, name.first_lsn, name.digest) == (header.boot, header.first_lsn, digest_of(data))
        found.append(Found(path, header, rows, name.digest))
    return found


def left(path: Path) -> list[JournalRow]:
    """The rows that are still in a file."""
    connection = open_readonly(path)
    try:
        return list(read_journal(connection))
    finally:
        connection.close()


def meta(path: Path) -> dict[str, str]:
    """The state of export in a file."""
    connection = open_readonly(path)
    try:
        return dict(connection.execute("SELECT name, value FROM meta WHERE name LIKE 'journal_%'"))
    finally:
        connection.close()


def chain(found: Iterable[Found], tip: str | None) -> list[Found]:
    """The segments from a client's first to the one whose digest is `tip`, by their parents."""
    by_digest = {segment.digest: segment for segment in found}
    line: list[Found] = []
    while tip is not None:
        line.insert(0, by_digest[tip])
        tip = line[0].header.parent
    return line


def whole(target: str | Path | Target, path: Path) -> list[JournalRow]:
    """All rows of the client whose file is `path`: its segments, and then the rows left in it. Asserts that the chain
    is unbroken, and that no row is missing, or occurs twice with different content."""
    found = segments(target)
    state = meta(path)
    line = chain(found, state.get("journal_parent"))
    rows = {row.lsn: row for segment in line for row in segment.rows}
    assert len(rows) == sum(len(segment.rows) for segment in line)
    assert max(rows, default=0) == int(state.get("journal_exported_lsn", "0"))
    rest = left(path)
    assert not {row.lsn for row in rest} & rows.keys()
    rows |= {row.lsn: row for row in rest}
    assert sorted(rows) == list(range(1, len(rows) + 1)), "rows are missing"
    # Segments that were written and not recorded will be written again.
    for segment in found:
        if segment.rows[0].boot in {row.boot for row in rest} and segment not in line:
            assert [rows[row.lsn] for row in segment.rows] == segment.rows
    return [rows[lsn] for lsn in sorted(rows)]


def covered(rows: Iterable[JournalRow], kind: str) -> dict[int, list[tuple[int, int]]]:
    """By epoch, the ranges of a kind of rows, with adjacent ones merged."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.kind == kind:
            one = spans[row.epoch]
            if one and one[-1][1] + 1 == row.first:
                one[-1] = one[-1][0], row.last
            else:
                one.append((row.first, row.last))
    return dict(spans)
