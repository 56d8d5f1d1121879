"""Reads single segments and heads, and decides whether each is valid evidence.

A segment is valid if its bytes have the digest in its name, if they are a complete segment of a known version, and if
its name and directories agree with its header. Nothing of an invalid segment is used: it counts as missing, and one
line reports the problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from reliamsg.checker.signatures import check_signature
from reliamsg.store.head import Head, boot_of_head, decode_head
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
from reliamsg.trust import Trust

__all__ = ["Sound", "check_head", "check_segment", "claims_to_be_segment", "owner_by_path"]

_OWNER = re.compile(r"(?:^|.*/)role=(?P<role>producer|group)/client=(?P<client>[^/]+)/(?:[^/]+/)*[^/]*")


@dataclass(frozen=True)
class Sound:
    """A valid segment. `path` is where it was found."""

    path: str
    digest: str
    header: Header
    rows: list[JournalRow]
    signed: bool = False
    """Whether it is signed with a key of its client; False if signatures are not checked."""


def owner_by_path(path: str) -> tuple[str, str] | None:
    """The role and client that a file's directories (``role=…/client=…/``) name; None if they name none."""
    found = _OWNER.fullmatch(path)
    return (found["role"], unquote(found["client"])) if found else None


def claims_to_be_segment(path: str, head: bytes) -> bool:
    """Whether a file is, or should be, a segment, judging by its name, its directories or its first line.

    `head` is the beginning of the file: at least its first line, if it has one.
    """
    if parse_name(path.rpartition("/")[2]) is not None or owner_by_path(path) is not None:
        return True
    try:
        found = msgspec.json.decode(head.split(b"\n", 1)[0])
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deep
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def check_segment(path: str, data: bytes, trust: Trust | None = None) -> Sound:
    """Read a segment that was found at `path`, whose parts are separated by ``/``. With `trust`, check its signature.

    Raises :class:`SegmentError`, whose message does not name the file.
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
        raise failure or SegmentError("its name is not that of a segment, so its content can't be verified")
    if digest_of(data) != name.digest:
        if isinstance(failure, SegmentCut):
            raise SegmentError(f"cut: it has {failure}")
        raise SegmentError("edited or damaged: its content does not match the hash in its name")
    if header is None:
        raise failure or AssertionError("decoding gives a header or an error")
    if (name.boot, name.first_lsn) != (header.boot, header.first_lsn):
        raise SegmentError("renamed: its name and its header name different boots or rows")
    _check_owner(path, header)
    line, _, body = data.partition(b"\n")
    signed = trust is not None and check_signature(trust, header.role, header.client, line, body)
    return Sound(path, name.digest, header, rows, signed)


def check_head(path: str, data: bytes, trust: Trust | None = None) -> tuple[Head, bool]:
    """Read a head that was found at `path`, whose name is that of a head; and whether it is signed with a key of its
    client, which is checked with `trust` only.

    Raises :class:`SegmentError`, whose message does not name the file.
    """
    head = decode_head(data)
    if boot_of_head(path.rpartition("/")[2]) != head.boot:
        raise SegmentError("renamed: its name and its content name different boots")
    _check_owner(path, head)
    line = data.partition(b"\n")[0]
    return head, trust is not None and check_signature(trust, head.role, head.client, line, b"")


def _check_owner(path: str, found: Header | Head) -> None:
    owner = owner_by_path(path)
    if owner is not None and owner != (found.role, found.client):
        raise SegmentError(
            f"misplaced: it is among those of {owner[0]} {owner[1]}, but belongs to {found.role} {found.client}"
        )
