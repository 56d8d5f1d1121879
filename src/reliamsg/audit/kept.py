"""Keeps what audits have folded in a directory, so that the next audit reads only new segments.

The directory holds files that are never changed, and ``kept.json``, which lists them with their SHA-256 and is replaced
as a whole. So an audit that is interrupted at any time leaves the state before or after it. Everything in it can be
folded again from the segments.

With the auditor's keys, ``kept.json`` is signed, and with it all files that it lists. Nothing in a file is then decoded
before it is verified.

Only a client's journal from its first row on, without a hole, is kept, and as one line: if its file turns out to have
been copied before the last row that is kept, the client is folded anew.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from reliamsg.audit.acceptances import (
    LOCK,
    PREFIX,
    has_acceptances,
    has_signed_acceptances,
    read_acceptances,
    renew_acceptances,
)
from reliamsg.audit.accepted import Acceptances
from reliamsg.audit.compacted import Checkpoints, choose
from reliamsg.audit.joining import Seam, follows, join_parts, seam_of
from reliamsg.audit.lineage import Damaged, Histories, Placed
from reliamsg.audit.segment import is_head, owner_of, parse_segment_name
from reliamsg.audit.signatures import is_trusted
from reliamsg.audit.signed import STATE, encode_signed, read_signed
from reliamsg.audit.sources import File, Found
from reliamsg.audit.windows import Audited
from reliamsg.errors import ConfigError
from reliamsg.files import make_directories, read_regular, replace_file
from reliamsg.keys import KeyRing
from reliamsg.parquet import ParquetBytes
from reliamsg.trust import Trust

__all__ = [
    "Kept", "KeptFile", "Merge", "Plan", "Record", "check_keys_of", "is_state", "merges", "read_audited", "read_facts",
    "storable", "write_facts",
]  # fmt: skip

FORMAT = "reliamsg.audit.kept"
VERSION = 2
"""Of the fold, too: what another version has folded is folded again."""
MAX_FILES = 64
MAX_PARTS = 16
"""More parts of one client, or files, are joined."""
_MANIFEST, _LOCK = "kept.json", "kept.lock"
_REMEDY = "remove it, and audit again"
_BATCH_ROWS = 10_000

_T = TypeVar("_T")

Record = tuple[tuple[tuple[str, str, int], int], bytes]
"""The encoded facts of a stream in the part with a number."""


class KeptFile(msgspec.Struct, frozen=True):
    """A file of the state."""

    name: str
    sha256: str
    parts: bool = False
    """Whether it has parts, not facts of streams."""


class _Version(msgspec.Struct):
    version: int


class _Manifest(msgspec.Struct, frozen=True):
    format: str
    version: int
    files: list[KeptFile]
    audited: KeptFile | None = None
    """The result of the latest audit."""


@dataclass(slots=True)
class Plan:
    """What an audit has to read, and what it need not read again."""

    found: Found
    """The files to read."""
    trust: Trust | None = None
    """Against which signatures are checked, if they are."""
    placed: list[Placed] = field(default_factory=list)
    """The parts that are kept and stay valid."""
    duplicated: int = 0
    """Further copies of segments that are not read."""
    damaged: list[Damaged] = field(default_factory=list)
    """Checkpoints, and what can't be compared with them."""
    checkpoints: int = 0
    """The number of valid checkpoints."""

    def with_checkpoints(self, checkpoints: Checkpoints) -> Plan:
        """The plan for the clients of which nothing is kept that stays valid."""
        kept = {(each.part.role, each.part.client) for each in self.placed}
        valid = {owner: own for owner, own in checkpoints.valid.items() if owner not in kept}
        found, used, damaged, duplicated = choose(self.found, valid)
        return Plan(
            found, self.trust, [*self.placed, *(each.placed() for each in used)], self.duplicated + duplicated,
            [*checkpoints.damaged, *damaged], checkpoints.count,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Merge:
    """Parts of one client that become one."""

    placed: Placed
    """The result."""
    places: dict[int, int]
    """By number, the place of a part in their order."""
    seams: list[Seam]
    """Before each part but the first."""


class Kept:
    """The state of audits in a directory, which is created if necessary, for one audit at a time.

    With `keys`, it must be signed by one of them, and what is written is signed with their key for signing. Raises
    :class:`ConfigError` if it is not, if it is signed and there are no keys, if another audit is using it, or if it
    holds something else, and :class:`OSError` if it can't be read.
    """

    def __init__(self, path: str | os.PathLike[str], keys: KeyRing | None = None) -> None:
        self._path, self._keys = Path(path).absolute(), keys
        if self._path.exists() and not self._path.is_dir():
            raise ConfigError(f"{path}: there is a file where the state of audits should be")
        strange = sorted(each.name for each in self._path.glob("*") if not _is_ours(each))
        if strange:
            raise ConfigError(f"{path}: holds other things than the state of audits ({strange[0]})")
        make_directories(self._path)
        self._lock = FileLock(self._path / _LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"{path}: another audit is using this state") from None
        except OSError as error:
            raise OSError(f"{path}: can't be locked: {error.strerror or error}") from error
        try:
            check_keys_of(self._path, keys)
            self._manifest = _read_manifest(self._path, keys)
            self._placed = [each for file in self._of(parts=True) for each in self._read_parts(file)]
            self.audited = _read_audited(self._path, self._manifest)
            """The result of the latest audit; None if there was none."""
            self.acceptances: Acceptances = read_acceptances(self._path, keys)
            """What operators have accepted."""
            if keys is not None:
                renew_acceptances(self._path, keys)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Let another audit use it."""
        self._lock.release()

    @property
    def place(self) -> str:
        """Its directory."""
        return str(self._path)

    @property
    def is_verified(self) -> bool:
        """Whether it had to be signed by one of the auditor's keys."""
        return self._keys is not None

    @property
    def facts(self) -> list[KeptFile]:
        """The files with the facts of streams."""
        return self._of(parts=False)

    @property
    def is_scattered(self) -> bool:
        """Whether it should be written anew, with fewer parts and files."""
        parts = Counter((each.part.role, each.part.client) for each in self._placed)
        return len(self._manifest.files) > MAX_FILES or max(parts.values(), default=0) > MAX_PARTS

    @property
    def placed(self) -> list[Placed]:
        """The parts that it has."""
        return list(self._placed)

    def plan(
        self,
        found: Found,
        checkpoints: Mapping[tuple[str, str], Sequence[Collection[str]]],
        trust: Trust | None = None,
    ) -> Plan:
        """Divide what was found into what is kept and what has to be read: also what was kept without having been
        verified against these keys, or although they no longer verify it. `checkpoints`: by client, the digests that
        each of its checkpoints lists. One that lists more than is kept takes the place of that."""
        kept: dict[tuple[str, str], list[Placed]] = defaultdict(list)
        for each in self._placed:
            kept[each.part.role, each.part.client].append(each)
        digests = {
            owner: {digest for each in own for digest in each.part.digests} for owner, own in kept.items()
        }
        owners = {digest: owner for owner, own in digests.items() for digest in own}
        ends = {owner: max(each.part.last_lsn for each in own) for owner, own in kept.items()}
        known: dict[tuple[str, str], list[File]] = defaultdict(list)
        unread: list[File] = []
        reopened = {
            owner
            for owner, own in kept.items()
            if trust is not None and not is_trusted([each.part for each in own], trust)
        } | {
            owner for owner, own in checkpoints.items()
            if owner in digests and not all(digests[owner].issuperset(each) for each in own)
        }  # fmt: skip
        for file in found.files:
            owner, name = owner_of(file.path), None if is_head(file.name) else parse_segment_name(file.name)
            if owner is None and name is not None:
                owner = owners.get(name.digest)
                if owner is None:  # it may be of any client, and from a copy of its file
                    reopened.update(each for each, end in ends.items() if name.first_lsn <= end)
            if owner is None or name is None or owner not in kept:
                unread.append(file)
            elif name.digest in digests[owner]:
                known[owner].append(file)
            else:
                unread.append(file)
                if name.first_lsn <= ends[owner]:
                    reopened.add(owner)
        placed = [each for each in self._placed if (each.part.role, each.part.client) not in reopened]
        duplicated = sum(
            len(files) - len({file.name for file in files})
            for owner, files in known.items()
            if owner not in reopened
        )
        again = [file for owner in sorted(reopened) for file in known[owner]]
        return Plan(replace(found, files=[*unread, *again]), trust, placed, duplicated)

    def commit(
        self, placed: Sequence[Placed], files: Sequence[KeptFile], audited: Audited, *, anew: bool
    ) -> None:
        """Replace the state by that after an audit: `placed` are all parts that it has from now on, `files` those that
        were written with their facts; if `anew`, there are no others."""
        data = msgspec.msgpack.encode(list(placed))
        facts = list(files) if anew else [*self.facts, *files]
        self._put([*facts, self._write(f"parts-{secrets.token_hex(8)}.msgpack", data)], audited)
        self._placed = list(placed)

    def note(self, audited: Audited) -> None:
        """Keep the result of an audit that has found nothing else to keep."""
        self._put(self._manifest.files, audited)

    def _put(self, files: Sequence[KeptFile], audited: Audited) -> None:
        """Put files and a result in the place of all others."""
        result = self._write(f"audited-{secrets.token_hex(8)}.msgpack", msgspec.msgpack.encode(audited))
        manifest = _Manifest(FORMAT, VERSION, list(files), result)
        self._write(_MANIFEST, encode_signed(manifest, self._keys, STATE))
        self._manifest, self.audited = manifest, audited
        current = {each.name for each in (*manifest.files, result)} | {_MANIFEST, _LOCK, LOCK}
        for path in self._path.iterdir():
            if path.name not in current and not path.name.lstrip(".").startswith(PREFIX):
                path.unlink(missing_ok=True)

    def _of(self, *, parts: bool) -> list[KeptFile]:
        return [each for each in self._manifest.files if each.parts is parts]

    def _read_parts(self, file: KeptFile) -> list[Placed]:
        return _decoded(self._path, file, list[Placed])

    def _write(self, name: str, data: bytes) -> KeptFile:
        replace_file(self._path / name, data)
        return KeptFile(name, hashlib.sha256(data).hexdigest(), parts=name.startswith("parts-"))


def check_keys_of(directory: Path, keys: KeyRing | None) -> None:
    """Raise :class:`ConfigError` if a state is signed, and what is written there next would not be; or if it is
    damaged."""
    if keys is not None and not keys.signs:
        raise ConfigError("the keys of a state: this key ring only verifies: pass sign_with=")
    if keys is None and (_is_signed(directory) or has_signed_acceptances(directory)):
        raise ConfigError(f"{directory}: this state is signed: the auditor's keys are needed (--state-keys)")


def _is_signed(directory: Path) -> bool:
    try:
        return read_signed(directory / _MANIFEST, None, STATE, _REMEDY).signature is not None
    except FileNotFoundError:
        return False


def _read_manifest(directory: Path, keys: KeyRing | None) -> _Manifest:
    empty = _Manifest(FORMAT, VERSION, [])
    path = directory / _MANIFEST
    try:
        data = read_signed(path, keys, STATE, _REMEDY).data
        if msgspec.json.decode(data, type=_Version).version != VERSION:
            return empty
        found = msgspec.json.decode(data, type=_Manifest)
    except FileNotFoundError:
        return empty
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: damaged ({error}); {_REMEDY}") from None
    every = [*found.files, *([] if found.audited is None else [found.audited])]
    if found.format != FORMAT or any("/" in each.name for each in every):
        raise ConfigError(f"{path}: not the state of audits")
    return found


def read_audited(directory: Path, keys: KeyRing | None = None) -> Audited | None:
    """The result of the latest audit with the state in a directory, which another audit may be replacing; None if there
    was none. Raises :class:`ConfigError` as :class:`Kept` does."""
    while True:
        manifest = _read_manifest(directory, keys)
        try:
            return _read_audited(directory, manifest)
        except ConfigError:
            if _read_manifest(directory, keys) == manifest:
                raise


def _read_audited(directory: Path, manifest: _Manifest) -> Audited | None:
    return None if manifest.audited is None else _decoded(directory, manifest.audited, Audited)


def is_state(directory: Path, keys: KeyRing | None = None) -> bool:
    """Whether a directory holds what an audit or an operator has kept there. An audit that was interrupted before its
    end leaves nothing. Raises :class:`ConfigError` as :class:`Kept` does."""
    _read_manifest(directory, keys)
    return (directory / _MANIFEST).exists() or has_acceptances(directory)


def storable(known: Histories, placed: Iterable[Placed]) -> list[Placed]:
    """The parts that may be kept: of clients with one history, those from its first row on without a hole."""
    by_number = {each.number: each for each in placed}
    clients = Counter((each.role, each.client) for each in known.journals)
    found: list[Placed] = []
    for journal in known.journals:
        if clients[journal.role, journal.client] > 1:
            continue
        before: Placed | None = None
        for number in known.numbers[journal.name]:
            each = by_number[number]
            if before is None:
                if each.part.first_lsn != 1 or each.part.parent is not None:
                    break
            elif not follows(before.part, each.part):
                break
            found.append(each)
            before = each
    return found


def merges(placed: Sequence[Placed], lowest: int) -> list[Merge]:
    """All parts of each client as one; `lowest`: the results have numbers below this."""
    by_client: dict[tuple[str, str], list[Placed]] = defaultdict(list)
    for each in placed:
        by_client[each.part.role, each.part.client].append(each)
    found = []
    for own in by_client.values():
        own.sort(key=lambda each: each.part.first_lsn)
        part, seams = own[0].part, []
        for each in own[1:]:
            seams.append(seam_of(part, each.part))
            part = join_parts(part, each.part)
        lowest -= 1
        last = replace(own[-1], number=lowest, part=part, streams=max(each.streams for each in own))
        found.append(Merge(last, {each.number: place for place, each in enumerate(own)}, seams))
    return found


def write_facts(directory: str, records: Iterable[Record]) -> KeptFile | None:
    """Write facts to a new file, if there are any. Its hash is that of what was written, not of what is in the file
    after that, which others may have changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [("producer", pa.string()), ("topic", pa.string()), ("part", pa.int64()), ("number", pa.int64()),
         ("facts", pa.binary())]
    )  # fmt: skip
    name = f"facts-{secrets.token_hex(8)}.parquet"
    aside = Path(directory) / f".{name}"
    rows = 0
    try:
        with _HashedFile(aside) as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in _batches(records):
                    rows += len(batch)
                    writer.write_batch(
                        pa.record_batch(list(map(list, zip(*batch, strict=True))), schema=schema)
                    )
            os.fsync(file.fileno())
        if not rows:
            return None
        os.replace(aside, Path(directory) / name)
    finally:
        aside.unlink(missing_ok=True)
    return KeptFile(name, file.hash.hexdigest())


class _HashedFile(io.FileIO):
    """A new file that is written from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write all of it."""
        left = memoryview(data).cast("B")
        self.hash.update(left)
        count = len(left)
        while left:
            left = left[super().write(left) :]
        return count


def _batches(records: Iterable[Record]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    for (stream, number), data in records:
        batch.append((*stream, number, data))
        if len(batch) >= _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def read_facts(directory: str, file: KeptFile, numbers: Container[int]) -> Iterator[Record]:
    """Read the facts of some parts."""
    found = ParquetBytes(_verified(Path(directory), file)).rows(
        "producer", "topic", "part", "number", "facts"
    )
    for producer, topic, part, number, data in found:
        if number in numbers:
            yield ((producer, topic, part), number), data


def _decoded(directory: Path, file: KeptFile, kind: type[_T]) -> _T:
    data = _verified(directory, file)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise _unusable(directory, file, f"damaged ({error})") from None


def _verified(directory: Path, file: KeptFile) -> bytes:
    try:
        data = read_regular(directory / file.name)
    except FileNotFoundError:
        raise _unusable(directory, file, "missing") from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise _unusable(directory, file, "damaged")
    return data


def _unusable(directory: Path, file: KeptFile, why: str) -> ConfigError:
    return ConfigError(f"{directory / file.name}: {why}; remove {directory / _MANIFEST}, and audit again")


def _is_ours(path: Path) -> bool:
    name = path.name.lstrip(".")
    return name.startswith(("facts-", "parts-", "audited-", PREFIX, _MANIFEST)) or name in (_LOCK, LOCK)
