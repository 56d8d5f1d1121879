"""The clients' journals, from files and segments: rows, and what is wrong with them as evidence.

A chain is one history of a client's file: its boots, one after the other, from segments that have left it and from what
it still holds. It is sound when no row is missing (`lsn` counts without a hole from 1), each boot begins with
``opened``, and the last one ended with ``closed``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from reliamsg.checker.lineage import Piece, lines, misfits, rows_of
from reliamsg.checker.segments import check_segment, claims_to_be_segment, owner_by_path
from reliamsg.checker.spans import Spans
from reliamsg.errors import JournalTargetError, StoreCorrupt
from reliamsg.export.target import SUFFIX, DirectoryTarget, Target, open_target
from reliamsg.files import irregular, read_regular
from reliamsg.store.database import open_readonly, reading
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import SegmentError

__all__ = [
    "Boot", "Chain", "Found", "Role", "collect", "collect_path", "find_journals", "is_other_database",
    "mark_abandoned", "merge_copies", "read_chain",
]  # fmt: skip

Role = Literal["producer", "group"]

_ROLE: dict[int, Role] = {0x524D4F31: "producer", 0x524D4931: "group"}
_HEAD_BYTES = 4096
"""A header's line is shorter: a client's name is at most 255 bytes."""


@dataclass
class Boot:
    """One opening of a file, and what its ``opened`` row says."""

    name: str
    opened: dict[str, Any]
    rows: list[JournalRow] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return any(row.kind == "closed" for row in self.rows)


@dataclass
class Chain:
    """One history of a client's journal."""

    role: Role
    client: str
    source: str
    rows: list[JournalRow]
    broken: list[str] = field(default_factory=list)
    """Why rows may be missing; empty where none is."""
    boots: list[Boot] = field(default_factory=list)
    to_the_end: bool = True
    """Whether there are no rows beyond the last: the client's file itself was read. Segments may go on in others that
    have not left it yet."""
    segments: int = 0
    """How many segments it was read from."""

    def __post_init__(self) -> None:
        self._split()

    @property
    def finished(self) -> bool:
        """Whether nothing can follow: the last boot was closed."""
        return bool(self.boots) and self.boots[-1].closed

    @property
    def sound(self) -> bool:
        """Whether what the chain does not say did not happen."""
        return not self.broken and self.finished

    def is_whole(self, boot: Boot) -> bool:
        """Whether a boot's journal is there to its end. Rows grow, so what one says may rest on rows behind it: of a
        boot that goes on in segments which have yet to come, it proves nothing."""
        return not self.broken and (self.to_the_end or self.finished or boot is not self.boots[-1])

    def goes_beyond(self, wall_us: int | None) -> bool:
        """Whether something was journalled after that time, by the client's clock."""
        return wall_us is not None and any(row.wall_us > wall_us for row in self.rows)

    def _split(self) -> None:
        if not self.rows:
            self.broken.append("it holds no row")
        given_up = self._given_up()
        expected = 1
        for row in self.rows:
            if row.lsn > expected:
                self._lacks(expected, row.lsn - 1, given_up)
            elif row.lsn < expected:
                self.broken.append(f"row {row.lsn} comes after row {expected - 1}")
            expected = row.lsn + 1
            if not self.boots or self.boots[-1].name != row.boot:
                self._begin(row)
            self.boots[-1].rows.append(row)

    def _given_up(self) -> Spans:
        """Rows that the client says it gave up, each reported."""
        given_up = Spans()
        for row in self.rows:
            if row.kind != "truncated":
                continue
            detail = row.detail or {}
            first, last, count = (detail.get(name) for name in ("first_lsn", "last_lsn", "rows"))
            if isinstance(first, int) and isinstance(last, int):
                given_up.add(first, last)
                self.broken.append(f"rows {first} to {last} were given up by the client: its target was away")
            else:
                number = count if isinstance(count, int) else "some"
                self.broken.append(
                    f"{number} rows were given up by the client: its file could not be written"
                )
        return given_up

    def _lacks(self, first: int, last: int, given_up: Spans) -> None:
        self.broken += [f"rows {a} to {b} are missing" for a, b in given_up.lacking(first, last)]

    def _begin(self, row: JournalRow) -> None:
        if any(boot.name == row.boot for boot in self.boots):
            self.broken.append(f"boot {row.boot} goes on at row {row.lsn}, after another one began")
        if row.kind != "opened":
            self.broken.append(
                f"boot {row.boot} begins with {row.kind!r} at row {row.lsn}, not with 'opened'"
            )
        self.boots.append(Boot(row.boot, (row.detail or {}) if row.kind == "opened" else {}))


def read_chain(path: str | os.PathLike[str]) -> Chain:
    """What an outbox or inbox holds of its journal, read without changing the file, also while its owner runs.

    Rows that have left it in segments are missing from the chain: :func:`collect` puts them together.
    A file that can't be read to its end gives a chain that is broken, with what could be read.
    Raises :class:`StoreCorrupt` when it is neither an outbox nor an inbox.
    """
    return _chain(_read_file(path), [], [])


