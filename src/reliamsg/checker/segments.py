"""Reading segments, one at a time: what each is worth as evidence.

A segment is believed when its bytes are those that its name promises, when they are a whole segment of a version that
is known here, and when its name and its directories say the same of it as its header. Of any other nothing is used: it
counts as missing, and one line says what is wrong with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import (
    FORMAT,
    Header,
    SegmentCut,
    SegmentError,
    decode,
    digest_of,
    parse_name,
)

__all__ = ["Sound", "check_segment", "claims_to_be_segment", "owner_by_path"]

_OWNER = re.compile(r"(?:^|.*/)role=(?P<role>producer|group)/client=(?P<client>[^/]+)/(?:[^/]+/)*[^/]*")


@dataclass(frozen=True)
class Sound:
    """A segment that can be believed. `path` is where it was found."""

    path: str
    digest: str
    header: Header
    rows: list[JournalRow]


def owner_by_path(path: str) -> tuple[str, str] | None:
    """The role and client that a file's directories (``role=…/client=…/``) name; None where they name none."""
    found = _OWNER.fullmatch(path)
    return (found["role"], unquote(found["client"])) if found else None


def claims_to_be_segment(path: str, head: bytes) -> bool:
    """Whether a file is a segment or should be one: by its name, its directories, or its first line.

    `head` is how the file begins: its first line, or as much of it as there is.
    """
    if parse_name(path.rpartition("/")[2]) is not None or owner_by_path(path) is not None:
        return True
    try:
        found = msgspec.json.decode(head.split(b"\n", 1)[0])
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deep
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def check_segment(path: str, data: bytes) -> Sound:
    """Read a segment; `path` is where it was found, with ``/`` between the parts.

    Raises :class:`SegmentError`, which says what is wrong without naming the file.
    """
    failure: SegmentError | None = None
    header: Header | None = None
    rows: list[JournalRow] = []
    try:
        header, rows = decode(data)
    except SegmentError as error:
        failure = error
    name = parse_name(path.rpartition("/")[2])
    if name is None:
        raise failure or SegmentError("its name is not a segment's, so nothing says what its bytes should be")
    if digest_of(data) != name.digest:
        if isinstance(failure, SegmentCut):
            raise SegmentError(f"cut: it has {failure}")
        raise SegmentError("edited or damaged: its bytes are not those that its name promises")
    if header is None:
        raise failure or AssertionError("decoding gives a header or an error")
    if (name.boot, name.first_lsn) != (header.boot, header.first_lsn):
        raise SegmentError("renamed: its name and its header are of different boots or rows")
    owner = owner_by_path(path)
    if owner is not None and owner != (header.role, header.client):
        raise SegmentError(
            f"foreign: it lies among those of {owner[0]} {owner[1]}, and is of {header.role} {header.client}"
        )
    return Sound(path, name.digest, header, rows)
