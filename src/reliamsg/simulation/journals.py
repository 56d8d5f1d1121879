"""The journals that simulated runs leave, as segments: so many runs' can be judged by one audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Role, encode
from reliamsg.verify.journals import Chain, read_chain

__all__ = ["chains_of", "keep_journals", "renamed_row", "write_segments"]


def keep_journals(directory: Path, target: Path, tail: str) -> None:
    """Write what the files in `directory` hold of their journals below `target`.

    All runs use the same names: `tail` is put behind those of clients, topics and groups, so that an audit tells runs
    apart.
    """
    for chain in chains_of(directory, tail):
        write_segments(target, chain.role, chain.client, chain.rows)


def chains_of(directory: Path, tail: str) -> list[Chain]:
    """The journals of the files in `directory`, with `tail` behind all names; as from segments, of which none says
    that it is the last."""
    found = []
    for path in sorted(directory.glob("*.db")):
        chain = read_chain(path)
        rows = [renamed_row(row, tail) for row in chain.rows]
        if rows:  # the process may never have got as far as opening its file
            found.append(Chain(chain.role, chain.client + tail, path.name, rows, to_the_end=False))
    return found


def write_segments(target: Path, role: Role, client: str, rows: Sequence[JournalRow]) -> None:
    """Write a client's rows below `target`, a segment for each boot."""
    parent: str | None = None
    for _, boot in groupby(rows, key=lambda row: row.boot):
        segment = encode(role, client, list(boot), parent)
        path = target / segment.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment.data)
        parent = segment.digest


def renamed_row(row: JournalRow, tail: str) -> JournalRow:
    """The same row of another client, group and topic: `tail` is behind their names."""
    detail = row.detail
    if detail and "topics" in detail:
        detail = {**detail, "topics": [topic + tail for topic in detail["topics"]]}
    if detail and "groups" in detail:
        groups = {topic + tail: [name + tail for name in names] for topic, names in detail["groups"].items()}
        detail = {**detail, "groups": groups}
    if detail and "heard" in detail:
        detail = {**detail, "heard": {name + tail: told for name, told in detail["heard"].items()}}
    return replace(
        row,
        producer=row.producer and row.producer + tail,
        topic=row.topic and row.topic + tail,
        group=row.group and row.group + tail,
        detail=detail,
    )
