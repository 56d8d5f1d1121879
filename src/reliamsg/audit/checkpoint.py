"""Encodes and reads checkpoints: what the segments of a client's journal are folded to, as a file.

A checkpoint is evidence like the segments that it covers, whose digests it lists. Its format is that of
``docs/reference/journal.md``. The plain checker has a reader of its own (``reliamsg.checker.checkpoints``), so that the
two do not share mistakes. Both give the same reasons in the same words, and tests compare them.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from reliamsg.audit.fold import Fact, Opening, Part, StreamName
from reliamsg.audit.segment import owner_of
from reliamsg.audit.signed import CHECKPOINT, Signature
from reliamsg.keys import KeyRing
from reliamsg.parquet import ParquetBytes

__all__ = [
    "MAX_BYTES", "Checkpoint", "CheckpointName", "encode_checkpoint", "is_checkpoint", "parse_checkpoint_name",
    "read_checkpoint",
]  # fmt: skip

FORMAT, VERSION = "reliamsg.checkpoint", 1
"""The format name, and the version: of the content as well as of the fold that made it."""
MAX_BYTES = 1024**3
"""Of a checkpoint, and of the content of one of its columns: larger ones are not read."""
_HEADER, _SIGNATURE = b"reliamsg.checkpoint", b"reliamsg.checkpoint.signature"
_NAME = re.compile(r"checkpoint-([0-9]{20})-([0-9a-f]{64})\.parquet")
_COLUMNS = ("producer", "topic", "part", "facts")
_GROUP_ROWS = 10_000
_UNREADABLE = (ValueError, TypeError, RecursionError, OverflowError)

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Sum = Annotated[int, msgspec.Meta(ge=0)]
_Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Point(msgspec.Struct, array_like=True, gc=False):
    last: _Long
    lsn: _Natural
    mark: _Sum
    end_us: _Long
    wall_us: _Long


class _Fact(msgspec.Struct, array_like=True):
    """A :class:`Fact` whose fields are checked."""

    kind: str
    epoch: _Long
    first: _Long
    last: _Long
    lsn: _Natural
    boot: str
    incarnation: _Hex
    site: str
    group: str
    reason: str
    wall_us: _Long
    wall_last_us: _Long
    mono_us: _Long
    digest: _Sum | None
    points: list[_Point] | None
    detail: dict[str, Any] | None


class _Opening(msgspec.Struct, array_like=True):
    boot: str
    first_lsn: _Natural
    last_lsn: _Natural
    kind: str
    incarnation: _Hex
    epoch: _Long
    first_us: _Long
    detail: dict[str, Any] | None
    closed: bool
    published: bool
    end: _Long
    later: set[_Long]
    begun_us: _Long
    changed_us: _Long
    retired: bool


class _Client(msgspec.Struct):
    """What is not about single streams: a :class:`Part`, by name."""

    digests: list[_Digest]
    openings: list[_Opening]
    rows: list[tuple[tuple[str, str, _Int], _Fact]]
    newest: list[tuple[_Natural, _Long]]
    identified: set[tuple[str, _Long, _Hex]]
    referred: set[tuple[str, _Long, _Hex]]
    own: set[tuple[_Long, _Hex]]
    producers: set[str]
    groups: set[str]
    settled: list[tuple[str, str, _Long]]
    opened: set[_Hex]
    topics: set[str]
    latencies: list[tuple[str, str, _Natural, _Long]]
    least_us: _Long
    latest_us: _Long
    mixed: list[tuple[_Long, _Long]]
    old_lsn: _Natural


class _Header(msgspec.Struct, frozen=True):
    role: str
    client: str
    last_lsn: _Natural
    segments: _Natural
    streams: _Natural
    content: _Digest


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """The parts of a checkpoint's file name."""

    last_lsn: int
    digest: str

    def __str__(self) -> str:
        return f"checkpoint-{self.last_lsn:020}-{self.digest}.parquet"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the first segments of a client are folded to."""

    part: Part
    old_lsn: int
    """Rows up to this one are of version 1 of the journals' format."""
    facts: list[tuple[StreamName, bytes]] = field(default_factory=list)
    """The encoded facts of each stream."""
    header: bytes = b""
    """What is signed; empty in one that is not read from a file."""
    signature: Signature | None = None


def parse_checkpoint_name(name: str) -> CheckpointName | None:
    """Parse a file name; None if it is not that of a checkpoint."""
    found = _NAME.fullmatch(name)
    return CheckpointName(int(found[1]), found[2]) if found else None


