"""Segments: the file format of exported journals.

A segment is a file of JSON lines (NDJSON, UTF-8, each line ended by ``\\n``). The first line is its header, and each
other line a journal row, in order of `lsn`. Its name contains the SHA-256 of its content, and its header that of the
previous segment, which reveals missing, edited and truncated segments; see ``docs/reference/journal.md``.

This module encodes and decodes only; it does not access files.
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

from reliamsg.keys import KeyRing
from reliamsg.store.journal import JournalRow
from reliamsg.store.signing import sign_line

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
"""The format name in a header."""
VERSION = 2
"""The format version. A reader rejects higher versions. Version 1 has the same form; its rows are less reliable, see
``docs/reference/journal.md``."""
Role = Literal["producer", "group"]
_MAX_LSN_DIGITS = 19  # of 2**63
_UNREADABLE = (ValueError, RecursionError)
"""Errors of the JSON decoder for input that is malformed, not UTF-8 or nested too deeply."""
_BOOT = re.compile(r"[0-9a-f]{16}")
_HEX = re.compile(r"[0-9a-f]{1,16}")
_NAME = re.compile(r"(?P<boot>[0-9a-f]{16})-(?P<first>[0-9]{19})-(?P<digest>[0-9a-f]{64})\.ndjson")


class SegmentError(ValueError):
    """Data that is not a segment of this version; the message tells why, without the file's name."""


class SegmentCut(SegmentError):
    """The header is readable, but its number of rows differs from the actual number."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment, without its signature (:mod:`reliamsg.store.signing`)."""

    format: str = FORMAT
    version: int = VERSION
    role: Role
    client: str
    """The producer's or the group's name."""
    boot: str
    """The opening of the client's file that all rows belong to: 16 hex digits."""
    first_lsn: int
    last_lsn: int
    rows: int
    parent: str | None
    """The digest of the previous segment; None for a client's first one."""


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a segment's file name."""

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
    """Its path below a target, with ``/`` as separator:
    ``role=…/client=…/date=YYYY-MM-DD/BOOT-FIRST_LSN-DIGEST.ndjson``. The date (UTC) is that of its first row."""


def encode(
    role: Role,
    client: str,
    rows: Sequence[JournalRow],
    parent: str | None,
    version: int = VERSION,
    keys: KeyRing | None = None,
) -> Segment:
    """Encode at least one row, consecutive and of one boot. `version`: that in which the rows were written. `keys`:
    sign it with the key of its client.

    The same arguments result in the same bytes.
    """
    first, last = rows[0], rows[-1]
    if any(row.boot != first.boot for row in rows) or last.lsn - first.lsn + 1 != len(rows):
        raise ValueError("a segment requires consecutive rows of one boot")
    if _BOOT.fullmatch(first.boot) is None:  # it becomes part of the file's name
        raise ValueError("a boot must have 16 hexadecimal digits")
    header = Header(
        version=version, role=role, client=client, boot=first.boot, first_lsn=first.lsn, last_lsn=last.lsn,
        rows=len(rows), parent=parent,
    )  # fmt: skip
    body = b"".join(msgspec.json.encode(row_as_dict(row)) + b"\n" for row in rows)
    data = b"%b\n%b" % (sign_line(msgspec.json.encode(header), body, keys), body)
    digest = digest_of(data)
    date = datetime.fromtimestamp(first.wall_us / 1e6, UTC).date().isoformat()
    name = Name(first.boot, first.lsn, digest)
    return Segment(header, data, digest, f"role={role}/client={quote(client, safe='')}/date={date}/{name}")


def decode(data: bytes) -> tuple[Header, list[JournalRow]]:
    """Decode a segment. Raises :class:`SegmentError` for other data, later versions and truncated segments.

    The caller has to check the digest, which only the file's name contains.
    """
    lines = data.split(b"\n")
    header = _header(lines[0])
    if lines[-1] != b"" or len(lines) != header.rows + 2:
        raise SegmentCut(f"{max(0, len(lines) - 2)} complete rows instead of {header.rows}")
    if header.last_lsn - header.first_lsn + 1 != header.rows:
        raise SegmentError("its rows do not match its header")
    rows = [row_from_json(line) for line in lines[1:-1]]
    expected = list(range(header.first_lsn, header.last_lsn + 1))
    if [row.lsn for row in rows] != expected or any(row.boot != header.boot for row in rows):
        raise SegmentError("its rows do not match its header")
    return header, rows


def parse_name(name: str) -> Name | None:
    """Parse a file name; None if it is not the name of a segment."""
    found = _NAME.fullmatch(name)
    return Name(found["boot"], int(found["first"]), found["digest"]) if found else None


def digest_of(data: bytes) -> str:
    """The digest in a segment's name and in the next one's header: SHA-256, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def _header(line: bytes) -> Header:
    try:
        found = msgspec.json.decode(line)
    except _UNREADABLE:
        raise SegmentError("not a journal segment: the first line is not a header") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SegmentError("not a journal segment: the first line is not a header")
    version = found.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SegmentError(f"written by a newer version (format {version}): upgrade reliamsg")
    try:
        return msgspec.convert(found, Header)
    except msgspec.MsgspecError as error:
        raise SegmentError(f"its header is damaged: {error}") from None


def row_as_dict(row: JournalRow) -> dict[str, Any]:
    """A row as in a segment: 64-bit identifiers are hex digits, as in the database; empty fields are omitted."""
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
    """Decode a row. Raises :class:`SegmentError`."""
    try:
        found = msgspec.json.decode(line, type=_Line)
        _check_size(found.detail)
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


def _check_size(value: Any) -> None:
    """Raise ValueError for a number of more than 64 bits, anywhere inside."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_size(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"a number of more than 64 bits: {value}")


def _number(digits: str) -> int:
    """Parse an unsigned 64-bit number."""
    if _HEX.fullmatch(digits) is None:
        raise ValueError(f"not up to 16 hexadecimal digits: {digits[:40]!r}")
    return int(digits, 16)


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Bucket = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Line(msgspec.Struct):
    """A row's line. Unknown fields are ignored."""

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
    latency: dict[_Bucket, _Count] | None = None
    detail: dict[str, Any] | None = None
