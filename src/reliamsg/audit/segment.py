"""Reads one segment strictly: every row of it, or the reason why none of it is used. Reads heads likewise.

The plain checker has a reader of its own (``reliamsg.checker.segments``), so that the two do not share mistakes. Both
give the same reasons in the same words, and tests compare them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec

__all__ = [
    "Line", "Read", "SegmentHeader", "SegmentName", "StatedIdle", "is_head", "owner_of", "parse_segment_name",
    "read_head", "read_segment",
]  # fmt: skip

_FORMAT, _VERSION = "reliamsg.journal", 2
"""The format name in a segment's header, and the latest supported version."""
_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{19})-([0-9a-f]{64})\.ndjson")
_HEAD_FORMAT = "reliamsg.journal.head"
_HEAD_NAME = re.compile(r"head-([0-9a-f]{16})\.json")
_OWNER = re.compile(r"(?:^|/)role=(producer|group)/client=([^/]+)/")
_NO_HEADER = "not a journal segment: the first line is not a header"
_OTHER_ROWS = "its rows do not match its header"
_ROLES = ("producer", "group")

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Boot = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_is_hex = re.compile("[0-9a-f]{1,16}").fullmatch
_is_bucket = re.compile("[0-9]{1,9}").fullmatch


class Line(msgspec.Struct, gc=False):
    """A row as written. Fields that are missing are empty or 0. Unknown fields are ignored."""

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
    """1 to 16 hex digits."""
    first: _Long = 0
    last: _Long = 0
    site: str = ""
    group: str = ""
    reason: str = ""
    digest: str | None = None
    """1 to 16 hex digits."""
    latency: dict[str, _Count] | None = None
    """Counts by bucket, of 1 to 9 digits."""
    detail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a segment's file name."""

    boot: str
    first_lsn: int
    digest: str


class SegmentHeader(msgspec.Struct, frozen=True):
    """The first line of a segment."""

    role: str
    client: str
    boot: str
    first_lsn: int
    last_lsn: int
    rows: int
    parent: str | None = None
    version: int = _VERSION


class StatedIdle(msgspec.Struct, frozen=True):
    """What a client's head states: when its clock showed `wall_us`, there was no row after `lsn`."""

    version: int
    role: str
    client: str
    boot: _Boot
    lsn: _Natural
    digest: _Digest
    """That of the segment that ends with this row."""
    wall_us: _Natural
    """µs since 1970. The stamps of all later rows are greater."""


@dataclass(frozen=True, slots=True)
class Read:
    """A file that is, or should be, a segment. Without a `problem` it has a header and rows."""

    problem: str | None
    digest: str
    """SHA-256 of the file's bytes, as hex digits."""
    header: SegmentHeader | None = None
    lines: list[Line] | None = None
    first: dict[str, Any] | None = None
    """The object in the first line, of which the header is a part."""


def parse_segment_name(name: str) -> SegmentName | None:
    """Parse a file name; None if it is not that of a segment."""
    found = _NAME.fullmatch(name)
    return SegmentName(found[1], int(found[2]), found[3]) if found else None


def owner_of(path: str) -> tuple[str, str] | None:
    """The role and client that the directories of a path name; None if they name none."""
    found = _OWNER.search(path)
    return (found[1], unquote(found[2])) if found else None


_decoder = msgspec.json.Decoder(Line)
_decode_any = msgspec.json.Decoder().decode
_UNREADABLE = (ValueError, RecursionError)


def read_segment(path: str, data: bytes) -> Read | None:
    """Read the bytes of a file whose name ends in ``.ndjson``. None for the log of an application."""
    digest = hashlib.sha256(data).hexdigest()
    name, owner = parse_segment_name(path.rpartition("/")[2]), owner_of(path)
    top, newline, body = data.partition(b"\n")
    header = _json_object(top)
    is_header = header is not None and header.get("format") == _FORMAT
    if name is None and owner is None and not is_header:
        is_log = header is not None and header.get("op") not in (None, "")
        if is_log or not data.endswith(b"\n"):
            return None
        return Read("neither a journal's segment nor an application's log", digest)
    problem: str | None
    failure, found, lines, cut = _content(header if is_header else None, bool(newline), body)
    if name is None:
        problem = failure or "its name is not that of a segment, so its content can't be verified"
    elif name.digest != digest:
        problem = (
            f"cut: it has {failure}"
            if cut
            else "edited or damaged: its content does not match the hash in its name"
        )
    elif failure is not None:
        problem = failure
    else:
        assert found is not None  # without a failure there is a header
        if (name.boot, name.first_lsn) != (found.boot, found.first_lsn):
            problem = "renamed: its name and its header name different boots or rows"
        else:
            problem = _misplaced(owner, found)
    return Read(problem, digest, found, lines if problem is None else None, header)


