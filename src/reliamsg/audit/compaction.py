"""Compacts journals: writes checkpoints, and archives the segments that they cover. Needs no Spark.

A checkpoint is written aside, made durable, read back and verified before it gets its name; only then are segments
moved, one by one, to where they are readable again. So whenever a compaction is interrupted, the segments, the
checkpoint, or both are there.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from reliamsg.audit.checkpoint import (
    Checkpoint,
    encode_checkpoint,
    is_checkpoint,
    parse_checkpoint_name,
    read_checkpoint,
)
from reliamsg.audit.directories import listed
from reliamsg.audit.fold import Fact, Folder, Part, StreamName
from reliamsg.audit.joining import join_facts, join_parts, seam_of
from reliamsg.audit.segment import owner_of, parse_segment_name, read_segment
from reliamsg.audit.signatures import NOT_SIGNED, reaching, signer_of
from reliamsg.audit.signed import CHECKPOINT, signature_problem
from reliamsg.errors import ConfigError
from reliamsg.files import create_private, irregular, make_directories, read_regular
from reliamsg.keys import KeyRing
from reliamsg.trust import Trust

__all__ = ["Compacted", "compact"]

SUFFIX = ".ndjson"
_LOCK, _ASIDE = ".compact.lock", ".checkpoint-"
_TOGETHER = 100
"""How many files are moved at the same time. Until their directories are durable, they take room twice."""
_CLIENT = re.compile(r"^(.*?role=(?:producer|group)/client=[^/]+)/")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Fact]).decode


@dataclass(slots=True)
class Compacted:
    """What became of one client's journal."""

    role: str
    client: str
    problem: str | None = None
    """Why it was left out."""
    checkpoint: str | None = None
    """The checkpoint's path, new or not."""
    written: bool = False
    segments: int = 0
    """The number of segments that the checkpoint covers."""
    rows: int = 0
    archived: int = 0
    """The number of files that were moved to the archive."""


@dataclass(slots=True)
class _Files:
    """What was found of one client."""

    segments: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Segments of the client that are outside of its directory."""


class _LeftOut(Exception):
    """The client can't be compacted; the message tells why."""


