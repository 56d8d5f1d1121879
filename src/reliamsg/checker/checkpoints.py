"""Reads checkpoints (docs/reference/journal.md), unfolds them into rows, and decides which of them are used.

A checkpoint replaces the segments that it lists. A segment that lies before its end and that it does not list belongs
to a copy of the client's file. If all segments are still there, they are used instead; otherwise its rows can't be
compared, and the evidence is broken.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from reliamsg.checker.segments import owner_by_path
from reliamsg.keys import KeyRing
from reliamsg.parquet import ParquetBytes
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Name, SegmentError

__all__ = ["UNVERIFIED", "Choice", "Covered", "End", "check_checkpoint", "choose", "claims_to_be_checkpoint"]

FORMAT, VERSION = "reliamsg.checkpoint", 1
MAX_BYTES = 1024**3
"""Of a checkpoint, and of its content: larger ones are not read."""
_NAME = re.compile(r"checkpoint-(?P<last>[0-9]{20})-(?P<digest>[0-9a-f]{64})\.parquet")
UNVERIFIED = "whether segments in it were signed is unknown: --journal-keys needs --checkpoint-keys"
"""Why a checkpoint is not used where segments must be signed by their clients, and the auditor's keys are not given."""
_DAMAGED = "its content is damaged"
_FIELDS = "its fields are damaged"
_WRONG = (ValueError, TypeError, RecursionError, OverflowError)

_I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_N63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_U64 = Annotated[int, msgspec.Meta(ge=0)]
_Hex16 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Fact = tuple[
    str, _I64, _I64, _I64, _N63, str, _Hex16, str, str, str, _I64, _I64, _I64, _U64 | None,
    list[tuple[_I64, _N63, _U64, _I64, _I64]] | None, dict[str, Any] | None,
]  # fmt: skip
"""kind, epoch, first, last, lsn, boot, incarnation, site, group, reason, wall_us, wall_last_us, mono_us, digest, points
and detail; a point: last, lsn of the next row, mark, end_us, and wall_us of the next row."""
_Opening = tuple[
    str,
    _N63,
    _N63,
    str,
    _Hex16,
    _I64,
    _I64,
    dict[str, Any] | None,
    bool,
    bool,
    _I64,
    list[_I64],
    _I64,
    _I64,
    bool,
]


class _Client(msgspec.Struct, kw_only=True):
    """What is not about single streams. Most is for the audit only, but must be there."""

    digests: list[_Hex64]
    openings: list[_Opening]
    rows: list[tuple[tuple[str, str, _I32], _Fact]]
    newest: list[tuple[_N63, _I64]]
    identified: list[tuple[str, _I64, _Hex16]]
    referred: list[tuple[str, _I64, _Hex16]]
    own: list[tuple[_I64, _Hex16]]
    producers: list[str]
    groups: list[str]
    settled: list[tuple[str, str, _I64]]
    opened: list[_Hex16]
    topics: list[str]
    latencies: list[tuple[str, str, _N63, _I64]]
    least_us: _I64
    latest_us: _I64
    mixed: list[tuple[_I64, _I64]]
    old_lsn: _N63


class _Header(msgspec.Struct):
    role: str
    client: str
    last_lsn: _N63
    segments: _N63
    streams: _N63
    content: _Hex64


class _Signature(msgspec.Struct):
    key: str
    hmac: _Hex64


@dataclass(frozen=True)
class End:
    """How the rows of a boot end, which may have become part of earlier ones."""

    last_lsn: int
    begun_us: int
    """The time at which the last row began."""
    changed_us: int
    """The latest time in any row."""


@dataclass(frozen=True)
class Covered:
    """A valid checkpoint: the rows of segments that it covers."""

    path: str
    role: str
    client: str
    last_lsn: int
    """All rows up to this one are there, though several of them may be one."""
    digests: Sequence[str]
    rows: list[JournalRow]
    ends: dict[tuple[str, int], End]
    """By boot and its first row."""
    mixed: list[tuple[int, int]]
    """Half-open periods in which the client's clock was set or ran backwards."""
    latest_us: int
    """The latest time at which a row began."""
    old_lsn: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def claims_to_be_checkpoint(path: str) -> bool:
    """Whether a file is, or should be, a checkpoint, judging by its name and its directories."""
    name = path.rpartition("/")[2]
    if _NAME.fullmatch(name) is not None:
        return True
    return name.startswith("checkpoint-") and name.endswith(".parquet") and owner_by_path(path) is not None


