"""Real segments of a faultless run, and the ways in which they can be damaged on their way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from reliamsg.export.offline import export_file
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Role, digest_of, encode, parse_name
from tests.audit.generated import journals as generated
from tests.checker.histories import make
from tests.checker.test_files import save_all

__all__ = ["a_day_off", "exported", "of", "of_run", "rewritten", "written"]


def exported(directory: Path, *, rows: int = 12) -> Path:
    """Write the journals of a run of two boots below `directory`, as segments of at most this many rows."""
    files, journals = directory / "files", directory / "journals"
    save_all(files, make(7, boots=2))
    for path in sorted(files.rglob("*.db")):
        shutil.copy(path, directory / "export.db")
        export_file(directory / "export.db", journals, segment_rows=rows)
        for left in directory.glob("export.db*"):
            left.unlink()
    return journals


def of_run(
    directory: Path,
    tag: str,
    *,
    rows: int = 6,
    change: Callable[[Sequence[JournalRow]], Sequence[JournalRow]] = lambda rows: rows,
) -> Path:
    """Write the journals of another such run, with `tag` appended to the clients' names.

    `change` is applied to the groups' rows before they are exported.
    """
    for role, name, own in generated(7, tag).clients:
        written(directory, role, name, change(own) if role == "group" else own, rows)
    return directory


def written(
    directory: Path, role: Role, name: str, own: Sequence[JournalRow], rows: int, parent: str | None = None
) -> str:
    """Write a client's rows as segments of at most this many rows; returns the digest of the last."""
    for _, boot in groupby(own, key=lambda row: row.boot):
        left = list(boot)
        while left:
            segment = encode(role, name, left[:rows], parent)
            path = directory / segment.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(segment.data)
            left, parent = left[rows:], segment.digest
    assert parent is not None
    return parent


def a_day_off(rows: Sequence[JournalRow]) -> list[JournalRow]:
    """The rows of a client whose wall clock is a day ahead."""
    day_us = 86_400_000_000
    return [
        replace(row, wall_us=row.wall_us + day_us, wall_last_us=row.wall_last_us + day_us) for row in rows
    ]


def of(journals: Path, role: str) -> list[Path]:
    """The segments of the first client of a role, in order."""
    client = min((journals / f"role={role}").iterdir())

    def first_lsn(path: Path) -> int:
        name = parse_name(path.name)
        assert name is not None
        return name.first_lsn

    return sorted(client.rglob("*.ndjson"), key=first_lsn)


def rewritten(path: Path, data: bytes) -> Path:
    """The segment with other bytes, and the name that matches them."""
    name = parse_name(path.name)
    assert name is not None
    target = path.with_name(path.name.replace(name.digest, digest_of(data)))
    path.unlink()
    target.write_bytes(data)
    return target
