"""Heads: small files in which idle clients state up to when nothing has happened; see ``docs/reference/journal.md``.

This module encodes and decodes only; it does not access files.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import Annotated
from urllib.parse import quote

import msgspec

from reliamsg.keys import KeyRing
from reliamsg.store.segment import Role, SegmentError
from reliamsg.store.signing import sign_line

__all__ = ["HEAD_FORMAT", "HEAD_VERSION", "Head", "boot_of_head", "decode_head", "encode_head", "head_path"]

HEAD_FORMAT = "reliamsg.journal.head"
HEAD_VERSION = 2
"""The version of the journal's format. A reader rejects higher versions."""
_NAME = re.compile(r"head-(?P<boot>[0-9a-f]{16})\.json")
_UNREADABLE = (ValueError, RecursionError)

_Long = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Boot = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What an idle client states: when its clock showed `wall_us`, there was no row after `lsn`."""

    format: str = HEAD_FORMAT
    version: int = HEAD_VERSION
    role: Role
    client: str
    boot: _Boot
    lsn: _Long
    """The last row that was exported."""
    digest: _Digest
    """That of the segment that ends with this row."""
    wall_us: _Long
    """µs since 1970. The stamps of all later rows are greater."""


def head_path(role: Role, client: str, boot: str) -> str:
    """The path of a head below a target, with ``/`` as separator."""
    return f"role={role}/client={quote(client, safe='')}/head-{boot}.json"


def boot_of_head(name: str) -> str | None:
    """The boot in the name of a head; None if a file name is not that of a head."""
    found = _NAME.fullmatch(name)
    return found["boot"] if found else None


def encode_head(head: Head, keys: KeyRing | None = None) -> bytes:
    """The file's bytes. `keys`: sign it with the key of its client."""
    line = sign_line(msgspec.json.encode(head), b"", keys)
    return b"%b\n%b" % (line, _sum(line))


def decode_head(data: bytes) -> Head:
    """Decode the bytes of a file. Raises :class:`SegmentError`, whose message does not name the file."""
    line, newline, rest = data.partition(b"\n")
    found: object = None
    with contextlib.suppress(*_UNREADABLE):
        found = msgspec.json.decode(line)
    if not isinstance(found, dict) or found.get("format") != HEAD_FORMAT:
        raise SegmentError("not a journal's head")
    version = found.get("version")
    if not isinstance(version, int) or version > HEAD_VERSION:
        raise SegmentError(f"written by a newer version (format {version}): upgrade reliamsg")
    if not newline or rest != _sum(line):
        raise SegmentError("edited or damaged: its content does not match its checksum")
    try:
        return msgspec.convert(found, Head)
    except msgspec.MsgspecError:
        raise SegmentError("its fields are damaged") from None


def _sum(line: bytes) -> bytes:
    return b'{"sha256":"%b"}\n' % hashlib.sha256(line).hexdigest().encode()