def is_checkpoint(path: str) -> bool:
    """Whether a file is, or should be, a checkpoint, judging by its name and its directories."""
    name = path.rpartition("/")[2]
    if not (name.startswith("checkpoint-") and name.endswith(".parquet")):
        return False
    return owner_of(path) is not None or _NAME.fullmatch(name) is not None


# -- writing ------------------------------------------------------------------------------------------------


def encode_checkpoint(found: Checkpoint, keys: KeyRing | None = None) -> tuple[CheckpointName, bytes]:
    """The name and content of a file. Raises :class:`ValueError`, :class:`RecursionError` or :class:`OverflowError` for
    what can't be encoded, such as sums of more than 64 bits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = found.part
    rows = [(("", "", 0), msgspec.msgpack.encode(_client_of(found))), *sorted(found.facts)]
    header = msgspec.json.encode(
        {
            "format": FORMAT, "version": VERSION, "role": part.role, "client": part.client, "last_lsn": part.last_lsn,
            "segments": len(part.digests), "streams": len(found.facts), "content": _content_of(rows),
        }
    )  # fmt: skip
    metadata = {_HEADER: header}
    if keys is not None:
        signature = Signature(keys.sign_with or "", keys.sign((CHECKPOINT, header)).hex())
        metadata[_SIGNATURE] = msgspec.json.encode(signature)
    schema = pa.schema(
        [("producer", pa.string()), ("topic", pa.string()), ("part", pa.int32()), ("facts", pa.binary())],
        metadata,
    )
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, len(rows), _GROUP_ROWS):
            own = rows[start : start + _GROUP_ROWS]
            columns = [
                [stream[0] for stream, _ in own], [stream[1] for stream, _ in own], [stream[2] for stream, _ in own],
                [facts for _, facts in own],
            ]  # fmt: skip
            writer.write_batch(pa.record_batch(columns, schema=schema))
    data = file.getvalue()
    return CheckpointName(part.last_lsn, hashlib.sha256(data).hexdigest()), data


def _client_of(found: Checkpoint) -> dict[str, Any]:
    part = found.part
    names = (
        "digests", "openings", "rows", "newest", "producers", "groups", "opened", "topics", "identified", "referred",
        "own", "least_us", "latest_us", "mixed",
    )  # fmt: skip
    values = {name: getattr(part, name) for name in names}
    return {
        **{name: sorted(value) if isinstance(value, set) else value for name, value in values.items()},
        "settled": sorted((*key, lsn) for key, lsn in part.settled.items()),
        "latencies": sorted(
            (*hop, bucket, count)
            for hop, counts in part.latencies.items()
            for bucket, count in counts.items()
        ),
        "old_lsn": found.old_lsn,
    }


def _content_of(rows: Iterable[tuple[StreamName, bytes]]) -> str:
    """The SHA-256 of all rows, each of whose columns is preceded by its length."""
    digest = hashlib.sha256()
    for (producer, topic, part), facts in rows:
        for each in (producer.encode(), topic.encode(), b"%d" % part, facts):
            digest.update(b"%d:" % len(each))
            digest.update(each)
    return digest.hexdigest()


# -- reading ------------------------------------------------------------------------------------------------


class _Unusable(Exception):
    pass


def read_checkpoint(path: str, data: bytes) -> Checkpoint | str:
    """Read the bytes of a file that is, or should be, a checkpoint: its content, or why that is not used. Signatures
    are not checked."""
    try:
        return _read(path, data)
    except _Unusable as error:
        return str(error)


def _read(path: str, data: bytes) -> Checkpoint:
    name = parse_checkpoint_name(path.rpartition("/")[2])
    if name is None:
        raise _Unusable("its name is not that of a checkpoint, so its content can't be verified")
    if len(data) > MAX_BYTES:
        raise _Unusable("too large")
    if hashlib.sha256(data).hexdigest() != name.digest:
        raise _Unusable("edited or damaged: its content does not match the hash in its name")
    file = _opened(data)
    metadata = file.metadata
    top = _decoded(metadata.get(_HEADER, b""))
    if top is None or top.get("format") != FORMAT:
        raise _Unusable("not a checkpoint")
    version = top.get("version")
    if not isinstance(version, int) or version != VERSION:
        raise _Unusable(f"written by another version (format {version}): upgrade reliamsg")
    try:
        header = msgspec.convert(top, _Header)
        signature = None
        if _SIGNATURE in metadata:
            signature = msgspec.json.decode(metadata[_SIGNATURE], type=Signature)
    except _UNREADABLE:
        raise _Unusable("its fields are damaged") from None
    if header.role not in ("producer", "group"):
        raise _Unusable("its fields are damaged")
    if name.last_lsn != header.last_lsn:
        raise _Unusable("renamed: its name and its header name different rows")
    owner = owner_of(path)
    if owner is not None and owner != (header.role, header.client):
        raise _Unusable(
            f"misplaced: it is among those of {owner[0]} {owner[1]}, but belongs to {header.role} {header.client}"
        )
    try:
        return _content(header, _rows_of(file), metadata[_HEADER], signature)
    except _UNREADABLE:
        raise _Unusable("its content is damaged") from None


def _opened(data: bytes) -> ParquetBytes:
    try:
        file = ParquetBytes(data)
    except ValueError:
        raise _Unusable("not a checkpoint: it can't be read as Parquet") from None
    if file.unpacked_bytes > MAX_BYTES:
        raise _Unusable("too large")
    return file


def _rows_of(file: ParquetBytes) -> list[tuple[StreamName, bytes]]:
    return [((producer, topic, part), facts) for producer, topic, part, facts in file.rows(*_COLUMNS)]


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except _UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


_decode_client = msgspec.msgpack.Decoder(_Client).decode
_decode_facts = msgspec.msgpack.Decoder(list[_Fact]).decode


def _content(
    header: _Header, rows: Sequence[tuple[StreamName, bytes]], raw: bytes, signature: Signature | None
) -> Checkpoint:
    """Check everything that a judgement relies on. Raises one of :data:`_UNREADABLE`."""
    for (producer, topic, part), facts in rows:
        if not (isinstance(producer, str) and isinstance(topic, str) and isinstance(facts, bytes)):
            raise ValueError
        if not isinstance(part, int) or not -(2**31) <= part < 2**31:
            raise ValueError
    if not rows or rows[0][0] != ("", "", 0) or _content_of(rows) != header.content:
        raise ValueError
    client, streams = _decode_client(rows[0][1]), rows[1:]
    names = [stream for stream, _ in streams]
    if (
        len(set(names)) < len(names)
        or not all(topic for _, topic, _ in names)
        or len(names) != header.streams
    ):
        raise ValueError
    if not client.digests or len(set(client.digests)) < len(client.digests):
        raise ValueError
    if len(client.digests) != header.segments:
        raise ValueError
    end = 0
    boots: dict[str, list[tuple[int, int]]] = {}
    for opening in client.openings:
        if opening.first_lsn != end + 1 or opening.last_lsn < opening.first_lsn or not _fits(opening.detail):
            raise ValueError
        boots.setdefault(opening.boot, []).append((opening.first_lsn, opening.last_lsn))
        end = opening.last_lsn
    if end != header.last_lsn:
        raise ValueError
    for _, fact in client.rows:
        _check(fact, boots)
    for _, facts in streams:
        for fact in _decode_facts(facts):
            _check(fact, boots)
    return Checkpoint(_part(header, client), client.old_lsn, list(streams), raw, signature)


def _check(fact: _Fact, boots: Mapping[str, Sequence[tuple[int, int]]]) -> None:
    """Raise :class:`ValueError` for a fact of a boot that the checkpoint does not have."""
    if not any(first <= fact.lsn <= last for first, last in boots.get(fact.boot, ())):
        raise ValueError
    if fact.detail is not None and not _fits(fact.detail):
        raise ValueError


def _fits(value: Any) -> bool:
    """Whether a value could be in a segment, where all numbers fit into 64 bits."""
    match value:
        case dict():
            return all(isinstance(name, str) and _fits(each) for name, each in value.items())
        case list():
            return all(map(_fits, value))
        case int():
            return -(2**63) <= value < 2**64
    return value is None or isinstance(value, str | float)


def _part(header: _Header, client: _Client) -> Part:
    latencies: dict[tuple[str, str], dict[int, int]] = {}
    for kind, site, bucket, count in client.latencies:
        if kind not in ("enqueued", "confirmed", "delivered", "acknowledged"):
            raise ValueError
        latencies.setdefault((kind, site), {})[bucket] = count
    return Part(
        header.role, header.client, client.digests, None, 1, header.last_lsn,
        [msgspec.convert(msgspec.to_builtins(each), Opening) for each in client.openings],
        [(stream, msgspec.convert(msgspec.to_builtins(fact), Fact)) for stream, fact in client.rows],
        client.newest, client.identified, client.referred, client.own, client.producers, client.groups,
        {(group, boot): lsn for group, boot, lsn in client.settled}, client.opened, client.topics, latencies,
        client.least_us, client.latest_us, client.mixed, {""},
    )  # fmt: skip
