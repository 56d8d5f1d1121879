"""Writes the journals of simulated runs as segments, so that a single audit can cover many runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from reliamsg.checker.journals import Chain, collect
from reliamsg.simulation.settings import JOURNAL_KEY, journal_secret
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Role, encode
from reliamsg.trust import ClientKeys, Owner, Trust

__all__ = ["chains_of", "keep_journals", "not_signed", "renamed_row", "write_segments"]


def keep_journals(directory: Path, target: Path, tail: str) -> None:
    """Write the journals of the files in `directory` below `target`.

    All runs use the same names, so `tail` is appended to the names of clients, topics and groups, for the audit to
    distinguish the runs.
    """
    for chain in chains_of(directory, tail):
        write_segments(target, chain.role, chain.client, chain.rows)


def chains_of(directory: Path, tail: str) -> list[Chain]:
    """The journals of the files in `directory`, with the segments that were exported below it, and with `tail` appended
    to all names, as if read from segments of which none is marked as the last."""
    return [
        Chain(
            chain.role, chain.client + tail, chain.source, [renamed_row(row, tail) for row in chain.rows],
            to_the_end=False,
        )
        for chain in collect(directory).chains
        if chain.rows  # the process may have terminated before it opened its file
    ]  # fmt: skip


def not_signed(directory: Path, owners: Iterable[Owner]) -> list[str]:
    """What the plain checker, with their keys, says of segments and heads below `directory` that these clients have not
    signed."""
    owners = sorted(owners)
    if not owners or not directory.is_dir():
        return []
    found = collect(
        directory, Trust(ClientKeys({owner: {JOURNAL_KEY: journal_secret(*owner)} for owner in owners}))
    )
    return [line for owner in owners for line in found.not_signed_by(*owner)]


def write_segments(target: Path, role: Role, client: str, rows: Sequence[JournalRow]) -> None:
    """Write a client's rows below `target`, one segment for each boot, or for each part of it between rows that are
    gone."""
    parent: str | None = None
    for _, part in groupby(enumerate(rows), key=lambda each: (each[1].boot, each[1].lsn - each[0])):
        segment = encode(role, client, [row for _, row in part], parent)
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
