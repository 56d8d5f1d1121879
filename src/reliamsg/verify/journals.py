"""Reading the clients' journals: rows, and what is wrong with them as evidence.

A chain is what one file holds: the boots of one client, one after the other. It is sound when no row is missing
(`lsn` counts without a hole from 1), each boot begins with ``opened``, and the last one ended with ``closed``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reliamsg.errors import StoreCorrupt
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal

__all__ = ["Boot", "Chain", "Role", "find_journals", "read_chain"]

Role = Literal["producer", "group"]

_ROLE: dict[int, Role] = {0x524D4F31: "producer", 0x524D4931: "group"}


@dataclass
class Boot:
    """One opening of a file, and what its ``opened`` row says."""

    name: str
    opened: dict[str, Any]
    rows: list[JournalRow] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return any(row.kind == "closed" for row in self.rows)


@dataclass
class Chain:
    """The journal of one client, from one file."""

    role: Role
    client: str
    source: str
    rows: list[JournalRow]
    broken: list[str] = field(default_factory=list)
    """Why rows may be missing; empty where none is."""
    boots: list[Boot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._split()

    @property
    def finished(self) -> bool:
        """Whether nothing can follow: the last boot was closed."""
        return bool(self.boots) and self.boots[-1].closed

    @property
    def sound(self) -> bool:
        """Whether what the chain does not say did not happen."""
        return not self.broken and self.finished

    def _split(self) -> None:
        if not self.rows:
            self.broken.append("it holds no row")
        expected = 1
        for row in self.rows:
            if row.lsn != expected:
                self.broken.append(f"rows {expected} to {row.lsn - 1} are missing")
            expected = row.lsn + 1
            if not self.boots or self.boots[-1].name != row.boot:
                self._begin(row)
            self.boots[-1].rows.append(row)

    def _begin(self, row: JournalRow) -> None:
        if any(boot.name == row.boot for boot in self.boots):
            self.broken.append(f"boot {row.boot} goes on at row {row.lsn}, after another one began")
        if row.kind != "opened":
            self.broken.append(
                f"boot {row.boot} begins with {row.kind!r} at row {row.lsn}, not with 'opened'"
            )
        self.boots.append(Boot(row.boot, (row.detail or {}) if row.kind == "opened" else {}))


def read_chain(path: str | os.PathLike[str]) -> Chain:
    """The chain of an outbox or inbox, read without changing the file, also while its owner runs.

    A file that can't be read to its end gives a chain that is broken, with what could be read.
    Raises :class:`StoreCorrupt` when it is neither an outbox nor an inbox.
    """
    connection = open_readonly(path)
    rows: list[JournalRow] = []
    broken: list[str] = []
    try:
        role = _ROLE[connection.execute("PRAGMA application_id").fetchone()[0]]
        owner = connection.execute("SELECT value FROM meta WHERE name = 'owner'").fetchone()
        try:
            # Row by row, so that damage in the middle leaves what comes before it.
            for row in read_journal(connection):
                rows.append(row)
        except (sqlite3.Error, ValueError, TypeError, json.JSONDecodeError) as error:
            broken.append(f"it can't be read beyond row {rows[-1].lsn if rows else 0}: {error}")
    except sqlite3.Error as error:
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: {error}") from None
    finally:
        connection.close()
    return Chain(role, owner[0] if owner else "", str(path), rows, broken)


def find_journals(directory: str | os.PathLike[str]) -> tuple[list[Chain], list[str]]:
    """Every outbox and inbox (``*.db``) below `directory`, and a line for each such file that can't be used.

    Databases of other things are passed over.
    """
    chains: list[Chain] = []
    problems: list[str] = []
    for path in sorted(Path(directory).rglob("*.db")):
        if not path.is_file() or _is_foreign(path):
            continue
        try:
            chains.append(read_chain(path))
        except StoreCorrupt as error:
            problems.append(str(error))
    return chains, problems


def merge_copies(chains: Iterable[Chain]) -> list[Chain]:
    """Leave out chains that are an older state of another one: a backup beside the file it was made from."""
    kept: list[Chain] = []
    for chain in sorted(chains, key=lambda c: (c.role, c.client, -len(c.rows))):
        if not any(_is_older_copy(chain, other) for other in kept):
            kept.append(chain)
    return kept


def _is_older_copy(chain: Chain, other: Chain) -> bool:
    """Whether every row of `chain` is in `other`, as it is or extended."""
    if (chain.role, chain.client) != (other.role, other.client) or not chain.rows:
        return False
    rows = {(row.boot, row.lsn): row for row in other.rows}
    return all(
        (twin := rows.get((row.boot, row.lsn))) is not None
        and (twin.kind, twin.first) == (row.kind, row.first)
        and twin.last >= row.last
        for row in chain.rows
    )


def _is_foreign(path: Path) -> bool:
    """Whether a file is a readable SQLite database of something else."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return False
    try:
        return connection.execute("PRAGMA application_id").fetchone()[0] not in _ROLE
    except sqlite3.Error:
        return False
    finally:
        connection.close()
