"""Segments: the form in which a journal leaves its client.

A segment is a file of JSON lines (NDJSON, UTF-8, each line ended by ``\\n``). The first line is its header, each
further one a journal row, in order of `lsn`. Its name holds the SHA-256 of all its bytes and its header the one of
the segment before it, so that a segment that is missing, edited or cut can be told from the others; see
``docs/reference/journal.md``.

This is the form alone: no files are touched here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec

from reliamsg.store.journal import JournalRow

__all__ = [
    "FORMAT",
    "VERSION",
    "Header",
    "Name",
    "Segment",
    "SegmentCut",
    "SegmentError",
    "decode",
    "digest_of",
    "encode",
    "parse_name",
]

FORMAT = "reliamsg.journal"
"""What a header calls itself."""
VERSION = 1
"""The version of this form. A reader refuses a higher one."""
Role = Literal["producer", "group"]
_MAX_LSN_DIGITS = 19  # of 2**63
_UNREADABLE = (ValueError, RecursionError)
"""What JSON that is none, is no UTF-8 or nests too deep makes its decoder raise."""
_BOOT = re.compile(r"[0-9a-f]{16}")
_HEX = re.compile(r"[0-9a-f]{1,16}")
_NAME = re.compile(r"(?P<boot>[0-9a-f]{16})-(?P<first>[0-9]{19})-(?P<digest>[0-9a-f]{64})\.ndjson")


class SegmentError(ValueError):
    """Bytes that are no segment of this version; the message says why, without the file's name."""


class SegmentCut(SegmentError):
    """The header can be read, and promises other rows than there are."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment."""

    format: str = FORMAT
    version: int = VERSION
    role: Role
    client: str
    """The producer's or the group's name."""
    boot: str
    """The one opening of the client's file that all rows are from: 16 hex digits."""
    first_lsn: int
    last_lsn: int
    rows: int
    parent: str | None
    """The digest of the segment before this one; None for a client's first."""


@dataclass(frozen=True, slots=True)
class Name:
    """What a segment's file name says."""

    boot: str
    first_lsn: int
    digest: str

    def __str__(self) -> str:
        return f"{self.boot}-{self.first_lsn:0{_MAX_LSN_DIGITS}}-{self.digest}.ndjson"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in memory."""

    header: Header
    data: bytes
    """The file's bytes."""
    digest: str
    """SHA-256 of `data`, as hex digits."""
    path: str
    """Where it belongs below a target, with ``/`` between the parts:
    ``role=…/client=…/date=YYYY-MM-DD/BOOT-FIRST_LSN-DIGEST.ndjson``. The date (UTC) is that of its first row."""


def encode(role: Role, client: str, rows: Sequence[JournalRow], parent: str | None) -> Segment:
    """Make a segment of consecutive rows of one boot; there must be at least one.

    The same rows and parent give the same bytes.
    """
    first, last = rows[0], rows[-1]
    if any(row.boot != first.boot for row in rows) or last.lsn - first.lsn + 1 != len(rows):
        raise ValueError("a segment takes consecutive rows of one boot")
    if _BOOT.fullmatch(first.boot) is None:  # it becomes part of the file's name
        raise ValueError("a boot that is not 16 hexadecimal digits")
    header = Header(
        role=role, client=client, boot=first.boot, first_lsn=first.lsn, last_lsn=last.lsn, rows=len(rows), parent=parent
    )  # fmt: skip
    lines = [msgspec.json.encode(header), *(msgspec.json.encode(row_as_dict(row)) for row in rows)]
    data = b"".join(line + b"\n" for line in lines)
    digest = digest_of(data)
    date = datetime.fromtimestamp(first.wall_us / 1e6, UTC).date().isoformat()
    name = Name(first.boot, first.lsn, digest)
    return Segment(header, data, digest, f"role={role}/client={quote(client, safe='')}/date={date}/{name}")