def check_checkpoint(path: str, data: bytes, keys: KeyRing | None = None) -> Covered:
    """Read a checkpoint that was found at `path`, and check its signature if there are `keys`.

    Raises :class:`SegmentError`, whose message does not name the file.
    """
    name = _NAME.fullmatch(path.rpartition("/")[2])
    if name is None:
        raise SegmentError("its name is not that of a checkpoint, so its content can't be verified")
    if len(data) > MAX_BYTES:
        raise SegmentError("too large")
    if hashlib.sha256(data).hexdigest() != name["digest"]:
        raise SegmentError("edited or damaged: its content does not match the hash in its name")
    file = _opened(data)
    raw = file.metadata.get(b"reliamsg.checkpoint", b"")
    header = _header(raw)
    signature = _signature(file.metadata.get(b"reliamsg.checkpoint.signature"))
    if header.role not in ("producer", "group"):
        raise SegmentError(_FIELDS)
    if int(name["last"]) != header.last_lsn:
        raise SegmentError("renamed: its name and its header name different rows")
    owner = owner_by_path(path)
    if owner is not None and owner != (header.role, header.client):
        raise SegmentError(
            f"misplaced: it is among those of {owner[0]} {owner[1]}, but belongs to {header.role} {header.client}"
        )
    try:
        found = _covered(path, header, _records(file))
    except _WRONG:
        raise SegmentError(_DAMAGED) from None
    if keys is not None:
        _check_signature(raw, signature, keys)
    return found


def _opened(data: bytes) -> ParquetBytes:
    try:
        file = ParquetBytes(data)
    except ImportError:
        raise SegmentError("it can't be read without pyarrow: pip install 'reliamsg[audit]'") from None
    except ValueError:
        raise SegmentError("not a checkpoint: it can't be read as Parquet") from None
    if file.unpacked_bytes > MAX_BYTES:
        raise SegmentError("too large")
    return file


def _header(raw: bytes) -> _Header:
    try:
        found = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SegmentError("not a checkpoint")
    if not isinstance(found.get("version"), int) or found["version"] != VERSION:
        raise SegmentError(f"written by another version (format {found.get('version')}): upgrade reliamsg")
    try:
        return msgspec.convert(found, _Header)
    except _WRONG:
        raise SegmentError(_FIELDS) from None


def _signature(raw: bytes | None) -> _Signature | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=_Signature)
    except _WRONG:
        raise SegmentError(_FIELDS) from None


def _check_signature(header: bytes, signature: _Signature | None, keys: KeyRing) -> None:
    if signature is None:
        raise SegmentError("not signed")
    if signature.key not in keys.key_ids:
        raise SegmentError("signed with an unknown key")
    if not keys.verifies(signature.key, bytes.fromhex(signature.hmac), [b"reliamsg checkpoint 1", header]):
        raise SegmentError("its signature is wrong")


def _records(file: ParquetBytes) -> list[tuple[str, str, int, bytes]]:
    """The rows of the Parquet file, each a stream with its facts."""
    records = []
    for producer, topic, part, facts in file.rows("producer", "topic", "part", "facts"):
        record = (producer, topic, part, facts)
        if tuple(map(type, record)) != (str, str, int, bytes) or not -(2**31) <= part < 2**31:
            raise ValueError
        records.append(record)
    return records


def _covered(path: str, header: _Header, records: Sequence[tuple[str, str, int, bytes]]) -> Covered:
    """Unfold everything. Raises one of :data:`_WRONG` for what no compaction writes."""
    _check_records(header, records)
    client = msgspec.msgpack.decode(records[0][3], type=_Client)
    if not client.digests or len(client.digests) != header.segments:
        raise ValueError
    if len(set(client.digests)) < len(client.digests):
        raise ValueError
    ends: dict[tuple[str, int], End] = {}
    places: dict[str, list[tuple[int, int]]] = {}
    end = 0
    for opening in client.openings:
        boot, first_lsn, last_lsn, begun_us, changed_us = *opening[:3], opening[12], opening[13]
        if first_lsn != end + 1 or last_lsn < first_lsn or not _is_json(opening[7]):
            raise ValueError
        places.setdefault(boot, []).append((first_lsn, last_lsn))
        ends[boot, first_lsn] = End(last_lsn, begun_us, changed_us)
        end = last_lsn
    if end != header.last_lsn:
        raise ValueError
    rows: dict[tuple[int, str], JournalRow] = {}
    about = [(name, fact) for name, fact in client.rows]
    for producer, topic, part, data in records[1:]:
        about += [((producer, topic, part), fact) for fact in msgspec.msgpack.decode(data, type=list[_Fact])]
    for stream, fact in about:
        lsn, detail = fact[4], fact[15]
        if not any(low <= lsn <= high for low, high in places.get(fact[5], ())) or not _is_json(detail):
            raise ValueError
        for row in _unfolded(stream, fact):
            rows[row.lsn, row.boot] = row
    ordered = _with_latencies([rows[place] for place in sorted(rows)], client.latencies)
    return Covered(
        path, header.role, header.client, header.last_lsn, client.digests, ordered, ends, client.mixed,
        client.latest_us, client.old_lsn,
    )  # fmt: skip