def compact(
    root: str | os.PathLike[str],
    *,
    clients: Collection[str] = (),
    keys: KeyRing | None = None,
    archive: str | os.PathLike[str] | None = None,
    trust: Trust | None = None,
) -> Iterator[Compacted]:
    """Write a checkpoint for each client with segments below a directory, or for some clients, one by one.

    `keys` sign the checkpoints, and must have signed those from which a compaction starts. `archive`: a directory to
    which the covered segments and older checkpoints are moved, under the same relative paths. With `trust`, a client is
    left out of which a segment is not signed by itself, unless an operator accepts that; this needs `keys`, since only
    a signed checkpoint vouches for what it covers.

    Raises :class:`ConfigError` if `trust` is given without `keys`, if another compaction of the directory is running,
    or if the archive is inside it, :class:`JournalTargetError` if a directory can't be read, and :class:`OSError` if
    anything can't be written.
    """
    place = Path(os.path.abspath(root))
    target = None if archive is None else Path(os.path.abspath(archive))
    if trust is not None and keys is None:
        raise ConfigError(
            "--journal-keys needs --keys: only a signed checkpoint vouches for the signatures of its segments"
        )
    if target is not None and place.resolve() in (target.resolve(), *target.resolve().parents):
        raise ConfigError(f"{archive}: the archive must be outside of {root}, or its segments are read again")
    lock = FileLock(place / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{root}: another compaction is running") from None
    except OSError as error:
        raise OSError(f"{root}: can't be locked: {error.strerror or error}") from error
    try:
        for (role, client), files in sorted(_find(place).items()):
            if not clients or client in clients:
                yield _Client(place, role, client, files, keys, trust).compact(target)
    finally:
        lock.release()


def _find(root: Path) -> dict[tuple[str, str], _Files]:
    found: dict[tuple[str, str], _Files] = {}
    homeless: list[str] = []
    for directory, entries in listed(root):
        for name in entries:
            path = os.path.join(directory, name)
            owner = owner_of(path)
            if name.startswith(_ASIDE):
                os.unlink(path)  # of a compaction that was killed: this one has the lock
            elif name.startswith((".", "_")):
                continue
            elif owner is None:
                if parse_segment_name(name) is not None:
                    homeless.append(path)
            elif name.endswith(SUFFIX):
                found.setdefault(owner, _Files()).segments.append(path)
            elif is_checkpoint(path):
                found.setdefault(owner, _Files()).checkpoints.append(path)
    odd = dict(irregular(root, (SUFFIX, ".parquet")))
    for path, what in odd.items():
        owner = owner_of(path)
        if owner is not None and owner in found:
            found[owner].odd.append(f"{os.path.basename(path)}: not a file: {what}")
    for path in set(homeless) - odd.keys():
        stray = read_segment(path, read_regular(path))
        header = None if stray is None or stray.problem is not None else stray.header
        if header is not None and (header.role, header.client) in found:
            found[header.role, header.client].strays.append(path)
    return found


class _Client:
    """The compaction of one client's journal."""

    def __init__(
        self, root: Path, role: str, client: str, files: _Files, keys: KeyRing | None, trust: Trust | None
    ) -> None:
        self._root, self._role, self._client = root, role, client
        self._files, self._keys, self._trust = files, keys, trust

    def compact(self, archive: Path | None) -> Compacted:
        found = Compacted(self._role, self._client)
        try:
            home = self._home()
            base, path = self._base()
            verified = None if self._trust is None else self._verified(base, self._trust)
            new = self._new(base)
            if new:
                base = self._fold(base, new, verified)
                path = self._write(home, base)
                found.written = True
        except _LeftOut as error:
            found.problem = str(error)
            return found
        assert base is not None  # there is a checkpoint, or there are segments
        assert path is not None
        found.checkpoint, found.segments, found.rows = path, len(base.part.digests), base.part.last_lsn
        if archive is not None:
            try:
                found.archived = self._archive(archive, base, path)
            except _LeftOut as error:
                found.problem = str(error)
        return found

    def _home(self) -> Path:
        """The client's directory."""
        if self._files.odd:
            raise _LeftOut(self._files.odd[0])
        every = (*self._files.segments, *self._files.checkpoints)
        homes = sorted({home[1] for path in every if (home := _CLIENT.match(path)) is not None})
        if len(homes) > 1:
            raise _LeftOut(f"its segments are in several directories: {', '.join(homes)}")
        return Path(homes[0])

    def _base(self) -> tuple[Checkpoint | None, str | None]:
        """The latest checkpoint and its path; every other one must be a beginning of it."""
        known: list[tuple[Checkpoint, str]] = []
        for path in self._files.checkpoints:
            name = os.path.basename(path)
            found = read_checkpoint(path, read_regular(path))
            if isinstance(found, str):
                raise _LeftOut(f"{name}: {found}")
            if self._keys is None and found.signature is not None:
                raise _LeftOut(f"{name}: it is signed: a key is needed to continue it")
            problem = signature_problem(found.header, found.signature, self._keys, CHECKPOINT)
            if problem is not None:
                raise _LeftOut(f"{name}: {problem}")
            known.append((found, path))
        if not known:
            return None, None
        known.sort(key=lambda each: (each[0].part.last_lsn, each[1]))
        last, path = known[-1]
        for other, name in known[:-1]:
            if last.part.digests[: len(other.part.digests)] != other.part.digests:
                raise _LeftOut(f"{os.path.basename(name)}: it contradicts {os.path.basename(path)}")
        return last, path

    def _verified(self, base: Checkpoint | None, trust: Trust) -> set[str]:
        """The digests of the segments that are signed by the client, or accepted without a signature. Those that a
        checkpoint covers and that are still there are checked, too: whoever made it may not have done so."""
        known = [] if base is None else base.part.digests
        parents: dict[str, str | None] = dict(zip(known, [None, *known], strict=False))
        unsigned: dict[str, str] = {}
        verified: set[str] = set()
        for path in sorted(self._files.segments):
            file = os.path.basename(path)
            name, data = parse_segment_name(file), read_regular(path)
            digest = hashlib.sha256(data).hexdigest()
            line, _, body = data.partition(b"\n")
            if name is None or name.digest != digest:
                continue  # not verified: its damage is reported when it is folded
            try:
                first = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                continue
            signer = signer_of(trust, self._role, self._client, first, line, body)
            if signer.problem is not None:
                raise _LeftOut(f"{file}: {signer.problem}")
            verified.add(digest)
            parent = first.get("parent")
            parents.setdefault(digest, parent if isinstance(parent, str) else None)
            if not signer.mark:
                unsigned[digest] = file
        accepted = reaching(parents, trust.accepts_unsigned(self._role, self._client))
        for digest, file in unsigned.items():
            if digest not in accepted:
                raise _LeftOut(f"{file}: {NOT_SIGNED}")
        return verified

    def _new(self, base: Checkpoint | None) -> list[str]:
        """The segments behind a checkpoint, in order. Their names are checked only."""
        end = 0 if base is None else base.part.last_lsn
        covered = set() if base is None else set(base.part.digests)
        starts: dict[int, str] = {}
        for path in sorted(self._files.segments):
            file = os.path.basename(path)
            name = parse_segment_name(file)
            if name is None:
                raise _LeftOut(f"{file}: its name is not that of a segment, so its content can't be verified")
            if name.digest in covered:
                continue
            if name.first_lsn <= end:
                raise _LeftOut(f"{file}: it forks off before the end of the checkpoint")
            if name.first_lsn in starts:
                same = os.path.basename(starts[name.first_lsn]) == file
                what = (
                    "is there twice"
                    if same
                    else "and another one begin with the same row: its file was copied"
                )
                raise _LeftOut(f"{file} {what}")
            starts[name.first_lsn] = path
        new = [path for _, path in sorted(starts.items())]
        listed = {os.path.basename(path) for path in new}
        for path in sorted(self._files.strays):
            file = os.path.basename(path)
            name = parse_segment_name(file)
            if file not in listed and name is not None and name.digest not in covered:
                raise _LeftOut(
                    f"{file}: it is outside of the client's directory, and may be from a copy of its file"
                )
        return new

    def _fold(
        self, base: Checkpoint | None, paths: Sequence[str], verified: Collection[str] | None
    ) -> Checkpoint:
        """A checkpoint of another one and the segments behind it. `verified`: the digests of those whose signatures
        were checked; None if none are."""
        folder, old_lsn = Folder(), 0 if base is None else base.old_lsn
        end = 0 if base is None else base.part.last_lsn
        parent = None if base is None else base.part.digests[-1]
        for path in paths:
            name = os.path.basename(path)
            found = read_segment(path, read_regular(path))
            if found is None or found.problem is not None or found.header is None or found.lines is None:
                raise _LeftOut(f"{name}: {'not a segment' if found is None else found.problem}")
            if verified is not None and found.digest not in verified:
                raise _LeftOut(f"{name}: it was replaced while it was read")
            header = found.header
            if header.first_lsn != end + 1:
                raise _LeftOut(f"rows {end + 1} to {header.first_lsn - 1} are missing")
            if header.parent != parent:
                raise _LeftOut(f"the rows from {header.first_lsn} on do not continue the rows before them")
            folder.add(header, found.digest, found.lines)
            end, parent = header.last_lsn, found.digest
            if header.version < 2:
                old_lsn = header.last_lsn
        part, streams = folder.part(), folder.streams
        if base is not None:
            part, streams = _joined(base, part, streams)
        return Checkpoint(part, old_lsn, [(stream, _encode(facts)) for stream, facts in streams.items()])

    def _write(self, home: Path, found: Checkpoint) -> str:
        """Write a checkpoint durably, and read it back before it gets its name."""
        try:
            name, data = encode_checkpoint(found, self._keys)
        except (ValueError, RecursionError, OverflowError) as error:
            raise _LeftOut(f"its rows can't be folded: {error}") from None
        final = home / str(name)
        aside = home / f"{_ASIDE}{secrets.token_hex(8)}"
        try:
            with open(create_private(aside), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            again = read_checkpoint(str(final), read_regular(aside))
            if isinstance(again, str):
                raise _LeftOut(f"the checkpoint could not be verified after it was written: {again}")
            if again.part != _plain(found.part) or dict(again.facts) != dict(found.facts):
                raise _LeftOut("the checkpoint differs from what was written")
            os.replace(aside, final)
        finally:
            aside.unlink(missing_ok=True)
        _sync(home)
        return str(final)

    def _archive(self, archive: Path, base: Checkpoint, path: str) -> int:
        """Move what the checkpoint covers; returns the number of files."""
        covered = set(base.part.digests)
        older = [each for each in self._files.checkpoints if each != path]
        moved = []
        for each in sorted(self._files.segments):
            name = parse_segment_name(os.path.basename(each))
            if name is not None and name.digest in covered:
                moved.append(Path(each))
        for each in sorted(older):
            if parse_checkpoint_name(os.path.basename(each)) is not None:
                moved.append(Path(each))
        for first in range(0, len(moved), _TOGETHER):
            self._move(moved[first : first + _TOGETHER], archive)
        return len(moved)

    def _move(self, sources: Sequence[Path], archive: Path) -> None:
        """Move files durably: none is removed before the copies of all are durable."""
        targets = [self._copy(source, archive) for source in sources]
        for directory in sorted({target.parent for target in targets}):
            _sync_up(directory, archive)
        for source in sources:
            os.unlink(source)
        for directory in sorted({source.parent for source in sources}):
            _sync(directory)

    def _copy(self, source: Path, archive: Path) -> Path:
        """Copy a file into the archive, and return its path there. Never replaces another one."""
        target = archive / source.relative_to(self._root)
        make_directories(target.parent)
        if target.exists():
            if not filecmp.cmp(source, target, shallow=False):
                raise _LeftOut(f"{target}: there is another file of this name in the archive")
        else:
            aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            try:
                shutil.copyfile(source, aside, follow_symlinks=False)
                _sync(aside)
                os.replace(aside, target)
            finally:
                aside.unlink(missing_ok=True)
        return target


def _joined(
    base: Checkpoint, part: Part, streams: dict[StreamName, list[Fact]]
) -> tuple[Part, dict[StreamName, list[Fact]]]:
    """A checkpoint, and the part that follows it."""
    seam = seam_of(base.part, part)
    found = {stream: _decode(facts) for stream, facts in base.facts}
    for stream, facts in streams.items():
        found[stream] = join_facts(found.get(stream, []), facts, seam)
    return join_parts(base.part, part), found


def _plain(part: Part) -> Part:
    """A part as it is after it was encoded."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Part)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _sync_up(directory: Path, top: Path) -> None:
    """Make new directories durable, too."""
    while True:
        _sync(directory)
        if directory in (top.parent, directory.parent):
            return
        directory = directory.parent