@dataclass
class Found:
    """All journals below a directory or URL."""

    chains: list[Chain] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line for each file that can't be used and whose client left nothing else."""
    duplicated: int = 0
    """Segments that were found in more than one place, beyond the first."""
    others: list[str] = field(default_factory=list)
    """Paths of files that end in ``.ndjson`` and are no segments."""


def collect(directory: str | os.PathLike[str]) -> Found:
    """Every outbox and inbox (``*.db``) and every segment below `directory`.

    Databases of other things are passed over. Symbolic links are not followed; they, and what is no regular file, are
    problems.
    """
    root = Path(directory)
    clients: dict[tuple[Role, str], _Client] = {}
    found = Found()
    # Files before segments: what leaves a running client's file in between is found twice, not never.
    for path in sorted(root.rglob("*.db")):
        if path.is_symlink() or not path.is_file() or is_other_database(path):
            continue
        try:
            file = _read_file(path)
        except StoreCorrupt as error:
            found.problems.append(str(error))
            continue
        clients.setdefault((file.role, file.client), _Client()).files.append(file)
    _take_segments(DirectoryTarget(root), root.as_posix(), clients, found)
    known = [*found.problems, *(text for client in clients.values() for text in client.damaged)]
    found.problems += [
        f"{path}: not a file: {what}"
        for path, what in irregular(root, (SUFFIX, ".db"))
        if not any(os.path.basename(path) in text for text in known)
    ]
    _put_together(clients, found)
    return found


def collect_path(path: str | os.PathLike[str]) -> Found:
    """What :func:`collect` finds in a directory; or the segments below an fsspec URL; or one file's journal.

    Raises :class:`JournalTargetError` when it can't be read, :class:`ConfigError` when there is no package for a URL,
    and :class:`StoreCorrupt` for a file that is neither a segment nor an outbox or inbox.
    """
    text = os.fspath(path)
    clients: dict[tuple[Role, str], _Client] = {}
    found = Found()
    if text.endswith(SUFFIX):
        parent, _, name = text.rpartition("/")
        place = open_target(parent or ("/" if text.startswith("/") else "."))
        _take_segment(f"{parent}/{name}" if parent else name, place.read(name), clients, found)
    else:
        place = open_target(path)
        if isinstance(place, DirectoryTarget):
            if Path(place.shown).is_dir():
                return collect(place.shown)
            file = _read_file(place.shown)
            clients[file.role, file.client] = _Client([file])
        else:
            _take_segments(place, place.shown.rstrip("/"), clients, found)
    _put_together(clients, found)
    return found


def find_journals(directory: str | os.PathLike[str]) -> tuple[list[Chain], list[str]]:
    """The chains of everything that :func:`collect` finds, and a line for each file that can't be used."""
    found = collect(directory)
    return found.chains, found.problems


@dataclass
class _File:
    """An outbox or inbox as it was read."""

    role: Role
    client: str
    piece: Piece
    broken: list[str]


@dataclass
class _Client:
    """All that was found of one client."""

    files: list[_File] = field(default_factory=list)
    segments: dict[str, Piece] = field(default_factory=dict)
    """By digest."""
    damaged: list[str] = field(default_factory=list)


def _read_file(path: str | os.PathLike[str]) -> _File:
    rows: list[JournalRow] = []
    broken: list[str] = []
    with reading(path), contextlib.closing(open_readonly(path)) as connection:
        # One transaction: a running owner's rows leave together with the note that they have.
        connection.execute("BEGIN")
        role = _ROLE[connection.execute("PRAGMA application_id").fetchone()[0]]
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        try:
            # Row by row, so that damage in the middle leaves what comes before it.
            for row in read_journal(connection):
                rows.append(row)
        except (sqlite3.Error, ValueError) as error:
            broken.append(f"it can't be read beyond row {rows[-1].lsn if rows else 0}: {error}")
    if not all(isinstance(value, str) for value in meta.values()):
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: what it says of itself is damaged")
    try:
        first = int(meta.get("journal_exported_lsn", "0")) + 1
    except ValueError:
        first = 1
        broken.append("it does not say how much of its journal was exported")
    if rows and first == 1:
        first = rows[0].lsn
    piece = Piece(str(path), None, meta.get("journal_parent"), first, rows)
    return _File(role, meta.get("owner", ""), piece, broken)


def _take_segments(place: Target, root: str, clients: dict[tuple[Role, str], _Client], found: Found) -> None:
    for path in place.paths():
        full = f"{root}/{path}"
        try:
            data = _segment_bytes(place, path, full)
        except (JournalTargetError, OSError) as error:
            _damaged(full, f"it can't be read: {error}", clients, found)
            continue
        if data is None:
            found.others.append(full)
        else:
            _take_segment(full, data, clients, found)