def _check_records(header: _Header, records: Sequence[tuple[str, str, int, bytes]]) -> None:
    digest = hashlib.sha256()
    for producer, topic, part, facts in records:
        for each in (producer.encode(), topic.encode(), str(part).encode(), facts):
            digest.update(f"{len(each)}:".encode() + each)
    names = [record[:3] for record in records]
    if not names or names[0] != ("", "", 0) or digest.hexdigest() != header.content:
        raise ValueError
    if len(set(names)) < len(names) or len(names) != header.streams + 1:
        raise ValueError
    if any(not topic for _, topic, _ in names[1:]):
        raise ValueError


def _is_json(value: Any) -> bool:
    """Whether a value could be in a segment, where all numbers fit into 64 bits."""
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return value is None or isinstance(value, str | float)


def _unfolded(stream: tuple[str, str, int], fact: _Fact) -> Iterator[JournalRow]:
    """The rows of which a fact consists, as far as their boundaries are known."""
    (
        kind, epoch, first, last, lsn, boot, incarnation, site, group, reason, wall_us, wall_last_us, mono_us, digest,
        points, detail,
    ) = fact  # fmt: skip
    whole = JournalRow(
        lsn, boot, kind, wall_us, wall_last_us, mono_us, *stream, epoch, int(incarnation, 16), first, last, site, group,
        reason, digest, None, detail,
    )  # fmt: skip
    if points is None:
        yield whole
        return
    before = 0
    for end, next_lsn, mark, end_us, next_us in points:
        yield _piece(whole, (first, lsn, wall_us), (end, mark, end_us), before)
        before = mark if digest is not None else 0
        first, lsn, wall_us = end + 1, next_lsn, next_us
    if kind == "consumed":
        yield replace(whole, first=first, lsn=lsn, wall_us=wall_us)
    else:
        yield _piece(whole, (first, lsn, wall_us), (last, digest or 0, wall_last_us), before)


def _piece(
    whole: JournalRow, start: tuple[int, int, int], end: tuple[int, int, int], before: int
) -> JournalRow:
    """One row of several. `start`: its first number, lsn and time; `end`: its last number, mark and time."""
    (first, lsn, wall_us), (last, mark, wall_last_us) = start, end
    found = replace(whole, first=first, last=last, lsn=lsn, wall_us=wall_us, wall_last_us=wall_last_us)
    if whole.kind == "consumed":
        journal = (whole.detail or {}).get("journal")
        if not isinstance(journal, list) or len(journal) != 2:
            raise ValueError
        return replace(found, detail={"journal": [journal[0], mark]})
    return found if whole.digest is None else replace(found, digest=(mark - before) % 2**64)


def _with_latencies(
    rows: list[JournalRow], latencies: Iterable[tuple[str, str, int, int]]
) -> list[JournalRow]:
    """The rows, of which the first of each kind, and site, has the latencies of all."""
    sums: dict[tuple[str, str], dict[int, int]] = {}
    for kind, site, bucket, count in latencies:
        if kind not in ("enqueued", "confirmed", "delivered", "acknowledged"):
            raise ValueError
        sums.setdefault((kind, site), {})[bucket] = count
    found = []
    for row in rows:
        own = sums.pop((row.kind, row.site if row.kind == "confirmed" else ""), None)
        found.append(row if own is None else replace(row, latency=own))
    return found


# -- which are used -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Which checkpoint of a client is used, and which files are not read."""

    used: Covered | None = None
    unread: frozenset[str] = frozenset()
    """Paths of segments."""
    duplicated: int = 0
    """Further copies of segments that are not read."""
    problems: list[str] = field(default_factory=list)


def choose(checkpoints: Sequence[Covered], segments: Sequence[tuple[str, Name]]) -> Choice:
    """Decide by the digests and the names of segments. `checkpoints`: the valid ones of one client."""
    if not checkpoints:
        return Choice()
    best, *others = sorted(checkpoints, key=lambda each: (-each.last_lsn, each.name))
    listed = set(best.digests)
    strange = [
        (path, name)
        for path, name in segments
        if name.digest not in listed and name.first_lsn <= best.last_lsn
    ]
    against = [each for each in others if list(best.digests[: len(each.digests)]) != list(each.digests)]
    there = {name.digest for _, name in segments}
    if strange or against:
        needed = listed.union(*(each.digests for each in against))
        if needed <= there:
            return Choice()
    covered = [(path, name) for path, name in segments if name.digest in listed]
    lines = sorted({path.rpartition("/")[2] for path, _ in strange} | {each.name for each in against})
    why = (
        f"it forks off before the end of {best.name}, whose segments are gone, so its rows can't be compared"
    )
    return Choice(
        best,
        frozenset(path for path, _ in (*covered, *strange)),
        len(covered) - len({name for _, name in covered}),
        [f"{line}: {why}" for line in lines],
    )