def decode(data: bytes) -> tuple[Header, list[JournalRow]]:
    """Read a segment. Raises :class:`SegmentError` for what is none, is of a later version, or is cut.

    The digest is the caller's to check: only the name holds it.
    """
    lines = data.split(b"\n")
    header = _header(lines[0])
    if lines[-1] != b"" or len(lines) != header.rows + 2:
        raise SegmentCut(f"{max(0, len(lines) - 2)} whole rows instead of {header.rows}")
    if header.last_lsn - header.first_lsn + 1 != header.rows:
        raise SegmentError("its rows are not those that its header names")
    rows = [row_from_json(line) for line in lines[1:-1]]
    expected = list(range(header.first_lsn, header.last_lsn + 1))
    if [row.lsn for row in rows] != expected or any(row.boot != header.boot for row in rows):
        raise SegmentError("its rows are not those that its header names")
    return header, rows


def parse_name(name: str) -> Name | None:
    """What a file's name says of its segment; None if it is no segment's name."""
    found = _NAME.fullmatch(name)
    return Name(found["boot"], int(found["first"]), found["digest"]) if found else None


def digest_of(data: bytes) -> str:
    """The digest in a segment's name and in the next one's header: SHA-256, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def _header(line: bytes) -> Header:
    try:
        found = msgspec.json.decode(line)
    except _UNREADABLE:
        raise SegmentError("not a journal segment: its first line is no header") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SegmentError("not a journal segment: its first line is no header")
    version = found.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SegmentError(f"written by a newer version (form {version}): update reliamsg")
    try:
        return msgspec.convert(found, Header)
    except msgspec.MsgspecError as error:
        raise SegmentError(f"its header is damaged: {error}") from None


def row_as_dict(row: JournalRow) -> dict[str, Any]:
    """A row as it stands in a segment: numbers of 64 bits that are no counts are hex digits, as in the database;
    what is empty is left out."""
    found: dict[str, Any] = {
        "lsn": row.lsn, "boot": row.boot, "kind": row.kind,
        "wall_us": row.wall_us, "wall_last_us": row.wall_last_us, "mono_us": row.mono_us,
    }  # fmt: skip
    if row.topic or row.producer:
        found |= {"producer": row.producer, "topic": row.topic, "part": row.partition}
    if row.epoch:
        found |= {"epoch": row.epoch, "incarnation": f"{row.incarnation:016x}"}
    if row.first or row.last:
        found |= {"first": row.first, "last": row.last}
    for name in ("site", "group", "reason"):
        if value := getattr(row, name):
            found[name] = value
    if row.digest is not None:
        found["digest"] = f"{row.digest:016x}"
    if row.latency:
        found["latency"] = {str(bucket): count for bucket, count in row.latency.items()}
    if row.detail is not None:
        found["detail"] = row.detail
    return found


def row_from_json(line: bytes) -> JournalRow:
    """A row from its line. Raises :class:`SegmentError`."""
    try:
        found = msgspec.json.decode(line, type=_Line)
        return JournalRow(
            found.lsn, found.boot, found.kind, found.wall_us, found.wall_last_us, found.mono_us,
            found.producer, found.topic, found.part, found.epoch, _number(found.incarnation), found.first, found.last,
            found.site, found.group, found.reason,
            None if found.digest is None else _number(found.digest),
            None if found.latency is None else {int(bucket): count for bucket, count in found.latency.items()},
            found.detail,
        )  # fmt: skip
    except _UNREADABLE as error:
        raise SegmentError(f"a row can't be read: {error}") from None


def _number(digits: str) -> int:
    """64 bits without a sign."""
    if _HEX.fullmatch(digits) is None:
        raise ValueError(f"not up to 16 hexadecimal digits: {digits[:40]!r}")
    return int(digits, 16)


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Line(msgspec.Struct):
    """A row's line. Names that are not known here are passed over."""

    lsn: _Long
    boot: str
    kind: str
    wall_us: _Long
    wall_last_us: _Long
    mono_us: _Long
    producer: str = ""
    topic: str = ""
    part: _Int = 0
    epoch: _Long = 0
    incarnation: str = "0"
    first: _Long = 0
    last: _Long = 0
    site: str = ""
    group: str = ""
    reason: str = ""
    digest: str | None = None
    latency: dict[str, _Long] | None = None
    detail: dict[str, Any] | None = None