def _segment_bytes(place: Target, path: str, full: str) -> bytes | None:
    """The bytes of a file that is a segment or should be one; None for others, of which little is read."""
    if isinstance(place, DirectoryTarget):
        head = read_regular(full, _HEAD_BYTES).partition(b"\n")[0]
        return place.read(path) if claims_to_be_segment(full, head) else None
    data = place.read(path)
    return data if claims_to_be_segment(full, data) else None


def _take_segment(path: str, data: bytes, clients: dict[tuple[Role, str], _Client], found: Found) -> None:
    try:
        segment = check_segment(path, data)
    except SegmentError as error:
        _damaged(path, str(error), clients, found)
        return
    header = segment.header
    known = clients.setdefault((header.role, header.client), _Client()).segments
    if segment.digest in known:
        found.duplicated += 1
    else:
        known[segment.digest] = Piece(path, segment.digest, header.parent, header.first_lsn, segment.rows)


def _damaged(path: str, why: str, clients: dict[tuple[Role, str], _Client], found: Found) -> None:
    """A segment that can't be used, of the client that its directories name."""
    owner = owner_by_path(path)
    if owner is None:
        found.problems.append(f"{path}: {why}")
    else:
        own = clients.setdefault((cast(Role, owner[0]), owner[1]), _Client())
        own.damaged.append(f"{path.rpartition('/')[2]}: {why}")


def _put_together(clients: dict[tuple[Role, str], _Client], found: Found) -> None:
    for (role, name), client in sorted(clients.items()):
        files = {id(file.piece): file for file in client.files}
        every = lines([*client.segments.values(), *(file.piece for file in client.files)])
        own = []
        for line in every:
            file = files.get(id(line[-1]))
            broken = [
                problem for piece in line[:-1] if id(piece) in files for problem in files[id(piece)].broken
            ]
            last = file or _File(role, name, line[-1], [])
            own.append(_chain(last, line[:-1], broken, alone=len(every) == 1))
        if not own:
            found.problems += [f"{role} {name}: {line}" for line in client.damaged]
        for i, chain in enumerate(own):
            # Rows of the client are missing, whichever history they are of.
            chain.broken += (
                client.damaged if i == 0 or not client.damaged else ["segments of this client are damaged"]
            )
        found.chains += own


def _chain(end_of_line: _File, before: list[Piece], broken: list[str], alone: bool = True) -> Chain:
    """The chain of a line of pieces that ends with that one. `alone`: its client has no other."""
    last = end_of_line.piece
    line = [*before, last]
    rows = rows_of(line)
    source = last.source
    if last.digest is not None:
        directory = source.rpartition("/date=")[0] or source.rpartition("/")[0]
        source = directory if alone else f"{directory} up to {source.rpartition('/')[2]}"
    end = rows[-1].lsn if rows else 0
    chain = Chain(
        end_of_line.role, end_of_line.client, source, rows, [*broken, *end_of_line.broken, *misfits(line)],
        to_the_end=last.digest is None, segments=sum(piece.digest is not None for piece in line),
    )  # fmt: skip
    if last.last_lsn > end:
        chain.broken.append(f"rows {end + 1} to {last.last_lsn} are missing")
    return chain


def merge_copies(chains: Iterable[Chain]) -> list[Chain]:
    """Leave out chains that are an older state of another one: a backup beside the file it was made from."""
    kept: list[Chain] = []
    for chain in sorted(chains, key=lambda c: (c.role, c.client, -len(c.rows), not c.to_the_end)):
        if not any(_is_older_copy(chain, other) for other in kept):
            kept.append(chain)
    return kept


def mark_abandoned(chains: Iterable[Chain]) -> None:
    """Mark as broken each chain of a group that goes on where another inbox had stopped, if that left no journal."""
    chains = [chain for chain in chains if chain.role == "group"]
    known = {(chain.client, boot.opened.get("inbox")) for chain in chains for boot in chain.boots}
    for chain in chains:
        for row in chain.rows:
            before = (row.detail or {}).get("from") if row.kind == "took_over" else None
            problem = f"inbox {before}, whose work it went on with, left no journal"
            told = isinstance(before, str) and before
            if told and (chain.client, before) not in known and problem not in chain.broken:
                chain.broken.append(problem)


def _is_older_copy(chain: Chain, other: Chain) -> bool:
    """Whether every row of `chain` is in `other`, as it is or extended."""
    if (chain.role, chain.client) != (other.role, other.client) or not chain.rows:
        return False
    rows = {(row.boot, row.lsn): row for row in other.rows}
    return all(
        (twin := rows.get((row.boot, row.lsn))) is not None
        and (twin.kind, twin.first) == (row.kind, row.first)
        and twin.last >= row.last
        for row in chain.rows
    )


def is_other_database(path: Path) -> bool:
    """Whether a file is a readable SQLite database of something else."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return False
    try:
        return connection.execute("PRAGMA application_id").fetchone()[0] not in _ROLE
    except sqlite3.Error:
        return False
    finally:
        connection.close()
