"""Makes segments of the rows of a client's file."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from reliamsg.errors import ConfigError, StoreCorrupt
from reliamsg.keys import KeyRing
from reliamsg.store.exported import Cut, Exported, read_cut
from reliamsg.store.segment import Segment, encode

__all__ = ["JournalSource", "Role", "check_client", "make_segment"]

Role = Literal["producer", "group"]
MAX_PART_BYTES = 240
"""The maximum length of a directory's name below a target; most file systems allow 255."""


@dataclass(frozen=True, slots=True)
class JournalSource:
    """A client, its file, and the export state of the file."""

    role: Role
    client: str
    path: str | os.PathLike[str]
    exported: Exported


def check_client(name: str) -> str:
    """Return the name of a client, or raise :class:`ConfigError` if it can't be the name of a directory."""
    size = len(f"client={quote(name, safe='')}")
    if size > MAX_PART_BYTES:
        raise ConfigError(
            f"journal: {name!r} is too long as a directory's name: {size} bytes, and the limit is {MAX_PART_BYTES}"
            " (a byte that is not ASCII takes three)"
        )
    return name


def make_segment(source: JournalSource, cut: Cut, key: KeyRing | None = None) -> Segment:
    """The segment of a cut, deterministically, signed if there is a key. Reads the file through a separate connection.

    Raises :class:`StoreCorrupt` if the rows are unreadable.
    """
    path = os.fspath(source.path)
    try:
        rows = read_cut(path, cut)
        if [row.lsn for row in rows] != list(range(cut.first_lsn, cut.last_lsn + 1)):
            raise StoreCorrupt(
                f"{path}: rows {cut.first_lsn} to {cut.last_lsn} of the journal are incomplete"
            )
        return encode(source.role, source.client, rows, cut.parent, cut.version, key)
    except (sqlite3.Error, ValueError) as error:
        raise StoreCorrupt(f"{path}: the journal can't be read: {error}") from error
