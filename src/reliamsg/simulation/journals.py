"""Writes the journals of simulated runs as segments, so that a single audit can cover many runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from reliamsg.checker.journals import Chain, read_chain
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Role, encode

__all__ = ["chains_of", "keep_journals", "renamed_row", "write_segments"]


def keep_journals(directory: Path, target: Path, tail: str) -> None:
    """Write the journals of the files in `directory` below `target`.

    All runs use the same names, so `tail` is appended to the names of clients, topics and groups, for the audit to
    distinguish the runs.
    """
    for chain in chains_of(directory, tail):
        write_segments(target, chain.role, chain.client, chain.rows)


def chains_of(directory: Path, tail: str) -> list[Chain]:
    """The journals of the files in `directory`, with `tail` appended to all names, as if read from segments of which
    none is marked as the last."""
    found = []
    for path in sorted(directory.glob("*.db")):
        chain = read_chain(path)
        rows = [renamed_row(row, tail) for row in chain.rows]
        if rows:  # the process may have terminated before it opened its file
            found.append(Chain(chain.role, chain.client + tail, path.name, rows, to_the_end=False))
    return found


def write_segments(target: Path, role: Role, client: str, rows: Sequence[JournalRow]) -> None:
    """Write a client's rows below `target`, one segment for each boot."""
    parent: str | None = None
    for _, boot in groupby(rows, key=lambda row: row.boot):
        segment = encode(role, client, list(boot), parent)
        path = target / segment.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment.data)
        parent = segment.digest


def renamed_row(row: JournalRow, tail: str) -> JournalRow:
    """The same row with `tail` appended to the names of client, group and topic."""
    detail = row.detail
    if detail and "topics" in detail:
        detail = {**detail, "topics": [topic + tail for topic in detail["topics"]]}
    if detail and "groups" in detail:
        groups = {topic + tail: [name + tail for name in names] for topic, names in detail["groups"].items()}
        detail = {**detail, "groups": groups}
    if detail and isinstance(detail.get("heard"), dict):
        detail = {**detail, "heard": {name + tail: value for name, value in detail["heard"].items()}}
    return replace(
        row,
        producer=row.producer and row.producer + tail,
        topic=row.topic and row.topic + tail,
        group=row.group and row.group + tail,
        detail=detail,
    )