def is_head(name: str) -> bool:
    """Whether a file name is that of a head."""
    return _HEAD_NAME.fullmatch(name) is not None


def read_head(path: str, data: bytes) -> StatedIdle | str:
    """Read the bytes of a file whose name is that of a head: what it states, or why that is not used."""
    top, newline, rest = data.partition(b"\n")
    found = _json_object(top)
    if found is None or found.get("format") != _HEAD_FORMAT:
        return "not a journal's head"
    version = found.get("version")
    if not isinstance(version, int) or version > _VERSION:
        return f"written by a newer version (format {version}): upgrade reliamsg"
    if newline + rest != b'\n{"sha256":"' + hashlib.sha256(top).hexdigest().encode() + b'"}\n':
        return "edited or damaged: its content does not match its checksum"
    try:
        head = msgspec.convert(found, StatedIdle)
    except msgspec.ValidationError:
        return "its fields are damaged"
    if head.role not in _ROLES:
        return "its fields are damaged"
    if path.rpartition("/")[2] != f"head-{head.boot}.json":
        return "renamed: its name and its content name different boots"
    return _misplaced(owner_of(path), head) or head


def _misplaced(owner: tuple[str, str] | None, found: SegmentHeader | StatedIdle) -> str | None:
    if owner is not None and owner != (found.role, found.client):
        return f"misplaced: it is among those of {owner[0]} {owner[1]}, but belongs to {found.role} {found.client}"
    return None


def _content(
    top: dict[str, Any] | None, complete_top: bool, body: bytes
) -> tuple[str | None, SegmentHeader | None, list[Line] | None, bool]:
    """Why the content is not a segment, its header and its rows; and whether it only has another number of rows."""
    if top is None:
        return _NO_HEADER, None, None, False
    version = top.get("version")
    if not isinstance(version, int) or version > _VERSION:
        return f"written by a newer version (format {version}): upgrade reliamsg", None, None, False
    header = _header(top)
    if header is None:
        return "its header is damaged", None, None, False
    complete = body.count(b"\n") if complete_top else 0
    if complete != header.rows or not (body.endswith(b"\n") or not body):
        return f"{complete} complete rows instead of {header.rows}", header, None, True
    if header.rows < 1 or header.last_lsn - header.first_lsn + 1 != header.rows:
        return _OTHER_ROWS, header, None, False
    try:
        lines = _decoder.decode_lines(body)
    except _UNREADABLE:
        return "a row can't be read", header, None, False
    if len(lines) != header.rows or not _are_readable(lines):  # an empty line is no row
        return "a row can't be read", header, None, False
    lsn, boot = header.first_lsn, header.boot
    for line in lines:
        if line.lsn != lsn or line.boot != boot:
            return _OTHER_ROWS, header, None, False
        lsn += 1
    return None, header, lines, False


def _are_readable(lines: Sequence[Line]) -> bool:
    """Whether the values that decoding has not checked are valid. Most of them occur in many rows, so that matching
    each of them once takes much less time than patterns in :class:`Line`."""
    incarnations = {line.incarnation for line in lines}
    digests = (line.digest for line in lines if line.digest is not None)
    buckets = {bucket for line in lines if line.latency is not None for bucket in line.latency}
    return (
        all(map(_is_hex, incarnations))
        and all(map(_is_hex, digests))
        and all(map(_is_bucket, buckets))
        and all(_fits(line.detail) for line in lines if line.detail is not None)
    )


def _fits(value: Any) -> bool:
    """Whether all numbers inside fit into 64 bits."""
    match value:
        case dict():
            return all(map(_fits, value.values()))
        case list():
            return all(map(_fits, value))
        case int():
            return -(2**63) <= value < 2**64
    return True


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        found = _decode_any(line)
    except _UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _header(found: dict[str, Any]) -> SegmentHeader | None:
    try:
        header = msgspec.convert(found, SegmentHeader)
    except msgspec.ValidationError:
        return None
    return header if header.role in _ROLES else None
