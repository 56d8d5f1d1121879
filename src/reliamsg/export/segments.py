"""From a cut in a file to the segment that holds its rows."""

from __future__ import annotations

import os
import sqlite3
from typing import Literal
from urllib.parse import quote

from reliamsg.errors import ConfigError, StoreCorrupt
from reliamsg.store.exported import Cut, read_cut
from reliamsg.store.segment import Segment, encode

__all__ = ["Role", "check_client", "make_segment"]

Role = Literal["producer", "group"]
MAX_PART_BYTES = 240
"""Longest name of a directory below a target; most file systems end at 255."""


def check_client(name: str) -> str:
    """Return the name of a client, or raise :class:`ConfigError` if no directory can be named after it."""
    size = len(f"client={quote(name, safe='')}")
    if size > MAX_PART_BYTES:
        raise ConfigError(
            f"journal: {name!r} is too long as a directory's name: {size} of {MAX_PART_BYTES} bytes, since each byte"
            " that is not ASCII takes three"
        )
    return name


def make_segment(path: str | os.PathLike[str], role: Role, client: str, cut: Cut) -> Segment:
    """The segment of a cut, the same whenever it is made. Reads the file through a connection of its own.

    Raises :class:`StoreCorrupt` when the rows can't be read.
    """
    try:
        rows = read_cut(path, cut)
        if [rows[0].lsn, rows[-1].lsn, len(rows)] != [cut.first_lsn, cut.last_lsn, cut.rows]:
            raise IndexError
        return encode(role, client, rows, cut.parent)
    except (sqlite3.Error, ValueError) as error:
        raise StoreCorrupt(f"{os.fspath(path)}: the journal can't be read: {error}") from error
    except IndexError:
        raise StoreCorrupt(
            f"{os.fspath(path)}: rows {cut.first_lsn} to {cut.last_lsn} of the journal are not all there"
        ) from None
